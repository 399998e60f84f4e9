#!/bin/sh
# The host half compiles for aarch64: every C file of src/ but the x86 kernels, with the flags of the
# build, by clang (which needs no cross compiler), to object files that are thrown away. Nothing is
# linked or run here; the kernels are, in test_neon.sh. Headers of libraries are the host's: none of
# those used depends on the processor.
#
# Where there is clang-tidy 14 it reads the files in the place of clang: it has the same warnings,
# and its own checks (.clang-tidy) for half as much time again. What only x86 compiles, test_tidy.sh
# sees, which takes longer.
# Usage: test_aarch64.sh SOURCE_TREE
set -eu
cd "$1"
headers=/usr/aarch64-linux-gnu/include
if ! command -v clang >/dev/null || [ ! -d $headers ]; then
  echo "skipped: needs clang and libc6-dev-arm64-cross (tools/setup.sh test installs them)"
  exit 77
fi
tidy=
for name in clang-tidy-14 clang-tidy; do
  if command -v $name >/dev/null && $name --version | grep -q 'version 14\.'; then
    tidy=$name
    break
  fi
done
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
# Without optimisation: warnings and code are what counts here, and clang gives the same warnings.
flags="--target=aarch64-linux-gnu -nostdlibinc -isystem $headers -isystem $folder/include -Isrc \
-Iinclude -D_GNU_SOURCE -DMGL_VERSION=\"cross\" -DMGL_SOURCE_DEMO=\"\" $version -std=c11 -Wall \
-Wextra -Wshadow -Wconversion -Wno-unknown-warning-option -Wno-enum-float-conversion -Werror \
-ffp-contract=off -O0"
export folder flags tidy
find src -name '*.c' -not -name '*_avx*.c' | sort >"$folder/list"
if ! xargs -P 2 -n 8 sh -c '
    if [ -n "$tidy" ]; then
      "$tidy" --quiet --checks=clang-diagnostic-\* "$@" -- $flags 2>"$folder/out/$$.err" || {
        cat "$folder/out/$$.err"
        exit 255
      }
    else
      for file; do
        clang $flags -c "$file" -o "$folder/out/object.$$" || exit 255
      done
    fi
    for file; do echo "$file"; done >>"$folder/out/$$.done"' sh <"$folder/list"; then
  echo "src/ does not compile for aarch64${tidy:+, or clang-tidy has found something}"
  exit 1
fi
made=$(cat "$folder"/out/*.done | wc -l)
echo "$made of $(wc -l <"$folder/list") files compile for aarch64${tidy:+, without a finding of $tidy}"
[ "$made" -gt 150 ] && [ "$made" = "$(wc -l <"$folder/list")" ]
