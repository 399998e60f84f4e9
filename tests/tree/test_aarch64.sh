#!/bin/sh
# The host half compiles for aarch64: every C file of src/ but the x86 kernels, with the flags of the
# build, by clang (which needs no cross compiler), to object files that are thrown away. Nothing is
# linked or run here; the kernels are, in test_neon.sh. Headers of libraries are the host's: none of
# those used depends on the processor.
# Usage: test_aarch64.sh SOURCE_TREE
set -eu
cd "$1"
headers=/usr/aarch64-linux-gnu/include
if ! command -v clang >/dev/null || [ ! -d $headers ]; then
  echo "skipped: needs clang and libc6-dev-arm64-cross (tools/setup.sh test installs them)"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/include" "$folder/out"
for where in /usr/include /usr/include/"$(cc -dumpmachine)"; do
  for name in jansson.h jansson_config.h utf8proc.h hwloc.h hwloc sodium.h sodium xxhash.h event2 \
    openssl; do
    [ ! -e "$where/$name" ] || cp -r "$where/$name" "$folder/include"
  done
done

# megalith.h has the version that CMakeLists.txt gives to the sources.
version=
for part in MAJOR MINOR PATCH; do
  number=$(sed -n "s/^#define MEGALITH_VERSION_$part \([0-9]*\).*/\1/p" include/megalith.h)
  version="$version -DMGL_VERSION_$part=$number"
done
export folder headers version
find src -name '*.c' -not -name '*_avx*.c' | sort >"$folder/list"
# Without optimisation: warnings and code are what counts here, and clang gives the same warnings.
if ! xargs -P 2 -n 8 sh -c 'for file; do
    clang --target=aarch64-linux-gnu -nostdlibinc -isystem "$headers" -isystem "$folder/include" \
      -Isrc -Iinclude -D_GNU_SOURCE -DMGL_VERSION=\"cross\" -DMGL_SOURCE_DEMO=\"\" \
      $version -std=c11 -Wall \
      -Wextra -Wshadow -Wconversion -Wno-unknown-warning-option -Wno-enum-float-conversion -Werror \
      -ffp-contract=off -O0 -c "$file" \
      -o "$folder/out/$(echo "$file" | tr / -).o" || exit 255
  done' sh <"$folder/list"; then
  echo "src/ does not compile for aarch64"
  exit 1
fi
made=$(find "$folder/out" -name '*.o' | wc -l)
echo "$made of $(wc -l <"$folder/list") files compile for aarch64"
[ "$made" -gt 150 ] && [ "$made" = "$(wc -l <"$folder/list")" ]
