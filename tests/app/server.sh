# What the tests of `megalith serve` from outside share; source it behind cli.sh.

# Starts the server with the given arguments, at a free port unless they name another or a socket's
# path, which the server refuses beside a port; leaves $server (its process) and $address
# ("http://127.0.0.1:PORT", or the path of a socket).
start() {
  rm -f "$work/server.err"
  case " $* " in
  *" --unix "*) ;;
  *) set -- --port 0 "$@" ;;
  esac
  "$program" serve "$@" >"$work/server.out" 2>"$work/server.err" </dev/null &
  server=$!
  address=
  for _ in $(seq 1200); do
    address=$(sed -n 's/.* at \(http[^ ]*\)$/\1/p; s/.* at unix:\(.*\)$/\1/p' "$work/server.err" 2>/dev/null)
    [ -n "$address" ] && return
    kill -0 $server 2>/dev/null || break
    sleep 0.05
  done
  fail "serve" "a line with the address" "$(show "$work/server.err")"
}

# Ends it with a signal; leaves $status.
stop() {  # signal
  kill "-$1" $server
  wait $server
  status=$?
}

# METHOD PATH BODY [HEADER]: the answer, headers and all, by nothing but bash.
ask() {
  local host=${address#http://}
  exec 3<>"/dev/tcp/${host%:*}/${host##*:}"
  printf '%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s' \
    "$1" "$2" "${4:+$4$'\r\n'}" "${#3}" "$3" >&3
  cat <&3 >"$out"
  exec 3>&-
}

# A number of the JSON in $out: figure ok, figure inter_token_ms p99.
figure() {
  local inner=
  [ $# -lt 2 ] || inner="{[^}]*\"$2\": "
  sed -n "s/.*\"$1\": $inner\([0-9.e+-]*\).*/\1/p" "$out"
}

# A figure of /metrics by its whole name, labels and all.
metric() {
  ask GET /metrics ""
  awk -v name="$1" '$1 == name { print $2 }' "$out" | tr -d '\r'
}

check_number() {  # what, awk condition on x, number
  checks=$((checks + 1))
  if [ -z "$3" ] || ! awk -v x="$3" "BEGIN { exit !($2) }"; then
    fail "$1" "$2" "${3:-nothing}"
  fi
}
