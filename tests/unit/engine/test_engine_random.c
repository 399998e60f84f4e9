// 500 random requests give, token for token, what each gives alone: with a tiny pool of KV pages
// (constant preemption) and a roomy one, with and without the prefix cache, for chunks of 1 to 144
// tokens in iterations of up to 600 (on the CPU, larger iterations give the same bits too), all at
// once or arriving while others run, with a third of them cancelled and some paused; half of them
// greedy, half sampled. A third of the 256 combinations, all with MGL_TEST_LONG; under a sanitizer
// some of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "unit/engine/small_engine.h"

enum { VOCAB = SMALL_ENGINE_VOCAB, CONTEXT = 208, REQUESTS = 500, MOST_NEW = 64, FAMILIES = 12 };
enum { TINY_POOL = CONTEXT + 16 };  // one request fills it

// How the requests are served.
typedef struct way {
  mgl_mode mode;
  uint32_t sequences, iteration_tokens, chunk_tokens, page_tokens;
  uint64_t pool_tokens;
  bool prefix_cache, arrive, cancel, pause;
} way;

typedef struct answer {
  int32_t tokens[MOST_NEW];
  uint32_t count;
  mgl_finish_reason reason;
} answer;

static answer alone[REQUESTS];

// The requests of a run, by the number that the engine gave them.
typedef struct world {
  mgl_engine *engine;
  const way *how;
  uint32_t random;
  uint32_t order[REQUESTS];     // in which they come
  uint32_t numbers[REQUESTS];   // of the engine, by request
  uint32_t requests[REQUESTS];  // the other way round
  uint32_t come;
  uint32_t cancel_at[REQUESTS];  // tokens after which a request is cancelled; UINT32_MAX: never
  bool cancelled[REQUESTS], paused[REQUESTS];
  answer answers[REQUESTS];
} world;

static world w;

static uint32_t next_random(uint32_t below) {
  w.random = w.random * 1664525u + 1013904223u;
  return (w.random >> 8) % below;
}

static uint32_t mix(uint32_t a, uint32_t b) {
  uint32_t x = a * 2654435761u ^ (b + 0x9E3779B9u) * 2246822519u;
  x ^= x >> 15;
  return x * 2654435761u >> 8;
}

// Request i is always the same. Prompts of a family begin alike.
static uint32_t submit(mgl_engine *engine, uint32_t i) {
  int32_t prompt[CONTEXT];
  size_t count = 1 + mix(i, 1) % (i % 25 == 0 ? 144 : i % 3 == 0 ? 64 : 20);
  size_t shared = mix(i, 2) % 60;
  int32_t stop = i % 4 == 0 ? (int32_t)(mix(i, 3) % VOCAB) : 0;
  for (size_t j = 0; j < count; j++) {
    uint32_t owner = j < shared ? i % FAMILIES : 1000 + i;
    prompt[j] = (int32_t)(mix(owner, 100 + (uint32_t)j) % VOCAB);
  }
  mgl_request request = {
      .prompt = prompt,
      .prompt_count = count,
      .max_new_tokens = MOST_NEW - mix(i, 4) % (i % 5 == 0 ? MOST_NEW : 16),
      .sampling = {.temperature = i % 2 == 0 ? 0 : 1.2, .top_p = 0.95, .top_k = 40, .seed = i},
      .stop_ids = &stop,
      .stop_count = 1};
  uint32_t number = 0;
  mgl_error err = {0};
  if (mgl_engine_submit(engine, &request, &number, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return number;
}

static bool collect(void *context, const mgl_generated_token *token) {
  (void)context;
  uint32_t request = w.requests[token->request];
  answer *a = &w.answers[request];
  assert_int_equal(a->reason, MGL_FINISH_NONE);
  assert_false(w.cancelled[request] || w.paused[request]);
  assert_true(a->count < MOST_NEW);
  a->tokens[a->count++] = token->token;
  a->reason = token->finish;
  return true;
}

static void come(void) {
  uint32_t request = w.order[w.come];
  w.numbers[request] = submit(w.engine, request);
  assert_int_equal(w.numbers[request], w.come);
  w.requests[w.come++] = request;
}

// Between iterations: some come, some are cancelled, paused or resumed.
static void stir(void *context) {
  (void)context;
  while (w.come < REQUESTS && (!w.how->arrive || next_random(3) == 0)) {
    come();
  }
  if (w.how->arrive && w.come < REQUESTS && !mgl_engine_has_work(w.engine)) {
    come();
  }
  for (uint32_t i = 0; i < w.come; i++) {
    uint32_t request = w.requests[i];
    if (w.answers[request].reason != MGL_FINISH_NONE || w.cancelled[request]) {
      continue;
    }
    if (w.answers[request].count >= w.cancel_at[request] && next_random(4) == 0) {
      mgl_engine_cancel(w.engine, i);
      w.cancelled[request] = true;
      w.paused[request] = false;
      assert_false(mgl_engine_knows(w.engine, i));
    } else if (w.paused[request] && next_random(10) == 0) {
      mgl_engine_resume(w.engine, i);
      w.paused[request] = false;
    } else if (!w.paused[request] && w.how->pause && next_random(300) == 0) {
      mgl_engine_pause(w.engine, i);
      w.paused[request] = true;
    }
  }
}

static mgl_runner *make_runner(const way *how) {
  return small_engine_runner(CONTEXT, (mgl_build){.sequences = how->sequences,
                                                  .iteration_tokens = how->iteration_tokens,
                                                  .page_tokens = how->page_tokens,
                                                  .pool_tokens = how->pool_tokens});
}

static void start(const way *how, uint32_t seed) {
  memset(&w, 0, sizeof w);
  w.how = how;
  w.random = seed;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    uint32_t at = how->arrive ? next_random(i + 1) : i;
    w.order[i] = w.order[at];
    w.order[at] = i;
    w.cancel_at[i] = how->cancel && i % 3 == 0 ? next_random(12) : UINT32_MAX;
  }
}

static void check_answers(void) {
  uint32_t cancelled = 0;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    const answer *a = &w.answers[i];
    cancelled += w.cancelled[i];
    if (!w.cancelled[i]) {
      assert_int_equal(a->count, alone[i].count);
      assert_int_equal(a->reason, alone[i].reason);
    }
    assert_true(a->count <= alone[i].count);
    assert_memory_equal(a->tokens, alone[i].tokens, a->count * sizeof *a->tokens);
  }
  assert_in_range(cancelled, w.how->cancel ? REQUESTS / 6 : 0,
                  w.how->cancel ? REQUESTS / 3 + 1 : 0);
}

static void run_way(const way *how, uint32_t seed) {
  mgl_error err = {0};
  mgl_engine_options options = {.mode = how->mode,
                                .chunk_tokens = how->chunk_tokens,
                                .prefix_cache = how->prefix_cache,
                                .before_plan = stir};
  mgl_runner *runner = make_runner(how);
  start(how, seed);
  assert_int_equal(mgl_engine_create(runner, &options, &w.engine, &err), MGL_OK);
  stir(NULL);
  bool left = true;
  for (uint32_t runs = 0; left; runs++) {
    assert_true(runs < 10000);
    if (mgl_engine_run(w.engine, collect, NULL, NULL, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    stir(NULL);  // those that are left are paused
    left = w.come < REQUESTS || mgl_engine_has_work(w.engine);
    for (uint32_t i = 0; i < REQUESTS; i++) {
      left = left || w.paused[i];
    }
  }
  check_answers();
  mgl_engine_statistics s;
  mgl_engine_get_statistics(w.engine, &s);
  assert_int_equal(s.pages_used + s.running + s.waiting, 0);
  assert_true(s.planning_ns < s.total_ns && s.pages_used_most <= s.pages);
  assert_true((s.prefix_hit_tokens > 0) == how->prefix_cache);
  assert_true(s.preemptions >= 10 || how->pool_tokens > TINY_POOL);
  print_message(
      "%s, %3u sequences, iterations of %2u, chunks of %2u, pages of %2u, pool %5u%s%s%s: "
      "%llu iterations, %llu preemptions, %llu of %llu tokens found\n",
      mgl_mode_name(how->mode), how->sequences, how->iteration_tokens, how->chunk_tokens,
      how->page_tokens, (unsigned)how->pool_tokens, how->arrive ? ", arriving" : "",
      how->cancel ? ", cancelled" : "", how->pause ? ", paused" : "",
      (unsigned long long)s.iterations, (unsigned long long)s.preemptions,
      (unsigned long long)s.prefix_hit_tokens, (unsigned long long)s.prefix_lookup_tokens);
  mgl_engine_destroy(w.engine);
  mgl_runner_destroy(runner);
}

// Each request on its own, one after the other.
static int compute_alone(void **state) {
  (void)state;
  static const way one = {.sequences = 1, .page_tokens = 16};
  mgl_error err = {0};
  mgl_runner *runner = make_runner(&one);
  start(&one, 1);
  assert_int_equal(mgl_engine_create(runner, &(mgl_engine_options){0}, &w.engine, &err), MGL_OK);
  while (w.come < REQUESTS) {
    come();
    assert_int_equal(mgl_engine_run(w.engine, collect, NULL, NULL, &err), MGL_OK);
  }
  memcpy(alone, w.answers, sizeof alone);
  mgl_engine_destroy(w.engine);
  mgl_runner_destroy(runner);
  return 0;
}

static void every_way_gives_what_each_request_gives_alone(void **state) {
  (void)state;
  static const uint32_t chunks[] = {1, 2, 5, 16, 31, 64, 100, 0};
#if defined(MGL_TEST_SANITIZED)
  const uint32_t stride = getenv("MGL_TEST_LONG") != NULL ? 5 : 37;
#else
  // Of three in a row one: every two of the properties below meet in each of their values.
  const uint32_t stride = getenv("MGL_TEST_LONG") != NULL ? 1 : 3;
#endif
  for (uint32_t i = 0; i < 8 * 32; i += stride) {
    bool tiny = i / 8 & 1;
    way how = {.mode = i % 5 == 0 ? MGL_MODE_EAGER : MGL_MODE_MEGA,
               .chunk_tokens = chunks[i % 8],
               .prefix_cache = i / 16 & 1,
               .arrive = i / 32 & 1,
               .cancel = i / 64 & 1,
               .pause = i / 128 & 1,
               .page_tokens = i % 7 == 0 ? 32 : 16,
               .iteration_tokens = i % 8 >= 6   ? 600
                                   : i % 4 == 0 ? 23
                                                : 64};
    how.sequences = tiny ? 40 : i / 3 % 3 == 0 ? 100 : 20;
    how.pool_tokens = tiny ? TINY_POOL : how.sequences * 40;
    run_way(&how, 7 + i);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_way_gives_what_each_request_gives_alone),
  };
  return cmocka_run_group_tests(tests, compute_alone, NULL);
}
