// Programs as text with custom ops in them, of the tests that register such ops.
#ifndef MGL_TESTS_PROGRAM_TEXT_H
#define MGL_TESTS_PROGRAM_TEXT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/programs.h"

// Puts `with` in the place of the first `what` at or behind *from, which moves behind it.
static inline void replace(char *text, size_t capacity, size_t *from, const char *what,
                           const char *with) {
  char *at = strstr(text + *from, what);
  assert_non_null(at);
  size_t rest = strlen(at + strlen(what)) + 1;
  assert_true((size_t)(at - text) + strlen(with) + rest <= capacity);
  memmove(at + strlen(with), at + strlen(what), rest);
  memcpy(at, with, strlen(with));
  *from = (size_t)(at - text) + strlen(with);
}

enum { TEXT_BYTES = 1 << 16 };

static inline char *text_of_model(const mgl_config *config) {
  mgl_graph *graph = build_program(config);
  mgl_text out = {0};
  char *text = calloc(1, TEXT_BYTES);
  mgl_graph_print(graph, &out);
  assert_true(out.bytes < TEXT_BYTES);
  memcpy(text, out.data, out.bytes);
  mgl_text_free(&out);
  mgl_graph_destroy(graph);
  return text;
}

// The model's program with my_add for its first add, and, if so, with my_scale before its last norm
// and my_cap behind its logits.
static inline char *changed_text(const mgl_config *config, bool all) {
  char *text = text_of_model(config);
  size_t at = 0;
  replace(text, TEXT_BYTES, &at, " = add(", " = my_add(");
  if (all) {
    at = 0;
    replace(text, TEXT_BYTES, &at, "weight ", "weight my.gain bf16[96]\nweight ");
    at = 0;
    replace(text, TEXT_BYTES, &at, "\nlogits = ", "\nraw = ");
    replace(text, TEXT_BYTES, &at, "\noutput",
            "\nlogits = my_cap(raw) cap=2.5 : f32[L,300]\noutput");
    // What the final norm reads.
    char norm[128], scale[300];
    const char *line = strstr(text, ", model.norm.weight, logit_rows)");
    assert_non_null(line);
    const char *x = line;
    while (x[-1] != '(') {
      x--;
    }
    (void)snprintf(norm, sizeof norm, "%.*s", (int)(line - x), x);
    const char *begin = line;
    while (begin[-1] != '\n') {
      begin--;
    }
    at = (size_t)(begin - text) - 1;
    (void)snprintf(scale, sizeof scale,
                   "\nscaled = my_scale(%s, my.gain, positions) slope=0.001 : f32[T,96]\n", norm);
    replace(text, TEXT_BYTES, &at, "\n", scale);
    char old[160];
    (void)snprintf(old, sizeof old, "rmsnorm(%s, model.norm", norm);
    replace(text, TEXT_BYTES, &at, old, "rmsnorm(scaled, model.norm");
  }
  return text;
}

#endif
