// An engine that fails as a whole, or is destroyed, while requests of every state are there: each gets
// its one last call, later ones are refused, and nothing is left. The linker puts the two functions
// below in the place of the engine's (--wrap), since a sound engine does not fail on the CPU.
#include <stdatomic.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "unit/api/api_bed.h"

static atomic_bool fails;

mgl_status __real_mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                                 mgl_iteration_callback *on_iteration, void *context,
                                 mgl_error *err);
mgl_status __wrap_mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                                 mgl_iteration_callback *on_iteration, void *context,
                                 mgl_error *err);
mgl_status __real_mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                                  mgl_iteration *out, mgl_error *err);
mgl_status __wrap_mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                                  mgl_iteration *out, mgl_error *err);

mgl_status __wrap_mgl_engine_run(mgl_engine *engine, mgl_token_callback *on_token,
                                 mgl_iteration_callback *on_iteration, void *context,
                                 mgl_error *err) {
  return atomic_load(&fails) ? mgl_error_set(err, MGL_ERR_INTERNAL, "a task is stuck")
                             : __real_mgl_engine_run(engine, on_token, on_iteration, context, err);
}

mgl_status __wrap_mgl_engine_step(mgl_engine *engine, mgl_token_callback *on_token, void *context,
                                  mgl_iteration *out, mgl_error *err) {
  return atomic_load(&fails) ? mgl_error_set(err, MGL_ERR_INTERNAL, "a task is stuck")
                             : __real_mgl_engine_step(engine, on_token, context, out, err);
}

// -------------------------------------------------------------------------------------------------

typedef struct mourner {
  megalith_engine *engine;
  megalith_request *other;  // which it cancels, pauses and resumes in its last call
  const char *refusal;      // what a submission in the last call gets
  megalith_finish finish;
  uint32_t last_calls;
} mourner;

static void mourn(void *context, megalith_request *request, const megalith_output *output) {
  mourner *m = context;
  assert_int_equal(m->last_calls, 0);
  if (output->finish == MEGALITH_FINISH_NONE) {
    return;
  }
  megalith_error error = {0};
  const megalith_request_options again = {.size = sizeof again, .text = "x"};
  m->last_calls++;
  m->finish = output->finish;
  megalith_request_cancel(request);
  megalith_request_pause(m->other);
  megalith_request_cancel(m->other);
  megalith_request_resume(m->other);
  assert_int_not_equal(megalith_engine_submit(m->engine, &again, NULL, &error), MEGALITH_OK);
  assert_non_null(strstr(error.text, m->refusal));
}

enum { STATES = 4 };  // running, paused, a stop text has just ended it, not looked at yet

// Requests of all states, of which the first and the last have a mourner.
static void submit_all(megalith_engine *engine, mourner mourners[2],
                       megalith_request *requests[STATES], const char *refusal) {
  static const char *const stops[] = {"+"};
  const megalith_request_options endless = {
      .text = "Once", .max_new_tokens = 500, .ignore_model_stops = true};
  requests[1] = submit(engine, endless);
  megalith_request_pause(requests[1]);
  requests[2] = submit_question(
      engine, 3, (megalith_request_options){.stop_texts = stops, .stop_text_count = 1});
  for (size_t i = 0; i < 2; i++) {
    megalith_request_options mourned = endless;
    mourners[i] = (mourner){.engine = engine, .other = requests[1], .refusal = refusal};
    mourned.on_output = mourn;
    mourned.context = &mourners[i];
    if (i == 0) {
      requests[0] = submit(engine, mourned);
      while (megalith_request_result(requests[2]) == NULL) {
        assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
      }
    } else {
      requests[3] = submit(engine, mourned);
    }
  }
}

static void check_all(const mourner mourners[2], megalith_request *requests[STATES],
                      megalith_finish finish, const char *text) {
  for (size_t i = 0; i < STATES; i++) {
    assert_true(megalith_request_wait(requests[i], -1));
    const megalith_result *result = megalith_request_result(requests[i]);
    assert_int_equal(result->finish, i == 2 ? MEGALITH_FINISH_STOP : finish);
    assert_string_equal(result->error, i == 2 ? "" : text);
    megalith_request_cancel(requests[i]);  // of no effect
    megalith_request_pause(requests[i]);
  }
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(mourners[i].last_calls, 1);
    assert_int_equal(mourners[i].finish, finish);
  }
}

static void release_all(megalith_request *requests[STATES]) {
  for (size_t i = 0; i < STATES; i++) {
    megalith_request_release(requests[i]);
  }
}

static void a_failed_engine_ends_all_requests(void **state) {
  const int64_t live = mgl_alloc_live();
  (void)state;
  for (int stepped = 0; stepped < 2; stepped++) {
    megalith_engine *engine = create((megalith_engine_options){0});
    megalith_request *requests[STATES];
    mourner mourners[2];
    megalith_error error = {0};
    const megalith_request_options late = {.size = sizeof late, .text = "x"};
    atomic_store(&fails, false);
    submit_all(engine, mourners, requests, "the engine has failed: a task is stuck");
    atomic_store(&fails, true);
    megalith_status status =
        stepped == 1 ? megalith_engine_step(engine, &error) : megalith_engine_run(engine, &error);
    assert_int_equal(status, MEGALITH_ERROR_INTERNAL);
    assert_string_equal(error.text, "a task is stuck");
    assert_false(megalith_engine_has_work(engine));
    check_all(mourners, requests, MEGALITH_FINISH_FAILED, "a task is stuck");
    // It can only be destroyed.
    assert_int_equal(megalith_engine_step(engine, &error), MEGALITH_ERROR_INTERNAL);
    assert_string_equal(error.text, "the engine has failed: a task is stuck");
    assert_int_equal(megalith_engine_run(engine, &error), MEGALITH_ERROR_INTERNAL);
    assert_int_equal(megalith_engine_submit(engine, &late, NULL, &error), MEGALITH_ERROR_INTERNAL);
    assert_string_equal(error.text, "the engine has failed: a task is stuck");
    assert_false(megalith_engine_has_work(engine));
    if (stepped == 0) {
      release_all(requests);
      megalith_engine_destroy(engine);
    } else {
      megalith_engine_destroy(engine);
      release_all(requests);
    }
    assert_int_equal(mgl_alloc_live(), live);
  }
}

static void one_in_the_background_too(void **state) {
  const int64_t live = mgl_alloc_live();
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  const megalith_request_options late = {.size = sizeof late, .text = "x"};
  megalith_error error = {0};
  (void)state;
  atomic_store(&fails, true);
  megalith_request *request = submit_question(engine, 2, (megalith_request_options){0});
  assert_true(megalith_request_wait(request, -1));
  assert_int_equal(megalith_request_result(request)->finish, MEGALITH_FINISH_FAILED);
  assert_int_equal(megalith_request_result(request)->status, MEGALITH_ERROR_INTERNAL);
  assert_int_equal(megalith_engine_submit(engine, &late, NULL, &error), MEGALITH_ERROR_INTERNAL);
  megalith_engine_destroy(engine);
  megalith_request_release(request);
  assert_int_equal(mgl_alloc_live(), live);
}

static void an_end_cancels_all_requests(void **state) {
  const int64_t live = mgl_alloc_live();
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_request *requests[STATES];
  mourner mourners[2];
  (void)state;
  atomic_store(&fails, false);
  submit_all(engine, mourners, requests, "the engine is being destroyed");
  megalith_engine_destroy(engine);
  check_all(mourners, requests, MEGALITH_FINISH_CANCELLED, "");
  release_all(requests);
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_failed_engine_ends_all_requests),
      cmocka_unit_test(one_in_the_background_too),
      cmocka_unit_test(an_end_cancels_all_requests),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
