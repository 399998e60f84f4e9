#!/usr/bin/env bash
# The `megalith` command as somebody types it who does not know it: what is misspelt, forgotten or
# borrowed from other programs gets a message that says what to type instead.
# Usage: test_cli_usage.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

# --- help ----------------------------------------------------------------------------------------

test_help_command() {
  run --help
  cp "$out" "$work/help"
  run help
  check_status "help" 0
  check_equal "help" "$(cksum <"$work/help")" "$(cksum <"$out")"
  run bench throughput --help
  cp "$out" "$work/help"
  local words
  run help help
  check_status "help help" 0
  for words in "help bench throughput" "--help bench throughput" "-h bench throughput"; do
    # shellcheck disable=SC2086
    run $words
    check_status "$words" 0
    check_equal "$words" "$(cksum <"$work/help")" "$(cksum <"$out")"
  done
  expect_error "help of nothing known" "unknown command \"rum\" (did you mean run?)" help rum
}

# --- commands ------------------------------------------------------------------------------------

test_commands() {
  local row
  local -a rows=(
    "rn|did you mean run?" "inf|did you mean info?" "toknize|did you mean tokenize?"
    "benchmark|did you mean bench?" "comp|did you mean compile or completion?" "RUN|did you mean run?"
    "generate|did you mean run?" "chat|did you mean run --chat?" "version|did you mean --version?"
    "-v|did you mean --version?" "pull|Megalith downloads nothing" "throughput|did you mean bench throughput?"
    "-p|expected a command before \"-p\", as in megalith run -p:"
    "Qwen/Qwen3-0.6B|as in megalith run Qwen/Qwen3-0.6B -p TEXT" "$demo|as in megalith run $demo -p TEXT"
  )
  for row in "${rows[@]}"; do
    expect_error "command ${row%%|*}" "${row#*|}" "${row%%|*}" x
  done
  expect_error "a word like none" 'unknown command "frobnicate": see' frobnicate
}

# --- options -------------------------------------------------------------------------------------

test_options() {
  local row
  # arguments of run | what is said
  local -a rows=(
    "--temp 1|--temp (did you mean --temperature?)" "--n 5|--n (did you mean -n, --max-tokens?)"
    "--p x|--p (did you mean -p, --prompt?)" "--top_k 5|(did you mean --top-k?)"
    "--TOP-K=5|(did you mean --top-k?)" "--top 5|(did you mean --top-k or --top-p?)"
    "--max-new-tokens 5|(did you mean --max-tokens?)" "--num-threads 2|(did you mean --threads?)"
    "--tokens 5|unknown option --tokens" "--dev cpu|(did you mean --device?)"
    "--temperatur=1|(did you mean --temperature?)" "--xyzzy|unknown option --xyzzy: see megalith run --help"
    "-prompt x|unknown option -prompt (did you mean --prompt?)"
    "-temp 1|found \"emp\" (did you mean --temperature?)"
    "-m $demo|MODEL stands without an option, as in megalith run path/to/model"
    "--model $demo|MODEL stands without an option, as in megalith run path/to/model"
    "--model=$demo|MODEL stands without an option" "-z|unknown option -z: see"
    "--gpu|(did you mean --device cuda?)" "--cpu|(did you mean --device cpu?)" "--eager|(did you mean --mode eager?)"
    "--HELP|(did you mean --help?)" "--=x|unknown option --=x: see" "--|expected at least 1 token"
    "-p --chat hi|--prompt: expected a value (TEXT), found the option --chat (if that is the value: --prompt=--chat)"
    "--stop -p x|--stop: expected a value (TEXT), found the option -p"
    "-f --jsonl|--file: expected a value (FILE), found the option --jsonl"
  )
  for row in "${rows[@]}"; do
    # shellcheck disable=SC2086
    expect_error "run ${row%%|*}" "${row#*|}" run ${row%%|*}
  done
  run run --chat "-p=What is 12 + 7?" -n=12
  check_equal "a value behind -p=" "12 + 7 = 19." "$(cat "$out")"
  run run --prompt=--chat -n 1
  check_status "an option as a text" 0
  run run -p -5 -n 1
  check_status "a number as a text" 0
  expect_error "graph has no MODEL" "unknown option --model:" graph --model x
}

# --- models --------------------------------------------------------------------------------------

test_models() {
  local row folder
  local hub='Megalith downloads nothing: get the model with "huggingface-cli download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B", or with git lfs installed "git clone https://huggingface.co/Qwen/Qwen3-0.6B"'
  for row in Qwen/Qwen3-0.6B https://huggingface.co/Qwen/Qwen3-0.6B hf.co/Qwen/Qwen3-0.6B; do
    expect_error "run $row" "$row does not exist: " run "$row" -p x
    check_has "run $row" "$err" "$hub"
  done
  expect_error "plan of a hub's name" "$hub" plan Qwen/Qwen3-0.6B
  expect_error "a name without its owner" "Megalith downloads nothing, and a prompt stands behind -p" run qwen3
  expect_error "a prompt as MODEL" "a prompt stands behind -p, in quotes" run "Hello there"
  expect_error "a question as MODEL" "a prompt stands behind -p, in quotes" run "Why?"
  expect_error "a prompt without quotes" 'found "is" and "this": a prompt stands behind -p, in quotes' \
    run -p What is this
  expect_error "text for tokenize" "text is read from standard input" tokenize "Hello there"
  expect_error "text for score" "text stands behind --text" score "Hello there" --tokens 1
  expect_error "a subcommand" "(did you mean megalith bench throughput?)" bench througput
  expect_error "help as MODEL" "see megalith bench --help" bench help
  for row in /no/where ./no no/where/at-all; do
    expect_error "run $row" "$row does not exist: expected a folder" run "$row" -p x
    checks=$((checks + 1))
    grep -q "downloads\|prompt" "$err" && fail "run $row" "no more than that" "$(show "$err")"
  done
  expect_error "a file of weights" "name the folder that it lies in" run "$demo/model.safetensors" -p x
  : >"$work/model.gguf"
  expect_error "an empty GGUF file" "is the download complete?" run "$work/model.gguf" -p x
  mkdir -p "$work/models--a--b/snapshots"
  expect_error "a hub's cache" "the model is the folder inside $work/models--a--b/snapshots" \
    run "$work/models--a--b" -p x
  local pointer='version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 11422654\n'
  for row in model.safetensors tokenizer.json; do
    folder=$(copy_demo lfs "$row")
    # shellcheck disable=SC2059
    printf "$pointer" >"$folder/$row"
    expect_error "git lfs: $row" 'are pointers of git lfs: run "git lfs pull" in it' run "$folder" -p x
  done
}

# --- a reader that goes --------------------------------------------------------------------------

test_reader_gone() {
  local command
  for command in "run -p Once -n 400 --ignore-eos" "run --jsonl -f $work/many.jsonl" "run -p a -p b -n 100 --logprobs 5"; do
    for ((i = 0; i < 200; i++)); do echo '{"prompt": "Once", "max_tokens": 8}'; done >"$work/many.jsonl"
    # shellcheck disable=SC2086
    timeout 120 "$program" $command 2>"$err" </dev/null | head -c 5 >"$out"
    check_equal "$command | head -c 5" 141 "${PIPESTATUS[0]}"
    check_equal "$command | head -c 5: its output" 5 "$(wc -c <"$out")"
    check_empty "$command | head -c 5: standard error" "$err"
  done
  # What it was writing is removed.
  timeout 120 "$program" run -p Once -n 400 --ignore-eos --trace "$work/gone.json" 2>"$err" </dev/null | head -c 5 >"$out"
  check_equal "a trace of it: files left" 0 "$(find "$work" -name '*gone*' | wc -l)"
}

# --- a machine without /sys ----------------------------------------------------------------------

test_no_sys() {
  local flags=-m
  [ "$(id -u)" -eq 0 ] || flags=-rm
  if ! unshare "$flags" mount -t tmpfs none /sys 2>/dev/null; then
    skip "no mount namespace is allowed here: a machine without /sys is not tested"
    return
  fi
  # shellcheck disable=SC2016
  timeout 120 unshare "$flags" sh -c 'mount -t tmpfs none /sys && exec "$@"' - \
    "$program" score --tokens 1,2 --threads 2 >"$out" 2>"$err" </dev/null
  status=$?
  check_status "without /sys" 0
  check_empty "without /sys: standard error" "$err"
  run info
  grep '^cores' "$out" >"$work/cores"
  # shellcheck disable=SC2016
  unshare "$flags" sh -c 'mount -t tmpfs none /sys && exec "$@"' - "$program" info >"$out" 2>"$err" </dev/null
  check_equal "without /sys: cores" "$(cat "$work/cores")" "$(grep '^cores' "$out")"
}

# --- JSON lines ----------------------------------------------------------------------------------

test_json_lines() {
  local folder key
  folder=$(config_only)
  # A line that needs a tokenizer, where there is none: the others run.
  printf '%s\n' '{"tokens": [5, 6], "max_tokens": 2, "id": 1}' '{"tokens": [5], "stop": ["x"], "id": 2}' \
    '{"prompt": "x", "id": 3}' '{"messages": [{"role": "user", "content": "x"}], "id": 4}' \
    '{"tokens": [7], "max_tokens": 1, "id": 5}' >"$work/mixed.jsonl"
  run run "$folder" --load-format dummy --jsonl -f "$work/mixed.jsonl"
  check_status "jsonl: lines that need a tokenizer" 1
  check_equal "jsonl: lines that need a tokenizer: answers" 5 "$(wc -l <"$out")"
  check_equal "jsonl: lines that need a tokenizer: reasons" "length error error error length" \
    "$(sed 's/.*"finish_reason": "\([a-z]*\)".*/\1/' "$out" | xargs)"
  check_has "jsonl: stop texts" "$err" "line 2: stop texts need a tokenizer.json in the model's folder"
  check_has "jsonl: how many" "$err" "3 of 5 prompts could not run"

  # The message names the keys that are read: all of them, and no other.
  printf '{"prompt": "x", "temprature": 1}\n' >"$work/unknown.jsonl"
  run run --jsonl -f "$work/unknown.jsonl"
  check_status "jsonl: an unknown key" 1
  sed -n 's/.*"temprature": expected \(.*\)/\1/p' "$err" | sed 's/ or /, /; s/, /\n/g' >"$work/keys"
  for key in id prompt messages tokens max_tokens stop ignore_eos temperature top_k top_p min_p repetition_penalty \
    presence_penalty frequency_penalty logit_bias min_tokens logprobs seed; do
    checks=$((checks + 1))
    grep -qx "$key" "$work/keys" || fail "jsonl: the keys of the message" "$key among them" "$(show "$work/keys")"
  done
  while read -r key; do
    printf '{"%s": []}\n' "$key"
  done <"$work/keys" >"$work/known.jsonl"
  run run --jsonl -f "$work/known.jsonl"
  checks=$((checks + 1))
  grep -q "unknown key" "$err" && fail "jsonl: the keys of the message" "keys that are known" "$(show "$err")"
}

# -------------------------------------------------------------------------------------------------

test_help_command
test_commands
test_options
test_models
test_reader_gone
test_no_sys
test_json_lines
finish
