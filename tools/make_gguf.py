#!/usr/bin/env python3
"""Writes a GGUF file with random bf16 weights in the shape of a config.json, for bench/peers.sh.

  make_gguf.py CONFIG.JSON OUT.GGUF        needs numpy and gguf (PyPI)

Only what llama-bench reads is written: it makes its own tokens, so there is a vocabulary of the
right size without meaning. Families: qwen3, llama.
"""
import json
import sys

import gguf
import numpy as np


class Writer:
    def __init__(self, path, architecture):
        self.file = gguf.GGUFWriter(path, architecture)
        self.random = np.random.default_rng(1)

    def vector(self, name, size):
        self.file.add_tensor(name, np.ones(size, dtype=np.float32))

    def matrix(self, name, rows, columns):
        # bf16 numbers of about +-0.02: sign, an exponent of 0x3c80, random mantissas.
        bits = self.random.integers(0, 1 << 16, size=(rows, columns), dtype=np.uint16)
        bits = (bits & 0x807F) | 0x3C80
        self.file.add_tensor(name, bits.view(np.uint8), raw_shape=(rows, columns * 2),
                             raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_numbers(out, config, head_dim):
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
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    out.add_vocab_size(config["vocab_size"])


def add_vocabulary(out, size):
    out.add_tokenizer_model("llama")
    out.add_token_list([f"<{i}>" for i in range(size)])
    out.add_token_scores([0.0] * size)
    out.add_token_types([1] * size)


def add_layer(writer, config, head_dim, layer):
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
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


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        config = json.load(file)
    if config["model_type"] not in ("qwen3", "llama"):
        sys.exit(f"make_gguf.py: expected qwen3 or llama, found {config['model_type']}")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = Writer(sys.argv[2], config["model_type"])
    add_numbers(writer.file, config, head_dim)
    add_vocabulary(writer.file, config["vocab_size"])
    writer.matrix("token_embd.weight", config["vocab_size"], config["hidden_size"])
    writer.vector("output_norm.weight", config["hidden_size"])
    if not config.get("tie_word_embeddings", False):
        writer.matrix("output.weight", config["vocab_size"], config["hidden_size"])
    for layer in range(config["num_hidden_layers"]):
        add_layer(writer, config, head_dim, layer)
    writer.file.write_header_to_file()
    writer.file.write_kv_data_to_file()
    writer.file.write_tensors_to_file()
    writer.file.close()


if __name__ == "__main__":
    main()
