// Taking pieces by turns (twin/pieces.h): all interleavings of two and three takers over a model of
// the atomics. Every schedule is run from the beginning: at each access to the word the taker that
// the schedule names goes on, and the next schedule differs in the last place where another could
// have gone on.
#define MGL_ATOMICS_MODEL 1

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <string.h>
#include <ucontext.h>

#include "support/atomics_model.h"
#include "twin/pieces.h"

enum { MOST_TAKERS = 3, MOST_PIECES = 4, STACK_BYTES = 16384, MOST_STEPS = 64 };

typedef struct taker {
  ucontext_t context;
  bool left;
} taker;

static taker takers[MOST_TAKERS];
static char stacks[MOST_TAKERS][STACK_BYTES] __attribute__((aligned(64)));
static ucontext_t scheduler;
static uint32_t running;
static mgl_word word;
static uint64_t iteration;
static uint32_t pieces;
static uint8_t taken[MOST_PIECES];
static bool wrong;

MODEL_FN void model_before(const mgl_word *of, model_access access) {
  (void)of;
  (void)access;
  (void)swapcontext(&takers[running].context, &scheduler);
}

MODEL_FN void model_after(const mgl_word *of, model_access access, uint64_t value) {
  (void)of;
  (void)access;
  (void)value;
}

MODEL_FN static void take_all(void) {
  const uint32_t me = running;
  uint64_t last = 0;
  for (bool first = true;; first = false) {
    const uint64_t piece = mgl_take_piece(&word, iteration);
    wrong |= !first && piece <= last;  // in ascending order
    last = piece;
    if (piece >= pieces) {
      break;
    }
    taken[piece]++;
  }
  takers[me].left = true;
  (void)setcontext(&scheduler);
}

static void prepare(taker *t, char *stack) {
  t->left = false;
  (void)getcontext(&t->context);
  t->context.uc_stack.ss_sp = stack;
  t->context.uc_stack.ss_size = STACK_BYTES;
  t->context.uc_link = NULL;
  makecontext(&t->context, take_all, 0);
}

static void begin(uint32_t count) {
  memset(taken, 0, sizeof taken);
  for (uint32_t i = 0; i < count; i++) {
    prepare(&takers[i], stacks[i]);
  }
}

// One run by the first `fixed` choices, and then by the lowest taker that can go on; choices[i] and
// options[i] say, among those that could, who went on and how many there were. Returns the steps.
static uint32_t run(uint32_t count, uint32_t fixed, uint8_t *choices, uint8_t *options) {
  begin(count);
  for (uint32_t step = 0;; step++) {
    uint32_t can[MOST_TAKERS];
    uint32_t able = 0;
    for (uint32_t i = 0; i < count; i++) {
      if (!takers[i].left) {
        can[able++] = i;
      }
    }
    if (able == 0) {
      return step;
    }
    assert_true(step < MOST_STEPS);
    choices[step] = step < fixed ? choices[step] : 0;
    options[step] = (uint8_t)able;
    running = can[choices[step]];
    (void)swapcontext(&scheduler, &takers[running].context);
  }
}

static uint64_t search(uint32_t count, uint64_t from) {
  uint8_t choices[MOST_STEPS] = {0}, options[MOST_STEPS] = {0};
  uint32_t fixed = 0;
  uint64_t runs = 0;
  for (;;) {
    word.value = from;
    const uint32_t steps = run(count, fixed, choices, options);
    runs++;
    for (uint32_t i = 0; i < pieces; i++) {
      if (taken[i] != 1 || wrong) {
        fail_msg("%u takers, schedule %llu: piece %u was taken %u times", count,
                 (unsigned long long)runs, i, taken[i]);
      }
    }
    fixed = steps;
    while (fixed > 0 && choices[fixed - 1] + 1 == options[fixed - 1]) {
      fixed--;
    }
    if (fixed == 0) {
      return runs;
    }
    choices[fixed - 1]++;
  }
}

static void every_piece_has_one_taker(void **state) {
  (void)state;
  static const struct {
    uint32_t takers, pieces;
  } cases[] = {{1, 4}, {2, 0}, {2, 1}, {2, 2}, {3, 0}};
  uint64_t runs = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pieces = cases[i].pieces;
    iteration = 7;
    // Nothing was taken before; much was, in an iteration before; and long ago.
    runs += search(cases[i].takers, 0);
    runs += search(cases[i].takers, ((uint64_t)6 << MGL_PIECE_BITS) + 9);
    iteration = (uint64_t)1 << 33;
    runs += search(cases[i].takers, 0);
  }
  print_message("%llu schedules\n", (unsigned long long)runs);
  assert_true(runs > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_piece_has_one_taker)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
