#!/usr/bin/env bash
# Chats on the command line: `megalith template`, tools and template variables, and the same keys in
# JSON lines.
# Usage: test_cli_chat.sh PROGRAM DEMO_FOLDER
. "$(dirname "$0")/cli.sh" "$@"

# A model whose template shows all that it gets.
chatty=$(copy_demo chatty)
cat >"$chatty/chat_template.jinja" <<'JINJA'
{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}
{{ '' }}tools={{ tools | tojson }} thinking={{ enable_thinking | default('unset') | tojson }}
{{- ' effort=' ~ effort if effort is defined }}{{ ' A:' if add_generation_prompt }}
JINJA

# --- megalith template ---------------------------------------------------------------------------

test_template() {
  local user='[{"role": "user", "content": "Hi"}]'
  run template --system "Be brief." -p "Hi"
  check_status "template" 0
  printf '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n' >"$work/expected"
  check_equal "template" "$(cksum <"$work/expected")" "$(cksum <"$out")"
  check_empty "template: standard error" "$err"
  run template "$chatty" -p Hi --chat-var enable_thinking=false --chat-var effort=low --chat-var effort=high
  check_has "template: variables" "$out" 'user=Hi;tools=null thinking=false effort=high A:'
  run template "$chatty" -p Hi --chat-var enable_thinking='{"a": [1]}' --chat-var effort='"x=y"'
  check_has "template: JSON values" "$out" 'thinking={"a": [1]} effort=x=y A:'
  printf '[{"type": "function"}]' >"$work/tools.json"
  run template "$chatty" -p Hi --tools "$work/tools.json"
  check_has "template: tools" "$out" 'tools=[{"type": "function"}]'
  printf '%s' "$user" >"$work/messages.json"
  run template "$chatty" --messages "$work/messages.json"
  check_has "template: messages" "$out" 'user=Hi;tools=null thinking="unset" A:'
  printf '%s' "$user" | "$program" template "$chatty" >"$out" 2>"$err"
  check_has "template: standard input" "$out" 'user=Hi;tools=null thinking="unset" A:'
  printf '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "tools": [{}],
    "chat_template_kwargs": {"enable_thinking": true}}' |
    "$program" template "$chatty" --messages - --chat-var enable_thinking=false --chat-var effort=3 >"$out" 2>"$err"
  check_has "template: an object" "$out" 'b;tools=[{}] thinking=true effort=3 A:'
  printf '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "Well,"}]' >"$work/open.json"
  run template --messages "$work/open.json" --continue
  check_equal "template: continued" "Well," "$(tail -n 1 "$out")"
}

test_template_errors() {
  printf '{}' >"$work/object.json"
  expect_error "messages and a prompt" "found both" template -p x --messages "$work/object.json"
  expect_error "no messages" "messages: expected an array of 1 to 65536 objects, found 0" template --messages "$work/object.json"
  expect_error "tools that are no array" "object.json: expected a JSON array of tools" template -p x --tools "$work/object.json"
  expect_error "tools that are not there" "nothing.json" template -p x --tools "$work/nothing.json"
  expect_error "a variable without a value" "--chat-var: expected NAME=VALUE, found \"x\"" template -p x --chat-var x
  expect_error "a variable without a name" "--chat-var: expected NAME=VALUE, found \"=x\"" template -p x --chat-var =x
  expect_error "a variable of Megalith's" "\"messages\" is set by Megalith" template -p x --chat-var messages=1
  expect_error "variables without a chat" "--tools and --chat-var need --chat" run -p x --chat-var a=1
  expect_error "tools without a chat" "--tools and --chat-var need --chat" run -p x --tools "$work/tools.json"
  printf '[{"role": "user", "content": [{"type": "image_url"}]}]' >"$work/image.json"
  expect_error "an image" "expected a part of type \"text\", found \"image_url\"" template --messages "$work/image.json"
}

# --- megalith run --------------------------------------------------------------------------------

test_run() {
  run run --chat -p "What is 12 + 7?" --tools "$work/tools.json" --chat-var unused=1
  check_status "run with variables" 0
  check_equal "run with variables" "12 + 7 = 19." "$(cat "$out")"
  # The prompts differ in what their variables make of them: their numbers of tokens tell.
  local message='"messages": [{"role": "user", "content": "x"}]'
  {
    echo "{$message, \"max_tokens\": 1}"
    echo "{$message, \"max_tokens\": 1, \"chat_template_kwargs\": {\"effort\": \"aaaaaaaa\"}}"
    echo "{$message, \"max_tokens\": 1, \"tools\": [{\"a\": 1}]}"
    echo "{$message, \"max_tokens\": 1, \"chat_template_kwargs\": {\"tools\": 1}}"
    echo '{"prompt": "x", "tools": []}'
    echo "{$message, \"chat_template_kwargs\": 3}"
    echo '{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 1}'
    echo "{$message, \"max_tokens\": 1, \"continue_final_message\": true}"
  } >"$work/lines.jsonl"
  run run "$chatty" --jsonl -f "$work/lines.jsonl"
  check_status "jsonl: chats" 1
  local counts
  counts=$(sed -n 's/.*"prompt_tokens": \([0-9]*\),.*/\1/p' "$out" | xargs)
  # shellcheck disable=SC2086
  set -- $counts
  check_equal "jsonl: five of eight run" 5 $#
  checks=$((checks + 1))
  [ "$2" -gt "$1" ] && [ "$3" -gt "$1" ] && [ "$4" = "$1" ] && [ "$5" -lt "$1" ] ||
    fail "jsonl: tokens of prompts" "more, more, the same and fewer than the first" "$counts"
  check_has "jsonl: a name of Megalith's" "$err" 'line 4: chat variables: "tools" is set by Megalith'
  check_has "jsonl: tools of a text" "$err" "line 5: tools, chat_template_kwargs and continue_final_message need messages"
  check_has "jsonl: variables that are no object" "$err" '"chat_template_kwargs": expected an object'
  # What the command line says holds for lines that say nothing else.
  echo "{$message, \"max_tokens\": 1}" | "$program" run "$chatty" --jsonl --chat-var effort=aaaaaaaa >"$out" 2>"$err"
  check_has "jsonl: variables of the command line" "$out" "\"prompt_tokens\": $2,"
}

# -------------------------------------------------------------------------------------------------

test_template
test_template_errors
test_run
finish
