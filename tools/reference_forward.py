"""A second opinion on transformers: the four families' forward pass in numpy float64, written independently.

tools/make_reference.py compares it with transformers in fp32: the difference shows how good fp32 is as a reference,
and that config.json means to transformers what it means to us. `fault` plants one mistake that an engine could make;
the KL divergence it causes shows what the reference can detect.
"""
import math

import numpy as np

FAULTS = ["rope plain", "llama3 without its middle band", "rope theta +0.1%", "rope interleaved",
          "rope position late by 1 in K", "eps 0", "no norm weight", "no qk norm", "no bias", "heads mod HKV",
          "scale hidden/heads", "key 0 unseen", "oldest 1% of keys unseen", "last key unseen"]


def inverse_frequencies(config, fault):
    head_dim = config["head_dim"]
    theta = config["rope_theta"] * (1.001 if fault == "rope theta +0.1%" else 1)
    frequency = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scaling = config.get("rope_scaling")
    if scaling is None or fault == "rope plain":
        return frequency
    if scaling["rope_type"] == "linear":
        return frequency / scaling["factor"]
    assert scaling["rope_type"] == "llama3"
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    if fault == "llama3 without its middle band":
        keep = np.round(keep)
    return frequency * (keep + (1 - keep) / scaling["factor"])


def rotate(x, positions, frequency, fault):
    """x [T, H, HD]: dimension i turns with dimension i + HD/2."""
    angle = positions[:, None, None] * frequency
    cos, sin = np.cos(angle), np.sin(angle)
    out = np.empty_like(x)
    half = x.shape[-1] // 2
    a, b = (slice(0, None, 2), slice(1, None, 2)) if fault == "rope interleaved" else (slice(half), slice(half, None))
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., b] * cos + x[..., a] * sin
    return out


def attention(q, k, v, config, fault):
    """q [T, H, HD], k and v [T, HKV, HD] -> [T, H * HD], causal."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    scale_dim = config["hidden_size"] // heads if fault == "scale hidden/heads" else head_dim
    hidden = np.triu(np.ones((tokens, tokens), dtype=bool), 1)  # not seen by the query of this row
    if fault == "key 0 unseen":
        hidden[1:, 0] = True
    if fault == "oldest 1% of keys unseen":
        hidden[tokens // 2:, :max(1, tokens // 100)] = True
    if fault == "last key unseen":
        hidden[np.arange(1, tokens), np.arange(1, tokens)] = True
    out = np.empty_like(q)
    for head in range(heads):
        kv_head = head % kv_heads if fault == "heads mod HKV" else head // (heads // kv_heads)
        scores = q[:, head] @ k[:, kv_head].T / math.sqrt(scale_dim)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ v[:, kv_head] / weights.sum(axis=1, keepdims=True)
    return out.reshape(tokens, heads * head_dim)


def forward(config, weights, ids, last, fault=None):
    """Logits [last, V] of the last positions. weights: name -> float32 array as stored."""
    weight = {name: values.astype(np.float64) for name, values in weights.items()}
    heads, kv_heads, head_dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    eps = 0 if fault == "eps 0" else config["rms_norm_eps"]
    frequency = inverse_frequencies(config, fault)
    positions = np.arange(len(ids), dtype=np.float64)

    def norm(x, name):
        y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return y if fault == "no norm weight" else y * weight[name]

    def linear(x, name):
        y = x @ weight[name + ".weight"].T
        bias = weight.get(name + ".bias")
        return y if bias is None or fault == "no bias" else y + bias

    def heads_of(x, name, count):
        x = x.reshape(len(ids), count, head_dim)
        return norm(x, name) if name in weight and fault != "no qk norm" else x

    x = weight["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        q = heads_of(linear(y, at + "self_attn.q_proj"), at + "self_attn.q_norm.weight", heads)
        k = heads_of(linear(y, at + "self_attn.k_proj"), at + "self_attn.k_norm.weight", kv_heads)
        v = linear(y, at + "self_attn.v_proj").reshape(len(ids), kv_heads, head_dim)
        late = 1 if fault == "rope position late by 1 in K" else 0
        q, k = rotate(q, positions, frequency, fault), rotate(k, positions + late, frequency, fault)
        x = x + linear(attention(q, k, v, config, fault), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm.weight")
        gate = linear(y, at + "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
    x = norm(x[-last:], "model.norm.weight")
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ weight[head].T
