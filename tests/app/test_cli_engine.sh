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
    'messages[0]: expected a role and a content'
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

# --- bench throughput ----------------------------------------------------------------------------

json_number() {  # key, file
  sed -n "s/.*\"$1\": \([0-9.e+-]*\)[,}].*/\1/p" "$2"
}

test_throughput() {
  run --help
  check_has "--help" "$out" "  bench throughput "
  run bench throughput --help
  check_status "bench throughput --help" 0
  check_has "bench throughput --help" "$out" "Usage: megalith bench throughput [options] [MODEL]"
  check_equal "bench throughput --help: lines over 100 columns" 0 "$(grep -c '.\{101\}' "$out")"
  for option in requests input output common-prefix seed arrival-rate sequences iteration-tokens chunk no-prefix-cache temperature memory-share kv-tokens page-tokens json; do
    check_has "bench throughput --help" "$out" "--$option"
  done
  # The usual lengths are cut to what the context, 512 tokens, has room for.
  run bench throughput --requests 2 --json
  check_status "bench throughput: usual lengths" 0
  run bench throughput --requests 2 --input 400 --json
  check_status "bench throughput: usual outputs beside long prompts" 0
  check_equal "bench throughput: input_tokens" 800 "$(json_number input_tokens "$out")"
  local sizes="--requests 30 --input 20:60 --output 10:90 --sequences 12 --threads 2"
  # shellcheck disable=SC2086
  run bench throughput $sizes
  check_status "bench throughput" 0
  for line in "tokens/s " "time to first token" "inter-token latency" "KV memory" "prefix hits" "preemptions" "planning"; do
    check_has "bench throughput" "$out" "$line"
  done
  check_empty "bench throughput: standard error" "$err"
  # shellcheck disable=SC2086
  run bench throughput $sizes --json
  check_status "bench throughput --json" 0
  check_json "bench throughput --json" "$out"
  check_equal "bench throughput --json: lines" 1 "$(wc -l <"$out")"
  check_equal "bench throughput: requests" 30 "$(json_number requests "$out")"
  check_equal "bench throughput: sequences" 12 "$(json_number sequences "$out")"
  cp "$out" "$work/first"
  # The work is that of the seed, on any number of threads.
  # shellcheck disable=SC2086
  run bench throughput $sizes --json --threads 1 --chunk 7 --mode eager --arrival-rate 1000
  for key in input_tokens output_tokens; do
    check_equal "bench throughput: $key of a seed" "$(json_number $key "$work/first")" "$(json_number $key "$out")"
  done
  # shellcheck disable=SC2086
  run bench throughput $sizes --json --seed 1
  checks=$((checks + 1))
  [ "$(json_number input_tokens "$work/first")" != "$(json_number input_tokens "$out")" ] ||
    fail "bench throughput: another seed" "other lengths" "the same"
  # Figures that follow from each other.
  checks=$((checks + 1))
  awk -v o="$(json_number output_tokens "$out")" -v i="$(json_number input_tokens "$out")" \
    -v s="$(json_number seconds "$out")" -v r="$(json_number output_tokens_per_s "$out")" \
    -v t="$(json_number total_tokens_per_s "$out")" -v n="$(json_number iterations "$out")" \
    -v k="$(json_number kv_use "$out")" -v p="$(json_number planning_share "$out")" \
    'BEGIN { exit !(i >= 30 * 20 && i <= 30 * 60 && o >= 30 * 10 && o <= 30 * 90 && o / s / r > 0.999 &&
             o / s / r < 1.001 && (o + i) / s / t > 0.999 && (o + i) / s / t < 1.001 && n > o / 12 &&
             k > 0 && k <= 1 && p > 0 && p < 1) }' || fail "bench throughput: figures" "that agree" "$(show "$out")"
  # Requests that arrive late do not wait for it: the run lasts as long as the arrivals.
  run bench throughput --requests 6 --input 4 --output 4 --arrival-rate 2 --json
  checks=$((checks + 1))
  awk -v s="$(json_number seconds "$out")" -v f="$(sed 's/.*"first_token_ms": {"median": \([0-9.]*\).*/\1/' "$out")" \
    'BEGIN { exit !(s > 0.2 && f < 1000 * s / 2) }' || fail "arrivals" "time to first token from the arrival" "$(show "$out")"
  expect_error "a range" '--input: expected MIN:MAX, tokens of 1 to 16777216, found "5:4"' bench throughput --input 5:4
  for range in 0:4 x 4:x 4: :4 4:5:6 -1:4 99999999999:4 ""; do
    expect_error "range $range" "--output: expected MIN:MAX" bench throughput "--output=$range"
  done
  expect_error "a range above the context" "expected 512 tokens at most together (the model's context), found 2048" \
    bench throughput --input 1024 --output 1024
  expect_error "a common prefix" "--common-prefix: expected at most the least of --input, 5, found 6" \
    bench throughput --input 5:9 --output 5 --common-prefix 6
  expect_error "an unknown option of a subcommand" "see megalith bench throughput --help" bench throughput --batch 4
  expect_error "a folder of that name" "./throughput does not exist" bench ./throughput
  expect_error "the subcommand of another command" "throughput does not exist" score throughput --tokens 1
}

# --- plan and memory -----------------------------------------------------------------------------

test_plan() {
  run plan --help
  check_status "plan --help" 0
  check_equal "plan --help: lines over 100 columns" 0 "$(grep -c '.\{101\}' "$out")"
  for option in sequences context memory-share kv-tokens page-tokens json device threads load-format; do
    check_has "plan --help" "$out" "--$option"
  done
  run plan
  check_status "plan" 0
  for line in "weights " "activations " "KV memory " "4.00 KiB a token" "in all " "requests that run at once" "64 sequences of 512"; do
    check_has "plan" "$out" "$line"
  done
  check_empty "plan: standard error" "$err"
  # No weights on disk, no tokenizer: the config says all.
  mkdir -p "$work/config"
  sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 4096/' "$demo/config.json" >"$work/config/config.json"
  run plan "$work/config" --kv-tokens 10000 --sequences 20 --context 1000 --json
  check_status "plan of a config" 0
  check_json "plan of a config" "$out"
  check_equal "plan: tokens in whole pages" 10000 "$(json_number kv_tokens "$out")"
  check_equal "plan: bytes of a token" 4096 "$(json_number kv_bytes_per_token "$out")"
  check_equal "plan: bytes of all tokens" 40960000 "$(json_number kv_bytes "$out")"
  check_equal "plan: sequences of the context" 9 "$(json_number sequences_of_context "$out")"  # of 63 pages
  check_equal "plan: tokens of all sequences" 496 "$(json_number tokens_of_sequences "$out")"  # of 31 pages
  local weights
  weights=$(json_number weight_bytes "$out")
  checks=$((checks + 1))
  [ "$weights" -gt 12500000 ] && [ "$weights" -lt 13600000 ] || fail "plan: weights" "about 13 MB" "$weights"
  checks=$((checks + 1))
  awk -v t="$(json_number total_bytes "$out")" -v w="$weights" -v k="$(json_number kv_bytes "$out")" \
    -v a="$(json_number activation_bytes "$out")" -v o="$(json_number other_bytes "$out")" \
    'BEGIN { exit t != w + k + a + o }' || fail "plan: the sum" "of all parts" "$(show "$out")"
  run plan "$work/config" --load-format dummy --json
  check_equal "plan: dummy weights are in memory" 0 "$(json_number mapped_weight_bytes "$out")"
  # A share: of what is free, all together.
  run plan "$work/config" --memory-share 0.01 --json
  checks=$((checks + 1))
  awk -v t="$(json_number total_bytes "$out")" -v f="$(json_number free_bytes "$out")" \
    'BEGIN { exit !(t <= 0.01 * f && t > 0.0099 * f) }' || fail "plan: a share" "1 % of the free memory" "$(show "$out")"
  expect_error "plan: both" "expected one of --memory-share and --kv-tokens, found both" plan --memory-share 0.5 --kv-tokens 5
  expect_error "plan: no share" "--memory-share: expected a number of 1e-06 to 1, found 0" plan --memory-share 0
  expect_error "plan: a share above 1" "found 1.5" plan --memory-share 1.5
  expect_error "plan: too little" "no memory for a KV page: weights take 13 MiB" plan --memory-share 0.0001
  expect_error "plan: a context above the model's" "the model's context is 512 tokens" plan --context 513
  expect_error "plan: no such folder" "does not exist" plan "$work/no-such-folder"
  expect_error "plan: threads" "threads: expected 1 to 1024" plan --threads 1025
}

test_memory_of_engines() {
  # Too few pages for all at once: they take turns and say the same.
  run run --chat -f "$work/many"
  cp "$out" "$work/expected"
  run run --chat -f "$work/many" --kv-tokens 512
  check_status "run --kv-tokens" 0
  check_equal "run --kv-tokens" "$(cksum <"$work/expected")" "$(cksum <"$out")"
  run run --chat -f "$work/many" --memory-share 0.3 --page-tokens 64
  check_equal "run --memory-share" "$(cksum <"$work/expected")" "$(cksum <"$out")"
  printf 'Once\nOnce upon a time there was a long prompt that needs more pages than there are\n' >"$work/uneven"
  run run -f "$work/uneven" --kv-tokens 16 -n 8
  check_status "run: a prompt without pages" 1
  check_has "run: a prompt without pages" "$err" "$work/uneven line 2: "
  check_has "run: a prompt without pages" "$err" "1 of 2 prompts could not run"
  expect_error "run: no memory" "no memory for a KV page" run -p x --memory-share 0.0001
  run bench throughput --requests 12 --input 20:60 --output 10:90 --kv-tokens 160 --json
  check_status "bench throughput --kv-tokens" 0
  checks=$((checks + 1))
  [ "$(json_number preemptions "$out")" -gt 0 ] || fail "bench throughput: too few pages" "preemptions" "$(show "$out")"
  run bench throughput --requests 12 --input 60 --common-prefix 50 --output 10 --sequences 4 --page-tokens 32 --json
  checks=$((checks + 1))
  awk -v h="$(json_number prefix_hits "$out")" 'BEGIN { exit !(h > 0.3 && h < 0.6) }' ||
    fail "bench throughput: prompts that begin alike" "prefix hits" "$(show "$out")"
  run bench throughput --requests 12 --input 60 --common-prefix 50 --output 10 --sequences 4 --no-prefix-cache --json
  check_equal "bench throughput --no-prefix-cache" 0 "$(json_number prefix_hits "$out")"
  run bench throughput --requests 100 --input 6 --output 20 --sequences 90 --json
  check_equal "bench throughput: more places than tokens" 90 "$(json_number sequences "$out")"
  run bench throughput --requests 12 --input 20:60 --output 10:90 --kv-tokens 160 --json
  check_equal "bench throughput --kv-tokens" 160 "$(json_number kv_tokens "$out")"
}

complete_words() {
  bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _megalith
           echo "${COMPREPLY[*]}"' - "$work/completion.bash" "$@"
}

test_completion_of_subcommands() {
  run completion bash
  cp "$out" "$work/completion.bash"
  check_equal "bash: commands are single words" "bench" "$(complete_words megalith benc)"
  check_equal "bash: a subcommand" "throughput" "$(cd "$work" && complete_words megalith bench thr)"
  check_equal "bash: its options" "--arrival-rate" "$(complete_words megalith bench throughput --arr)"
  check_equal "bash: not its options" "" "$(complete_words megalith bench --arr)"
  check_equal "bash: choices of its options" "dummy" "$(complete_words megalith bench throughput --load-format du)"
  run completion fish
  check_has "fish: its options" "$out" "from bench; and __fish_seen_subcommand_from throughput' -l arrival-rate"
}

test_throughput_bar() {
  if ! command -v script >/dev/null; then
    skip "script is not installed: the progress bar of bench throughput is not tested"
    return
  fi
  script -qec "'$program' bench throughput '$demo' --requests 120 --input 20:60 --output 100:400 --threads 1" \
    "$work/terminal" >/dev/null </dev/null
  check_has "bench throughput: progress bar" "$work/terminal" "generating ["
}

# -------------------------------------------------------------------------------------------------

# Other cuts of ops give the same text.
test_partitions() {
  run run -p Once -n 8 --ignore-eos
  cp "$out" "$work/uncut"
  run run -p Once -n 8 --ignore-eos --partition gate_up=3 --partition attend=2,2
  check_status "run --partition" 0
  check_equal "run --partition" "$(cat "$work/uncut")" "$(cat "$out")"
  run bench --batch 2 --prompt 8 --generate 4 --runs 1 --partition logits=5 --json
  check_status "bench --partition" 0
  expect_error "run --partition: no such op" "no op of that kind" run -p a --partition foo=2
  expect_error "bench --partition: no number" "--partition: expected OP=X,Y,Z" bench --partition logits
}

# A task graph from a file is run, verified, in the place of the compiler's: the same text.
test_task_graphs() {
  for n in 1 8; do
    run compile -n $n -w 2 --partition gate_up=5 --launch attend=jit -o "$work/graph$n.json"
  done
  run compile -n 1 -w 3 -o "$work/workers3.json"
  run compile -n 3 -w 2 -o "$work/tokens3.json"
  run compile -n 1 -w 2 --target cuda -o "$work/cuda.json"
  run compile -n 1 -w 2 --no-fuse -o "$work/unfused.json"
  sed 's/"num_triggers": *5/"num_triggers": 4/' "$work/graph1.json" >"$work/broken.json"
  run run -p Once -n 8 --ignore-eos -t 2
  cp "$out" "$work/compiled"
  run run -p Once -n 8 --ignore-eos -t 2 --task-graph "$work/graph1.json" \
    --task-graph "$work/graph8.json" --trace "$work/given.trace"
  check_status "run --task-graph" 0
  check_equal "run --task-graph" "$(cat "$work/compiled")" "$(cat "$out")"
  run run -p Once -n 8 --ignore-eos -t 2 --trace "$work/own.trace"
  checks=$((checks + 1))
  [ "$(grep -c gated "$work/given.trace")" -gt "$(grep -c gated "$work/own.trace")" ] ||
    fail "run --task-graph: tasks" "more of gate_up" "as many"
  expect_error "task graph: workers" "expected one for 2 workers of a CPU, found one for 3 of a CPU" \
    run -p a -t 2 --task-graph "$work/workers3.json"
  expect_error "task graph: a GPU's" "found one for 2 of a GPU" run -p a -t 2 --task-graph "$work/cuda.json"
  expect_error "task graph: tokens" "expected one for a power of two of tokens" \
    run -p a -t 2 --task-graph "$work/tokens3.json"
  expect_error "task graph: unfused" "found one of another" run -p a -t 2 --task-graph "$work/unfused.json"
  expect_error "task graph: broken" "" run -p a -t 2 --task-graph "$work/broken.json"
  expect_error "task graph: twice" "found two" \
    run -p a -t 2 --task-graph "$work/graph1.json" --task-graph "$work/graph1.json"
  expect_error "task graph: eager" "expected --mode mega" \
    run -p a -t 2 --mode eager --task-graph "$work/graph1.json"
}

test_run_files
test_partitions
test_task_graphs
test_run_jsonl
test_throughput
test_plan
test_memory_of_engines
test_completion_of_subcommands
test_throughput_bar
finish
