"""Makes tests/data/sampling: what transformers generates with penalties, biases and cuts, and how likely it says that is.

For each of MODELS, which are models of tests/data/reference in float32, one file NAME.json with
  generations: options of generate(), the greedy tokens, the margin of each (how far the processed logits of the best
      two are apart), the log softmax of the raw logits at each (output_logits) and its 20 likeliest tokens;
  distributions: options of the logits warpers, and the probabilities that they leave of the logits behind the prompt
      (the last row of tests/data/reference/NAME.f32).
tests/unit/engine/test_sampling_reference.c compares. transformers has no presence and frequency penalties.

    python3 -m venv /tmp/venv-ref && /tmp/venv-ref/bin/pip install torch transformers safetensors numpy
    /tmp/venv-ref/bin/python tools/make_sampling_cases.py           # seconds
    /tmp/venv-ref/bin/python tools/make_sampling_cases.py --check   # writes nothing, compares with what is there
"""
import argparse
import json
import pathlib
import tempfile

import make_reference  # sets HF_HUB_OFFLINE
import numpy as np
import torch
from transformers.generation import logits_process

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "sampling"
MODELS = ["llama_llama3_f32", "mistral_f32"]
NEW_TOKENS, TOP = 24, 20

# Biases are of the greedy continuation's first and third different token, stop tokens its first two.
GENERATIONS = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.9},
    {"bias": [-3.5, 2.25]},
    {"stops": True},
    {"stops": True, "min_tokens": 9},
    {"repetition_penalty": 1.15, "bias": [1.5, -4.0], "stops": True, "min_tokens": 6},
]
DISTRIBUTIONS = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 12},
    {"temperature": 1.1, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.15},
    {"temperature": 0.9, "top_k": 25, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 30, "min_p": 0.08},
    {"temperature": 1.0, "repetition_penalty": 1.4, "top_k": 20},
]


def short(values, digits=7):
    return [float(f"{float(value):.{digits}g}") for value in values]


def generate(loaded, ids, first, options):
    """One of GENERATIONS; first: the different greedy tokens."""
    case = {"repetition_penalty": options.get("repetition_penalty", 1.0),
            "biases": [[token, value] for token, value in zip((first[0], first[2]), options.get("bias", []))],
            "stops": sorted(first[:2]) if "stops" in options else [],
            "min_tokens": options.get("min_tokens", 0)}
    arguments = dict(max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True, output_scores=True,
                     return_dict_in_generate=True, pad_token_id=0, repetition_penalty=case["repetition_penalty"],
                     eos_token_id=case["stops"] or None, min_new_tokens=case["min_tokens"] or None,
                     sequence_bias={(token,): value for token, value in case["biases"]} or None)
    prompt = torch.tensor([ids])
    out = loaded.generate(prompt, attention_mask=torch.ones_like(prompt), **arguments)
    tokens = [int(token) for token in out.sequences[0, len(ids):]]
    case.update(tokens=tokens, margins=[], logprobs=[], top_tokens=[], top_logprobs=[])
    for token, raw, processed in zip(tokens, out.logits, out.scores):
        best = processed[0].double().topk(2).values
        raw = torch.log_softmax(raw[0].double(), dim=-1)
        top = raw.topk(TOP)
        assert int(processed[0].argmax()) == token
        case["margins"] += short([best[0] - best[1]])
        case["logprobs"] += short([raw[token]])
        case["top_tokens"].append([int(i) for i in top.indices])
        case["top_logprobs"].append(short(top.values))
    return case


def distribution(ids, row, options):
    scores = torch.tensor(np.array(row))[None]
    steps = []
    if "repetition_penalty" in options:
        steps.append(logits_process.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    steps.append(logits_process.TemperatureLogitsWarper(options["temperature"]))
    for key, warper in (("top_k", logits_process.TopKLogitsWarper), ("top_p", logits_process.TopPLogitsWarper),
                        ("min_p", logits_process.MinPLogitsWarper)):
        if key in options:
            steps.append(warper(options[key]))
    for step in steps:
        scores = step(torch.tensor([ids]), scores)
    probabilities = torch.softmax(scores[0].double(), dim=-1)
    kept = [i for i in range(len(row)) if probabilities[i] > 0]
    return dict(options, tokens=kept, probabilities=short(probabilities[kept]))


def make(name):
    m = next(model for model in make_reference.MODELS if model["name"] == name)
    reference = json.loads((make_reference.OUTPUT / (name + ".json")).read_text())
    ids, first = reference["prompt"], reference["continuation"]
    rows = np.frombuffer((make_reference.OUTPUT / (name + ".f32")).read_bytes(), "<f4")
    row = rows.reshape(reference["positions"], reference["vocab"])[-1]
    with tempfile.TemporaryDirectory() as folder:
        make_reference.write_folder(m, folder)
        loaded = make_reference.load(m, folder, torch.float32, "eager")
        different = list(dict.fromkeys(first))
        generations = [generate(loaded, ids, different, options) for options in GENERATIONS]
    assert generations[0]["tokens"] == first[:NEW_TOKENS]
    assert len({tuple(case["tokens"]) for case in generations}) >= 5  # options do something
    return {"model": name, "versions": reference["versions"], "generations": generations,
            "distributions": [distribution(ids, row, options) for options in DISTRIBUTIONS]}


def close(a, b):
    """The same but for the last digits of floats."""
    if isinstance(a, float):
        return abs(a - b) <= 1e-3 * max(1, abs(a))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a) if isinstance(a, dict) else a == b


def main():
    parser = argparse.ArgumentParser(description="Makes tests/data/sampling; see the top of this file.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_reference.transformers.logging.set_verbosity_error()
    make_reference.transformers.utils.logging.disable_progress_bar()
    ok = True
    for name in MODELS:
        made, path = make(name), OUTPUT / (name + ".json")
        if options.check:
            old = json.loads(path.read_text())
            same = all(close(made[key], old[key]) for key in ("generations", "distributions"))
            print(f"{name}: {'same' if same else 'differs'}")
            ok = ok and same
            continue
        OUTPUT.mkdir(parents=True, exist_ok=True)
        lines = [f' "{key}": {json.dumps(made[key])}' for key in ("model", "versions")]
        for key in ("generations", "distributions"):
            lines.append(f' "{key}": [\n  ' + ",\n  ".join(json.dumps(case) for case in made[key]) + "\n ]")
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, [len(case["tokens"]) for case in made["generations"]],
              [len(case["tokens"]) for case in made["distributions"]])
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
