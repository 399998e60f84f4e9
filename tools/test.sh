#!/bin/sh
# Builds the release, ASan+UBSan, TSan and fuzzing trees and runs all their tests in one ctest; of the
# debug preset only the command is built.
#   test.sh JOBS         the tests of `make test`
#   test.sh JOBS long    those of `make test-long` as well
set -eu
jobs=${1:-2}
cd "$(dirname "$0")/.."

# Trees of presets, and how many inputs each fuzz target gets.
long=${2:-}
fuzz_runs=10000
[ -z "$long" ] || fuzz_runs=1000000
for preset in release asan tsan; do
  cmake --preset $preset >/dev/null
done
cmake --preset fuzz -DMGL_FUZZ_RUNS=$fuzz_runs >/dev/null
for tree in build build-asan build-tsan build-fuzz; do
  echo "Building $tree"
  cmake --build $tree -j "$jobs" >build-log.txt 2>&1 || { cat build-log.txt; rm -f build-log.txt; exit 1; }
done
# The debug preset has to compile, with its own warnings; its tests would be those of asan again.
echo "Building build-debug: the command alone"
cmake --preset debug >/dev/null
cmake --build build-debug -j "$jobs" --target megalith >build-log.txt 2>&1 ||
  { cat build-log.txt; rm -f build-log.txt; exit 1; }
rm -f build-log.txt

# One ctest over all trees: a folder whose only content is the list of the others.
mkdir -p build-all
echo 'subdirs(../build ../build-asan ../build-tsan ../build-fuzz)' >build-all/CTestTestfile.cmake
cd build-all
if [ -z "$long" ]; then
  ctest --output-on-failure -j "$jobs" -LE long
else
  ctest --output-on-failure -j "$jobs"
fi
