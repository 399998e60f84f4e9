#!/bin/sh
# Prints how long each preset takes to the first token, cold (an empty cache folder) and warm (the
# same folder again): process start, compiling, capturing and one token; best, median and worst of
# RUNS warm starts. Usage: start_times.sh MEGALITH [MODEL] [OPTIONS...], such as
#   tools/start_times.sh build/megalith
#   RUNS=5 tools/start_times.sh build/megalith Qwen/Qwen3-0.6B --device cuda
# PRESETS="serving fastest" measures these alone; with CACHE=FOLDER, a cache that has been filled,
# no start is cold. Presets that the device refuses say why. AT_ONCE=N starts N processes at once on
# an empty cache, too, with each of AT_ONCE_PRESETS (default: fastest), and counts what they compile
# for a GPU; each source must be compiled by one of them alone. A model's folder that has no
# tokeniser may borrow one with TOKENIZER=FOLDER. Exits 1 if a start gave other text than the first
# one, or if a source was compiled twice.
set -eu
[ $# -ge 1 ] || {
  sed -n 's/^# .*Usage: /usage: /p' "$0" >&2
  exit 2
}
megalith=$1
shift
runs=${RUNS:-3}
usual='debug check compiled serving uniform decode-instance fastest-graphs fastest'
presets=${PRESETS-$usual}
work=$(mktemp -d)
cache=${CACHE:-$work/cache}
trap 'rm -rf "$work"' EXIT

if [ -n "${TOKENIZER:-}" ]; then
  mkdir "$work/model"
  cp "$1"/* "$TOKENIZER"/tokenizer* "$work/model"
  shift
  set -- "$work/model" "$@"
fi

# milliseconds COMMAND...: into $ms; the command's status is the result.
milliseconds() {
  begin=$(date +%s%N)
  status=0
  "$@" || status=$?
  ms=$((($(date +%s%N) - begin) / 1000000))
  return "$status"
}

# start NAME ARGUMENT...: its text and its errors are in $work/NAME.out and .err.
start() {
  name=$1
  shift
  MEGALITH_CACHE=$cache "$megalith" run "$@" -n 1 -p "What is 137 + 245?" \
    >"$work/$name.out" 2>"$work/$name.err"
}

expected=
bad=0
# check_text WHO NAME: the text of all starts is the same.
check_text() {
  text=$(cat "$work/$2.out")
  expected=${expected:-$text}
  if [ "$text" != "$expected" ]; then
    echo "$1: expected the text \"$expected\", found \"$text\""
    bad=1
  fi
}

[ -z "$presets" ] ||
  printf '%-18s %10s %10s %10s %10s\n' preset 'cold ms' 'warm ms' median worst
for preset in $presets; do
  rm -rf "$work/cache"
  if ! milliseconds start one "$@" --preset "$preset"; then
    printf '%-18s %s\n' "$preset" "$(sed -n '/./{p;q;}' "$work/one.err")"
    continue
  fi
  cold=$ms
  [ -z "${CACHE:-}" ] || cold=-
  check_text "$preset" one
  : >"$work/warm"
  i=0
  while [ $i -lt "$runs" ]; do
    milliseconds start one "$@" --preset "$preset"
    echo "$ms" >>"$work/warm"
    i=$((i + 1))
  done
  sort -n "$work/warm" >"$work/sorted"
  printf '%-18s %10s %10s %10s %10s\n' "$preset" "$cold" "$(sed -n 1p "$work/sorted")" \
    "$(sed -n $(((runs + 1) / 2))p "$work/sorted")" "$(sed -n '$p' "$work/sorted")"
done

# at_once PRESET ARGUMENT...: AT_ONCE processes on an empty cache folder of their own. What each of
# them took of a compiler is said by the lines "code" of its dumps (docs/modes.md, debug_dump_path).
at_once() {
  preset=$1
  shift
  cache=$work/at_once
  rm -rf "$cache" "$work"/dump.*
  begin=$(date +%s%N)
  i=0
  while [ $i -lt "$AT_ONCE" ]; do
    start "many.$i" "$@" --preset "$preset" --debug-dump-path "$work/dump.$i" &
    i=$((i + 1))
  done
  wait
  ms=$((($(date +%s%N) - begin) / 1000000))
  ended=0
  i=0
  while [ $i -lt "$AT_ONCE" ]; do
    if grep -q 'generated: 1 tokens' "$work/many.$i.err"; then
      ended=$((ended + 1))
      check_text "$preset, process $i of $AT_ONCE" "many.$i"
    else
      echo "$preset, process $i of $AT_ONCE: $(sed -n '/./{p;q;}' "$work/many.$i.err")"
      bad=1
    fi
    i=$((i + 1))
  done
  grep -hsE '^(source|code) ' "$work"/dump.*/rank_0/*.options.txt >"$work/code" || true
  compiled=$(grep -c '^code compiled' "$work/code") || true
  sources=$(sed -n 's/^source //p' "$work/code" | sort -u | wc -l)
  cached=$(grep -c '^code cached' "$work/code") || true
  echo "$preset, $AT_ONCE processes at once on an empty cache: $ended gave a token, all within" \
    "$ms ms; of $sources sources $compiled were compiled, $cached times code was there"
  [ "$compiled" -eq "$sources" ] || bad=1
}

if [ "${AT_ONCE:-0}" -gt 0 ]; then
  for preset in ${AT_ONCE_PRESETS:-fastest}; do
    at_once "$preset" "$@"
  done
fi
exit $bad
