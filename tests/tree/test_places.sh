#!/bin/sh
# What is known in how many places. Usage: test_places.sh SOURCE_TREE.
#
# 1. An op is named in at most 8 files of src/ beside op.def: what it is, they ask graph/op.h.
# 2. "Is it a linear" is asked in graph/ alone.
# 3. Acquire and release stand in twin/ alone.
# 4. A mode is named in at most 2 files of src/: its value and its row (device/graph_mode.h).
# 5. A code of weights is named in at most 3 files of src/ besides form.def, and those that say how a
#    format of files spells it.
# 6. A file has one subject: at most 800 lines.
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
    EMBED) echo 12 ;;
    ROPE_ANGLES) echo 15 ;;
    QKV_PROJ) echo 11 ;;
    ATTEND) echo 19 ;;
    LINEAR_ADD) echo 12 ;;
    GATE_UP) echo 17 ;;
    LOGITS) echo 18 ;;
    KV_WRITE) echo 9 ;;
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

# --- 4. modes ------------------------------------------------------------------------------------

# Modes that are more than a combination: a device has machinery for them, or not, and the command
# and the runner take one of them where none was asked for.
allowed_mode() {
  case "$1" in
    MEGA) echo 13 ;;
    EAGER) echo 6 ;;
    FULL) echo 6 ;;
    COMPILED) echo 5 ;;
    *) echo 2 ;;
  esac
}

modes=0
for mode in $(sed -n 's/^  MGL_MODE_\([A-Z_]*\),.*/\1/p' src/device/graph_mode.h); do
  [ "$mode" = COUNT ] && continue
  modes=$((modes + 1))
  files=$(grep -rlw "MGL_MODE_$mode" src | wc -l)
  limit=$(allowed_mode "$mode")
  if [ "$files" -gt "$limit" ]; then
    complain "MGL_MODE_$mode is named in $files files, at most $limit:"
    grep -rlw "MGL_MODE_$mode" src | sed 's/^/  /'
  fi
done
[ $modes -ge 7 ] || complain "expected at least 7 modes in src/device/graph_mode.h, found $modes"

# --- 5. codes of weights -------------------------------------------------------------------------

# Those that have a packing of their own on GPUs (twin/packing.h, lower/packed.c, the decoders) or a
# quantiser, and decoders of vectors on the CPU, which a table of values will replace. E4M3 is also
# the code of KV caches (base/dtype.h).
allowed_code() {
  case "$1" in
    E4M3) echo 8 ;;
    I8) echo 9 ;;
    I4) echo 11 ;;
    U4) echo 5 ;;
    E2M1) echo 4 ;;
    *) echo 3 ;;
  esac
}

codes=0
for code in $(sed -n 's/^MGL_CODE(\([A-Z0-9]*\),.*/\1/p' src/base/form.def); do
  codes=$((codes + 1))
  named=$(grep -rlwE "MGL_DTYPE_$code|MGL_PACKING_$code" src |
    grep -vE '^src/model/(gguf_blocks|oss_weights|packed_weights|packed_rows|quantization)\.c$')
  files=$(echo "$named" | wc -l)
  limit=$(allowed_code "$code")
  if [ "$files" -gt "$limit" ]; then
    complain "the code $code is named in $files files, at most $limit:"
    echo "$named" | sed 's/^/  /'
  fi
done
[ $codes -ge 5 ] || complain "expected at least 5 codes in src/base/form.def, found $codes"

# --- 6. lengths of files -------------------------------------------------------------------------

# Tables of cases, and models of what ranks do, which want a file of their own.
allowed_lines() {
  case "$1" in
    tests/unit/device/test_interleavings.c) echo 944 ;;
    tools/make_template_cases.py) echo 853 ;;
    tools/make_tokenizer_cases.py) echo 819 ;;
    *) echo 800 ;;
  esac
}

files=$(find src include tests bench tools examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
  -o -name '*.def' -o -name '*.sh' -o -name '*.py')
for file in $(echo "$files" | xargs awk 'FNR == 801 { print FILENAME }'); do
  lines=$(wc -l <"$file")
  limit=$(allowed_lines "$file")
  [ "$lines" -le "$limit" ] || complain "$file has $lines lines, at most $limit"
done

echo "$ops ops, $modes modes, $codes codes, $(echo "$files" | wc -l) files, $bad complaints"
[ $bad = 0 ]
