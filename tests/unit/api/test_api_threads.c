// The public API from many threads, and with an engine in the background: requests give what they
// give alone, outlive their engine, and leave nothing when they are let go.
#include <pthread.h>
#include <time.h>

#include "base/alloc.h"
#include "unit/api/api_bed.h"

#ifdef MGL_TEST_SANITIZED
enum { CANCELS = 500, CANCEL_ROUND = 100, THREADS = 4, REQUESTS_EACH = 6 };
#else
enum { CANCELS = 20000, CANCEL_ROUND = 2000, THREADS = 8, REQUESTS_EACH = 16 };
#endif

typedef struct client {
  megalith_engine *engine;
  uint32_t index;
  uint32_t cancelled;
  pthread_t thread;
} client;

// Submits, streams, cancels, pauses and resumes.
static void *be_client(void *argument) {
  client *c = argument;
  for (uint32_t k = 0; k < REQUESTS_EACH; k++) {
    uint32_t i = c->index * REQUESTS_EACH + k;
    megalith_request *request =
        submit_question(c->engine, i, (megalith_request_options){.max_new_tokens = 64});
    if (k % 4 == 1) {
      megalith_request_pause(request);
      megalith_request_resume(request);
    }
    if (k % 4 == 2) {
      (void)megalith_request_next(request, -1);
      megalith_request_pause(request);
      (void)megalith_request_next(request, 1);
      megalith_request_resume(request);
    }
    if (k % 4 == 3) {
      (void)megalith_request_next(request, (int)(k % 3));
      megalith_request_cancel(request);
    }
    assert_true(megalith_request_wait(request, -1));
    if (megalith_request_result(request)->finish == MEGALITH_FINISH_CANCELLED) {
      assert_int_equal(k % 4, 3);
      nothing_more_than_the_answer(request, i);
      c->cancelled++;
    } else {
      check_answer(request, i);
    }
    megalith_request_release(request);
  }
  return NULL;
}

static void be_clients(megalith_engine *engine, client clients[THREADS]) {
  for (uint32_t i = 0; i < THREADS; i++) {
    clients[i] = (client){.engine = engine, .index = i};
    assert_int_equal(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]), 0);
  }
}

static void many_threads_use_an_engine_in_the_background(void **state) {
  // Places and pages for a few only, so that requests wait for each other.
  megalith_engine *engine =
      create((megalith_engine_options){.background = true, .sequences = 6, .kv_tokens = 1024});
  megalith_error error = {0};
  client clients[THREADS];
  (void)state;
  be_clients(engine, clients);
  for (uint32_t i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
  }
  assert_int_equal(megalith_engine_run(engine, &error), MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "computes in the background"));
  assert_int_equal(megalith_engine_step(engine, &error), MEGALITH_ERROR_ARGUMENT);
  megalith_statistics statistics = {.size = sizeof statistics};
  assert_int_equal(megalith_engine_get_statistics(engine, &statistics, &error), MEGALITH_OK);
  assert_true(statistics.iterations > 20 && statistics.prompt_tokens > 0);
  assert_true(statistics.generated_tokens > 0 && statistics.total_ns > statistics.planning_ns);
  assert_int_equal(statistics.pages, 64);
  assert_true(statistics.pages_used_most > 0 && statistics.pages_used_most <= 64);
  assert_int_equal(statistics.paused, 0);
  megalith_engine_destroy(engine);
}

static void other_threads_submit_while_one_runs(void **state) {
  megalith_engine *engine = create((megalith_engine_options){0});
  client clients[THREADS];
  (void)state;
  be_clients(engine, clients);
  for (uint32_t i = 0; i < THREADS; i++) {
    // The others' requests end only because this thread computes.
    while (pthread_tryjoin_np(clients[i].thread, NULL) != 0) {
      run(engine);
    }
  }
  megalith_engine_destroy(engine);
}

static void requests_outlive_their_engine(void **state) {
  for (int background = 0; background < 2; background++) {
    megalith_engine *engine = create((megalith_engine_options){.background = background == 1});
    const megalith_request_options endless = {
        .text = "Once", .max_new_tokens = 500, .ignore_model_stops = true};
    (void)state;
    megalith_request *requests[3] = {submit(engine, endless), submit(engine, endless),
                                     submit(engine, endless)};
    megalith_request_pause(requests[1]);
    if (background == 0) {
      assert_int_equal(megalith_engine_step(engine, NULL), MEGALITH_OK);
    } else {
      assert_non_null(megalith_request_next(requests[0], -1));
    }
    megalith_engine_destroy(engine);
    for (size_t i = 0; i < 3; i++) {
      assert_true(megalith_request_wait(requests[i], -1));
      assert_int_equal(megalith_request_result(requests[i])->finish, MEGALITH_FINISH_CANCELLED);
      const megalith_output *output = NULL;
      int32_t last = 0;
      while ((output = megalith_request_next(requests[i], -1)) != NULL) {
        last = output->token;
      }
      assert_int_equal(last, -1);
      megalith_request_cancel(requests[i]);  // of no effect
      megalith_request_pause(requests[i]);
      megalith_request_release(requests[i]);
    }
  }
}

// Waits until no more than so many allocations live.
static void wait_for_live(int64_t most) {
  const struct timespec pause = {.tv_nsec = 1000000};
  for (uint32_t i = 0; i < 60000 && mgl_alloc_live() > most; i++) {
    (void)nanosleep(&pause, NULL);
  }
  assert_true(mgl_alloc_live() <= most);
}

// How many wait in the inbox at any moment is a matter of how much of the processors the engine's
// thread gets, so what they leave is looked at when they have all been let go.
static void requests_may_be_released_at_any_time(void **state) {
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  const uint32_t rounds = (getenv("MGL_TEST_LONG") != NULL ? 50u : 1u) * CANCELS / CANCEL_ROUND;
  const int64_t live = mgl_alloc_live();
  (void)state;
  for (uint32_t i = 0; i < rounds; i++) {
    for (uint32_t j = 0; j < CANCEL_ROUND; j++) {
      megalith_request *request =
          submit(engine, (megalith_request_options){.text = "Once upon", .max_new_tokens = 400});
      if (j % 16 == 0) {
        (void)megalith_request_next(request, 5);
      }
      megalith_request_release(request);
    }
    megalith_request *last = submit_question(engine, 5, (megalith_request_options){0});
    assert_true(megalith_request_wait(last, -1));
    check_answer(last, 5);
    megalith_request_release(last);
    wait_for_live(live + 1);  // the list of requests that the engine has
  }
  megalith_engine_destroy(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_threads_use_an_engine_in_the_background),
      cmocka_unit_test(other_threads_submit_while_one_runs),
      cmocka_unit_test(requests_outlive_their_engine),
      cmocka_unit_test(requests_may_be_released_at_any_time),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
