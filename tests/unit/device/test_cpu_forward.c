// The forward context: set for an iteration, poisoned behind it; whoever computes with a stale one
// fails an assertion instead of reading another iteration's plan.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/cpu/cpu_argmax.h"
#include "device/cpu/cpu_eager.h"
#include "device/cpu/cpu_tasks.h"
#include "support/programs.h"
#include "unit/device/cpu_bed.h"

enum { TOKENS = 3, MOST_TOKENS = 8, PAGE_TOKENS = 16, PAGES = 2 };

static void create(cpu_bed *b) {
  static const int32_t tokens[TOKENS] = {5, 6, 7}, pages[PAGES] = {0, 1};
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  const cpu_bed_options options = {
      .threads = 1,
      .memory = {.page_tokens = PAGE_TOKENS, .page_count = PAGES, .workers = 1},
      .program = {.largest = {MOST_TOKENS, MOST_TOKENS, MOST_TOKENS}},
      .limits = {.tokens = MOST_TOKENS,
                 .sequences = MOST_TOKENS,
                 .pages_per_sequence = PAGES,
                 .page_tokens = PAGE_TOKENS}};
  cpu_bed_open(b, build_program(&config), NULL, &options);
  mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = TOKENS,
                                          .pages = pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_LAST});
}

typedef void use(const cpu_bed *b);

static void run_op(const cpu_bed *b) {
  mgl_cpu_op_run(b->program, 0, 0, 0, 1);
}

static void run_task(const cpu_bed *b) {
  mgl_cpu_task_run(b->program, 0, 0, 0, 1);
}

static void count_units(const cpu_bed *b) {
  (void)mgl_cpu_op_units(b->program, 0);
}

static void read_plan(const cpu_bed *b) {
  (void)mgl_cpu_plan(b->program);
}

// The signal that ends a process which does it; 0: it goes on.
static int end_of(use *what, const cpu_bed *b) {
  int result = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)signal(SIGABRT, SIG_DFL);
    (void)!freopen("/dev/null", "w", stderr);  // the assertion's words
    what(b);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &result, 0), child);
  return WIFSIGNALED(result) ? WTERMSIG(result) : 0;
}

static void stale_use_fails_an_assertion(void **state) {
  (void)state;
  use *const uses[] = {run_op, run_task, count_units, read_plan};
  cpu_bed b;
  create(&b);
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
      assert_int_equal(end_of(uses[i], &b), SIGABRT);  // before the first iteration, and behind it
    }
    mgl_cpu_program_set_plan(b.program, b.plan);
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
      assert_int_equal(end_of(uses[i], &b), 0);
    }
    const mgl_forward *f = &b.program->forward;
    assert_true(f->live);
    assert_ptr_equal(f->plan, b.plan);
    assert_ptr_equal(f->kv, b.program->kv);
    assert_int_equal(f->padded_tokens, MOST_TOKENS);
    mgl_cpu_program_end_plan(b.program);
  }
  cpu_bed_close(&b);
}

static void what_it_computed_stays(void **state) {
  (void)state;
  cpu_bed b;
  create(&b);
  mgl_cpu_eager_run(b.program, b.team, b.plan);
  const mgl_forward *f = &b.program->forward;
  assert_false(f->live);
  assert_ptr_equal(f->plan, MGL_FORWARD_POISON);
  const uint32_t tokens = mgl_graph_find(b.graph, "tokens");
  assert_ptr_equal(mgl_cpu_program_tensor(b.program, tokens), MGL_FORWARD_POISON);
  const uint32_t logits = mgl_graph_find(b.graph, "logits");
  assert_int_equal(mgl_cpu_program_elements(b.program, logits), 300);
  const float *rows = mgl_cpu_program_tensor(b.program, logits);
  const uint32_t best = mgl_cpu_program_best_logits(b.program)[0];
  for (uint32_t i = 0; i < 300; i++) {
    assert_true(rows[i] <= rows[best]);
  }
  cpu_bed_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stale_use_fails_an_assertion),
      cmocka_unit_test(what_it_computed_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
