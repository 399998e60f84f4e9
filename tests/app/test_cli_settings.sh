#!/usr/bin/env bash
# Settings of a compilation as the command has them: each as an option, in a JSON object and in a
# file of one, with the same effect. What runs gives the same text; what is refused, and each bad
# value, has one message that names it.
# Usage: test_cli_settings.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

# Runs two tokens.
few() {
  run run "$demo" -p Once -n 2 --threads 1 "$@"
}

# option and value | JSON | what a refusal says; empty: it runs
rows=(
  "--preset uniform|{\"preset\": \"uniform\"}|"
  "--level 0|{\"level\": 0}|"
  "--graph-mode FULL_DECODE_ONLY|{\"cudagraph_mode\": \"FULL_DECODE_ONLY\"}|"
  "--use-graphs false|{\"use_cudagraph\": false}|"
  "--capture-sizes 1,2,8|{\"cudagraph_capture_sizes\": [1, 2, 8]}|"
  "--graph-sizes 16|{\"cuda_graph_sizes\": [16]}|"
  "--splitting-ops attention,linear_add|{\"splitting_ops\": [\"attention\", \"linear_add\"]}|"
  "--copy-inputs true|{\"cudagraph_copy_inputs\": true}|copy_inputs: expected graph_mode PIECEWISE or"
  "--use-compiler false|{\"use_inductor\": false}|"
  "--compile-sizes 1,3|{\"compile_sizes\": [1, 3]}|"
  "--compiler-config compiler=nvcc|{\"inductor_compile_config\": {\"compiler\": \"nvcc\"}}|compiler_config: on the CPU no device code"
  "--debug-dump-path $work/dump|{\"debug_dump_path\": \"$work/dump\"}|"
  "--cache-dir $work/cache|{\"cache_dir\": \"$work/cache\"}|"
  "--enforce-eager|{\"enforce_eager\": true}|"
  "--check-numbers|{\"check_numbers\": true}|check_numbers: expected level 0, 1 or 2"
  "--expert-balance hybrid|{\"expert_balance\": \"hybrid\"}|expert_balance: expected a mixture of experts"
  "--variant attention=scalar|{\"variant\": {\"attention\": \"scalar\"}}|"
)

# option and bad value | what is said
bad_rows=(
  "--preset best|--preset: expected debug, check, compiled" "--level 9|--level: expected 0 to 3"
  "--graph-mode PIECES|--graph-mode: expected NONE, PIECEWISE" "--use-graphs yes|--use-graphs: expected true or"
  "--capture-sizes 0|--capture-sizes: expected sizes in tokens" "--graph-sizes a|--graph-sizes: expected sizes"
  "--splitting-ops a,a|--splitting-ops: expected each op once" "--copy-inputs 1|--copy-inputs: expected true or"
  "--use-compiler no|--use-compiler: expected true or false" "--compile-sizes 1,1|--compile-sizes: expected each"
  "--compiler-config gcc|--compiler-config: expected \"compiler\"" "--expert-balance all|--expert-balance: expected"
  "--variant attention=best|--variant: attention: expected a kernel" "--check-numbers=1|--check-numbers takes no value"
  "--enforce-eager=2|--enforce-eager takes no value" "--debug-dump-path=|--debug-dump-path: expected"
  "--cache-dir=|--cache-dir: expected"
)

expected_text() {
  few
  check_status "without settings" 0
  cp "$out" "$work/expected"
}

check_way() {  # what, refusal, arguments...
  local what=$1 refusal=$2
  shift 2
  few "$@"
  if [ -n "$refusal" ]; then
    check_error "$what" "$refusal"
  else
    check_status "$what" 0
    check_equal "$what: text" "$(cksum <"$work/expected")" "$(cksum <"$out")"
  fi
}

test_settings() {
  local row option json refusal
  expected_text
  for row in "${rows[@]}"; do
    option=${row%%|*}
    json=${row#*|}
    refusal=${json#*|}
    json=${json%%|*}
    # shellcheck disable=SC2086
    check_way "$option" "$refusal" $option
    check_way "$json" "$refusal" --compilation-config "$json"
    printf '%s' "$json" >"$work/settings.json"
    check_way "file of $json" "$refusal" --compilation-config "$work/settings.json"
  done
  checks=$((checks + 1))
  [ -f "$work/dump/rank_0/program.txt" ] || fail "--debug-dump-path" "a file program.txt" "none"
}

test_bad_settings() {
  local row
  for row in "${bad_rows[@]}"; do
    # shellcheck disable=SC2086
    expect_error "${row%%|*}" "${row#*|}" run "$demo" -p Once -n 2 ${row%%|*}
  done
}

# Every option of the group has a row here.
test_all_are_here() {
  local name
  run run --help
  for name in $(grep -o '^ *--[a-z-]*' "$out" | tr -d ' ' | sed -n '/^--preset$/,/^--compilation-config$/p'); do
    [ "$name" = --compilation-config ] && continue
    checks=$((checks + 1))
    printf '%s\n' "${rows[@]}" | grep -q -e "^$name[ |]" || fail "$name" "a row of settings" "none"
    printf '%s\n' "${bad_rows[@]}" | grep -q -e "^$name[ =]" || fail "$name" "a row of bad ones" "none"
  done
  check_equal "rows" 17 "${#rows[@]}"
}

test_settings
test_bad_settings
test_all_are_here
finish
