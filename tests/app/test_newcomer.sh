#!/usr/bin/env bash
# The newcomer's path of README.md, "As a server": its commands, its Python program and its configuration of
# Prometheus are taken from there and run. (tests/serve/test_pages.c opens the pages in a browser.) Python
# needs the package openai: PYTHON names one that has it. Usage: test_newcomer.sh PROGRAM DEMO_FOLDER SOURCE_TREE
source_tree=$(realpath "$3")
. "$(dirname "$0")/cli.sh" "$1" "$2"
. "$(dirname "$0")/server.sh"

# A fenced block of the section, by its language and number, for the server's own port.
block() {  # language, number
  sed -n '/^## As a server/,/^## From C/p' "$source_tree/README.md" |
    awk -v open="^\`\`\`$1\$" -v wanted="$2" '$0 ~ open { n++; on = n == wanted; next } /^```/ { on = 0 } on' |
    sed "s/localhost:8000/127.0.0.1:$port/g"
}

port=8000
check_equal "README: how to build" "make" "$(block sh 1 | head -1 | cut -d' ' -f1)"
check_equal "README: how to serve" "build/megalith serve" "$(block sh 1 | sed -n '2s/ *#.*//p')"
start
port=${address##*:}

if command -v curl >/dev/null; then
  block sh 2 >"$work/ask.sh"
  bash "$work/ask.sh" >"$out" 2>/dev/null
  check_has "README: curl" "$out" '"content":"137 + 245 = 382."'
  for page in "" dashboard; do
    curl -s "http://127.0.0.1:$port/$page" >"$out"
    check_has "README: the page /$page" "$out" "<title>Megalith"
  done
  curl -s "http://127.0.0.1:$port/metrics" >"$work/metrics"
else
  skip "README, curl: curl is not installed"
fi

python=${PYTHON:-python3}
if "$python" -c 'import openai' 2>/dev/null; then
  block python 1 >"$work/ask.py"
  check_equal "README: the Python client" "137 + 245 = 382." "$("$python" "$work/ask.py" 2>&1)"
else
  skip "README, the Python client: $python has no package openai"
fi

if command -v promtool >/dev/null; then
  block yaml 1 >"$work/prometheus.yml"
  checks=$((checks + 1))
  promtool check config "$work/prometheus.yml" >"$out" 2>&1 || fail "README: Prometheus" "SUCCESS" "$(show "$out")"
  # vLLM's names have a colon, which promtool would rather not see.
  promtool check metrics <"$work/metrics" 2>&1 | grep -v "metric names should not contain ':'" >"$out"
  check_empty "promtool: /metrics" "$out"
  for name in num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info \
    num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total prompt_tokens_total \
    generation_tokens_total time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket \
    e2e_request_latency_seconds_bucket request_success_total request_prompt_tokens_bucket; do
    check_has "a name that routers read" "$work/metrics" "vllm:$name{"
  done
else
  skip "README, Prometheus: promtool is not installed"
fi
stop TERM
finish
