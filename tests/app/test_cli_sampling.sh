#!/usr/bin/env bash
# The `megalith` command from outside, where it chooses tokens: penalties, biases, cuts, stop texts and log
# probabilities. Usage: test_cli_sampling.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

same() {  # what, file, file
  checks=$((checks + 1))
  cmp -s "$2" "$3" || fail "$1" "$(show "$2")" "$(show "$3")"
}

test_penalties() {
  local option
  run run -p "Once upon a time" -n 20
  cp "$out" "$work/greedy"
  run run -p "Once upon a time" -n 20 --repetition-penalty 1 --presence-penalty 0 --min-p 0 --temperature 0
  same "neutral penalties" "$work/greedy" "$out"
  for option in "--repetition-penalty 2" "--presence-penalty 2" "--frequency-penalty 2" "--logit-bias 300=50"; do
    # shellcheck disable=SC2086
    run run -p "Once upon a time" -n 20 $option
    check_status "$option" 0
    checks=$((checks + 1))
    ! cmp -s "$out" "$work/greedy" || fail "$option" "another text" "$(show "$out")"
  done
  run run -p "Once" -n 30 --min-p 0.05 --seed 7
  cp "$out" "$work/min_p"
  run run -p "Once" -n 30 --min-p 0.05 --temperature 1 --seed 7
  same "--min-p samples" "$work/min_p" "$out"
  run run --chat -p "What is 12 + 7?" --min-tokens 15 -n 15
  check_has "--min-tokens" "$err" "generated: 15 tokens"

  expect_error "logit bias" "--logit-bias: expected ID=X" run -p x --logit-bias 5
  expect_error "logit bias: value" "found \"5=1e3\"" run -p x --logit-bias 5=1e3
  expect_error "logit bias: id" "logit bias: expected a token of 0 to" run -p x --logit-bias 9999999=1
  expect_error "logit bias: twice" "found token 5 twice" run -p x --logit-bias 5=1 --logit-bias 5=2
  expect_error "min tokens" "min tokens: expected at most" run -p x -n 3 --min-tokens 4
  expect_error "repetition penalty" "--repetition-penalty: expected a number of 0.01 to 100, found 0" \
    run -p x --repetition-penalty 0
}

test_stop_texts() {
  run run --chat -p "What is 12 + 7?" --stop "= 1"
  check_equal "--stop" "12 + 7 " "$(cat "$out")"
  run run --chat -p "What is 12 + 7?" --stop nothing --stop "7 = 19.."
  check_equal "--stop: half of it" "12 + 7 = 19." "$(cat "$out")"
  run run --chat -p "What is 12 + 7?" --stop "12"
  check_equal "--stop: at the beginning" "" "$(cat "$out")"
  run run --chat -p "What is 12 + 7?" -p "What is 12 + 7?" --stop " ="
  check_equal "--stop: two prompts" "12 + 7||12 + 7|" "$(tr '\n' '|' <"$out")"
}

test_logprobs() {
  run run --chat -p "What is 12 + 7?" --logprobs 2 -n 3
  check_equal "--logprobs: lines" 4 "$(wc -l <"$out")"
  check_equal "--logprobs: columns" 9 "$(head -n 1 "$out" | awk -F '\t' '{ print NF }')"
  check_equal "--logprobs: the likeliest is the chosen one" yes \
    "$(head -n 1 "$out" | awk -F '\t' '{ print $1 == $4 && $2 == $5 && $1 <= 0 && $7 < $4 ? "yes" : $0 }')"
  run run --chat -p "What is 12 + 7?" --logprobs 0 -n 3
  check_equal "--logprobs 0: columns" 3 "$(head -n 1 "$out" | awk -F '\t' '{ print NF }')"
}

check_line() {  # number of an answer, options that give the same text
  local line=$1 text
  shift
  run run -n 20 "$@"
  text=$(head -n 1 "$out" | head -c 20 | sed 's/[\\"]/\\&/g')
  checks=$((checks + 1))
  sed -n "${line}p" "$work/answers" | grep -qF "\"text\": \"$text" ||
    fail "line $line" "$text" "$(sed -n "${line}p" "$work/answers")"
}

test_jsonl() {
  {
    echo '{"prompt": "Once upon a time", "max_tokens": 20, "repetition_penalty": 2}'
    echo '{"prompt": "Once upon a time", "max_tokens": 20, "presence_penalty": 2}'
    echo '{"prompt": "Once upon a time", "max_tokens": 20, "frequency_penalty": 2}'
    echo '{"prompt": "Once upon a time", "max_tokens": 20, "logit_bias": {"300": 50}}'
    echo '{"prompt": "Once", "max_tokens": 20, "min_p": 0.05, "temperature": 1, "seed": 7}'
    echo '{"prompt": "Once", "max_tokens": 3, "logprobs": 1, "min_tokens": 3}'
    echo '{"prompt": "x", "logit_bias": {"a": 1}}'
    echo '{"prompt": "x", "logit_bias": {"5": 101}}'
    echo '{"prompt": "x", "max_tokens": 3, "min_tokens": 4}'
    echo '{"prompt": "x", "logprobs": 21}'
  } >"$work/lines"
  run run --jsonl -f "$work/lines"
  cp "$out" "$work/answers"
  check_equal "lines" 10 "$(wc -l <"$work/answers")"
  check_has "a line's bias" "$err" 'line 7: "logit_bias": expected ids of tokens with numbers, found "a"'
  check_has "a line's bias" "$err" 'line 8: logit bias: expected -100 to 100, found 101'
  check_has "a line's least tokens" "$err" 'line 9: min tokens: expected at most'
  check_has "a line's log probabilities" "$err" 'line 10: JSON: "logprobs"'
  check_equal "log probabilities of a line" 3 "$(sed -n 6p "$work/answers" | grep -o '"top": \[{' | wc -l)"
  check_equal "no log probabilities" 0 "$(sed -n 1p "$work/answers" | grep -c logprobs)"
  # The same as on the command line.
  check_line 1 -p "Once upon a time" --repetition-penalty 2
  check_line 2 -p "Once upon a time" --presence-penalty 2
  check_line 3 -p "Once upon a time" --frequency-penalty 2
  check_line 4 -p "Once upon a time" --logit-bias 300=50
  check_line 5 -p Once --min-p 0.05 --seed 7
}

# What generation_config.json says is applied.
test_generation_config() {
  local folder
  folder=$(copy_demo generation_sampling generation_config.json)
  printf '{"min_new_tokens": 20, "max_new_tokens": 30, "repetition_penalty": 1.3}' >"$folder/generation_config.json"
  run run "$folder" -p "Once upon a time" -n 20
  cp "$out" "$work/penalised"
  check_equal "generation_config.json: no note" 1 "$(wc -l <"$err")"
  run run -p "Once upon a time" -n 20 --repetition-penalty 1.3 --min-tokens 20
  same "repetition_penalty" "$work/penalised" "$out"
  printf '{"max_new_tokens": 7, "min_new_tokens": 12}' >"$folder/generation_config.json"
  run run "$folder" -p "Once upon a time"
  check_has "min_new_tokens above the most" "$err" "generated: 7 tokens"
}

test_help() {
  local option
  run run --help
  for option in min-tokens min-p repetition-penalty presence-penalty frequency-penalty logit-bias logprobs; do
    check_has "run --help" "$out" "--$option"
  done
  check_equal "run --help: lines over 100 columns" 0 "$(grep -c '.\{101\}' "$out")"
}

# -------------------------------------------------------------------------------------------------

test_penalties
test_stop_texts
test_logprobs
test_jsonl
test_generation_config
test_help
finish
