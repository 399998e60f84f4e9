#!/bin/sh
# Checks docs/protocol.pml with spin: safety (assertions, invalid end states) and liveness (every
# published iteration ends, under weak fairness), with a dedicated scheduler and with embedded ones;
# and docs/ranks.pml. The faults that are made on purpose must be found.
#   check_protocol_model.sh          all of it; exits 77 ("skipped") where spin or a compiler is missing
#   check_protocol_model.sh long     three iterations as well (safety)
set -eu
models=$(cd "$(dirname "$0")/.." && pwd)/docs
for tool in spin gcc; do
  command -v $tool >/dev/null || {
    echo "skipped: $tool is not installed (tools/setup.sh test installs it)"
    exit 77
  }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cp "$models/protocol.pml" "$models/ranks.pml" .
model=protocol.pml

# Optimising the search takes longer than a small search does: small ones are compiled without.
optimise=-O2

# search SPIN_FLAGS GCC_FLAGS PAN_FLAGS: leaves what it says in pan.txt
search() {
  # shellcheck disable=SC2086  # flags are several words
  spin $1 -a "$model" >spin.txt 2>&1 || { cat spin.txt; exit 1; }
  # shellcheck disable=SC2086
  gcc $optimise -w $2 -o pan pan.c
  # shellcheck disable=SC2086
  ./pan -m2000000 $3 >pan.txt 2>&1 || true
}

# check NAME SPIN_FLAGS GCC_FLAGS PAN_FLAGS
check() {
  search "$2" "$3" "$4"
  states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.txt)
  depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' pan.txt)
  if ! grep -q 'errors: 0' pan.txt || grep -q 'max search depth too small\|out of memory' pan.txt; then
    echo "$1: FAILED"
    cat pan.txt
    [ ! -f "$model.trail" ] || ./pan -r | tail -60
    exit 1
  fi
  echo "$1: no errors, $states states, depth $depth"
}

# check_finds NAME SPIN_FLAGS WHAT: the first error is that
check_finds() {
  search "$2" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
  if ! grep -q 'errors: 1' pan.txt || ! grep -q "$3" pan.txt; then
    echo "$1: expected to find: $3"
    cat pan.txt
    exit 1
  fi
  echo "$1: found, $(sed -n 's/^pan:1: //p' pan.txt)"
}

check "dedicated scheduler, safety" "" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
check "dedicated scheduler, liveness" "" "-DNFAIR=3 -DCOLLAPSE" "-a -f -N goes_on"
check "embedded schedulers, safety" "-DEMBEDDED" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
check "embedded schedulers, liveness" "-DEMBEDDED" "-DNFAIR=3 -DCOLLAPSE" "-a -f -N goes_on"
check_finds "LOST_TICKET" "-DEMBEDDED -DLOST_TICKET" "invalid end state"
if [ "${1:-}" = long ]; then
  check "dedicated scheduler, 3 iterations, safety" "-DITERATIONS=3" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
  check "embedded schedulers, 3 iterations, safety" "-DITERATIONS=3 -DEMBEDDED" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
fi
model=ranks.pml
check "remote event" "" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
optimise=-O0
check_finds "LOST_TRIGGER" "-DLOST_TRIGGER" "invalid end state"
check_finds "LOST_WAKE" "-DLOST_WAKE" "invalid end state"
check_finds "OWN_TRIGGERS" "-DOWN_TRIGGERS" "assertion violated"
check_finds "EARLY_PLAN" "-DEARLY_PLAN" "assertion violated"
check "remote words" "-DWORDS" "-DSAFETY -DNOCLAIM -DCOLLAPSE" ""
check_finds "ONE_INBOX" "-DWORDS -DONE_INBOX" "assertion violated"
check_finds "OWN_TILE" "-DWORDS -DOWN_TILE" "assertion violated"
