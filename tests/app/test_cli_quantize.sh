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

json_number() {  # key, file
  sed -n "s/.*\"$1\": \([-0-9.e+]*\).*/\1/p" "$2"
}

# The KV cache in fp8: half of the bytes, sums still right, prompts that begin alike, ranks.
test_kv() {
  local right alone kl
  run plan --json
  alone=$(json_number kv_bytes_per_token "$out")
  run plan --kv-dtype fp8 --json
  check_equal "plan --kv-dtype fp8" "$alone" "$((2 * $(json_number kv_bytes_per_token "$out")))"
  run plan --kv-dtype fp8
  check_has "plan --kv-dtype fp8" "$out" "a token, in fp8"
  run run --chat -f "$work/prompts" --kv-dtype fp8
  check_status "run --kv-dtype fp8" 0
  cp "$out" "$work/kv_fp8"
  right=$(grep -v '^$' "$out" | paste -d '|' - "$work/answers" | awk -F '|' '$1 == $2' | wc -l)
  checks=$((checks + 1))
  if [ $((right * 100)) -lt $((97 * sums)) ]; then
    fail "sums with --kv-dtype fp8" "at least 97% of $sums" "$right"
  fi
  # The same of each alone, of ranks, in another mode, and by another program's name of it.
  run run --chat -p "$(sed -n 3p "$work/prompts")" --kv-dtype fp8 --mode eager
  check_equal "one prompt alone" "$(grep -v '^$' "$work/kv_fp8" | sed -n 3p)" "$(grep -v '^$' "$out")"
  run run --chat -f "$work/prompts" --kv-cache-dtype fp8 --tp 2
  check_status "run --tp 2 --kv-cache-dtype fp8" 0
  check_equal "run --tp 2 --kv-cache-dtype fp8" "$(cksum <"$work/kv_fp8")" "$(cksum <"$out")"
  printf 'kv-dtype: fp16\n' >"$work/config.yaml"
  expect_error "a dtype in a file" "expected auto or fp8" serve --config "$work/config.yaml"
  # What it costs.
  run score --text "What is 12 + 34? 12 + 34 = 46." --kv-dtype fp8
  check_status "score --kv-dtype fp8" 0
  check_has "score --kv-dtype fp8" "$out" "KL to the usual KV cache: 0."
  run score --text "What is 12 + 34? 12 + 34 = 46." --kv-dtype fp8 --json
  check_json "score --kv-dtype fp8 --json" "$out"
  kl=$(json_number kv_kl "$out")
  checks=$((checks + 1))
  awk "BEGIN { exit !($kl > 1e-9 && $kl < 0.05) }" || fail "score: kv_kl" "1e-9 to 0.05" "$kl"
  run score --text "What is 12 + 34? 12 + 34 = 46." --kv-dtype auto
  check_status "score --kv-dtype auto" 0
  check_equal "score --kv-dtype auto: no KL" 0 "$(grep -c KL "$out")"
  expect_error "a dtype that there is not" "--kv-dtype" score --text hi --kv-dtype fp16
  expect_error "a cache of codes on a GPU" "cuda" run -p hi --kv-dtype fp8 --device cuda
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
test_kv
test_errors
finish
