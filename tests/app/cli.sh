# What the tests of the `megalith` command share; source it with the script's arguments:
# PROGRAM DEMO_FOLDER [FAKE_DRIVER_FOLDER].
#
# Needs bash, coreutils, sed, grep and awk only; what else would help (jq, zsh, fish, script) is used
# where it is installed, and a check that is left out says so. Each failed check prints what it
# expected and found; finish ends the script with status 1 if any failed.
set -u
program=$(realpath "$1")
demo=$(realpath "$2")
driver=${3:+$(realpath "$3")}
checks=0
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C
unset NO_COLOR
export MEGALITH_DEMO="$demo"
export MEGALITH_DEVICE=cpu  # but where devices are tested

# --- helpers -------------------------------------------------------------------------------------

fail() {  # what, expected, found
  failures=$((failures + 1))
  printf 'FAILED %s\n  expected: %s\n  found:    %s\n' "$1" "$2" "$3"
}

# Runs the program with the given arguments; leaves $out, $err (files) and $status.
out=$work/stdout
err=$work/stderr
run() {
  timeout 120 "$program" "$@" >"$out" 2>"$err" </dev/null
  status=$?
}

show() {  # first lines of a file, in one line
  head -c 600 "$1" | tr '\n' '|'
}

check_status() {  # what, expected status
  checks=$((checks + 1))
  if [ "$status" -ne "$2" ]; then
    fail "$1" "exit status $2" "$status; stderr: $(show "$err")"
  fi
}

check_has() {  # what, file, fixed string
  checks=$((checks + 1))
  if ! grep -qF -e "$3" "$2"; then
    fail "$1" "text with: $3" "$(show "$2")"
  fi
}

check_equal() {  # what, expected, found
  checks=$((checks + 1))
  if [ "$2" != "$3" ]; then
    fail "$1" "$2" "$3"
  fi
}

check_empty() {  # what, file
  checks=$((checks + 1))
  if [ -s "$2" ]; then
    fail "$1" "nothing" "$(show "$2")"
  fi
}

# Runs and expects status 1, one line "megalith: ..." that contains the text, nothing on stdout.
expect_error() {  # what, text, arguments...
  local what=$1 text=$2
  shift 2
  run "$@"
  check_error "$what" "$text"
}

check_error() {  # what, text
  check_status "$1" 1
  check_has "$1" "$err" "$2"
  check_has "$1" "$err" "megalith: "
  check_equal "$1: lines of the message" 1 "$(wc -l <"$err")"
  check_empty "$1: standard output" "$out"
}

skip() {
  printf 'skipped: %s\n' "$1"
}

# A copy of the demo folder whose files can be changed; links to all but the named files.
copy_demo() {  # name, files to copy...
  local folder=$work/$1
  shift
  rm -rf "$folder"
  mkdir -p "$folder"
  ln -s "$demo"/* "$folder"/
  local file
  for file in "$@"; do
    rm -f "$folder/$file"
    cp "$demo/$file" "$folder/$file"
    chmod u+w "$folder/$file"
  done
  printf '%s' "$folder"
}

# A folder with nothing but the demo's config.json.
config_only() {
  mkdir -p "$work/config_only"
  cp "$demo/config.json" "$work/config_only"
  printf '%s' "$work/config_only"
}

little_endian_64() {  # number, at most 32 bits
  printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x\\x00\\x00\\x00\\x00' \
    $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)))"
}

# A safetensors file with this JSON header and no data.
write_header() {  # file, json
  { little_endian_64 ${#2}; printf '%s' "$2"; } >"$1"
}

check_json() {  # what, file
  if command -v jq >/dev/null; then
    checks=$((checks + 1))
    jq -e . "$2" >/dev/null 2>&1 || fail "$1" "JSON" "$(show "$2")"
  fi
}

finish() {
  echo "$checks checks, $failures failed"
  [ "$failures" -eq 0 ]
}
