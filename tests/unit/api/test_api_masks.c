// Masks that are late: whoever has no grammar never waits for one, also who comes while nothing else
// is there; whoever waits says the same in the end. The linker puts a function of this test in the
// place of the one that makes masks (--wrap): it waits until the test lets it go, or for a while.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "grammar/mask.h"
#include "unit/api/api_bed.h"

enum { PATIENCE_MS = 20000, PAUSE_NS = 50 * 1000 * 1000, LATE_NS = 3 * 1000 * 1000, PLAIN = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_held;         // under the lock: no mask gets ready
static uint32_t held_count;  // under the lock: masks that have waited for that
static atomic_bool is_late;  // each mask takes longer than an engine's patience
static atomic_uint late_count;

mgl_status __real_mgl_mask_make(mgl_mask_maker *maker, const mgl_matcher *matcher, uint64_t *mask,
                                mgl_error *err);
mgl_status __wrap_mgl_mask_make(mgl_mask_maker *maker, const mgl_matcher *matcher, uint64_t *mask,
                                mgl_error *err);

mgl_status __wrap_mgl_mask_make(mgl_mask_maker *maker, const mgl_matcher *matcher, uint64_t *mask,
                                mgl_error *err) {
  (void)pthread_mutex_lock(&lock);
  held_count += is_held ? 1 : 0;
  (void)pthread_cond_broadcast(&changed);
  while (is_held) {
    (void)pthread_cond_wait(&changed, &lock);
  }
  (void)pthread_mutex_unlock(&lock);
  if (atomic_load(&is_late)) {
    const struct timespec late = {.tv_nsec = LATE_NS};
    (void)nanosleep(&late, NULL);
    atomic_fetch_add(&late_count, 1);
  }
  return __real_mgl_mask_make(maker, matcher, mask, err);
}

static void hold(bool hold_them) {
  (void)pthread_mutex_lock(&lock);
  is_held = hold_them;
  held_count = 0;
  (void)pthread_cond_broadcast(&changed);
  (void)pthread_mutex_unlock(&lock);
}

// Until a mask is held, and the engine has had time to wait for it.
static void wait_for_held(void) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  (void)pthread_mutex_lock(&lock);
  while (held_count == 0) {
    (void)pthread_cond_wait(&changed, &lock);
  }
  (void)pthread_mutex_unlock(&lock);
  (void)nanosleep(&pause, NULL);
}

// -------------------------------------------------------------------------------------------------

static megalith_engine *create_background(void) {
  return create((megalith_engine_options){.background = true});
}

static megalith_request *submit_constrained(megalith_engine *engine) {
  static const char schema[] =
      "{\"properties\":{\"sum\":{\"type\":\"integer\"},\"sure\":{\"type\":\"boolean\"}},"
      "\"required\":[\"sum\",\"sure\"],\"additionalProperties\":false}";
  const megalith_grammar_options how = {
      .size = sizeof how, .kind = MEGALITH_GRAMMAR_JSON_SCHEMA, .text = schema};
  megalith_error error = {0};
  megalith_grammar *grammar = NULL;
  if (megalith_grammar_create(model, &how, &grammar, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
  megalith_request *request = submit(
      engine,
      (megalith_request_options){.text = "12 + 7:", .max_new_tokens = 60, .grammar = grammar});
  megalith_grammar_release(grammar);
  return request;
}

static void expect_end(megalith_request *request) {
  if (!megalith_request_wait(request, PATIENCE_MS)) {
    hold(false);
    fail_msg("a request waited for the mask of another one");
  }
}

// What the constrained request says when no mask is late.
static void find_text(char text[200]) {
  megalith_engine *engine = create_background();
  megalith_request *request = submit_constrained(engine);
  expect_end(request);
  (void)snprintf(text, 200, "%s", megalith_request_result(request)->text);
  assert_non_null(strstr(text, "\"sum\""));
  megalith_request_release(request);
  megalith_engine_destroy(engine);
}

static void check_constrained(megalith_request *request, const char *expected) {
  expect_end(request);
  assert_string_equal(expected, megalith_request_result(request)->text);
  megalith_request_release(request);
}

// --- tests ---------------------------------------------------------------------------------------

static void others_end_before_the_mask_is_there(void **state) {
  char expected[200];
  megalith_request *plain[PLAIN];
  (void)state;
  find_text(expected);
  megalith_engine *engine = create_background();
  hold(true);
  for (uint32_t i = 0; i < PLAIN / 2; i++) {
    plain[i] = submit_question(engine, i, (megalith_request_options){0});
  }
  megalith_request *constrained = submit_constrained(engine);
  for (uint32_t i = PLAIN / 2; i < PLAIN; i++) {
    plain[i] = submit_question(engine, i, (megalith_request_options){0});
  }
  for (uint32_t i = 0; i < PLAIN; i++) {
    expect_end(plain[i]);
    check_answer(plain[i], i);
    megalith_request_release(plain[i]);
  }
  assert_null(megalith_request_result(constrained));
  hold(false);
  check_constrained(constrained, expected);
  megalith_engine_destroy(engine);
}

// While the engine has nothing but a request that waits.
static void newcomers_do_not_wait(void **state) {
  char expected[200];
  (void)state;
  find_text(expected);
  megalith_engine *engine = create_background();
  hold(true);
  megalith_request *constrained = submit_constrained(engine);
  megalith_request *cancelled = submit_constrained(engine);
  wait_for_held();
  megalith_request *plain = submit_question(engine, 1, (megalith_request_options){0});
  expect_end(plain);
  check_answer(plain, 1);
  megalith_request_cancel(cancelled);
  expect_end(cancelled);
  assert_int_equal(MEGALITH_FINISH_CANCELLED, megalith_request_result(cancelled)->finish);
  assert_null(megalith_request_result(constrained));
  hold(false);
  check_constrained(constrained, expected);
  megalith_request_release(plain);
  megalith_request_release(cancelled);
  megalith_engine_destroy(engine);
}

// A cancelled request whose mask is just being made, and an engine that ends then.
static void engines_end_while_masks_are_made(void **state) {
  (void)state;
  megalith_engine *engine = create_background();
  hold(true);
  megalith_request *constrained = submit_constrained(engine);
  wait_for_held();
  megalith_request_cancel(constrained);
  expect_end(constrained);
  megalith_request_release(constrained);
  constrained = submit_constrained(engine);
  hold(false);
  megalith_engine_destroy(engine);
  assert_non_null(megalith_request_result(constrained));
  megalith_request_release(constrained);
}

static void late_masks_change_nothing(void **state) {
  char expected[200];
  megalith_request *constrained[PLAIN];
  megalith_request *plain[PLAIN];
  (void)state;
  find_text(expected);
  megalith_engine *engine = create_background();
  atomic_store(&is_late, true);
  for (uint32_t i = 0; i < PLAIN; i++) {
    constrained[i] = submit_constrained(engine);
    plain[i] = submit_question(engine, i, (megalith_request_options){0});
  }
  for (uint32_t i = 0; i < PLAIN; i++) {
    expect_end(plain[i]);
    check_answer(plain[i], i);
    megalith_request_release(plain[i]);
    check_constrained(constrained[i], expected);
  }
  atomic_store(&is_late, false);
  assert_true(atomic_load(&late_count) >= PLAIN * 5);
  megalith_engine_destroy(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(others_end_before_the_mask_is_there),
      cmocka_unit_test(newcomers_do_not_wait),
      cmocka_unit_test(engines_end_while_masks_are_made),
      cmocka_unit_test(late_masks_change_nothing),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
