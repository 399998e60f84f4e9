// Layout and barriers over random tensor programs: storage of tensors that live together is
// disjoint, and between two barriers no op touches what another one writes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/cpu_layout.h"

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % limit;
}

// A random program of adds, norms and gates over f32 [T, width] tensors; every unread tensor is an
// output.
static mgl_graph *random_program(uint32_t op_count) {
  enum { WIDTHS = 3 };
  static const uint32_t widths[WIDTHS] = {8, 24, 40};
  mgl_graph *g = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_graph_create("random", &g, &err), MGL_OK);
  mgl_dim t = MGL_DIM_T;
  uint32_t tokens = mgl_graph_tensor(g, "tokens", MGL_PLACE_INPUT, MGL_DTYPE_I32, 1, &t);
  // live[w]: tensors of that width whose storage is still theirs
  uint32_t live[WIDTHS][300];
  uint32_t live_count[WIDTHS] = {0};
  unsigned char was_read[1000] = {0};
  char name[32];
  for (uint32_t w = 0; w < WIDTHS; w++) {
    (void)snprintf(name, sizeof name, "table%u", w);
    mgl_dim dims[] = {MGL_DIM(10), MGL_DIM(widths[w])};
    uint32_t table = mgl_graph_tensor(g, name, MGL_PLACE_WEIGHT, MGL_DTYPE_F32, 2, dims);
    (void)snprintf(name, sizeof name, "norm%u", w);
    (void)mgl_graph_tensor(g, name, MGL_PLACE_WEIGHT, MGL_DTYPE_F32, 1, &dims[1]);
    (void)snprintf(name, sizeof name, "e%u", w);
    live[w][live_count[w]++] = mgl_graph_embed(g, name, tokens, table);
  }
  for (uint32_t i = 0; i < op_count; i++) {
    uint32_t w = random_below(WIDTHS);
    if (live_count[w] == 0) {
      continue;
    }
    uint32_t x_at = random_below(live_count[w]);
    uint32_t x = live[w][x_at];
    uint32_t y = live[w][random_below(live_count[w])];
    (void)snprintf(name, sizeof name, "v%u", i);
    uint32_t kind = random_below(3);
    uint32_t out;
    was_read[x] = 1;
    if (kind == 0 && x != y) {
      out = mgl_graph_add(g, name, x, y);
      was_read[y] = 1;
      live[w][x_at] = out;  // x gave its storage away
      continue;
    }
    if (kind == 1) {
      out = mgl_graph_silu_mul(g, name, MGL_DTYPE_F32, x, y);
      was_read[y] = 1;
    } else {
      char weight[16];
      (void)snprintf(weight, sizeof weight, "norm%u", w);
      out = mgl_graph_rmsnorm(g, name, MGL_DTYPE_F32, x, mgl_graph_find(g, weight), MGL_NO_TENSOR,
                              1e-6);
    }
    live[w][live_count[w]++] = out;
    if (live_count[w] > 6) {  // forget the oldest, so that storage becomes free
      uint32_t gone = live[w][0];
      if (was_read[gone] == 0) {
        mgl_graph_mark_output(g, gone);
      }
      memmove(live[w], live[w] + 1, --live_count[w] * sizeof live[w][0]);
    }
  }
  for (uint32_t w = 0; w < WIDTHS; w++) {
    for (uint32_t i = 0; i < live_count[w]; i++) {
      if (was_read[live[w][i]] == 0) {
        mgl_graph_mark_output(g, live[w][i]);
      }
    }
  }
  if (mgl_graph_finish(g, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return g;
}

static int overlap(mgl_byte_range a, mgl_byte_range b) {
  return a.begin < b.end && b.begin < a.end;
}

// Executes the program on symbols: each byte of the block holds the tensor that last wrote it, and
// every read must find the value of the tensor that it names. This is the definition of a correct
// layout.
static void check_layout(const mgl_graph *g, const mgl_byte_range *ranges, size_t bytes) {
  uint32_t *owner = malloc((bytes + 1) * sizeof *owner);
  assert_non_null(owner);
  memset(owner, 0xff, (bytes + 1) * sizeof *owner);
  for (size_t i = 0; i < g->op_count; i++) {
    const mgl_op *op = &g->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      if (g->tensors[op->inputs[j]].placement == MGL_PLACE_ACTIVATION) {
        mgl_byte_range r = ranges[op->inputs[j]];
        for (size_t b = r.begin; b < r.end; b++) {
          assert_int_equal(owner[b], op->inputs[j]);
        }
        // An output may lie on an input only where the op is made for it.
        if (overlap(r, ranges[op->output])) {
          assert_true(j == 0 && mgl_op_info_of(op->kind)->in_place);
        }
      }
    }
    mgl_byte_range r = ranges[op->output];
    assert_true(r.end <= bytes);
    for (size_t b = r.begin; b < r.end; b++) {
      owner[b] = op->output;
    }
  }
  for (uint32_t i = 0; i < g->tensor_count; i++) {
    if (g->tensors[i].is_output) {
      for (size_t b = ranges[i].begin; b < ranges[i].end; b++) {
        assert_int_equal(owner[b], i);
      }
    }
  }
  free(owner);
}

static void check_barriers(const mgl_graph *g, const mgl_byte_range *ranges,
                           const unsigned char *barrier, size_t *barrier_count) {
  size_t segment = 0;
  for (size_t i = 0; i < g->op_count; i++) {
    if (barrier[i] != 0) {
      segment = i;
      ++*barrier_count;
    }
    for (size_t before = segment; before < i; before++) {
      const mgl_op *a = &g->ops[before];
      const mgl_op *b = &g->ops[i];
      assert_false(overlap(ranges[a->output], ranges[b->output]));
      for (uint32_t j = 0; j < b->input_count; j++) {
        if (g->tensors[b->inputs[j]].placement == MGL_PLACE_ACTIVATION) {
          assert_false(overlap(ranges[a->output], ranges[b->inputs[j]]));
        }
      }
      for (uint32_t j = 0; j < a->input_count; j++) {
        if (g->tensors[a->inputs[j]].placement == MGL_PLACE_ACTIVATION) {
          assert_false(overlap(ranges[a->inputs[j]], ranges[b->output]));
        }
      }
    }
  }
}

static void random_programs_are_laid_out_safely(void **state) {
  (void)state;
  size_t ops = 0;
  size_t barriers = 0;
  size_t laid_out = 0;
  size_t unshared = 0;
  for (int round = 0; round < 200; round++) {
    random_state = (uint64_t)round * 977 + 5;
    mgl_graph *g = random_program(10 + random_below(120));
    mgl_dim_values values = {.tokens = 1 + random_below(5), .logit_rows = 1, .sequences = 1};
    mgl_byte_range *ranges = calloc(g->tensor_count, sizeof *ranges);
    unsigned char *barrier = calloc(g->op_count, 1);
    size_t bytes = 0;
    mgl_error err = {0};
    assert_int_equal(mgl_cpu_layout(g, &values, ranges, &bytes, &err), MGL_OK);
    check_layout(g, ranges, bytes);
    assert_int_equal(mgl_cpu_find_barriers(g, ranges, barrier, &err), MGL_OK);
    check_barriers(g, ranges, barrier, &barriers);
    ops += g->op_count;
    laid_out += bytes;
    for (size_t i = 0; i < g->tensor_count; i++) {
      unshared += ranges[i].end - ranges[i].begin;
    }
    free(ranges);
    free(barrier);
    mgl_graph_destroy(g);
  }
  // The passes must also be of use: storage is shared, and not every op waits.
  assert_true(laid_out * 2 < unshared);
  assert_true(barriers < ops);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_are_laid_out_safely)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
