// A plain program's plan: what it hands to kernels is there during an iteration, and poisoned
// behind it; who launches an op then fails an assertion instead of reading another iteration's.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/cuda/cuda_plain.h"
#include "support/fake_cuda.h"
#include "support/must.h"
#include "support/programs.h"

enum { TOKENS = 3, MOST_TOKENS = 8, PAGE_TOKENS = 16, PAGES = 2, VOCAB = 300 };

static const mgl_dim_values dims = {.tokens = TOKENS, .logit_rows = 1, .sequences = 1};

typedef struct bed {
  mgl_cuda_device device;
  mgl_graph *program;
  mgl_cuda_plain *plain;
  mgl_plan *plan;
  float logits[VOCAB];
} bed;

static void create(bed *b) {
  static const int32_t tokens[TOKENS] = {5, 6, 7}, pages[PAGES] = {0, 1};
  static const mgl_build build = {.weights = MGL_WEIGHTS_DUMMY, .seed = 3, .threads = 1};
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  const mgl_plan_limits limits = {.tokens = MOST_TOKENS,
                                  .sequences = MOST_TOKENS,
                                  .pages_per_sequence = PAGES,
                                  .page_tokens = PAGE_TOKENS};
  *b = (bed){.device = fake_cuda_device(), .program = build_program(&config)};
  const mgl_cuda_plain_options options = {.program = b->program,
                                          .build = &build,
                                          .sizes = {.limits = limits,
                                                    .sequences = MOST_TOKENS,
                                                    .logit_rows = MOST_TOKENS,
                                                    .page_count = PAGES},
                                          .get_code = fake_cuda_code};
  MUST(mgl_cuda_plain_create(&b->device, &options, &b->plain, &err));
  MUST(mgl_plan_create(&limits, &b->plan, &err));
  mgl_plan_add(b->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = TOKENS,
                                          .pages = pages,
                                          .page_count = PAGES,
                                          .logits = MGL_LOGITS_LAST});
}

static void destroy(bed *b) {
  mgl_plan_destroy(b->plan);
  mgl_cuda_plain_destroy(b->plain);
  mgl_graph_destroy(b->program);
  assert_int_equal(fake.live, 0);
}

// The signal that ends a process which launches an op; 0: it goes on.
static int end_of_launch(const bed *b) {
  int result = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    mgl_error err = {0};
    (void)signal(SIGABRT, SIG_DFL);
    (void)!freopen("/dev/null", "w", stderr);  // the assertion's words
    (void)mgl_cuda_plain_launch(b->plain, 0, &dims, NULL, &err);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &result, 0), child);
  return WIFSIGNALED(result) ? WTERMSIG(result) : 0;
}

// The device's copy of an input of the plan: the fake GPU's memory is the host's.
static const uint32_t *input_of(const bed *b, const char *name) {
  return (const uint32_t *)(uintptr_t)mgl_cuda_plain_address(b->plain,
                                                             mgl_graph_find(b->program, name));
}

static void a_plan_is_there_for_an_iteration(void **state) {
  (void)state;
  static const char *const inputs[] = {"tokens", "positions", "slots", "logit_rows",
                                       "block_tables"};
  bed b;
  create(&b);
  for (int round = 0; round < 2; round++) {
    assert_int_equal(end_of_launch(&b), SIGABRT);  // before the first iteration, and behind it
    MUST(mgl_cuda_plain_stage(b.plain, b.plan, &dims, &err));
    assert_int_equal(end_of_launch(&b), 0);
    assert_int_equal(input_of(&b, "tokens")[TOKENS - 1], 7);
    assert_int_equal(input_of(&b, "positions")[TOKENS - 1], TOKENS - 1);
    MUST(mgl_cuda_plain_fetch(b.plain, b.plan, b.logits, &err));
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
      assert_int_equal(input_of(&b, inputs[i])[0], UINT32_MAX);
    }
  }
  destroy(&b);
}

// The same logits, whatever was poisoned in between.
static void iterations_follow_each_other(void **state) {
  (void)state;
  bed b;
  float first[VOCAB];
  create(&b);
  MUST(mgl_cuda_plain_run(b.plain, b.plan, false, first, &err));
  MUST(mgl_cuda_plain_run(b.plain, b.plan, false, b.logits, &err));
  assert_memory_equal(first, b.logits, sizeof first);
  destroy(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_plan_is_there_for_an_iteration),
      cmocka_unit_test(iterations_follow_each_other),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
