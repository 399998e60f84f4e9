#!/usr/bin/env bash
# The `megalith` command from outside, where it works on files of its own: task graphs that compile
# writes and graph reads, traces that trace sums up. Usage: test_cli_graph.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

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
  run compile "$folder" --variant attention=scalar
  check_status "compile --variant" 0
  check_has "compile --variant" "$out" "--variant says so"
  expect_error "compile --variant attention=best" "--variant: attention: expected a kernel" \
    compile "$folder" --variant attention=best
  expect_error "compile --variant for a GPU" "--variant: expected --target cpu with it" \
    compile "$folder" --target cuda --variant attention=scalar
  run compile "$folder" --target cuda
  check_has "compile: bodies" "$out" "because, up to 1 token"
  check_has "compile: bodies" "$out" "linear_add   linear_1                      of any shape"
  check_has "compile: bodies" "$out" "attend       mgl_op_attend                 one token, a short"
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
  # What no engine runs is told.
  local nothing="Nothing runs graphs for more than 64 tokens on a GPU" tokens
  check_has "compile --target cuda --tokens all" "$out" "$nothing"
  for tokens in "--tokens 64 --target cuda" "--tokens 128"; do
    # shellcheck disable=SC2086
    run compile "$folder" $tokens
    check_equal "compile $tokens: a graph that is run" 0 "$(grep -c "$nothing" "$out")"
  done
  run compile "$folder" --target cuda --tokens all --json
  check_equal "compile --json: graphs that are run" "true true true true true true true false false false false false" \
    "$(grep -o '"is_run": [a-z]*' "$out" | sed 's/.*: //' | xargs)"
  run compile --help
  check_has "compile --help" "$out" "iterations of more than 64 tokens"
  run bench --help
  check_has "bench --help" "$out" "iterations of up to 16 tokens, or of up to 64 with --iteration-tokens 64"
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

# How tasks share a mixture's experts: what run takes, compile shows.
test_compile_balance() {
  local mixture=$work/mixture balance place=0 tasks
  mkdir -p "$mixture"
  cat >"$mixture/config.json" <<'EOF'
{"architectures": ["MixtralForCausalLM"], "hidden_size": 128, "intermediate_size": 64,
 "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
 "vocab_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"}
EOF
  for balance in columns static dynamic hybrid; do
    run compile "$mixture" --expert-balance $balance --dump fuse_ops
    check_status "compile --expert-balance $balance" 0
    if [ $place -gt 0 ]; then
      check_has "compile --expert-balance $balance: the program" "$out" " balance=$place"
    else
      check_equal "compile: columns are the usual balance" 0 "$(grep -c " balance=" "$out")"
    fi
    place=$((place + 1))
    run compile "$mixture" --expert-balance $balance --workers 4 --tokens 4 --verify --json
    check_status "compile --expert-balance $balance --verify" 0
    tasks=$(statistic jit_tasks)
    checks=$((checks + 1))
    if [ $balance = dynamic ]; then
      [ "$tasks" -gt 0 ] || fail "compile --expert-balance dynamic" "JIT tasks" "$tasks"
    else
      [ "$tasks" -eq 0 ] || fail "compile --expert-balance $balance" "no JIT tasks" "$tasks"
    fi
  done
  run compile "$mixture" --expert-balance hybrid --workers 4 -o "$work/hybrid.json"
  check_status "compile --expert-balance -o" 0
  run graph "$work/hybrid.json"
  check_status "graph of a hybrid balance" 0
  expect_error "a balance on a GPU" "--expert-balance: a GPU's tasks share chosen experts evenly" \
    compile "$mixture" --target cuda --expert-balance static
  expect_error "a balance without experts" "expert" compile --expert-balance static
  expect_error "an unknown balance" "--expert-balance" compile "$mixture" --expert-balance even
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

# --- test ----------------------------------------------------------------------------------------

test_ops() {
  local folder=$work/ops level
  run test "$demo" 0.v..0.gated -t 2 --tokens 3 --context 20 --output "$folder"
  check_status "test" 0
  check_empty "test: standard error" "$err"
  check_has "test: its line" "$out" "    5  gate_up      0.gated                   2304"
  check_has "test: the cache" "$out" "    3  attend       kv.0                       768"
  check_has "test: the end" "$out" "3 tokens behind 20 of context: 3 of 3 outputs passed"
  check_equal "test: files" "0.attended.expected.npy 0.attended.npy 0.gated.expected.npy \
0.gated.npy kv.0.expected.npy kv.0.npy" "$(cd "$folder" && echo *)"
  check_equal "test: size" $((128 + 3 * 768 * 4)) "$(wc -c <"$folder/0.gated.npy")"
  check_has "test: shape" "$folder/kv.0.npy" "'shape': (2, 3, 2, 64)"

  # What one range made, the next one takes.
  run test "$demo" 0.fed_forward -t 2 --tokens 3 --output "$folder/next" \
    --input 0.gated="$folder/0.gated.npy" --input 0.attended="$folder/0.attended.npy"
  check_status "test with inputs" 0
  check_has "test with inputs" "$out" "1 of 1 outputs passed"
  cp "$folder/next/0.fed_forward.npy" "$work/fed_forward.npy"
  run test "$demo" 5..6 -t 1 --tokens 3 --output "$folder/next" \
    --input 0.attended="$folder/0.attended.npy"
  check_status "test by number" 0
  check_equal "test: two ranges make what one makes" 0 \
    "$(cmp "$work/fed_forward.npy" "$folder/next/0.fed_forward.npy" >/dev/null 2>&1; echo $?)"

  run test "$demo" --list
  check_has "test --list" "$out" "   42  logits       logits (7.fed_forward)"
  run test "$demo" 0.q_norm..0.attention --no-fuse --each
  check_status "test --no-fuse" 0
  check_has "test --no-fuse" "$out" "kv_write     kv.0"
  run test "$demo" 0.q_norm..0.attention --mode eager --each
  check_status "test --mode eager" 0
  check_has "test --mode eager" "$out" "kv_write     kv.0"
  expect_error "test --mode piecewise" "expected mode mega or eager on the CPU, found piecewise" \
    test "$demo" 0.attention --mode piecewise
  for level in scalar avx2; do
    (export MEGALITH_SIMD=$level; "$program" test "$demo" 2..6 --tokens 7 >"$out" 2>"$err" </dev/null)
    if grep -q "this processor has" "$err"; then
      skip "test at level $level" "$(head -n 1 "$err")"
      continue
    fi
    check_has "test at level $level" "$out" "2 of 2 outputs passed"
  done
}

test_ops_errors() {
  # Other kernels round otherwise, and nothing but equal bits passes.
  run test "$demo" logits --tokens 7 --seed 3 --tolerance 0
  if ! grep -q "1 of 1 outputs passed" "$out"; then  # kernels that are not scalar
    check_status "test that fails" 1
    check_has "test that fails" "$out" "FAILED"
    check_has "test that fails" "$err" \
      "megalith: 1 of 1 outputs are further from the reference than their bounds"
  fi
  expect_error "no such op" 'expected an op of 0 to 42 or the name of its result, found "43"' \
    test "$demo" 43
  expect_error "backwards" "expected a range in the order of the program, found op 5..3" \
    test "$demo" 5..3
  expect_error "no input" 'expected an input of ops 5 to 5, found "x", which is none' \
    test "$demo" 5 --input x="$work/ops/0.gated.npy"
  expect_error "no file" "expected NAME=FILE" test "$demo" 5 --input x
  expect_error "a file of something else" "expected a NumPy file" \
    test "$demo" 5 --input x="$demo/config.json"
  expect_error "no context" "the model's context is 512 tokens" test "$demo" --context 600
  expect_error "two ranges" "expected one MODEL" test "$demo" 5 6
}

# -------------------------------------------------------------------------------------------------

test_trace_summary
test_compile
test_compile_balance
test_compile_errors
test_graph
test_broken_graphs
test_ops
test_ops_errors
finish
