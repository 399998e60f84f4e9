#!/bin/sh
# Checks docs/protocol.pml with spin: safety (assertions, invalid end states) and liveness (every
# published iteration ends, under weak fairness), with a dedicated scheduler and with embedded ones.
#   check_protocol_model.sh          all four; exits 77 ("skipped") where spin or a compiler is missing
#   check_protocol_model.sh long     three iterations as well (safety)
set -eu
model=$(cd "$(dirname "$0")/.." && pwd)/docs/protocol.pml
for tool in spin gcc; do
  command -v $tool >/dev/null || {
    echo "skipped: $tool is not installed (tools/setup.sh test installs it)"
    exit 77
  }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cp "$model" .

# check NAME SPIN_FLAGS GCC_FLAGS PAN_FLAGS
check() {
  # shellcheck disable=SC2086  # flags are several words
  spin $2 -a protocol.pml >spin.txt 2>&1 || { cat spin.txt; exit 1; }
  # shellcheck disable=SC2086
  gcc -O2 -w $3 -o pan pan.c
  # shellcheck disable=SC2086
  ./pan -m2000000 $4 >pan.txt 2>&1 || true
  states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.txt)
  depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' pan.txt)
  if ! grep -q 'errors: 0' pan.txt || grep -q 'max search depth too small\|out of memory' pan.txt; then
    echo "$1: FAILED"
    cat pan.txt
    [ ! -f protocol.pml.trail ] || ./pan -r | tail -60
    exit 1
  fi
  echo "$1: no errors, $states states, depth $depth"
}

check "dedicated scheduler, safety" "" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
check "dedicated scheduler, liveness" "" "-DNFAIR=3 -DCOLLAPSE" "-a -f -N live"
check "embedded schedulers, safety" "-DEMBEDDED" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
check "embedded schedulers, liveness" "-DEMBEDDED" "-DNFAIR=3 -DCOLLAPSE" "-a -f -N live"
if [ "${1:-}" = long ]; then
  check "dedicated scheduler, 3 iterations, safety" "-DITERATIONS=3" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
  check "embedded schedulers, 3 iterations, safety" "-DITERATIONS=3 -DEMBEDDED" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
fi
