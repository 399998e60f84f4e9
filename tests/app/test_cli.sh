#!/usr/bin/env bash
# The `megalith` command from outside: what each command prints, and the exit status and message of
# every kind of bad input. Usage: test_cli.sh PROGRAM DEMO_FOLDER
#
# Needs bash, coreutils, sed, grep and awk only; what else would help (jq, zsh, fish, script) is used
# where it is installed, and a check that is left out says so. Each failed check prints what it
# expected and found; the status is 1 if any failed.
set -u
program=$(realpath "$1")
demo=$(realpath "$2")
checks=0
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C
unset NO_COLOR
export MEGALITH_DEMO="$demo"

# --- helpers -------------------------------------------------------------------------------------

fail() {  # what, expected, found
  failures=$((failures + 1))
  printf 'FAILED %s\n  expected: %s\n  found:    %s\n' "$1" "$2" "$3"
}

# Runs the program with the given arguments; leaves $out, $err (files) and $status.
out=$work/stdout
err=$work/stderr
run() {
  timeout 120 "$program" "$@" >"$out" 2>"$err" </dev/null
  status=$?
}

show() {  # first lines of a file, in one line
  head -c 600 "$1" | tr '\n' '|'
}

check_status() {  # what, expected status
  checks=$((checks + 1))
  if [ "$status" -ne "$2" ]; then
    fail "$1" "exit status $2" "$status; stderr: $(show "$err")"
  fi
}

check_has() {  # what, file, fixed string
  checks=$((checks + 1))
  if ! grep -qF -e "$3" "$2"; then
    fail "$1" "text with: $3" "$(show "$2")"
  fi
}

check_equal() {  # what, expected, found
  checks=$((checks + 1))
  if [ "$2" != "$3" ]; then
    fail "$1" "$2" "$3"
  fi
}

check_empty() {  # what, file
  checks=$((checks + 1))
  if [ -s "$2" ]; then
    fail "$1" "nothing" "$(show "$2")"
  fi
}

# Runs and expects status 1, one line "megalith: ..." that contains the text, nothing on stdout.
expect_error() {  # what, text, arguments...
  local what=$1 text=$2
  shift 2
  run "$@"
  check_error "$what" "$text"
}

check_error() {  # what, text
  check_status "$1" 1
  check_has "$1" "$err" "$2"
  check_has "$1" "$err" "megalith: "
  check_equal "$1: lines of the message" 1 "$(wc -l <"$err")"
  check_empty "$1: standard output" "$out"
}

skip() {
  printf 'skipped: %s\n' "$1"
}

# A copy of the demo folder whose files can be changed; links to all but the named files.
copy_demo() {  # name, files to copy...
  local folder=$work/$1
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  ln -s "$demo"/* "$folder"/
  local file
  for file in "$@"; do
    rm -f "$folder/$file"
    cp "$demo/$file" "$folder/$file"
    chmod u+w "$folder/$file"
  done
  printf '%s' "$folder"
}

little_endian_64() {  # number, at most 32 bits
  printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x\\x00\\x00\\x00\\x00' \
    $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)))"
}

# A safetensors file with this JSON header and no data.
write_header() {  # file, json
  { little_endian_64 ${#2}; printf '%s' "$2"; } >"$1"
}

check_json() {  # what, file
  if command -v jq >/dev/null; then
    checks=$((checks + 1))
    jq -e . "$2" >/dev/null 2>&1 || fail "$1" "JSON" "$(show "$2")"
  fi
}

# --- help, version, completion -------------------------------------------------------------------

test_help() {
  local command
  run --help
  check_status "--help" 0
  for command in run score tokenize bench info completion; do
    check_has "--help" "$out" "  $command "
  done
  check_empty "--help: standard error" "$err"
  for command in run score tokenize bench info completion; do
    run "$command" --help
    check_status "$command --help" 0
    check_has "$command --help" "$out" "Usage: megalith $command"
    check_has "$command --help" "$out" "Examples:"
    check_equal "$command --help: lines over 100 columns" 0 "$(grep -c '.\{101\}' "$out")"
    run "$command" -h --no-such-option
    check_status "$command -h with a mistake" 0
  done
  run run --help
  for option in prompt file chat system max-tokens temperature top-k top-p seed threads mode; do
    check_has "run --help" "$out" "--$option"
  done
  run --version
  check_status "--version" 0
  check_equal "--version" 1 "$(grep -c '^megalith [0-9]*\.[0-9]*\.[0-9]*$' "$out")"
}

test_completion() {
  local shell
  for shell in bash zsh fish; do
    run completion "$shell"
    check_status "completion $shell" 0
    check_has "completion $shell" "$out" "load-format"
    cp "$out" "$work/completion.$shell"
    if command -v "$shell" >/dev/null; then
      checks=$((checks + 1))
      "$shell" -n "$work/completion.$shell" || fail "completion $shell" "a script that parses" "above"
    else
      skip "$shell is not installed: its completion script is not parsed"
    fi
  done
  complete_words() {
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _megalith
             echo "${COMPREPLY[*]}"' - "$work/completion.bash" "$@"
  }
  mkdir -p "$work/folders/model one"
  check_equal "bash: commands" "tokenize" "$(complete_words megalith to)"
  check_equal "bash: options" "--temperature" "$(complete_words megalith run --te)"
  check_equal "bash: choices" "dummy" "$(complete_words megalith bench --load-format du)"
  check_equal "bash: folders" "$work/folders/model one" \
    "$(complete_words megalith run "$work/folders/mo")"
  expect_error "completion without a shell" "expected bash, zsh or fish" completion
  expect_error "completion of an unknown shell" "expected bash, zsh or fish" completion tcsh
}

# --- usage errors --------------------------------------------------------------------------------

test_usage() {
  expect_error "no command" "expected a command"
  expect_error "unknown command" "unknown command \"rum\" (did you mean run?)" rum
  expect_error "unknown option" "unknown option --temprature=1 (did you mean --temperature?)" \
    run -p x --temprature=1
  check_has "unknown option" "$err" "see megalith run --help"
  expect_error "unknown short option" "unknown option -z" run -z
  expect_error "missing value" "--max-tokens: expected a value (N)" run -p x -n
  expect_error "value of a flag" "--chat takes no value" run --chat=yes
  expect_error "two models" "expected one MODEL" run a b
  expect_error "positional of info" "expected options only" info x
  expect_error "not a number" "--max-tokens: expected a whole number of 1 to" run -p x -n abc
  expect_error "number with a tail" "--seed: expected a whole number of" run -p x --seed 1x
  expect_error "negative number" "found -5" run -p x -n -5
  expect_error "zero tokens" "--max-tokens: expected 1 to" run -p x -n 0
  expect_error "overflow" "found 99999999999999999999999" run -p x -n 99999999999999999999999
  expect_error "zero threads" "--threads: expected 1 to 1024, found 0" run -p x --threads 0
  expect_error "10^9 threads" "--threads: expected 1 to 1024, found 1000000000" \
    run -p x --threads 1000000000
  expect_error "zero threads of bench" "--threads: expected 1 to 1024, found 0" bench --threads=0
  expect_error "temperature" "--temperature: expected a number of 0 to 100, found -1" \
    run -p x --temperature -1
  expect_error "temperature nan" "--temperature: expected a number of 0 to 100, found nan" \
    run -p x --temperature nan
  expect_error "top-p zero" "top-p: expected above 0 and at most 1" run -p x --top-p 0
  expect_error "top-p above 1" "--top-p: expected a number of 0 to 1, found 1.5" run -p x --top-p 1.5
  expect_error "mode" "--mode: expected eager, found \"fast\"" run -p x --mode fast
  expect_error "mode list" "found \"\"" bench --mode eager,
  expect_error "load format" "expected auto, mapped, copied or dummy, found \"lazy\"" \
    bench --load-format lazy
  expect_error "system without chat" "--system needs --chat" run -p x --system y
  expect_error "score of nothing" "expected one of --tokens and --text, found neither" score
  expect_error "score of both" "found both" score --tokens 1 --text x
  expect_error "generate 1" "--generate: expected 2 to" bench --generate 1
  expect_error "batch 65" "--batch: expected 1 to 64, found 65" bench --batch 65
  MEGALITH_SIMD=mmx expect_error "SIMD level" "MEGALITH_SIMD: expected scalar" run -p x
}

# --- run -----------------------------------------------------------------------------------------

test_run() {
  run run --chat -p "What is 137 + 245?"
  check_status "run --chat" 0
  check_equal "run --chat" "137 + 245 = 382." "$(cat "$out")"
  check_has "run: statistics" "$err" "of the read ceiling of"
  check_has "run: statistics" "$err" "generated: "
  check_equal "run: lines of statistics" 1 "$(wc -l <"$err")"

  run run --chat -p "What is 137 + 245?" -p "What is 12 + 7?" --prompt="What is 137 + 245?"
  check_status "three prompts" 0
  check_equal "three prompts" "137 + 245 = 382.||12 + 7 = 19.||137 + 245 = 382.|" \
    "$(tr '\n' '|' <"$out")"

  printf 'What is 12 + 7?' >"$work/prompt"
  run run --chat -f "$work/prompt"
  check_equal "run -f" "12 + 7 = 19." "$(cat "$out")"
  printf 'What is 12 + 7?' | "$program" run --chat >"$out" 2>"$err"
  check_equal "run with text on stdin" "12 + 7 = 19." "$(cat "$out")"
  printf 'What is 12 + 7?' | "$program" run --chat -f - >"$out" 2>"$err"
  check_equal "run -f -" "12 + 7 = 19." "$(cat "$out")"
  run run --chat --system "Be brief." -p "What is 12 + 7?" -- "$demo"
  check_equal "run with MODEL behind --" "12 + 7 = 19." "$(cat "$out")"

  run run -p "Once upon a time" -n20
  check_status "run -n20" 0
  cp "$out" "$work/greedy"
  check_has "run -n20" "$err" "generated: 20 tokens"
  run run -p "Once upon a time" -n 20 --temperature 0 --threads 1 --mode eager
  checks=$((checks + 1))
  cmp -s "$out" "$work/greedy" || fail "temperature 0, one thread" "$(show "$work/greedy")" "$(show "$out")"
  run run -p "Once upon a time" -n 20 --load-format copied
  checks=$((checks + 1))
  cmp -s "$out" "$work/greedy" || fail "copied weights" "$(show "$work/greedy")" "$(show "$out")"
  run run -p "Once upon a time" -n 20 --top-k 1
  checks=$((checks + 1))
  cmp -s "$out" "$work/greedy" || fail "top-k 1" "$(show "$work/greedy")" "$(show "$out")"

  run run -p "Once" -n 30 --temperature 2 --seed 7
  cp "$out" "$work/sampled"
  run run -p "Once" -n 30 --temperature 2 --seed 7 --threads 3
  checks=$((checks + 1))
  cmp -s "$out" "$work/sampled" || fail "same seed" "$(show "$work/sampled")" "$(show "$out")"
  run run -p "Once" -p "Once" -n 30 --temperature 2 --seed 6
  checks=$((checks + 1))
  tail -c "$(wc -c <"$work/sampled")" "$out" | cmp -s - "$work/sampled" ||
    fail "prompt 1 uses seed + 1" "$(show "$work/sampled")" "$(show "$out")"

  # More prompts than run together.
  local arguments=() i
  for ((i = 0; i < 70; i++)); do
    arguments+=(-p "What is $i + 1?")
  done
  run run --chat "${arguments[@]}" -n 24
  check_status "70 prompts" 0
  check_equal "70 prompts: outputs" 139 "$(wc -l <"$out")"
  check_has "70 prompts" "$out" "69 + 1 = 70."
}

test_run_errors() {
  local long
  long=$(printf 'word %.0s' {1..800})
  expect_error "empty prompt" "prompt 1: expected at least 1 token, found an empty text" run -p ""
  expect_error "empty stdin" "prompt 1: expected at least 1 token" run
  expect_error "prompt beyond the context" "the model's context is 512" run -p "$long"
  expect_error "second prompt beyond the context" "prompt 2: expected at most 511" \
    run -p x -p "$long"
  expect_error "-n beyond the context" "do not fit into the model's context of 512" run -p x -n 600
  expect_error "missing prompt file" "cannot open $work/none" run -f "$work/none"
  expect_error "folder as prompt file" "expected a regular file" run -f "$work"
  printf 'a\0b' >"$work/nul"
  expect_error "NUL in a chat" "found a NUL byte" run --chat -f "$work/nul"
  printf '\377\376' >"$work/invalid"
  run run -f "$work/invalid" -n 2
  check_status "invalid UTF-8 in a prompt" 0
}

# --- score ---------------------------------------------------------------------------------------

test_score() {
  run score --text "What is 12 + 7?"
  check_status "score --text" 0
  check_has "score --text" "$out" "perplexity: "
  check_has "score --text" "$out" "position"
  run score --tokens 1,2,3 --json
  check_status "score --json" 0
  check_json "score --json" "$out"
  check_has "score --json" "$out" '{"tokens": [1, 2, 3], "logprobs": [null, -'
  check_has "score --json" "$out" '"perplexity": '
  check_has "score --json" "$out" '"nll": '
  cp "$out" "$work/score"
  run score --tokens "[1, 2 ,3]" --json --threads 1
  checks=$((checks + 1))
  cmp -s "$out" "$work/score" || fail "score with one thread" "$(show "$work/score")" "$(show "$out")"
  run score --tokens 1 --json
  check_status "score of one token" 0
  check_has "score of one token" "$out" '"perplexity": null'
  run score --tokens 1
  check_has "score of one token" "$out" "perplexity: none"

  # A prefix scores the same as the beginning of a longer text, over chunk boundaries.
  local ids
  ids=$(seq -s, 1 200)
  run score --tokens "$ids" --json
  sed 's/.*"logprobs": \[\([^]]*\)\].*/\1/' "$out" | tr -d ' ' | cut -d, -f1-150 >"$work/long"
  run score --tokens "$(seq -s, 1 150)" --json
  sed 's/.*"logprobs": \[\([^]]*\)\].*/\1/' "$out" | tr -d ' ' >"$work/short"
  check_equal "score of a prefix" "$(cat "$work/long")" "$(cat "$work/short")"

  run score --tokens 1,2,3 --logits "$work/logits.npy"
  check_status "score --logits" 0
  check_equal "npy size" $((128 + 3 * 1024 * 4)) "$(wc -c <"$work/logits.npy")"
  check_has "npy header" "$work/logits.npy" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 1024), }"
  check_equal "npy magic" "93 4e 55 4d 50 59 01 00 76 00" \
    "$(od -An -tx1 -N10 "$work/logits.npy" | sed 's/^ *//')"
  run score "$demo" --tokens 1,2,3 --logits "$work/logits.npy" --text=
  check_error "score of both" "found both"
  expect_error "logits into a folder that is not there" "cannot create" \
    score --tokens 1,2 --logits "$work/none/x.npy"
  expect_error "logits into a device" "expected a regular file or none" \
    score --tokens 1,2 --logits /dev/null
  check_equal "no temporary file is left" 0 "$(find "$work" -name '*.partial-*' | wc -l)"

  expect_error "unknown token" "--tokens: expected an id of 0 to 1023, found \"1024\"" \
    score --tokens 1,1024
  expect_error "negative token" "expected a token id, found \"-1\"" score --tokens=-1
  expect_error "huge token" "expected an id of 0 to 1023" score --tokens 99999999999999999999
  expect_error "no tokens" "expected at least 1 token, found none" score --tokens ""
  expect_error "trailing comma" "expected a token id, found the end" score --tokens 1,2,
  expect_error "word as token" "expected a token id, found \"a\"" score --tokens 1,a
  expect_error "tokens beyond the context" "expected at most 512 tokens (the model's context)" \
    score --tokens "$(seq -s, 1 513)"
  local folder
  folder=$(copy_demo no_tokenizer)
  rm "$folder/tokenizer.json"
  run score "$folder" --tokens 1,2,3 --json
  checks=$((checks + 1))
  cmp -s "$out" "$work/score" || fail "score without a tokenizer" "$(show "$work/score")" "$(show "$out")"
}

# --- tokenize ------------------------------------------------------------------------------------

filter() {  # input, arguments...
  local input=$1
  shift
  printf '%b' "$input" | timeout 120 "$program" tokenize "$@" >"$out" 2>"$err"
  status=$?
}

test_tokenize() {
  local text='Gr\xc3\xbc\xc3\x9fe, \xf0\x9f\x98\x80 12 tabs\tand\n\nlines  '
  filter "$text"
  check_status "tokenize" 0
  check_json "tokenize" "$out"
  check_equal "tokenize: one line" 1 "$(wc -l <"$out")"
  timeout 120 "$program" tokenize --decode <"$out" >"$work/decoded" 2>"$err"
  checks=$((checks + 1))
  printf '%b' "$text" | cmp -s - "$work/decoded" ||
    fail "tokenize and back" "$(printf '%b' "$text" | od -c | head -3)" "$(show "$work/decoded")"
  filter ''
  check_equal "tokenize nothing" "[]" "$(cat "$out")"
  filter '<|im_end|>'
  check_equal "special token" "[1023]" "$(cat "$out")"
  filter '<|im_end|>' --plain
  checks=$((checks + 1))
  grep -q '1023' "$out" && fail "tokenize --plain" "ids without 1023" "$(cat "$out")"
  filter '1023 46,77' --decode
  check_equal "decode with special tokens" "<|im_end|>On" "$(cat "$out")"
  filter '1023 46,77' --decode --no-special
  check_equal "decode without special tokens" "On" "$(cat "$out")"
  filter ' [ ] ' --decode
  check_status "decode nothing" 0
  check_empty "decode nothing" "$out"
  filter '[1, 99999]' --decode
  check_error "decode an unknown id" "expected an id of 0 to 1023, found \"99999]\""
  filter '[1, -2]' --decode
  check_error "decode a negative id" "expected a token id"
  filter '[1, 2' --decode
  check_error "decode an open array" "found the end"
  filter '[1] x' --decode
  check_error "decode a tail" "expected nothing behind the array"
  filter '{"a": 1}' --decode
  check_error "decode an object" "expected a token id"
  filter "$(printf '[%.0s' {1..10000})" --decode
  check_error "decode deep nesting" "expected a token id"
  filter '1' --decode --plain
  check_error "--decode --plain" "--plain is for encoding"
}

# --- bench and info ------------------------------------------------------------------------------

test_bench() {
  run bench --prompt 8 --generate 8 --runs 1
  check_status "bench" 0
  check_has "bench" "$out" "ms/token"
  check_has "bench" "$out" "eager"
  run bench --batch 3 --prompt 70 --generate 8 --runs 2 --json --threads 2
  check_status "bench --json" 0
  check_json "bench --json" "$out"
  local field
  for field in '"mode": "eager"' ms_per_token bytes_per_token gbps ceiling_gbps share batch prompt \
    generate threads simd model tokens_per_s prompt_ms prompt_tokens_per_s load_format; do
    check_has "bench --json" "$out" "$field"
  done
  # Weights once, and 3 sequences of 70 + 8 / 2 tokens of context with 8 layers * K, V * 2 heads * 64
  # bf16 each.
  check_has "bench: bytes per token" "$out" \
    "\"bytes_per_token\": $((13107200 - 0 + 3 * 74 * 8 * 2 * 2 * 64 * 2))"
  mkdir -p "$work/dummy"
  cp "$demo/config.json" "$work/dummy"
  run bench "$work/dummy" --load-format dummy --mode eager,eager -p 4 -g 4 --runs 1 --json
  check_status "bench --load-format dummy" 0
  check_has "bench --load-format dummy" "$out" '"load_format": "dummy"'
  check_equal "bench: one object per mode" 1 "$(grep -c '"mode"' "$out")"
  expect_error "bench without weights" "dummy: found no weights" bench "$work/dummy"
  expect_error "bench beyond the context" "expected 512 tokens at most together" \
    bench --prompt 500 --generate 100

  sed 's/"hidden_size": 256/"hidden_size": 65536/; s/"intermediate_size": 768/"intermediate_size": 262144/
       s/"num_hidden_layers": 8/"num_hidden_layers": 1024/; /layer_types/,/\]/d' \
    "$demo/config.json" >"$work/dummy/config.json"
  expect_error "too little memory" "too little memory for the weights: needs" \
    bench "$work/dummy" --load-format dummy
}

test_info() {
  run info
  check_status "info" 0
  local word
  for word in processor "SIMD level" cores NUMA "memory bandwidth" GPU megalith jansson; do
    check_has "info" "$out" "$word"
  done
  check_has "info" "$out" "GB/s"
}

# --- broken models -------------------------------------------------------------------------------

test_bad_models() {
  local folder
  expect_error "no such folder" "$work/none does not exist" run "$work/none" -p x
  expect_error "file as folder" "is a file" run "$work/prompt" -p x
  mkdir -p "$work/empty"
  expect_error "empty folder" "has no config.json" run "$work/empty" -p x
  MEGALITH_DEMO=$work/none expect_error "no demo" "$work/none does not exist" run -p x

  folder=$(copy_demo no_weights)
  rm "$folder/model.safetensors"
  expect_error "no weights" "safetensors" run "$folder" -p x
  folder=$(copy_demo no_tokenizer)
  rm "$folder/tokenizer.json"
  expect_error "no tokenizer" "has no tokenizer.json" run "$folder" -p x

  folder=$(copy_demo weights model.safetensors)
  truncate -s 5 "$folder/model.safetensors"
  expect_error "weights of 5 bytes" "model.safetensors" run "$folder" -p x
  cp "$demo/model.safetensors" "$folder"
  truncate -s -1000 "$folder/model.safetensors"
  expect_error "truncated weights" "model.safetensors" run "$folder" -p x
  truncate -s 0 "$folder/model.safetensors"
  expect_error "empty weights" "model.safetensors" run "$folder" -p x
  printf '\377\377\377\377\377\377\377\177{}' >"$folder/model.safetensors"
  expect_error "a header length that lies" "model.safetensors" run "$folder" -p x
  write_header "$folder/model.safetensors" '{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 99]}}'
  expect_error "offsets that lie" "model.safetensors" run "$folder" -p x
  write_header "$folder/model.safetensors" '{"x": '
  expect_error "a header that is not JSON" "model.safetensors" run "$folder" -p x
  write_header "$folder/model.safetensors" "$(printf '[%.0s' {1..5000})"
  expect_error "a deeply nested header" "model.safetensors" run "$folder" -p x
  write_header "$folder/model.safetensors" '{}'
  expect_error "no tensors" "embed_tokens" run "$folder" -p x
  LC_ALL=C sed 's/"dtype":"BF16"/"dtype":"I16" /' "$demo/model.safetensors" >"$folder/model.safetensors"
  expect_error "wrong dtype" "I16" run "$folder" -p x

  folder=$(copy_demo config config.json)
  change() {  # sed script
    sed "$1" "$demo/config.json" >"$folder/config.json"
  }
  change 's/"intermediate_size": 768/"intermediate_size": 512/'
  expect_error "wrong shapes" "expects shape [512, 256], the file has [768, 256]" run "$folder" -p x
  change 's/"hidden_size": 256/"hidden_size": 1000000000000/'
  expect_error "absurd hidden size" "\"hidden_size\": expected 1 to 65536, found 1000000000000" \
    run "$folder" -p x
  change 's/"num_hidden_layers": 8/"num_hidden_layers": 0/'
  expect_error "no layers" "num_hidden_layers" run "$folder" -p x
  change 's/"num_attention_heads": 4/"num_attention_heads": -4/'
  expect_error "negative heads" "num_attention_heads" run "$folder" -p x
  change 's/"vocab_size": 1024/"vocab_size": "many"/'
  expect_error "vocabulary of the wrong type" "\"vocab_size\": expected an integer, found a string" \
    run "$folder" -p x
  change 's/"vocab_size": 1024/"vocab_size": 1000/; /token_id/d'
  rm "$folder/generation_config.json"
  expect_error "tokenizer beyond the vocabulary" "expected token ids below the vocab_size" \
    run "$folder" -p x
  change 's/Qwen3ForCausalLM/GPT2LMHeadModel/; s/"qwen3"/"gpt2"/'
  expect_error "unknown architecture" "GPT2LMHeadModel" run "$folder" -p x
  printf '{"a": ' >"$folder/config.json"
  expect_error "broken config" "expected JSON" run "$folder" -p x
  printf '[%.0s' {1..100000} >"$folder/config.json"
  expect_error "deeply nested config" "nested deeper than" run "$folder" -p x
  printf '[]' >"$folder/config.json"
  expect_error "config that is an array" "config.json" run "$folder" -p x

  folder=$(copy_demo tokenizer tokenizer.json)
  printf '{"version": "1.0"' >"$folder/tokenizer.json"
  expect_error "broken tokenizer" "tokenizer.json" run "$folder" -p x
  printf '{"version": "1.0"}' >"$folder/tokenizer.json"
  expect_error "tokenizer without a model" "tokenizer.json" run "$folder" -p x
  folder=$(copy_demo generation generation_config.json)
  printf '{"temperature": "hot"}' >"$folder/generation_config.json"
  expect_error "broken generation config" "temperature" run "$folder" -p x
  folder=$(copy_demo chat tokenizer_config.json)
  printf '{}' >"$folder/tokenizer_config.json"
  expect_error "no chat template" "chat template" run "$folder" --chat -p x
  run run "$folder" -p x -n 2
  check_status "no chat template, none wanted" 0
}

# --- the outside world ---------------------------------------------------------------------------

test_streams() {
  local command
  for command in "run -p x -n 5" "score --tokens 1,2" "info" "--help" "--version" "completion bash" \
    "bench -p 2 -g 2 --runs 1" "run --help"; do
    # shellcheck disable=SC2086
    timeout 120 "$program" $command >/dev/full 2>"$err" </dev/null
    status=$?
    check_status "$command > /dev/full" 1
    check_has "$command > /dev/full" "$err" "cannot write to standard output: No space left"
    # shellcheck disable=SC2086
    timeout 120 "$program" $command >&- 2>"$err" </dev/null
    status=$?
    check_status "$command with stdout closed" 1
    check_has "$command with stdout closed" "$err" "cannot write to standard output"
  done
  timeout 120 "$program" score --tokens 1,2 --logits "$work/closed.npy" >&- 2>"$err" </dev/null
  check_equal "stdout closed: the npy file" $((128 + 2 * 1024 * 4)) "$(wc -c <"$work/closed.npy")"
  timeout 120 "$program" tokenize <&- >"$out" 2>"$err"
  status=$?
  check_error "tokenize with stdin closed" "cannot read standard input"
  # The reader has gone.
  { sleep 0.2; timeout 120 "$program" --help; echo $? >"$work/status"; } 2>"$err" | true
  check_equal "a broken pipe" 1 "$(cat "$work/status")"
  check_has "a broken pipe" "$err" "Broken pipe"
}

# A model that never ends: a long context and no end tokens.
endless_model() {
  local folder
  folder=$(copy_demo endless config.json)
  rm "$folder/generation_config.json"
  sed 's/"max_position_embeddings": 512/"max_position_embeddings": 200000/; /eos_token_id/d' \
    "$demo/config.json" >"$folder/config.json"
  printf '%s' "$folder"
}

test_interrupt() {
  local folder
  folder=$(endless_model)
  # --foreground: else timeout signals twice, the child and its group, and a second Ctrl-C kills.
  timeout --foreground --preserve-status -s INT 2 "$program" run "$folder" -p "Once" -p "Then" -n 60000 \
    >"$out" 2>"$err" </dev/null
  status=$?
  check_status "Ctrl-C" 130
  check_has "Ctrl-C: statistics" "$err" "of the read ceiling of"
  check_equal "Ctrl-C: lines on standard error" 1 "$(wc -l <"$err")"
  checks=$((checks + 1))
  [ -s "$out" ] || fail "Ctrl-C" "some text" "nothing"
  timeout --foreground --preserve-status -s INT 2 "$program" score "$folder" --logits "$work/interrupted.npy" \
    --tokens "$(yes 5 | head -n 30000 | paste -sd,)" >"$out" 2>"$err" </dev/null
  status=$?
  check_status "Ctrl-C in score" 130
  check_empty "Ctrl-C in score: standard output" "$out"
  check_equal "Ctrl-C in score: files left" 0 "$(find "$work" -name '*interrupted*' | wc -l)"
}

test_progress() {
  if ! command -v script >/dev/null; then
    skip "script is not installed: the progress bar is not tested"
    return
  fi
  local folder
  folder=$(endless_model)
  TERM=xterm script -qec "timeout -s INT 3 '$program' run '$folder' -p Once -n 60000 >'$out'" \
    "$work/terminal" >/dev/null </dev/null
  check_has "progress bar" "$work/terminal" "generating ["
  run run "$folder" -p Once -n 8000
  checks=$((checks + 1))
  grep -q 'generating' "$err" && fail "no bar without a terminal" "statistics only" "$(show "$err")"
}

# -------------------------------------------------------------------------------------------------

for file in config.json tokenizer.json tokenizer_config.json generation_config.json model.safetensors; do
  if [ ! -f "$demo/$file" ]; then
    echo "expected the demo model in $demo, found no $file"
    exit 1
  fi
done
test_help
test_completion
test_usage
test_run
test_run_errors
test_score
test_tokenize
test_bench
test_info
test_bad_models
test_streams
test_interrupt
test_progress
echo "$checks checks, $failures failed"
[ "$failures" -eq 0 ]
