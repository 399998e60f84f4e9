// The largest logit, against a definition in one plain loop: NaN, infinities and ties anywhere,
// rows cut into random tiles that random workers note in random order, several rows, stale notes.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/simd.h"
#include "device/cpu/cpu_argmax.h"

enum {
  MAX_COLUMNS = 5000,  // several blocks
  ROWS = 5,
  WORKERS = 3,
#ifdef MGL_TEST_SANITIZED
  ROUNDS = 60,
#else
  ROUNDS = 600,
#endif
};

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % limit;
}

// The definition: the first NaN, else the first of the largest.
static uint32_t first_largest(const float *row, uint32_t count) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count && !isnan(row[best]); i++) {
    if (isnan(row[i]) || row[i] > row[best]) {
      best = i;
    }
  }
  return best;
}

// Few different values, so that the largest stands in many places, and sometimes what is no number.
static void fill(float *row, uint32_t count) {
  static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e38f, -1e38f};
  uint32_t values = 1 + random_below(random_below(3) == 0 ? 4 : 1000);
  for (uint32_t i = 0; i < count; i++) {
    row[i] = (float)random_below(values) - (float)(values - 1);  // the largest is 0
  }
  for (uint32_t left = random_below(4); left > 0; left--) {
    row[random_below(count)] = special[random_below(8)];
  }
  if (random_below(20) == 0) {
    for (uint32_t i = 0; i < count; i++) {
      row[i] = -INFINITY;
    }
  }
}

static void kernels_find_the_largest(void **state) {
  (void)state;
  float *row = malloc(300 * sizeof *row);
  assert_non_null(row);
  for (uint32_t i = 0; i < 20 * ROUNDS; i++) {
    uint32_t count = 1 + random_below(290);
    float *x = row + random_below(10);
    fill(x, count);
    float expected = x[first_largest(x, count)];
    for (int simd = 0; simd <= (int)mgl_simd_detected(); simd++) {
      float found = mgl_cpu_kernels_for((mgl_simd)simd)->largest(x, count);
      assert_true(found == expected || (isnan(found) && isnan(expected)));
    }
  }
  free(row);
}

// A program that has a tensor "logits", and nothing else that the notes need.
typedef struct fixture {
  mgl_graph graph;
  mgl_tensor tensor;
  mgl_cpu_memory memory;
  mgl_cpu_program program;
  uint64_t offset;
  mgl_logit_note notes[WORKERS * MGL_INVARIANT_TOKENS];
  uint32_t best[MGL_INVARIANT_TOKENS];
} fixture;

static void set_up(fixture *f, float *logits, uint32_t columns, mgl_simd simd) {
  *f = (fixture){.tensor = {.placement = MGL_PLACE_ACTIVATION, .rank = 2}};
  f->tensor.dims[0].symbol = MGL_DIM_LOGIT_ROWS;
  f->tensor.dims[1].number = columns;
  f->graph = (mgl_graph){.tensors = &f->tensor, .tensor_count = 1};
  f->memory = (mgl_cpu_memory){.options = {.workers = WORKERS},
                               .activations = (unsigned char *)logits,
                               .logit_rows = MGL_INVARIANT_TOKENS,
                               .logit_notes = f->notes,
                               .best_logits = f->best};
  f->program = (mgl_cpu_program){.graph = &f->graph,
                                 .memory = &f->memory,
                                 .kernels = mgl_cpu_kernels_for(simd),
                                 .offsets = &f->offset};
}

// Tiles as tasks would have them: each noted once, by any worker, in any order.
static void note_tiles(fixture *f, uint32_t columns) {
  uint32_t cuts[MAX_COLUMNS][2];
  uint32_t count = 0;
  uint32_t most = 1 + random_below(columns);
  for (uint32_t begin = 0, end; begin < columns; begin = end) {
    end = begin + 1 + random_below(most < columns - begin ? most : columns - begin);
    uint32_t at = random_below(count + 1);  // an inside-out shuffle
    memcpy(cuts[count++], cuts[at], sizeof cuts[at]);
    cuts[at][0] = begin;
    cuts[at][1] = end;
  }
  uint32_t workers = 1 + random_below(WORKERS);  // some may have no tile
  for (uint32_t i = 0; i < count; i++) {
    mgl_cpu_program_note_logits(&f->program, 0, random_below(workers), cuts[i][0], cuts[i][1]);
  }
}

static void the_cut_into_tiles_does_not_matter(void **state) {
  (void)state;
  float *logits = malloc(ROWS * MAX_COLUMNS * sizeof *logits);
  fixture *f = malloc(sizeof *f);
  assert_non_null(logits);
  assert_non_null(f);
  for (int simd = 0; simd <= (int)mgl_simd_detected(); simd++) {
    random_state = 7;
    uint32_t columns = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
      if (round % 8 == 0) {  // else the notes of the iteration before are there, and stale
        columns = 1 + random_below(random_below(2) == 0 ? 70 : MAX_COLUMNS);
        set_up(f, logits, columns, (mgl_simd)simd);
      }
      f->program.iteration = ++f->memory.iteration;
      f->program.dims.logit_rows = random_below(ROWS + 1);
      for (uint32_t row = 0; row < f->program.dims.logit_rows; row++) {
        fill(logits + (size_t)row * columns, columns);
      }
      note_tiles(f, columns);
      const uint32_t *best = mgl_cpu_program_best_logits(&f->program);
      for (uint32_t row = 0; row < f->program.dims.logit_rows; row++) {
        assert_int_equal(best[row], first_largest(logits + (size_t)row * columns, columns));
      }
    }
  }
  free(f);
  free(logits);
}

// Two workers, one border: what stands left and right of it, and which worker comes first.
static void ties_and_nan_across_a_border(void **state) {
  (void)state;
  static const struct {
    float logits[6];
    uint32_t best;
  } cases[] = {
      {{1, 2, 5, 5, 2, 1}, 2},
      {{1, 2, 4, 5, 2, 5}, 3},
      {{0, -0.0f, -0.0f, 0, 0, 0}, 0},
      {{-0.0f, -1, -1, 0, 0, 0}, 0},
      {{1, INFINITY, 0, INFINITY, 0, 0}, 1},
      {{1, INFINITY, 0, NAN, 0, NAN}, 3},
      {{1, 9, NAN, NAN, 9, 9}, 2},
      {{NAN, NAN, NAN, NAN, NAN, NAN}, 0},
      {{-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, 0},
      {{-INFINITY, -INFINITY, -INFINITY, -INFINITY, -1e38f, -INFINITY}, 4},
  };
  fixture *f = malloc(sizeof *f);
  assert_non_null(f);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    for (uint32_t turn = 0; turn < 4; turn++) {
      float logits[6];
      memcpy(logits, cases[i].logits, sizeof logits);
      set_up(f, logits, 6, MGL_SIMD_SCALAR);
      f->program.iteration = ++f->memory.iteration;
      f->program.dims.logit_rows = 1;
      uint32_t right_first = turn % 2, worker = turn / 2;
      mgl_cpu_program_note_logits(&f->program, 0, worker, right_first ? 3 : 0, right_first ? 6 : 3);
      mgl_cpu_program_note_logits(&f->program, 0, 1 - worker, right_first ? 0 : 3,
                                  right_first ? 3 : 6);
      assert_int_equal(mgl_cpu_program_best_logits(&f->program)[0], cases[i].best);
      assert_int_equal(first_largest(logits, 6), cases[i].best);
    }
  }
  free(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_find_the_largest),
      cmocka_unit_test(the_cut_into_tiles_does_not_matter),
      cmocka_unit_test(ties_and_nan_across_a_border),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
