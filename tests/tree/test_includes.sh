#!/bin/sh
# The rule of the house: a folder of src/ includes only itself and folders before it in this list, so
# no include runs upward. Usage: test_includes.sh SOURCE_TREE
set -eu
cd "$1"
order="base text grammar template model graph twin task compile lower kernels/cpu kernels/cuda \
batch device device/cpu device/cuda engine api request serve app"

# rank FILE_OR_INCLUDE: its folder's place in the list (the last that fits: what stands in device/
# itself is for device/cpu/ and device/cuda/), 0 if it is in none.
rank() {
  place=0
  found=0
  for folder in $order; do
    place=$((place + 1))
    case "$1" in "$folder"/*) found=$place ;; esac
  done
  echo $found
}

upward=0
seen=0
for file in $(cd src && find . -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sed 's|^\./||'); do
  own=$(rank "$file")
  if [ "$own" = 0 ]; then
    echo "src/$file: its folder has no place in the list of $0"
    upward=$((upward + 1))
  fi
  # support/ are the tests' models of atomics and lanes, which take the place of the real ones.
  for include in $(sed -n 's|^#include "\([a-z_0-9/.]*\)".*|\1|p' "src/$file" | grep -v '^support/'); do
    seen=$((seen + 1))
    other=$(rank "$include")
    if [ "$other" = 0 ] || [ "$other" -gt "$own" ]; then
      echo "src/$file includes $include, which stands further down"
      upward=$((upward + 1))
    fi
  done
done
echo "$seen includes, $upward upward"
[ "$seen" -gt 500 ] && [ "$upward" = 0 ]
