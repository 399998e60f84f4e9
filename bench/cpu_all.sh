#!/bin/sh
# All that is to be shown of a processor, in one run: models in bf16 at each level of instructions
# and with 16 sequences, llama.cpp in turns in bf16 and with codes, a mixture of 1 B active
# parameters, and what the choice of ways costs a start.
#   bench/cpu_all.sh LLAMA_BENCH [PART...]     parts: levels peers codes mixture starts [all]
# bench/peers.sh says where LLAMA_BENCH comes from; RUNS, ROUNDS, THREADS as bench/cpu.sh and
# bench/peers.sh take them.
set -eu
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
peer=$1
shift
[ $# -gt 0 ] || set -- levels peers codes mixture starts
rounds=${ROUNDS:-5} threads=${THREADS:-2}
for part; do
  echo
  echo "## $part"
  echo
  case $part in
    levels) bench/cpu.sh ;;
    peers)
      bench/peers.sh "$peer" qwen3-0.6b "$rounds" "$threads"
      bench/peers.sh "$peer" llama-3.2-1b "$rounds" "$threads"
      ;;
    codes)
      bench/peers.sh "$peer" qwen3-0.6b "$rounds" "$threads" Q8_0
      bench/peers.sh "$peer" qwen3-0.6b "$rounds" "$threads" Q4_K_M
      ;;
    starts) bench/cpu_starts.sh ;;
    mixture) LEVELS=best DUMMY=1 LONG=0 bench/cpu.sh qwen3-moe-1.9b-a1b ;;
    *) echo "bench/cpu_all.sh: unknown part: $part" >&2; exit 2 ;;
  esac
done
