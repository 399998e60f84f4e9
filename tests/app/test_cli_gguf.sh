#!/usr/bin/env bash
# The `megalith` command with a GGUF file in the place of a model's folder: every subcommand that takes
# one, and the server. Usage: test_cli_gguf.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"
. "$(dirname "$0")/server.sh"
data=$(realpath "$(dirname "$0")/../data/gguf")
model=$data/llama_mixed.gguf

test_commands() {
  local mapped copied
  run run "$model" -p "ab c 12" -n 8
  check_status "run" 0
  mapped=$(cat "$out")
  check_number "length of what was generated" "x > 1" "${#mapped}"
  run run "$model" -p "ab c 12" -n 8 --load-format copied --mode eager -t 1
  copied=$(cat "$out")
  check_equal "run, mode eager" "$mapped" "$copied"
  run run "$model" --chat -p "ab" -n 2
  check_status "run --chat" 0
  run template "$model" -p hello
  check_equal "template" "hello!" "$(cat "$out")"
  run score "$model" --tokens 1,4,5 --json
  check_has "score" "$out" '"perplexity"'
  run plan "$model"
  check_has "plan" "$out" "llama_mixed.gguf (llama, GGUF Q3_K)"
  run compile "$model" -w 2
  check_status "compile" 0
  run bench "$model" -p 4 -g 2 --runs 1 -t 1 --mode mega
  check_status "bench" 0
  run run "$model" --load-format dummy -p ab -n 2
  check_status "run with dummy weights" 0
}

# The demo model's tokenizer, from both.
test_tokenize() {
  "$program" tokenize "$demo" <"$demo/README.md" >"$work/folder"
  "$program" tokenize "$data/demo_vocabulary.gguf" <"$demo/README.md" >"$work/file"
  check_equal "tokenize" "$(cksum <"$work/folder")" "$(cksum <"$work/file")"
}

test_errors() {
  expect_error "a vocabulary alone" "is missing from" run "$data/demo_vocabulary.gguf" -p x
  expect_error "no tokenizer" "has no tokenizer" run "$data/qwen3_bf16.gguf" -p x
  expect_error "no architecture" '"none" is not supported; supported are llama' \
    run "$data/types.gguf" -p x
  head -c 70000 "$model" >"$work/cut.gguf"
  expect_error "a download that was cut" "is the download complete?" run "$work/cut.gguf" -p x
}

test_server() {
  start "$model" -t 1
  ask GET /v1/models ""
  check_has "/v1/models" "$out" '"llama_mixed.gguf"'
  ask POST /v1/completions '{"prompt": "ab c", "max_tokens": 3, "temperature": 0}'
  check_has "/v1/completions" "$out" '"completion_tokens":3'
  ask POST /v1/chat/completions \
    '{"messages": [{"role": "user", "content": "ab"}], "max_tokens": 3, "temperature": 0}'
  check_has "/v1/chat/completions" "$out" '"role":"assistant"'
  stop TERM
}

test_commands
test_tokenize
test_errors
test_server
finish
