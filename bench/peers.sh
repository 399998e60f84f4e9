#!/bin/sh
# Megalith and llama.cpp in turns on this CPU, each as it is usually run: the same shape, random weights in a file,
# context and threads. Prints medians and quartiles of all rounds, the processor, and how much of the time others took.
#   bench/peers.sh LLAMA_BENCH [MODEL [ROUNDS [THREADS [TYPE]]]]
#       MODEL: a folder of bench/configs [qwen3-0.6b]; 5 rounds; TYPE: BF16, or what llama-quantize (beside
#       LLAMA_BENCH) makes, for instance Q8_0 or Q4_K_M: then both programs read the same GGUF file
# LLAMA_BENCH is llama.cpp's program, for instance from the sources that llama-cpp-python has on PyPI:
#   pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
#   cmake -S llama_cpp_python-*/vendor/llama.cpp -B llama -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
#   cmake --build llama --target llama-bench llama-quantize
# The GGUF file is written once by tools/make_gguf.py (python3 with numpy and gguf; PYTHON names another one).
# Megalith's way of reading weights is measured before the rounds (--tune). Ended early, it prints what rounds gave.
set -eu
[ $# -ge 1 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
peer=$1 model=${2:-qwen3-0.6b} rounds=${3:-5} threads=${4:-$(nproc)} type=${5:-BF16}
config=bench/configs/$model/config.json folder=${MEGALITH_BENCH:-/tmp/megalith-bench}/$model
ours=${MEGALITH:-build/megalith} writer=${WRITER:-build/bench/bench_write_model}
context=64 tokens=32 prompt=512
mkdir -p "$folder"
cp "$config" "$folder/config.json"
[ -f "$folder/model.gguf" ] || "${PYTHON:-python3}" tools/make_gguf.py "$config" "$folder/model.gguf" >&2
if [ "$type" = BF16 ]; then
  theirs=$folder/model.gguf own=$folder
  [ -f "$folder/model.safetensors" ] || "$writer" "$folder" >&2
else
  theirs=$folder/model-$type.gguf own=$theirs
  [ -f "$theirs" ] || "$(dirname "$peer")/llama-quantize" "$folder/model.gguf" "$theirs" "$type" >/dev/null 2>&1
fi
results=$(mktemp)
trap 'table; rm -f "$results"' EXIT
trap 'exit 143' TERM INT

number() { sed -nE "s/.*\"$1\": ([0-9.]+).*/\1/p" | head -1; } # of a key
cpu_time() { awk '/^cpu /{ print $2 + $3 + $4 + $6 + $7 + $8, $9 }' /proc/stat; } # that was used, stolen

ours_bench() { "$ours" bench "$own" --device cpu --threads "$threads" --mode mega --runs 1 --json "$@"; }
theirs_bench() { "$peer" -m "$theirs" -t "$threads" -r 1 -o jsonl "$@" 2>/dev/null; }

before=
table() {
  [ -n "$before" ] || return 0
  after=$(cpu_time)
  seconds=$(($(date +%s) - start))

  sed -nE 's/^model name[^:]*: /processor: /p' /proc/cpuinfo | head -1
  echo "$before $after $seconds $(nproc)" | awk '{
    total = $5 * $6 * 100; printf "processors %d, used %.0f%%, stolen %.1f%% of %d s\n", $6, 100 * ($3 - $1) / total, 100 * ($4 - $2) / total, $5 }'
  echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $model, $type, $threads threads, $rounds rounds"
  echo
  echo "| what | program | tokens/s, median | quartiles | share of the ceiling, median |"
  echo "|---|---|---|---|---|"
  for what in decode prompt; do
    for name in megalith llama.cpp; do
      figures=$(awk -v n=$name -v w=$what '$1 == n && $2 == w { print $3 }' "$results" | sort -g | awk '{ v[NR] = $1 }
        END { if (NR == 0) printf "- | -"; else printf "%.4g | %.4g to %.4g", v[int((NR + 1) / 2)], v[int((NR + 3) / 4)], v[int((3 * NR + 3) / 4)] }')
      share=$(awk -v n=$name -v w=$what '$1 == n && $2 == w && $4 != "-" { print $4 }' "$results" | sort -g | awk '{ v[NR] = $1 }
        END { if (NR > 0) printf "%.2f (%d of them steady)", v[int((NR + 1) / 2)], NR; else printf "-" }')
      echo "| $what | $name | $figures | $share |"
    done
  done
}

# note NAME WHAT TOKENS_PER_SECOND [SHARE]; each figure is told on stderr as well, as it comes.
note() { [ -z "$3" ] || echo "$1 $2 $3 ${4:--}" | tee -a "$results" >&2; }

ours_bench --prompt 16 --generate 2 --tune >/dev/null
theirs_bench -p 16 -n 0 >/dev/null
before=$(cpu_time)
start=$(date +%s)
for _ in $(seq "$rounds"); do
  out=$(ours_bench --prompt $context --generate $((tokens + 1)))
  note megalith "decode" "$(echo "$out" | number tokens_per_s)" "$(echo "$out" | number share)"
  note llama.cpp "decode" "$(theirs_bench -p 0 -n $tokens -d $context | number avg_ts)"
  note megalith "prompt" "$(ours_bench --prompt $prompt --generate 2 | number prompt_tokens_per_s)"
  note llama.cpp "prompt" "$(theirs_bench -p $prompt -n 0 | number avg_ts)"
done
