#!/bin/sh
# All C and CUDA files are as clang-format 14 writes them (.clang-format). Other versions break lines
# in other places, so only that one decides; tools/setup.sh test installs it where the system has it.
# Usage: test_format.sh SOURCE_TREE
set -eu
cd "$1"
format=
for name in clang-format-14 clang-format; do
  if command -v $name >/dev/null && $name --version | grep -q 'version 14\.'; then
    format=$name
    break
  fi
done
if [ -z "$format" ]; then
  echo "skipped: there is no clang-format of version 14"
  exit 77
fi
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find src include tests bench examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort >"$list"
if ! xargs $format --dry-run -Werror <"$list"; then
  echo "to mend it: $format -i FILE"
  exit 1
fi
# Comments are not reflowed, so clang-format says nothing of their length.
long=$(grep '^src/\|^include/' "$list" |
  xargs awk '/^ *\/\// && length > 100 { print FILENAME ":" FNR ": " length }')
if [ -n "$long" ]; then
  echo "comments of more than 100 columns:"
  echo "$long"
  exit 1
fi
echo "$(wc -l <"$list") files, none that $format would write otherwise"
[ "$(wc -l <"$list")" -gt 300 ]
