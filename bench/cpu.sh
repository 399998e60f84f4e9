#!/bin/sh
# The CPU's table (docs/log/018): Qwen3-0.6B at batch 1 and 8, dummy weights and a safetensors file on disk. Without a
# share (null) something else used the memory meanwhile.
#   bench/cpu.sh [FOLDER]     FOLDER: where the 1.2 GB model file is written, once [/tmp/megalith-bench]
set -eu
cd "$(dirname "$0")/.."
[ -f build/CMakeCache.txt ] || cmake --preset release >&2
cmake --build build -j "$(nproc)" --target megalith bench_write_model >&2
folder=${1:-/tmp/megalith-bench}
if [ ! -f "$folder/model.safetensors" ]; then
  mkdir -p "$folder"
  cp bench/configs/qwen3-0.6b/config.json "$folder"
  build/bench/bench_write_model "$folder"
fi
echo "| weights | batch | mode | ms/step | GB/s | ceiling GB/s | its spread | share |"
echo "|---|---|---|---|---|---|---|---|"
for format in dummy mapped copied; do
  for batch in 1 8; do
    build/megalith bench "$folder" --load-format $format --batch $batch --generate 32 --json |
      sed -E 's/.*"mode": "([a-z-]+)", "ms_per_token": ([0-9.]+),.*"gbps": ([0-9.]+), "ceiling_gbps": ([0-9.]+), "ceiling_spread": ([0-9.e-]+), "share": ([0-9.]+|null),.*/\1 | \2 | \3 | \4 | \5 | \6 |/' |
      sed "s/^/| $format | $batch | /"
  done
done
