#!/bin/sh
# Prints how long each preset takes to the first token, cold (an empty cache folder) and warm (the
# same folder again): process start, compiling, capturing and one token; best of RUNS warm starts.
# Usage: start_times.sh MEGALITH [MODEL] [OPTIONS...], such as
#   tools/start_times.sh build/megalith
#   RUNS=5 tools/start_times.sh build/megalith Qwen/Qwen3-0.6B --device cuda
# PRESETS="serving fastest" measures these alone; with CACHE=FOLDER, a cache that has been filled,
# no start is cold. Presets that the device refuses say why. Exits 1 if a preset that ran gave other
# text than the first one.
set -eu
[ $# -ge 1 ] || {
  sed -n 's/^# Usage: /usage: /p' "$0" >&2
  exit 2
}
megalith=$1
shift
runs=${RUNS:-3}
usual='debug check compiled serving uniform decode-instance fastest-graphs fastest'
presets=${PRESETS:-$usual}
work=$(mktemp -d)
cache=${CACHE:-$work/cache}
trap 'rm -rf "$work"' EXIT

# milliseconds COMMAND...: into $ms; the command's status is the result.
milliseconds() {
  begin=$(date +%s%N)
  status=0
  "$@" || status=$?
  ms=$((($(date +%s%N) - begin) / 1000000))
  return "$status"
}

start() {
  MEGALITH_CACHE=$cache "$megalith" run "$@" -n 1 -p "What is 137 + 245?" \
    >"$work/out" 2>"$work/err"
}

expected=
bad=0
printf '%-18s %10s %10s\n' preset 'cold ms' 'warm ms'
for preset in $presets; do
  rm -rf "$work/cache"
  if ! milliseconds start "$@" --preset "$preset"; then
    printf '%-18s %s\n' "$preset" "$(sed -n '/./{p;q;}' "$work/err")"
    continue
  fi
  cold=$ms
  [ -z "${CACHE:-}" ] || cold=-
  text=$(cat "$work/out")
  expected=${expected:-$text}
  if [ "$text" != "$expected" ]; then
    echo "$preset: expected the text \"$expected\", found \"$text\""
    bad=1
  fi
  warm=
  i=0
  while [ $i -lt "$runs" ]; do
    milliseconds start "$@" --preset "$preset"
    if [ -z "$warm" ] || [ "$ms" -lt "$warm" ]; then
      warm=$ms
    fi
    i=$((i + 1))
  done
  printf '%-18s %10s %10s\n' "$preset" "$cold" "$warm"
done
exit $bad
