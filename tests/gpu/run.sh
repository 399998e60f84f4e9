#!/bin/sh
# Everything that needs the GPU: builds the test program (unless one is given) and runs it under a
# deadline. Prints Markdown; bench/results/gpu_skeleton_h100.md is its last output.
#   run.sh [PROGRAM [PART...]]      parts: tokens launches faults hops quick smoke; none:
#   all but the last two
set -eu
cd "$(dirname "$0")/../.."
program=${1:-}
[ $# -eq 0 ] || shift
if [ -z "$program" ]; then
  cmake --preset release >/dev/null
  cmake --build build --target gpu_skeleton >&2
  program=build/tests/gpu_skeleton
fi
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null || echo unknown)
code=0
timeout -k 5 240 "$program" tests/data/programs "$@" || code=$?
echo
echo "Driver $driver."
[ $code -ne 77 ] || code=0 # no GPU: skipped, and said so
exit $code
