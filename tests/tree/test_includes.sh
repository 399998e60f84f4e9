#!/bin/sh
# The rule of the house: a folder of src/ includes only itself and folders before it in this list, so
# no include runs upward. And the command is a client of include/megalith.h: which of its files still
# look below it is counted. Usage: test_includes.sh SOURCE_TREE
set -eu
cd "$1"
order="base text grammar template model graph twin task compile lower kernels/cpu kernels/cuda \
batch device device/cpu device/cuda engine api request serve app"

# Files of app/ that include what stands below the API, or app_model.h, which hands it out. Those of
# the first list are tools that look at a model, a schedule or a machine; those of the second are to
# become clients of megalith.h. Nothing is added to either.
tools="cmd_bench cmd_bench_serve cmd_compile cmd_graph cmd_info cmd_plan cmd_quantize cmd_test \
cmd_throughput device gpu_list graph_svg random_work statistics"
later="app_model cmd_run cmd_score compile_options grammar_options run_prompts \
sampling_options"

# support/ are the tests' models of atomics and lanes, which take the place of the real ones.
find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs awk -v order="$order" \
  -v tools="$tools" -v later="$later" '
  # A place in the list of the last folder that fits: what stands in device/ itself is for
  # device/cpu/ and device/cuda/. 0: in none.
  function rank(path,   i, found) {
    for (i = 1; i <= count; i++)
      if (index(path, folder[i] "/") == 1) found = i
    return found + 0
  }
  function complain(text) { print text; bad++ }
  BEGIN {
    count = split(order, folder, " ")
    for (i = split(tools, name, " "); i > 0; i--) allowed[name[i]] = 1
    for (i = split(later, name, " "); i > 0; i--) { allowed[name[i]] = 1; waiting++ }
    api = rank("api/")
  }
  FNR == 1 {
    path = substr(FILENAME, 5)
    own = rank(path)
    if (own == 0) complain(FILENAME ": its folder has no place in the list")
  }
  match($0, /^#include "[a-z_0-9\/.]*"/) {
    include = substr($0, 11, RLENGTH - 11)
    if (include ~ /^support\//) next
    seen++
    other = rank(include)
    if (other == 0 || other > own) {
      complain(FILENAME " includes " include ", which stands further down")
    }
    if (path ~ /^app\// && ((other > 1 && other <= api) || include == "app/app_model.h")) {
      stem = path
      gsub(/^app\/|\.[ch]$/, "", stem)
      below[stem] = include
    }
  }
  END {
    for (stem in below)
      if (!(stem in allowed))
        complain("src/app/" stem " includes " below[stem] ": megalith.h has what commands need")
    for (stem in allowed)
      if (!(stem in below)) complain("src/app/" stem " looks below megalith.h no more: unlist it")
    printf "%d includes, %d complaints; %d files of the command are not clients of the API yet\n",
           seen, bad, waiting
    exit seen < 500 || bad > 0
  }'
