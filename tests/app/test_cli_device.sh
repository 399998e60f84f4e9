#!/usr/bin/env bash
# The `megalith` command and devices: which one runs a model, what is said where a GPU cannot be used,
# and what `megalith info` tells of the machine.
# Usage: test_cli_device.sh PROGRAM DEMO_FOLDER [FAKE_DRIVER_FOLDER]
. "$(dirname "$0")/cli.sh" "$@"

# Commands of which each computes something small.
device_commands=("run -p Once -n 3" "score --tokens 1,2" "bench -p 4 -g 4 --runs 1 --mode mega")

# A command that ran says on standard error that the CPU computed, and why.
check_noted() {  # what, text
  check_status "$1" 0
  check_has "$1" "$err" "megalith: note: running on the CPU, not on the GPU: "
  check_has "$1" "$err" "$2"
}

test_device() {
  local command with
  for command in "${device_commands[@]}"; do
    expect_error "$command: options of another device" "--threads is for the CPU; try --device cpu" \
      $command --device cuda --threads 2
    # Without a driver: auto says so if it was asked for, cuda says what is missing.
    if env -u LD_LIBRARY_PATH -u MEGALITH_DEVICE "$program" info | grep -q 'no NVIDIA driver'; then
      MEGALITH_DEVICE= run $command
      check_status "$command: without a driver" 0
      checks=$((checks + 1))
      grep -q "note: running" "$err" && fail "$command: without a driver" "no note" "$(show "$err")"
      MEGALITH_DEVICE=auto run $command
      check_noted "$command: MEGALITH_DEVICE=auto without a driver" "there is no NVIDIA driver"
      run $command --device auto
      check_noted "$command: --device auto without a driver" "there is no NVIDIA driver"
      expect_error "$command --device cuda" "there is no NVIDIA driver" $command --device cuda
      expect_error "$command: cuda:3" "there is no NVIDIA driver" $command --device=cuda:3
      MEGALITH_DEVICE=cuda expect_error "$command: MEGALITH_DEVICE" "there is no NVIDIA driver" $command
      MEGALITH_DEVICE=cuda run $command --device cpu
      check_status "$command: --device wins over MEGALITH_DEVICE" 0
    else
      skip "this machine has an NVIDIA driver: messages without one are not tested"
    fi
  done
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
  local bench="$program bench $work/config_only --load-format dummy -p 4 -g 4 --runs 1 --mode mega"
  run_with() {
    LD_LIBRARY_PATH=$driver timeout 120 env "$@" >"$out" 2>"$err" </dev/null
    status=$?
  }
  unusable() {  # what, text, assignments...
    local what=$1 text=$2
    shift 2
    run_with "$@" $bench --device cuda
    check_error "$what" "$text"
    run_with "$@" MEGALITH_DEVICE=auto $bench
    check_noted "$what: auto" "$text"
    check_equal "$what: auto, lines" 1 "$(wc -l <"$err")"
    check_has "$what: auto" "$out" "mega "
  }
  unusable "an old driver" "the NVIDIA driver is for CUDA 11.4, expected 12.0 or later: update the driver" \
    FAKE_CUDA_DRIVER=11040
  unusable "an old GPU" "Fake GPU has compute capability 7.0; a GPU of 8.0 or later" FAKE_CUDA_MAJOR=7
  unusable "a driver that fails" "CUDA init: a fake failure (802)" FAKE_CUDA_INIT=802
  unusable "too little memory" "GiB are free on the GPU" FAKE_CUDA_FREE=1000
  # A sanitizer wants to be loaded first.
  unusable "no compiler" "there is no libnvrtc" FAKE_CUDA_FREE=9000000000 MEGALITH_CACHE="$work/none" \
    LD_PRELOAD="$driver/libno_nvrtc.so" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0"
  unusable "no GPU" "the NVIDIA driver finds no GPU" FAKE_CUDA_DEVICES=0
  run_with FAKE_CUDA_DEVICES=0 MEGALITH_DEVICE= $bench
  check_status "no GPU, and nobody asked for one" 0
  check_empty "no GPU, and nobody asked for one" "$err"
  test_plain_kernels
  LD_LIBRARY_PATH=$driver run bench --device cuda:1
  check_error "too large a number" "GPU 1 was asked for, the driver finds 1, counted from 0"
  LD_LIBRARY_PATH=$driver MEGALITH_DEVICE= MEGALITH_CACHE=/tmp/none run info
  check_has "info: auto" "$out" "--device auto     cuda:0, for models that fit and that it can run"
  check_has "info: cache" "$out" "cached in /tmp/none"
  LD_LIBRARY_PATH=$driver FAKE_CUDA_MAJOR=7 run info --device auto
  check_has "info: an old GPU" "$out" "--device auto     cpu: Fake GPU has compute capability 7.0"
  LD_LIBRARY_PATH=$driver run info --device cuda
  check_has "info --device cuda" "$out" "--device cuda:0   Fake GPU, for models that fit"
  LD_LIBRARY_PATH=$driver run info --device cuda:1
  check_error "info --device cuda:1" "GPU 1 was asked for, the driver finds 1, counted from 0"
  LD_LIBRARY_PATH=$driver FAKE_CUDA_MAJOR=7 MEGALITH_DEVICE=cuda run info
  check_status "info: MEGALITH_DEVICE" 0
  check_has "info: MEGALITH_DEVICE" "$out" "--device cuda:0   cannot be used: Fake GPU has compute capability 7.0"
}

# A model that no fused task covers: what says so, and what asking for fused tasks gives.
test_plain_kernels() {
  local lacks='the GPU has no kernel for a layer norm ("0.input_layernorm")'
  mkdir -p "$work/phi"
  cat >"$work/phi/config.json" <<'END'
{"architectures": ["PhiForCausalLM"], "model_type": "phi", "vocab_size": 301, "hidden_size": 96,
 "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
 "num_key_value_heads": 2, "max_position_embeddings": 256, "layer_norm_eps": 1e-5,
 "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
END
  LD_LIBRARY_PATH=$driver FAKE_CUDA_FREE=9000000000 run plan "$work/phi" --device cuda
  check_status "plan: plain kernels" 0
  check_has "plan: plain kernels" "$out" \
    "mode full runs the model by plain kernels, which are slow: cuda: $lacks"
  check_has "plan: plain kernels" "$out" "KV memory holds"
  LD_LIBRARY_PATH=$driver FAKE_CUDA_FREE=9000000000 run plan "$work/phi" --device cuda --json
  check_json "plan --json: plain kernels" "$out"
  check_has "plan --json: plain kernels" "$out" '"note": "mode full runs the model by plain kernels'
  LD_LIBRARY_PATH=$driver run bench "$work/phi" --load-format dummy --device cuda --mode mega,full
  check_error "mode mega by name" "$lacks; try --device cpu"
  run compile "$work/phi" --target cuda --mode full --dump lower --verify --tokens 3
  check_status "compile: plain kernels" 0
  check_has "compile: plain kernels" "$out" "layernorm"
  expect_error "compile: no fused task" "$lacks" compile "$work/phi" --target cuda --dump lower
}

test_info() {
  run info --device cpu
  check_status "info --device" 0
  check_has "info --device" "$out" "--device cpu      models run on the CPU"
  expect_error "info: a device" "--device: expected auto, cpu, cuda or cuda:N, found \"gpu\"" info --device gpu
  MEGALITH_DEVICE=auto run info
  check_status "info" 0
  check_has "info" "$out" "--device auto"
  local word
  for word in processor "SIMD level" cores NUMA "memory bandwidth" GPU megalith jansson; do
    check_has "info" "$out" "$word"
  done
  check_has "info" "$out" " GB/s in 3 measurements, "
}

# -------------------------------------------------------------------------------------------------

test_device
test_info
finish
