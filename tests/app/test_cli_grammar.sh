#!/usr/bin/env bash
# The `megalith` command from outside, where its output keeps to a grammar. Usage:
# test_cli_grammar.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

test_options() {
  local seed
  printf '%s' '{"type":"object","properties":{"a":{"type":"integer","minimum":10,"maximum":99},
    "b":{"enum":["x","y"]}},"required":["a","b"]}' >"$work/schema"
  printf 'root ::= part{2} "!"\npart ::= "ab" | "cd"\n' >"$work/ebnf"
  for seed in 1 2 3; do
    run run -p Once --json-schema "$work/schema" --temperature 2 --seed $seed -n 200
    check_status "--json-schema" 0
    check_equal "--json-schema, seed $seed" yes \
      "$(tr -d ' \t\n' <"$out" | grep -qxE '\{"a":[1-9][0-9],"b":"[xy]"\}' && echo yes || cat "$out")"
    run run -p Once --regex '[a-c]{3}-\d' --temperature 2 --seed $seed
    check_equal "--regex, seed $seed" yes "$(grep -qxE '[a-c]{3}-[0-9]' "$out" && echo yes || cat "$out")"
    run run -p Once --grammar "$work/ebnf" --temperature 2 --seed $seed --mode eager
    check_equal "--grammar, seed $seed" yes "$(grep -qxE '(ab|cd){2}!' "$out" && echo yes || cat "$out")"
  done
  run run --chat -p "What is 12 + 7?" --regex '[0-9]+ \+ [0-9]+ = [0-9]+\.'
  check_equal "the model still chooses" "12 + 7 = 19." "$(cat "$out")"
}

test_lines() {
  printf '%s\n' '{"prompt":"x","structured_outputs":{"choice":["maybe"]}}' \
    '{"prompt":"x","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"const":5}}}}' \
    '{"prompt":"x","structured_outputs":{"regex":"("}}' '{"prompt":"x"}' >"$work/lines"
  run run --jsonl -f "$work/lines" --regex 'all[.]'
  check_status "lines" 1
  check_has "choice" "$out" '"index": 0, "line": 1, "text": "maybe"'
  check_has "schema" "$out" '"index": 1, "line": 2, "text": "5"'
  check_has "a bad one" "$out" '"error": "\"structured_outputs\": regex, byte 0: a ( without its )"'
  check_has "the option's" "$out" '"index": 3, "line": 4, "text": "all."'
}

test_refusals() {
  printf '%s' '{"properties":{"a":{"not":{}}}}' >"$work/bad"
  expect_error "a keyword" '--json-schema: schema at /properties/a: "not" is not supported' \
    run -p x --json-schema "$work/bad"
  expect_error "no schema" "--json-schema: grammar" run -p x --json-schema "$work/ebnf"
  expect_error "EBNF" "--grammar: grammar, line 1" run -p x --grammar "$work/bad"
  expect_error "two" "expected one of --regex and --grammar" run -p x --regex a --grammar "$work/ebnf"
  expect_error "no file" "$work/none" run -p x --grammar "$work/none"
}

test_options
test_lines
test_refusals
finish
