#!/usr/bin/env bash
# `megalith serve` from outside: options, the documentation's table, signals, and the same text as
# `megalith run`. Usage: test_cli_serve.sh PROGRAM DEMO_FOLDER SOURCE_TREE
source_tree=$(realpath "$3")
. "$(dirname "$0")/cli.sh" "$1" "$2"

. "$(dirname "$0")/server.sh"

test_options() {
  expect_error "serve: port" "--port: expected 0 to 65535" serve --port 65536
  expect_error "serve: host" "host nowhere.invalid" serve --host nowhere.invalid
  expect_error "serve: no folder" "does not exist" serve "$work/nothing"
  run serve --parameters
  check_status "serve --parameters" 0
  # The table of the documentation is the program's.
  sed -n '/^- `model` /,$p' "$source_tree/docs/serve.md" >"$work/table"
  checks=$((checks + 1))
  cmp -s "$out" "$work/table" || fail "docs/serve.md" "the output of serve --parameters" \
    "$(diff "$out" "$work/table" | head -4 | tr '\n' '|')"
}

# The README's table of parameters says what the program's says, row by row in both directions, and
# names tests that exist.
test_table() {
  run serve --parameters
  # "- `name` (CM): what is taken [...": name and endpoint, then works, refused, or the only values.
  awk '/^- / { if (line != "") print line; line = $0; next } { sub(/^ +/, " "); line = line $0 }
    END { print line }' "$out" | sed -E 's/^- `([^`]*)` \(([A-Z]*)\): (.*)/\1|\2|\3/' |
    awk -F'|' '{ verdict = "works"
      if ($3 ~ /^null \[/) verdict = "refused"
      if ($3 ~ /^only /) {
        verdict = $3; sub(/^only /, "", verdict); sub(/ \[[^][]*\](\.|:.*)?$/, "", verdict)
        gsub(/, /, " or ", verdict); verdict = "only so " verdict }
      for (i = 1; i <= length($2); i++) print $1, substr($2, i, 1), verdict }' | sort >"$work/program"
  sed -n '/^| parameters | of /,/^$/p' "$source_tree/README.md" | tail -n +3 | sed '/^$/d' >"$work/rows"
  awk -F' [|] ' '{ sub(/^[|] /, "", $1)
    for (count = split($1, cells, /, `/); count > 0; count--) {
      name = cells[count]; sub(/^`/, "", name); values = name
      sub(/`.*/, "", name); sub(/^[^`]*`/, "", values)
      for (i = 1; i <= length($2); i++) print name, substr($2, i, 1), $3 values } }' "$work/rows" |
    sort >"$work/documented"
  check_number "README: rows of parameters" "x > 100" "$(wc -l <"$work/documented")"
  checks=$((checks + 1))
  cmp -s "$work/program" "$work/documented" || fail "README: the table of parameters" \
    "what serve --parameters says" "$(diff "$work/program" "$work/documented" | head -4 | tr '\n' '|')"
  local name
  for name in $(sed 's/.*| `\([a-z_]*\)` |$/\1/' "$work/rows" | sort -u); do
    check_has "README: a test" "$source_tree/tests/serve/conformance.py" "def $name("
  done
}

test_settings() {
  printf '# comment\nport: 0\nserved-model-name: "from yaml" # another\nlog-requests: true\nuds: ""\n' \
    >"$work/settings.yaml"
  expect_error "serve: an empty path" "--unix: expected a path" serve --config "$work/settings.yaml"
  printf 'port: 0\nserved-model-name: "from yaml" # another\nlog-requests: true\n' >"$work/settings.yaml"
  start --config "$work/settings.yaml"
  ask GET /v1/models ""
  check_has "serve --config" "$out" '"id":"from yaml"'
  ask POST /v1/completions '{"prompt": "secret", "max_tokens": 2, "user": "u1"}'
  stop TERM
  check_has "serve --log-requests" "$work/server.err" ' + 2 tokens, done, user "u1"'
  checks=$((checks + 1))
  ! grep -q secret "$work/server.err" || fail "serve: the log" "no text of prompts" "one"
  printf '{"served-model-name": "from json", "max-requests": 1}' >"$work/settings.json"
  MEGALITH_SERVED_MODEL_NAME="from environment" MEGALITH_LOG_REQUESTS=0 start --config="$work/settings.json"
  ask GET /v1/models ""
  check_has "serve: the environment counts before the file" "$out" '"id":"from environment"'
  ask GET /server_info ""
  check_has "serve: the file counts" "$out" '"requests":1,'
  stop TERM
  printf '{"prot": 5}' >"$work/settings.json"
  expect_error "serve: --config" "\"prot\" is no option of megalith serve" serve --config "$work/settings.json"
  printf 'port 5\n' >"$work/settings.yaml"
  expect_error "serve: --config" 'expected lines "name: value"' serve --config "$work/settings.yaml"
  # YAML is read as lines: what would mean something else is refused.
  local yaml
  for yaml in 'uds: [a, b]' 'uds: &x a' 'uds: *x' 'uds: !!str a' 'uds: |' 'uds: "a\tb"' 'uds: "a" b' "uds: 'a" \
    'uds: {a: b}'; do
    printf 'port: 0\n%s\n' "$yaml" >"$work/settings.yaml"
    expect_error "serve: YAML: $yaml" 'only lines "name: value" are read' serve --config "$work/settings.yaml"
  done
  for yaml in 'served-model-name:\n  - a' 'served-model-name:\n  name: a' '- port: 5' 'port: 0\n  host: x'; do
    # shellcheck disable=SC2059
    printf -- "$yaml\n" >"$work/settings.yaml"
    expect_error "serve: YAML: $yaml" 'without indentation or lists' serve --config "$work/settings.yaml"
  done
  printf 'serve:\n  port: 5\n' >"$work/settings.yaml"
  expect_error "serve: nested YAML" '"serve" is no option' serve --config "$work/settings.yaml"
  MEGALITH_PORT=x run serve
  check_has "serve: MEGALITH_PORT" "$err" "--port: expected a whole number"
  MEGALITH_LOG_REQUESTS=x run serve
  check_has "serve: a flag" "$err" "MEGALITH_LOG_REQUESTS: expected true or false"
}

# Without a key, paths say nothing of the server but that it is there: health and readiness are a
# word, and the pages are the same bytes whatever runs, with keys or without.
test_open_paths() {
  local path
  start --served-model-name plain-name
  for path in / /dashboard; do
    ask GET "$path" ""
    sed '1,/^\r*$/d' "$out" >"$work/page.${path#/}"
  done
  stop TERM
  start --api-keys "$work/keys" --served-model-name other-name
  ask GET /openapi.json "" "Authorization: Bearer first-key"
  grep -o '"/[^"]*":{' "$out" | cut -d'"' -f2 >"$work/paths"
  check_number "serve: paths" "x >= 12" "$(wc -l <"$work/paths")"
  for path in $(cat "$work/paths") / /dashboard /nothing; do
    ask GET "$path" ""
    case $path in
      /health | /ready) check_has "serve: $path without a key" "$out" "HTTP/1.1 200" ;;
      / | /dashboard)
        check_has "serve: $path without a key" "$out" "HTTP/1.1 200"
        sed '1,/^\r*$/d' "$out" >"$work/found"
        checks=$((checks + 1))
        cmp -s "$work/page.${path#/}" "$work/found" || fail "serve: $path" "the same page" "another"
        checks=$((checks + 1))
        ! grep -qE "other-name|first-key" "$out" || fail "serve: $path" "no name, no key" "one" ;;
      *) check_has "serve: $path without a key" "$out" "HTTP/1.1 401" ;;
    esac
  done
  stop TERM
}

test_keys() {
  printf '# keys\n\nfirst-key\nsecond-key\n' >"$work/keys"
  start --api-keys "$work/keys"
  ask GET /health ""
  check_has "serve --api-keys: health" "$out" "200 OK"
  ask GET /v1/models ""
  check_has "serve --api-keys: none given" "$out" "401 Unauthorized"
  local key
  for key in "first-key 200" "second-key 200" "second-ke 401" "second-keyx 401" "# 401"; do
    ask GET /v1/models "" "Authorization: Bearer ${key% *}"
    check_has "serve --api-keys: $key" "$out" "HTTP/1.1 ${key#* }"
  done
  stop TERM
  test_open_paths
  : >"$work/keys"
  expect_error "serve --api-keys: none" "expected an API key a line" serve --api-keys "$work/keys"
}

test_tls() {
  if ! command -v openssl >/dev/null || ! command -v curl >/dev/null; then
    skip "TLS: openssl and curl are not installed"
    return
  fi
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
  expect_error "serve --tls-cert" "expected both" serve --tls-cert "$work/cert.pem"
  expect_error "serve --tls-key" "expected the key of the first certificate" \
    serve --tls-cert "$work/cert.pem" --tls-key "$work/cert.pem"
  start --ssl-certfile "$work/cert.pem" --tls-key "$work/key.pem" --host localhost
  check_has "serve: TLS" "$work/server.err" "https://"
  curl -s -m 60 -g --cacert "$work/cert.pem" --connect-to "::${address#https://}" \
    "https://localhost/v1/completions" -d '{"prompt": "Once", "max_tokens": 3, "stream": true}' >"$out"
  check_has "serve: TLS, a stream" "$out" "data: [DONE]"
  exec 3<>"/dev/tcp/localhost/${address##*:}"
  (printf 'GET /health HTTP/1.1\r\nHost: x\r\n\r\n' >&3) 2>/dev/null  # SIGPIPE where it is closed
  timeout 20 cat <&3 >"$out" 2>/dev/null
  exec 3>&-
  checks=$((checks + 1))
  ! grep -q "200 OK" "$out" || fail "serve: TLS" "no answer without it" "$(show "$out")"
  stop TERM
}

test_same_as_run() {
  start
  run run --chat -p "What is 137 + 245?"
  local text
  text=$(cat "$out")
  ask POST /v1/chat/completions '{"messages": [{"role": "user", "content": "What is 137 + 245?"}]}'
  check_has "serve: the text of run" "$out" "\"content\":\"$text\""
  check_has "serve: status" "$out" "HTTP/1.1 200 OK"
  run run -p "Once upon a time" -n 20 --temperature 0.9 --seed 11
  text=$(cat "$out")
  ask POST /v1/completions \
    '{"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0.9, "seed": 11}'
  check_has "serve: the text of run, sampled" "$out" "\"text\":\"$text\""
  stop TERM
  check_equal "serve: SIGTERM" 0 "$status"
  check_empty "serve: standard output" "$work/server.out"
}

# Asks for line N of the prompts with more members; leaves the ids of the answer in tokens.N.
ask_line() {  # N MEMBERS
  local out=$work/answer.$1 body
  body=$(sed -n "$1p" "$work/prompts.jsonl")
  ask POST /v1/completions "${body%\}}, \"return_token_ids\": true, $2}"
  grep -o '"token_ids":\[[0-9,]*\]' "$out" | sed 's/.*\[//; s/]//; /^$/d' | paste -sd, >"$work/tokens.$1"
}

# The tokens of `megalith run`, for one client and for 64 at once, whole and as streams.
test_same_tokens() {
  local n=64 i stream pids
  for i in $(seq $n); do
    printf '{"prompt": "Question %d: what is %d + %d?", "max_tokens": 16, "seed": %d, ' \
      "$i" $((7 * i)) $((3 * i)) "$i"
    printf '"temperature": %s, "ignore_eos": true}\n' "$([ $((i % 2)) = 0 ] && echo 0 || echo 1.3)"
  done >"$work/prompts.jsonl"
  run run --jsonl -f "$work/prompts.jsonl"
  sed 's/^{"index": \([0-9]*\),.*"tokens": \[\([^]]*\)\].*/\1 \2/' "$out" | sort -n | cut -d' ' -f2- |
    tr -d ' ' >"$work/expected"
  check_equal "serve: prompts of run" $n "$(grep -c '^[0-9][0-9,]*$' "$work/expected")"
  start
  for stream in false true; do
    for i in 1 2; do ask_line $i "\"stream\": $stream"; done
    check_equal "serve: the tokens of run, one client, stream $stream" "$(sed -n 1,2p "$work/expected")" \
      "$(cat "$work/tokens.1" "$work/tokens.2")"
    pids=()
    for i in $(seq $n); do
      ask_line "$i" "\"stream\": $stream" &
      pids+=($!)
    done
    wait "${pids[@]}"
    for i in $(seq $n); do cat "$work/tokens.$i"; done >"$work/found"
    checks=$((checks + 1))
    cmp -s "$work/expected" "$work/found" || fail "serve: the tokens of run, $n clients, stream $stream" \
      "the same" "$(diff "$work/expected" "$work/found" | head -4 | tr '\n' '|')"
  done
  stop TERM
}

test_restart() {
  local begin
  start
  local port=${address##*:}
  kill -KILL $server
  wait $server 2>/dev/null
  begin=$(date +%s%N)
  start --port "$port"
  ask GET /ready ""
  check_has "serve: after SIGKILL" "$out" "200 OK"
  echo "ready $(($(date +%s%N) / 1000000 - begin / 1000000)) ms after the start that follows a SIGKILL"
  stop INT
  check_equal "serve: SIGINT" 0 "$status"
  "$program" serve --unix "$work/socket" 2>"$work/server.err" &
  server=$!
  while [ ! -S "$work/socket" ] && kill -0 $server; do sleep 0.1; done
  expect_error "serve: a socket that is in use" "Address already in use" serve --unix "$work/socket"
  expect_error "serve: a socket and a port" "found --unix and --port" serve --unix "$work/socket" \
    --port 8001
  kill -KILL $server
  wait $server 2>/dev/null
  rm "$work/server.err"
  "$program" serve --unix "$work/socket" 2>"$work/server.err" &
  server=$!
  while ! grep -qs serving "$work/server.err" && kill -0 $server; do sleep 0.1; done
  check_has "serve: a socket that a killed server left" "$work/server.err" "unix:$work/socket"
  stop TERM
  checks=$((checks + 1))
  [ ! -e "$work/socket" ] || fail "serve: the socket is removed" "nothing" "$work/socket"
}

test_options
test_table
test_settings
test_keys
test_tls
test_same_as_run
test_same_tokens
test_restart
finish
