"""Compares two builds on one GPU, by parts speed and modes of gpu_tests and by megalith bench
throughput, or on one CPU: in turn, so that what it does besides (clocks, heat) meets both alike.

  before_after.py BEFORE AFTER [--csv FILE] [--rounds N] [--parts PART,PART...] MODEL...
  before_after.py --csv FILE --table

BEFORE and AFTER are build folders (or folders with both programs); MODEL is a folder with a
config.json, whose weights are dummies. Every figure goes to the CSV at once, behind those that are
there; the table has the medians of each cell over all of the CSV's rounds. Exits with 1 where a
cell is more than a hundredth slower. PART is speed, modes, throughput (all of a GPU) or cpu.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys

SLOWER = 1.01
LIMIT_S = {"speed": 60, "modes": 120, "throughput": 240, "cpu": 240}
GPU_PARTS = "speed,modes,throughput"
SPEED = ["prompt=64", "generate=256", "runs=2"]
CPU_BATCHES = ["1", "8"]
CPU = ["--prompt", "64", "--generate", "32", "--runs", "1", "--json"]
MODES = ["batches=1,4,16", "contexts=64,1024", "generate=24", "rounds=2", "prefill=64"]


def program(folder, name):
    """The program of that name in a build folder, or right in the folder."""
    for path in (os.path.join(folder, "tests", name), os.path.join(folder, name)):
        if os.access(path, os.X_OK):
            return path
    sys.exit("%s: expected a program %s there" % (folder, name))


def run(part, command):
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S[part], check=True)
    return done.stdout.decode()


def rows(text):
    """The cells of the rows of Markdown tables that begin with a name."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) > 3 and re.fullmatch(r"[0-9]+", cells[1]):
            yield cells


def speed(folder, model):
    """Milliseconds an iteration, and the hash of its tokens."""
    for cells in rows(run("speed", [program(folder, "gpu_tests"), "speed", model] + SPEED)):
        yield "batch %s, %s tokens, ms" % (cells[1], cells[2]), float(cells[4]), cells[-1]


def modes(folder, model):
    """Milliseconds an iteration of modes mega and full."""
    for cells in rows(run("modes", [program(folder, "gpu_tests"), "modes", model] + MODES)):
        for mode, at in (("mega", 3), ("full", 4)):
            cell = "%s, batch %s, context %s, ms" % (mode, cells[1], cells[2])
            yield cell, float(cells[at]), ""


def throughput(folder, model):
    """Seconds for 256 requests."""
    command = [program(folder, "megalith"), "bench", "throughput", model, "--load-format", "dummy",
               "--device", "cuda", "--json"]
    figures = json.loads(run("throughput", command))
    yield "256 requests, s", float(figures["seconds"]), str(figures["iterations"])


def cpu(folder, model):
    """Milliseconds a token of each sequence, and of their prompts, in modes mega and eager."""
    for batch in CPU_BATCHES:
        command = [program(folder, "megalith"), "bench", model, "--load-format", "dummy",
                   "--device", "cpu", "--mode", "mega,eager", "--batch", batch] + CPU
        for line in run("cpu", command).splitlines():
            figures = json.loads(line)
            cell = "%s, batch %s, " % (figures["mode"], batch)
            yield cell + "a token, ms", figures["ms_per_token"], ""
            yield cell + "prompts, ms", figures["prompt_ms"], ""


def measure(options):
    functions = {"speed": speed, "modes": modes, "throughput": throughput, "cpu": cpu}
    with open(options.csv, "a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        for _ in range(options.rounds):
            for part in options.parts.split(","):
                for model in options.models:
                    for side in ("before", "after"):
                        name = os.path.basename(model.rstrip("/"))
                        for cell, value, same in functions[part](getattr(options, side), model):
                            row = [side, part, name, cell, value, same]
                            writer.writerow(row)
                            out.flush()
                            print(*row, sep=" | ", flush=True)


def table(path):
    """Prints the table; returns how many cells are slower."""
    cells = {}
    with open(path, newline="") as file:
        for side, part, model, cell, value, same in csv.reader(file):
            of = cells.setdefault((part, model, cell), {"before": [], "after": [], "same": {}})
            of[side].append(float(value))
            of["same"].setdefault(side, set()).add(same)
    slower = 0
    print("| part | model | cell | before | after | after / before | runs | results |")
    print("|---|---|---|---|---|---|---|---|")
    for (part, model, cell), of in cells.items():
        if not of["before"] or not of["after"]:
            continue
        before, after = statistics.median(of["before"]), statistics.median(of["after"])
        slower += after > SLOWER * before
        same = of["same"]["before"] == of["same"]["after"] and of["same"]["before"] != {""}
        mark = "**" if after > SLOWER * before else ""
        print("| %s | %s | %s | %.3f | %.3f | %s%.3f%s | %d, %d | %s |" %
              (part, model, cell, before, after, mark, after / before, mark, len(of["before"]),
               len(of["after"]), "the same" if same else ""))
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--csv", default="gpu_before_after.csv")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default=GPU_PARTS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        if not options.models or not set(options.parts.split(",")) <= set(LIMIT_S):
            parser.error("expected BEFORE, AFTER and a MODEL, and parts of " + ", ".join(LIMIT_S))
        measure(options)
    sys.exit(1 if table(options.csv) > 0 else 0)


main()
