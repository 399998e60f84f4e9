#!/usr/bin/env bash
# What HTTP costs: the same random requests through `megalith bench throughput` and through a server,
# in turn, and how much processor time the server's I/O thread took. Usage: serve_cost.sh PROGRAM
# [MODEL [ROUNDS [OPTIONS of both]]]; the device is MEGALITH_DEVICE's. Prints a line a round and, at
# the end, medians: the share of the tokens/s that is left, and what the first token waits longer.
#
# Linux shares processors among sessions first (sched_autogroup), whatever the nice values in each.
# So where other sessions work too, it is their number that is measured, and who sleeps and wakes
# more often wins: a server had 1.6 times the tokens/s of the engine alone. Hence this runs in a
# session of its own, which as root gets nearly all of the processors; else it says that it did not.
if [ -z "${SERVE_COST_SESSION:-}" ]; then
  SERVE_COST_SESSION=1 exec setsid -w bash "$0" "$@"
fi
set -eu
(echo -20 >/proc/self/autogroup) 2>/dev/null ||
  echo "note: not root, or no autogroups: the work of others counts in these figures"
program=$(realpath "$1")
model=${2:-}
rounds=${3:-5}
shift $(($# < 3 ? $# : 3))
[ $# -gt 0 ] || set -- --requests 48 --input 32:64 --output 64:128
streams=${STREAMS:-16}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

# shellcheck disable=SC2086  # no model is the demo model
"$program" serve $model --unix "$work/socket" --max-num-seqs "$streams" ${SERVE_OPTIONS:-} 2>"$work/err" &
server=$!
while ! grep -qs 'serving' "$work/err"; do
  kill -0 $server || { cat "$work/err"; exit 1; }
  sleep 0.1
done
vocab=$(curl -s --unix-socket "$work/socket" http://x/server_info | sed 's/.*"vocab_size":\([0-9]*\).*/\1/')

figure() {  # file, name
  sed -n "s/.*\"$2\": \([0-9.e+-]*\).*/\1/p" "$work/$1" | head -1
}
figure2() {  # file, name, inner name
  sed -n "s/.*\"$2\": {[^}]*\"$3\": \([0-9.e+-]*\).*/\1/p" "$work/$1"
}
# Ticks that the thread has run that serves (the first one), and all of the process.
ticks() {
  awk '{ print $14 + $15 }' "/proc/$server/task/$server/stat"
  awk '{ print $14 + $15 }' "/proc/$server/stat"
}

read -r io_before all_before <<<"$(ticks | tr '\n' ' ')"
for round in $(seq "$rounds"); do
  # shellcheck disable=SC2086
  run_engine() {
    "$program" bench throughput $model --sequences "$streams" --seed "$round" --json "${@}" \
      ${SERVE_OPTIONS:-} >"$work/engine"
  }
  run_server() {
    "$program" bench serve "unix:$work/socket" --concurrency "$streams" --vocab-size "$vocab" \
      --seed "$round" --json "${@}" >"$work/http"
  }
  if [ $((round % 2)) = 1 ]; then run_engine "$@"; run_server "$@"; else run_server "$@"; run_engine "$@"; fi
  echo "$(figure engine output_tokens_per_s) $(figure http output_tokens_per_s)" \
    "$(figure2 http first_token_ms median) $(figure2 http inter_token_ms p99)" \
    "$(figure http ok) $(figure http output_tokens) $(figure engine output_tokens)" |
    tee -a "$work/rounds" |
    awk '{ printf "tokens/s: %.0f in the engine, %.0f through HTTP, %.3f of it; first token %.1f ms, " \
      "inter-token p99 %.1f ms; %d answers, %d of %d tokens\n", $1, $2, $2 / $1, $3, $4, $5, $6, $7 }'
done
read -r io_after all_after <<<"$(ticks | tr '\n' ' ')"
awk '{ print $2 / $1 }' "$work/rounds" | sort -n | awk '{ v[NR] = $1 } END {
  printf "median share of the tokens/s through HTTP: %.3f\n", v[int((NR + 1) / 2)] }'
awk -v io=$((io_after - io_before)) -v all=$((all_after - all_before)) 'BEGIN {
  printf "I/O thread: %.2f s of the %.2f s of the server'"'"'s processor time, %.1f%%\n",
    io / 100, all / 100, 100 * io / all }'
