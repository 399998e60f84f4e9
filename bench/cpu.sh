#!/bin/sh
# The CPU's table: models in bf16 at each SIMD level that the processor has, weights mapped from a file, copied into
# huge pages, and each of these with short rows beside (short, auto), batch 1 and 8, and 16 sequences of 1000 tokens.
# Without a share ("-") something else used the memory meanwhile, so that its ceiling moved.
#   bench/cpu.sh [MODEL...]     folders of bench/configs [qwen3-0.6b llama-3.2-1b]
# THREADS [2], RUNS [2], LONG [1] (0: without the last row), LEVELS [all] ("best": the first one only; or names), ROWS
# of a level, each WEIGHTS,SEQUENCES,CONTEXT,GENERATE [mapped,1,64,32 copied,1,64,32 short,1,64,32 auto,1,64,32
# auto,8,64,24], DUMMY [0] (1: weights are made in memory at each start, batch 1 only: for models without a file);
# MEGALITH_BENCH is where model files are written, once [/tmp/megalith-bench].
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- qwen3-0.6b llama-3.2-1b
ours=${MEGALITH:-build/megalith} writer=${WRITER:-build/bench/bench_write_model}
threads=${THREADS:-2} runs=${RUNS:-2}

# row MODEL LEVEL WEIGHTS BATCH CONTEXT GENERATE
row() {
  MEGALITH_SIMD=$2 "$ours" bench "$folder" --device cpu --mode mega --threads "$threads" --runs "$runs" --json \
    --load-format "$3" --batch "$4" --prompt "$5" --generate "$6" |
    sed -E 's/.*"ms_per_token": ([0-9.]+),.*"gbps": ([0-9.]+), "ceiling_gbps": ([0-9.]+), "ceiling_spread": ([0-9.e-]+), "share": ([0-9.]+|null),.*/\1 \2 \3 \5/' |
    awk -v head="| $1 | $2 | $3 | $4 | $5 |" '{ printf "%s %.4g | %.3g | %.3g | %s |\n", head, $1, $2, $3, $4 == "null" ? "-" : sprintf("%.2f", $4) }'
}

sed -nE 's/^model name[^:]*: /processor: /p' /proc/cpuinfo | head -1
echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), bf16, $threads threads, $runs rounds"
echo
echo "| model | level | weights | sequences | context | ms a step | GB/s | ceiling, GB/s | share |"
echo "|---|---|---|---|---|---|---|---|---|"
for model; do
  folder=${MEGALITH_BENCH:-/tmp/megalith-bench}/$model
  mkdir -p "$folder"
  cp "bench/configs/$model/config.json" "$folder/config.json"
  [ "${DUMMY:-0}" = 1 ] || [ -f "$folder/model.safetensors" ] || "$writer" "$folder" >&2
  best=
  for level in amx_bf16 avx512_bf16 avx512 avx2 neon_bf16 neon; do
    if ! MEGALITH_SIMD=$level "$ours" info >/dev/null 2>&1; then
      continue
    fi
    case " ${LEVELS:-all} " in
      " best ") [ -z "$best" ] || continue ;;
      *" all "* | *" $level "*) ;;
      *) continue ;;
    esac
    best=${best:-$level}
    if [ "${DUMMY:-0}" = 1 ]; then
      row "$model" "$level" dummy 1 64 32
      continue
    fi
    for one in ${ROWS:-mapped,1,64,32 copied,1,64,32 short,1,64,32 auto,1,64,32 auto,8,64,24}; do
      # The commas part words: WEIGHTS SEQUENCES CONTEXT GENERATE.
      row "$model" "$level" $(echo "$one" | tr , ' ')
    done
  done
  [ "${LONG:-1}" = 0 ] || row "$model" "$best" copied 16 1000 16
done
