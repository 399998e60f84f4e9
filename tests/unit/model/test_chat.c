// Chats: what a template sees of messages, tools and variables, and what is refused.
#include "model/chat.h"

// cmocka.h wants these first.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"

// Prints a message as JSON, and what else there is.
static const char plain[] =
    "{% for m in messages %}{{ m|tojson }}\n{% endfor %}{{ tools|tojson }} {{ bos_token }}"
    "{{ add_generation_prompt }} {{ enable_thinking }} {{ documents }}";
static const char with_parts[] =
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.type }}>{{ part.text }}{% endfor %}{% endif %};"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
static const char closing[] =
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant:{% endif %}";
static const char trimming[] =
    "{% for m in messages %}[{{ m.role }}:{{ m.content | trim }}]{% endfor %}";

typedef struct asked {
  const char *messages, *tools, *variables;
  bool continues;
} asked;

static json_t *parse(const char *text) {
  json_t *json = NULL;
  mgl_error err = {0};
  if (text != NULL && mgl_json_parse(text, strlen(text), "test", &json, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return json;
}

static mgl_status render(const char *source, asked a, mgl_text *out, mgl_error *err) {
  mgl_model_folder folder = {.path = "folder", .bos_token = "<s>"};
  json_t *messages = parse(a.messages);
  json_t *tools = parse(a.tools);
  json_t *variables = parse(a.variables);
  mgl_chat chat = {.json_messages = messages,
                   .tools = tools,
                   .variables = variables,
                   .continues_final = a.continues};
  mgl_status status =
      mgl_chat_template_parse(source, strlen(source), "template", &folder.chat_template, err);
  if (status == MGL_OK) {
    status = mgl_chat_render(&folder, &chat, out, err);
  }
  mgl_chat_template_destroy(folder.chat_template);
  json_decref(messages);
  json_decref(tools);
  json_decref(variables);
  return status;
}

static void expect(const char *source, asked a, const char *expected) {
  mgl_text out = {0};
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  mgl_text_append_string(&out, "before|");
  if (render(source, a, &out, &err) != MGL_OK) {
    fail_msg("%s: %s", a.messages, err.text);
  }
  assert_memory_equal(out.data, "before|", 7);
  assert_string_equal(out.data + 7, expected);
  mgl_text_free(&out);
  assert_int_equal(mgl_alloc_live(), live);
}

static void expect_refused(const char *source, asked a, const char *expected) {
  mgl_text out = {0};
  mgl_error err = {0};
  mgl_text_append_string(&out, "before|");
  int64_t live = mgl_alloc_live();
  assert_int_equal(render(source, a, &out, &err), MGL_ERR_ARGUMENT);
  if (strstr(err.text, expected) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", expected, err.text);
  }
  assert_string_equal(out.data, "before|");
  assert_int_equal(mgl_alloc_live(), live);
  mgl_text_free(&out);
}

static void messages_reach_the_template(void **state) {
  (void)state;
  expect(plain,
         (asked){.messages = "[{\"role\":\"user\",\"content\":\"h\\u00e9\",\"name\":\"x\"}]"},
         "{\"role\": \"user\", \"content\": \"h\xc3\xa9\", \"name\": \"x\"}\nnull <s>True  None");
  // Arguments of tool calls become objects; null and absent content are none.
  expect(
      plain,
      (asked){.messages = "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":1,"
                          "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1]}\"}}]},"
                          "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"g\","
                          "\"arguments\":\"{oops\"}},7]},"
                          "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"9\"}]"},
      "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": 1, \"function\": "
      "{\"name\": \"f\", \"arguments\": {\"a\": [1]}}}]}\n"
      "{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"g\", "
      "\"arguments\": \"{oops\"}}, 7], \"content\": null}\n"
      "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"9\"}\nnull <s>True  None");
  // Reasoning has both names that templates use.
  expect(plain,
         (asked){.messages = "[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning\":\"r\"}]"},
         "{\"thinking\": \"r\", \"role\": \"assistant\", \"content\": \"c\", \"reasoning\": \"r\", "
         "\"reasoning_content\": \"r\"}\nnull <s>True  None");
}

static void parts_are_joined_or_kept(void **state) {
  (void)state;
  asked a = {.messages =
                 "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                 "{\"type\":\"text\",\"text\":\"b\"}]},"
                 "{\"role\":\"user\",\"content\":\"c\"}]"};
  expect(closing, a, "[user:a\nb]\n[user:c]\n[assistant:");
  expect(with_parts, a, "user:<text>a<text>b;user:c;A:");
  expect(closing, (asked){.messages = "[{\"role\":\"user\",\"content\":[]}]"},
         "[user:]\n[assistant:");
  static const struct {
    const char *content;
    const char *expected;
  } refused[] = {
      {"[{\"type\":\"image_url\",\"image_url\":{}}]",
       "messages[1].content[0]: expected a part of type \"text\", found \"image_url\""},
      {"[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"input_audio\"}]",
       "messages[1].content[1]: expected a part of type \"text\", found \"input_audio\""},
      {"[\"a\"]", "messages[1].content[0]: expected an object with a \"type\""},
      {"[{\"type\":\"text\"}]", "messages[1].content[0]: expected a string \"text\""},
      {"7", "messages[1].content: expected a string or an array of parts"},
      {"null", "messages[1]: expected a role and a content"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    mgl_text messages = {0};
    mgl_text_format(&messages,
                    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":%s}]",
                    refused[i].content);
    expect_refused(closing, (asked){.messages = messages.data}, refused[i].expected);
    expect_refused(with_parts, (asked){.messages = messages.data}, refused[i].expected);
    mgl_text_free(&messages);
  }
  expect_refused(closing, (asked){.messages = "[7]"}, "messages[0]: expected an object");
  expect_refused(closing, (asked){.messages = "[{\"content\":\"x\"}]"},
                 "messages[0]: expected a role and a content");
}

// Which templates look into parts, found by the ways in which templates do it.
static void templates_tell_whether_they_take_parts(void **state) {
  (void)state;
  static const struct {
    const char *source;
    bool takes;
  } table[] = {
      {"{% for m in messages %}{{ m.content }}{% endfor %}", false},
      {"{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", true},
      {"{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", true},
      {"{% for c in messages[0].get('content') %}{% endfor %}", true},
      {"{% for c in messages[0].content.split('x') %}{% endfor %}", false},
      {"{% set x = m.content %}{% for c in x %}{% endfor %}", true},
      {"{% set x = m.content %}{% set y = x[1:] %}{% for c in y | list %}{% endfor %}", true},
      {"{% for c in y %}{% endfor %}{% set y = m.content or [] %}", true},
      {"{% macro show(c, n) %}{% for p in c %}{% endfor %}{% endmacro %}{{ show(m.content, 1) }}",
       true},
      {"{% macro show(n, c) %}{% for p in n %}{% endfor %}{% endmacro %}{{ show(1, m.content) }}",
       false},
      {"{{ m.content | map(attribute='text') | join }}", true},
      {"{{ m.content | selectattr('type', 'equalto', 'text') | list }}", true},
      {"{{ messages | map(attribute='content') | join }}", false},
      {"{% with x = m.content %}{% for c in x %}{% endfor %}{% endwith %}", true},
      {"{% set x = m.content if m.content is string else '' %}{{ x }}", false},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    mgl_chat_template *parsed = NULL;
    mgl_error err = {0};
    assert_int_equal(
        mgl_chat_template_parse(table[i].source, strlen(table[i].source), "t", &parsed, &err),
        MGL_OK);
    if (mgl_chat_template_takes_parts(parsed) != table[i].takes) {
      fail_msg("%s: expected %d", table[i].source, table[i].takes);
    }
    mgl_chat_template_destroy(parsed);
  }
}

static void tools_and_variables(void **state) {
  (void)state;
  const char *user = "[{\"role\":\"user\",\"content\":\"u\"}]";
  expect(plain,
         (asked){.messages = user,
                 .tools = "[{\"type\":\"function\"}]",
                 .variables = "{\"enable_thinking\":false,\"documents\":[1]}"},
         "{\"role\": \"user\", \"content\": \"u\"}\n[{\"type\": \"function\"}] <s>True False [1]");
  expect_refused(plain, (asked){.messages = user, .tools = "{}"}, "tools: expected an array");
  expect_refused(plain, (asked){.messages = user, .tools = "[{},1]"},
                 "tools[1]: expected an object");
  expect_refused(plain, (asked){.messages = user, .variables = "[]"}, "expected an object");
  static const char *const own[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                    "eos_token"};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    mgl_text variables = {0};
    mgl_text message = {0};
    mgl_text_format(&variables, "{\"%s\": 1}", own[i]);
    mgl_text_format(&message, "\"%s\" is set by Megalith", own[i]);
    expect_refused(plain, (asked){.messages = user, .variables = variables.data}, message.data);
    mgl_text_free(&variables);
    mgl_text_free(&message);
  }
}

static void the_last_message_is_continued(void **state) {
  (void)state;
  asked a = {.messages =
                 "[{\"role\":\"user\",\"content\":\"q\"},"
                 "{\"role\":\"assistant\",\"content\":\" The answer \"}]",
             .continues = true};
  expect(closing, a, "[user:q]\n[assistant: The answer ");
  expect(trimming, a, "[user:q][assistant:The answer");
  // A text that occurs before, and one that is empty.
  a.messages = "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"x\"}]";
  expect(closing, a, "[user:x]\n[assistant:x");
  a.messages = "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"\"}]";
  expect(closing, a, "[user:x]\n[assistant:");
  a.messages =
      "[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
      "{\"type\":\"text\",\"text\":\"b\"}]}]";
  expect(closing, a, "[assistant:a\nb");
  expect(with_parts, a, "assistant:<text>a<text>b");
  a.messages = "[{\"role\":\"assistant\",\"content\":null}]";
  expect_refused(closing, a, "messages[0]: expected a text that can be continued");
  a.messages = "[{\"role\":\"assistant\",\"content\":\"a b\"}]";
  expect_refused("{{ messages[0].content | replace(' ', '') }}", a,
                 "the last message cannot be continued");
  expect_refused("none of it", a, "the last message cannot be continued");
}

static void failing_allocations_leave_nothing(void **state) {
  (void)state;
  mgl_model_folder folder = {.path = "folder", .bos_token = "<s>"};
  mgl_error err = {0};
  assert_int_equal(mgl_chat_template_parse(with_parts, sizeof with_parts - 1, "template",
                                           &folder.chat_template, &err),
                   MGL_OK);
  json_t *messages = parse(
      "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\",\"tool_calls\":[{\"function\":"
      "{\"arguments\":\"{\\\"a\\\": 1}\"}}]},"
      "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]");
  json_t *variables = parse("{\"x\": [1, {\"y\": 2}]}");
  mgl_chat chat = {.json_messages = messages, .variables = variables, .continues_final = true};
  const char *expected = "assistant:;assistant:<text>a";
  int64_t live = mgl_alloc_live();
  mgl_status status = MGL_ERR_MEMORY;
  uint64_t n = 1;
  for (; status != MGL_OK; n++) {
    mgl_text out = {0};
    mgl_alloc_fail_nth(n);
    status = mgl_chat_render(&folder, &chat, &out, &err);
    mgl_alloc_fail_nth(0);
    if (status != MGL_OK && status != MGL_ERR_MEMORY) {
      fail_msg("allocation %" PRIu64 ": %s", n, err.text);
    }
    if (status == MGL_OK) {
      assert_string_equal(out.data, expected);
    } else {
      assert_int_equal(out.bytes, 0);
    }
    mgl_text_free(&out);
    assert_int_equal(mgl_alloc_live(), live);
    assert_true(n < 1000);
  }
  assert_true(n > 30);
  json_decref(messages);
  json_decref(variables);
  mgl_chat_template_destroy(folder.chat_template);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(messages_reach_the_template),
      cmocka_unit_test(parts_are_joined_or_kept),
      cmocka_unit_test(templates_tell_whether_they_take_parts),
      cmocka_unit_test(tools_and_variables),
      cmocka_unit_test(the_last_message_is_continued),
      cmocka_unit_test(failing_allocations_leave_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
