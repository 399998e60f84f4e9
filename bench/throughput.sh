#!/bin/sh
# How much more 16 requests at once give than one at a time: Qwen3-0.6B dummy weights on the CPU, two threads.
#   bench/throughput.sh [PROGRAM]
set -eu
cd "$(dirname "$0")/.."
program=${1:-build/megalith}
bench() { # requests, at once
  "$program" bench throughput bench/configs/qwen3-0.6b --load-format dummy --device cpu --threads 2 \
    --input 16 --output 64 --kv-tokens 4096 --requests "$1" --sequences "$2" --json |
    sed -E 's/.*"output_tokens_per_s": ([0-9.]+), "total_tokens_per_s": ([0-9.]+),.*"inter_token_ms": \{"median": ([0-9.]+), "p99": ([0-9.]+)\}.*/\1 | \2 | \3 | \4 |/' |
    sed "s/^/| $1 | $2 | /"
}
echo "| requests | at once | output tokens/s | total tokens/s | inter-token ms, median | p99 |"
echo "|---|---|---|---|---|---|"
bench 1 1
bench 16 16
bench 1 1
bench 16 16
