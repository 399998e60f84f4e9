#!/usr/bin/env bash
# `megalith serve` and `score` over several ranks (--tensor-parallel): the answers of one, signals, and
# ranks that are killed while the server computes or waits. Usage: test_serve_ranks.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"
. "$(dirname "$0")/server.sh"

milliseconds() {
  echo $(($(date +%s%N) / 1000000))
}

# The processes that the server's thread has forked.
ranks_of_server() {
  cat /proc/$server/task/*/children 2>/dev/null | tr -s ' \n' ' '
}

# The body of an answer without what differs from request to request.
body() {
  sed '1,/^\r*$/d; s/"id":"[^"]*"//g; s/"created":[0-9]*//g' "$out"
}

answers() {
  ask POST /v1/completions '{"prompt": "What is 137 + 245?", "max_tokens": 40, "temperature": 0}'
  body
  ask POST /v1/completions '{"prompt": ["One", "Count to ten."], "max_tokens": 20, "temperature": 0}'
  body
  ask POST /v1/chat/completions \
    '{"messages": [{"role": "user", "content": "What is 12 + 30?"}], "max_tokens": 30, "temperature": 0}'
  body
}

test_answers() {
  local n expected
  start -t 1 --served-model-name m
  expected=$(answers)
  stop TERM
  check_has "answers of one" <(echo "$expected") '"finish_reason"'
  for n in 2 4; do
    start -t 1 --served-model-name m --tp $n
    check_equal "$n ranks: processes" $((n - 1)) "$(ranks_of_server | wc -w)"
    check_equal "$n ranks: answers" "$expected" "$(answers)"
    ask GET /health ""
    check_has "$n ranks: health" "$out" "HTTP/1.1 200"
    ranks=$(ranks_of_server)
    stop TERM
    check_equal "$n ranks: status" 0 $status
    check_gone "$n ranks: the end"
  done
}

test_refusals() {
  expect_error "serve: 3 ranks" '3 ranks: "0.q": its 4 heads cannot be cut' serve "$demo" --port 0 --tp 3
  expect_error "serve: 9 ranks" "expected 1 to 8" serve "$demo" --port 0 --tp 9
}

test_score() {
  local one n
  run score "$demo" -t 1 --json --text "What is 137 + 245?"
  one=$(figure perplexity)
  for n in 2 4; do
    run score "$demo" -t 1 --json --text "What is 137 + 245?" --tp $n
    check_status "score over $n ranks" 0
    check_number "score over $n ranks" "x > 0.99 * $one && x < 1.01 * $one" "$(figure perplexity)"
  done
}

is_gone() {  # process
  [ ! -e "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null
}

check_gone() {  # what
  local rank turn
  checks=$((checks + 1))
  for rank in $ranks; do
    for turn in $(seq 40); do
      is_gone "$rank" && break
      sleep 0.05
    done
    is_gone "$rank" || fail "$1" "rank of process $rank to be gone" "it runs"
  done
}

check_refused() {  # what, text
  check_has "$1" "$out" "HTTP/1.1 503"
  check_has "$1" "$out" "$2"
}

# A request that is computed when a rank dies gets status 503, with the rank's number, within 2 s, and
# so do those that come later; the server ends by its signal, and nothing is left.
test_killed_at_work() {
  local n rank began took asked
  for n in 2 4; do
    for rank in $(seq $((n - 1))); do
      start -t 1 --tp $n
      ranks=$(ranks_of_server)
      (
        out=$work/long
        ask POST /v1/completions \
          '{"prompt": "Count.", "max_tokens": 400, "n": 32, "ignore_eos": true, "temperature": 1}'
      ) &
      asked=$!
      sleep 0.$((RANDOM % 3 + 1))
      began=$(milliseconds)
      kill -KILL "$(echo $ranks | cut -d ' ' -f $rank)"
      wait $asked
      took=$(($(milliseconds) - began))
      check_number "rank $rank of $n killed at work: ms" "x <= 2000" $took
      cp "$work/long" "$out"
      check_refused "rank $rank of $n killed at work" "rank $rank of $n was ended by signal 9"
      check_failed_server "rank $rank of $n killed at work" "rank $rank of $n was ended by signal 9"
    done
  done
}

check_failed_server() {  # what, text
  ask POST /v1/completions '{"prompt": "One", "max_tokens": 4}'
  check_refused "$1, later" "$2"
  ask GET /health ""
  check_refused "$1: health" "the engine has failed"
  ask GET /ready ""
  check_has "$1: ready" "$out" "HTTP/1.1 503"
  stop TERM
  check_equal "$1: status" 0 $status
  check_gone "$1"
  check_equal "$1: what is left in /dev/shm" "$shm" "$(ls /dev/shm 2>/dev/null)"
}

# Without a request, too, it is told within 2 s.
test_killed_idle() {
  local began took
  start -t 1 --tp 4
  ask POST /v1/completions '{"prompt": "One", "max_tokens": 4}'
  check_has "before" "$out" "HTTP/1.1 200"
  ranks=$(ranks_of_server)
  began=$(milliseconds)
  kill -KILL "$(echo $ranks | cut -d ' ' -f 2)"
  for _ in $(seq 60); do
    ask GET /health ""
    grep -q "HTTP/1.1 503" "$out" && break
    sleep 0.05
  done
  took=$(($(milliseconds) - began))
  check_number "killed while idle: ms" "x <= 2000" $took
  check_failed_server "killed while idle" "rank 2 of 4 was ended by signal 9"
}

# Asks until the answer has a status; for 30 s.
ask_until() {  # status, method, path, body
  for _ in $(seq 300); do
    ask "$2" "$3" "$4" 2>/dev/null && grep -q "HTTP/1.1 $1" "$out" && return
    sleep 0.1
  done
}

# How many sockets processes have: the server's are not among them.
sockets_of() {  # process...
  local rank
  for rank in "$@"; do
    ls -l "/proc/$rank/fd" | grep -c "socket:"
  done | tr '\n' ' '
}

# With --max-restarts the server starts again, at the same address, in the same process and with new
# ranks: what is computed when a rank dies gets status 503, what waits or comes meanwhile is answered,
# with the same tokens. That as often as it was told; then it stays failed.
test_starts_again() {
  local times asked expected address_before old sockets
  start -t 1 --served-model-name m --tp 4 --max-restarts 2
  address_before=$address
  expected=$(answers)
  ranks=$(ranks_of_server)
  sockets=$(sockets_of $ranks)
  for times in 1 2; do
    old=$ranks
    (
      out=$work/long
      ask POST /v1/completions \
        '{"prompt": "Count.", "max_tokens": 400, "n": 32, "ignore_eos": true, "temperature": 1}'
    ) &
    asked=$!
    sleep 0.3
    kill -KILL "$(echo $ranks | cut -d ' ' -f $((times + 1)))"
    wait $asked
    cp "$work/long" "$out"
    check_refused "started again $times: at work" "rank $((times + 1)) of 4 was ended by signal 9"
    ask_until 200 GET /health ""
    check_has "started again $times: health" "$out" "HTTP/1.1 200"
    check_equal "started again $times: address" "$address_before" \
      "$(sed -n 's/.* at \(http[^ ]*\)$/\1/p' "$work/server.err" | sort -u)"
    check_equal "started again $times: answers" "$expected" "$(answers)"
    check_has "started again $times: said" "$work/server.err" "starts again ($times of 2)"
    ranks=$old
    check_gone "started again $times: old ranks"
    ranks=$(ranks_of_server)
    check_equal "started again $times: ranks" 3 "$(echo $ranks | wc -w)"
    check_equal "started again $times: sockets of ranks" "$sockets" "$(sockets_of $ranks)"
  done
  kill -KILL "$(echo $ranks | cut -d ' ' -f 1)"
  ask_until 503 GET /health ""
  check_failed_server "started again twice" "rank 1 of 4 was ended by signal 9"
}

# Clients that keep asking while ranks die: each gets an answer, 200 or 503, and none loses its
# connection but with such an answer.
test_starts_again_under_load() {
  local i turn other
  start -t 1 --tp 2 --max-restarts 3
  for i in 1 2 3 4; do
    (
      out=$work/load.$i
      while [ ! -e "$work/load.end" ]; do
        ask POST /v1/completions '{"prompt": "Count.", "max_tokens": 60, "ignore_eos": true}'
        sed -n 's/^HTTP\/1.1 \([0-9]*\).*/\1/p' "$out" | grep . || echo none
      done >"$work/load.$i.said" 2>/dev/null
    ) &
  done
  for turn in 1 2 3; do
    sleep 0.$((RANDOM % 5 + 3))
    ranks=$(ranks_of_server)
    kill -KILL $ranks
    for _ in $(seq 300); do
      grep -q "starts again ($turn of 3)" "$work/server.err" && break
      sleep 0.1
    done
    ask_until 200 POST /v1/completions '{"prompt": "One", "max_tokens": 4}'
    check_has "under load, $turn" "$out" "HTTP/1.1 200"
  done
  sleep 0.5
  touch "$work/load.end"
  stop TERM
  wait
  check_equal "under load: status" 0 $status
  cat "$work"/load.*.said | sort | uniq -c >"$work/load.all"
  other=$(awk '$2 != 200 && $2 != 503 { n += $1 } END { print n + 0 }' "$work/load.all")
  check_equal "under load: $(tr -s ' \n' ' ' <"$work/load.all"): other answers" 0 "$other"
  check_has "under load" "$work/load.all" " 200"
  check_equal "under load: what is left in /dev/shm" "$shm" "$(ls /dev/shm 2>/dev/null)"
}

# At a Unix socket, too, whose file is there all the time and goes at the end.
test_starts_again_at_a_path() {
  start -t 1 --tp 2 --max-restarts 1 --unix "$work/socket"
  ranks=$(ranks_of_server)
  kill -KILL $ranks
  for _ in $(seq 300); do
    [ "$(grep -c "serving .* at unix:$work/socket" "$work/server.err")" = 2 ] && break
    sleep 0.1
  done
  check_equal "a path: addresses" 2 "$(grep -c "serving .* at unix:$work/socket" "$work/server.err")"
  check_equal "a path: there" yes "$([ -S "$work/socket" ] && echo yes)"
  stop TERM
  check_equal "a path: status" 0 $status
  check_equal "a path: gone" "" "$(ls "$work/socket" 2>/dev/null)"
}

# The server itself: the others go with it.
test_killed_server() {
  start -t 1 --tp 4
  ranks=$(ranks_of_server)
  kill -KILL $server
  wait $server 2>/dev/null
  check_gone "the server killed"
}

# A signal to the whole group lets requests end, as one to the server does.
test_group_signal() {
  local asked
  start -t 1 --tp 2
  ranks=$(ranks_of_server)
  (
    out=$work/long
    ask POST /v1/completions '{"prompt": "Count.", "max_tokens": 200, "n": 8, "ignore_eos": true}'
  ) &
  asked=$!
  sleep 0.3
  kill -TERM $server $ranks
  wait $server
  check_equal "a signal to all: status" 0 $?
  wait $asked
  check_has "a signal to all" "$work/long" "HTTP/1.1 200"
  check_gone "a signal to all"
}

shm=$(ls /dev/shm 2>/dev/null)
test_answers
test_refusals
test_score
test_killed_at_work 2>/dev/null
test_killed_idle 2>/dev/null
test_starts_again 2>/dev/null
test_starts_again_under_load 2>/dev/null
test_starts_again_at_a_path 2>/dev/null
test_killed_server 2>/dev/null
test_group_signal
finish
