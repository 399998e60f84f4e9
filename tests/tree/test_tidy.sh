#!/bin/sh
# clang-tidy 14 finds nothing in src/ (checks and what is left out: .clang-tidy). It looks at the host's
# files but those of instruction sets, with the flags of the build.
# Usage: test_tidy.sh SOURCE_TREE
set -eu
cd "$1"
tidy=
for name in clang-tidy-14 clang-tidy; do
  if command -v $name >/dev/null && $name --version | grep -q 'version 14\.'; then
    tidy=$name
    break
  fi
done
if [ -z "$tidy" ]; then
  echo "skipped: there is no clang-tidy of version 14"
  exit 77
fi
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find src -name '*.c' -not -name '*_avx*.c' | sort >"$list"
export tidy
if ! xargs -P 2 -n 8 sh -c '"$tidy" --quiet "$@" -- -Isrc -Iinclude -D_GNU_SOURCE -std=c11 \
  -DMGL_VERSION=\"tidy\" -DMGL_SOURCE_DEMO=\"\" -DMGL_VERSION_MAJOR=0 -DMGL_VERSION_MINOR=1 \
  -DMGL_VERSION_PATCH=0 2>&1' sh <"$list" >"$list.out"; then
  grep -E '(warning|error):' -A 3 "$list.out" | head -60
  rm -f "$list.out"
  exit 1
fi
rm -f "$list.out"
echo "$(wc -l <"$list") files without a finding"
[ "$(wc -l <"$list")" -gt 150 ]
