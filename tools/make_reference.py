"""Makes tests/data/reference: what transformers answers on small random models of all families.

For every model of MODELS two files: NAME.json (config, tensors, prompt, KL divergence and logit error of transformers
in bf16 against fp32, greedy continuation with margins) and NAME.f32 (fp32 logits of the last `positions` prompt
tokens, little-endian float32 [positions, V]). Weights are not stored: tools/reference_weights.py and
src/model/dummy_weights.c draw the same ones.

    python3 -m venv /tmp/venv-ref && /tmp/venv-ref/bin/pip install torch transformers safetensors numpy
    /tmp/venv-ref/bin/python tools/make_reference.py                  # all, under a minute on one core
    /tmp/venv-ref/bin/python tools/make_reference.py --only mistral   # names that contain a text
    /tmp/venv-ref/bin/python tools/make_reference.py --check          # writes nothing, compares with what is there
    /tmp/venv-ref/bin/python tools/make_reference.py --faults         # what planted mistakes would do to the KL
    /tmp/venv-ref/bin/python tools/make_reference.py --seeds --only moe   # the first seed that a model may have

Method: each model is written to a temporary folder as the hub has it and read by from_pretrained, once in float32 and
twice (sdpa, eager) in bfloat16; the better of the two is the bar. `model.to(bfloat16)` was rejected: it also rounds the
rope frequencies, which from_pretrained keeps in float32, and so would lower the bar. A float64 pass written
independently (tools/reference_forward.py) must agree with fp32.
"""
import argparse
import json
import os
import pathlib
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers.integrations.mxfp4 import convert_moe_packed_tensors as torch_mxfp4  # noqa: E402

import reference_forward  # noqa: E402
import reference_weights  # noqa: E402

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "reference"
CONTINUATION = 64
MIN_ROUTER_MARGIN = 1  # of bf16's rounding of the largest logit: below it, a flipped route may decide the KL
MOST_SEEDS = 400
MAX_FP32_ERROR = 0.02  # of the bf16 logit error: above it, fp32 is no reference
TORCH_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CONFIG_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}

README = """# What transformers answers on small random models

Written by `tools/make_reference.py` (which says how to run it); read by `tests/support/reference_model.c`. Weights
are not here: they are drawn from the seed by `src/model/dummy_weights.c`. Heads are query/KV x head dim; tokens are
those of the prompt and, in brackets, how many last positions have logits in NAME.f32. KL is KL(fp32 || bf16) in nats
over these positions, the logit errors are maxima over them (fp32 against float64). "Decided" counts the steps of the
greedy continuation whose top two logits differ by more than the bf16 error, "distinct" its different tokens.

{table}

Made with {versions}.
"""

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}  # beyond max_position_embeddings


def yarn(factor, original, **other):
    return dict({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}, **other)


def longrope(original, pairs, **other):
    """Factors as Phi-3's: near 1 for short sequences, up to 60 for long ones."""
    return dict({"rope_type": "longrope", "original_max_position_embeddings": original,
                 "short_factor": [round(1 + 0.05 * i, 2) for i in range(pairs)],
                 "long_factor": [round(1.05 * 1.12 ** i, 3) for i in range(pairs)]}, **other)


def model(name, seed, family, hidden, heads, head_dim, inner, layers, vocab, **other):
    """heads: (query heads, KV heads). seed: chosen so that the continuation does not fall into a short loop."""
    return dict(dict(name=name, seed=seed, family=family, hidden=hidden, heads=heads, head_dim=head_dim, inner=inner,
                     layers=layers, vocab=vocab, tied=False, dtype="bf16", theta=10000.0, eps=1e-6, scaling=None,
                     context=2048, prompt=48, positions=48, new_style=False, window=None, full_layers=0,
                     attention_bias=False, mlp_bias=False, rotary=1, experts=0), **other)


def mixture(name, seed, family, hidden, heads, head_dim, experts, slots, expert_inner, layers, vocab, **other):
    """together: experts as transformers 5 has them in memory, all in one tensor; else each in its own, as the hub.
    seed: one with which no decision of a router is nearer than bf16's rounding (MIN_ROUTER_MARGIN)."""
    return model(name, seed, family, hidden, heads, head_dim, other.pop("inner", expert_inner), layers, vocab,
                 **dict(dict(experts=experts, slots=slots, expert_inner=expert_inner, renormalise=False, shared=0, step=1,
                             mlp_only=[], together=False, positions=24, dense=0, groups=1, top_groups=1, scale=1.0,
                             qk_norm=False, limit=7.0, mxfp4=False, router_pairs=False, preferred=0, least_margin=MIN_ROUTER_MARGIN), **other))


# Query heads 3 to 16, GQA ratios 1 to 8; tests/data/reference/README.md shows them as a table.
MODELS = [
    model("qwen3_tied", 1, "Qwen3", 256, (4, 2), 128, 512, 4, 320, tied=True, theta=1e6),
    model("qwen3_7_heads", 2, "Qwen3", 240, (7, 1), 64, 400, 3, 199, theta=1e6, new_style=True),
    model("qwen3_5_heads_mha", 15, "Qwen3", 200, (5, 5), 80, 328, 2, 257, tied=True),
    model("qwen3_700_tokens", 4, "Qwen3", 256, (8, 1), 128, 384, 3, 256, theta=1e6, context=4096, prompt=700,
          positions=40),
    model("qwen2_3_heads", 9, "Qwen2", 240, (3, 1), 80, 488, 3, 401, tied=True, theta=1e6),
    model("qwen2_untied", 6, "Qwen2", 384, (6, 2), 64, 640, 4, 300, theta=1e6),
    model("qwen2_f16", 7, "Qwen2", 512, (4, 1), 128, 352, 2, 264, dtype="f16"),
    model("qwen2_7_heads_mha", 15, "Qwen2", 448, (7, 7), 64, 512, 2, 230, tied=True),
    model("llama_5_heads", 9, "Llama", 320, (5, 1), 64, 672, 3, 512, eps=1e-5),
    model("llama_linear", 9, "Llama", 240, (8, 2), 64, 512, 3, 288, tied=True, scaling=LINEAR, prompt=160, eps=1e-5),
    model("llama_llama3_3200_tokens", 11, "Llama", 240, (6, 2), 64, 448, 2, 256, scaling=LLAMA3, theta=5e5, eps=1e-5,
          context=8192, prompt=3200, positions=24),
    model("llama_llama3_f32", 7, "Llama", 216, (3, 3), 128, 416, 2, 272, tied=True, dtype="f32", theta=5e5, eps=1e-5,
          scaling=dict(LLAMA3, factor=32.0, original_max_position_embeddings=64), context=2048, prompt=128,
          new_style=True),
    model("llama_f16_large_eps", 7, "Llama", 200, (8, 1), 80, 328, 3, 211, tied=True, dtype="f16", eps=0.02),
    model("mistral_80", 14, "Mistral", 240, (8, 2), 80, 560, 3, 300, eps=1e-5, theta=1e6),
    model("mistral_f32", 15, "Mistral", 200, (6, 1), 128, 360, 2, 260, dtype="f32", eps=1e-5),
    model("mistral_tied_16_heads", 16, "Mistral", 256, (16, 2), 64, 400, 2, 333, tied=True, eps=1e-5, new_style=True),
    # Biases; ropes whose frequencies depend on more than theta, on both sides of the original context.
    model("llama_biases", 1, "Llama", 160, (4, 2), 64, 320, 3, 220, eps=1e-5, attention_bias=True, mlp_bias=True,
          positions=24),
    model("qwen3_yarn_biases", 2, "Qwen3", 160, (6, 2), 64, 256, 2, 210, theta=1e6, attention_bias=True, context=640,
          scaling=yarn(8.0, 80, truncate=False, attention_factor=1.3, beta_fast=16.0), prompt=200, positions=24,
          new_style=True),
    model("llama_yarn", 1, "Llama", 160, (5, 1), 64, 320, 2, 230, eps=1e-5, scaling=yarn(4.0, 64), context=64, prompt=150,
          positions=24),
    model("llama_dynamic_long", 1, "Llama", 160, (4, 2), 64, 320, 2, 200, eps=1e-5, scaling=DYNAMIC, context=96,
          prompt=150, positions=24),
    model("qwen2_dynamic_passing", 1, "Qwen2", 192, (3, 1), 64, 256, 2, 190, theta=1e6, scaling=DYNAMIC, context=80,
          positions=24),
    model("llama_longrope_long", 1, "Llama", 192, (6, 3), 64, 256, 2, 180, eps=1e-5, scaling=longrope(64, 32, factor=8.0),
          context=512, prompt=150, positions=24, dtype="f32"),
    # Windows: shorter than a page, of two splits, of some layers only.
    model("mistral_window_700_tokens", 1, "Mistral", 160, (6, 2), 64, 256, 3, 200, eps=1e-5, window=300, prompt=700,
          positions=24, context=1024),
    model("mistral_window_f16", 1, "Mistral", 160, (3, 1), 80, 240, 3, 190, eps=1e-5, window=11, dtype="f16",
          positions=24),
    model("qwen2_window_layers", 1, "Qwen2", 192, (3, 3), 64, 256, 3, 210, theta=1e6, window=20, full_layers=1,
          positions=24),
    model("qwen3_window_types", 1, "Qwen3", 160, (4, 1), 64, 240, 3, 200, window=33, prompt=150, positions=24,
          new_style=True),
    # Phi-3: fused weights; a part of a head turns; short, long, and long from the 32nd new token on.
    model("phi3_short", 1, "Phi3", 256, (4, 2), 64, 320, 3, 230, eps=1e-5, rotary=0.75, scaling=longrope(256, 24),
          positions=24),
    model("phi3_long_window", 1, "Phi3", 192, (3, 3), 64, 256, 3, 220, eps=1e-5, scaling=longrope(64, 32), context=1024,
          window=70, prompt=150, positions=24),
    model("phi3_passing", 1, "Phi3", 256, (4, 1), 64, 256, 2, 200, eps=1e-5, rotary=0.5, scaling=longrope(80, 16),
          context=512, positions=24, new_style=True),
    # Phi: layer norms, a feed-forward part without a gate beside attention, biases everywhere.
    model("phi_half_rotary", 1, "Phi", 256, (4, 4), 64, 512, 3, 230, eps=1e-5, rotary=0.5, positions=24),
    model("phi_gqa_f32", 1, "Phi", 240, (6, 2), 40, 400, 3, 210, eps=1e-5, rotary=0.4, dtype="f32", prompt=150,
          positions=24, new_style=True),
    model("phi_f16_whole", 1, "Phi", 160, (2, 2), 80, 328, 2, 199, eps=0.01, dtype="f16", positions=24),
    # Mixtures: one slot, all experts, one expert, many; the first layers without; a shared expert.
    mixture("qwen3_moe_8_experts", 30, "Qwen3Moe", 160, (4, 2), 64, 8, 2, 96, 2, 210, renormalise=True, theta=1e6,
            prompt=24, least_margin=4),
    mixture("qwen3_moe_512_experts", 7, "Qwen3Moe", 128, (2, 1), 64, 512, 8, 32, 2, 200, together=True, new_style=True,
            prompt=8, positions=8),
    mixture("qwen3_moe_all_f32", 1, "Qwen3Moe", 120, (3, 1), 40, 5, 5, 72, 2, 190, together=True, dtype="f32"),
    mixture("qwen3_moe_one_expert", 1, "Qwen3Moe", 128, (2, 2), 64, 1, 1, 200, 4, 180, inner=240, step=2, mlp_only=[1],
            dtype="f16", tied=True),
    mixture("mixtral_2_of_4", 1, "Mixtral", 160, (5, 1), 64, 4, 2, 144, 3, 200, eps=1e-5, theta=1e6),
    mixture("mixtral_one_slot_window", 5, "Mixtral", 128, (2, 1), 64, 3, 1, 136, 2, 190, eps=1e-5, window=20,
            together=True, new_style=True),
    mixture("qwen2_moe_shared", 1, "Qwen2Moe", 160, (5, 1), 32, 6, 3, 88, 3, 200, inner=200, shared=176, mlp_only=[0]),
    mixture("qwen2_moe_f32", 1, "Qwen2Moe", 128, (4, 4), 32, 7, 2, 64, 2, 180, shared=40, renormalise=True, dtype="f32",
            together=True),
    mixture("olmoe_whole_norm", 10, "Olmoe", 128, (4, 2), 32, 8, 3, 72, 3, 190, eps=1e-5),
    mixture("glm4_moe_groups", 9, "Glm4Moe", 128, (4, 2), 40, 8, 2, 48, 2, 200, inner=160, eps=1e-5, shared=1, dense=1,
            groups=4, top_groups=2, scale=1.5, renormalise=True, rotary=0.5, qk_norm=True,
            dtype="f32", prompt=24, positions=8),
    mixture("glm4_moe_biases_f32", 2, "Glm4Moe", 96, (3, 1), 32, 6, 2, 56, 2, 180, inner=144, eps=1e-5, shared=2, dense=0,
            rotary=0.5, attention_bias=True, dtype="f32", together=True, new_style=True),
    # Ties: each router row twice, and both are chosen or none; and biases that make all tokens choose the same experts.
    mixture("qwen3_moe_ties", 1, "Qwen3Moe", 128, (3, 1), 40, 8, 4, 64, 2, 190, renormalise=True, router_pairs=True,
            dtype="f32"),
    mixture("glm4_moe_same_experts", 1, "Glm4Moe", 96, (3, 1), 32, 6, 2, 56, 2, 180, inner=144, eps=1e-5, shared=1,
            dense=0, renormalise=True, rotary=0.5, dtype="f32", preferred=2),
    # gpt-oss: sinks, a window in every other layer, yarn, biases; MXFP4 or plain; a limit that clamps much, and its own.
    mixture("gpt_oss_mxfp4", 22, "GptOss", 128, (4, 2), 64, 8, 3, 96, 3, 200, eps=1e-5, theta=150000.0, window=20,
            scaling=yarn(4.0, 32, truncate=False, beta_fast=32.0, beta_slow=1.0), attention_bias=True, mxfp4=True,
            limit=1.0, prompt=40),
    mixture("gpt_oss_bf16", 3, "GptOss", 128, (8, 1), 64, 5, 2, 112, 2, 190, eps=1e-5, theta=150000.0, window=30,
            scaling=yarn(32.0, 64, truncate=False, beta_fast=32.0, beta_slow=1.0), attention_bias=True),
    mixture("gpt_oss_f32", 1, "GptOss", 120, (3, 3), 40, 4, 4, 72, 3, 180, eps=1e-5, theta=150000.0, window=7,
            scaling=yarn(4.0, 64, truncate=False), attention_bias=True, dtype="f32", limit=0.5, new_style=True),
    model("phi3_plain_f32", 1, "Phi3", 160, (2, 2), 80, 240, 2, 180, eps=1e-5, window=30, dtype="f32", positions=24),
    # Mixtures of sizes that the tasks of a GPU have: whole pairs of pages, pages of down with parts of several experts.
    mixture("qwen3_moe_8_of_16", 1, "Qwen3Moe", 1024, (8, 1), 64, 16, 8, 128, 2, 200, theta=1e6, prompt=8, positions=8),
    mixture("qwen3_moe_dense_between", 2, "Qwen3Moe", 1024, (4, 2), 128, 8, 2, 512, 3, 208, inner=512, renormalise=True,
            mlp_only=[1], together=True, new_style=True, prompt=16, positions=16),
    mixture("mixtral_1_of_8", 5, "Mixtral", 1024, (8, 2), 64, 8, 1, 1024, 2, 192, eps=1e-5),
]


def config_of(m):
    """config.json as the hub's models of that family have it; new_style as transformers 5 writes it."""
    rope = ({"rope_parameters": dict(m["scaling"] or {"rope_type": "default"}, rope_theta=m["theta"])}
            if m["new_style"] else {"rope_theta": m["theta"], "rope_scaling": m["scaling"]})
    config = {
        "architectures": [m["family"] + "ForCausalLM"], "model_type": m["family"].lower().replace("4moe", "4_moe").replace("3moe", "3_moe")
        .replace("2moe", "2_moe").replace("gptoss", "gpt_oss"),
        "hidden_act": "silu",
        "hidden_size": m["hidden"], "intermediate_size": m["inner"], "num_hidden_layers": m["layers"],
        "num_attention_heads": m["heads"][0], "num_key_value_heads": m["heads"][1], "head_dim": m["head_dim"],
        "vocab_size": m["vocab"], "max_position_embeddings": m["context"], "rms_norm_eps": m["eps"],
        "tie_word_embeddings": m["tied"], "bos_token_id": None, "eos_token_id": None,
        "dtype" if m["new_style"] else "torch_dtype": CONFIG_DTYPES[m["dtype"]], **rope}
    if m["family"] == "Qwen2" and m["hidden"] == m["heads"][0] * m["head_dim"]:
        del config["head_dim"]
    if m["family"] in ("Qwen2", "Qwen3"):
        config["use_sliding_window"] = m["window"] is not None
        if m["window"] is not None:
            config["sliding_window"] = m["window"]
            config["max_window_layers"] = m["full_layers"]
        if m["window"] is not None and m["new_style"]:  # every other layer, which the number cannot say
            config["layer_types"] = [("sliding" if i % 2 == 0 else "full") + "_attention" for i in range(m["layers"])]
    if m["family"] in ("Qwen3", "Llama"):
        config["attention_bias"] = m["attention_bias"]
    if m["family"] == "Mixtral":
        config.update(num_local_experts=m["experts"], num_experts_per_tok=m["slots"])
    elif m["family"] == "Olmoe":
        config.update(num_experts=m["experts"], num_experts_per_tok=m["slots"], norm_topk_prob=m["renormalise"],
                      clip_qkv=None, pad_token_id=None)
        del config["head_dim"]
    elif m["family"] == "Glm4Moe":
        config.update(n_routed_experts=m["experts"], num_experts_per_tok=m["slots"], n_shared_experts=m["shared"],
                      moe_intermediate_size=m["expert_inner"], norm_topk_prob=m["renormalise"], n_group=m["groups"],
                      topk_group=m["top_groups"], routed_scaling_factor=m["scale"], first_k_dense_replace=m["dense"],
                      use_qk_norm=m["qk_norm"], attention_bias=m["attention_bias"], partial_rotary_factor=m["rotary"])
    elif m["family"] == "GptOss":
        config.update(num_local_experts=m["experts"], num_experts_per_tok=m["slots"], experts_per_token=m["slots"],
                      sliding_window=m["window"], swiglu_limit=m["limit"], attention_bias=m["attention_bias"],
                      layer_types=[("full" if i % 2 else "sliding") + "_attention" for i in range(m["layers"])])
        if m["mxfp4"]:
            config["quantization_config"] = {
                "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                    "model.embed_tokens", "lm_head"]}
    elif m["experts"] != 0:
        config.update(num_experts=m["experts"], num_experts_per_tok=m["slots"], moe_intermediate_size=m["expert_inner"],
                      norm_topk_prob=m["renormalise"], decoder_sparse_step=m["step"], mlp_only_layers=m["mlp_only"],
                      use_sliding_window=False)
    if m["family"] == "Qwen2Moe":
        config["shared_expert_intermediate_size"] = m["shared"]
    if m["mlp_bias"]:
        config["mlp_bias"] = True
    if m["family"] in ("Mistral", "Mixtral", "Phi3"):
        config["sliding_window"] = m["window"]
    if m["family"] == "Phi":
        config["hidden_act"] = "gelu_new"
        config["layer_norm_eps"] = config.pop("rms_norm_eps")
        del config["head_dim"]
    if m["family"] in ("Phi", "Phi3"):
        config["pad_token_id"] = None
        if m["rotary"] != 1 or m["family"] == "Phi":
            config["partial_rotary_factor"] = m["rotary"]
        if m["family"] == "Phi" and m["new_style"]:
            config["rope_parameters"]["partial_rotary_factor"] = config.pop("partial_rotary_factor")
        if m["scaling"] is not None:  # as the hub has it, beside the other parameters
            config["original_max_position_embeddings"] = m["scaling"]["original_max_position_embeddings"]
    return config


def is_mixture(m, layer):
    return m["experts"] != 0 and layer >= m["dense"] and layer not in m["mlp_only"] and (layer + 1) % m["step"] == 0


def mixture_tensors(m, at):
    """[(name, dims)] of a layer's experts and router."""
    hidden, inner, experts = m["hidden"], m["expert_inner"], m["experts"]
    block, gate, up, down = "mlp", "gate_proj", "up_proj", "down_proj"
    if m["family"] == "Mixtral":
        block, gate, up, down = "block_sparse_moe", "w1", "w3", "w2"
    tensors = [(f"{at}{block}.gate.weight", (experts, hidden))]
    if m["family"] == "Glm4Moe":
        shared = m["shared"] * inner
        tensors += [(at + "mlp.gate.e_score_correction_bias", (experts,))]
        tensors += [(f"{at}mlp.shared_experts.{name}.weight", (shared, hidden)) for name in (gate, up)]
        tensors += [(f"{at}mlp.shared_experts.{down}.weight", (hidden, shared))]
    elif m["shared"] != 0:
        tensors += [(at + "mlp.shared_expert_gate.weight", (1, hidden))]
        tensors += [(f"{at}mlp.shared_expert.{name}.weight", (m["shared"], hidden)) for name in (gate, up)]
        tensors += [(f"{at}mlp.shared_expert.{down}.weight", (hidden, m["shared"]))]
    if m["together"]:
        return tensors + [(at + "mlp.experts.gate_up_proj", (experts, 2 * inner, hidden)),
                          (at + "mlp.experts.down_proj", (experts, hidden, inner))]
    for i in range(experts):
        tensors += [(f"{at}{block}.experts.{i}.{name}.weight", (inner, hidden)) for name in (gate, up)]
        tensors += [(f"{at}{block}.experts.{i}.{down}.weight", (hidden, inner))]
    return tensors


def oss_tensors(m, at):
    """[(name, dims)] of a layer's experts and router, as gpt-oss has them."""
    hidden, inner, experts = m["hidden"], m["expert_inner"], m["experts"]
    tensors = [(at + "mlp.router.weight", (experts, hidden)), (at + "mlp.router.bias", (experts,)),
               (at + "mlp.experts.gate_up_proj_bias", (experts, 2 * inner)),
               (at + "mlp.experts.down_proj_bias", (experts, hidden))]
    if not m["mxfp4"]:
        return tensors + [(at + "mlp.experts.gate_up_proj", (experts, hidden, 2 * inner)),
                          (at + "mlp.experts.down_proj", (experts, inner, hidden))]
    for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        tensors += [(f"{at}mlp.experts.{name}_blocks", (experts, rows, columns // 32, 16)),
                    (f"{at}mlp.experts.{name}_scales", (experts, rows, columns // 32))]
    return tensors


def dtype_of(m, name):
    return "u8" if name.endswith(("_blocks", "_scales")) else m["dtype"]


def tensors_of(m):
    """[(name, dims)] in the order of the file."""
    hidden, inner, head_dim = m["hidden"], m["inner"], m["head_dim"]
    q, kv = (count * head_dim for count in m["heads"])
    tensors = [("model.embed_tokens.weight", (m["vocab"], hidden))]
    for layer in range(m["layers"]):
        at = f"model.layers.{layer}."
        if m["family"] == "Phi":
            tensors += [(at + "input_layernorm.weight", (hidden,)), (at + "input_layernorm.bias", (hidden,))]
            for name, rows, columns in (("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden),
                                        ("self_attn.v_proj", kv, hidden), ("self_attn.dense", hidden, q),
                                        ("mlp.fc1", inner, hidden), ("mlp.fc2", hidden, inner)):
                tensors += [(f"{at}{name}.weight", (rows, columns)), (f"{at}{name}.bias", (rows,))]
            continue
        tensors += [(at + "input_layernorm.weight", (hidden,)), (at + "post_attention_layernorm.weight", (hidden,))]
        if m["family"] == "Phi3":
            tensors += [(at + "self_attn.qkv_proj.weight", (q + 2 * kv, hidden)),
                        (at + "self_attn.o_proj.weight", (hidden, q)),
                        (at + "mlp.gate_up_proj.weight", (2 * inner, hidden)),
                        (at + "mlp.down_proj.weight", (hidden, inner))]
            continue
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            tensors.append((f"{at}self_attn.{name}_proj.weight", (rows, hidden)))
            if m["family"] in ("Qwen2", "Qwen2Moe") or m["attention_bias"]:
                tensors.append((f"{at}self_attn.{name}_proj.bias", (rows,)))
        if m["family"] == "Olmoe":
            tensors += [(at + "self_attn.q_norm.weight", (q,)), (at + "self_attn.k_norm.weight", (kv,))]
        if m["family"] in ("Qwen3", "Qwen3Moe") or m["experts"] and m["qk_norm"]:
            tensors += [(f"{at}self_attn.{name}_norm.weight", (head_dim,)) for name in "qk"]
        tensors.append((at + "self_attn.o_proj.weight", (hidden, q)))
        if m["family"] == "GptOss":
            tensors += [(at + "self_attn.o_proj.bias", (hidden,)), (at + "self_attn.sinks", (m["heads"][0],))]
            tensors += oss_tensors(m, at)
            continue
        if is_mixture(m, layer):
            tensors += mixture_tensors(m, at)
            continue
        tensors += [(at + "mlp.gate_proj.weight", (inner, hidden)), (at + "mlp.up_proj.weight", (inner, hidden)),
                    (at + "mlp.down_proj.weight", (hidden, inner))]
        if m["attention_bias"] and m["family"] != "Glm4Moe":
            tensors.append((at + "self_attn.o_proj.bias", (hidden,)))
        if m["mlp_bias"]:
            tensors += [(at + "mlp.gate_proj.bias", (inner,)), (at + "mlp.up_proj.bias", (inner,)),
                        (at + "mlp.down_proj.bias", (hidden,))]
    if m["family"] == "Phi":
        return tensors + [("model.final_layernorm.weight", (hidden,)), ("model.final_layernorm.bias", (hidden,)),
                          ("lm_head.weight", (m["vocab"], hidden)), ("lm_head.bias", (m["vocab"],))]
    tensors.append(("model.norm.weight", (hidden,)))
    if not m["tied"]:
        tensors.append(("lm_head.weight", (m["vocab"], hidden)))
    return tensors


def decode_mxfp4(arrays):
    """What name_blocks and name_scales stand for, as float32 under the plain names, transposed as those are."""
    values = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
    values = np.concatenate([values, -values])
    for name in [name for name in arrays if name.endswith("_blocks")]:
        blocks, scales = arrays.pop(name), arrays.pop(name[:-len("blocks")] + "scales")
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
        matrices = values[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
        theirs = torch_mxfp4(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
        matrices = matrices.reshape(*scales.shape[:2], -1).transpose(0, 2, 1)
        assert np.array_equal(theirs.numpy(), matrices)
        arrays[name[:-len("_blocks")]] = np.ascontiguousarray(matrices)
    return arrays


def arrange(m, weights):
    """Router rows and biases that are not as they were drawn; the C side does the same (reference_model.c)."""
    for name, array in weights.items():
        if m["experts"] and m["router_pairs"] and name.endswith("mlp.gate.weight"):
            array[1::2] = array[0::2]
        if m["experts"] and m["preferred"] and name.endswith("e_score_correction_bias"):
            assert m["dtype"] == "f32"
            array[:m["preferred"]] += np.float32(16)
    return weights


def stored_weights(m):
    """name -> array with the dtype's bits (uint16 for bf16), of tensors that transformers reads on any machine."""
    drawn = {name: reference_weights.draw_bytes(name, m["seed"], dims) if dtype_of(m, name) == "u8" else
             reference_weights.store(reference_weights.draw(name, m["seed"], dims), m["dtype"]).reshape(dims)
             for name, dims in tensors_of(m)}
    drawn = arrange(m, drawn)
    return {name: array if array.dtype != np.float32 or m["dtype"] == "f32" else
            reference_weights.store(array.reshape(-1), m["dtype"]).reshape(array.shape)
            for name, array in decode_mxfp4(drawn).items()}


def prompt_of(m):
    bits = reference_weights.random_bits("prompt", m["seed"], 0, m["prompt"])
    return [int(x) for x in bits % np.uint64(m["vocab"])]


def write_folder(m, folder):
    dtype = TORCH_DTYPES[m["dtype"]]
    weights = {name: torch.from_numpy(array).view(dtype) for name, array in stored_weights(m).items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = config_of(m)
    config.pop("quantization_config", None)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)


def load(m, folder, dtype, attention):
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise SystemExit(f"{m['name']}: transformers did not take the tensors as they are: {info}")
    assert type(loaded).__name__ == m["family"] + "ForCausalLM"
    assert loaded.model.rotary_emb.inv_freq.dtype == torch.float32
    return loaded.eval()


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def kl(reference, other):
    """KL(reference || other) of each row, in nats."""
    p, q = log_softmax(reference), log_softmax(other)
    return (np.exp(p) * (p - q)).sum(axis=-1)


@torch.no_grad()
def logits_of(loaded, ids, last):
    return loaded(torch.tensor([ids]), logits_to_keep=last, use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def continue_greedily(m, loaded, ids, forced=None):
    """(tokens, margin of each step's top two logits, logits of each step), through the KV cache.

    With longrope everything is computed again once the sequence is longer than the original context, as
    Phi3ForCausalLM.generate does. forced: tokens to go on with, instead of the most likely ones."""
    step, cache, tokens, margins, rows = torch.tensor([ids]), None, [], [], []
    for i in range(CONTINUATION):
        if depends_on_length(m) and m["scaling"]["rope_type"] == "longrope":
            if len(ids) + i == m["scaling"]["original_max_position_embeddings"] + 1:
                step, cache = torch.tensor([ids + tokens]), None
        out = loaded(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].float().numpy())
        top = out.logits[0, -1].double().topk(2)
        tokens.append(int(top.indices[0]) if forced is None else forced[i])
        margins.append(float(top.values[0] - top.values[1]))
        step = torch.tensor([[tokens[-1]]])
    return tokens, margins, np.stack(rows)


def depends_on_length(m):
    """One pass over a prompt and its answer is then not what was computed token by token."""
    return m["scaling"] is not None and m["scaling"]["rope_type"] in ("dynamic", "longrope")


def measure(m):
    """(JSON object, fp32 logits, figures for the table) of one model."""
    config, ids = config_of(m), prompt_of(m)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(m, folder)
        fp32 = load(m, folder, torch.float32, "eager")
        logits = logits_of(fp32, ids, m["positions"])
        tokens, margins, steps = continue_greedily(m, fp32, ids)
        everything = ids + tokens[:-1]
        if not depends_on_length(m):
            steps = logits_of(fp32, everything, CONTINUATION)
        runs = {}
        for attention in ("sdpa", "eager") if m["family"] != "GptOss" else ("eager",):
            bf16 = load(m, folder, torch.bfloat16, attention)
            prompt_logits = logits_of(bf16, ids, m["positions"])
            runs[attention] = (prompt_logits, continue_greedily(m, bf16, ids, tokens)[2] if depends_on_length(m)
                               else logits_of(bf16, everything, CONTINUATION))
    best = min(runs, key=lambda attention: kl(logits, runs[attention][0]).mean())
    bf16_logits, bf16_steps = runs[best]
    divergence, error = kl(logits, bf16_logits), float(np.abs(logits - bf16_logits).max())
    router_margins = []
    exact = forward64(m, None, router_margins)
    fp32_error = float(np.abs(exact - logits).max())
    if fp32_error > MAX_FP32_ERROR * error:
        raise SystemExit(f"{m['name']}: fp32 is off float64 by {fp32_error:.3g}, bf16 by {error:.3g}")
    decided = np.array(margins) > error
    distribution = log_softmax(logits)
    result = {
        "name": m["name"], **{key: m[key] for key in ("router_pairs", "preferred") if m.get(key)},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__,
                     "cpu": torch.backends.cpu.get_cpu_capability()},
        "config": config, "seed": m["seed"],
        "tensors": [[name, dtype_of(m, name), list(dims)] for name, dims in tensors_of(m)],
        "prompt": ids, "positions": m["positions"], "vocab": m["vocab"],
        "bf16_attention": best, "bf16_mean_kl": float(divergence.mean()), "bf16_max_kl": float(divergence.max()),
        "bf16_logit_error": error,
        "fp32_mean_kl": float(kl(exact, logits).mean()), "fp32_logit_error": fp32_error,
        "continuation": tokens, "margins": [float(f"{margin:.6g}") for margin in margins]}
    figures = {
        "kl sdpa": kl(logits, runs["sdpa"][0]).mean() if "sdpa" in runs else float("nan"), "kl eager": kl(logits, runs["eager"][0]).mean(),
        "kl max": divergence.max(), "bf16 err": error, "fp32 err": fp32_error,
        "step err": np.abs(steps - bf16_steps).max(),
        "entropy": float(-(np.exp(distribution) * distribution).sum(axis=-1).mean()), "logit sd": logits.std(),
        "distinct": len(set(tokens)), "decided": decided.mean(), "margin": np.median(margins),
        "bf16 wrong": int(((bf16_steps.argmax(axis=-1) != tokens) & decided).sum()),
        "router": min(router_margins, default=np.inf)}
    assert (steps.argmax(axis=-1) == tokens)[np.array(margins) > fp32_error * 4].all()
    return result, logits, figures


def forward64(m, fault=None, margins=None):
    weights = {name: reference_weights.draw_bytes(name, m["seed"], dims) if dtype_of(m, name) == "u8" else
               reference_weights.rounded(reference_weights.draw(name, m["seed"], dims), m["dtype"]).reshape(dims)
               for name, dims in tensors_of(m)}
    weights = decode_mxfp4(arrange(m, weights))
    config = dict(config_of(m), rope_theta=m["theta"], rope_scaling=m["scaling"], head_dim=m["head_dim"],
                  partial_rotary_factor=m["rotary"])
    return reference_forward.forward(config, weights, prompt_of(m), m["positions"], fault, margins)


def write(result, logits):
    def value_of(key, value):
        if key == "tensors":
            return "[\n  " + ",\n  ".join(json.dumps(tensor) for tensor in value) + "\n ]"
        return json.dumps(value)

    lines = [f" {json.dumps(key)}: {value_of(key, value)}" for key, value in result.items()]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / (result["name"] + ".json")).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (OUTPUT / (result["name"] + ".f32")).write_bytes(logits.astype("<f4").tobytes())


def what_is_degenerate(m, figures):
    """What makes it a reference that could hide mistakes, or one that transformers in bf16 would fail itself; or None."""
    low_high = {"entropy": (1, 4), "distinct": (10, CONTINUATION), "decided": (0.5, 1), "bf16 wrong": (0, 0),
                "router": (m.get("least_margin", 0), np.inf)}
    for key, (low, high) in low_high.items():
        if not low <= figures[key] <= high:
            return f"{key} is {figures[key]:.3g}, expected {low} to {high}"
    return None


def find_seed(m):
    """The first seed that is not degenerate. The float64 pass alone tells of most."""
    for seed in range(1, MOST_SEEDS + 1):
        margins = []
        forward64(dict(m, seed=seed), None, margins)
        if min(margins, default=np.inf) < m.get("least_margin", 0):
            continue
        wrong = what_is_degenerate(m, measure(dict(m, seed=seed))[2])
        print(f"{m['name']}: seed {seed}: {wrong or 'fine'}", flush=True)
        if wrong is None:
            return
    print(f"{m['name']}: no seed of {MOST_SEEDS}", flush=True)


def write_readme():
    columns = ["model", "heads", "hidden", "layers", "vocab", "tied", "stored", "rope, theta", "window", "eps", "tokens",
               "mean KL", "max KL", "bf16 error", "fp32 error", "decided", "distinct"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for m in MODELS:
        result = json.loads((OUTPUT / (m["name"] + ".json")).read_text())
        rope = "plain" if m["scaling"] is None else m["scaling"]["rope_type"]
        if m["scaling"] is not None and "factor" in m["scaling"]:
            rope += f" x{m['scaling']['factor']:g}"
        original = m["scaling"] and m["scaling"].get("original_max_position_embeddings", m["context"])
        if original and m["scaling"]["rope_type"] != "linear":
            rope += f" beyond {original}"
        if m["rotary"] != 1:
            rope += f" of {m['rotary']:g} of a head"
        window = "-" if m["window"] is None else str(m["window"])
        decided = sum(margin > result["bf16_logit_error"] for margin in result["margins"])
        lines.append(
            f"| {m['name']} | {m['heads'][0]}/{m['heads'][1]} x {m['head_dim']} | {m['hidden']} | {m['layers']} |"
            f" {m['vocab']} | {'yes' if m['tied'] else 'no'} | {m['dtype']} | {rope}, {m['theta']:g} | {window} | {m['eps']:g} |"
            f" {m['prompt']} ({m['positions']}) | {result['bf16_mean_kl']:.3g} | {result['bf16_max_kl']:.3g} |"
            f" {result['bf16_logit_error']:.3g} | {result['fp32_logit_error']:.2g} | {decided}/{CONTINUATION} |"
            f" {len(set(result['continuation']))} |")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    (OUTPUT / "README.md").write_text(README.format(table="\n".join(lines), versions=versions))


def check(result, logits):
    """Compares with the committed files; another CPU or version moves figures a little, not tokens or inputs."""
    old = json.loads((OUTPUT / (result["name"] + ".json")).read_text())
    old_logits = np.frombuffer((OUTPUT / (result["name"] + ".f32")).read_bytes(), "<f4").reshape(logits.shape)
    same = ("config", "seed", "tensors", "prompt", "positions", "vocab", "continuation")
    differing = [key for key in same if old[key] != result[key]]
    if np.abs(old_logits - logits).max() > 4 * result["fp32_logit_error"]:
        differing.append("logits")
    print(f"{result['name']}: " + ("differs in " + ", ".join(differing) if differing else
          f"same; bf16 KL now / committed = {result['bf16_mean_kl'] / old['bf16_mean_kl']:.3f}"))
    return not differing


def print_faults(m):
    exact = forward64(m)
    bar = json.loads((OUTPUT / (m["name"] + ".json")).read_text())["bf16_mean_kl"]
    found = [(kl(exact, forward64(m, fault)).mean() / bar, fault) for fault in reference_forward.FAULTS]
    print(f"{m['name']}: " + ", ".join(f"{fault} {ratio:.3g}" for ratio, fault in found if ratio > 0))


def main():
    parser = argparse.ArgumentParser(description="Makes tests/data/reference; see the top of this file.")
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    parser.add_argument("--faults", action="store_true", help="KL of planted mistakes, in units of the bf16 KL")
    parser.add_argument("--seeds", action="store_true", help="find seeds, write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    ok = True
    for m in MODELS:
        if options.only not in m["name"]:
            continue
        if options.faults:
            print_faults(m)
            continue
        if options.seeds:
            find_seed(m)
            continue
        result, logits, figures = measure(m)
        if options.check:
            ok = check(result, logits) and ok
            continue
        write(result, logits)
        print(f"{m['name']:25}", " ".join(f"{key} {value:.3g}" for key, value in figures.items()), flush=True)
        wrong = what_is_degenerate(m, figures)
        if wrong is not None:
            raise SystemExit(f"{m['name']}: {wrong}; try another seed (--seeds)")
    if not (options.check or options.faults or options.seeds):
        write_readme()
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
