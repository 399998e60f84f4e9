#!/usr/bin/env python3
"""How long the tests take that two trees of the project have by the same name.

Each test runs by itself, in both trees in turn, the order changing from round to round, on a
machine that does nothing else. What was measured is kept in a CSV file, and a call goes on where
the one before ended, so that it can be cut into portions:

    test_times.py measure BEFORE AFTER times.csv --tree build --rounds 3 --seconds 200
    test_times.py table times.csv

With --cases it is the cases of the tests that are compared by name: a test of today may have more.
BEFORE and AFTER are checkouts whose preset of that tree (build, build-asan, build-tsan) is built.
Tests with the label `long`, and those named by --without, are left out. Needs ctest.
"""
import argparse
import csv
import os
import re
import statistics
import subprocess
import time

SHOWN_SECONDS = 2  # tests that take longer have a row of their own


def tests_of(folder):
    listed = subprocess.run(["ctest", "-N", "-LE", "long"], cwd=folder, check=True,
                            capture_output=True, text=True).stdout
    return re.findall(r"Test +#\d+: (\S+)", listed)


def run(folder, test):
    """Seconds of one run, and what came of it."""
    out = subprocess.run(["ctest", "-R", "^" + re.escape(test) + "$"], cwd=folder,
                         capture_output=True, text=True).stdout
    found = re.search(r"\.+ *(?:\*\*\*)?(Passed|Failed|Skipped|Timeout|Not Run) +([0-9.]+) sec", out)
    return (float(found[2]), found[1]) if found else (0.0, "unknown")


def run_cases(folder, test):
    """Seconds of each case of one run, a pause from the case before; of tests that have none, of
    the whole."""
    process = subprocess.Popen(["ctest", "-V", "-R", "^" + re.escape(test) + "$"], cwd=folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
    begin = last = time.monotonic()
    cases, passed = [], False
    for line in process.stdout:
        found = re.search(r"^\d+: \[ *(OK|FAILED|SKIPPED) *\] (\S+)\s*$", line)
        if found:
            now = time.monotonic()
            cases.append((f"{test}/{found[2]}", now - last,
                          "Passed" if found[1] == "OK" else found[1]))
            last = now
        passed = passed or " Passed " in line
    process.wait()
    if cases:
        return cases
    return [(test, time.monotonic() - begin, "Passed" if passed else "unknown")]


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def measure(a):
    folders = {"before": os.path.join(a.before, a.tree), "after": os.path.join(a.after, a.tree)}
    both = [t for t in tests_of(folders["before"]) if t in set(tests_of(folders["after"]))]
    both = [t for t in both if not any(re.search(w, t) for w in a.without)]
    done = {(r["tree"], r["test"], r["side"], r["round"]) for r in read(a.csv)}
    is_new = not os.path.exists(a.csv)
    end = time.monotonic() + a.seconds
    with open(a.csv, "a", newline="") as file:
        out = csv.writer(file)
        if is_new:
            out.writerow(["tree", "test", "side", "round", "seconds", "outcome"])
        for number in range(a.rounds):
            sides = ["before", "after"] if number % 2 == 0 else ["after", "before"]
            for test in both:
                for side in sides:
                    if any(d[0] == a.tree and d[1].split("/")[0] == test and
                           d[2:] == (side, str(number)) for d in done):
                        continue
                    if time.monotonic() > end:
                        print("to be continued")
                        return
                    runs = (run_cases(folders[side], test) if a.cases else
                            [(test, *run(folders[side], test))])
                    for name, seconds, outcome in runs:
                        out.writerow([a.tree, name, side, number, f"{seconds:.2f}", outcome])
                    file.flush()
    print(f"{a.tree}: {len(both)} tests, {a.rounds} rounds: done")


def median(rows, tree, test, side):
    found = [float(r["seconds"]) for r in rows
             if (r["tree"], r["test"], r["side"]) == (tree, test, side) and r["outcome"] == "Passed"]
    return statistics.median(found) if found else None


def table(a):
    rows = read(a.csv)
    print("| tree | test | s, before | s, after |")
    print("| --- | --- | ---: | ---: |")
    for tree in dict.fromkeys(r["tree"] for r in rows):
        sums, others, refused = [0.0, 0.0], [0, 0.0, 0.0], []
        for test in dict.fromkeys(r["test"] for r in rows if r["tree"] == tree):
            before = median(rows, tree, test, "before")
            after = median(rows, tree, test, "after")
            if before is None or after is None:
                sides = {r["side"] for r in rows if (r["tree"], r["test"]) == (tree, test)}
                if len(sides) == 2:  # what one tree alone has is no matter here
                    refused.append(test)
                continue
            sums = [sums[0] + before, sums[1] + after]
            if max(before, after) > SHOWN_SECONDS:
                print(f"| {tree} | {test} | {before:.2f} | {after:.2f} |")
            else:
                others = [others[0] + 1, others[1] + before, others[2] + after]
        print(f"| {tree} | {others[0]} others | {others[1]:.2f} | {others[2]:.2f} |")
        print(f"| {tree} | all | {sums[0]:.1f} | {sums[1]:.1f} |")
        if refused:
            print(f"| {tree} | did not pass in both: {', '.join(refused)} | | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("before")
    one.add_argument("after")
    one.add_argument("csv")
    one.add_argument("--tree", default="build")
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--seconds", type=float, default=1e9)
    one.add_argument("--cases", action="store_true", help="each case of a test by itself")
    one.add_argument("--without", action="append", default=[], help="a regular expression")
    one.set_defaults(call=measure)
    other = commands.add_parser("table")
    other.add_argument("csv")
    other.set_defaults(call=table)
    a = parser.parse_args()
    a.call(a)


if __name__ == "__main__":
    main()
