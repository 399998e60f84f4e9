#!/bin/sh
# Lines of src/ by folder at two commits, as a table: files, lines, and lines that are code (neither
# blank nor a comment alone).
#   count_lines.sh [BEFORE [AFTER]]    4d19f11, the first commit with today's folders, and HEAD
set -eu
cd "$(dirname "$0")/.."
before=${1:-4d19f11}
after=${2:-HEAD}

# count COMMIT MARK: lines "MARK folder files lines code" for the folders of src/ with sources.
# kernels/ and device/ have a row for each half; other folders' folders are part of them.
count() {
  work=$(mktemp -d)
  git archive "$1" src | tar -x -C "$work"
  (cd "$work/src" && find . -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.html' \) | xargs awk -v mark="$2" '
    FNR == 1 {
      depth = split(FILENAME, part, "/")
      folder = part[2]
      if (depth > 3 && (folder == "kernels" || folder == "device")) folder = folder "/" part[3]
      files[folder]++
    }
    { lines[folder]++ }
    !/^[ \t]*$/ && !/^[ \t]*\/\// { code[folder]++ }
    END { for (f in files) print mark, f, files[f], lines[f], code[f] + 0 }')
  rm -rf "$work"
}

{ count "$before" before; count "$after" after; } | awk -v before="$before" -v after="$after" '
  { files[$1, $2] += $3; lines[$1, $2] += $4; code[$1, $2] += $5; folders[$2]
    files[$1, "all"] += $3; lines[$1, "all"] += $4; code[$1, "all"] += $5 }
  function row(f) {
    printf "| %s | %d | %d | %d | %d | %d | %d |\n", f, files["before", f], lines["before", f],
      code["before", f], files["after", f], lines["after", f], code["after", f]
  }
  END {
    printf "| src/ | files, %s | lines | code | files, %s | lines | code |\n", before, after
    print "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    count = split("base text grammar template model graph twin task compile lower kernels/cpu " \
      "kernels/cuda batch device device/cpu device/cuda engine api request serve app", order, " ")
    for (i = 1; i <= count; i++)
      if (order[i] in folders) { row(order[i]); delete folders[order[i]] }
    for (f in folders) row(f)
    row("all")
  }'
