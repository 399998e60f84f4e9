#!/usr/bin/env python3
"""Trains Megalith's demo model: a small Qwen3 that answers generated questions, with its own tokenizer.

    python3 tools/train_demo.py --out demo                the committed model (about eight minutes on one H100)
    python3 tools/train_demo.py --out demo --eval-only    asks the held-out questions again
    python3 tools/train_demo.py --out /tmp/d --steps 20 --rows 4 --questions 1     a smoke test, also without a GPU

Requires Python 3.10 or later with torch 2.5, transformers 4.56, tokenizers 0.20, safetensors and numpy, or later ones.

Every question comes from tools/demo_data.py, which also decides what is held out. The tokenizer is trained first, then
the model, on rows of 512 tokens that are conversations of some ten turns in ChatML: packing needs no padding, and the
model learns to answer at any place of a longer chat. Only answers count in the loss. No row is ever repeated.

The network is transformers' own Qwen3ForCausalLM, so that the saved weights mean what a Qwen3 reader expects. The seed
fixes data, order and initial weights; GPU arithmetic is not bitwise repeatable, so a second run gives a slightly
different model. Accuracy is measured on the saved bf16 files, read back and asked through transformers' generate.
"""
import argparse
import datetime
import json
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import demo_card
import demo_data

ROW_TOKENS = 512
VOCAB_SIZE = 1024
SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64}
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # after the byte-pair tokens, as in Qwen's vocabulary
END_OF_TEXT, IM_START, IM_END = range(VOCAB_SIZE - 3, VOCAB_SIZE)
IGNORED = -100  # cross entropy's label for "not an answer token"
PEAK_LEARNING_RATE, WARMUP_STEPS, WEIGHT_DECAY = 1.5e-3, 300, 0.05
LONGEST_ANSWER_TOKENS = 200

# The pre-tokeniser of the Qwen2 and Qwen3 family: it splits digits singly, so a sum is a matter of columns.
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                 "'<|im_end|>' + '\\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SYSTEM_MESSAGES = ["You are a helpful assistant.", "You are Megalith's demo model.", "Answer the question.",
                   "You are a small language model. Answer briefly."]


# ---------------------------------------------------------------- tokenizer

def train_tokenizer(seed):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(f"{seed} tokenizer")
    examples = [demo_data.training_example(rng) for _ in range(100_000)]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = (text for e in examples for text in (e.question, e.answer, "system", "user", "assistant"))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    if tokenizer.token_to_id("<|im_end|>") != IM_END:
        sys.exit(f"tokenizer: {tokenizer.get_vocab_size()} tokens found, {VOCAB_SIZE} expected; train on more text")
    return tokenizer


def save_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def save_tokenizer(tokenizer, folder):
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    save_json(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(END_OF_TEXT + i): {"content": token, "lstrip": False, "normalized": False, "rstrip": False,
                                   "single_word": False, "special": True} for i, token in enumerate(SPECIAL_TOKENS)},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "add_bos_token": False, "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "model_max_length": ROW_TOKENS, "chat_template": CHAT_TEMPLATE})


# ---------------------------------------------------------------- data

class Rows(torch.utils.data.Dataset):
    """Item i is the batch of step i: ids and labels, both int16 [rows, ROW_TOKENS]. It depends on seed and i alone."""

    def __init__(self, tokenizer, seed, steps, rows, test_questions):
        self.tokenizer_json, self.tokenizer = tokenizer.to_str(), None
        self.seed, self.steps, self.rows, self.test_questions = seed, steps, rows, test_questions

    def __len__(self):
        return self.steps

    def start_worker(self):
        self.tokenizer = Tokenizer.from_str(self.tokenizer_json)
        self.newline = self.encode(["\n"])[0]
        self.before_question, self.before_answer, self.before_system = (
            [IM_START, *ids] for ids in self.encode(["user\n", "assistant\n", "system\n"]))
        self.system_messages = [[*self.before_system, *ids, IM_END, *self.newline]
                                for ids in self.encode(SYSTEM_MESSAGES)]

    def encode(self, texts):
        return [e.ids for e in self.tokenizer.encode_batch(texts)]

    def turns(self, rng):
        """Endless (ids, number of leading ids that are no answer), in blocks because encode_batch likes them."""
        while True:
            block = [demo_data.training_example(rng) for _ in range(512)]
            leaked = self.test_questions.intersection(e.question for e in block)
            if leaked:
                raise AssertionError(f"held-out questions in training: {sorted(leaked)[:3]}")
            questions, answers = self.encode([e.question for e in block]), self.encode([e.answer for e in block])
            for question, answer in zip(questions, answers):
                head = [*self.before_question, *question, IM_END, *self.newline, *self.before_answer]
                yield [*head, *answer, IM_END, *self.newline], len(head)

    def __getitem__(self, step):
        if self.tokenizer is None:
            self.start_worker()
        rng = random.Random(f"{self.seed} step {step}")
        ids = np.full((self.rows, ROW_TOKENS), END_OF_TEXT, np.int16)
        labels = np.full((self.rows, ROW_TOKENS), IGNORED, np.int16)
        row, used = 0, 0
        for turn, head_count in self.turns(rng):
            if used + len(turn) > ROW_TOKENS:
                row, used = row + 1, 0
                if row == self.rows:
                    return torch.from_numpy(ids), torch.from_numpy(labels)
            if used == 0 and rng.random() < 0.15:
                system = rng.choice(self.system_messages)
                ids[row, :len(system)], used = system, len(system)
            end = used + len(turn)
            ids[row, used:end] = turn
            labels[row, used + head_count:end - 1] = turn[head_count:-1]  # the newline after <|im_end|> is no answer
            used = end


# ---------------------------------------------------------------- model

def new_model():
    config = Qwen3Config(
        **SHAPE, vocab_size=VOCAB_SIZE, rms_norm_eps=1e-6, max_position_embeddings=ROW_TOKENS,
        tie_word_embeddings=True, bos_token_id=END_OF_TEXT, eos_token_id=IM_END, pad_token_id=END_OF_TEXT,
        **({"rope_theta": 10000.0} if "rope_theta" in Qwen3Config().to_dict() else
           {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}))
    return Qwen3ForCausalLM(config)


def next_token_loss(model, ids, labels):
    """The network's own layers in their own order, without transformers' mask and cache logic, which does not compile
    to plain causal attention. A difference from the real forward would show in the final accuracy."""
    x = model.model.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    rotary = model.model.rotary_emb(x, positions)
    for layer in model.model.layers:
        x = layer(x, attention_mask=None, position_embeddings=rotary)
        x = x[0] if isinstance(x, tuple) else x
    logits = model.lm_head(model.model.norm(x))[:, :-1]
    return F.cross_entropy(logits.float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


def optimizer_for(model, device):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), fused=device == "cuda")


def learning_rate(step, progress):
    """Warm-up, then a cosine to nothing. `progress` may come from the clock, so that a slow machine finishes too."""
    return PEAK_LEARNING_RATE * min(1, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + np.cos(np.pi * min(1, progress)))


def train(args, tokenizer, test_questions, device):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = new_model().to(device)
    optimizer = optimizer_for(model, device)
    loss_of = torch.compile(next_token_loss) if device == "cuda" else next_token_loss
    rows = Rows(tokenizer, args.seed, args.steps, args.rows, test_questions)
    batches = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=args.workers, pin_memory=device == "cuda",
                                          prefetch_factor=4 if args.workers else None)
    start, step = time.time(), 0
    for step, (ids, labels) in enumerate(batches):
        progress = max(step / args.steps, (time.time() - start) / (60 * args.minutes))
        if progress >= 1:
            step -= 1
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, progress)
        ids = ids.to(device, non_blocking=True).long()
        labels = labels.to(device, non_blocking=True).long()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(model, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 0:
            print(f"first step, with compilation: {time.time() - start:.0f} s", flush=True)
            start = time.time()
        elif step % 250 == 0 or step + 1 == args.steps:
            rate = step * ids.numel() / (time.time() - start)
            print(f"step {step:6d}  loss {loss.item():.5f}  {rate / 1e6:.2f} M tokens/s  {time.time() - start:.0f} s",
                  flush=True)
    seconds = time.time() - start
    return model, {"steps": step + 1, "rows": args.rows, "tokens": (step + 1) * args.rows * ROW_TOKENS,
                   "seconds": seconds, "parameters": sum(p.numel() for p in model.parameters())}


def save_model(model, folder):
    model.to(torch.bfloat16).save_pretrained(folder)
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)  # some versions write it for the owner alone
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    # Readers older than transformers 5 want these two by their old names.
    config["rope_theta"], config["torch_dtype"] = 10000.0, "bfloat16"
    config["dtype"] = "bfloat16"
    save_json(folder, "config.json", config)
    save_json(folder, "generation_config.json", {
        "bos_token_id": END_OF_TEXT, "do_sample": False, "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT, "transformers_version": config["transformers_version"]})


# ---------------------------------------------------------------- accuracy

@torch.inference_mode()
def answers_of(model, tokenizer, questions, device):
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False,
                                             add_generation_prompt=True) for q in questions]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    inputs = {name: inputs[name].to(device) for name in ("input_ids", "attention_mask")}
    output = model.generate(**inputs, max_new_tokens=LONGEST_ANSWER_TOKENS)
    return tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)


def evaluate(folder, test_set, device, batch=1000):
    """Per skill: questions, different problems, exact answers; and the wrong answers to look at."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    results = {}
    for name, examples in test_set.items():
        examples = sorted(examples, key=lambda e: len(e.answer))
        wrong = []
        for first in range(0, len(examples), batch):
            part = examples[first:first + batch]
            for e, answer in zip(part, answers_of(model, tokenizer, [e.question for e in part], device)):
                if answer != e.answer:
                    wrong.append((e.question, e.answer, answer))
        results[name] = {"questions": len(examples), "problems": len({e.key for e in examples}),
                         "right": len(examples) - len(wrong), "wrong": wrong}
        print(f"{name:14s} {results[name]['right']:5d} of {len(examples):5d}  "
              f"{100 * results[name]['right'] / len(examples):6.2f}%", flush=True)
        for question, expected, answer in wrong[:3]:
            print(f"    {question!r}: expected {expected!r}, found {answer[:80]!r}")
    first_questions = [demo_card.FIRST_QUESTION, "Who are you?", "Count from 7 to 25.", "Spell the word planet."]
    first_answers = answers_of(model, tokenizer, first_questions, device)
    for question, answer in zip(first_questions, first_answers):
        print(f"{question} -> {answer[:80]}")
    return results, first_answers[0]


def main():
    parser = argparse.ArgumentParser(description="trains and measures Megalith's demo model")
    parser.add_argument("--out", required=True, help="folder to write (and, with --eval-only, to read)")
    parser.add_argument("--seed", type=int, default=137)
    parser.add_argument("--steps", type=int, default=16000)
    parser.add_argument("--minutes", type=float, default=60, help="end training by then at the latest")
    parser.add_argument("--rows", type=int, default=128, help=f"rows of {ROW_TOKENS} tokens in a step")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2),
                        help="processes that write questions")
    parser.add_argument("--eval-only", action="store_true", help="no training: ask the held-out questions")
    parser.add_argument("--questions", type=int, default=10**9, help="at most so many held-out questions per skill")
    parser.add_argument("--hardware", default="", help="named in the model card; default: the device's own name")
    parser.add_argument("--date", default=str(datetime.date.today()), help="named in the model card")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are parallel already
    device = "cuda" if torch.cuda.is_available() else "cpu"

    test_set = {name: demo_data.held_out_examples(name, random.Random(f"{args.seed} test {name}"))
                for name in demo_data.NAMES if demo_data.SKILLS[name][3]}
    asked = {name: examples[:args.questions] for name, examples in test_set.items()}
    if args.eval_only:
        evaluate(args.out, asked, device)
        return
    os.makedirs(args.out, exist_ok=True)
    tokenizer = train_tokenizer(args.seed)
    save_tokenizer(tokenizer, args.out)
    test_questions = frozenset(e.question for examples in test_set.values() for e in examples)
    model, facts = train(args, tokenizer, test_questions, device)
    save_model(model, args.out)
    results, first_answer = evaluate(args.out, asked, device)
    facts |= {**SHAPE, "first_answer": first_answer, "seed": args.seed, "date": args.date,
              "row_tokens": ROW_TOKENS, "vocab_size": VOCAB_SIZE,
              "hardware": args.hardware or (torch.cuda.get_device_name() if device == "cuda" else "a CPU")}
    demo_card.write(os.path.join(args.out, "README.md"), facts, results)


if __name__ == "__main__":
    main()
