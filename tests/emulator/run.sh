#!/bin/sh
# Runs a command with emulated GPUs in the place of real ones: run.sh [-b BUILD] COMMAND [ARGUMENT...]
#   tests/emulator/run.sh build/tests/gpu_tests contract tiny
#   tests/emulator/run.sh build/megalith run demo -p Hello --device cuda
# BUILD: the build tree that has the emulator (default: build). driver.h says what the environment
# sets of the GPUs; code is cached in EMULATED_CACHE (default: BUILD/emulated_cache), since what the
# emulator runs is PTX under the names of machine code. Exit code 77: there is no NVRTC here.
set -eu
build=$(dirname "$0")/../../build
if [ "${1:-}" = -b ]; then
  build=$2
  shift 2
fi
gpu=$(cd "$build/tests/emulated_gpu" && pwd)
nvrtc=
for file in "${EMULATED_NVRTC:-}" /usr/local/cuda/lib64/libnvrtc.so.1[23] \
  /usr/lib/x86_64-linux-gnu/libnvrtc.so.1[23]; do
  [ -z "$file" ] || [ ! -e "$file" ] || nvrtc=$file
done
if [ -z "$nvrtc" ]; then
  echo "skipped: no libnvrtc (CUDA 12 or 13), which makes the PTX that is emulated"
  exit 77
fi
export EMULATED_NVRTC="$nvrtc"
export LD_LIBRARY_PATH="$gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export MEGALITH_CACHE="${EMULATED_CACHE:-$(cd "$build" && pwd)/emulated_cache}"
LD_PRELOAD="$gpu/libslow_clock.so" exec "$@"
