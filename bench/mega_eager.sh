#!/bin/sh
# Mode mega against mode eager on the CPU (docs/log/044): each run is one process whose rounds alternate between
# the modes; a row has the medians of all steps and the distribution of the ratio of neighbouring rounds, the last row that of all runs.
#   bench/mega_eager.sh [RUNS] [MODEL]      [5 bench/configs/qwen3-0.6b, with dummy weights]
#   MEGALITH=other/build/megalith ROUNDS=60 GENERATE=7 bench/mega_eager.sh
set -eu
cd "$(dirname "$0")/.."
runs=${1:-5}
model=${2:-bench/configs/qwen3-0.6b}
if [ -z "${MEGALITH:-}" ]; then
  [ -f build/CMakeCache.txt ] || cmake --preset release >&2
  cmake --build build -j "$(nproc)" --target megalith >&2
  MEGALITH=build/megalith
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The value of field $2 in the line of mode $1 of the latest run.
field() {
  sed -nE "s/.*\"mode\": \"$1\".*\"$2\": \[?(null|[-0-9.e+, ]*[0-9]).*/\1/p" "$folder/run"
}

# Ratios, one a line, to: median (first to last quartile), rounds where mega was faster.
distribution() {
  sort -n "$1" | awk '{ r[NR] = $1; won += $1 > 1 }
    function at(q) { i = 1 + q * (NR - 1); f = i - int(i); return r[int(i)] * (1 - f) + r[int(i) + (f > 0)] * f }
    END { printf "%.4f | %.4f to %.4f | %d of %d |\n", at(0.5), at(0.25), at(0.75), won, NR }'
}

echo "| run | eager, ms | mega, ms | share of the ceiling | ratio of medians | median of rounds, eager / mega | quartiles | mega faster |"
echo "|---|---|---|---|---|---|---|---|"
for run in $(seq "$runs"); do
  "$MEGALITH" bench "$model" --device cpu --load-format dummy --prompt 4 --generate "${GENERATE:-7}" --runs "${ROUNDS:-60}" \
    --mode eager,mega --json > "$folder/run"
  field eager round_ms | tr -d ' ' | tr , '\n' > "$folder/eager"
  field mega round_ms | tr -d ' ' | tr , '\n' > "$folder/mega"
  paste "$folder/eager" "$folder/mega" | awk '{ print $1 / $2 }' > "$folder/ratios"
  cat "$folder/ratios" >> "$folder/all"
  eager=$(field eager ms_per_token)
  mega=$(field mega ms_per_token)
  echo "| $run | $eager | $mega | $(field mega share) | $(echo "$eager $mega" | awk '{ printf "%.4f", $1 / $2 }') |" \
    "$(distribution "$folder/ratios")"
done
echo "| all | | | | | $(distribution "$folder/all")"
