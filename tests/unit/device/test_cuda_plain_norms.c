// Which linears read through a norm, and that what the norm reads is still there then.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/cpu_layout.h"
#include "device/cuda/cuda_plain_norms.h"
#include "support/must.h"
#include "support/programs.h"

static const mgl_dim_values values = {.tokens = 5, .logit_rows = 5, .sequences = 1};

static bool overlap(mgl_byte_range a, mgl_byte_range b) {
  return a.begin < b.end && b.begin < a.end;
}

// How many ops read through a norm. Of each: until it runs, nothing is written over the norm's
// input.
static uint32_t count_norms(const mgl_graph *program) {
  mgl_byte_range *ranges = mgl_alloc_zeroed(program->tensor_count, sizeof *ranges);
  uint32_t *norms = NULL, found = 0;
  size_t bytes = 0;
  MUST(mgl_cuda_plain_find_norms(program, &norms, &err));
  assert_non_null(ranges);
  MUST(mgl_cpu_layout_pieces(program, &values, norms + program->op_count, ranges, &bytes, &err));
  for (uint32_t i = 0; i < program->op_count; i++) {
    assert_true(i == 0 || norms[program->op_count + i] >= norms[program->op_count + i - 1]);
    if (norms[i] == MGL_CUDA_NO_NORM) {
      continue;
    }
    const mgl_op *norm = &program->ops[norms[i]];
    assert_int_equal(program->ops[i].inputs[0], norm->output);
    found++;
    for (uint32_t j = norms[i] + 1; j <= i; j++) {
      uint32_t written = program->ops[j].output;
      if (program->tensors[written].placement == MGL_PLACE_ACTIVATION &&
          overlap(ranges[norm->inputs[0]], ranges[written])) {
        fail_msg("op %u writes over what norm %u reads, which op %u still needs", j, norms[i], i);
      }
    }
  }
  mgl_free(norms);
  mgl_free(ranges);
  return found;
}

static void linears_read_through_norms_of_rows(void **state) {
  (void)state;
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.vocab_size = 48;  // logits would fit in the place of what the last norm reads
  mgl_graph *program = build_program(&config);
  assert_int_equal(count_norms(program), 2 * 5 + 1);  // q, k, v, gate, up; the head
  mgl_graph_destroy(program);
  config = small_config(MGL_FAMILY_PHI);  // layer norms
  program = build_program(&config);
  assert_int_equal(count_norms(program), 0);
  mgl_graph_destroy(program);
}

// Where x is changed in between, a linear would read something else.
static void not_where_the_input_has_changed(void **state) {
  (void)state;
  static const char text[] =
      "program p\n"
      "input tokens i32[T]\n"
      "weight table bf16[8,16]\n"
      "weight norm bf16[16]\n"
      "weight w bf16[16,16]\n"
      "x = embed(tokens, table) : f32[T,16]\n"
      "n = rmsnorm(x, norm) eps=1e-06 : bf16[T,16]\n"
      "a = linear(n, w) : f32[T,16]\n"
      "y = add(x, a) : f32[T,16]\n"
      "b = linear(n, w) : f32[T,16]\n"
      "z = add(y, b) : f32[T,16]\n"
      "output z\n";
  mgl_graph *program = parse_program(text);
  uint32_t *norms = NULL;
  MUST(mgl_cuda_plain_find_norms(program, &norms, &err));
  assert_int_equal(norms[2], 1);
  assert_int_equal(norms[4], MGL_CUDA_NO_NORM);
  mgl_free(norms);
  mgl_graph_destroy(program);
}

static mgl_status find_norms(void *context, mgl_error *err) {
  uint32_t *norms = NULL;
  mgl_status status = mgl_cuda_plain_find_norms(context, &norms, err);
  mgl_free(norms);
  return status;
}

static void memory_may_be_out(void **state) {
  (void)state;
  mgl_config config = small_config(MGL_FAMILY_LLAMA);
  mgl_graph *program = build_program(&config);
  mgl_error failure = {0};
  mgl_alloc_fail_nth(1);
  assert_int_equal(find_norms(program, &failure), MGL_ERR_MEMORY);
  mgl_alloc_fail_nth(0);
  mgl_graph_destroy(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(linears_read_through_norms_of_rows),
                                     cmocka_unit_test(not_where_the_input_has_changed),
                                     cmocka_unit_test(memory_may_be_out)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
