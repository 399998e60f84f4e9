#!/usr/bin/env bash
# What is installed beside the command: the manual page, the systemd unit, and that DESTDIR holds all of
# it. Usage: test_packaging.sh BUILD_FOLDER SOURCE_TREE CMAKE. Needs everything built.
set -eu
build=$(realpath "$1")
source_tree=$(realpath "$2")
cmake=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C.UTF-8

fail() {
  printf 'FAILED %s\n' "$*"
  exit 1
}

# As a packager does: nothing outside of DESTDIR, paths inside without it.
DESTDIR=$work/root "$cmake" --install "$build" --prefix /usr >"$work/log" 2>&1 ||
  fail "cmake --install: $(tail -3 "$work/log")"
unit=$work/root/usr/lib/systemd/system/megalith.service
page=$work/root/usr/share/man/man1/megalith.1
for file in "$work/root/usr/bin/megalith" "$unit" "$page" "$work/root/usr/include/megalith.h"; do
  [ -f "$file" ] || fail "not installed: ${file#"$work"}"
done
grep -q '^ExecStart=/usr/bin/megalith serve' "$unit" || fail "the unit's path: $(grep ExecStart "$unit")"
! grep -q '@MGL' "$unit" || fail "the unit has a gap: $(grep '@MGL' "$unit")"

# Every option of every command is in the page.
options=$("$work/root/usr/bin/megalith" serve --help | sed -n 's/^ *\(-., \)\?--\([a-z0-9-]*\).*/\2/p')
for option in $options; do
  [ "$option" = help ] || grep -qF "\\-\\-$(echo "$option" | sed 's/-/\\-/g')" "$page" ||
    fail "the manual page lacks --$option"
done
if command -v man >/dev/null && man --help 2>&1 | grep -q -- --warnings; then
  man --warnings -E UTF-8 -l -Tutf8 -Z "$page" >/dev/null 2>"$work/man" || fail "man: $(cat "$work/man")"
  [ ! -s "$work/man" ] || fail "man --warnings: $(head -5 "$work/man")"
  MANWIDTH=90 man -l "$page" 2>/dev/null | grep -q "max-requests" || fail "the page shows no --max-requests"
else
  echo "skipped: man --warnings: man-db is not installed"
fi

# systemd looks for the command, so this one is installed for real.
if command -v systemd-analyze >/dev/null; then
  "$cmake" --install "$build" --prefix "$work/tree" >"$work/log" 2>&1 || fail "install: $(tail -3 "$work/log")"
  unit=$work/tree/lib/systemd/system/megalith.service
  # Of what else is wrong on the machine nothing counts.
  systemd-analyze verify --man=no "$unit" 2>&1 | grep -F megalith >"$work/verify" || true
  [ ! -s "$work/verify" ] || fail "systemd-analyze verify: $(cat "$work/verify")"
  if exposure=$(systemd-analyze security --offline=yes --no-pager "$unit" 2>/dev/null); then
    score=$(echo "$exposure" | sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\).*/\1/p')
    echo "systemd's exposure level of the unit: $score of 10"
    awk -v x="$score" 'BEGIN { exit !(x > 0 && x < 3) }' || fail "exposure $score, expected below 3"
  else
    echo "skipped: systemd-analyze security --offline: this systemd has none"
  fi
else
  echo "skipped: systemd-analyze is not installed"
fi

# The image cannot be built here; what it names has to exist.
grep -q '^COPY . .$' "$source_tree/packaging/Dockerfile" || fail "Dockerfile"
grep -q 'ENTRYPOINT \["megalith", "serve"\]' "$source_tree/packaging/Dockerfile" || fail "Dockerfile: entry"
echo "all checks of what is installed passed"
