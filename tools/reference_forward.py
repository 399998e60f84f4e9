"""A second opinion on transformers: the families' forward pass in numpy float64, written independently.

tools/make_reference.py compares it with transformers in fp32: the difference shows how good fp32 is as a reference,
and that config.json means to transformers what it means to us. `fault` plants one mistake that an engine could make;
the KL divergence it causes shows what the reference can detect.
"""
import math

import numpy as np

FAULTS = ["rope plain", "llama3 without its middle band", "rope theta +0.1%", "rope interleaved",
          "rope position late by 1 in K", "eps 0", "no norm weight", "no qk norm", "no bias", "heads mod HKV",
          "scale hidden/heads", "key 0 unseen", "oldest 1% of keys unseen", "last key unseen", "no window",
          "window one longer", "window one shorter", "no attention factor", "whole heads turn", "other length",
          "mean stays", "feed-forward behind attention", "gelu by sigmoid", "weights not renormalised",
          "worst of the chosen left out", "next expert's weights", "no shared expert", "shared expert ungated", "no bias of choice", "no groups", "not scaled",
          "no sinks", "sinks in the next head", "not clamped", "gate and up swapped", "no router bias", "softmax over all"]


def yarn(config, scaling, dims, frequency):
    theta, original = config["rope_theta"], scaling["original_max_position_embeddings"]

    def dim_of(turns):
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(scaling.get("beta_fast", 32)), dim_of(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    keep = 1 - np.clip((np.arange(dims // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    return frequency * (keep + (1 - keep) / scaling["factor"])


def attention_factor(config, scaling):
    """What cos and sin are multiplied with."""
    if "attention_factor" in scaling:
        return scaling["attention_factor"]
    if scaling["rope_type"] == "yarn":
        return 0.1 * math.log(scaling["factor"]) + 1
    original = scaling["original_max_position_embeddings"]
    return math.sqrt(1 + math.log(config["max_position_embeddings"] / original) / math.log(original))


def inverse_frequencies(config, tokens, fault):
    """(frequencies of the dims that turn, factor of cos and sin) where all tokens are one forward pass."""
    dims = int(config["head_dim"] * (1 if fault == "whole heads turn" else config.get("partial_rotary_factor", 1)))
    theta = config["rope_theta"] * (1.001 if fault == "rope theta +0.1%" else 1)
    exponents = -np.arange(0, dims, 2, dtype=np.float64) / dims
    scaling = config.get("rope_scaling")
    if scaling is None or fault == "rope plain":
        return theta ** exponents, 1
    kind, frequency = scaling["rope_type"], theta ** exponents
    factor = attention_factor(config, scaling) if kind in ("yarn", "longrope") else 1
    factor = 1 if fault == "no attention factor" else factor
    if kind == "linear":
        return frequency / scaling["factor"], factor
    if kind == "yarn":
        return yarn(config, scaling, dims, frequency), factor
    if kind == "dynamic":
        original = config["max_position_embeddings"]
        length = original if fault == "other length" else max(tokens, original)
        growth = scaling["factor"] * length / original - (scaling["factor"] - 1)
        return (theta * growth ** (dims / (dims - 2))) ** exponents, factor
    if kind == "longrope":
        long = (tokens > scaling["original_max_position_embeddings"]) != (fault == "other length")
        divisors = np.resize(scaling["long_factor" if long else "short_factor"], dims // 2)
        return frequency / divisors, factor
    assert kind == "llama3"
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    if fault == "llama3 without its middle band":
        keep = np.round(keep)
    return frequency * (keep + (1 - keep) / scaling["factor"]), factor


def rotate(x, positions, rope, fault):
    """x [T, H, HD]: of the first RD dimensions, i turns with i + RD/2."""
    frequency, factor = rope
    angle = positions[:, None, None] * frequency
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    out = x.copy()
    half = len(frequency)
    a, b = slice(half), slice(half, 2 * half)
    if fault == "rope interleaved":
        a, b = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., b] * cos + x[..., a] * sin
    return out


def attention(q, k, v, config, window, fault, sinks=None):
    """q [T, H, HD], k and v [T, HKV, HD] -> [T, H * HD], causal; a query sees `window` keys, 0: all. sinks [H]: scores
    of a key without a value."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    scale_dim = config["hidden_size"] // heads if fault == "scale hidden/heads" else head_dim
    hidden = np.triu(np.ones((tokens, tokens), dtype=bool), 1)  # not seen by the query of this row
    window += {"window one longer": 1, "window one shorter": -1}.get(fault, 0) if window > 1 else 0
    if window != 0 and fault != "no window":
        hidden |= np.tril(np.ones((tokens, tokens), dtype=bool), -window)
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
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        if sinks is not None and fault != "no sinks":
            total = total + np.exp(sinks[(head + (fault == "sinks in the next head")) % heads] - top)
        out[:, head] = weights @ v[:, kv_head] / total
    return out.reshape(tokens, heads * head_dim)


def window_of(config, layer):
    """Keys that a query of the layer sees, 0: all."""
    window = config.get("sliding_window") or 0
    if config["model_type"] == "gpt_oss":
        return window if config["layer_types"][layer] == "sliding_attention" else 0
    if config["model_type"] not in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        return window
    if not config["use_sliding_window"]:
        return 0
    types = config.get("layer_types")
    windowed = types[layer] == "sliding_attention" if types else layer >= config["max_window_layers"]
    return window if windowed else 0


def split_fused(weight, config):
    """Phi-3's matrices as those of the other families."""
    heads, kv_heads, head_dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    for name in [name for name in weight if "qkv_proj" in name or "gate_up_proj" in name]:
        parts = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
        if "gate_up_proj" in name:
            parts = dict.fromkeys(("gate", "up"), config["intermediate_size"])
        rows, first = weight.pop(name), 0
        for part, count in parts.items():
            weight[name.replace("qkv_proj", part + "_proj").replace("gate_up_proj", part + "_proj")] = (
                rows[first:first + count])
            first += count


def gated(y, gate, up, down):
    a = y @ gate.T
    return (a / (1 + np.exp(-a)) * (y @ up.T)) @ down.T


def name_experts(weight, config):
    """Mixtures' matrices under the names of Qwen's, each expert's by itself."""
    renamed = {"block_sparse_moe": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    for name in list(weight):
        parts = [renamed.get(part, part) for part in name.split(".")]
        array = weight.pop(name)
        if parts[-2] == "experts":  # of all experts
            half = array.shape[1] // 2
            pieces = {"down_proj": array} if parts[-1] == "down_proj" else {
                "gate_proj": array[:, :half], "up_proj": array[:, half:]}
            for piece, values in pieces.items():
                for i, matrix in enumerate(values):
                    weight[".".join(parts[:-1] + [str(i), piece, "weight"])] = matrix
        else:
            weight[".".join(parts)] = array


def note_margins(margins, choice, slots):
    """How near the choices [T, E] of a router are: what parts the last that is chosen from the first that is not, in
    units of bf16's rounding of the largest."""
    if margins is not None and slots < choice.shape[1]:
        ranked = -np.sort(-choice, axis=1)
        finite = np.where(np.isfinite(choice), np.abs(choice), 0)
        margins.extend((ranked[:, slots - 1] - ranked[:, slots]) / (finite.max(axis=1) * 2.0 ** -8))


def oss_experts(config, weight, at, y, fault, margins):
    """The mixture of a gpt-oss layer: plain tensors of all experts, rows of gate and up in turn."""
    logits = y @ weight[at + "router.weight"].T + (0 if fault == "no router bias" else weight[at + "router.bias"])
    note_margins(margins, logits, config["num_experts_per_tok"])
    limit = np.inf if fault == "not clamped" else config["swiglu_limit"]
    out = np.zeros_like(y)
    for t in range(len(y)):
        chosen = np.argsort(-logits[t], kind="stable")[:config["num_experts_per_tok"]]
        scores = np.exp(logits[t] - logits[t].max())
        divisor = (scores if fault == "softmax over all" else scores[chosen]).sum()
        for e in chosen:
            both = y[t] @ weight[at + "experts.gate_up_proj"][e]
            both = both + (0 if fault == "no bias" else weight[at + "experts.gate_up_proj_bias"][e])
            gate, up = (both[1::2], both[::2]) if fault == "gate and up swapped" else (both[::2], both[1::2])
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            inner = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            result = inner @ weight[at + "experts.down_proj"][e]
            result = result + (0 if fault == "no bias" else weight[at + "experts.down_proj_bias"][e])
            out[t] += scores[e] / divisor * result
    return out


def experts(config, weight, at, y, fault, margins):
    """What the mixture of a layer makes of the normed y [T, D]."""
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def expert(name, rows):
        return gated(rows, *(weight[f"{at}{name}.{part}_proj.weight"] for part in ("gate", "up", "down")))

    logits = y @ weight[at + "gate.weight"].T
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    count = logits.shape[1]
    choice = logits  # of which scores are a monotonous function
    if at + "gate.e_score_correction_bias" in weight:
        scores = sigmoid(logits)
        choice = scores + (0 if fault == "no bias of choice" else weight[at + "gate.e_score_correction_bias"])
        groups = choice.reshape(len(y), config["n_group"], -1)
        best = np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
        note_margins(margins, best, config["topk_group"])
        left = np.argsort(-best, axis=1, kind="stable")[:, config["topk_group"]:]
        if fault != "no groups":
            np.put_along_axis(groups, left[:, :, None], -np.inf, axis=1)
        choice = groups.reshape(len(y), -1)
    note_margins(margins, choice, config["num_experts_per_tok"])
    slots = config["num_experts_per_tok"] - (fault == "worst of the chosen left out")
    renormalises = config.get("norm_topk_prob", True) and fault != "weights not renormalised"
    factor = config.get("routed_scaling_factor", 1) if fault != "not scaled" else 1
    out = np.zeros_like(y)
    for t in range(len(y)):
        chosen = np.argsort(-choice[t], kind="stable")[:slots]
        divisor = scores[t, chosen].sum() if renormalises else 1
        for e in chosen:
            other = (e + (fault == "next expert's weights")) % count
            out[t] += factor * scores[t, e] / divisor * expert(f"experts.{other}", y[t:t + 1])[0]
    if at + "shared_expert_gate.weight" in weight and fault != "no shared expert":
        factor = 1 if fault == "shared expert ungated" else sigmoid(y @ weight[at + "shared_expert_gate.weight"].T)
        out += factor * expert("shared_expert", y)
    if at + "shared_experts.up_proj.weight" in weight and fault != "no shared expert":
        out += expert("shared_experts", y)
    return out


def forward_phi(config, weight, ids, last, rope, fault):
    """Phi-1 and 2: one layer norm before attention and feed-forward part, whose results are added."""
    heads, kv_heads, head_dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    eps = 0 if fault == "eps 0" else config["layer_norm_eps"]
    positions = np.arange(len(ids), dtype=np.float64)

    def norm(x, name):
        x = x if fault == "mean stays" else x - x.mean(axis=-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
        return (y if fault == "no norm weight" else y * weight[name + ".weight"]) + weight[name + ".bias"]

    def linear(x, name):
        y = x @ weight[name + ".weight"].T
        return y if fault == "no bias" else y + weight[name + ".bias"]

    def gelu(x):
        if fault == "gelu by sigmoid":
            return x / (1 + np.exp(-1.702 * x))
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    x = weight["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (linear(y, f"{at}self_attn.{name}_proj").reshape(len(ids), count, head_dim)
                   for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        late = 1 if fault == "rope position late by 1 in K" else 0
        q, k = rotate(q, positions, rope, fault), rotate(k, positions + late, rope, fault)
        attended = linear(attention(q, k, v, config, 0, fault), at + "self_attn.dense")
        if fault == "feed-forward behind attention":
            y = norm(x + attended, at + "input_layernorm")
        x = x + attended + linear(gelu(linear(y, at + "mlp.fc1")), at + "mlp.fc2")
    return linear(norm(x[-last:], "model.final_layernorm"), "lm_head")


def forward(config, weights, ids, last, fault=None, margins=None):
    """Logits [last, V] of the last positions. weights: name -> float32 array as stored. margins: a list to which the
    margins of all routers' decisions are appended (note_margins)."""
    weight = {name: values.astype(np.float64) for name, values in weights.items()}
    heads, kv_heads, head_dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    eps = 0 if fault == "eps 0" else config.get("rms_norm_eps", config.get("layer_norm_eps"))
    rope = inverse_frequencies(config, len(ids), fault)
    if config["model_type"] == "phi":
        return forward_phi(config, weight, ids, last, rope, fault)
    if config["model_type"] != "gpt_oss":
        split_fused(weight, config) if "experts" not in "".join(weight) else name_experts(weight, config)
    positions = np.arange(len(ids), dtype=np.float64)

    def norm(x, name):
        y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return y if fault == "no norm weight" else y * weight[name]

    def linear(x, name):
        y = x @ weight[name + ".weight"].T
        bias = weight.get(name + ".bias")
        return y if bias is None or fault == "no bias" else y + bias

    def heads_of(x, name, count):
        if name not in weight or fault == "no qk norm":
            return x.reshape(len(ids), count, head_dim)
        if len(weight[name]) != head_dim:  # over all heads
            return norm(x, name).reshape(len(ids), count, head_dim)
        return norm(x.reshape(len(ids), count, head_dim), name)

    x = weight["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        q = heads_of(linear(y, at + "self_attn.q_proj"), at + "self_attn.q_norm.weight", heads)
        k = heads_of(linear(y, at + "self_attn.k_proj"), at + "self_attn.k_norm.weight", kv_heads)
        v = linear(y, at + "self_attn.v_proj").reshape(len(ids), kv_heads, head_dim)
        late = 1 if fault == "rope position late by 1 in K" else 0
        q, k = rotate(q, positions, rope, fault), rotate(k, positions + late, rope, fault)
        sinks = weight.get(at + "self_attn.sinks")
        x = x + linear(attention(q, k, v, config, window_of(config, layer), fault, sinks), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm.weight")
        if at + "mlp.router.weight" in weight:
            x = x + oss_experts(config, weight, at + "mlp.", y, fault, margins)
            continue
        if at + "mlp.gate.weight" in weight:
            x = x + experts(config, weight, at + "mlp.", y, fault, margins)
            continue
        gate = linear(y, at + "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
    x = norm(x[-last:], "model.norm.weight")
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ weight[head].T
