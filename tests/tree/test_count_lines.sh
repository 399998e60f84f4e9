#!/bin/sh
# tools/count_lines.sh counts every source once: its rows add up to what find and wc say of the
# committed tree, and no folder is left out.
# Usage: test_count_lines.sh SOURCE_TREE
set -eu
cd "$1"
if ! git rev-parse --verify -q HEAD >/dev/null 2>&1; then
  echo "skipped: no git repository whose commits could be counted"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD src | tar -x -C "$work"
expected=$(find "$work/src" -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' \
  -o -name '*.cuh' -o -name '*.html' \) -exec cat {} + | wc -l)
tools/count_lines.sh HEAD HEAD >"$work/table"
awk -F ' *[|] *' -v expected="$expected" '
  NR > 2 && $2 != "all" { sum += $4; code += $5; rows++; if ($4 != $7 || $5 != $8) bad = 1 }
  $2 == "all" { all = $4; all_code = $5 }
  END {
    printf "%d folders, %d lines, %d of code; expected %d lines\n", rows, all, all_code, expected
    exit bad || rows < 15 || sum != all || code != all_code || all != expected
  }' "$work/table"
