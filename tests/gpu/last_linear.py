#!/usr/bin/env python3
"""Times lm_head alone as cuBLAS computes it: y = x W^T in bf16, for the models in bench/configs.

usage: last_linear.py [--rows N]... CONFIG_FOLDER...

Prints a Markdown table. The product is captured twenty times into a CUDA graph, so that what is
timed is the kernels, back to back, and not launches; the weights are larger than the L2. Compare
with the hop and the stage of `logits` in `megalith trace --summary` of the traces that
`gpu_tests ablations ... trace=DIR` leaves. Needs torch on a GPU.
"""
import argparse
import json
import os

import torch

REPEATS = 20
ROUNDS = 30


def time_us(x, weight):
    """Median microseconds of one product."""
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.matmul(x, weight.t(), out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            torch.matmul(x, weight.t(), out=out)
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / REPEATS)
    return sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--rows", type=int, action="append")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n")
    print("| model | rows | K | V | MiB | us | GB/s |\n|---|---|---|---|---|---|---|")
    for folder in args.folders:
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
        k, v = config["hidden_size"], config["vocab_size"]
        weight = torch.randn(v, k, dtype=torch.bfloat16, device="cuda") * 0.02
        for rows in args.rows or [1]:
            x = torch.randn(rows, k, dtype=torch.bfloat16, device="cuda")
            us = time_us(x, weight)
            size = weight.numel() * 2
            print(f"| {os.path.basename(folder)} | {rows} | {k} | {v} | {size / 2**20:.0f} "
                  f"| {us:.1f} | {size / us / 1e3:.0f} |", flush=True)
        del weight


if __name__ == "__main__":
    main()
