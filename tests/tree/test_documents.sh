#!/bin/sh
# Documents that a stranger can read: short lines, short pages, numbers and files that exist.
# Usage: test_documents.sh SOURCE_TREE. What scripts write is left out: bench/results, tests/data and
# demo/README.md.
set -eu
cd "$1"
list=$(mktemp)
cited=$(mktemp)
trap 'rm -f "$list" "$cited"' EXIT
bad=0

complain() {
  echo "$1"
  bad=$((bad + 1))
}

# Every document of the tree, with or without git.
find . -name '*.md' -not -path './build*' -not -path './.*' -not -path './bench/results/*' \
  -not -path './tests/data/*' -not -path './demo/*' | sed 's|^\./||' | sort >"$list"

# Lines of at most 100 columns. awk counts bytes where its locale does: documents are ASCII.
long=$(xargs awk 'length > 100 { print FILENAME ":" FNR ": " length " columns, at most 100" }' <"$list")
[ -z "$long" ] || complain "$long"
odd=$(LC_ALL=C xargs grep -n '[^ -~]' <"$list" || true)
[ -z "$odd" ] || complain "characters that are not ASCII: $odd"

for page in ARCHITECTURE.md SPEED.md; do
  lines=$(wc -l <$page)
  [ "$lines" -le 150 ] || complain "$page has $lines lines, at most 150"
done

# One attempt a file, one file a number, each in the index, with a link, and without gaps.
attempts=$(ls docs/log/[0-9]*.md | wc -l)
wrong=$(awk '
  function finish(   i) {
    if (file == "") return
    for (i = 1; i <= count; i++)
      if (!(field[i] in has)) print file " has no field " field[i]
  }
  BEGIN { count = split("Expected Change Figures Verdict Cause", field, " ") }
  FILENAME == "docs/log/README.md" { row[$0]; next }
  FNR == 1 {
    finish()
    split("", has)
    file = FILENAME
    name = file
    gsub(/^docs\/log\/|\.md$/, "", name)
    number = substr(name, 1, 3)
    if (number + 0 != ++next_number) print file ": expected number " sprintf("%03d", next_number)
    next_number = number + 0
    if (index($0, "# " number ": ") != 1) print file " does not begin with \"# " number ": \""
    if (!(("[" number "]: " name ".md") in row)) print file " has no link at the end of the index"
    start = "| [" number "] | " substr(name, 5) " |"
    listed = 0
    for (line in row) listed = listed || index(line, start) == 1
    if (!listed) print file " has no line in the table of docs/log/README.md"
  }
  match($0, /^\*\*[A-Z][a-z]+[*.]/) { has[substr($0, 3, RLENGTH - 3)] }
  END { finish() }' docs/log/README.md docs/log/[0-9]*.md)
[ -z "$wrong" ] || complain "$wrong"

# Numbers that are cited: docs/log/012, 034 or log 012, 034 to 036.
git_or_find() {
  find src bench tests tools include docs ./*.md -type f \( -name '*.[ch]' -o -name '*.cu' -o \
    -name '*.cuh' -o -name '*.md' -o -name '*.sh' -o -name '*.txt' -o -name '*.py' \) \
    -not -path 'tests/tree/*' -not -path 'docs/log/README.md'
}
git_or_find | xargs grep -hoE '\b([Ll]og |docs/log/)[0-9]{3}((,| to| and|, and) [0-9]{3})*\b' |
  grep -oE '[0-9]{3}' | sort -u >"$cited"
while read -r number; do
  set -- docs/log/"$number"-*.md
  [ -f "$1" ] || complain "log $number is cited, but there is no docs/log/$number-*.md"
done <"$cited"

# Paths in backticks that look like files of the tree: with a slash or at the root, and a known end.
# src/ may be left out, as ARCHITECTURE.md does; one name with a star stands for several files. The
# log and the changelog tell of what was.
paths=0
for path in $(grep -v '^docs/log/\|^CHANGELOG' "$list" | xargs grep -ohE \
  '`[A-Za-z0-9_./*-]+(\.(c|h|cu|cuh|md|def|sh|py|txt|pml|csv|json)|/)`' | tr -d '`' | sort -u); do
  case "$path" in
    *NAME* | *FOLDER* | *NNN* | /* | '~'*) continue ;;
    */*) ;;
    *.md) ;;
    *) continue ;;
  esac
  paths=$((paths + 1))
  found=
  for where in "$path" "src/$path" "src/kernels/cuda/$path"; do
    for one in $where; do [ -e "$one" ] && found=1; done
  done
  [ -n "$found" ] || complain "\`$path\` is named in a document, but is not in the tree"
done

echo "$(wc -l <"$list") documents, $attempts attempts, $(wc -l <"$cited") of them cited," \
  "$paths paths, $bad complaints"
[ "$bad" = 0 ] && [ "$attempts" -ge 100 ] && [ "$paths" -gt 40 ] && [ "$(wc -l <"$cited")" -gt 50 ]
