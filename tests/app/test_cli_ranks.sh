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
    run run "$demo" -t 1 -n 40 -p "What is 137 + 245?" --tp $n --vocab-parallel --reduce-scatter
    check_status "$n ranks, tables and sums cut" 0
    check_equal "$n ranks, tables and sums cut" "$expected" "$(cat "$out")"
    HWLOC_SYNTHETIC="pack:2 [numa] core:4 pu:1" run run "$demo" -t 2 -n 40 -p "What is 137 + 245?" --tp $n
    check_equal "$n ranks on two simulated nodes" "$expected" "$(cat "$out")"
  done
  for n in 1 2; do
    run bench "$demo" -p 8 -g 8 --runs 1 -t 1 --tp 2 --launch jit --schedulers $n
    check_status "bench, jit, $n schedulers" 0
  done
  run compile "$demo" --tp 2 --dump fuse_ops --verify
  check_has "compile" "$out" "0.attended = all_reduce(embedded, 0.o) ranks=2"
  run compile "$demo" --tp 2 --dump fuse_ops --verify --vocab-parallel --reduce-scatter
  check_has "compile, cut" "$out" "embedded.share = reduce_scatter(embedded.part) ranks=2"
  check_has "compile, cut" "$out" "0.attended = add(embedded, 0.attended.sum)"
  run plan "$demo" --tp 2
  check_has "plan" "$out" "each of 2 ranks"
}

# Codes, as a folder has them: their rows, columns and scales are cut when they are read.
test_codes() {
  local format expected n
  for format in fp8 int8 "int4 --group 32"; do
    rm -rf "$work/codes"
    # shellcheck disable=SC2086  # several words
    run quantize "$demo" --to $format -o "$work/codes"
    check_status "quantize $format" 0
    run run "$work/codes" -t 1 -n 30 -p "What is 137 + 245?"
    expected=$(cat "$out")
    for n in 2 4; do
      run run "$work/codes" -t 1 -n 30 -p "What is 137 + 245?" --tp $n
      check_status "$format, $n ranks" 0
      check_equal "$format, $n ranks" "$expected" "$(cat "$out")"
    done
  done
  run quantize "$demo" --to int4 -o "$work/groups"
  expect_error "int4 in groups of 128 over 4 ranks" "parts of 64 columns would cut its groups of 128" \
    run "$work/groups" -p a --tp 4
}

test_refusals() {
  expect_error "3 ranks" "3 ranks: \"0.q\": its 4 heads cannot be cut" run "$demo" -p a --tp 3
  expect_error "eager" "mega, which alone runs on several ranks" run "$demo" -p a --tp 2 --mode eager
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

# All end within 2 s of the signal, and nothing is left. $began: when it was sent.
check_end() {  # what
  local took
  check_gone "$1"
  took=$(($(milliseconds) - began))
  checks=$((checks + 1))
  if [ $took -gt 2000 ]; then
    fail "$1" "an end of all within 2 s" "$took ms"
  fi
  slowest=$((took > slowest ? took : slowest))
  check_equal "$1: what is left in /dev/shm" "$shm" "$(ls /dev/shm 2>/dev/null)"
}

# After a signal to the rank, the run ends with its number. Of rank 0 itself the others are gone.
expect_end() {  # what, ranks, rank, signal, text
  local which
  start "$2"
  which=$pid
  [ "$3" -gt 0 ] && which=$(echo $ranks | cut -d ' ' -f "$3")
  sleep 0.$((RANDOM % 10))$((RANDOM % 10))
  began=$(milliseconds)
  kill -"$4" "$which"
  if [ "$3" -gt 0 ]; then
    wait $pid
    status=$?
    check_status "$1" 1
    check_has "$1" "$err" "rank $3 of $2 $5"
    check_end "$1"
  else
    check_end "$1"
    kill -KILL $pid 2>/dev/null  # where it was stopped only
    wait $pid 2>/dev/null
  fi
}

# Each rank of 2, and of 4 (the demo model has 4 heads), in turn.
test_faults() {
  local turn=0 rank n
  slowest=0
  shm=$(ls /dev/shm 2>/dev/null)
  while [ $turn -lt "$kills" ]; do
    for n in 2 4; do
      rank=$(((turn / 2) % n))
      expect_end "rank $rank of $n killed, turn $turn" $n $rank KILL "was ended by signal 9"
      turn=$((turn + 1))
    done
  done
  expect_end "stopped" 4 $((RANDOM % 3 + 1)) STOP "gave no sign of life for 1 s"
  expect_end "rank 0 stopped" 4 0 STOP ""
  echo "$turn ranks killed; the slowest end took $slowest ms"
}

test_tokens
test_codes
test_refusals
test_delays
test_faults 2>/dev/null
finish
