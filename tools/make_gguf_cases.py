#!/usr/bin/env python3
"""Makes tests/data/gguf: small GGUF files by PyPI's gguf, and what they mean by its own dequantisation.

    python3 -m venv /tmp/venv-gguf && /tmp/venv-gguf/bin/pip install gguf numpy sentencepiece
    /tmp/venv-gguf/bin/python tools/make_gguf_cases.py

types.gguf: for every quantised type a tensor TYPE of random blocks, and TYPE.expected, its values by gguf.dequantize.
NAME.gguf of MODELS, with NAME.f32: logits [tokens, V] of a forward pass in float64 (tools/reference_forward.py) over
the dequantised weights. Plain weights are those that src/model/dummy_weights.c draws from SEED, so that a test can
write the same model as a folder. demo_vocabulary.gguf: the demo model's tokenizer and chat template, without weights.
pieces.gguf: a SentencePiece vocabulary trained on the first logs; pieces.json: texts and the ids that sentencepiece gives.
"""
import io
import json
import math
import pathlib

import gguf
import numpy as np
import sentencepiece

import make_gguf
import reference_forward
import reference_weights

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "tests" / "data" / "gguf"
SEED = 3
TOKENS = [5, 17, 3, 40, 22, 9]
TYPES = gguf.GGMLQuantizationType
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
             "MXFP4"]
# Where the blocks of a type have numbers in f16, and the standard deviation of its values where these are 1.
HALVES = {"Q4_0": ([0], 4.6), "Q4_1": ([0, 2], 4.7), "Q5_0": ([0], 9.2), "Q5_1": ([0, 2], 9.3), "Q8_0": ([0], 74),
          "Q2_K": ([80, 82], 14), "Q3_K": ([108], 43), "Q4_K": ([0, 2], 330), "Q5_K": ([0, 2], 670),
          "Q6_K": ([208], 1370), "IQ4_NL": ([0], 63), "IQ4_XS": ([0], 1160)}


def random_blocks(random, kind, rows, columns, deviation):
    """Bytes of a matrix of any type: random but for the numbers in f16, which give values of that deviation."""
    elements, size = gguf.GGML_QUANT_SIZES[TYPES[kind]]
    blocks = random.integers(0, 256, size=(rows * columns // elements, size), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = random.integers(124, 126, size=len(blocks))
        return blocks.reshape(rows, -1)
    places, unit = HALVES[kind]
    for place in places:
        value = deviation / unit * random.uniform(0.8, 1.2, size=len(blocks))
        if place == places[0]:
            value *= random.choice([-1, 1], size=len(blocks)) if len(places) == 1 else 1
        elif kind in ("Q4_1", "Q5_1"):
            value *= -8 if kind == "Q4_1" else -16
        blocks[:, place:place + 2] = value.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def write_types():
    random = np.random.default_rng(11)
    out = gguf.GGUFWriter(OUTPUT / "types.gguf", "none")
    for kind in QUANTISED:
        raw = random_blocks(random, kind, 3, 512, 1.0)
        out.add_tensor(kind, raw, raw_dtype=TYPES[kind])
        out.add_tensor(kind + ".expected", gguf.dequantize(raw, TYPES[kind]).astype(np.float32))
    make_gguf.finish(out)


# --- models -----------------------------------------------------------------------------------------------------------

def config_of(family, hidden, heads, head_dim, inner, layers, tied, **other):
    return dict({"model_type": family, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
                 "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": head_dim,
                 "vocab_size": 48, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                 "tie_word_embeddings": tied, "use_sliding_window": False}, **other)


FACTORS = [1, 1, 1.5, 2.25, 4, 8, 8, 16]  # of the frequencies, as no known rule gives them
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


def llama3_factors(config):
    """As llama.cpp's converter works them out of a config.json."""
    factors, low, high, original = [], 1.0, 4.0, 8192
    for i in range(0, config["head_dim"], 2):
        length = 2 * math.pi * config["rope_theta"] ** (i / config["head_dim"])
        smooth = (original / length - low) / (high - low)
        factors.append(1 if length < original / high else 8.0 if length > original / low
                       else 1 / ((1 - smooth) / 8.0 + smooth))
    return factors


# Name: config, the type of plain matrices or the types of quantised ones by the end of their names.
MODELS = {
    "llama_f16": (config_of("llama", 32, (2, 1), 16, 64, 2, False, rope_scaling=LLAMA3), "F16"),
    "qwen3_bf16": (config_of("qwen3", 32, (2, 1), 16, 64, 2, True), "BF16"),
    "qwen2_f32": (config_of("qwen2", 48, (3, 1), 16, 64, 1, False), "F32"),
    "llama_mixed": (config_of("llama", 256, (4, 2), 16, 64, 1, False, factors=FACTORS),
                    {"token_embd": "Q4_K", "output": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K",
                     "attn_output": "Q8_0", "ffn_gate": "Q3_K", "ffn_up": "Q2_K", "ffn_down": "Q5_0"}),
    "qwen3_tied": (config_of("qwen3", 64, (2, 2), 32, 96, 1, True),
                   {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q5_1", "attn_output": "Q4_0",
                    "ffn_gate": "IQ4_NL", "ffn_up": "Q4_1", "ffn_down": "MXFP4"}),
}


def shapes_of(config):
    hidden, inner, vocab = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        parts = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
                 "self_attn.q_proj.weight": (q, hidden), "self_attn.k_proj.weight": (kv, hidden),
                 "self_attn.v_proj.weight": (kv, hidden), "self_attn.o_proj.weight": (hidden, q),
                 "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
                 "mlp.down_proj.weight": (hidden, inner)}
        if config["model_type"] == "qwen3":
            parts.update({"self_attn.q_norm.weight": (config["head_dim"],),
                          "self_attn.k_norm.weight": (config["head_dim"],)})
        if config["model_type"] == "qwen2":
            parts.update({"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,),
                          "self_attn.v_proj.bias": (kv,)})
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in parts.items()})
    return shapes


def add_plain(out, config, name, shape, dtype):
    """Returns the values."""
    stored = reference_weights.store(reference_weights.draw(name, SEED, shape), dtype.lower()).reshape(shape)
    make_gguf.add_weight(out, config, name, dtype, stored, lambda own: None)
    return make_gguf.widen(dtype, stored)


def add_quantised(out, config, name, shape, kind, random):
    """Returns the values, in the folder's order of rows."""
    gain = {"token_embd": 1.7, "output": 1.7, "attn_q": 1.5, "attn_k": 1.5}
    own = make_gguf.own_name(name)
    raw = random_blocks(random, kind, *shape, gain.get(own.split(".")[-2], 1) / np.sqrt(shape[1]))
    out.add_tensor(own, raw, raw_dtype=TYPES[kind])
    values = gguf.dequantize(raw, TYPES[kind]).reshape(shape).astype(np.float32)
    if config["model_type"] == "llama" and own.endswith(("attn_q.weight", "attn_k.weight")):
        heads = config["num_attention_heads" if "attn_q." in own else "num_key_value_heads"]
        back = make_gguf.turn(np.arange(shape[0]), heads)  # row i of the file was row back[i]
        turned, values = values, np.empty_like(values)
        values[back] = turned
    return values


def add_letters(out):
    """A tokenizer of 48 pieces, with which the command can run the model."""
    texts = ["<unk>", "<s>", "</s>", "\u2581"] + [chr(ord("a") + i) for i in range(26)] + list("0123456789.,!?+-=:")
    out.add_tokenizer_model("llama")
    out.add_token_list(texts)
    out.add_token_scores([float(-i) for i in range(len(texts))])
    out.add_token_types([2, 3, 3] + [1] * (len(texts) - 3))
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_chat_template("{% for m in messages %}{{ m.content }}!{% endfor %}")


def write_model(name, config, types):
    random = np.random.default_rng(12)
    out = gguf.GGUFWriter(OUTPUT / f"{name}.gguf", config["model_type"])
    make_gguf.add_numbers(out, config)
    weights = {}
    for tensor, shape in shapes_of(config).items():
        if isinstance(types, str) or len(shape) == 1:
            weights[tensor] = add_plain(out, config, tensor, shape, types if isinstance(types, str) else "F32")
        else:
            kind = types[make_gguf.own_name(tensor).split(".")[-2]]
            weights[tensor] = add_quantised(out, config, tensor, shape, kind, random)
    if name == "llama_mixed":
        add_letters(out)
    if "factors" in config:
        out.add_tensor("rope_freqs.weight", np.array(config["factors"], dtype=np.float32))
        config = dict(config, rope_scaling={"rope_type": "longrope", "short_factor": config["factors"],
                                            "original_max_position_embeddings": 256, "attention_factor": 1})
    if config.get("rope_scaling") == LLAMA3:
        out.add_tensor("rope_freqs.weight", np.array(llama3_factors(config), dtype=np.float32))
    make_gguf.finish(out)
    logits = reference_forward.forward(config, weights, np.array(TOKENS), len(TOKENS))
    (OUTPUT / f"{name}.f32").write_bytes(logits.astype("<f4").tobytes())


# --- tokenizers -------------------------------------------------------------------------------------------------------

def write_demo_vocabulary():
    out = gguf.GGUFWriter(OUTPUT / "demo_vocabulary.gguf", "qwen3")
    demo = ROOT / "demo"
    config = json.loads((demo / "config.json").read_text())
    make_gguf.add_numbers(out, config)
    make_gguf.add_settings(out, demo, make_gguf.add_tokenizer(out, demo, config["vocab_size"]))
    make_gguf.finish(out)


TEXTS = ["Hello world", " two  blanks ", "", "a", "naïve café, 東京 🙂", "tabs\tand\nlines", "x" * 50,
         "The model runs as one persistent kernel.", "1234567890 + 1/3", "▁ itself", "<0x41> <s> is text",
         "MEGALITH megalith Megalith", "don't   stop", "e\u0301 and \u00e9"]


def write_pieces():
    model = io.BytesIO()
    logs = sorted((ROOT / "docs" / "log").glob("00*.md"))  # which never change
    corpus = [line for log in logs for line in log.read_text().splitlines()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, model_type="bpe",
        vocab_size=600, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, minloglevel=2)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = []
    for i in range(pieces.vocab_size()):
        kinds.append(gguf.TokenType.UNKNOWN if pieces.is_unknown(i) else gguf.TokenType.CONTROL if pieces.is_control(i)
                     else gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL)
    out = gguf.GGUFWriter(OUTPUT / "pieces.gguf", "llama")
    make_gguf.add_numbers(out, dict(MODELS["llama_f16"][0], vocab_size=pieces.vocab_size()))
    out.add_tokenizer_model("llama")
    out.add_token_list([pieces.id_to_piece(i) for i in range(pieces.vocab_size())])
    out.add_token_scores([pieces.get_score(i) for i in range(pieces.vocab_size())])
    out.add_token_types([int(kind) for kind in kinds])
    out.add_bos_token_id(pieces.bos_id())
    out.add_eos_token_id(pieces.eos_id())
    out.add_unk_token_id(pieces.unk_id())
    make_gguf.finish(out)
    lines = [[text, pieces.encode(text, add_bos=True)] for text in TEXTS + corpus]
    (OUTPUT / "pieces.json").write_text(json.dumps(lines, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    write_types()
    for name, (config, types) in MODELS.items():
        write_model(name, config, types)
    write_demo_vocabulary()
    write_pieces()


if __name__ == "__main__":
    main()
