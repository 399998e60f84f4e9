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
test_killed_server 2>/dev/null
test_group_signal
finish
