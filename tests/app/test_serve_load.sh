#!/usr/bin/env bash
# The server under load, with `megalith bench serve` as its clients: prints the figures of docs/serve.md
# and checks those that do not depend on the machine's speed. MGL_TEST_LONG=1: as many connections as
# the figures are for, and the bounds in time too, which need a machine without other work.
# Usage: test_serve_load.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"
. "$(dirname "$0")/server.sh"

long=${MGL_TEST_LONG:-}
streams=60 idle=400 slow=60 pairs=1 rounds=1 crowd=240 asked=64
[ -z "$long" ] || streams=1000 idle=10000 slow=1000 pairs=5 rounds=3 crowd=960 asked=200
ulimit -n "$(ulimit -Hn)"

bench() {
  run bench serve "$address/v1" --json "$@"
  check_status "bench serve $*" 0
}

resident_kib() {
  awk '$1 == "VmRSS:" { print $2 }' "/proc/$server/status"
}

descriptors() {
  find "/proc/$server/fd" 2>/dev/null | wc -l
}

# Waits until a figure of /metrics is 0, and checks it.
check_gone() {  # what, metric
  local found
  for _ in $(seq 100); do
    found=$(metric "$2")
    [ "$found" != 0 ] || break
    sleep 0.1
  done
  check_equal "$1" 0 "$found"
}

# Many streams and many more connections that say nothing, at once.
test_many() {
  local needed=$((streams + idle + 200))
  if [ "$(ulimit -n)" -lt $needed ]; then
    skip "$streams streams and $idle idle connections need $needed descriptors, and ulimit -Hn says $(ulimit -n)"
    return
  fi
  start --max-requests $((streams + 10))
  local before after
  before=$(descriptors)
  bench -n $((2 * streams)) --concurrency $streams --input 4:16 --output 16 --idle $idle
  check_equal "many: all answers" $((2 * streams)) "$(figure ok)"
  check_equal "many: idle connections stay" $idle "$(figure idle_open)"
  echo "$streams streams and $idle idle connections at once: $(figure output_tokens_per_s) tokens/s," \
    "first token $(figure first_token_ms p99) ms p99, $(resident_kib) KiB resident"
  check_gone "many: nothing runs" megalith_requests_active
  check_gone "many: no pages" megalith_kv_pages_used
  for _ in $(seq 300); do
    after=$(descriptors)
    [ "$after" -gt "$before" ] || break
    sleep 0.1
  done
  check_number "many: descriptors, before $before" "x <= $before" "$after"
  stop TERM
}

# Clients that send a header's byte a second: others do not notice.
test_slow() {
  local alone among i share
  local -a shares=()
  start
  bench -n 32 --concurrency 8 --input 8 --output 48  # warm
  for i in $(seq $pairs); do
    bench -n $asked --concurrency 8 --input 8 --output 48 --seed "$i"
    alone=$(figure seconds)
    bench -n $asked --concurrency 8 --input 8 --output 48 --seed "1$i" --slow $slow
    among=$(figure seconds)
    check_equal "slow: whole answers" $asked "$(figure ok)"
    shares+=("$(awk -v a="$among" -v b="$alone" 'BEGIN { print a / b }')")
    [ -z "$long" ] || sleep 1  # until the slow ones are closed
  done
  share=$(printf '%s\n' "${shares[@]}" | sort -n | sed -n "$(((pairs + 1) / 2))p")
  echo "$slow slow connections: requests take $share times as long, median of $pairs (${shares[*]})"
  [ -z "$long" ] || check_number "slow: at most 5%" "x <= 1.05" "$share"
  # They are closed after their 10 seconds.
  if [ -n "$long" ]; then
    bench -n 400 --concurrency 4 --input 8 --output 100 --slow 20 --arrival-rate 25
    check_number "slow: closed by the server" "x >= 20" "$(figure slow_closed)"
  fi
  stop TERM
}

# Ten times what fits: the rest is refused at once, and those that were taken do not feel it.
test_overload() {
  local calm crowded before after i share
  local -a shares=()
  start --max-requests 8
  bench -n 64 --concurrency 8 --input 8 --output 64  # warm
  before=$(resident_kib)
  for i in $(seq $rounds); do
    bench -n $((crowd / 10)) --concurrency 8 --input 8 --output 64 --seed "$i"
    calm=$(figure inter_token_ms p99)
    # Clients that come again as soon as they are refused are no load that a server can be asked to
    # bear: 80 at a time arrive, in the time that 8 take.
    bench -n $crowd --concurrency 80 --arrival-rate "$(awk -v s="$(figure requests_per_s)" 'BEGIN { print 10 * s }')" \
      --input 8 --output 64 --seed "1$i"
    crowded=$(figure inter_token_ms p99)
    check_equal "overload: answered or refused" $crowd $(($(figure ok) + $(figure 429)))
    check_number "overload: some are answered" "x >= 8" "$(figure ok)"
    check_number "overload: many are refused" "x >= $crowd / 3" "$(figure 429)"
    shares+=("$(awk -v a="$crowded" -v b="$calm" 'BEGIN { print a / b }')")
    echo "overload: $(figure ok) answered, $(figure 429) refused after $(figure refused_ms median) ms median," \
      "$(figure refused_ms p99) ms p99; inter-token p99 $crowded ms, without it $calm ms"
    [ -z "$long" ] || check_number "overload: 429 within 50 ms" "x <= 50" "$(figure refused_ms p99)"
  done
  share=$(printf '%s\n' "${shares[@]}" | sort -n | sed -n "$(((rounds + 1) / 2))p")
  after=$(resident_kib)
  echo "overload: inter-token p99 is $share times that without it, median of $rounds; resident memory $before KiB," \
    "afterwards $after KiB"
  [ -z "$long" ] || check_number "overload: inter-token latency" "x <= 1.5" "$share"
  check_number "overload: resident memory, before $before KiB" "x <= $before * 1.1 + 8192" "$after"
  check_gone "overload: nothing runs" megalith_requests_active
  check_gone "overload: no pages" megalith_kv_pages_used
  stop TERM
}

# The server is killed while it works, and starts again: ready soon, and nothing of the old one stays.
test_restart() {
  local begin ms
  mkdir "$work/tmp"
  start --unix "$work/socket"
  (sleep 0.4 && kill -KILL $server) &
  run bench serve "unix:$work/socket" --json -n 2000 --concurrency 16 --input 8 --output 200
  wait $server 2>/dev/null
  rm -f "$work/server.err"  # the line of the first one must not be taken for that of the second
  begin=$(date +%s%N)
  TMPDIR=$work/tmp "$program" serve --unix "$work/socket" 2>"$work/server.err" &
  server=$!
  until grep -qs serving "$work/server.err" || ! kill -0 $server 2>/dev/null; do sleep 0.01; done
  ms=$((($(date +%s%N) - begin) / 1000000))
  echo "ready $ms ms after the start that follows a SIGKILL under load"
  [ -z "$long" ] || check_number "restart: within 2 s" "x < 2000" "$ms"
  run bench serve "unix:$work/socket" --json -n 16 --input 8 --output 8
  check_equal "restart: it works" 16 "$(figure ok)"
  stop TERM
  check_equal "restart: its end" 0 "$status"
  check_equal "restart: nothing is left" "" "$(ls -A "$work/tmp")$(ls "$work/socket" 2>/dev/null)"
}

# PART: one of them alone.
for part in ${PART:-many slow overload restart}; do
  "test_$part"
done
finish
