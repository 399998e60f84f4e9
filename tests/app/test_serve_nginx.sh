#!/usr/bin/env bash
# Two replicas behind nginx, as docs/serve.md has its configuration: one ends by SIGTERM and one is killed
# under load. No request is lost but those that were in flight on the one that was killed.
# Usage: test_serve_nginx.sh PROGRAM DEMO_FOLDER. Skipped (77) where there is no nginx.
PATH=$PATH:/usr/sbin:/sbin
if ! command -v nginx >/dev/null; then
  echo "skipped: there is no nginx (the package nginx-light has it)"
  exit 77
fi
. "$(dirname "$0")/cli.sh" "$@"
. "$(dirname "$0")/server.sh"

replicas=()
nginx=
trap 'kill "${replicas[@]}" $nginx 2>/dev/null; rm -rf "$work"' EXIT

start_replica() {  # number, options
  local i=$1
  shift
  start --unix "$work/replica$i" "$@"
  replicas[i]=$server
}

# The configuration of the documentation, on sockets of this folder.
start_nginx() {
  sed -n '/^# nginx: begin$/,/^# nginx: end$/p' "$(dirname "$0")/../../packaging/nginx.conf" |
    sed "s|127.0.0.1:8001|unix:$work/replica1|; s|127.0.0.1:8002|unix:$work/replica2|; \
      s|listen 8000|listen unix:$work/front|" >"$work/site"
  cat >"$work/nginx.conf" <<END
daemon off;
pid $work/nginx.pid;
error_log $work/nginx.err notice;
worker_processes 1;
events { worker_connections 1024; }
http {
  access_log $work/access;
  client_body_temp_path $work/b; proxy_temp_path $work/p; fastcgi_temp_path $work/f;
  uwsgi_temp_path $work/u; scgi_temp_path $work/s;
  include $work/site;
}
END
  chmod 755 "$work"
  nginx -c "$work/nginx.conf" -g "user $(id -un);" >"$work/nginx.out" 2>&1 &
  nginx=$!
  for _ in $(seq 100); do
    [ -S "$work/front" ] && return
    sleep 0.05
  done
  fail "nginx" "a start" "$(show "$work/nginx.err") $(show "$work/nginx.out")"
}

# Load through nginx; $server of the load is $load, its figures come in $out.
begin_load() {
  "$program" bench serve "unix:$work/front" --json --input 4:8 --output 4:40 --concurrency 8 --no-keep-alive "$@" \
    >"$work/load" 2>"$work/load.err" &
  load=$!
}

finish_load() {
  wait $load
  check_equal "the load's end: $(show "$work/load.err")" 0 $?
  cp "$work/load" "$out"
}

lost() {
  echo $(($(figure closed) + $(figure broken) + $(figure connect) + $(figure timeout) + $(figure malformed) + $(figure refused)))
}

test_both() {
  begin_load -n 60
  finish_load
  check_equal "both replicas: all answers" 60 "$(figure ok)"
  local i
  for i in 1 2; do
    run bench serve "unix:$work/replica$i" -n 1 --input 4 --output 1 --json
    check_equal "replica $i is there" 1 "$(figure ok)"
  done
}

# SIGTERM: the replica lets its requests end, nginx goes to the other one. Nothing is lost.
test_drain() {
  local round
  for round in 1 2 3; do
    begin_load -n 300 --seed "$round"
    sleep 0.7
    kill -TERM "${replicas[1]}"
    wait "${replicas[1]}"
    check_equal "drain: the replica's end" 0 $?
    finish_load
    check_equal "drain $round: all answers" "300, 0 lost" "$(figure ok), $(lost) lost"
    start_replica 1
  done
  echo "SIGTERM under load, 3 times: 900 of 900 requests answered"
}

# SIGKILL: what was in flight on it is lost, and nothing else.
test_kill() {
  begin_load -n 400
  sleep 1
  kill -KILL "${replicas[2]}"
  wait "${replicas[2]}" 2>/dev/null
  finish_load
  echo "SIGKILL under load: $(figure ok) of 400 requests answered, $(lost) lost; 8 were in flight, on both replicas"
  check_equal "kill: each request has an end" 400 $(($(figure ok) + $(lost)))
  check_number "kill: it was under load" "x >= 1" "$(lost)"
  check_number "kill: only what was in flight" "x <= 8" "$(lost)"
  start_replica 2
  begin_load -n 40
  finish_load
  check_equal "kill: all is well with the new one" 40 "$(figure ok)"
}

start_replica 1
start_replica 2
start_nginx
test_both
test_drain
test_kill
finish
