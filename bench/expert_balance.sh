#!/bin/sh
# How tasks share the experts of a mixture on the CPU: a table of ms a step for each balance, batch and routing, in
# dummy weights, mode mega. Each figure is the median over rounds; in a round all balances of a cell run one after the
# other, and the next round begins with the next of them, so that drifts of the machine hit all alike. The last columns
# are the experts that a layer's step read, and the fastest balance.
#   bench/expert_balance.sh [ROUNDS] [MODEL]      [3 bench/configs/qwen3-moe-2b-a0.4b]
#   BATCHES="1 16" ROUTINGS="one" THREADS=2 GENERATE=8 MEGALITH=other/build/megalith bench/expert_balance.sh
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-3}
model=${2:-bench/configs/qwen3-moe-2b-a0.4b}
balances="columns static dynamic hybrid"
if [ -z "${MEGALITH:-}" ]; then
  [ -f build/CMakeCache.txt ] || cmake --preset release >&2
  cmake --build build -j "$(nproc)" --target megalith >&2
  MEGALITH=build/megalith
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

median() {
  sort -n "$1" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# One run: batch, routing, balance. Its ms a step is added to the file of the balance.
measure() {
  "$MEGALITH" bench "$model" --device cpu --load-format dummy --mode mega --runs 1 --prompt 4 \
    --generate "${GENERATE:-16}" --batch "$1" --routing "$2" --expert-balance "$3" \
    ${THREADS:+--threads "$THREADS"} --json > "$folder/run"
  sed -nE 's/.*"ms_per_token": ([-0-9.e+]+).*/\1/p' "$folder/run" >> "$folder/$3"
  sed -nE 's/.*"experts_read": ([-0-9.e+]+).*/\1/p' "$folder/run" > "$folder/experts"
}

echo "| batch | routing | columns, ms | static, ms | dynamic, ms | hybrid, ms | experts read | fastest |"
echo "|---|---|---|---|---|---|---|---|"
for batch in ${BATCHES:-1 2 4 8 16}; do
  for routing in ${ROUTINGS:-uniform skewed one}; do
    rm -f "$folder"/*
    order=$balances
    for round in $(seq "$rounds"); do
      for balance in $order; do
        measure "$batch" "$routing" "$balance"
      done
      order="${order#* } ${order%% *}"
    done
    cells=""
    for balance in $balances; do
      ms=$(median "$folder/$balance")
      cells="$cells $(printf %.2f "$ms") |"
      echo "$ms $balance" >> "$folder/medians"
    done
    fastest=$(sort -n "$folder/medians" | head -1 | cut -d ' ' -f 2)
    echo "| $batch | $routing |$cells $(cat "$folder/experts") | $fastest |"
  done
done
