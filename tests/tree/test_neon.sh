#!/bin/sh
# The kernels of aarch64, with and without BF16: their tests, cross-compiled and run by qemu-user.
# Usage: test_neon.sh SOURCE_TREE
set -eu
cd "$1"
compiler=aarch64-linux-gnu-gcc
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if ! command -v $compiler >/dev/null || [ -z "$emulator" ]; then
  echo "skipped: needs gcc-aarch64-linux-gnu and qemu-user (tools/setup.sh test installs them)"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# make_object SOURCE [FLAGS...]: what the kernels and their tests need, without any library.
make_object() {
  source=$1
  shift
  $compiler -std=c11 -O2 -ffp-contract=off -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wconversion \
    -Werror -Isrc -Itests/tree/aarch64 "$@" -c "$source" -o "$folder/$(basename "$source" .c).o"
}

make_object src/kernels/cpu/kernels_neon.c -march=armv8-a &
make_object src/kernels/cpu/kernels_neonbf16.c -march=armv8.6-a &
for source in src/kernels/cpu/cpu_kernels.c src/kernels/cpu/kernels_scalar.c \
  src/kernels/cpu/short_rows.c src/base/simd.c \
  src/base/dtype.c src/base/form.c src/base/status.c src/base/text.c src/base/alloc.c; do
  make_object $source
done
wait
[ -e "$folder/kernels_neon.o" ] && [ -e "$folder/kernels_neonbf16.o" ]

run_test() {  # NAME PROCESSOR
  $compiler -std=c11 -O2 -D_GNU_SOURCE -DMGL_TEST_EMULATED=1 -Isrc -Itests/unit/kernels \
    -Itests/tree/aarch64 -Itests/support -static "tests/unit/kernels/test_$1.c" "$folder"/*.o \
    -o "$folder/test" -lm -lpthread
  echo "test_$1 on $2"
  "$emulator" -cpu "$2" "$folder/test"
}

run_test elementwise cortex-a76  # which has no BF16
for test in elementwise linear short_rows linear_codes attention; do
  run_test $test max
done
