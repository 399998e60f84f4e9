#!/bin/sh
# What choosing how linears walk costs a start (device/cpu/cpu_tune.h): with an empty cache folder,
# with the entry that the start before wrote, and with one that is wrong (a number that no kernel
# takes), foreign (of another processor, under this one's name) or torn (its first half). The time
# is that of a whole command with a prompt of one token, which copies and packs weights, too, as
# FORMAT says.
#   bench/cpu_starts.sh [MODEL...]     folders of bench/configs [qwen3-0.6b llama-3.2-1b]
# FORMAT [auto], THREADS [2], ROUNDS [5]; MEGALITH_BENCH is where model files are written [/tmp/megalith-bench].
# Fails where a start wrote an entry though it had a good one, or left a bad one.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- qwen3-0.6b llama-3.2-1b
ours=${MEGALITH:-build/megalith} writer=${WRITER:-build/bench/bench_write_model}
threads=${THREADS:-2} rounds=${ROUNDS:-5}
MEGALITH_CACHE=$(mktemp -d)
export MEGALITH_CACHE
results=$(mktemp)
trap 'rm -rf "$MEGALITH_CACHE" "$results"' EXIT

entry() { find "$MEGALITH_CACHE" -name 'cpu-*.json'; }

# start NAME GOOD: GOOD is "good" where the entry that is there shall be taken.
start() {
  before=$(cat $(entry) /dev/null)
  find "$MEGALITH_CACHE" -name 'cpu-*.json' -exec touch -d 2000-01-01 {} +
  begin=$(date +%s%N)
  "$ours" bench "$folder" --load-format "${FORMAT:-auto}" --device cpu --threads "$threads" --mode mega \
    --runs 1 --prompt 1 --generate 2 --json >/dev/null
  end=$(date +%s%N)
  written=$(find "$MEGALITH_CACHE" -name 'cpu-*.json' -newermt 2001-01-01 | wc -l)
  if [ "$2" = good ] && [ "$written" != 0 ]; then
    echo "bench/cpu_starts.sh: $1: wrote an entry though it had a good one" >&2
    exit 1
  elif [ "$2" = bad ] && [ "$written" = 1 ] && [ "$(cat $(entry))" = "$before" ]; then
    echo "bench/cpu_starts.sh: $1: left a bad entry" >&2
    exit 1
  fi
  # On a busy machine measuring may run out of time: it writes nothing, and the column says so.
  echo "$1;$(((end - begin) / 1000000));$written" >>"$results"
}

sed -nE 's/^model name[^:]*: /processor: /p' /proc/cpuinfo | head -1
echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)," \
  "${FORMAT:-auto}, $threads threads, $rounds rounds; ms from command to end"
echo
echo "| model | entry | median | least | most | written |"
echo "|---|---|---|---|---|---|"
for model; do
  folder=${MEGALITH_BENCH:-/tmp/megalith-bench}/$model
  mkdir -p "$folder"
  cp "bench/configs/$model/config.json" "$folder/config.json"
  [ -f "$folder/model.safetensors" ] || "$writer" "$folder" >&2
  rm -f "$MEGALITH_CACHE"/cpu-*.json
  start warm-up bad
  : >"$results"
  for _ in $(seq "$rounds"); do
    rm -f "$MEGALITH_CACHE"/cpu-*.json
    start none bad
    [ -n "$(entry)" ] || continue
    good=$(cat "$(entry)")
    start "its own" good
    echo "$good" | sed 's/"pack_tokens": [0-9]*/"pack_tokens": 1/' >"$(entry)"
    start wrong bad
    echo "$good" | sed 's/"about": "/"about": "another processor, /' >"$(entry)"
    start foreign bad
    echo "$good" | head -c $((${#good} / 2)) >"$(entry)"
    start torn bad
  done
  for name in none "its own" wrong foreign torn; do
    grep "^$name;" "$results" | sort -t';' -k2 -g | awk -F';' -v head="| $model | $name |" \
      '{ v[NR] = $2; w += $3 } END { if (NR > 0) printf "%s %d | %d | %d | %d of %d |\n",
         head, v[int((NR + 1) / 2)], v[1], v[NR], w, NR }'
  done
done
