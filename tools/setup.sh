#!/bin/sh
# Installs what is missing to build Megalith (setup.sh build) or to build and test it (setup.sh test) on
# Debian 12 or Ubuntu 24.04. As root it installs with apt; otherwise it prints the one line to run.
set -eu

packages="gcc libc6-dev make cmake pkg-config libjansson-dev libutf8proc-dev libhwloc-dev libxxhash-dev libsodium-dev libevent-dev libssl-dev"
browser_and_man="chromium man-db"
if [ "${1:-build}" = test ]; then
  packages="$packages libcmocka-dev clang spin"
fi

missing_of() {
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
  done
}

install() {
  [ $# -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "Missing packages. Run this, then try again:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y $*" >&2
    exit 1
  fi
  echo "Installing: $*"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

if ! command -v dpkg-query >/dev/null; then
  echo "Not a Debian or Ubuntu system; please install the equivalents of: $packages" >&2
  exit 0
fi
# shellcheck disable=SC2046  # one word a package
install $(missing_of $packages)
if [ "${1:-build}" = test ]; then
  # The sanitizers' and libFuzzer's runtime has clang's version in its name.
  version=$(clang -dumpversion | cut -d. -f1)
  # shellcheck disable=SC2046
  install $(missing_of "libclang-rt-$version-dev")

  # Checks of the sources are skipped, with a reason, without these: no error where they are not to be
  # had. Of clang-format and clang-tidy it is version 14 that decides.
  # The server's pages and the man page are tried where chromium and man are there; nginx and promtool are
  # used where they are, and not installed, since their packages start services.
  wanted=$(missing_of clang-format-14 clang-tidy-14 libc6-dev-arm64-cross gcc-aarch64-linux-gnu \
    qemu-user $browser_and_man)
  if [ -n "$wanted" ] && [ "$(id -u)" -eq 0 ]; then
    apt-cache show clang >/dev/null 2>&1 || apt-get update -qq || true
    for package in $wanted; do
      ! apt-cache show "$package" >/dev/null 2>&1 || (install "$package") ||
        echo "not installed: $package; the check that needs it is skipped"
    done
  elif [ -n "$wanted" ]; then
    echo "Checks of the sources that are skipped need: sudo apt-get install -y" $wanted
  fi
fi
