#!/usr/bin/env python3
"""Compares the logits of random models with random configurations with transformers in fp32.

    random_configs.py MEGALITH SECONDS [--seed N] [--family TEXT]

tools/make_reference.py has chosen models whose config.json says everything; here keys are absent,
null, or spelled as transformers 4 or 5 spell them, and sizes are odd, so that what is assumed about
absent keys and what keys mean to each other is compared too. Weights are f32 and large, in one file
or many. A model that either side refuses is counted, with the reason of Megalith's; logits that
differ by more than 2e-3 of the largest are printed with the configuration, and the status is 1.
Needs torch, transformers (5) and numpy.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

BOUND = 2e-3
ARCHITECTURES = {
    "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "phi3": "Phi3",
    "phi": "Phi", "qwen3_moe": "Qwen3Moe", "qwen2_moe": "Qwen2Moe", "mixtral": "Mixtral",
    "olmoe": "Olmoe", "glm4_moe": "Glm4Moe", "gpt_oss": "GptOss"}
HEADS = [(4, 2), (3, 1), (3, 3), (5, 1), (7, 1), (6, 2), (6, 3), (12, 2), (1, 1), (9, 3)]
NEEDED = ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "model_type",
          "num_attention_heads", "architectures", "num_experts", "num_local_experts",
          "n_routed_experts"]
OF_HIDDEN = ["phi", "phi3", "qwen2", "qwen2_moe", "olmoe"]  # head_dim is not a key


def rope_of(r, family, pairs, context):
    """The parameters of a rope but theta, or None."""
    kinds = {"phi": ["none"], "phi3": ["none", "longrope"], "gpt_oss": ["yarn"]}
    kind = r.choice(kinds.get(family, ["none", "none", "linear", "llama3", "yarn", "dynamic",
                                       "longrope"]))
    rope = {"rope_type": kind}
    if kind == "none":
        return None
    if kind in ("linear", "dynamic"):
        rope["factor"] = r.choice([1.5, 2.0, 4.0])
        return rope
    rope["original_max_position_embeddings"] = r.choice([16, 32, 64])
    if kind == "llama3":
        rope.update(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    elif kind == "yarn":
        rope["factor"] = r.choice([2.0, 4.0, max(1.0, context / 64)])
        for key, value in (("beta_fast", 16.0), ("truncate", False), ("attention_factor", 1.2)):
            if r.random() < 0.3:
                rope[key] = value
        if r.random() < 0.3:
            rope.update(mscale=0.7, mscale_all_dim=r.choice([1.0, 0.8]))
    else:
        rope.update(short_factor=[round(1 + 0.05 * i, 2) for i in range(pairs)],
                    long_factor=[round(1.05 * 1.1 ** i, 3) for i in range(pairs)])
        if r.random() < 0.3:
            rope["factor"] = r.choice([8.0, 2.0])
    return rope


def add_rope(r, config, head_dim):
    family, context = config["model_type"], config["max_position_embeddings"]
    part = {"phi": r.choice([0.5, 1.0]), "phi3": r.choice([1.0, 0.75, 0.5]),
            "glm4_moe": 0.5}.get(family, 1.0)
    part = 1.0 if int(head_dim * part) % 2 else part
    rope = rope_of(r, family, int(head_dim * part) // 2, context)
    theta = r.choice([None, None, 1e4, 5e5, 1e6, 100.0])
    has_part = family in ("phi", "phi3", "glm4_moe")
    if rope is not None and family == "phi3":
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    if r.random() < 0.5:  # as transformers 4 has it
        config.update({"partial_rotary_factor": part} if has_part else {})
        config.update({"rope_theta": theta} if theta else {})
        if rope is not None or r.random() < 0.3:
            config["rope_scaling"] = rope
        return
    config["rope_parameters"] = dict(rope or {"rope_type": "default"})
    config["rope_parameters"].update({"rope_theta": theta} if theta else {})
    config["rope_parameters"].update({"partial_rotary_factor": part} if has_part else {})


def add_window(r, config):
    family, layers = config["model_type"], config["num_hidden_layers"]
    kinds = ["full_attention"]
    if family in ("mistral", "phi3", "mixtral") and r.random() < 0.8:
        config["sliding_window"] = r.choice([None, 5, 20, 33, 100, 1000])
    if family in ("qwen2", "qwen3"):
        config["use_sliding_window"] = r.random() < 0.7
        config["sliding_window"] = r.choice([5, 20, 33, 100])
        config["max_window_layers"] = r.randint(0, layers)
        kinds += ["sliding_attention"] if config["use_sliding_window"] else []
    if family == "gpt_oss":
        config["sliding_window"] = r.choice([7, 20, 30])
        kinds += ["sliding_attention"]
    if family in ("qwen2", "qwen3", "gpt_oss") and r.random() < 0.3:
        config["layer_types"] = [r.choice(kinds) for _ in range(layers)]


def add_experts(r, config):
    family, layers = config["model_type"], config["num_hidden_layers"]
    experts = r.choice([2, 4, 6, 8])
    slots = r.randint(1, experts)
    if family in ("mixtral", "gpt_oss"):
        config.update(num_local_experts=experts, num_experts_per_tok=slots)
    if family in ("qwen3_moe", "qwen2_moe", "olmoe"):
        config.update(num_experts=experts, num_experts_per_tok=slots,
                      norm_topk_prob=r.random() < 0.5)
    if family in ("qwen3_moe", "qwen2_moe"):
        config.update(moe_intermediate_size=r.choice([24, 40, 9]),
                      decoder_sparse_step=r.choice([1, 2, 3]), mlp_only_layers=r.choice([[], [0]]))
    if family == "qwen2_moe":
        config.update(shared_expert_intermediate_size=r.choice([24, 56]), qkv_bias=r.random() < 0.7)
    if family == "glm4_moe":
        groups = r.choice([1, 2])
        top = r.randint(1, groups)
        config.update(n_routed_experts=experts, n_group=groups, topk_group=top,
                      num_experts_per_tok=min(slots, experts // groups * top),
                      moe_intermediate_size=r.choice([24, 40]), n_shared_experts=r.choice([1, 2]),
                      first_k_dense_replace=r.randint(0, layers), norm_topk_prob=r.random() < 0.5,
                      routed_scaling_factor=r.choice([1.0, 2.5]), use_qk_norm=r.random() < 0.5)


def config_of(r, family):
    heads, kv_heads = r.choice(HEADS)
    head_dim = r.choice([6, 10, 16, 32, 40, 64, 80, 96, 128, 256])
    config = dict(model_type=family, architectures=[ARCHITECTURES[family] + "ForCausalLM"],
                  hidden_size=r.choice([7, 32, 40, 72, 100, 160]),
                  intermediate_size=r.choice([9, 37, 48, 100, 160]),
                  num_hidden_layers=r.randint(1, 4), vocab_size=r.choice([17, 50, 101, 200, 333]),
                  num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                  max_position_embeddings=r.choice([64, 96, 128, 200, 2048]),
                  tie_word_embeddings=r.random() < 0.5, bos_token_id=0, eos_token_id=1,
                  pad_token_id=0)
    if family in OF_HIDDEN:
        head_dim = r.choice([16, 32, 40, 64, 80])
        config["hidden_size"] = heads * head_dim
        del config["head_dim"]
    if r.random() < 0.7:
        key = "layer_norm_eps" if family == "phi" else "rms_norm_eps"
        config[key] = r.choice([1e-5, 1e-6, 1e-3, 0.05])
    if family in ("llama", "qwen3", "qwen3_moe", "olmoe", "glm4_moe", "gpt_oss"):
        config["attention_bias"] = r.random() < 0.3
    if family == "llama":
        config["mlp_bias"] = r.random() < 0.3
    add_rope(r, config, head_dim)
    add_window(r, config)
    add_experts(r, config)
    if r.random() < 0.25:
        del config[r.choice([key for key in config if key not in NEEDED])]
    return config


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager").eval()


def write_model(r, config, folder):
    """Writes it, and its config.json as transformers or as we have it; returns what it is then."""
    (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32)
    torch.manual_seed(r.randrange(2 ** 31))
    with torch.no_grad():
        for name, p in model.named_parameters():
            drawn = torch.randn_like(p)
            is_norm = "norm" in name and name.endswith("weight")
            scale = 1 if "embed" in name else 1.5 / p.shape[-1] ** 0.5
            p.copy_(1 + 0.3 * drawn if is_norm else drawn * (scale if p.dim() > 1 else 0.3))
        for name, p in model.named_buffers():
            if "correction_bias" in name:
                p.copy_(0.2 * torch.randn_like(p))
    model.save_pretrained(folder, max_shard_size=r.choice(["20KB", "100KB", "1GB"]))
    if r.random() < 0.6:
        (folder / "config.json").write_text(json.dumps(dict(config, torch_dtype="float32")))
    return load(folder)


def megalith_of(r, program, folder, ids):
    """The logits, or why there are none."""
    arguments = [program, "score", folder, "--device", "cpu", "--logits", folder / "logits.npy",
                 "--tokens", ",".join(map(str, ids)), "--iteration-tokens",
                 str(r.choice([7, 64, 128, 2048]))]
    if r.random() < 0.3:
        arguments += ["--mode", r.choice(["eager", "full", "piecewise"])]
    run = subprocess.run(arguments, capture_output=True, text=True)
    if run.returncode not in (0, 1):
        raise SystemExit(f"status {run.returncode} of {arguments}: {run.stderr}")
    return (np.load(folder / "logits.npy"), None) if run.returncode == 0 else (None, run.stderr)


def compare(r, program, config, folder, counts):
    try:
        model = write_model(r, config, folder)
        ids = [r.randrange(config["vocab_size"]) for _ in range(r.choice([1, 3, 20, 63, 140]))]
        ids = ids[:model.config.max_position_embeddings]
        with torch.no_grad():
            expected = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    except Exception as error:  # whatever transformers raises: there is nothing to compare with
        counts["transformers refuses: " + str(error).replace("\n", " ")[:60]] += 1
        return True
    logits, why = megalith_of(r, program, folder, ids)
    if logits is None:
        counts[why.replace(str(folder), "").strip()[:160]] += 1
        return True
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    counts["compared"] += 1
    if error <= BOUND:
        return True
    print(f"{error:.3g} of the largest logit, {len(ids)} tokens: {json.dumps(config)}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("megalith")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", default="", help="those whose model_type has this text in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    r = random.Random(options.seed)
    counts = collections.Counter()
    families = [family for family in ARCHITECTURES if options.family in family]
    end, good = time.monotonic() + options.seconds, True
    while time.monotonic() < end:
        folder = pathlib.Path(tempfile.mkdtemp())
        good &= compare(r, options.megalith, config_of(r, r.choice(families)), folder, counts)
        shutil.rmtree(folder)
    for what, count in counts.most_common():
        print(count, what)
    return 0 if good and counts["compared"] else 1


if __name__ == "__main__":
    sys.exit(main())
