// Thoughts and calls of tools in a model's output, in pieces of every size.
#include "serve/output_parser.h"

#include <stdio.h>
#include <string.h>

#include "support/must.h"

// What came, with a letter before each change of kind.
typedef struct record {
  mgl_text text;
  char kind;
} record;

static void note(record *r, char kind, const char *text, size_t bytes) {
  if (r->kind != kind || kind == 'C') {
    mgl_text_format(&r->text, "[%c]", kind);
    r->kind = kind;
  }
  mgl_text_append(&r->text, text, bytes);
}

static void on_said(void *context, const char *text, size_t bytes) {
  note(context, 'S', text, bytes);
}

static void on_thought(void *context, const char *text, size_t bytes) {
  note(context, 'T', text, bytes);
}

static void on_called(void *context, const char *name, const char *arguments) {
  char text[256];
  (void)snprintf(text, sizeof text, "%s%s", name, arguments);
  note(context, 'C', text, strlen(text));
}

static const struct {
  const char *text;
  const char *expected;
} cases[] = {
    {"", ""},
    {"hello", "[S]hello"},
    {"a < b <t <tool", "[S]a < b <t <tool"},
    {"<think>hm</think>yes", "[T]hm[S]yes"},
    {"<think>hm", "[T]hm"},
    {"</think>x", "[S]</think>x"},
    {"<think></think>x", "[S]x"},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", "[C]f{\"x\":1}"},
    {"a<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
     "<tool_call>{\"name\":\"g\",\"arguments\":{\"y\":\"</think>\"}}</tool_call>b",
     "[S]a[C]f{}[C]g{\"y\":\"</think>\"}[S]b"},
    {"<think>call <tool_call> it</think><tool_call>{\"name\":\"f\",\"parameters\":{}}</tool_call>",
     "[T]call <tool_call> it[C]f{}"},
    // Malformed: passed on as it is.
    {"<tool_call>{\"name\": </tool_call>x", "[S]<tool_call>{\"name\": </tool_call>x"},
    {"<tool_call>{\"arguments\":{}}</tool_call>", "[S]<tool_call>{\"arguments\":{}}</tool_call>"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>",
     "[S]<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>"},
    {"<tool_call>[]</tool_call>", "[S]<tool_call>[]</tool_call>"},
    {"<tool_call>{\"name\":\"f\"", "[S]<tool_call>{\"name\":\"f\""},
    {"<tool_call></tool_call>", "[S]<tool_call></tool_call>"},
};

static void parse(mgl_output_parser parser, const char *text, size_t part, record *out) {
  mgl_output_sink sink = {
      .context = out, .said = on_said, .thought = on_thought, .called = on_called};
  *out = (record){0};
  for (size_t at = 0, bytes = strlen(text); at < bytes; at += part) {
    mgl_output_parser_push(&parser, text + at, bytes - at < part ? bytes - at : part, &sink);
  }
  mgl_output_parser_finish(&parser, &sink);
  mgl_output_parser_free(&parser);
}

static void test_cases(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (size_t part = 1; part <= strlen(cases[i].text) + 1; part++) {
      record r;
      parse((mgl_output_parser){.finds_thoughts = true, .finds_calls = true}, cases[i].text, part,
            &r);
      const char *found = r.text.data == NULL ? "" : r.text.data;
      if (strcmp(cases[i].expected, found) != 0) {
        fail_msg("%s in parts of %zu: expected %s, found %s", cases[i].text, part,
                 cases[i].expected, found);
      }
      mgl_text_free(&r.text);
    }
  }
}

// What is not sought is text.
static void test_off(void **state) {
  record r;
  static const char text[] =
      "<think>a</think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  (void)state;
  parse((mgl_output_parser){0}, text, 3, &r);
  assert_string_equal(text, r.text.data + 3);
  mgl_text_free(&r.text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_off)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
