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

static void on_called(void *context, const char *name) {
  note(context, 'C', name, strlen(name));
}

static void on_argued(void *context, const char *text, size_t bytes) {
  note(context, 'A', text, bytes);
}

typedef struct test_case {
  const char *text;
  const char *expected;
} test_case;

#define F "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"
#define P "{\"name\": \"f\", \"parameters\": {\"x\": 1}}"

static const test_case hermes[] = {
    {"", ""},
    {"hello", "[S]hello"},
    {"a < b <t <tool", "[S]a < b <t <tool"},
    {"<think>hm</think>yes", "[T]hm[S]yes"},
    {"<think>hm", "[T]hm"},
    {"</think>x", "[S]</think>x"},
    {"<think></think>x", "[S]x"},
    {"<tool_call>\n" F "\n</tool_call>", "[C]f[A]{\"x\": 1}"},
    {"a<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
     "<tool_call>{\"name\":\"g\",\"arguments\":{\"y\":\"</think>\"}}</tool_call>b",
     "[S]a[C]f[A]{}[C]g[A]{\"y\":\"</think>\"}[S]b"},
    {"<think>call <tool_call> it</think><tool_call>{\"name\":\"f\",\"parameters\":{}}</tool_call>",
     "[T]call <tool_call> it[C]f[A]{}"},
    {"<tool_call>{\"arguments\": {\"a\": [1, -2.5e3, true, null, \"}\\\"\\u00e9\"]}, \"id\": 7, "
     "\"name\": \"f\\u0041\"}</tool_call>",
     "[C]fA[A]{\"a\": [1, -2.5e3, true, null, \"}\\\"\\u00e9\"]}"},
    // What follows a call is text where it should be its end.
    {"<tool_call>" F " and", "[C]f[A]{\"x\": 1}[S] and"},
    {"<tool_call>" F "</tool", "[C]f[A]{\"x\": 1}[S]</tool"},
    // Malformed: passed on as it is.
    {"<tool_call>{\"name\": </tool_call>x", "[S]<tool_call>{\"name\": </tool_call>x"},
    {"<tool_call>{\"arguments\":{}}</tool_call>", "[S]<tool_call>{\"arguments\":{}}</tool_call>"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>",
     "[S]<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>"},
    {"<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
     "[S]<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>"},
    {"<tool_call>[]</tool_call>", "[S]<tool_call>[]</tool_call>"},
    {"<tool_call>{\"name\":\"f\"", "[S]<tool_call>{\"name\":\"f\""},
    {"<tool_call></tool_call>", "[S]<tool_call></tool_call>"},
    {"<tool_call>{\"name\":\"\\ud800\",\"arguments\":{}}",
     "[S]<tool_call>{\"name\":\"\\ud800\",\"arguments\":{}}"},
    {"<tool_call>no<tool_call>" F "</tool_call>", "[S]<tool_call>no[C]f[A]{\"x\": 1}"},
    {"<tool_call>{\"a\":01}", "[S]<tool_call>{\"a\":01}"},
    {"<tool_call>{\"a\":1.}", "[S]<tool_call>{\"a\":1.}"},
    {"<tool_call>{\"a\":nul}", "[S]<tool_call>{\"a\":nul}"},
    {"<tool_call>{\"a\":[1}", "[S]<tool_call>{\"a\":[1}"},
    {"<tool_call>{\"a\":1,}", "[S]<tool_call>{\"a\":1,}"},
    {"<tool_call>{\"a\" 1}", "[S]<tool_call>{\"a\" 1}"},
    {"<tool_call>{\"a\":\"\\x\"}", "[S]<tool_call>{\"a\":\"\\x\"}"},
    {"<tool_call>{\"a\":\"\\u12g4\"}", "[S]<tool_call>{\"a\":\"\\u12g4\"}"},
    {"<tool_call>{\"a\":\"\n\"}", "[S]<tool_call>{\"a\":\"\n\"}"},
};

static const test_case llama3[] = {
    {"hello {\"a\": 1}", "[S]hello {\"a\": 1}"},
    {P, "[C]f[A]{\"x\": 1}"},
    {" \n" P "; " P, "[C]f[A]{\"x\": 1}[C]f[A]{\"x\": 1}"},
    {"<|python_tag|>" P, "[C]f[A]{\"x\": 1}"},
    {"so <|python_tag|>" P ";" F, "[S]so [C]f[A]{\"x\": 1}[C]f[A]{\"x\": 1}"},
    {"{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "[C]f[A]{}"},
    {"<think>a</think>\n" P, "[T]a[C]f[A]{\"x\": 1}"},
    {P " and more", "[C]f[A]{\"x\": 1}[S] and more"},
    // An answer in JSON is an answer.
    {"{\"answer\": 42}", "[S]{\"answer\": 42}"},
    {"{\"name\": \"Bo\", \"age\": 42}", "[S]{\"name\": \"Bo\", \"age\": 42}"},
    {"<|python_tag|>import os; os.f({1})", "[S]<|python_tag|>import os; os.f({1})"},
    {"<|python_tag|>", "[S]<|python_tag|>"},
    {"<|python", "[S]<|python"},
    {"  ", "[S]  "},
};

static const test_case mistral[] = {
    {"hello [TOOL", "[S]hello [TOOL"},
    {"[TOOL_CALLS] [" F "]", "[C]f[A]{\"x\": 1}"},
    {"[TOOL_CALLS][" F ", {\"name\": \"g\", \"arguments\": {}, \"id\": \"abc\"}]\nx",
     "[C]f[A]{\"x\": 1}[C]g[A]{}[S]\nx"},
    {"[TOOL_CALLS]" F, "[C]f[A]{\"x\": 1}"},
    {"[TOOL_CALLS]f[ARGS]{\"x\": 1}", "[C]f[A]{\"x\": 1}"},
    {"a[TOOL_CALLS]get-it[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}",
     "[S]a[C]get-it[A]{\"x\": 1}[C]g[A]{}"},
    {"[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{\"x\": 1}", "[C]f[A]{\"x\": 1}"},
    {"[TOOL_CALLS] f{\"x\": 1}", "[C]f[A]{\"x\": 1}"},
    {"[TOOL_CALLS]", "[S][TOOL_CALLS]"},
    {"[TOOL_CALLS] []", "[S][TOOL_CALLS] []"},
    {"[TOOL_CALLS] [1]", "[S][TOOL_CALLS] [1]"},
    {"[TOOL_CALLS] hello world", "[S][TOOL_CALLS] hello world"},
    {"[TOOL_CALLS]f[ARGS]x", "[S][TOOL_CALLS]f[ARGS]x"},
    {"[TOOL_CALLS]f[ARG", "[S][TOOL_CALLS]f[ARG"},
    {"[TOOL_CALLS]\"f\"", "[S][TOOL_CALLS]\"f\""},
    {"[TOOL_CALLS] [{\"name\": \"f\"}]", "[S][TOOL_CALLS] [{\"name\": \"f\"}]"},
};

// A call that breaks off is text, unless its beginning has gone out: that cannot be taken back.
#define BROKEN "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1, y}}</tool_call>"
#define CUT "<tool_call>{\"name\":\"f\",\"arguments\":{\"x"
static const test_case broken[] = {{BROKEN, "[S]" BROKEN}, {CUT, "[S]" CUT}};
static const test_case broken_streams[] = {{BROKEN, "[C]f[A]{\"x\": 1, [S]y}}</tool_call>"},
                                           {CUT, "[C]f[A]{\"x"}};

static const mgl_output_sink sink_of_record = {
    .said = on_said, .thought = on_thought, .called = on_called, .argued = on_argued};

static void parse(mgl_output_parser parser, const char *text, size_t part, record *out) {
  mgl_output_sink sink = sink_of_record;
  sink.context = out;
  *out = (record){0};
  for (size_t at = 0, bytes = strlen(text); at < bytes; at += part) {
    mgl_output_parser_push(&parser, text + at, bytes - at < part ? bytes - at : part, &sink);
  }
  mgl_output_parser_finish(&parser, &sink);
  mgl_output_parser_free(&parser);
}

static void check_cases(mgl_output_parser how, const test_case *cases, size_t count) {
  how.finds_thoughts = true;
  for (size_t i = 0; i < count; i++) {
    for (size_t part = 1; part <= strlen(cases[i].text) + 1; part++) {
      record r;
      parse(how, cases[i].text, part, &r);
      const char *found = r.text.data == NULL ? "" : r.text.data;
      if (strcmp(cases[i].expected, found) != 0) {
        fail_msg("%s in parts of %zu: expected %s, found %s", cases[i].text, part,
                 cases[i].expected, found);
      }
      mgl_text_free(&r.text);
    }
  }
}

#define CHECK(how, cases) check_cases(how, cases, sizeof(cases) / sizeof *(cases))

// Whole and as streams, the same comes out.
static void test_formats(void **state) {
  (void)state;
  for (int holds = 0; holds < 2; holds++) {
    mgl_output_parser how = {.holds_calls = holds != 0};
    how.tools = MGL_TOOLS_HERMES;
    CHECK(how, hermes);
    how.tools = MGL_TOOLS_LLAMA3;
    CHECK(how, llama3);
    how.tools = MGL_TOOLS_MISTRAL;
    CHECK(how, mistral);
  }
}

static void test_broken(void **state) {
  mgl_output_parser how = {.tools = MGL_TOOLS_HERMES};
  (void)state;
  CHECK(how, broken_streams);
  how.holds_calls = true;
  CHECK(how, broken);
}

static void test_opened_thought(void **state) {
  record r;
  (void)state;
  for (size_t part = 1; part < 20; part++) {
    parse((mgl_output_parser){.finds_thoughts = true, .starts_in_thought = true},
          "hm</think>yes<think>x", part, &r);
    assert_string_equal("[T]hm[S]yes[T]x", r.text.data);
    mgl_text_free(&r.text);
  }
  static const char opened[] = "<|im_start|>assistant\n<think>\n";
  static const char closed[] = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
  assert_true(mgl_prompt_is_in_thought(opened, strlen(opened)));
  assert_false(mgl_prompt_is_in_thought(closed, strlen(closed)));
  assert_false(mgl_prompt_is_in_thought("", 0));
}

// Nothing is held without bound, whatever a model writes.
static void test_long(void **state) {
  static const struct {
    mgl_tool_format tools;
    const char *begin;
  } cases[] = {{MGL_TOOLS_HERMES, "<tool_call>{\"name\":\""},
               {MGL_TOOLS_HERMES, "<tool_call>"},
               {MGL_TOOLS_LLAMA3, ""},
               {MGL_TOOLS_MISTRAL, "[TOOL_CALLS]"}};
  char blanks[4096];
  (void)state;
  memset(blanks, ' ', sizeof blanks);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    record r = {0};
    mgl_output_parser parser = {.tools = cases[i].tools, .holds_calls = true};
    mgl_output_sink sink = sink_of_record;
    sink.context = &r;
    mgl_output_parser_push(&parser, cases[i].begin, strlen(cases[i].begin), &sink);
    for (size_t bytes = 0; bytes <= MGL_MAX_TOOL_CALL_BYTES; bytes += sizeof blanks) {
      mgl_output_parser_push(&parser, blanks, sizeof blanks, &sink);
    }
    assert_true(parser.held.bytes < sizeof blanks);
    assert_true(r.text.bytes > MGL_MAX_TOOL_CALL_BYTES);
    mgl_output_parser_free(&parser);
    mgl_text_free(&r.text);
  }
}

static void test_templates(void **state) {
  (void)state;
  assert_int_equal(MGL_TOOLS_HERMES, mgl_tool_format_of_template("x <tool_call> y"));
  assert_int_equal(MGL_TOOLS_LLAMA3, mgl_tool_format_of_template("{{ '<|python_tag|>' }}"));
  assert_int_equal(MGL_TOOLS_MISTRAL, mgl_tool_format_of_template("{{ '[TOOL_CALLS]' }}"));
  assert_int_equal(MGL_TOOLS_NONE, mgl_tool_format_of_template("{{ messages }}"));
  assert_true(mgl_template_thinks("a</think>") && !mgl_template_thinks("think"));
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
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_formats),
      cmocka_unit_test(test_broken),
      cmocka_unit_test(test_opened_thought),
      cmocka_unit_test(test_long),
      cmocka_unit_test(test_off),
      cmocka_unit_test(test_templates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
