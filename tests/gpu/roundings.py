"""What rounding to bf16 explains of the differences between the CPU, the GPU and transformers: an emulation in float64.

    python3 tests/gpu/roundings.py [MODEL...]      MODEL: tiny, wide or bias of tests/gpu/gpu_model.c, default all

The same model, computed without rounding and with the roundings of the CPU, of the GPU's narrow class, of its wide class
with Q and K as bf16 before they are rotated, and of transformers in bf16 (after every op). Printed for each: the error
against the exact results over the CPU's error, over all results of ops ("mean" and "most") and in the logits. That is
where the bound of `gpu_errors` (tests/gpu/gpu_bench.h) comes from.

Which way single roundings go is chance. RUNS runs give the spread: in each, every rounding is to another grid, bf16 times
a random factor, as fine as bf16 itself. The CPU's own row shows what chance alone does. Needs numpy and torch.
"""
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import numpy as np  # noqa: E402
import torch  # noqa: E402

import reference_weights  # noqa: E402

RUNS = 20
SEED = 7  # GPU_SEED
MODELS = {
    "tiny": dict(V=1000, D=256, F=640, layers=4, H=8, HKV=2, HD=64, eps=1e-6, theta=1e4, norms=True),
    "wide": dict(V=4104, D=1096, F=2200, layers=2, H=4, HKV=2, HD=128, eps=1e-5, theta=5e5, head=True),
    "bias": dict(V=512, D=256, F=512, layers=3, H=8, HKV=1, HD=32, eps=1e-6, theta=1e4, bias=True),
}
CASES = [(1, 40), (17, 300), (64, 0), (64, 250), (300, 0)]  # tokens, and those before them

CPU = "norm k v attention gated"
NARROW = CPU + " q weights"
ROUNDINGS = {
    "exact": "", "cpu": CPU, "narrow": NARROW, "wide": NARROW + " raw_q raw_k",
    "transformers": NARROW + " raw_q raw_k embedded normed rotated projected added gate_up silu logits"}


class Model:
    def __init__(self, name):
        self.size = size = MODELS[name]
        self.weights = {}
        for layer in range(size["layers"]):
            prefix = f"model.layers.{layer}."
            for part, rows in (("q", size["H"]), ("k", size["HKV"]), ("v", size["HKV"])):
                self.draw(prefix + f"self_attn.{part}_proj.weight", rows * size["HD"], size["D"])
                if size.get("bias"):
                    self.draw(prefix + f"self_attn.{part}_proj.bias", rows * size["HD"])
                if size.get("norms") and part != "v":
                    self.draw(prefix + f"self_attn.{part}_norm.weight", size["HD"])
            self.draw(prefix + "self_attn.o_proj.weight", size["D"], size["H"] * size["HD"])
            for part in ("gate", "up"):
                self.draw(prefix + f"mlp.{part}_proj.weight", size["F"], size["D"])
            self.draw(prefix + "mlp.down_proj.weight", size["D"], size["F"])
            self.draw(prefix + "input_layernorm.weight", size["D"])
            self.draw(prefix + "post_attention_layernorm.weight", size["D"])
        self.draw("model.embed_tokens.weight", size["V"], size["D"])
        self.draw("model.norm.weight", size["D"])
        if size.get("head"):
            self.draw("lm_head.weight", size["V"], size["D"])

    def draw(self, name, *dims):
        values = np.array(reference_weights.draw(name, SEED, dims)).reshape(dims)
        self.weights[name] = torch.from_numpy(values).to(torch.bfloat16).double()


def token(i, vocab):
    """gpu_model_token."""
    mask = (1 << 64) - 1
    x = ((i + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    return (x ^ (x >> 31)) % vocab


def rounders(points, run):
    generator = torch.Generator().manual_seed(run)

    def rounded(x):
        scale = 1 + float(torch.rand(1, generator=generator)) if run > 0 else 1.0
        return (x * scale).float().to(torch.bfloat16).double() / scale

    every = ROUNDINGS["transformers"].split()
    return {point: rounded if point in points.split() else lambda x: x for point in every}


def compute(model, tokens, points, run):
    """{name of an op's result: values}"""
    size, w, r = model.size, model.weights, rounders(points, run)
    count, heads, kv_heads, dim = len(tokens), size["H"], size["HKV"], size["HD"]
    group = heads // kv_heads
    out = {}

    def norm(x, weight, last):
        return last(r["normed"](x * torch.rsqrt((x * x).mean(-1, keepdim=True) + size["eps"])) * weight)

    angles = torch.arange(count).double()[:, None] * size["theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    cos = r["rotated"](torch.cat([angles.cos()] * 2, -1)[:, None])
    sin = r["rotated"](torch.cat([angles.sin()] * 2, -1)[:, None])

    def rotate(x):
        turned = torch.cat([-x[..., dim // 2:], x[..., :dim // 2]], -1)
        return r["rotated"](x * cos) + r["rotated"](turned * sin)

    hidden_by_future = torch.ones(count, count).triu(1).bool()
    x = r["embedded"](w["model.embed_tokens.weight"][tokens])
    for layer in range(size["layers"]):
        prefix = f"model.layers.{layer}."
        normed = norm(x, w[prefix + "input_layernorm.weight"], r["norm"])
        heads_of = {}
        for part, rounded in (("q", r["raw_q"]), ("k", r["raw_k"]), ("v", lambda x: x)):
            name = prefix + f"self_attn.{part}_proj."
            y = rounded(normed @ w[name + "weight"].T + w.get(name + "bias", 0))
            y = heads_of[part] = y.view(count, -1, dim)
            if size.get("norms") and part != "v":
                heads_of[part] = norm(y, w[prefix + f"self_attn.{part}_norm.weight"], r["normed"])
        out[f"{layer}.v"] = heads_of["v"]
        q, k, v = r["q"](rotate(heads_of["q"])), r["k"](rotate(heads_of["k"])), r["v"](heads_of["v"])
        scores = torch.einsum("thd,uhd->htu", q, k.repeat_interleave(group, 1)) / math.sqrt(dim)
        scores = scores.masked_fill(hidden_by_future, -1e30)
        weights = r["weights"]((scores - scores.amax(-1, keepdim=True)).exp())
        weights = weights / weights.sum(-1, keepdim=True)
        attended = torch.einsum("htu,uhd->thd", weights, v.repeat_interleave(group, 1)).reshape(count, -1)
        attended = out[f"{layer}.attention"] = r["attention"](attended)
        x = r["added"](x + r["projected"](attended @ w[prefix + "self_attn.o_proj.weight"].T))
        out[f"{layer}.attended"] = x
        normed = norm(x, w[prefix + "post_attention_layernorm.weight"], r["norm"])
        gate = r["gate_up"](normed @ w[prefix + "mlp.gate_proj.weight"].T)
        up = r["gate_up"](normed @ w[prefix + "mlp.up_proj.weight"].T)
        gated = out[f"{layer}.gated"] = r["gated"](r["silu"](gate * torch.sigmoid(gate)) * up)
        x = r["added"](x + r["projected"](gated @ w[prefix + "mlp.down_proj.weight"].T))
        out[f"{layer}.fed_forward"] = x
    last = w["lm_head.weight"] if size.get("head") else w["model.embed_tokens.weight"]
    out["logits"] = r["logits"](norm(x, w["model.norm.weight"], r["norm"]) @ last.T)
    return out


def errors(result, exact, rows):
    return {name: float((result[name][-rows:] - exact[name][-rows:]).norm() / exact[name][-rows:].norm())
            for name in exact}


def compare(name, rows, before):
    model = Model(name)
    tokens = torch.tensor([token(i, model.size["V"]) for i in range(before + rows)])
    exact = compute(model, tokens, "", 0)
    base = errors(compute(model, tokens, CPU, 0), exact, rows)
    for kind in ("cpu", "narrow", "wide", "transformers"):
        ratios, of_logits = [], []
        for run in range(1, RUNS + 1):
            found = errors(compute(model, tokens, ROUNDINGS[kind], run), exact, rows)
            ratios += [found[result] / base[result] for result in base]
            of_logits.append(found["logits"] / base["logits"])
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"| {name}, {rows} behind {before} | {base['logits']:.1e} | {kind} | {mean:.2f} | {max(ratios):.2f} | "
              f"{sum(of_logits) / RUNS:.2f} | {max(of_logits):.2f} |", flush=True)


def main():
    print("| model, tokens | CPU's error of logits | roundings of | mean | most | logits: mean | most |")
    print("|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        for rows, before in CASES:
            compare(name, rows, before)


if __name__ == "__main__":
    main()
