#!/usr/bin/env bash
# One model over several ranks (--tensor-parallel): the tokens of one, refusals, and ranks that die or
# fall silent at random moments. Usage: test_cli_ranks.sh PROGRAM DEMO_FOLDER
# MGL_RANK_KILLS: how many ranks to kill; 200 in the long form.
. "$(dirname "$0")/cli.sh" "$@"
kills=${MGL_RANK_KILLS:-6}
[ -n "${MGL_TEST_LONG:-}" ] && kills=200
long="bench $demo -t 1 --mode mega -p 16 -g 400 --runs 1000"

children() {
  cat "/proc/$1/task/$1/children" 2>/dev/null
}

# Starts a long run over so many ranks; $pid and the other ranks' numbers in $ranks.
start() {  # ranks
  "$program" $long --tp "$1" >"$out" 2>"$err" </dev/null &
  pid=$!
  ranks=
  local turn
  for turn in $(seq 200); do
    ranks=$(children $pid)
    [ "$(echo $ranks | wc -w)" -eq $(($1 - 1)) ] && return
    sleep 0.05
  done
  fail "start of $1 ranks" "$(($1 - 1)) children" "$ranks; $(show "$err")"
}

check_gone() {  # what
  local rank turn
  checks=$((checks + 1))
  for rank in $ranks; do
    for turn in $(seq 40); do
      [ -e "/proc/$rank" ] && ! grep -q '^State:.Z' "/proc/$rank/status" 2>/dev/null || break
      sleep 0.05
    done
    if [ -e "/proc/$rank" ] && ! grep -q '^State:.Z' "/proc/$rank/status" 2>/dev/null; then
      fail "$1" "rank of process $rank to be gone" "it runs"
      kill -KILL "$rank"
    fi
  done
}

milliseconds() {
  echo $(($(date +%s%N) / 1000000))
}

test_tokens() {
  local n expected
  run run "$demo" -t 1 -n 40 -p "What is 137 + 245?"
  expected=$(cat "$out")
  for n in 2 4; do
    run run "$demo" -t 1 -n 40 -p "What is 137 + 245?" --tp $n
    check_status "$n ranks" 0
    check_equal "$n ranks" "$expected" "$(cat "$out")"
    run run "$demo" -t 2 -n 40 -p "What is 137 + 245?" --tensor-parallel $n --load-format copied
    check_equal "$n ranks, copied" "$expected" "$(cat "$out")"
    HWLOC_SYNTHETIC="pack:2 [numa] core:4 pu:1" run run "$demo" -t 2 -n 40 -p "What is 137 + 245?" --tp $n
    check_equal "$n ranks on two simulated nodes" "$expected" "$(cat "$out")"
  done
  for n in 1 2; do
    run bench "$demo" -p 8 -g 8 --runs 1 -t 1 --tp 2 --launch jit --schedulers $n
    check_status "bench, jit, $n schedulers" 0
  done
  run compile "$demo" --tp 2 --dump fuse_ops --verify
  check_has "compile" "$out" "0.attended = all_reduce(embedded, 0.o) ranks=2"
  run plan "$demo" --tp 2
  check_has "plan" "$out" "each of 2 ranks"
}

test_refusals() {
  expect_error "3 ranks" "3 ranks: \"0.q\": its 4 heads cannot be cut" run "$demo" -p a --tp 3
  expect_error "eager" "mega, which alone runs on several ranks" run "$demo" -p a --tp 2 --mode eager
  expect_error "a GPU" "several ranks run on the CPU only" \
    run "$demo" -p a --tp 2 --device cuda
}

# A rank that is held up again and again is waited for.
test_delays() {
  local turn rank
  "$program" run "$demo" -t 1 -n 300 --ignore-eos -p "Count." >"$work/expected" 2>/dev/null
  "$program" run "$demo" -t 1 -n 300 --ignore-eos -p "Count." --tp 4 >"$out" 2>"$err" </dev/null &
  pid=$!
  for turn in $(seq 30); do
    for rank in $(children $pid); do
      if [ $((RANDOM % 3)) -eq 0 ]; then
        kill -STOP "$rank" 2>/dev/null && sleep 0.0$((RANDOM % 9 + 1)) && kill -CONT "$rank" 2>/dev/null
      fi
    done
  done
  wait $pid
  check_equal "status with delays" 0 $?
  check_equal "tokens with delays" "$(cat "$work/expected")" "$(cat "$out")"
}

# After a signal to one rank, the run ends with its number, soon, and nothing is left.
expect_end() {  # what, signal, text
  local which began
  start $((RANDOM % 2 * 2 + 2))
  sleep 0.$((RANDOM % 9))
  which=$(echo $ranks | tr ' ' '\n' | shuf -n 1)
  began=$(milliseconds)
  kill -"$2" "$which"
  wait $pid
  status=$?
  checks=$((checks + 1))
  if [ $(($(milliseconds) - began)) -gt 4000 ]; then  # 2 s, and as much for a machine that is busy
    fail "$1" "an end within 4 s" "$(($(milliseconds) - began)) ms"
  fi
  check_status "$1" 1
  check_has "$1" "$err" "$3"
  check_gone "$1"
}

test_faults() {
  local turn before
  before=$(ls /dev/shm 2>/dev/null)
  for turn in $(seq "$kills"); do
    expect_end "killed, turn $turn" KILL "was ended by signal 9"
  done
  expect_end "stopped" STOP "gave no sign of life for 1.5 s"
  start 4
  sleep 0.3
  kill -KILL $pid
  wait $pid 2>/dev/null
  check_gone "rank 0 killed"
  start 4
  sleep 0.3
  kill -STOP $pid
  check_gone "rank 0 stopped"
  kill -KILL $pid
  wait $pid 2>/dev/null
  check_equal "what is left in /dev/shm" "$before" "$(ls /dev/shm 2>/dev/null)"
}

test_tokens
test_refusals
test_delays
test_faults 2>/dev/null
finish
