#!/usr/bin/env bash
# The `megalith` command from outside: what each command prints, and the exit status and message of
# every kind of bad input. Usage: test_cli.sh PROGRAM DEMO_FOLDER [FAKE_DRIVER_FOLDER]
. "$(dirname "$0")/cli.sh" "$@"

# --- help, version, completion -------------------------------------------------------------------

test_help() {
  local command
  run --help
  check_status "--help" 0
  for command in run score tokenize template bench plan compile graph test info trace completion; do
    check_has "--help" "$out" "  $command "
  done
  check_empty "--help: standard error" "$err"
  for command in run score tokenize template bench plan compile graph test trace info completion; do
    run "$command" --help
    check_status "$command --help" 0
    check_has "$command --help" "$out" "Usage: megalith $command"
    check_has "$command --help" "$out" "Examples:"
    check_equal "$command --help: lines over 100 columns" 0 "$(grep -c '.\{101\}' "$out")"
    run "$command" -h --no-such-option
    check_status "$command -h with a mistake" 0
  done
  run run --help
  for option in prompt file jsonl stop ignore-eos chat system tools chat-var max-tokens temperature top-k top-p seed device threads mode trace; do
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
  check_equal "bash: help" "help" "$(complete_words megalith he)"
  check_equal "bash: devices of info" "cuda" "$(complete_words megalith info --device cu)"
  check_equal "bash: options" "--temperature" "$(complete_words megalith run --temp)"
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
  expect_error "mode" "--mode: expected mega, eager, full, compiled, piecewise, full-decode-only or full-and-piecewise, found \"fast\"" run -p x --mode fast
  expect_error "mode list" "full-decode-only or full-and-piecewise, found \"\"" bench --mode eager,
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
  expect_error "load format" "expected auto, mapped, copied, dummy or short, found \"lazy\"" \
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
  check_has "run: statistics" "$err" "of the read ceiling"
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

# --- bench ---------------------------------------------------------------------------------------

# A share is told where the measurements of the ceiling agree, and nowhere else.
check_share() {  # what, file with JSON lines of bench
  checks=$((checks + 1))
  sed -E 's/.*"gbps": ([^,]*), "ceiling_gbps": ([^,]*), "ceiling_spread": ([^,]*), "share": ([^,]*),.*/\1 \2 \3 \4/' "$2" |
    awk 'NF != 4 || ($3 > 0.15) != ($4 == "null") { bad = 1 }
         $4 != "null" && ($4 < 0.999 * $1 / $2 || $4 > 1.001 * $1 / $2) { bad = 1 } END { exit bad || NR == 0 }' ||
    fail "$1: share" "gbps / ceiling_gbps, or null where ceiling_spread is above 0.15" "$(show "$2")"
}

# A machine that becomes slower and slower: shares of its ceiling would say nothing.
test_unsteady_ceiling() {
  local preload="$driver/libfake_clock.so"
  if [ -z "$driver" ] || [ ! -f "$preload" ]; then
    skip "no fake clock was given: a read ceiling that changes is not tested"
    return
  fi
  # A sanitizer wants to be loaded first.
  LD_PRELOAD=$preload ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" \
    run bench --prompt 8 --generate 300 --runs 2 --mode mega
  check_status "an unsteady ceiling" 0
  check_has "an unsteady ceiling" "$out" "% apart: no share is told where they are more than 15% apart"
  checks=$((checks + 1))
  grep '^mega ' "$out" | grep -q '%' && fail "an unsteady ceiling" "no share" "$(show "$out")"
  LD_PRELOAD=$preload ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" \
    run bench --prompt 8 --generate 300 --runs 2 --mode mega --json
  check_has "an unsteady ceiling: JSON" "$out" '"share": null'
  check_share "an unsteady ceiling" "$out"
}

test_bench() {
  run bench --prompt 8 --generate 8 --runs 1
  check_status "bench" 0
  check_has "bench" "$out" "ms/token"
  check_has "bench: all modes" "$out" "mega "
  check_has "bench: all modes" "$out" "eager "
  check_has "bench: the ceiling" "$out" " GB/s in 2 measurements, "
  run bench --batch 3 --prompt 70 --generate 8 --runs 2 --json --threads 2
  check_equal "bench --json: a line for each mode" 2 "$(wc -l <"$out")"
  check_status "bench --json" 0
  check_json "bench --json" "$out"
  local field
  for field in '"mode": "mega"' '"mode": "eager"' ms_per_token bytes_per_token gbps ceiling_gbps share batch prompt \
    generate threads simd model tokens_per_s prompt_ms prompt_tokens_per_s load_format round_ms; do
    check_has "bench --json" "$out" "$field"
  done
  check_share "bench --json" "$out"
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
  run compile -o "$work/task_graph.json"
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
  check_equal "a broken pipe" 141 "$(cat "$work/status")"
  check_empty "a broken pipe" "$err"
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
  check_has "Ctrl-C: statistics" "$err" "of the read ceiling"
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
  timeout -s INT 3 "$program" run "$folder" -p Once -n 60000 >"$out" 2>"$err" </dev/null
  checks=$((checks + 2))
  [ -s "$out" ] || fail "three seconds without a terminal" "some text" "none: $(show "$err")"
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
test_unsteady_ceiling
test_bad_models
test_streams
test_interrupt
test_progress
finish
