#!/bin/sh
# Everything that needs the GPU: builds the test program (unless one is given) and runs its parts,
# each under a deadline. Prints Markdown.
#   run.sh [PROGRAM]                        all checks of small models that take minutes, the speed
#                                           of four models in bench/configs, the portable kernels
#   run.sh [PROGRAM] PART [ARGUMENT...]     one part of the program
#   run.sh [PROGRAM] speed [MODEL...]       milliseconds a token, and the read ceiling (default: four
#       models of bench/configs, with 1024 tokens; else 128, or generate=N)
#   run.sh [PROGRAM] correctness            the evidence for correctness: references, contracts,
#                                           soaks and memchecks
#   run.sh [PROGRAM] references [MODEL...]  KL against transformers: tests/gpu/reference.py and part
#       reference for each MODEL, a folder with a config.json (default: demo and bench/configs).
#       Needs python3 with torch and transformers.
#   run.sh [PROGRAM] contracts              part contract of small models, of the demo model and of
#       four in bench/configs
#   run.sh [PROGRAM] soaks                  part soak; of a debug build too
#   run.sh [PROGRAM] portable               the portable kernels, which GPUs other than of compute
#       capability 9.0 and 10.0 get, on this one
#   run.sh [PROGRAM] hops                   what a dependency hop costs (part hops)
#   run.sh [PROGRAM] memchecks              part memcheck of small models under compute-sanitizer
#   run.sh [PROGRAM] throughput [MODEL...]  256 requests through the engine (megalith bench throughput
#       with its defaults, dummy weights; default: qwen3-0.6b, qwen3-8b); the figures go to
#       $MGL_GPU_WORK/gpu_throughput.csv too. Then starts and memory (part start).
#   run.sh [PROGRAM] codes [MODEL...]       quantised weights, by the command: a layer of MODEL in FP8,
#                                           INT8 and INT4 op by op, then its milliseconds a token,
#                                           and of large iterations
#                                           (default: qwen3-0.6b, llama-3.2-1b, qwen3-8b)
#   run.sh [PROGRAM] modes [MODEL...]       the same bits in all modes; then mega against full,
#       batches and contexts; the table goes to $MGL_GPU_WORK/gpu_modes.csv too
#   run.sh [PROGRAM] ranks [MODEL...]       one model on two GPUs (MGL_GPU_RANKS for more): checks, then
#       each MODEL's milliseconds an iteration beside one GPU and beside a barrier between ops
#       (default: three of bench/configs); the table goes to $MGL_GPU_WORK/gpu_ranks.csv too
#   run.sh [PROGRAM] modes_all MODEL...     every mode, decoding and mixed, one after the other in
#                                           turn; tokens=64: all must give the same tokens
#   run.sh [PROGRAM] ablations [MODEL...]   what each mechanism is worth: part ablations for each
#       MODEL (default: bench/configs), its traces, and cuBLAS beside the last linear. The figures
#       go to $MGL_GPU_WORK/gpu_ablations.csv, summaries of the traces beside it.
# tests/gpu/before_after.py compares the speed of two builds.
# A PROGRAM's path has a slash. Environment:
#   MGL_GPU_WORK   folder for models and reference data (default /tmp/megalith-gpu; the models of
#                  bench/configs need 24 GiB there; it is emptied as models are done)
#   MGL_GPU_DEBUG  gpu_tests of a debug build, for the random delays once more; built if no PROGRAM
#                  is given
#   MGL_MEGALITH   the command, for throughput and for summing up traces (default build/megalith,
#                  which `make` builds)
#   MGL_PYTHON     python3
set -eu
cd "$(dirname "$0")/../.."
program=
case ${1:-} in
*/*)
  program=$1
  shift
  ;;
esac
debug=${MGL_GPU_DEBUG:-}
if [ -z "$program" ]; then
  cmake --preset release >/dev/null
  cmake --build build --target gpu_tests >&2
  program=build/tests/gpu_tests
  case ${1:-},$debug in
  correctness, | soaks,)
    cmake --preset debug >/dev/null
    cmake --build build-debug --target gpu_tests >&2
    debug=build-debug/tests/gpu_tests
    ;;
  esac
fi
code=0
# step SECONDS COMMAND...: one step under a deadline. The first failure is the result; a skipped step
# is none.
step() {
  seconds=$1
  shift
  now=0
  timeout -k 5 "$seconds" "$@" || now=$?
  case $now in
  124 | 137) printf '\n- FAILED: not done after %s s: %s\n' "$seconds" "$*" ;;
  esac
  case $now,$code in
  0,* | 77,[!0]*) ;;
  *,0 | *,77) code=$now ;;
  esac
}
part() {
  step 240 "$program" "$@"
}

speed() {
  [ $# -gt 0 ] || set -- bench/configs/qwen3-0.6b bench/configs/llama-3.2-1b \
    bench/configs/qwen3-1.7b bench/configs/qwen3-8b generate=1024
  part speed "$@"
}

references() {
  work=${MGL_GPU_WORK:-/tmp/megalith-gpu}
  mkdir -p "$work"
  [ $# -gt 0 ] || set -- demo bench/configs/qwen3-0.6b bench/configs/llama-3.2-1b \
    bench/configs/qwen3-1.7b bench/configs/qwen3-8b
  step 360 "${MGL_PYTHON:-python3}" tests/gpu/reference.py "$work" "$@"
  for model; do
    data=$work/$(basename "$model")
    [ ! -f "$data/reference.json" ] || step 150 "$program" reference "$data"
    [ ! -f "$data/reference.json" ] || step 150 "$program" reference chunk=2048 "$data"
    rm -rf "$data"
  done
}

contracts() {
  step 240 "$program" contract
  for model in demo bench/configs/qwen3-0.6b bench/configs/llama-3.2-1b bench/configs/qwen3-1.7b \
    bench/configs/qwen3-8b; do
    step 900 "$program" contract "$model"
  done
}

soaks() {
  step 300 "$program" soak
  [ -z "$debug" ] || {
    printf '\nA debug build:\n\n'
    step 200 "$debug" soak iterations=0 delays=10000
  }
}

memchecks() {
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if [ ! -x "$sanitizer" ]; then
    printf '\n## Memcheck\n\nskipped: there is no compute-sanitizer here\n'
    return
  fi
  for model in tiny wide bias; do
    step 150 "$sanitizer" --tool memcheck --error-exitcode 9 "$program" memcheck $model
  done
}

portable() {
  export MEGALITH_KERNELS=portable
  part smoke tiny wide bias
  part ops tiny wide bias
  part sampling tiny wide bias
  part serve
  part feed
  part faults
  part contract
  part wide_attend
  part wide
  part wide bench/configs/qwen3-8b
  part speed bench/configs/qwen3-0.6b bench/configs/qwen3-8b
  unset MEGALITH_KERNELS
}

ranks() {
  work=${MGL_GPU_WORK:-/tmp/megalith-gpu}
  ranks=${MGL_GPU_RANKS:-2}
  found=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
  if [ "$found" -lt "$ranks" ]; then
    printf '\nskipped: ranks need %s GPUs, found %s\n' "$ranks" "$found"
    return
  fi
  mkdir -p "$work"
  rm -f "$work/gpu_ranks.csv"
  [ $# -gt 0 ] || set -- bench/configs/qwen3-8b bench/configs/qwen3-1.7b bench/configs/llama-3.2-1b
  part ranks cut "ranks=$ranks"
  part ranks cut tokens=64 "ranks=$ranks"
  part ranks cut tokens=2048 "ranks=$ranks"
  part ranks fp8_cut "ranks=$ranks"
  part ranks_speed sums tokens=64 prefill=0 batches=1,4,16 generate=256 "ranks=$ranks"
  part ranks_work bench/configs/qwen3-0.6b "ranks=$ranks"
  for model; do
    part ranks_speed "$model" "ranks=$ranks" "csv=$work/gpu_ranks.csv"
  done
}

ablations() {
  work=${MGL_GPU_WORK:-/tmp/megalith-gpu}
  mkdir -p "$work"
  [ $# -gt 0 ] || set -- bench/configs/llama-3.2-1b bench/configs/qwen3-0.6b \
    bench/configs/qwen3-1.7b bench/configs/qwen3-8b
  rm -f "$work/gpu_ablations.csv"
  for model; do
    step 240 "$program" ablations "$model" "csv=$work/gpu_ablations.csv"
  done
  step 240 "$program" ablations "$1" batch=8 "csv=$work/gpu_ablations.csv"
  for model; do
    step 240 "$program" ablations "$model" generate=32 "trace=$work" >/dev/null
  done
  for trace in "$work"/*.json; do
    "${MGL_MEGALITH:-build/megalith}" trace --summary "$trace" >"${trace%.json}.txt"
    rm "$trace"
  done
  printf '\nLast linear, from the traces:\n'
  grep '^  logits ' "$work"/*.txt
  step 120 "${MGL_PYTHON:-python3}" tests/gpu/last_linear.py "$@"
}

# The figures of `megalith bench throughput --json` as a list, and as a table in a file.
throughput() {
  work=${MGL_GPU_WORK:-/tmp/megalith-gpu}
  mkdir -p "$work"
  [ $# -gt 0 ] || set -- bench/configs/qwen3-0.6b bench/configs/qwen3-8b
  step 500 "${MGL_PYTHON:-python3}" - "$work/gpu_throughput.csv" "${MGL_MEGALITH:-build/megalith}" "$@" <<'END'
import json, subprocess, sys

columns = [
    "model", "device", "requests", "sequences", "input_tokens", "output_tokens", "seconds",
    "output_tokens_per_s", "total_tokens_per_s", "first_token_ms.median", "first_token_ms.p99",
    "inter_token_ms.median", "inter_token_ms.p99", "kv_tokens", "kv_use", "prefix_hits",
    "preemptions", "iterations", "planning_share", "prompt_iterations.count",
    "prompt_iterations.tokens", "prompt_iterations.ms", "decode_iterations.count",
    "decode_iterations.tokens", "decode_iterations.ms", "decode_iterations.bytes_per_s"]
with open(sys.argv[1], "w") as out:
    print(",".join(columns), file=out)
    for model in sys.argv[3:]:
        done = subprocess.run(
            [sys.argv[2], "bench", "throughput", model, "--load-format", "dummy", "--device", "cuda",
             "--json"], stdout=subprocess.PIPE, timeout=240, check=True)
        result = json.loads(done.stdout)
        print("\n%s:\n" % model)
        cells = []
        for column in columns:
            value = result
            for name in column.split("."):
                value = value[name]
            cells.append(str(value))
            print("- %s: %s" % (column, value))
        print(",".join(cells), file=out)
END
  part start "$@"
}

# coded MODEL FORM: a folder in the work folder with the model's shape and dummy weights of that form.
coded() {
  folder=$work/$(basename "$1")-$2
  mkdir -p "$folder"
  case $2 in
  fp8) form='"quant_method": "fp8", "weight_block_size": [128, 128]' ;;
  int8) form='"num_bits": 8, "strategy": "channel"' format=int-quantized ;;
  *) form='"num_bits": 4, "strategy": "group", "group_size": 128' format=pack-quantized ;;
  esac
  [ "$2" = fp8 ] || form="\"quant_method\": \"compressed-tensors\", \"format\": \"$format\",
    \"ignore\": [\"lm_head\"], \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"],
    \"weights\": {\"type\": \"int\", \"symmetric\": true, $form}}}"
  sed '1s/{/{ "quantization_config": {@},/' "$1/config.json" |
    FORM=$form awk '{ at = index($0, "@")
      print at == 0 ? $0 : substr($0, 1, at - 1) ENVIRON["FORM"] substr($0, at + 1) }' \
      >"$folder/config.json"
  echo "$folder"
}

# The first command with a shape compiles its kernels, which may take a minute.
codes() {
  command=${MGL_MEGALITH:-build/megalith}
  work=${MGL_GPU_WORK:-/tmp/megalith-gpu}
  [ $# -gt 0 ] || set -- bench/configs/qwen3-0.6b bench/configs/llama-3.2-1b bench/configs/qwen3-8b
  part wide fp8 int4 int4_32 int8
  for model; do
    for form in fp8 int8 int4; do
      folder=$(coded "$model" $form)
      printf '\n## %s\n\n' "$(basename "$folder")"
      for tokens in 1 7 16 40; do
        step 240 "$command" test "$folder" --device cuda --load-format dummy --each -n $tokens 2..6
      done
      for batch in 1 4 16; do
        step 240 "$command" bench "$folder" --device cuda --load-format dummy --mode mega \
          -b $batch -p 64 -g 256
      done
      part wide context=512 "$folder"
      rm -r "$folder"
    done
  done
}

case ${1:-} in
'')
  part smoke tiny wide bias
  part ops tiny wide bias
  part sampling tiny wide bias bench/configs/qwen3-0.6b
  part plain
  part launch
  part custom_tasks
  part wide
  part planner
  part schedules tiny
  part task_graphs
  part wide_attend
  part wide_speed
  part serve
  part feed
  part faults
  part wide bench/configs/qwen3-8b
  speed
  portable
  ;;
correctness)
  references
  contracts
  soaks
  memchecks
  ;;
speed)
  shift
  speed "$@"
  ;;
references)
  shift
  references "$@"
  ;;
contracts) contracts ;;
soaks) soaks ;;
memchecks) memchecks ;;
portable) portable ;;
hops)
  shift
  [ $# -gt 0 ] || set -- bench/configs/llama-3.2-1b bench/configs/qwen3-8b
  part hops "$@"
  ;;
ranks)
  shift
  ranks "$@"
  ;;
ablations)
  shift
  ablations "$@"
  ;;
throughput)
  shift
  throughput "$@"
  ;;
codes)
  shift
  codes "$@"
  ;;
modes)
  shift
  [ $# -gt 0 ] || set -- bench/configs/qwen3-0.6b bench/configs/llama-3.2-1b \
    bench/configs/qwen3-1.7b bench/configs/qwen3-8b
  mkdir -p "${MGL_GPU_WORK:-/tmp/megalith-gpu}"
  part ops_same
  part modes_same
  part modes "$@" prefill=1024 "csv=${MGL_GPU_WORK:-/tmp/megalith-gpu}/gpu_modes.csv"
  ;;
*)
  part "$@"
  ;;
esac
echo
echo "Driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null ||
  echo unknown)."
[ $code -ne 77 ] || code=0 # no GPU: skipped, and said so
exit $code
