#!/usr/bin/env bash
# The installed library from outside: installs the build tree, builds the example against it with
# pkg-config and a plain C and C++ compiler, runs it, and looks at what the library exports.
# Usage: test_install.sh BUILD_FOLDER DEMO_FOLDER CMAKE
set -eu
build=$(realpath "$1")
demo=$(realpath "$2")
cmake=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C MEGALITH_DEVICE=cpu

fail() {
  printf 'FAILED %s\n' "$*"
  exit 1
}

# DESTDIR would put everything elsewhere.
unset DESTDIR
"$cmake" --install "$build" --prefix "$work/installed" >"$work/install.log" 2>&1 ||
  fail "cmake --install: $(tail -3 "$work/install.log")"
# Moved: the pkg-config file must find its own place.
mv "$work/installed" "$work/tree"
pc=$(find "$work/tree" -name megalith.pc)
library=$(find "$work/tree" -name libmegalith.so)
archive=$(find "$work/tree" -name libmegalith.a)
[ -n "$pc" ] && [ -n "$library" ] && [ -n "$archive" ] || fail "installed: $(find "$work/tree")"
export PKG_CONFIG_PATH=${pc%/*}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
export LD_LIBRARY_PATH=${library%/*}
[ "$(pkg-config --modversion megalith)" = "$("$work/tree/bin/megalith" --version | cut -d' ' -f2)" ] ||
  fail "the versions of megalith.pc and of the command differ"

example=$work/tree/share/megalith/examples/generate.c
[ "$(wc -l <"$example")" -lt 80 ] || fail "the example has 80 lines or more"
cc=${CC:-cc}
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 $warnings "$example" $(pkg-config --cflags --libs megalith) -o "$work/generate"
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 $warnings "$example" $(pkg-config --cflags megalith) "$archive" \
  $(pkg-config --libs jansson libutf8proc hwloc libsodium) -pthread -lm -ldl -o "$work/generate_static"
ldd "$work/generate_static" | grep -q libmegalith && fail "the static program needs libmegalith.so"
for program in generate generate_static; do
  found=$("$work/$program" "$demo" "What is 137 + 245?" 2>"$work/err") || fail "$program: $(cat "$work/err")"
  [ "$found" = "137 + 245 = 382." ] || fail "$program: expected 137 + 245 = 382., found $found"
done
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 $warnings "${example%/*}/custom_op.c" $(pkg-config --cflags --libs megalith) -lm \
  -o "$work/custom_op" || fail "the example of custom ops does not compile"
"$work/generate" /no/such/folder 2>"$work/err" && fail "a folder that is not there: success"
grep -q "/no/such/folder" "$work/err" || fail "a folder that is not there: $(cat "$work/err")"

# The header is C++ too.
if command -v c++ >/dev/null; then
  printf '%s\n' '#include <megalith.h>' '#include <cstdio>' \
    'int main() { megalith_engine_options o = {}; o.size = sizeof o; std::puts(megalith_version()); }' >"$work/x.cc"
  # shellcheck disable=SC2046
  c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$work/x.cc" $(pkg-config --cflags --libs megalith) -o "$work/x"
  "$work/x" >/dev/null || fail "a C++ program"
else
  echo "skipped: no C++ compiler: the header is not tried as C++"
fi

# What the header declares is what the library exports, and nothing else.
sed -n 's/^MEGALITH_API.*[ *]\(megalith_[a-z_]*\)(.*/\1/p' "$work/tree/include/megalith.h" | sort >"$work/declared"
nm -D --defined-only "$library" | awk '{print $3}' | sed 's/@.*//' | sort >"$work/exported"
diff "$work/declared" "$work/exported" >"$work/diff" || fail "declared (<) and exported (>): $(cat "$work/diff")"
[ "$(wc -l <"$work/declared")" -gt 15 ] || fail "found only $(wc -l <"$work/declared") declarations"
echo "all checks of the installed tree passed"
