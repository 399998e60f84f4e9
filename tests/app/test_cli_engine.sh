#!/usr/bin/env bash
# The `megalith` command from outside, where it serves many requests: files of prompts and JSON lines,
# bench throughput, plan. Usage: test_cli_engine.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

# --- run: many prompts ---------------------------------------------------------------------------

question() {  # text, rest of the JSON object
  printf '{"messages": [{"role": "user", "content": "%s"}]%s}\n' "$1" "${2:-}"
}

test_run_files() {
  printf 'What is 12 + 7?\r\n\n  \t\nWhat is 1 + 7?\n' >"$work/two"
  run run --chat -f "$work/two" -p "What is 137 + 245?"
  check_status "lines of a file" 0
  check_equal "lines of a file" "12 + 7 = 19.||1 + 7 = 8.||137 + 245 = 382.|" "$(tr '\n' '|' <"$out")"
  # A hostile line keeps its place and tells its number; the others run.
  printf 'What is 12 + 7?\nWhat is \0?\n\nWhat is 1 + 7?' | "$program" run --chat -f - >"$out" 2>"$err"
  status=$?
  check_status "a hostile line" 1
  check_has "a hostile line" "$err" "megalith: standard input line 2: expected text, found a NUL byte"
  check_has "a hostile line" "$err" "megalith: 1 of 3 prompts could not run"
  check_equal "a hostile line" "12 + 7 = 19.||||1 + 7 = 8.|" "$(tr '\n' '|' <"$out")"
  printf '\n \n' >"$work/blank"
  expect_error "only blank lines" "expected at least 1 prompt, found only blank lines" run -f "$work/blank"
  run run --chat -p "What is 12 + 7?" --stop nothing --stop " = "
  check_equal "run --stop" "12 + 7" "$(cat "$out")"
  run run --chat -p "What is 12 + 7?" --ignore-eos -n 40
  check_has "run --ignore-eos" "$err" "generated: 40 tokens"
  # More prompts than places: all, in order.
  for ((i = 0; i < 90; i++)); do echo "What is $((i + 10)) + 7?"; done >"$work/many"
  run run --chat -f "$work/many"
  check_status "90 prompts" 0
  check_equal "90 prompts" "$(for ((i = 0; i < 90; i++)); do echo "$((i + 10)) + 7 = $((i + 17))."; done)" \
    "$(grep -v '^$' "$out")"
}

test_run_jsonl() {
  {
    question "What is 12 + 7?" ', "id": "a\"\u00e9"'
    question "What is 137 + 245?" ', "id": 7, "stop": ["nothing", " ="]'
    echo
    echo 'nonsense'
    echo '{"prompt": "x", "temprature": 1}'
    echo '{"tokens": [5, 1024], "id": 9}'
    question "What is 12 + 7?" ', "max_tokens": 3'
    echo '{"prompt": "x", "tokens": [5]}'
    echo '{"prompt": ""}'
    echo '{"prompt": "x", "max_tokens": 100000}'
    echo '{"prompt": "x", "temperature": -1}'
    echo '{"prompt": "x", "stop": [1]}'
    echo '{"messages": []}'
    echo '{"messages": [{"role": "user"}]}'
    echo '{"messages": {"role": "user"}}'
    echo '["prompt"]'
    printf '{"prompt": "%s"}\n' "$(printf 'x%.0s' {1..3000})"
    printf '%s\n' "$(printf '[%.0s' {1..200})"
    printf '{"prompt": "\377"}\n'
    question "What is 20 + 22?" ', "seed": 4, "top_k": 0, "top_p": 1, "temperature": 0, "ignore_eos": true, "max_tokens": 30'
    printf '{"tokens": [5, 6], "max_tokens": 1}'
  } >"$work/lines.jsonl"
  run run --jsonl -f "$work/lines.jsonl"
  check_status "jsonl" 1
  check_has "jsonl" "$err" "megalith: $work/lines.jsonl line 5: unknown key \"temprature\""
  check_has "jsonl" "$err" "megalith: 15 of 20 prompts could not run"
  check_equal "jsonl: a line for each" 20 "$(wc -l <"$out")"
  check_equal "jsonl: order" "$(seq 0 19)" "$(sed 's/^{"index": \([0-9]*\), .*/\1/' "$out")"
  check_equal "jsonl: line numbers" "1 2 4 5" "$(sed -n 's/.*, "line": \([0-9]*\), .*/\1/p' "$out" | head -4 | xargs)"
  local expected=(
    '"id": "a\"\u00e9", "text": "12 + 7 = 19."'  # as UTF-8, replaced below
    '"id": 7, "text": "137 + 245", "tokens": ['
    '"finish_reason": "error", "error": "JSON: expected JSON, found at line 1'
    'unknown key'
    '"id": 9, "finish_reason": "error", "error": "\"tokens\"[1]: expected an id of 0 to 1023"'
    '"text": "12 +", "tokens": ['
    'expected one of prompt, messages and tokens, found 2'
    'expected at least 1 token'
    'expected \"max_tokens\" 511 at most'
    '\"temperature\": expected 0 to 100, found -1'
    '\"stop\": expected a string'
    'expected an array of 1 to 65536 objects'
    '\"messages\"[0]: expected a role and a content'
    'found no array'
    'expected a JSON object'
    'expected at most 511 tokens'
    'nested deeper than 64 levels'
    'expected JSON'
    '"finish_reason": "length", "prompt_tokens": 18, "generated_tokens": 30'
    '"prompt_tokens": 2, "generated_tokens": 1'
  )
  expected[0]="\"id\": \"a\\\"$(printf '\303\251')\", \"text\": \"12 + 7 = 19.\""
  local i
  for i in "${!expected[@]}"; do
    sed -n "$((i + 1))p" "$out" >"$work/line"
    check_has "jsonl: prompt $i" "$work/line" "${expected[i]}"
    check_json "jsonl: prompt $i" "$work/line"
  done
  # Standard input, and what else can be said with it.
  question "What is 1 + 7?" | "$program" run --jsonl >"$out" 2>"$err"
  check_has "jsonl on standard input" "$out" '"text": "1 + 7 = 8."'
  printf '{"prompt": "What is 1 + 7?", "tokens": null}\n{"prompt": "What is 1 + 7?"}\n' |
    "$program" run --jsonl --chat >"$out" 2>"$err"
  check_equal "jsonl with --chat" 1 "$(grep -c '"text": "1 + 7 = 8."' "$out")"
  run run --jsonl -f "$work/blank"
  check_error "jsonl of nothing" "expected at least 1 prompt"
  # Alone and together give the same; the seed is the line's own.
  printf '{"prompt": "Once", "temperature": 2, "seed": 3}\n' >"$work/warm"
  run run --jsonl -f "$work/warm"
  sed 's/.*"text"/"text"/' "$out" >"$work/alone"
  printf '{"prompt": "Twice"}\n{"prompt": "Once", "temperature": 2, "seed": 3}\n' >"$work/warm"
  run run --jsonl -f "$work/warm"
  check_equal "jsonl: a seed" "$(cat "$work/alone")" "$(tail -1 "$out" | sed 's/.*"text"/"text"/')"
  # Token ids need no tokenizer.
  rm -rf "$work/ids"
  mkdir "$work/ids"
  cp "$demo/config.json" "$work/ids"
  printf '{"tokens": [5, 6, 7], "max_tokens": 2}\n{"prompt": "x"}\n' >"$work/mixed"
  run run "$work/ids" --load-format dummy --jsonl -f "$work/mixed"
  check_status "jsonl without a tokenizer" 1
  check_has "jsonl without a tokenizer" "$out" '"text": "", "tokens": ['
  check_has "jsonl without a tokenizer" "$out" 'text needs a tokenizer.json'
}

# -------------------------------------------------------------------------------------------------

test_run_files
test_run_jsonl
finish
