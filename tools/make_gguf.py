#!/usr/bin/env python3
"""Writes a GGUF file: of a model folder, or with random bf16 weights in the shape of a config.json (bench/peers.sh).

  make_gguf.py CONFIG.JSON OUT.GGUF            needs numpy and gguf (PyPI)
  make_gguf.py FOLDER OUT.GGUF [TYPE]          weights, tokenizer and chat template of the folder

TYPE is what matrices become: F32, F16, BF16, or one that the gguf package can quantise (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1);
as they are stored if not given. Families: qwen3, qwen2, llama. Of tokenizers, byte-level BPE with the pattern of Qwen
or of Llama 3. With random weights there is a vocabulary of the right size without meaning, since llama-bench makes its
own tokens.
"""
import json
import os
import struct
import sys

import gguf
import numpy as np

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
               "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
               "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
               "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
               "mlp.down_proj": "ffn_down"}
TYPES = gguf.GGMLQuantizationType


def head_dim_of(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def own_name(name):
    """"model.layers.3.mlp.up_proj.weight" to "blk.3.ffn_up.weight"."""
    module, end = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{LAYER_NAMES[part]}.{end}"
    return f"{NAMES[module]}.{end}"


def add_numbers(out, config, file_type=None):
    head_dim = head_dim_of(config)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config.get("rope_theta", 10000.0))
    out.add_rope_dimension_count(head_dim)
    if file_type is not None:
        out.add_file_type(file_type)
    out.add_vocab_size(config["vocab_size"])


# --- random weights ---------------------------------------------------------------------------------------------------

class RandomWriter:
    def __init__(self, path, architecture):
        self.file = gguf.GGUFWriter(path, architecture)
        self.random = np.random.default_rng(1)

    def vector(self, name, size):
        self.file.add_tensor(name, np.ones(size, dtype=np.float32))

    def matrix(self, name, rows, columns):
        # bf16 numbers of about +-0.02: sign, an exponent of 0x3c80, random mantissas.
        bits = self.random.integers(0, 1 << 16, size=(rows, columns), dtype=np.uint16)
        bits = (bits & 0x807F) | 0x3C80
        add_bf16(self.file, name, bits)


def add_bf16(out, name, bits):
    out.add_tensor(name, bits.view(np.uint8), raw_shape=(bits.shape[0], bits.shape[1] * 2), raw_dtype=TYPES.BF16)


def add_empty_vocabulary(out, size):
    out.add_tokenizer_model("llama")
    out.add_token_list([f"<{i}>" for i in range(size)])
    out.add_token_scores([0.0] * size)
    out.add_token_types([1] * size)


def add_random_layer(writer, config, layer):
    hidden, ffn, head_dim = config["hidden_size"], config["intermediate_size"], head_dim_of(config)
    q, kv = (config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads"))
    name = f"blk.{layer}."
    writer.vector(name + "attn_norm.weight", hidden)
    writer.vector(name + "ffn_norm.weight", hidden)
    if config["model_type"] == "qwen3":
        writer.vector(name + "attn_q_norm.weight", head_dim)
        writer.vector(name + "attn_k_norm.weight", head_dim)
    writer.matrix(name + "attn_q.weight", q, hidden)
    writer.matrix(name + "attn_k.weight", kv, hidden)
    writer.matrix(name + "attn_v.weight", kv, hidden)
    writer.matrix(name + "attn_output.weight", hidden, q)
    writer.matrix(name + "ffn_gate.weight", ffn, hidden)
    writer.matrix(name + "ffn_up.weight", ffn, hidden)
    writer.matrix(name + "ffn_down.weight", hidden, ffn)


def write_random(config, path):
    if config["model_type"] not in ("qwen3", "llama"):
        sys.exit(f"make_gguf.py: expected qwen3 or llama, found {config['model_type']}")
    writer = RandomWriter(path, config["model_type"])
    add_numbers(writer.file, config, gguf.LlamaFileType.MOSTLY_BF16)
    add_empty_vocabulary(writer.file, config["vocab_size"])
    writer.matrix("token_embd.weight", config["vocab_size"], config["hidden_size"])
    writer.vector("output_norm.weight", config["hidden_size"])
    if not config.get("tie_word_embeddings", False):
        writer.matrix("output.weight", config["vocab_size"], config["hidden_size"])
    for layer in range(config["num_hidden_layers"]):
        add_random_layer(writer, config, layer)
    finish(writer.file)


# --- a folder ---------------------------------------------------------------------------------------------------------

def read_safetensors(path):
    """Name to (dtype as stored, array); bf16 as uint16."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    types = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = np.frombuffer(data[8 + length + begin:8 + length + end], dtype=types[entry["dtype"]])
            tensors[name] = (entry["dtype"], raw.reshape(entry["shape"]))
    return tensors


def turn(array, heads):
    """llama.cpp's order of the rows of q and k: those that rope turns together stand side by side."""
    rows = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(array.shape)


def widen(dtype, array):
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def add_weight(out, config, name, dtype, array, wanted):
    """wanted: a function of a tensor's own name, to a type."""
    own = own_name(name)
    if config["model_type"] == "llama" and own.endswith(("attn_q.weight", "attn_k.weight")):
        heads = "num_attention_heads" if "attn_q." in own else "num_key_value_heads"
        array = turn(array, config[heads])
    if array.ndim == 1:
        out.add_tensor(own, widen(dtype, array))
        return
    to = wanted(own) or dtype
    if to == dtype and dtype == "BF16":
        add_bf16(out, own, array)
    elif to in ("F16", "F32"):
        out.add_tensor(own, widen(dtype, array).astype(np.float16 if to == "F16" else np.float32))
    else:
        raw = gguf.quants.quantize(widen(dtype, array), TYPES[to])
        out.add_tensor(own, raw, raw_dtype=TYPES[to])


def pretokenizer_of(tokenizer):
    text = json.dumps(tokenizer["pre_tokenizer"])
    return "llama-bpe" if "{1,3}" in text else "qwen2"


def add_tokenizer(out, folder, vocab_size):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokens = {i: (text, gguf.TokenType.NORMAL) for text, i in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        tokens[token["id"]] = (token["content"], kind)
    rows = [tokens.get(i, (f"[PAD{i}]", gguf.TokenType.UNUSED)) for i in range(vocab_size)]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pretokenizer_of(tokenizer))
    out.add_token_list([text for text, _ in rows])
    out.add_token_types([int(kind) for _, kind in rows])
    merges = tokenizer["model"]["merges"]
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    return {text: i for i, (text, _) in tokens.items()}


def add_settings(out, folder, ids):
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
        settings = json.load(file)
    for key, add in (("bos_token", out.add_bos_token_id), ("eos_token", out.add_eos_token_id)):
        if settings.get(key):
            add(ids[settings[key] if isinstance(settings[key], str) else settings[key]["content"]])
    out.add_add_bos_token(bool(settings.get("add_bos_token", False)))
    if settings.get("chat_template"):
        out.add_chat_template(settings["chat_template"])


def write_folder(folder, path, wanted):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    out = gguf.GGUFWriter(path, config["model_type"])
    add_numbers(out, config)
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        add_settings(out, folder, add_tokenizer(out, folder, config["vocab_size"]))
    for name, (dtype, array) in read_safetensors(os.path.join(folder, "model.safetensors")).items():
        add_weight(out, config, name, dtype, array, wanted)
    finish(out)


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    if os.path.isdir(sys.argv[1]):
        kind = sys.argv[3] if len(sys.argv) == 4 else None
        write_folder(sys.argv[1], sys.argv[2], lambda own: kind)
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        write_random(json.load(file), sys.argv[2])


if __name__ == "__main__":
    main()
