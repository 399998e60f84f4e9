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
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_tasks.h"
#include "device/cpu/cpu_weights.h"
#include "support/programs.h"

enum { TOKENS = 3, MOST_TOKENS = 8, PAGE_TOKENS = 16, PAGES = 2 };

typedef struct bed {
  mgl_graph *graph;
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_weights weights;
  mgl_cpu_memory *memory;
  mgl_cpu_program *program;
  mgl_plan *plan;
} bed;

static void create(bed *b) {
  static const int32_t tokens[TOKENS] = {5, 6, 7}, pages[PAGES] = {0, 1};
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  const mgl_cpu_memory_options memory = {
      .page_tokens = PAGE_TOKENS, .page_count = PAGES, .workers = 1};
  const mgl_cpu_program_options options = {.largest = {MOST_TOKENS, MOST_TOKENS, MOST_TOKENS}};
  const mgl_plan_limits limits = {.tokens = MOST_TOKENS,
                                  .sequences = MOST_TOKENS,
                                  .pages_per_sequence = PAGES,
                                  .page_tokens = PAGE_TOKENS};
  *b = (bed){.graph = build_program(&config)};
  MUST(mgl_topology_create(&b->topology, &err));
  MUST(mgl_team_create(b->topology, 1, &b->team, &err));
  MUST(mgl_cpu_weights_bind(b->graph, NULL, MGL_WEIGHTS_DUMMY, 3, b->team, b->topology, NULL,
                            &b->weights, &err));
  MUST(mgl_cpu_memory_create(&b->weights, &memory, b->topology, &b->memory, &err));
  MUST(mgl_cpu_program_create(b->graph, b->memory, &options, &b->program, &err));
  MUST(mgl_plan_create(&limits, &b->plan, &err));
  mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = TOKENS,
                                          .pages = pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_LAST});
}

static void destroy(bed *b) {
  mgl_plan_destroy(b->plan);
  mgl_cpu_program_destroy(b->program);
  mgl_cpu_memory_destroy(b->memory);
  mgl_cpu_weights_release(&b->weights);
  mgl_team_destroy(b->team);
  mgl_topology_destroy(b->topology);
  mgl_graph_destroy(b->graph);
}

typedef void use(const bed *b);

static void run_op(const bed *b) {
  mgl_cpu_op_run(b->program, 0, 0, 0, 1);
}

static void run_task(const bed *b) {
  mgl_cpu_task_run(b->program, 0, 0, 0, 1);
}

static void count_units(const bed *b) {
  (void)mgl_cpu_op_units(b->program, 0);
}

static void read_plan(const bed *b) {
  (void)mgl_cpu_plan(b->program);
}

// The signal that ends a process which does it; 0: it goes on.
static int end_of(use *what, const bed *b) {
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
  bed b;
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
  destroy(&b);
}

static void what_it_computed_stays(void **state) {
  (void)state;
  bed b;
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
  destroy(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stale_use_fails_an_assertion),
      cmocka_unit_test(what_it_computed_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
