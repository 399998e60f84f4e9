#!/usr/bin/env bash
# `megalith bench serve`: what it asks, what it counts, and what it says of servers that refuse, hang up,
# or are not there. Usage: test_bench_serve.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"
. "$(dirname "$0")/server.sh"

bench() {
  run bench serve "$address/v1" --json "$@"
  check_status "bench serve $*" 0
  check_json "bench serve $*" "$out"
}

test_answers() {
  local kind
  start
  for kind in "" "--chat" "--no-stream" "--no-keep-alive" "--chat --portable" "--arrival-rate 200"; do
    # shellcheck disable=SC2086
    bench -n 24 --input 4:20 --output 8 --concurrency 6 $kind
    check_equal "bench serve $kind: whole answers" 24 "$(figure ok)"
    case "$kind" in
      *portable*) check_number "bench serve $kind: tokens" "x > 0 && x <= 192" "$(figure output_tokens)" ;;
      *) check_equal "bench serve $kind: tokens" 192 "$(figure output_tokens)" ;;
    esac
    case "$kind" in
      *no-stream*) check_equal "bench serve: no stream, no first token" 0 "$(figure first_token_ms p99)" ;;
      *) check_number "bench serve $kind: first token" "x > 0" "$(figure first_token_ms median)" ;;
    esac
    check_number "bench serve $kind: in the end" "x > 0" "$(figure end_to_end_ms p90)"
  done
  check_number "the server has seen as many" "x >= 24 * 5 * 8" "$(metric megalith_generated_tokens_total)"
  # The same requests as those of bench throughput: the tokens of both prompts are the server's.
  printf 'What is 137 + 245?\n\n{"messages": [{"role": "user", "content": "What is 12 + 7?"}]}\n' >"$work/prompts"
  bench -n 4 --prompts "$work/prompts" --chat --output 30 --portable
  check_equal "bench serve --prompts" 4 "$(figure ok)"
  check_number "bench serve --prompts: the answers' own lengths" "x > 20 && x < 100" "$(figure output_tokens)"
  bench -n 4 --input 5 --output 6 --extra-body '{"n": 3, "logprobs": 1}'
  check_equal "bench serve --extra-body" 72 "$(figure output_tokens)"
  bench -n 8 --input 5 --output 6 --idle 20 --slow 5
  check_equal "bench serve --idle" 20 "$(figure idle_open)"
  check_equal "bench serve --slow" 5 "$(figure slow_open)"
  run bench serve "$address" -n 2 --input 5 --output 6
  check_has "bench serve: the table" "$out" "2 with a whole answer"
  bench -n 3 --input 5 --output 6 --extra-body '{"temprature": 1}'
  check_equal "bench serve: refused" "3 3" "$(figure refused) $(figure 400)"
  stop TERM
}

test_errors() {
  start --max-requests 1 --unix "$work/socket"
  run bench serve "unix:$address" --json -n 30 --input 5 --output 400
  check_status "bench serve unix:" 0
  check_number "bench serve: answers of a server for one" "x >= 1" "$(figure ok)"
  check_number "bench serve: 429" "x >= 1" "$(figure 429)"
  check_equal "bench serve: all are counted" 30 $(($(figure ok) + $(figure refused)))
  (sleep 0.3 && kill -KILL $server) &
  run bench serve "unix:$address" --json -n 500 --concurrency 1 --input 5 --output 400
  wait $server 2>/dev/null
  check_number "bench serve: closed" "x >= 1" "$(figure closed)"
  check_number "bench serve: no connection" "x >= 1" "$(figure connect)"
  # A server that is there and says nothing.
  start --unix "$work/silent"
  kill -STOP $server
  run bench serve "unix:$work/silent" --json -n 2 --input 5 --output 4 --timeout 1
  check_equal "bench serve: timeout" 2 "$(figure timeout)"
  kill -CONT $server
  stop TERM
  expect_error "bench serve: no URL" "expected a URL, as in" bench serve
  expect_error "bench serve: a word" "expected a URL http://" bench serve localhost:8000
  expect_error "bench serve: TLS" "TLS is not measured here" bench serve https://localhost
  expect_error "bench serve: a file" "No such file" bench serve http://localhost --prompts "$work/nothing"
  expect_error "bench serve: a body" "--extra-body" bench serve http://localhost --extra-body '[1]'
}

test_answers
test_errors
finish
