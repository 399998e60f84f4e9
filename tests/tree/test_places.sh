#!/bin/sh
# What is known in how many places. Usage: test_places.sh SOURCE_TREE.
#
# 1. An op is named in at most 8 files of src/ beside op.def: what it is, they ask graph/op.h.
# 2. "Is it a linear" is asked in graph/ alone.
# 3. Acquire and release stand in twin/ alone.
#
# Exceptions stand here with their number and reason: they go down when one goes away, and up for
# nothing.
set -eu
cd "$1"
found=$(mktemp)
trap 'rm -f "$found"' EXIT
bad=0

complain() {
  echo "$1"
  bad=$((bad + 1))
}

# --- 1. files that name an op --------------------------------------------------------------------

most=8
# Ops of fused tasks stand in the bodies that a GPU has for them and their table (twin/variant.def),
# in its three lowerings and in their verifier.
allowed() {
  case "$1" in
    EMBED) echo 15 ;;
    ROPE_ANGLES) echo 17 ;;
    QKV_PROJ) echo 14 ;;
    ATTEND) echo 20 ;;
    LINEAR_ADD) echo 15 ;;
    GATE_UP) echo 19 ;;
    LOGITS) echo 20 ;;
    KV_WRITE | NEXT_PLAN) echo 9 ;;
    *) echo $most ;;
  esac
}

ops=0
for op in $(sed -n 's/^MGL_OP(\([A-Z_]*\),.*/\1/p' src/graph/op.def); do
  ops=$((ops + 1))
  files=$(grep -rlw "MGL_OP_$op" src | wc -l)
  limit=$(allowed "$op")
  if [ "$files" -gt "$limit" ]; then
    complain "MGL_OP_$op is named in $files files, at most $limit:"
    grep -rlw "MGL_OP_$op" src | sed 's/^/  /'
  fi
done
[ $ops -ge 16 ] || complain "expected at least 16 ops in src/graph/op.def, found $ops"

# --- 2. who asks for linears ---------------------------------------------------------------------

# A function of that name, or three of the five kinds within four lines.
find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | grep -v '^src/graph/' | sort |
  xargs awk '
    FNR == 1 { split("", recent); seen = 0; found = 0 }
    function asks(   i, text, count) {
      if ($0 ~ /bool [a-z_]*is_linear\(/) return 1
      recent[FNR % 4] = $0
      for (i in recent) text = text recent[i] "\n"
      for (i = 1; i <= kinds; i++) if (text ~ ("MGL_OP_" kind[i] "[^A-Z_]")) count++
      return count >= 3
    }
    BEGIN { kinds = split("LINEAR QKV_PROJ LINEAR_ADD GATE_UP LOGITS", kind, " ") }
    asks() && !found { print FILENAME; found = 1 }' | sort -u >"$found"

while read -r file; do
  case "$file" in
    # They choose a body, a buffer or an epilogue by kind: of the tables of lowerings and variants.
    src/device/cuda/cuda_steps.c | src/device/cuda/cuda_wide.c) ;;
    src/kernels/cuda/wide_kernel.cu | src/kernels/cuda/linear/wide_linear.cuh) ;;
    src/compile/fuse_ops_cuda.c) ;; # which ops have a fused task on a GPU
    *) complain "$file asks whether an op is a linear: graph/op.h knows (mgl_op_is_linear)" ;;
  esac
done <"$found"

# --- 3. acquire and release ----------------------------------------------------------------------

orders='memory_order_(acquire|release|acq_rel|consume)|__ATOMIC_(ACQ|REL|CONS)'
orders="$orders|(ld|st|red|atom)\\.(acquire|release|acq_rel)|__threadfence|fence\\.acq_rel"
# Not the reference counts of grammars, which stand below twin/.
if grep -rnE "$orders" src | grep -v '^src/twin/' | grep -v '^src/grammar/.*->references, 1,'; then
  complain "the orders of memory above belong into twin/atomics.h or twin/atomics_cuda.h"
fi
grep -rqE "$orders" src/twin || complain "expected acquire and release in src/twin, found none"

echo "$ops ops, $bad complaints"
[ $bad = 0 ]
