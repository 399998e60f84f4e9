// The life of a request (the table in megalith.h), on the real engine: what was let go is not
// touched again, nothing is called once a wait says that the request is over, and callbacks may
// release. test_request_life.c tries every order of the same steps without an engine.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/alloc.h"
#include "unit/api/api_bed.h"

#ifdef MGL_TEST_SANITIZED
enum { CLIENTS = 8, REQUESTS_EACH = 250 };
#else
enum { CLIENTS = 8, REQUESTS_EACH = 2500 };
#endif

static void sleep_ms(uint32_t ms) {
  const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  (void)nanosleep(&pause, NULL);
}

// --- cancelled twice, while it enters, and released ----------------------------------------------

static void *cancel_twice(void *context) {
  megalith_engine *engine = context;
  for (uint32_t i = 0; i < REQUESTS_EACH; i++) {
    megalith_request *request =
        submit(engine, (megalith_request_options){.text = "Once", .max_new_tokens = 100});
    megalith_request_cancel(request);
    if (i % 3 == 0) {
      (void)sched_yield();
    }
    megalith_request_cancel(request);
    if (i % 7 == 0) {
      assert_true(megalith_request_wait(request, -1));
    }
    megalith_request_release(request);
  }
  return NULL;
}

static void cancelled_twice_and_released(void **state) {
  const int64_t live = mgl_alloc_live();
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  pthread_t threads[CLIENTS];
  (void)state;
  for (uint32_t i = 0; i < CLIENTS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, cancel_twice, engine), 0);
  }
  for (uint32_t i = 0; i < CLIENTS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  megalith_engine_destroy(engine);
  assert_int_equal(mgl_alloc_live(), live);
}

// --- the last call -------------------------------------------------------------------------------

typedef struct listener {
  atomic_bool in_last;   // the last call has begun
  atomic_bool returned;  // and is about to return
  uint32_t slow_ms;      // that the last call takes
  bool releases;         // the request, at its first call
  megalith_request *released;
  uint32_t calls, last_calls;
} listener;

static void listen(void *context, megalith_request *request, const megalith_output *output) {
  listener *l = context;
  l->calls++;
  if (l->releases && l->calls == 1) {
    l->released = request;
    megalith_request_release(request);
  }
  if (output->finish != MEGALITH_FINISH_NONE) {
    l->last_calls++;
    // Its own callback may see the result.
    assert_true(megalith_request_wait(request, -1));
    assert_non_null(megalith_request_result(request));
    atomic_store(&l->in_last, true);
    sleep_ms(l->slow_ms);
    atomic_store(&l->returned, true);
  }
}

static megalith_request *submit_to(megalith_engine *engine, listener *l) {
  return submit_question(engine, 3, (megalith_request_options){.on_output = listen, .context = l});
}

static void wait_until(const atomic_bool *flag) {
  for (uint32_t i = 0; i < 60000 && !atomic_load(flag); i++) {
    sleep_ms(1);
  }
  assert_true(atomic_load(flag));
}

// Each way to learn that a request is over: after it, the callback has returned.
static void nothing_is_called_after_a_wait(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  (void)state;
  for (int way = 0; way < 5; way++) {
    listener l = {.slow_ms = 50};
    megalith_request *request = submit_to(engine, &l);
    const megalith_output *output = NULL;
    switch (way) {
      case 0: assert_true(megalith_request_wait(request, -1)); break;
      case 1: do { output = megalith_request_next(request, -1);
        } while (output->finish == MEGALITH_FINISH_NONE);
        break;
      case 2:
        while (megalith_request_result(request) == NULL) {
          sleep_ms(1);
        }
        break;
      case 3:
        while (megalith_engine_has_work(engine)) {
          sleep_ms(1);
        }
        break;
      default:  // while the last call is going on
        wait_until(&l.in_last);
        assert_false(megalith_request_wait(request, 0));
        assert_false(megalith_request_wait(request, 1));
        assert_null(megalith_request_result(request));
        megalith_request_cancel(request);
        assert_true(megalith_request_wait(request, -1));
    }
    assert_true(atomic_load(&l.returned));
    assert_int_equal(l.last_calls, 1);
    check_answer(request, 3);
    megalith_request_release(request);
  }
  megalith_engine_destroy(engine);
}

static void an_end_comes_after_the_last_calls(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  listener l[3] = {{.slow_ms = 20}, {.slow_ms = 20}, {.slow_ms = 20, .releases = true}};
  (void)state;
  megalith_request *kept = submit_to(engine, &l[0]);
  megalith_request_release(submit_to(engine, &l[1]));
  (void)submit_to(engine, &l[2]);
  megalith_engine_destroy(engine);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(l[i].last_calls, 1);
    assert_true(atomic_load(&l[i].returned));
  }
  megalith_request_release(kept);
}

static void a_callback_may_release(void **state) {
  const int64_t live = mgl_alloc_live();
  (void)state;
  for (int background = 0; background < 2; background++) {
    megalith_engine *engine = create((megalith_engine_options){.background = background == 1});
    listener l = {.releases = true};
    const megalith_request *request = submit_to(engine, &l);
    if (background == 0) {
      run(engine);
    }
    wait_until(&l.returned);
    megalith_engine_destroy(engine);
    assert_ptr_equal(l.released, request);
    assert_int_equal(l.last_calls, 1);
    assert_true(l.calls <= 3);  // its own release cancels it
  }
  assert_int_equal(mgl_alloc_live(), live);
}

// --- threads that may not ------------------------------------------------------------------------

typedef struct meddler {
  megalith_engine *engine;
  megalith_request *other;
  uint32_t refused;
} meddler;

static void meddle(void *context, megalith_request *request, const megalith_output *output) {
  meddler *m = context;
  megalith_error error = {0};
  (void)request;
  (void)output;
  assert_int_equal(megalith_engine_step(m->engine, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "a callback cannot step or run"));
  assert_int_equal(megalith_engine_run(m->engine, &error), MEGALITH_ERROR_ARGUMENT);
  // Nothing would come while it waits, so it does not.
  assert_false(megalith_request_wait(m->other, -1));
  assert_null(megalith_request_next(m->other, -1));
  m->refused++;
}

static void *step_elsewhere(void *context) {
  megalith_error error = {0};
  assert_int_equal(megalith_engine_step(context, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "expected to be stepped and run by the thread that created"));
  assert_int_equal(megalith_engine_run(context, &error), MEGALITH_ERROR_ARGUMENT);
  return NULL;
}

static void only_its_thread_computes(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  pthread_t thread;
  (void)state;
  meddler m = {.engine = engine,
               .other = submit_question(engine, 1, (megalith_request_options){0})};
  megalith_request_pause(m.other);
  megalith_request *request =
      submit_question(engine, 2, (megalith_request_options){.on_output = meddle, .context = &m});
  assert_int_equal(pthread_create(&thread, NULL, step_elsewhere, engine), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_false(megalith_request_wait(request, -1));  // this thread computes
  assert_null(megalith_request_next(request, -1));
  run(engine);
  assert_true(m.refused > 2);
  check_answer(request, 2);
  megalith_request_resume(m.other);
  run(engine);
  check_answer(m.other, 1);
  megalith_request_release(request);
  megalith_request_release(m.other);
  megalith_engine_destroy(engine);
}

// --- what a cancellation gives back --------------------------------------------------------------

static megalith_statistics statistics_of(const megalith_engine *engine) {
  megalith_statistics s = {.size = sizeof s};
  assert_int_equal(megalith_engine_get_statistics(engine, &s, NULL), MEGALITH_OK);
  return s;
}

static void step(megalith_engine *engine) {
  megalith_error error = {0};
  if (megalith_engine_step(engine, &error) != MEGALITH_OK) {
    fail_msg("%s", error.text);
  }
}

static const megalith_request_options endless = {
    .text = "Once upon a time", .max_new_tokens = 400, .ignore_model_stops = true};

// Its KV memory is another's in the next iteration, and nobody's if there is no other.
static void a_cancellation_frees_kv_memory(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.sequences = 1, .kv_tokens = 512});
  megalith_request *first = submit(engine, endless);
  megalith_request *second = submit(engine, endless);
  (void)state;
  for (uint32_t i = 0; i < 40; i++) {
    step(engine);
  }
  uint32_t used = statistics_of(engine).pages_used;
  assert_true(used >= 3);
  assert_int_equal(statistics_of(engine).running, 1);
  assert_int_equal(statistics_of(engine).waiting, 1);
  megalith_request_cancel(first);
  step(engine);
  assert_true(megalith_request_wait(first, 0));
  assert_int_equal(statistics_of(engine).running, 1);  // the second one
  assert_int_equal(statistics_of(engine).waiting, 0);
  assert_in_range(statistics_of(engine).pages_used, 1, 2);
  assert_false(megalith_request_wait(second, 0));
  megalith_request_cancel(second);
  step(engine);
  assert_true(megalith_request_wait(second, 0));
  assert_int_equal(statistics_of(engine).running, 0);
  assert_int_equal(statistics_of(engine).pages_used, 0);
  megalith_request_release(first);
  megalith_request_release(second);
  megalith_engine_destroy(engine);
}

static void a_cancellation_in_the_background_too(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  megalith_request *request = submit(engine, endless);
  (void)state;
  assert_non_null(megalith_request_next(request, -1));
  megalith_request_cancel(request);
  assert_true(megalith_request_wait(request, -1));
  for (uint32_t i = 0; i < 10000 && statistics_of(engine).pages_used > 0; i++) {
    sleep_ms(1);
  }
  assert_int_equal(statistics_of(engine).pages_used, 0);
  assert_int_equal(statistics_of(engine).running, 0);
  megalith_request_release(request);
  megalith_engine_destroy(engine);
}

// Who steps only while there is work ends it.
static void a_paused_request_can_be_cancelled(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  (void)state;
  for (int steps = 0; steps < 2; steps++) {
    megalith_request *request = submit(engine, endless);
    for (int i = 0; i < steps; i++) {
      step(engine);
    }
    megalith_request_pause(request);
    while (megalith_engine_has_work(engine)) {
      step(engine);
    }
    assert_false(megalith_request_wait(request, 0));
    assert_int_equal(statistics_of(engine).paused, 1);
    assert_int_equal(statistics_of(engine).pages_used, 0);
    megalith_request_cancel(request);
    while (megalith_engine_has_work(engine)) {
      step(engine);
    }
    assert_true(megalith_request_wait(request, 0));
    assert_int_equal(statistics_of(engine).paused, 0);
    megalith_request_release(request);
  }
  megalith_engine_destroy(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cancelled_twice_and_released),
      cmocka_unit_test(nothing_is_called_after_a_wait),
      cmocka_unit_test(an_end_comes_after_the_last_calls),
      cmocka_unit_test(a_callback_may_release),
      cmocka_unit_test(only_its_thread_computes),
      cmocka_unit_test(a_cancellation_frees_kv_memory),
      cmocka_unit_test(a_cancellation_in_the_background_too),
      cmocka_unit_test(a_paused_request_can_be_cancelled),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
