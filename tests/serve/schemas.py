#!/usr/bin/env python3
"""schemathesis on the server's own OpenAPI document: schemas.py PROGRAM DEMO [SECONDS]

Thousands of requests, made from the document and against it. No answer may have a status of 5xx or
one that the document does not name; every answer must have the form that it says; what it does not
allow must be refused. (That all that it allows is taken is not asked: a schema cannot say what
depends on two parameters, or on the model.) Needs `pip install schemathesis`; ends with 77 where
that is missing.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

if importlib.util.find_spec("schemathesis") is None:
    print("skipped: the Python package schemathesis is not installed (pip install schemathesis)")
    sys.exit(77)

seconds = sys.argv[3] if len(sys.argv) > 3 else "60"
with tempfile.TemporaryDirectory() as folder:
    log_path = os.path.join(folder, "log")
    with open(log_path, "w") as log:
        server = subprocess.Popen(
            [sys.argv[1], "serve", sys.argv[2], "--port", "0", "--log-requests"],
            stderr=subprocess.PIPE, text=True)
        address = None
        while address is None:
            line = server.stderr.readline()
            if line == "":
                sys.exit("the server did not start")
            found = re.search(r" at (http\S+)$", line.strip())
            address = found[1] if found else None
        drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=log)
    try:
        code = subprocess.call(
            [sys.executable, "-m", "schemathesis.cli", "run", address + "/openapi.json",
             "--max-time", seconds, "--request-timeout", "300", "--seed", os.environ.get("SEED", "1"), "--no-color",
             "--exclude-checks", "positive_data_acceptance"], cwd=folder)
    finally:
        server.terminate()
        ended = server.wait()
        drain.wait()
    with open(log_path) as log:
        requests = sum(1 for _ in log)
print(f"{requests} requests reached the engine's queue; the server ended with {ended}")
sys.exit(code or ended)
