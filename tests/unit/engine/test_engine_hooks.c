// What lets others steer an engine that runs: the hook before each plan, pausing, statistics.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "unit/engine/small_engine.h"

enum { VOCAB = SMALL_ENGINE_VOCAB, CONTEXT = 128, NEW = 20, PROMPT = 30, MOST = 8 };

typedef struct bed {
  mgl_runner *runner;
  mgl_engine *engine;
  int32_t tokens[MOST][NEW];
  uint32_t counts[MOST];
  uint32_t plans;                                   // times that before_plan was called
  void (*act)(struct bed *b, uint32_t plan_index);  // by before_plan; may be NULL
  mgl_engine_statistics seen;                       // by act
} bed;

static void before_plan(void *context) {
  bed *b = context;
  uint32_t plan = b->plans++;
  if (b->act != NULL) {
    b->act(b, plan);
  }
}

static bool on_token(void *context, const mgl_generated_token *token) {
  bed *b = context;
  uint32_t request = token->request;
  assert_true(request < MOST && b->counts[request] < NEW);
  b->tokens[request][b->counts[request]++] = token->token;
  return true;
}

static void open_bed(bed *b, uint32_t sequences, uint64_t pool_tokens, mgl_mode mode) {
  *b = (bed){0};
  mgl_engine_options engine = {.mode = mode, .before_plan = before_plan, .context = b};
  b->runner =
      small_engine_runner(CONTEXT, (mgl_build){.sequences = sequences, .pool_tokens = pool_tokens});
  MUST(mgl_engine_create(b->runner, &engine, &b->engine, &err));
}

static void close_bed(bed *b) {
  mgl_engine_destroy(b->engine);
  mgl_runner_destroy(b->runner);
}

static uint32_t submit(bed *b, uint32_t kind) {
  int32_t prompt[PROMPT];
  mgl_error err = {0};
  uint32_t number = 0;
  for (uint32_t i = 0; i < PROMPT; i++) {
    prompt[i] = (int32_t)((kind * 101 + i * 37) % VOCAB);
  }
  mgl_request request = {.prompt = prompt,
                         .prompt_count = PROMPT,
                         .max_new_tokens = NEW,
                         .sampling = {.temperature = 1, .top_p = 1, .seed = kind}};
  assert_int_equal(mgl_engine_check(b->engine, &request, &err), MGL_OK);
  assert_int_equal(mgl_engine_submit(b->engine, &request, &number, &err), MGL_OK);
  return number;
}

static void run(bed *b) {
  mgl_error err = {0};
  if (mgl_engine_run(b->engine, on_token, NULL, b, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

// --- the hook ------------------------------------------------------------------------------------

static void submit_later(bed *b, uint32_t plan) {
  if (plan == 3 || plan == 9) {
    (void)submit(b, 1);
  }
  if (plan == 12) {
    mgl_engine_cancel(b->engine, 0);
    mgl_engine_get_statistics(b->engine, &b->seen);
  }
}

static void the_hook_submits_and_cancels(void **state) {
  (void)state;
  for (int mode = 0; mode <= MGL_MODE_EAGER; mode++) {
    bed b;
    open_bed(&b, 4, 0, (mgl_mode)mode);
    assert_int_equal(submit(&b, 0), 0);
    b.act = submit_later;
    run(&b);
    assert_int_equal(b.counts[0], 12);  // plans 0 to 11 computed it
    assert_int_equal(b.seen.running, 2);
    assert_int_equal(b.counts[1], NEW);
    assert_int_equal(b.counts[2], NEW);
    assert_memory_equal(b.tokens[1], b.tokens[2], sizeof b.tokens[1]);
    assert_false(mgl_engine_has_work(b.engine));
    close_bed(&b);
  }
}

static void an_engine_without_work_still_asks(void **state) {
  bed b;
  (void)state;
  open_bed(&b, 4, 0, MGL_MODE_MEGA);
  run(&b);
  assert_int_equal(b.plans, 1);
  b.plans = 3;  // and may be given some
  b.act = submit_later;
  run(&b);
  assert_int_equal(b.counts[0] + b.counts[1], 9 + NEW);  // plans 3 to 11 computed the first
  close_bed(&b);
}

// --- pausing -------------------------------------------------------------------------------------

static void pause_some(bed *b, uint32_t plan) {
  if (plan == 5) {
    mgl_engine_pause(b->engine, 0);
    mgl_engine_pause(b->engine, 0);   // again: nothing
    mgl_engine_pause(b->engine, 77);  // nobody
  }
  if (plan == 6) {
    mgl_engine_get_statistics(b->engine, &b->seen);
  }
}

static void a_paused_request_resumes_with_the_same_tokens(void **state) {
  bed alone;
  bed b;
  (void)state;
  open_bed(&alone, 4, 0, MGL_MODE_MEGA);
  (void)submit(&alone, 0);
  run(&alone);
  open_bed(&b, 1, 0, MGL_MODE_MEGA);  // a place for one at a time
  (void)submit(&b, 0);
  (void)submit(&b, 1);
  b.act = pause_some;
  run(&b);
  assert_int_equal(b.seen.running, 1);  // the other has the place and its own pages since plan 5
  assert_int_equal(b.seen.waiting, 0);
  assert_int_equal(b.seen.pages_used, PROMPT / MGL_PAGE_TOKENS + 1);
  assert_int_equal(b.counts[0], 5);
  assert_int_equal(b.counts[1], NEW);
  assert_false(mgl_engine_has_work(b.engine));
  assert_true(mgl_engine_knows(b.engine, 0));
  assert_false(mgl_engine_knows(b.engine, 1));
  mgl_engine_resume(b.engine, 0);
  mgl_engine_resume(b.engine, 0);
  assert_true(mgl_engine_has_work(b.engine));
  run(&b);
  assert_int_equal(b.counts[0], NEW);
  assert_memory_equal(b.tokens[0], alone.tokens[0], sizeof b.tokens[0]);
  assert_false(mgl_engine_knows(b.engine, 0));
  // One that waits can be paused too, and one that is paused be cancelled.
  b.act = NULL;
  uint32_t number = submit(&b, 2);
  mgl_engine_pause(b.engine, number);
  assert_false(mgl_engine_has_work(b.engine));
  mgl_engine_cancel(b.engine, number);
  assert_false(mgl_engine_knows(b.engine, number));
  mgl_engine_resume(b.engine, number);
  assert_false(mgl_engine_has_work(b.engine));
  close_bed(&b);
  close_bed(&alone);
}

// --- statistics ----------------------------------------------------------------------------------

static void statistics_add_up(void **state) {
  bed b;
  mgl_engine_statistics s;
  (void)state;
  open_bed(&b, 2, 0, MGL_MODE_MEGA);
  for (uint32_t i = 0; i < 3; i++) {
    (void)submit(&b, i);
  }
  mgl_engine_get_statistics(b.engine, &s);
  assert_int_equal(s.waiting, 3);
  assert_int_equal(s.iterations, 0);
  assert_int_equal(s.pages, 2 * CONTEXT / MGL_PAGE_TOKENS);
  run(&b);
  mgl_engine_get_statistics(b.engine, &s);
  assert_int_equal(s.prompt_tokens, 3 * PROMPT);
  assert_int_equal(s.decode_tokens, 3 * (NEW - 1));
  assert_true(s.iterations >= 2 * NEW && s.iterations <= 2 * NEW + 2);
  assert_true(s.planning_ns > 0 && s.planning_ns < s.total_ns);
  assert_int_equal(s.running + s.waiting + s.pages_used, 0);
  assert_in_range(s.pages_used_most, 2 * (PROMPT + NEW) / MGL_PAGE_TOKENS, s.pages);
  close_bed(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_hook_submits_and_cancels),
      cmocka_unit_test(an_engine_without_work_still_asks),
      cmocka_unit_test(a_paused_request_resumes_with_the_same_tokens),
      cmocka_unit_test(statistics_add_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
