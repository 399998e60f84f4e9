#!/usr/bin/env bash
# What the README promises, on systems where nothing was installed before: fresh minimal Debian roots
# (debootstrap), without /sys, in which the README's own commands are run.
#   run.sh [SUITE...]    suites of Debian (default: bookworm trixie, which are 12 and 13)
# Environment: JOBS (default 2), STEPS (default "demo test": targets of make), LIMIT (seconds that a
# step may take, default 5400), MIRROR, ROOTS (folder for the roots, default a temporary one), KEEP=1
# (leave the roots there), REUSE=1 (go on in one that an earlier run with KEEP left).
#
# Needs root, debootstrap, util-linux and a mirror; takes minutes to an hour, so it is no part of
# `make test`. Prints a line for each step, the end of the log of one that failed, and what tests
# skipped. The status is that of the worst suite.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
jobs=${JOBS:-2}
steps=${STEPS:-demo test}
limit=${LIMIT:-5400}
mirror=${MIRROR:-http://deb.debian.org/debian}
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm trixie)

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
  echo "expected to be root, and debootstrap to be installed (apt-get install debootstrap)"
  exit 77
fi
# The line that the README tells to begin with where there is no make.
install=$(sed -n 's/^\(apt-get update && apt-get install -y [a-z ]*make[a-z ]*\)\( *#.*\)\{0,1\}$/\1/p' \
  "$here/README.md" | head -1)
if [ -z "$install" ]; then
  echo "expected a line \"apt-get update && apt-get install -y make\" in README.md, found none"
  exit 1
fi

roots=${ROOTS:-}
if [ -z "$roots" ]; then
  roots=$(mktemp -d)
  [ -n "${KEEP:-}" ] || trap 'rm -rf --one-file-system "$roots"' EXIT
fi

# Runs a command in the root: own mounts and processes, all of which end with it.
inside() {  # root, command
  # shellcheck disable=SC2016
  timeout -k 10 "$limit" unshare --mount --pid --fork --kill-child sh -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" &&
    exec chroot "$1" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive sh -ec "cd /megalith && $2"' - "$1" "$2" </dev/null
}

step() {  # suite, name, log, command...
  local suite=$1 name=$2 log=$3 start=$SECONDS status
  shift 3
  "$@" >"$log" 2>&1
  status=$?
  printf '%-10s %-10s %5d s  %s\n' "$suite" "$name" $((SECONDS - start)) \
    "$([ $status -eq 0 ] && echo passed || echo "FAILED ($status)")"
  if [ $status -ne 0 ]; then
    tail -n 40 "$log"
  fi
  return $status
}

run_suite() {  # suite
  local suite=$1 root=$roots/$1 name
  if [ -z "${REUSE:-}" ] || [ ! -d "$root/usr" ]; then
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    step "$suite" debootstrap "$roots/$suite-debootstrap.log" \
      timeout "$limit" debootstrap --variant=minbase "$suite" "$root" "$mirror" || return 1
    if [ -e "$root/sys/kernel" ] || chroot "$root" sh -c 'command -v make' >/dev/null; then
      echo "$suite: expected a root without /sys and make"
      return 1
    fi
  fi
  mkdir -p "$root/megalith"
  (cd "$here" && git ls-files -z | tar --null -T - -c) | tar -x -m --no-same-owner -C "$root/megalith" || return 1
  step "$suite" install "$roots/$suite-install.log" inside "$root" "$install" || return 1
  for name in $steps; do
    step "$suite" "make $name" "$roots/$suite-$name.log" inside "$root" "make $name JOBS=$jobs" || return 1
    # What the tests said of themselves.
    grep -E '^(skipped|[0-9]+% tests passed|Total Test time)' "$roots/$suite-$name.log" | sed "s/^/$suite: /"
  done
  chroot "$root" sh -c 'gcc --version; clang --version; cmake --version' 2>/dev/null | grep -i version |
    sed "s/^/$suite: /"
}

status=0
for suite in "${suites[@]}"; do
  run_suite "$suite" || status=1
done
exit $status
