#!/bin/sh
# The rule of the house: a folder of src/ includes only itself and folders before it in this list, so
# no include runs upward. And the command is a client of include/megalith.h: what is no tool includes
# nothing between base/ and the API, nor a header of the command that does.
# Usage: test_includes.sh SOURCE_TREE
set -eu
cd "$1"
order="base text grammar template model graph twin task compile lower kernels/cpu kernels/cuda \
batch device device/cpu device/cuda engine api request serve app"

# Files of app/ that look at a model, a schedule or a machine from within, to measure, plan, compare
# or draw it: what users of a library do not ask for. Nothing is added.
tools="app_model cmd_bench cmd_bench_serve cmd_compile cmd_graph cmd_info cmd_plan cmd_quantize \
cmd_test cmd_throughput device gpu_list graph_svg random_work"

# support/ are the tests' models of atomics and lanes, which take the place of the real ones.
find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs awk -v order="$order" \
  -v tools="$tools" '
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
    if (path !~ /^app\//) next
    stem = path
    gsub(/^app\/|\.[ch]$/, "", stem)
    clients += !(stem in client) && !(stem in allowed)
    client[stem] = 1
    if (other > 1 && other <= api) {
      below[stem] = include
      if (path ~ /\.h$/) back_door["app/" stem ".h"] = 1
    }
    if (include ~ /^app\//) taken[path, include] = stem
  }
  END {
    do {  # headers that include one that looks below
      more = 0
      for (pair in taken) {
        split(pair, part, SUBSEP)
        if (!(part[2] in back_door)) continue
        if (!(taken[pair] in below)) below[taken[pair]] = part[2]
        if (part[1] ~ /\.h$/ && !(part[1] in back_door)) back_door[part[1]] = more = 1
      }
    } while (more)
    for (stem in below)
      if (!(stem in allowed))
        complain("src/app/" stem " includes " below[stem] ": megalith.h has what commands need")
    for (stem in allowed)
      if (!(stem in below)) complain("src/app/" stem " looks below megalith.h no more: unlist it")
    printf "%d includes, %d complaints; %d files of the command are clients of the API\n", seen, bad,
           clients
    exit seen < 500 || bad > 0
  }'
