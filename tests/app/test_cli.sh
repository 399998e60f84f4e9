#!/usr/bin/env bash
# The `megalith` command from outside: what each command prints, and the exit status and message of
# every kind of bad input. Usage: test_cli.sh PROGRAM DEMO_FOLDER [FAKE_DRIVER_FOLDER]
. "$(dirname "$0")/cli.sh" "$@"

# --- help, version, completion -------------------------------------------------------------------

test_help() {
  local command
  run --help
  check_status "--help" 0
  for command in run score tokenize bench plan compile graph info trace completion; do
    check_has "--help" "$out" "  $command "
  done
  check_empty "--help: standard error" "$err"
  for command in run score tokenize bench plan compile graph trace info completion; do
    run "$command" --help
    check_status "$command --help" 0
    check_has "$command --help" "$out" "Usage: megalith $command"
    check_has "$command --help" "$out" "Examples:"
    check_equal "$command --help: lines over 100 columns" 0 "$(grep -c '.\{101\}' "$out")"
    run "$command" -h --no-such-option
    check_status "$command -h with a mistake" 0
  done
  run run --help
  for option in prompt file jsonl stop ignore-eos chat system max-tokens temperature top-k top-p seed device threads mode trace; do
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
  check_equal "bash: devices" "cuda" "$(complete_words megalith run --device cu)"
  check_equal "bash: folders" "$work/folders/model one" \
    "$(complete_words megalith run "$work/folders/mo")"
  check_equal "bash: targets" "cpu cuda" "$(complete_words megalith compile --target c)"
  check_equal "bash: passes" "normalise" "$(complete_words megalith compile --dump norm)"
  touch "$work/folders/graph one.json"
  check_equal "bash: files" "$work/folders/graph one.json" \
    "$(complete_words megalith graph "$work/folders/gr")"
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
  expect_error "mode" "--mode: expected mega, eager or full, found \"fast\"" run -p x --mode fast
  expect_error "mode list" "expected mega, eager or full, found \"\"" bench --mode eager,
  for command in "run -p x" bench "score --tokens 1"; do
    for device in cuda:x cuda: cuda:-1 cuda:99999 gpu "" auto,cpu; do
      expect_error "$command --device $device" \
        "--device: expected auto, cpu, cuda or cuda:N, found \"$device\"" $command "--device=$device"
    done
    MEGALITH_DEVICE=gpu expect_error "$command: MEGALITH_DEVICE" \
      "MEGALITH_DEVICE: expected auto, cpu, cuda or cuda:N, found \"gpu\"" $command
  done
  expect_error "in-flight" "--in-flight: expected 1 to 12, found 0" bench --in-flight 0
  expect_error "launch" "--launch: expected auto, aot or jit, found \"now\"" bench --launch now
  expect_error "load format" "expected auto, mapped, copied or dummy, found \"lazy\"" \
    bench --load-format lazy
  expect_error "system without chat" "--system needs --chat" run -p x --system y
  expect_error "score of nothing" "expected one of --tokens and --text, found neither" score
  expect_error "score of both" "found both" score --tokens 1 --text x
  expect_error "generate 1" "--generate: expected 2 to" bench --generate 1
  expect_error "batch 1025" "--batch: expected 1 to 1024, found 1025" bench --batch 1025
  expect_error "batch above iteration" "--iteration-tokens: expected at least the 9 of --batch, which decode together, found 8" bench --batch 9 --iteration-tokens 8
  expect_error "iteration of 2049" "--iteration-tokens: expected 1 to 2048, found 2049" bench --iteration-tokens 2049
  expect_error "an empty MODEL" "MODEL: expected a path, found an empty text" run "" -p x
  expect_error "an empty file" "--logits: expected a path, found an empty text" \
    score --tokens 1 --logits ""
  expect_error "a path that is too long" "MODEL: expected a path of at most 4095 bytes, found 5000" \
    run "$(printf 'x%.0s' {1..5000})" -p x
  expect_error "a name that is too long" "File name too long" run "$(printf 'x%.0s' {1..4000})" -p x
  expect_error "score of two texts" "--text: expected it once, found it 2 times" \
    score --text a --text b
  expect_error "score of two lists" "--tokens: expected it once, found it 2 times" \
    score --tokens 1 --tokens 2
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
  printf 'What is 12 + 7?' | "$program" run --chat -f /dev/stdin >"$out" 2>"$err"
  check_equal "run -f of a pipe" "12 + 7 = 19." "$(cat "$out")"
  "$program" run --chat -f <(printf 'What is 12 + 7?') >"$out" 2>"$err"
  check_equal "run -f of a process" "12 + 7 = 19." "$(cat "$out")"
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

# What generation_config.json says is applied, or is told.
test_generation_config() {
  local folder
  folder=$(copy_demo generation_keys generation_config.json)
  printf '{"typical_p": 0.1, "num_beams": 2, "suppress_tokens": [], "max_new_tokens": 7}' \
    >"$folder/generation_config.json"
  run run "$folder" -p "Once upon a time"
  check_status "generation_config.json" 0
  check_has "generation_config.json" "$err" "generated: 7 tokens"
  check_has "generation_config.json" "$err" \
    "megalith: note: not applied of the model's generation_config.json: typical_p, num_beams"
  check_equal "generation_config.json: lines on standard error" 2 "$(wc -l <"$err")"
  run run "$folder" -p "Once upon a time" -n 9
  check_has "-n over max_new_tokens" "$err" "generated: 9 tokens"
  run run --help
  check_has "run --help: -n" "$out" "max_new_tokens"
  check_has "run --help: --top-k" "$out" "default; 50"
}

# A ceiling that cannot be measured is no failure: the text is out by then. The buffer is large, and
# a limit on the address space that just fits the run does not fit it too.
test_no_ceiling() {
  local limit found=no
  for ((limit = 40; limit < 2000; limit += 4)); do
    (ulimit -v $((limit * 1024)) && exec timeout 120 "$program" run -p Once -n 3 --threads 1) \
      >"$out" 2>"$err" </dev/null
    status=$?
    if [ "$status" -eq 0 ]; then
      found=yes
      break
    fi
  done
  if [ "$found" = no ]; then
    skip "the program needs more than 2 GB of address space (a sanitizer?): no run without a ceiling"
    return
  fi
  check_has "run without a ceiling" "$err" "generated: 3 tokens"
  check_has "run without a ceiling" "$err" "share of the read ceiling unknown (could not map"
}

# Damaged weights: an error in place of token 0, over and over.
test_not_finite() {
  local folder mode
  folder=$(copy_demo not_finite model.safetensors)
  head -c 2000000 /dev/zero | tr '\0' '\377' |
    dd of="$folder/model.safetensors" bs=65536 seek=$(($(wc -c <"$folder/model.safetensors") - 2000000)) \
      oflag=seek_bytes conv=notrunc status=none
  for mode in mega eager; do
    expect_error "NaN in the weights, mode $mode" \
      "logits are not finite (NaN or infinity) at position 2 of request 0: damaged weights?" \
      run "$folder" -p "Once" --mode "$mode"
    expect_error "score with NaN in the weights, mode $mode" \
      "logits are not finite (NaN or infinity) at position 0: damaged weights?" \
      score "$folder" --tokens 1,2,3 --mode "$mode" --logits "$work/not_finite.npy"
  done
  expect_error "NaN and a temperature" "damaged weights?" run "$folder" -p Once --temperature 1
  check_equal "NaN: no file is left" 0 "$(find "$work" -name 'not_finite.npy*' | wc -l)"
}

test_trace() {
  local command
  for command in "run -p Once -n 4" "bench -p 4 -g 4 --runs 1" "bench -p 4 -g 4 --runs 1 --mode mega"; do
    rm -f "$work/trace.json"
    # shellcheck disable=SC2086
    run $command --trace "$work/trace.json"
    check_status "$command --trace" 0
    check_json "$command --trace" "$work/trace.json"
    check_has "$command --trace" "$work/trace.json" '"traceEvents"'
    check_has "$command --trace: names of ops" "$work/trace.json" '7.gated'
    check_has "$command --trace: names of ops" "$work/trace.json" 'logits'
    # shellcheck disable=SC2086
    expect_error "$command --trace --mode eager" "--trace: expected --mode mega" \
      $command --trace "$work/eager.json" --mode eager
    # shellcheck disable=SC2086
    expect_error "$command --trace into no folder" "cannot create $work/nowhere/t.json" \
      $command --trace "$work/nowhere/t.json"
  done
  check_equal "--trace: files" "$work/trace.json" "$(find "$work" -name 'trace.json*' -o -name 'eager.json*')"
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
  expect_error "folder as prompt file" "expected a file, found a folder" run -f "$work"
  expect_error "endless prompt file" "/dev/zero: more than " run -f /dev/zero
  printf 'a\0b' >"$work/nul"
  run run --chat -f "$work/nul"
  check_status "NUL in a chat" 1
  check_has "NUL in a chat" "$err" "$work/nul line 1: expected text, found a NUL byte"
  check_has "NUL in a chat" "$err" "megalith: 1 of 1 prompts could not run"
  check_empty "NUL in a chat: standard output" "$out"
  printf '\377\376' >"$work/invalid"
  run run -f "$work/invalid" -n 2
  check_status "invalid UTF-8 in a prompt" 0
  run run --chat -f "$work/invalid" -n 2
  check_status "invalid UTF-8 in a chat" 0
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
  check_has "bench: all modes" "$out" "mega "
  check_has "bench: all modes" "$out" "eager "
  run bench --batch 3 --prompt 70 --generate 8 --runs 2 --json --threads 2
  check_equal "bench --json: a line for each mode" 2 "$(wc -l <"$out")"
  check_status "bench --json" 0
  check_json "bench --json" "$out"
  local field
  for field in '"mode": "mega"' '"mode": "eager"' ms_per_token bytes_per_token gbps ceiling_gbps share batch prompt \
    generate threads simd model tokens_per_s prompt_ms prompt_tokens_per_s load_format round_ms; do
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

# Commands of which each computes something small.
device_commands=("run -p Once -n 3" "score --tokens 1,2" "bench -p 4 -g 4 --runs 1 --mode mega")

test_device() {
  local command with
  for command in "${device_commands[@]}"; do
    expect_error "$command: options of another device" "--threads is for the CPU; try --device cpu" \
      $command --device cuda --threads 2
    # Without a driver: auto says nothing, cuda says what is missing.
    if env -u LD_LIBRARY_PATH "$program" info | grep -q 'no NVIDIA driver'; then
      MEGALITH_DEVICE=auto run $command
      check_status "$command: auto without a driver" 0
      checks=$((checks + 1))
      grep -q "note: running" "$err" && fail "$command: auto without a driver" "no note" "$(show "$err")"
      expect_error "$command --device cuda" "there is no NVIDIA driver" $command --device cuda
      expect_error "$command: cuda:3" "there is no NVIDIA driver" $command --device=cuda:3
      MEGALITH_DEVICE=cuda expect_error "$command: MEGALITH_DEVICE" "there is no NVIDIA driver" $command
      MEGALITH_DEVICE=cuda run $command --device cpu
      check_status "$command: --device wins over MEGALITH_DEVICE" 0
    else
      skip "this machine has an NVIDIA driver: messages without one are not tested"
    fi
  done
  expect_error "eager" "--mode eager is for the CPU, a GPU has mega and full; try --device cpu" \
    bench --device cuda --mode mega,eager
  for with in "--in-flight 2" "--in-flight-ahead 2" --no-prefetch "--step-batch 4" --coarse --scheduler-warps; do
    expect_error "$with on the CPU" "${with%% *} is for a GPU, and the model runs on the CPU" \
      bench -p 4 -g 4 --runs 1 $with
  done
  run bench -p 4 -g 4 --runs 1 --mode mega --launch jit --schedulers 1
  check_status "bench --launch jit --schedulers 1" 0
  test_unusable_gpus
}

# Each way in which a GPU cannot be used: an error when it was asked for, a note with auto.
test_unusable_gpus() {
  if [ -z "$driver" ]; then
    skip "no fake driver was given: unusable GPUs are not tested"
    return
  fi
  config_only >/dev/null
  unusable() {  # what, text, assignments...
    local what=$1 text=$2 model="$work/config_only --load-format dummy -p 4 -g 4 --runs 1 --mode mega"
    shift 2
    run_with() {
      LD_LIBRARY_PATH=$driver timeout 120 env "$@" >"$out" 2>"$err" </dev/null
      status=$?
    }
    run_with "$@" "$program" bench $model --device cuda
    check_error "$what" "$text"
    run_with "$@" MEGALITH_DEVICE=auto "$program" bench $model
    check_status "$what: auto" 0
    check_has "$what: auto" "$out" "mega "
    if [ "$quiet" = 1 ]; then
      check_empty "$what: auto" "$err"
    else
      check_has "$what: auto" "$err" "megalith: note: running on the CPU, not on the GPU: "
      check_has "$what: auto" "$err" "$text"
      check_equal "$what: auto, lines" 1 "$(wc -l <"$err")"
    fi
  }
  local quiet=0
  unusable "an old driver" "the NVIDIA driver is for CUDA 11.4, expected 12.0 or later: update the driver" \
    FAKE_CUDA_DRIVER=11040
  unusable "an old GPU" "Fake GPU has compute capability 7.0; a GPU of 8.0 or later" FAKE_CUDA_MAJOR=7
  unusable "a driver that fails" "CUDA init: a fake failure (802)" FAKE_CUDA_INIT=802
  unusable "too little memory" "GiB are free on the GPU" FAKE_CUDA_FREE=1000
  if LD_LIBRARY_PATH=$driver "$program" info | grep -q "device compiler   none"; then
    unusable "no compiler" "there is no libnvrtc" FAKE_CUDA_FREE=9000000000 MEGALITH_CACHE="$work/none"
  else
    skip "NVRTC is installed: a GPU without a compiler is not tested"
  fi
  quiet=1
  unusable "no GPU" "the NVIDIA driver finds no GPU" FAKE_CUDA_DEVICES=0
  LD_LIBRARY_PATH=$driver run bench --device cuda:1
  check_error "too large a number" "GPU 1 was asked for, the driver finds 1, counted from 0"
  LD_LIBRARY_PATH=$driver MEGALITH_CACHE=/tmp/none run info
  check_has "info: auto" "$out" "--device auto     cuda:0, for models that fit and that it can run"
  check_has "info: cache" "$out" "cached in /tmp/none"
  LD_LIBRARY_PATH=$driver FAKE_CUDA_MAJOR=7 run info
  check_has "info: an old GPU" "$out" "--device auto     cpu: Fake GPU has compute capability 7.0"
}

test_info() {
  run info
  check_status "info" 0
  check_has "info" "$out" "--device auto"
  local word
  for word in processor "SIMD level" cores NUMA "memory bandwidth" GPU megalith jansson; do
    check_has "info" "$out" "$word"
  done
  check_has "info" "$out" "GB/s"
}

# --- trace ---------------------------------------------------------------------------------------

# Two SMs, three iterations: of the first only the end is left, the others are alike, 60 us apart.
small_trace() {
  local first=1 sm role at
  event() {  # name tid begin duration iteration [more arguments of the task]
    printf ',\n{"name":"%s [0,8)","ph":"X","pid":1,"tid":%s,"ts":%s,"dur":%s,"args":{"graph":0,"iteration":%s%s}}' \
      "$1" "$2" "$3" "$4" "$5" "${6:-}"
  }
  printf '{"displayTimeUnit":"ns","other":[1,{"a":"\\"]"}],"traceEvents":[\n'
  printf '{"name":"process_name","ph":"M","pid":1,"args":{"name":"megalith"}}'
  for sm in 0 1; do
    for role in wait compute load trigger; do
      printf ',\n{"name":"thread_name","ph":"M","pid":1,"tid":%s,"args":{"name":"SM %s %s"}}' \
        "$((sm * 4 + first - 1))" "$sm" "$role"
      first=$((first % 4 + 1))
    done
  done
  event embedded 1 90 5 0
  for at in 0 60; do
    event embedded 1 $((100 + at)) 10 $((1 + at / 60))
    event next_plan 5 $((100 + at)) 45 $((1 + at / 60))
    event 0.gated 0 $((110 + at)) 4 $((1 + at / 60))
    event 0.gated 1 $((114 + at)) 20 $((1 + at / 60)) ',"stream_us":5.0'
    event 0.gated 2 $((105 + at)) 15 $((1 + at / 60))
    event logits 0 $((134 + at)) 6 $((1 + at / 60))
    event logits 1 $((140 + at)) 10 $((1 + at / 60))
    event logits 5 $((145 + at)) 7 $((1 + at / 60))
  done
  printf '\n]}\n'
}

test_trace_summary() {
  local trace=$work/small_trace.json length
  small_trace >"$trace"
  run trace --summary "$trace" --iteration 1
  check_status "trace" 0
  check_empty "trace: standard error" "$err"
  cat >"$work/expected" <<'EOF'
2 workers, 3 iterations, 2 of them whole
iteration 1: 60.00 us, graph for up to 1 tokens

a worker's time (mean of 2)        us  share   with loads, us
  streaming: it needs weights       2.50   4.2%            2.50
  computing                        43.50  72.5%            3.00
  waiting for an event              5.00   8.3%            2.00
  idle                              9.00  15.0%            0.00
busy roles, side by side
  compute                          46.00  76.7%
  wait                              5.00   8.3%
  load                              7.50  12.5%
  trigger                           0.00   0.0%

chain of ops             count   tasks   hop, us stage, us  total, us  share exposed, us
  embedded                   1     1.0      0.00     10.00      10.00  16.7%        0.00
  gated                      1     1.0      4.00     20.00      24.00  40.0%        4.00
  logits                     1     2.0      6.00     12.00      18.00  30.0%        6.00
  all                        3     1.3      3.33     14.00      52.00  86.7%       10.00
  beside it: next_plan, 1 task, 45.00 us from 0.00 us on
EOF
  check_equal "trace: summary" "$(cat "$work/expected")" "$(cat "$out")"
  run trace "$trace"
  check_has "trace: the median" "$out" "iteration 2 (median): 52.00 us"
  run trace "$trace" --iteration 0
  check_has "trace: not whole" "$out" "NOT WHOLE"
  expect_error "trace: no such iteration" "--iteration: expected one of the trace's, 0 to 2, found 3" \
    trace "$trace" --iteration 3
  expect_error "trace without a file" "expected a FILE that --trace wrote" trace
  expect_error "trace of nothing" "cannot open" trace "$work/no_such_trace.json"
  printf '{"traceEvents":[]}' >"$work/empty_trace.json"
  expect_error "trace without tasks" "expected tasks, found none" trace "$work/empty_trace.json"
  printf '{"a":1}' >"$work/empty_trace.json"
  expect_error "trace without events" "expected a member \"traceEvents\"" trace "$work/empty_trace.json"
  printf '{"traceEvents":[{"ph":"X","name":"a","tid":1,"ts":1,"dur":1}]}' >"$work/empty_trace.json"
  expect_error "trace: no task" "event 0: expected a name, ts, dur and args" trace "$work/empty_trace.json"
  : >"$work/empty_trace.json"
  expect_error "trace: an empty file" "byte 0: expected {" trace "$work/empty_trace.json"
  for length in 1 20 60 100 400 900 "$(($(wc -c <"$trace") - 3))"; do
    head -c "$length" "$trace" >"$work/cut_trace.json"
    run trace "$work/cut_trace.json"
    check_error "trace: cut at $length" "expected"
  done
  # What --trace writes is what this reads.
  run bench -p 4 -g 6 --runs 1 --mode mega --trace "$work/bench_trace.json"
  check_status "bench --trace" 0
  run trace --summary "$work/bench_trace.json"
  check_status "trace of a bench" 0
  check_has "trace of a bench" "$out" "(median)"
  check_has "trace of a bench" "$out" "  logits "
}

# --- compile and graph ---------------------------------------------------------------------------

# A folder with nothing but the demo's config.json.
config_only() {
  mkdir -p "$work/config_only"
  cp "$demo/config.json" "$work/config_only"
  printf '%s' "$work/config_only"
}

# The same in f32.
f32_config() {
  mkdir -p "$work/f32_config"
  sed 's/bfloat16/float32/' "$demo/config.json" >"$work/f32_config/config.json"
  printf '%s' "$work/f32_config"
}

# The number behind a key, in the statistics of the only graph of a `compile --json`.
statistic() {  # key
  sed "s/.*\"$1\": \([0-9.]*\).*/\1/" "$out"
}

test_compile() {
  local folder pass key
  folder=$(config_only)
  run compile "$folder"
  check_status "compile" 0
  check_empty "compile: standard error" "$err"
  for pass in fuse_ops partition depend fuse_events prune normalise label place lay_out emit; do
    check_has "compile: the table" "$out" "$pass"
  done
  run compile "$folder" --tokens all --workers 3
  check_status "compile --tokens all" 0
  check_has "compile --tokens all" "$out" "16 tokens  32 tokens  64 tokens"
  run compile "$folder" --json --workers 4 --tokens 2
  check_status "compile --json" 0
  check_json "compile --json" "$out"
  for key in ops_before_fusion tasks dependent_pairs fused_events empty_tasks jit_tasks weight_bytes \
    worker_bytes_max activation_bytes descriptor_bytes compile_ms; do
    check_has "compile --json" "$out" "\"$key\": "
  done
  check_equal "compile --json: ops of the model" 148 "$(statistic ops_before_fusion)"
  check_equal "compile --json: fused ops" 43 "$(statistic ops)"
  check_has "compile --json without a bandwidth" "$out" '"read_ms": null'
  run compile "$folder" --no-fuse --json
  check_equal "compile --no-fuse: ops" 148 "$(statistic ops)"
  run compile "$folder" --bandwidth 10 --json
  check_equal "compile --bandwidth" "$(awk "BEGIN { printf \"%.10g\", $(statistic weight_bytes) / 1e7 }")" \
    "$(statistic read_ms)"
  run compile "$folder" --launch jit --json
  check_equal "compile --launch jit: AOT tasks" 0 "$(statistic aot_tasks)"
  run compile "$folder" --launch aot --launch logits=jit --partition logits=7 --json
  check_equal "compile --launch logits=jit: JIT tasks" 7 "$(statistic jit_tasks)"
  run compile "$folder" --launch logits=jit --launch logits=aot --json
  check_equal "compile: the last --launch counts" 0 "$(statistic jit_tasks)"
  run compile "$folder" --coarse --verify
  check_status "compile --coarse" 0
  run compile "$folder" --measure
  check_status "compile --measure" 0
  check_has "compile --measure" "$out" "GB/s"
  run compile "$folder" --target cuda --tokens all --verify
  check_status "compile --target cuda" 0
  check_has "compile --target cuda: workers of an H100" "$out" " for cuda, 132 workers"
  run compile "$folder" --target cuda --json --workers 20
  check_json "compile --target cuda --json" "$out"
  check_has "compile --target cuda --json" "$out" '"target": "cuda", "workers": 20,'
  check_equal "compile --target cuda: next_plan and sample more" 45 "$(statistic ops)"
  run compile "$folder" --target cuda --dump fuse_ops
  check_has "compile --target cuda: the first op" "$out" "next_plan = next_plan(tokens) : i32[1]"
  check_has "compile --target cuda: the last op" "$out" "sampled = sample(logits, next_plan) : i32[L]"
  run compile --dump list
  check_status "compile --dump list" 0
  check_equal "compile --dump list" "$("$program" compile --dump list | wc -l)" "$(wc -w <"$out")"
  for pass in $(cat "$out"); do
    run compile "$folder" --dump "$pass"
    check_status "compile --dump $pass" 0
    checks=$((checks + 1))
    [ -s "$out" ] || fail "compile --dump $pass" "a text" "nothing"
  done
}

test_compile_errors() {
  local folder
  folder=$(config_only)
  expect_error "compile of no folder" "does not exist" compile "$work/nowhere"
  expect_error "0 tokens" "--tokens: expected 1 to 2048 or all, found \"0\"" compile --tokens 0
  expect_error "2049 tokens" "--tokens: expected 1 to 2048 or all, found \"2049\"" compile --tokens 2049
  expect_error "tokens with a tail" "found \"1x\"" compile --tokens 1x
  expect_error "2^64 + 1 tokens" "found \"18446744073709551617\"" compile --tokens 18446744073709551617
  expect_error "no workers" "--workers: expected 1 to 4096, found 0" compile --workers 0
  expect_error "unknown op" "\"foo\": the program has no op of that kind" compile --partition foo=2
  expect_error "unknown op to launch" "\"9.gated\"" compile --launch 9.gated=jit
  expect_error "an op that was fused" "\"rope\"" compile --partition rope=2
  expect_error "grid of nothing" "--partition: expected up to three numbers" compile --partition gate_up=
  expect_error "grid of 0" "found \"gate_up=0,1,1\"" compile --partition gate_up=0,1,1
  expect_error "grid of words" "found \"gate_up=a\"" compile --partition gate_up=a
  expect_error "grid of four" "found \"gate_up=1,1,1,1\"" compile --partition gate_up=1,1,1,1
  expect_error "grid with a comma" "found \"gate_up=1,\"" compile --partition gate_up=1,
  expect_error "huge grid" "expected up to three numbers of 1 to" compile --partition gate_up=99999999999
  expect_error "grid finer than the op" "x is at most 48" compile --partition gate_up=49
  expect_error "strides of a linear" "gate_up=2,2,1: y" compile --partition gate_up=2,2
  expect_error "split reduction" "z must be 1" compile --partition gate_up=2,1,2
  expect_error "grid of no op" "--partition: expected OP=X,Y,Z, found \"=2\"" compile --partition =2
  expect_error "no grid" "--partition: expected OP=X,Y,Z, found \"gate_up\"" compile --partition gate_up
  expect_error "unknown launch" "expected aot, jit, OP=aot or OP=jit, found \"now\"" compile --launch now
  expect_error "unknown launch of an op" "found \"gate_up=now\"" compile --launch gate_up=now
  expect_error "unknown pass" "--dump: expected list, fuse_ops, partition" compile --dump passes
  expect_error "a dump of all graphs" "--dump: expected one token count" compile --dump emit -n all
  expect_error "all graphs in one file" "--output: expected one token count" \
    compile -o "$work/all.json" -n all
  expect_error "dump and json" "expected one of them" compile --dump emit --json
  expect_error "two bandwidths" "expected one of --bandwidth and --measure" \
    compile --bandwidth 5 --measure
  expect_error "unknown target" "--target: expected cpu or cuda" compile --target tpu
  expect_error "cuda without fusion" "--no-fuse: expected --target cpu with it" \
    compile --target cuda --no-fuse
  expect_error "cuda measured on cores" "--measure: expected --target cpu with it" \
    compile --target cuda --measure
  expect_error "cuda in f32" "cuda: expected matrices in bf16, found \"model.embed_tokens.weight\"" \
    compile "$(f32_config)" --target cuda
  expect_error "a bandwidth of 0" "--bandwidth: expected a number of" compile --bandwidth 0
  expect_error "output to a device" "expected a regular file or none, found something else" \
    compile "$folder" -o /dev/null
  expect_error "output to a folder" "found a folder" compile "$folder" -o "$work"
  expect_error "output into no folder" "cannot create" compile "$folder" -o "$work/nowhere/g.json"
  check_equal "partial files" 0 "$(find "$work" -name '*.partial-*' | wc -l)"
}

test_graph() {
  local folder file tasks bytes
  folder=$(config_only)
  file=$work/task_graph.json
  run compile "$folder" -o "$file" --workers 4 --tokens 8 --launch attend=jit --json
  check_status "compile -o" 0
  check_json "compile -o" "$file"
  check_equal "compile -o: partial files" 0 "$(find "$work" -name '*.partial-*' | wc -l)"
  tasks=$(statistic tasks)
  run graph "$file"
  check_status "graph" 0
  check_empty "graph: standard error" "$err"
  check_has "graph" "$out" "8 tokens an iteration, 4 workers"
  check_has "graph" "$out" "end_of_task_graph"
  check_has "graph" "$out" "*.gated "
  check_equal "graph: rows of ops" 8 "$(awk '/^op /{f=1;next} f' "$out" | wc -l)"
  run compile "$folder" -o "$work/cuda_graph.json" --target cuda
  run graph "$work/cuda_graph.json"
  check_has "graph of cuda" "$out" "1 token an iteration, 132 workers, for cuda"
  check_has "graph of cuda" "$out" "next_plan "
  run graph "$work/cuda_graph.json" --json
  check_json "graph of cuda --json" "$out"
  check_has "graph of cuda --json" "$out" '"target": "cuda"'
  run graph "$file" --ops
  check_has "graph --ops" "$out" "7.gated "
  run graph "$file" --json
  check_status "graph --json" 0
  check_json "graph --json" "$out"
  if command -v jq >/dev/null; then
    check_equal "graph --json: tasks" "$tasks" "$(jq '.aot + .jit' "$out")"
    check_equal "graph --json: tasks by kind" "$tasks" "$(jq '[.kinds[].tasks] | add' "$out")"
    check_equal "graph --json: bytes by op" "$(jq .bytes "$out")" "$(jq '[.ops[].bytes] | add' "$out")"
    check_equal "graph --json: events" "$(jq '.all_events | length' "$file")" \
      "$(jq '[.events_by_type[]] | add' "$out")"
    check_equal "graph --json: JIT" "$(jq '.kinds[] | select(.kind == "attend") | .tasks' "$out")" \
      "$(jq .jit "$out")"
  fi
  run graph "$file" --task 20
  check_status "graph --task" 0
  check_has "graph --task" "$out" "waits for   event"
  check_has "graph --task" "$out" "triggers    event"
  check_has "graph --task: the chain" "$out" "embedded"
  run graph "$file" --path --workers
  check_status "graph --path --workers" 0
  check_has "graph --path" "$out" "critical path: "
  check_equal "graph --workers" 4 "$(grep -c '  ####' "$out")"
  run graph "$file" --path --hop-bytes 0
  check_has "graph --hop-bytes 0" "$out" "hops of 0 B"
  run graph "$file" --svg "$work/layer.svg" --layer 3
  check_status "graph --svg" 0
  check_has "graph --svg" "$work/layer.svg" "layer 3"
  check_has "graph --svg" "$work/layer.svg" "</svg>"
  if command -v xmllint >/dev/null; then
    checks=$((checks + 1))
    xmllint --noout "$work/layer.svg" 2>"$err" || fail "graph --svg" "XML" "$(show "$err")"
  fi
  check_equal "graph --svg: no task of other layers" 0 "$(grep -c '<title>task [0-9]*: [0124-9]\.' \
    "$work/layer.svg")"
  expect_error "graph without a file" "expected a FILE" graph
  expect_error "graph of no file" "cannot open" graph "$work/nowhere.json"
  expect_error "graph of a folder" "$work" graph "$work"
  expect_error "no such task" "--task: expected 0 to " graph "$file" --task 100000
  expect_error "no such layer" "found no op whose name begins with \"8.\"" \
    graph "$file" --svg "$work/x.svg" --layer 8
  expect_error "layer without svg" "--layer chooses what --svg draws" graph "$file" --layer 0
  expect_error "json and more" "expected no --path with it" graph "$file" --json --path
  expect_error "svg to a device" "found something else" graph "$file" --svg /dev/null --layer 0
  run compile "$folder" -o "$file" --workers 64
  expect_error "too large a picture" "expected at most 400 tasks" graph "$file" --svg "$work/x.svg"
  check_equal "no picture" 0 "$(find "$work" -name 'x.svg*' | wc -l)"
}

# Whatever a file holds, graph ends with a message.
test_broken_graphs() {
  local folder file broken bytes cut
  folder=$(config_only)
  file=$work/small_graph.json
  broken=$work/broken.json
  run compile "$folder" -o "$file" --workers 2
  bytes=$(wc -c <"$file")
  for cut in 0 1 100 $((bytes / 2)) $((bytes - 3)); do
    head -c "$cut" "$file" >"$broken"
    expect_error "graph cut at $cut" "$broken" graph "$broken"
  done
  printf '[]' >"$broken"
  expect_error "an array" "$broken" graph "$broken"
  printf '{}' >"$broken"
  expect_error "an empty object" "$broken" graph "$broken"
  printf '[%.0s' {1..5000} >"$broken"
  expect_error "deep nesting" "nested deeper than" graph "$broken"
  if ! command -v jq >/dev/null; then
    skip "jq is not installed: task graphs with wrong values are not tested"
    return
  fi
  change() {  # jq program
    jq -c "$1" "$file" >"$broken"
    expect_error "a task graph after $1" "$broken" graph "$broken"
  }
  change 'del(.all_events)'
  change 'del(.program)'
  change '.tokens = 0'
  change '.tokens = 1000000'
  change '.all_tasks[3].end = 4000000000'
  change '.all_tasks[3].op = 100000'
  change '.all_tasks[3].begin = -1'
  change '.all_tasks[3].dependent_event = 100000'
  change '.all_tasks[20].dependent_event = null'
  change '.all_tasks[3].trigger_event = "x"'
  change '.all_tasks |= reverse'
  change '.all_tasks |= del(.[10])'
  change '.all_events[2].num_triggers += 1'
  change '.all_events[2].first_task_id += 1'
  change '.all_events[2].event_type = 77'
  change '.first_tasks = []'
}

# --- broken models -------------------------------------------------------------------------------

test_bad_models() {
  local folder
  expect_error "no such folder" "$work/none does not exist" run "$work/none" -p x
  expect_error "file as folder" "is a file" run "$work/prompt" -p x
  mkdir -p "$work/empty"
  expect_error "empty folder" "has no config.json" run "$work/empty" -p x
  MEGALITH_DEMO=$work/none expect_error "no demo" "$work/none does not exist" run -p x

  ln -s loop "$work/loop"
  expect_error "a link to itself" "Too many levels of symbolic links" run "$work/loop" -p x
  ln -s nowhere "$work/dangling"
  expect_error "a link to nothing" "$work/dangling is a link to nothing" run "$work/dangling" -p x
  mkdir -p "$work/dangling_config"
  ln -s nowhere "$work/dangling_config/config.json"
  expect_error "config.json as a link to nothing" "config.json is a link to nothing" \
    run "$work/dangling_config" -p x
  if [ "$(id -u)" -ne 0 ]; then
    mkdir -p "$work/closed"
    chmod 0 "$work/closed"
    expect_error "a folder that may not be searched" "Permission denied" run "$work/closed" -p x
    chmod 700 "$work/closed"
  else
    skip "root may search every folder"
  fi
  local name=$'esc\e[31m\302\233name'
  expect_error "control characters in MODEL" "esc?[31m??name does not exist" run "$work/$name" -p x
  cp -r "$(copy_demo escapes)" "$work/$name"
  local arguments
  for arguments in "-p 4 -g 4 --runs 1" "-p 4 -g 4 --runs 1 --json"; do
    # shellcheck disable=SC2086
    run bench "$work/$name" $arguments
    check_status "bench of a folder with control characters" 0
    check_has "bench of a folder with control characters" "$out" 'esc?[31m??name'
    check_equal "bench: control characters" 0 "$(LC_ALL=C tr -d '\n' <"$out" | tr -cd '\000-\037\177-\237' | wc -c)"
  done

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
  rm "$folder/generation_config.json" "$folder/model.safetensors"
  run run "$folder" --load-format dummy -p "Once" -n 2
  check_status "a tokenizer beyond the vocabulary" 0
  expect_error "a token beyond the vocabulary" "expected an id of 0 to 999, found 1023" \
    run "$folder" --load-format dummy -p "<|im_end|>"
  ln -s "$demo/model.safetensors" "$folder/model.safetensors"
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
    "compile" "compile --dump emit" "graph $work/task_graph.json" \
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
  # Signals that kill leave no half file behind either.
  local signal number
  for signal in TERM HUP; do
    number=$((128 + $(kill -l "$signal")))
    timeout --foreground --preserve-status -s "$signal" 2 "$program" score "$folder" \
      --logits "$work/killed.npy" --tokens "$(yes 5 | head -n 30000 | paste -sd,)" \
      >"$out" 2>"$err" </dev/null
    status=$?
    check_status "SIG$signal in score" "$number"
    check_equal "SIG$signal in score: files left" 0 "$(find "$work" -name '*killed*' | wc -l)"
  done
  # A limit on the size of files is an error like a full disk.
  (ulimit -f 8 && exec timeout 120 "$program" score --tokens 1,2,3,4,5,6,7,8,9 \
    --logits "$work/limited.npy") >"$out" 2>"$err" </dev/null
  status=$?
  check_error "a file over its limit" "limited.npy: File too large"
  check_equal "a file over its limit: files left" 0 "$(find "$work" -name '*limited*' | wc -l)"
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
test_generation_config
test_no_ceiling
test_not_finite
test_trace
test_run_errors
test_score
test_tokenize
test_bench
test_device
test_info
test_trace_summary
test_compile
test_compile_errors
test_graph
test_broken_graphs
test_bad_models
test_streams
test_interrupt
test_progress
finish
