// Memory stays flat: requests that are submitted, cancelled twice and released, by several threads
// at once, leave no allocation, and the process does not grow. 10^6 of them with MGL_TEST_LONG (10^5
// where they are sanitized).
#include <pthread.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "unit/api/api_bed.h"

#ifdef MGL_TEST_SANITIZED
enum { REQUESTS = 4000, LONG_REQUESTS = 100000 };
#else
enum { REQUESTS = 40000, LONG_REQUESTS = 1000000 };
#endif

enum {
  THREADS = 4,
  ROUND = 64,  // that a thread submits before it waits for the last of them
  // After a tenth of all, when the engine and the C library's heaps have what they need, the process
  // may grow so far. A request that is not freed takes at least 1 KiB.
  MOST_GROWTH = 4 << 20,
};

typedef struct client {
  megalith_engine *engine;
  uint32_t requests;
  pthread_t thread;
} client;

static void *be_client(void *context) {
  const client *c = context;
  for (uint32_t i = 0; i < c->requests; i++) {
    megalith_request *request =
        submit(c->engine, (megalith_request_options){.text = "Once upon", .max_new_tokens = 400});
    megalith_request_cancel(request);
    megalith_request_cancel(request);
    if (i % ROUND == ROUND - 1) {
      assert_true(megalith_request_wait(request, -1));
    }
    megalith_request_release(request);
  }
  return NULL;
}

static void cancel_many(megalith_engine *engine, uint32_t requests) {
  client clients[THREADS];
  for (uint32_t i = 0; i < THREADS; i++) {
    clients[i] = (client){.engine = engine, .requests = requests / THREADS};
    assert_int_equal(pthread_create(&clients[i].thread, NULL, be_client, &clients[i]), 0);
  }
  for (uint32_t i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
  }
  // One that is computed makes the engine's list of requests, and comes after all others.
  megalith_request *last = submit_question(engine, 5, (megalith_request_options){0});
  assert_true(megalith_request_wait(last, -1));
  check_answer(last, 5);
  megalith_request_release(last);
}

// Requests that are over are freed a moment later.
static void wait_for_live(int64_t most) {
  for (uint32_t i = 0; i < 10000 && mgl_alloc_live() > most; i++) {
    (void)usleep(1000);
  }
  assert_true(mgl_alloc_live() <= most);
}

static int64_t resident_bytes(void) {
  long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%*d %lld", &pages), 1);
  assert_int_equal(fclose(file), 0);
  return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

static void cancelled_requests_leave_no_memory(void **state) {
  const uint32_t requests = getenv("MGL_TEST_LONG") != NULL ? LONG_REQUESTS : REQUESTS;
  const int64_t live_before = mgl_alloc_live();
  megalith_engine *engine = create((megalith_engine_options){.background = true});
  (void)state;
  const int64_t live = mgl_alloc_live() + 1;  // the engine's list of requests
  cancel_many(engine, requests / 10);
  wait_for_live(live);
  const int64_t resident = resident_bytes();
  const uint64_t start_ns = mgl_clock_ns();
  cancel_many(engine, requests - requests / 10);
  const double seconds = (double)(mgl_clock_ns() - start_ns) / 1e9;
  wait_for_live(live);
  const int64_t grown = resident_bytes() - resident;
  (void)printf(
      "%u requests cancelled twice and released, %.0f a second: %lld allocations before, "
      "%lld after; resident %.1f MiB, grown by %.2f MiB\n",
      requests, (requests - requests / 10) / seconds, (long long)live, (long long)mgl_alloc_live(),
      (double)resident / 0x1p20, (double)grown / 0x1p20);
#ifdef MGL_TEST_SANITIZED
  (void)printf("skipped: the resident size, which is the sanitizer's here\n");
#else
  assert_true(grown <= MOST_GROWTH);
#endif
  megalith_engine_destroy(engine);
  assert_int_equal(mgl_alloc_live(), live_before);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cancelled_requests_leave_no_memory)};
  return cmocka_run_group_tests(tests, open_model, close_model);
}
