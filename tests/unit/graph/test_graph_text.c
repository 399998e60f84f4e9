// The text form: what is printed parses to an equal program, and what is wrong is refused with its
// line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "graph/family.h"
#include "graph/graph_text.h"
#include "support/failing_allocations.h"

static void printed_programs_parse_to_the_same_text(void **state) {
  (void)state;
  for (int family = 0; family < MGL_FAMILY_COUNT; family++) {
    mgl_config config = {.family = (mgl_family)family,
                         .hidden_size = 96,
                         .intermediate_size = 128,
                         .layer_count = 2,
                         .head_count = 3,
                         .kv_head_count = 1,
                         .head_dim = 32,
                         .vocab_size = 300,
                         .context_tokens = 128,
                         .rms_norm_eps = 1e-5,
                         .rope = {.kind = (mgl_rope_kind)(family % 3),
                                  .theta = 5e5,
                                  .factor = 8,
                                  .low_freq_factor = 1,
                                  .high_freq_factor = 4,
                                  .original_context = 64},
                         .qkv_bias = family == MGL_FAMILY_QWEN2,
                         .qk_norm = family == MGL_FAMILY_QWEN3,
                         .dtype = MGL_DTYPE_F16};
    mgl_graph *graph = NULL;
    mgl_graph *parsed = NULL;
    mgl_error err = {0};
    mgl_text first = {0};
    mgl_text second = {0};
    assert_int_equal(mgl_family_build(&config, NULL, &graph, &err), MGL_OK);
    mgl_graph_print(graph, &first);
    assert_int_equal(mgl_text_check(&first, &err), MGL_OK);
    if (mgl_graph_parse(first.data, first.bytes, "printed", &parsed, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(parsed->op_count, graph->op_count);
    assert_int_equal(parsed->tensor_count, graph->tensor_count);
    mgl_graph_print(parsed, &second);
    assert_string_equal(first.data, second.data);
    mgl_text_free(&first);
    mgl_text_free(&second);
    mgl_graph_destroy(graph);
    mgl_graph_destroy(parsed);
  }
}

// A head that the malformed programs below share; their own line is line 8.
static const char head[] =
    "program test\n"
    "input tokens i32[T]\n"
    "input rows i32[L]  # a comment\n"
    "weight table bf16[50,8]\n"
    "weight w bf16[6,8]\n"
    "weight norm f32[8]\n"
    "x = embed(tokens, table) : f32[T,8]\n";

static const struct {
  const char *line;
  const char *message;  // part of what must be said
} malformed[] = {
    {"y = embed(tokens) : f32[T,8]", "expected 2 to 2 inputs"},
    {"y = nonsense(x) : f32[T,8]", "unknown op \"nonsense\""},
    {"y = add(x, z) : f32[T,8]", "unknown tensor \"z\""},
    {"x = embed(tokens, table) : f32[T,8]", "declared twice"},
    {"y = linear(x, w) : bf16[T,6]", "result must be f32"},
    {"y = linear(x, w) : f32[T,7]", "N elements a row"},
    {"y = linear(x, w, x, x, x, x, x, x, x) : f32[T,50]", "at most 8 inputs"},
    {"y = rmsnorm(x, norm) : bf16[T,8]", "all attributes"},
    {"y = rmsnorm(x, norm) eps=abc : bf16[T,8]", "a finite number"},
    {"y = rmsnorm(x, norm) eps=-1e-6 : bf16[T,8]", "eps must not be negative"},
    {"y = rmsnorm(x, norm) eps=inf : bf16[T,8]", "a finite number"},
    {"y = rmsnorm(x, norm) eps=1e-6 eps=1 : bf16[T,8]", "given twice"},
    {"y = rmsnorm(x, norm) scale=1 : bf16[T,8]", "unknown here"},
    {"y = rmsnorm(x, norm, tokens) eps=1e-6 : bf16[L,8]", "rows must be an input i32[L]"},
    {"y = rmsnorm(x, norm) eps=1e-6 : bf16[T,9]", "shape of x"},
    {"y = add(x, x) : f32[T,8,]", "a dim"},
    {"y = add(x, x) : f32[T,0]", "expected a dim"},
    {"y = add(x, x) : f32[T,99999999999]", "expected a dim"},
    {"y = add(x, x) : f64[T,8]", "expected f32[...]"},
    {"y = add(x, x) : f32[8,T]", "only the first dim"},
    {"y = add(x, x) : f32[T,2,2,2,2]", "at most 4 dims"},
    {"y = add(x, x) : f32[T,8] junk", "the end of the line"},
    {"y = add(x, x", "')' or ','"},
    {"y add(x, x)", "NAME = OP"},
    {"y = add(x, x)", "only a kv tensor"},
    {"y = next_plan(rows) : i32[1]", "tokens must be an input i32[T]"},
    {"y = next_plan(tokens) : i32[2]", "the result must be i32[1]"},
    {"y = next_plan(tokens) : f32[1]", "the result must be i32[1]"},
    {"y = next_plan(tokens) : i32[1]\nz = sample(x, y) : i32[L]", "logits must be f32[L,V]"},
    {"l = logits(x, norm, rows, table) eps=1 : f32[L,50]\nz = sample(l, rows) : i32[L]",
     "next_plan must be an activation i32[1]"},
    {"y = next_plan(tokens) : i32[1]\nl = logits(x, norm, rows, table) eps=1 : f32[L,50]\n"
     "z = sample(l, y) : i32[T]",
     "the result must be i32[L]"},
    {"weight bad f32[T,8]", "numbers only"},
    {"weight bad f32[2,2,2,2]", "rank 4 of 1 to 3"},
    {"weight big f32[2000000000,2000000000]", "elements"},
    {"weight w bf16[6,8]", "declared twice"},
    {"input y% i32[T]", "expected"},
    {"output tokens", "not an activation"},
    {"output nothing", "not an activation"},
    {"program again", "NAME = OP"},
    {"# the program ends and x is not read", "\"x\" is never read"},
    {"y = add(x, x) : f32[T,8]\nz = add(x, y) : f32[T,8]\noutput z", "took over its storage"},
    {"y = add(x, x) : f32[T,8]\noutput y\nz = add(y, y) : f32[T,8]\noutput z", "taken over"},
};

// Weights of codes have a code that a KV cache may have, too, but no scales in the text.
static void weights_of_codes_are_printed_as_they_were_read(void **state) {
  (void)state;
  static const char text[] =
      "program p\ninput tokens i32[T]\nweight table bf16[32,64]\n"
      "weight w e4m3.32[32,64]\nweight v i4.32[32,64]\n"
      "x = embed(tokens, table) : f32[T,64]\ny = linear(x, w) : f32[T,32]\n"
      "z = linear(x, v) : f32[T,32]\noutput y\noutput z\n";
  mgl_graph *graph = NULL;
  mgl_error err = {0};
  mgl_text printed = {0};
  if (mgl_graph_parse(text, sizeof text - 1, "text", &graph, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  mgl_graph_print(graph, &printed);
  assert_string_equal(printed.data, text);
  mgl_text_free(&printed);
  mgl_graph_destroy(graph);
}

static void malformed_programs_are_refused(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
    char text[2048];
    mgl_graph *graph = NULL;
    mgl_error err = {0};
    (void)snprintf(text, sizeof text, "%s%s\n", head, malformed[i].line);
    mgl_status status = mgl_graph_parse(text, strlen(text), "test.txt", &graph, &err);
    if (status == MGL_OK || graph != NULL) {
      fail_msg("accepted: %s", malformed[i].line);
    }
    if (strstr(err.text, malformed[i].message) == NULL || strstr(err.text, "test.txt") == NULL) {
      fail_msg("%s\nexpected \"...%s...\", found \"%s\"", malformed[i].line, malformed[i].message,
               err.text);
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

static void empty_and_binary_texts_are_refused(void **state) {
  (void)state;
  static const char *const texts[] = {"", "\n\n# nothing\n", "programme x\n", "program\n",
                                      "x = y()"};
  mgl_graph *graph = NULL;
  mgl_error err = {0};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    assert_int_equal(mgl_graph_parse(texts[i], strlen(texts[i]), "t", &graph, &err),
                     MGL_ERR_FORMAT);
  }
  assert_int_equal(mgl_graph_parse("program a\0b\n", 12, "t", &graph, &err), MGL_ERR_FORMAT);
}

static mgl_status parse_once(void *text, mgl_error *err) {
  mgl_graph *graph = NULL;
  mgl_status status = mgl_graph_parse(text, strlen(text), "t", &graph, err);
  assert_true(status == MGL_OK || graph == NULL);
  mgl_graph_destroy(graph);
  return status;
}

static void allocation_failures_are_reported(void **state) {
  (void)state;
  char text[2048];
  (void)snprintf(text, sizeof text, "%sy = linear(x, w) : f32[T,6]\noutput y\n", head);
  assert_true(fail_each_allocation(parse_once, text) > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(printed_programs_parse_to_the_same_text),
      cmocka_unit_test(weights_of_codes_are_printed_as_they_were_read),
      cmocka_unit_test(malformed_programs_are_refused),
      cmocka_unit_test(empty_and_binary_texts_are_refused),
      cmocka_unit_test(allocation_failures_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
