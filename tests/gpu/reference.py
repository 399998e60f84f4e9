"""Makes the reference data that `gpu_tests reference` compares with: what transformers answers in fp32 and in bf16.

    python3 tests/gpu/reference.py OUTPUT MODEL...      MODEL: a folder with a config.json

For each MODEL a folder OUTPUT/NAME with reference.json (index, described in `write`) and reference.bin (token ids, rows,
logits). A folder that has weights (the demo) is used as it is; for any other, transformers builds the model from the
config, random weights are drawn into it, and save_pretrained writes them as bf16 to OUTPUT/NAME/model. Runs on the GPU
of this machine, or with --device cpu on small configs. A model that fails is reported and the others go on; exit code 1.

Random weights: torch's generator, but offsets and scales of src/model/dummy_weights.h (tools/reference_weights.py), not
initializer_range: with a standard deviation of 0.02 everywhere logits are nearly flat and attention nearly uniform,
so that KL is 0 for right and wrong programs alike. Here logits spread by about 3, scores of attention by about 2. The
table printed at the end shows it: entropy far below log V, and `forgets` (KL when the older half of the context is
withheld) far above the KL of bf16.

fp32: TF32 off, eager attention (plain fp32 matrix products), the long sequence in chunks through transformers' KV cache,
so that scores never are more than heads x chunk x context. bf16: transformers' own path, once with sdpa (whole
sequences) and once with eager attention (chunks); both are kept, and the better of the two is the bar. The fp32 model
has the bf16 model's weights; both compute rope frequencies in fp32, as from_pretrained does.

Tokens: uniform over the vocabulary for random weights; for a model with weights the dialogues of tools/demo_data.py.
"""
import argparse
import gc
import json
import os
import pathlib
import random
import shutil
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import numpy as np  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import demo_data  # noqa: E402
import reference_weights  # noqa: E402

SHORT = 512  # contexts up to this are measured on every short sequence, longer ones on the long sequence
# Ends of the 16 ragged sequences: none alike, on both sides of the borders of pages, chunks and KV chunks.
RAGGED_ENDS = [8, 9, 16, 17, 33, 63, 64, 65, 100, 129, 255, 257, 300, 511, 700, 1000]
# More sequences, for the contexts up to SHORT alone: KL of one position varies by orders of magnitude, and a mean of 16
# says little (the demo's bar at context 63 was nine times as high with eager attention as with sdpa).
MORE_SHORT = 48
DRAW_ELEMENTS = 1 << 27  # of random weights at once, in fp32
SHARD_BYTES = "5GB"
KINDS = ("fp32", "sdpa", "eager")


class Clock:
    """Seconds of each step, for the log."""

    def __init__(self, device):
        self.device, self.steps, self.start = device, {}, time.monotonic()

    def step(self, name):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.monotonic()
        self.steps[name] = round(now - self.start, 2)
        self.start = now
        print(f"  {name}: {self.steps[name]:.1f} s", file=sys.stderr, flush=True)


# --- models ----------------------------------------------------------------------------------------------------------

@torch.no_grad()
def draw_weights(model, seed, device):
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        offset, scale = (float(x) for x in reference_weights.affine_of(name, tuple(parameter.shape)))
        flat = parameter.data.view(-1)
        for begin in range(0, flat.numel(), DRAW_ELEMENTS):
            part = flat[begin:begin + DRAW_ELEMENTS]
            unit = torch.rand(part.shape, generator=generator, device=device, dtype=torch.float32) * 2 - 1
            part.copy_(offset + scale * unit)


def build(config, dtype, device):
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def checked(model):
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    return model.eval()


@torch.no_grad()
def open_bf16(source, target, seed, device, clock):
    """(bf16 model, folder for Megalith, whether the weights are random)."""
    if list(source.glob("*.safetensors")):
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        clock.step("read")
        return checked(model.to(device)), source.resolve(), False
    config = transformers.AutoConfig.from_pretrained(source)
    model = build(config, torch.bfloat16, device)
    draw_weights(model, seed, device)
    clock.step("draw")
    model.save_pretrained(target, max_shard_size=SHARD_BYTES)
    clock.step("write")
    return checked(model), target.resolve(), True


@torch.no_grad()
def fp32_of(model, device):
    wide = build(model.config, torch.float32, device)
    own = dict(wide.named_parameters())
    stored = dict(model.named_parameters())
    assert own.keys() == stored.keys()
    for name, parameter in own.items():
        parameter.data.copy_(stored[name].data)
    return checked(wide)


def set_attention(model, name):
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(name)
    model.config._attn_implementation = name
    assert model.model.config._attn_implementation == name


# --- tokens and rows -------------------------------------------------------------------------------------------------

def dialogues(source, lengths, seed):
    """Token ids of the demo's kind of text, a piece from anywhere in it for each sequence."""
    draws = random.Random(f"{seed} reference")
    examples = [demo_data.training_example(draws) for _ in range(sum(lengths) // 8)]
    text = "".join(f"<|im_start|>user\n{x.question}<|im_end|>\n<|im_start|>assistant\n{x.answer}<|im_end|>\n"
                   for x in examples)
    ids = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    starts = [draws.randrange(len(ids) - length + 1) for length in lengths]
    return [np.array(ids[start:start + length], dtype=np.int32) for start, length in zip(starts, lengths)]


def contexts_for(asked, limit):
    """The asked contexts; for those that the model cannot have, once its longest."""
    kept = [context for context in asked if context <= limit]
    return kept if len(kept) == len(asked) or limit in kept else kept + [limit]


def choose_rows(options, limit):
    """Lengths of all sequences (the long one first) and groups of rows (sequence, position), ascending: "each", the
    same position of every short sequence; "last", the last positions of a context of the long one; "ragged", the last
    positions of a short one, which decodes them in batches."""
    contexts = contexts_for(options.contexts, limit)
    short = [context for context in contexts if context <= SHORT]
    ends = [min(end, limit) for end in RAGGED_ENDS]
    lengths = [max(contexts)] + [max([end] + short) for end in ends] + [max(short)] * (MORE_SHORT if short else 0)
    groups = []
    for context in contexts:
        if context <= SHORT:
            rows = [(i, context - 1) for i in range(1, len(lengths))]
            groups.append({"kind": "each", "context": context, "rows": rows})
        else:
            rows = [(0, position) for position in range(context - options.rows, context)]
            groups.append({"kind": "last", "context": context, "rows": rows})
    for i, end in enumerate(ends):
        steps = min(options.rows, end)
        groups.append({"kind": "ragged", "context": end, "rows": [(i + 1, end - steps + j) for j in range(steps)]})
    return lengths, groups


# --- logits ----------------------------------------------------------------------------------------------------------

@torch.no_grad()
def logits_at(model, ids, positions, chunk, device):
    """[len(positions), V] as float32 on the host; the sequence in chunks (0: whole, without a cache)."""
    ids = torch.tensor(ids[:max(positions) + 1], dtype=torch.int64, device=device)[None]
    chunk = ids.shape[1] if chunk == 0 else chunk
    keep_cache = chunk < ids.shape[1]
    cache, rows = None, []
    for begin in range(0, ids.shape[1], chunk):
        part = ids[:, begin:begin + chunk]
        wanted = [p - begin for p in positions if begin <= p < begin + part.shape[1]]
        answer = model(part, past_key_values=cache, use_cache=keep_cache,
                       logits_to_keep=torch.tensor(wanted or [part.shape[1] - 1], device=device))
        cache = answer.past_key_values if keep_cache else None
        if wanted:
            rows.append(answer.logits[0].float().cpu())
    assert list(positions) == sorted(set(positions))
    return torch.cat(rows).numpy()


def all_logits(model, sequences, rows, chunk, device):
    """[len(rows), V]; rows are sorted."""
    out = []
    for i in sorted({sequence for sequence, _ in rows}):
        out.append(logits_at(model, sequences[i], [p for s, p in rows if s == i], chunk, device))
    return np.concatenate(out)


def divergence(reference, other, device):
    """KL(reference || other) of each row in nats, in float64."""
    out = []
    for a, b in zip(reference, other):
        p = torch.from_numpy(a).to(device).double().log_softmax(-1)
        q = torch.from_numpy(b).to(device).double().log_softmax(-1)
        out.append(float((p.exp() * (p - q)).sum()))
    return out


def entropy(logits, device):
    p = torch.from_numpy(logits).to(device).double().log_softmax(-1)
    return float(-(p.exp() * p).sum(-1).mean())


# --- one model -------------------------------------------------------------------------------------------------------

def write(folder, index, sequences, rows, logits):
    """reference.bin: int32 tokens of all sequences one after the other; uint32 (sequence, position) of each row,
    ascending; float32 [rows, V] of fp32, bf16 with sdpa, bf16 with eager attention. All little-endian.
    reference.json: see `measure`; `kl_sdpa` and `kl_eager` are what the reader must find in reference.bin."""
    with open(folder / "reference.bin", "wb") as file:
        for ids in sequences:
            np.asarray(ids, dtype="<i4").tofile(file)
        np.asarray(rows, dtype="<u4").tofile(file)
        for kind in KINDS:
            logits[kind].astype("<f4", copy=False).tofile(file)
    (folder / "reference.json").write_text(json.dumps(index) + "\n")  # last: complete once it is there


def measure(source, options, device):
    name = source.resolve().name
    folder = options.output / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    clock = Clock(device)
    print(name, file=sys.stderr, flush=True)
    bf16, stored_at, is_random = open_bf16(source, folder / "model", options.seed, device, clock)
    vocab, limit = bf16.config.vocab_size, bf16.config.max_position_embeddings
    lengths, groups = choose_rows(options, limit)
    rows = sorted({tuple(row) for group in groups for row in group["rows"]})
    fp32 = fp32_of(bf16, device)
    clock.step("widen")
    if is_random:
        draws = np.random.default_rng(options.seed)
        sequences = [draws.integers(0, vocab, length, dtype=np.int32) for length in lengths]
    else:
        sequences = dialogues(source, lengths, options.seed)
    set_attention(fp32, "eager")
    logits = {"fp32": all_logits(fp32, sequences, rows, options.chunk, device)}
    # How much of the answer hangs on the older half of the context.
    end, sequence = max((len(ids), i) for i, ids in enumerate(sequences) if i > 0)
    recent = logits_at(fp32, sequences[sequence][end // 2:], [end - 1 - end // 2], options.chunk, device)
    full = logits["fp32"][rows.index((sequence, end - 1))][None]
    forgets = divergence(full, recent, device)[0]
    clock.step("fp32")
    del fp32
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    for kind, chunk in (("sdpa", 0), ("eager", options.chunk)):
        set_attention(bf16, kind)
        logits[kind] = all_logits(bf16, sequences, rows, chunk, device)
        clock.step(f"bf16, {kind}")
    kl = {kind: divergence(logits["fp32"], logits[kind], device) for kind in KINDS[1:]}
    if not all(np.isfinite(logits[kind]).all() for kind in KINDS):
        raise ValueError(f"{name}: logits that are not finite")
    index = {"name": name, "model": str(stored_at), "weights": "random" if is_random else "stored",
             "seed": options.seed, "vocab": vocab, "sequences": [len(ids) for ids in sequences],
             "row_count": len(rows), "groups": groups,
             "kl_sdpa": float(np.mean(kl["sdpa"])), "kl_eager": float(np.mean(kl["eager"])),
             "entropy": entropy(logits["fp32"], device), "spread": float(logits["fp32"].std()), "forgets": forgets,
             "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
             "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}
    write(folder, index, sequences, rows, logits)
    clock.step("compare and write")
    index["seconds"] = clock.steps
    return index


def print_table(indices):
    print(f"\n## Reference: {indices[0]['versions']}, {indices[0]['device']}\n")
    print("`forgets`: KL when the older half of the context is withheld.\n")
    print("| model | weights | rows | log V | entropy | spread of logits | forgets | KL bf16 sdpa | KL bf16 eager | "
          "seconds |\n|---|---|---|---|---|---|---|---|---|---|")
    for x in indices:
        seconds = ", ".join(f"{name} {value:.1f}" for name, value in x["seconds"].items())
        print(f"| {x['name']} | {x['weights']} | {x['row_count']} | {np.log(x['vocab']):.2f} | {x['entropy']:.2f} | "
              f"{x['spread']:.2f} | {x['forgets']:.2g} | {x['kl_sdpa']:.3g} | {x['kl_eager']:.3g} | {seconds} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    parser.add_argument("--contexts", type=lambda text: [int(x) for x in text.split(",")],
                        default=[1, 63, 64, 65, 1000, 4096, 16384])
    parser.add_argument("--rows", type=int, default=8, help="positions of a long context and decode steps of a batch")
    parser.add_argument("--chunk", type=int, default=512, help="tokens at once with eager attention")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    indices, failed = [], False
    for source in options.models:
        try:
            indices.append(measure(source, options, options.device))
        except Exception:  # the other models still count
            traceback.print_exc()
            print(f"\n- FAILED: no reference for {source}", flush=True)
            failed = True
        gc.collect()
        if options.device.type == "cuda":
            torch.cuda.empty_cache()
    if indices:
        print_table(indices)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
