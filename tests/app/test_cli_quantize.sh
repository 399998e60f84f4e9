#!/usr/bin/env bash
# megalith quantize from outside: the demo model in every format still adds numbers, and what the
# command refuses. Usage: test_cli_quantize.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

sums=100

# Prompts, and beside them the answers.
make_sums() {
  awk -v count="$sums" -v prompts="$work/prompts" -v answers="$work/answers" 'BEGIN {
    for (i = 0; i < count; i++) {
      a = (i * 379 + 41) % 999 + 1; b = (i * 613 + 7) % 999 + 1
      printf "What is %d + %d?\n", a, b > prompts
      printf "%d + %d = %d.\n", a, b, a + b > answers
    }
  }'
}

# format, most bytes of the new weights, least percent of sums that are right
test_format() {
  local folder=$work/$1 right bytes
  run quantize --to "$1" -o "$folder" --text-file "$work/prompts"
  check_status "quantize --to $1" 0
  check_has "quantize --to $1" "$out" "56 matrices to $1"
  check_has "quantize --to $1" "$out" "KL to the original"
  check_has "config of $1" "$folder/config.json" "compressed-tensors"
  bytes=$(wc -c <"$folder/model.safetensors")
  checks=$((checks + 1))
  if [ "$bytes" -gt "$2" ]; then
    fail "size of $1" "at most $2 bytes" "$bytes"
  fi
  run plan "$folder"
  check_has "plan of $1" "$out" "(qwen3, compressed-tensors"
  run run --chat -f "$work/prompts" "$folder"
  check_status "run in $1" 0
  right=$(grep -v '^$' "$out" | paste -d '|' - "$work/answers" | awk -F '|' '$1 == $2' | wc -l)
  checks=$((checks + 1))
  if [ $((right * 100)) -lt $(($3 * sums)) ]; then
    fail "sums in $1" "at least $3% of $sums" "$right"
  fi
}

test_errors() {
  expect_error "quantize without a format" "--to and --output" quantize -o "$work/x"
  expect_error "quantize without a folder" "--to and --output" quantize --to int4
  expect_error "quantize twice" "is there already" quantize --to int8 -o "$work/int8"
  expect_error "quantize what is quantised" "is quantised already" \
    quantize "$work/int4" --to int8 -o "$work/x"
  expect_error "quantize a GGUF file" "is a GGUF file: expected a model folder" \
    quantize "$(dirname "$0")/../data/gguf/llama_f16.gguf" --to int8 -o "$work/x"
  expect_error "a group of fp8" "expected no group" quantize --to fp8 --group 64 -o "$work/x"
  expect_error "a group that does not divide" "another --group may fit" \
    quantize --to int4 --group 96 -o "$work/x"
  expect_error "a folder that cannot be made" "cannot make the folder" \
    quantize --to int4 -o "$work/prompts/x"
  run run --device cuda -p hello "$work/int4"
  check_status "a GPU" 1
}

make_sums
test_format fp8 6900000 99
test_format int8 6900000 99
test_format int4 3900000 97
test_errors
finish
