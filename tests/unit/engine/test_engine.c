// The engine: requests in a batch give what each gives alone, whatever the chunks and the number of
// places; limits are checked; pages come back; allocation failures leak nothing.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "support/failing_allocations.h"
#include "unit/engine/small_engine.h"

enum { VOCAB = SMALL_ENGINE_VOCAB, CONTEXT = 128, REQUESTS = 12, MOST_NEW = 30 };

static mgl_runner *make_runner(uint32_t sequences, uint64_t pool_tokens) {
  return small_engine_runner(CONTEXT,
                             (mgl_build){.sequences = sequences, .pool_tokens = pool_tokens});
}

typedef struct results {
  int32_t tokens[REQUESTS][MOST_NEW];
  uint32_t counts[REQUESTS];
  mgl_finish_reason reasons[REQUESTS];
} results;

static bool collect(void *context, const mgl_generated_token *token) {
  results *r = context;
  uint32_t request = token->request;
  assert_true(request < REQUESTS);
  assert_int_equal(r->reasons[request], MGL_FINISH_NONE);  // nothing comes after the last token
  assert_true(r->counts[request] < MOST_NEW);
  r->tokens[request][r->counts[request]++] = token->token;
  r->reasons[request] = token->finish;
  return true;
}

// Request i: its own prompt, length, sampling and stop token.
static void submit(mgl_engine *engine, uint32_t i) {
  int32_t prompt[90];
  size_t count = 1 + i * 17 % 90;
  int32_t stop = (int32_t)(i * 31 % VOCAB);
  for (size_t j = 0; j < count; j++) {
    prompt[j] = (int32_t)((i * 101 + j * 37) % VOCAB);
  }
  mgl_request request = {
      .prompt = prompt,
      .prompt_count = count,
      .max_new_tokens = 5 + i * 7 % (MOST_NEW - 4),
      .sampling = {.temperature = i % 2 == 0 ? 0 : 1.2, .top_p = 0.95, .seed = i},
      .stop_ids = &stop,
      .stop_count = 1};
  uint32_t number = 0;
  mgl_error err = {0};
  if (mgl_engine_submit(engine, &request, &number, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
}

static void run_all(mgl_engine *engine, results *r) {
  mgl_error err = {0};
  uint32_t steps = 0;
  while (mgl_engine_has_work(engine)) {
    mgl_iteration stats;
    if (mgl_engine_step(engine, collect, r, &stats, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_true(stats.prompt_tokens + stats.decode_tokens > 0);
    assert_true(++steps < 10000);
  }
}

static void a_batch_gives_what_each_request_gives_alone(void **state) {
  (void)state;
  static results alone;
  mgl_error err = {0};
  for (uint32_t i = 0; i < REQUESTS; i++) {
    // A fresh engine numbers its only request 0; keep its results at i.
    static results one;
    memset(&one, 0, sizeof one);
    mgl_runner *runner = make_runner(1, 0);
    mgl_engine *engine = NULL;
    assert_int_equal(mgl_engine_create(runner, &(mgl_engine_options){0}, &engine, &err), MGL_OK);
    submit(engine, i);
    run_all(engine, &one);
    memcpy(alone.tokens[i], one.tokens[0], sizeof one.tokens[0]);
    alone.counts[i] = one.counts[0];
    alone.reasons[i] = one.reasons[0];
    mgl_engine_destroy(engine);
    mgl_runner_destroy(runner);
  }
  static const struct {
    uint32_t sequences, chunk;
    uint64_t pool;
  } ways[] = {{8, 0, 0}, {3, 1, 0}, {8, 7, 0}, {12, 64, 256}, {5, 16, 130}};
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
    static results batch;
    memset(&batch, 0, sizeof batch);
    mgl_runner *runner = make_runner(ways[w].sequences, ways[w].pool);
    mgl_engine *engine = NULL;
    mgl_engine_options options = {.chunk_tokens = ways[w].chunk};
    assert_int_equal(mgl_engine_create(runner, &options, &engine, &err), MGL_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) {
      submit(engine, i);
    }
    run_all(engine, &batch);
    for (uint32_t i = 0; i < REQUESTS; i++) {
      assert_int_equal(batch.counts[i], alone.counts[i]);
      assert_int_equal(batch.reasons[i], alone.reasons[i]);
      assert_memory_equal(batch.tokens[i], alone.tokens[i], alone.counts[i] * sizeof(int32_t));
    }
    mgl_engine_destroy(engine);
    mgl_runner_destroy(runner);
  }
}

static void cancelled_requests_free_their_pages(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_runner *runner = make_runner(2, 2 * CONTEXT);
  mgl_engine *engine = NULL;
  static results r;
  const mgl_engine_options options = {.chunk_tokens = 32};  // no prompt is done in two steps
  assert_int_equal(mgl_engine_create(runner, &options, &engine, &err), MGL_OK);
  for (int round = 0; round < 100; round++) {
    int32_t prompt[100] = {1, 2, 3};
    mgl_request request = {
        .prompt = prompt, .prompt_count = 100, .max_new_tokens = 28, .sampling = {.top_p = 1}};
    uint32_t numbers[3];
    for (int i = 0; i < 3; i++) {
      assert_int_equal(mgl_engine_submit(engine, &request, &numbers[i], &err), MGL_OK);
    }
    memset(&r, 0, sizeof r);
    // Two are admitted (all pages), one waits; cancel one running and the waiting one, then the
    // last.
    assert_int_equal(mgl_engine_step(engine, collect, &r, NULL, &err), MGL_OK);
    mgl_engine_cancel(engine, numbers[0]);
    mgl_engine_cancel(engine, numbers[2]);
    mgl_engine_cancel(engine, 12345678);
    assert_int_equal(mgl_engine_step(engine, collect, &r, NULL, &err), MGL_OK);
    mgl_engine_cancel(engine, numbers[1]);
    assert_false(mgl_engine_has_work(engine));
    assert_int_equal(r.counts[0] + r.counts[1] + r.counts[2], 0);
  }
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

static bool ignore(void *context, const mgl_generated_token *token) {
  (void)context;
  (void)token;
  return true;
}

static mgl_engine *make_engine(mgl_runner *runner, bool prefix_cache) {
  mgl_engine *engine = NULL;
  mgl_error err = {0};
  mgl_engine_options options = {.prefix_cache = prefix_cache};
  assert_int_equal(mgl_engine_create(runner, &options, &engine, &err), MGL_OK);
  return engine;
}

// A greedy request that nothing stops.
static uint32_t submit_prompt(mgl_engine *engine, const int32_t *prompt, size_t count,
                              uint32_t new_tokens, const char *salt) {
  mgl_request request = {.prompt = prompt,
                         .prompt_count = count,
                         .max_new_tokens = new_tokens,
                         .sampling = {.top_p = 1},
                         .salt = salt,
                         .salt_bytes = salt == NULL ? 0 : strlen(salt)};
  uint32_t number = 0;
  mgl_error err = {0};
  if (mgl_engine_submit(engine, &request, &number, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return number;
}

// A million requests come and go, among some that stay and run: what is allocated follows those
// that are there, and neither submission nor cancellation looks through the others.
static void a_million_cancelled_requests_leave_nothing(void **state) {
  (void)state;
  mgl_error err = {0};
#if defined(MGL_TEST_SANITIZED)
  const uint32_t rounds = 100, each = 100;
#else
  const uint32_t rounds = 100, each = 10000;
#endif
  mgl_runner *runner = make_runner(4, 0);
  mgl_engine *engine = make_engine(runner, true);
  const int32_t prompt[20] = {1, 2, 3};
  uint32_t *numbers = mgl_alloc(each * sizeof *numbers);
  int64_t live = 0;
  assert_non_null(numbers);
  for (uint32_t round = 0; round < rounds; round++) {
    uint32_t stays = submit_prompt(engine, prompt, 20, 3, NULL);
    for (uint32_t i = 0; i < each; i++) {
      numbers[i] = submit_prompt(engine, prompt, 1 + i % 20, 1 + i % 7, NULL);
    }
    assert_int_equal(mgl_engine_step(engine, ignore, NULL, NULL, &err), MGL_OK);
    for (uint32_t i = 0; i < each; i++) {
      mgl_engine_cancel(engine, numbers[i * 7919ull % each]);  // in no order
    }
    assert_true(mgl_engine_knows(engine, stays));
    assert_int_equal(mgl_engine_run(engine, ignore, NULL, NULL, &err), MGL_OK);
    assert_false(mgl_engine_knows(engine, stays));
    mgl_engine_statistics s;
    mgl_engine_get_statistics(engine, &s);
    assert_int_equal(s.running + s.waiting + s.pages_used, 0);
    live = round == 0 ? mgl_alloc_live() : live;
    assert_int_equal(mgl_alloc_live(), live);
  }
  mgl_free(numbers);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

static void paused_requests_go_on_where_they_were(void **state) {
  (void)state;
  mgl_error err = {0};
  static results alone, r;
  const int32_t prompt[20] = {5, 6, 7};
  mgl_runner *runner = make_runner(2, 0);
  for (int round = 0; round < 2; round++) {
    mgl_engine *engine = make_engine(runner, round == 1);
    results *to = round == 0 ? &alone : &r;
    memset(to, 0, sizeof *to);
    for (int i = 0; i < 3; i++) {
      submit_prompt(engine, prompt, 20 - (size_t)i, 10, NULL);
    }
    for (int step = 0; mgl_engine_has_work(engine); step++) {
      if (round == 1 && step == 4) {  // one that runs, and one that waits
        mgl_engine_pause(engine, 0);
        mgl_engine_pause(engine, 2);
        mgl_engine_pause(engine, 77);
      }
      assert_int_equal(mgl_engine_step(engine, collect, to, NULL, &err), MGL_OK);
      if (round == 1 && step == 4) {  // pages and place are free at once
        mgl_engine_statistics s;
        mgl_engine_get_statistics(engine, &s);
        assert_int_equal(s.running, 1);
        assert_int_equal(s.waiting, 0);
        assert_int_equal(s.pages_used, 2);
      }
    }
    if (round == 1) {
      assert_int_equal(r.counts[0], 4);
      assert_int_equal(r.counts[2], 0);
      mgl_engine_resume(engine, 2);
      mgl_engine_resume(engine, 0);
      mgl_engine_resume(engine, 0);
      mgl_engine_resume(engine, 1);  // has ended
      run_all(engine, to);
    }
    mgl_engine_destroy(engine);
  }
  assert_memory_equal(&alone, &r, sizeof r);
  mgl_runner_destroy(runner);
}

// Full pages of a prompt are computed once, under one salt.
static void prompts_share_pages_under_one_salt(void **state) {
  (void)state;
  mgl_error err = {0};
  static const struct {
    const char *salt;
    uint64_t hits;
  } cases[] = {{NULL, 0}, {NULL, 48}, {"a", 0}, {"b", 0}, {"a", 48}, {NULL, 48}};
  int32_t prompt[64];
  mgl_runner *runner = make_runner(2, 0);
  mgl_engine *engine = make_engine(runner, true);
  mgl_engine_statistics s = {0};
  for (int i = 0; i < 64; i++) {
    prompt[i] = i;
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint64_t hits = s.prefix_hit_tokens, computed = s.prompt_tokens;
    submit_prompt(engine, prompt, 64, 2, cases[i].salt);
    assert_int_equal(mgl_engine_run(engine, ignore, NULL, NULL, &err), MGL_OK);
    mgl_engine_get_statistics(engine, &s);
    assert_int_equal(s.prefix_hit_tokens - hits, cases[i].hits);  // the last page is computed
    assert_int_equal(s.prompt_tokens - computed, 64 - cases[i].hits);
  }
  assert_int_equal(s.prefix_lookup_tokens, 6 * 64);
  assert_int_equal(s.decode_tokens, 6);
  char salt[MGL_MAX_SALT_BYTES + 1] = {0};
  mgl_request request = {.prompt = prompt,
                         .prompt_count = 1,
                         .max_new_tokens = 1,
                         .sampling = {.top_p = 1},
                         .salt = salt,
                         .salt_bytes = sizeof salt};
  uint32_t number = 0;
  assert_int_equal(mgl_engine_submit(engine, &request, &number, &err), MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "at most 256 bytes, found 257"));
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

// A model that computes NaN, in both modes of a CPU: an error that names the request, and no token.
static void logits_that_are_not_finite_end_the_run(void **state) {
  (void)state;
  mgl_model_folder folder = {.config = small_engine_config(CONTEXT)};
  folder.config.rms_norm_eps = NAN;
  for (int mode = 0; mode <= MGL_MODE_EAGER; mode++) {
    static results r;
    memset(&r, 0, sizeof r);
    mgl_build options = {
        .threads = 2, .sequences = 4, .sequence_tokens = 32, .weights = MGL_WEIGHTS_DUMMY};
    mgl_runner *runner = NULL;
    mgl_engine *engine = NULL;
    mgl_error err = {0};
    assert_int_equal(mgl_runner_create(&folder, &options, &runner, &err), MGL_OK);
    mgl_engine_options engine_options = {.mode = (mgl_mode)mode};
    assert_int_equal(mgl_engine_create(runner, &engine_options, &engine, &err), MGL_OK);
    for (uint32_t i = 0; i < 2; i++) {
      int32_t prompt[] = {1, 2, 3, 4, 5};
      mgl_request request = {.prompt = prompt,
                             .prompt_count = 3 + i,
                             .max_new_tokens = 4,
                             .sampling = {.temperature = i, .top_p = 0.9}};
      uint32_t number = 0;
      assert_int_equal(mgl_engine_submit(engine, &request, &number, &err), MGL_OK);
    }
    // The first run ends with request 0, the next with request 1; then nothing is left.
    assert_int_equal(mgl_engine_run(engine, collect, NULL, &r, &err), MGL_ERR_FORMAT);
    assert_non_null(strstr(err.text, "not finite (NaN or infinity) at position 2 of request 0"));
    assert_true(mgl_engine_has_work(engine));
    assert_int_equal(mgl_engine_run(engine, collect, NULL, &r, &err), MGL_ERR_FORMAT);
    assert_non_null(strstr(err.text, "at position 3 of request 1"));
    assert_false(mgl_engine_has_work(engine));
    assert_int_equal(r.counts[0] + r.counts[1], 0);
    mgl_engine_destroy(engine);
    mgl_runner_destroy(runner);
  }
}

static void bad_requests_are_refused(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_runner *runner = make_runner(2, 0);
  mgl_engine *engine = NULL;
  assert_int_equal(mgl_engine_create(runner, &(mgl_engine_options){0}, &engine, &err), MGL_OK);
  int32_t prompt[CONTEXT + 1] = {0};
  int32_t bad_id[] = {5, VOCAB};
  int32_t negative[] = {-1};
  static const mgl_sampling greedy = {.top_p = 1};
  const struct {
    mgl_request request;
    const char *message;
  } bad[] = {
      {{.prompt = prompt, .prompt_count = 0, .max_new_tokens = 1, .sampling = greedy},
       "at least 1"},
      {{.prompt = prompt, .prompt_count = 1, .max_new_tokens = 0, .sampling = greedy},
       "at least 1"},
      {{.prompt = prompt, .prompt_count = CONTEXT, .max_new_tokens = 1, .sampling = greedy},
       "do not fit"},
      {{.prompt = prompt, .prompt_count = 1, .max_new_tokens = UINT32_MAX, .sampling = greedy},
       "do not fit"},
      {{.prompt = bad_id, .prompt_count = 2, .max_new_tokens = 1, .sampling = greedy}, "found 160"},
      {{.prompt = negative, .prompt_count = 1, .max_new_tokens = 1, .sampling = greedy},
       "found -1"},
      {{.prompt = prompt, .prompt_count = 1, .max_new_tokens = 1, .sampling = {.top_p = 2}},
       "top-p"},
      {{.prompt = prompt,
        .prompt_count = 1,
        .max_new_tokens = 1,
        .sampling = greedy,
        .stop_ids = prompt,
        .stop_count = 99},
       "at most 16"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    uint32_t number = 0;
    assert_true(mgl_engine_submit(engine, &bad[i].request, &number, &err) != MGL_OK);
    if (strstr(err.text, bad[i].message) == NULL) {
      fail_msg("expected \"...%s...\", found \"%s\"", bad[i].message, err.text);
    }
  }
  assert_false(mgl_engine_has_work(engine));
  assert_int_equal(mgl_engine_step(engine, collect, NULL, NULL, &err), MGL_ERR_ARGUMENT);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

static void bad_runner_options_are_refused(void **state) {
  (void)state;
  const struct {
    mgl_build options;
    const char *message;
  } bad[] = {
      {{.sequences = 1, .sequence_tokens = CONTEXT + 1}, "context is 128"},
      {{.sequences = 1025, .sequence_tokens = 8}, "1 to 1024 at once, found 1025"},
      {{.sequences = 1, .sequence_tokens = 8, .page_tokens = 24}, "128 or 256, found 24"},
      {{.sequences = 1, .sequence_tokens = 8, .page_tokens = 8}, "found 8"},
      {{.sequences = 1, .sequence_tokens = 8, .page_tokens = 512}, "found 512"},
      {{.sequences = 1, .sequence_tokens = 0}, "0 tokens"},
      {{.sequences = 1, .sequence_tokens = 8, .iteration_tokens = 2049},
       "1 to 2048 on the CPU, found 2049"},
      {{.sequences = 1, .sequence_tokens = 8, .logit_rows = 129}, "at most the 128 tokens"},
      {{.sequences = 1, .sequence_tokens = 8, .threads = 1000000000}, "found 1000000000"},
      {{.sequences = 1, .sequence_tokens = 8, .pool_tokens = UINT64_MAX / 2}, "pages"},
      {{.sequences = 1, .sequence_tokens = 8, .pool_tokens = UINT64_C(1) << 30}, "GiB"},
  };
  int64_t live = mgl_alloc_live();
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    mgl_model_folder folder = {.config = small_engine_config(CONTEXT)};
    mgl_build options = bad[i].options;
    mgl_runner *runner = NULL;
    mgl_error err = {0};
    options.weights = MGL_WEIGHTS_DUMMY;
    assert_true(mgl_runner_create(&folder, &options, &runner, &err) != MGL_OK);
    assert_null(runner);
    if (strstr(err.text, bad[i].message) == NULL) {
      fail_msg("expected \"...%s...\", found \"%s\"", bad[i].message, err.text);
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

// A runner, an engine and one request, with every allocation made to fail once.
static mgl_status run_once(void *context, mgl_error *err) {
  (void)context;
  mgl_model_folder folder = {.config = small_engine_config(CONTEXT)};
  mgl_build options = {
      .threads = 2, .sequences = 2, .sequence_tokens = 32, .weights = MGL_WEIGHTS_DUMMY};
  mgl_runner *runner = NULL;
  mgl_engine *engine = NULL;
  int32_t prompt[] = {1, 2, 3};
  mgl_request request = {.prompt = prompt,
                         .prompt_count = 3,
                         .max_new_tokens = 2,
                         .sampling = {.temperature = 1, .top_p = 0.9}};
  uint32_t number = 0;
  static results r;
  memset(&r, 0, sizeof r);
  mgl_status status = mgl_runner_create(&folder, &options, &runner, err);
  if (status == MGL_OK) {
    status = mgl_engine_create(runner, &(mgl_engine_options){0}, &engine, err);
  }
  if (status == MGL_OK) {
    status = mgl_engine_submit(engine, &request, &number, err);
  }
  while (status == MGL_OK && mgl_engine_has_work(engine)) {
    status = mgl_engine_step(engine, collect, &r, NULL, err);
  }
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
  return status;
}

static void allocation_failures_are_reported(void **state) {
  (void)state;
  assert_true(fail_each_allocation(run_once, NULL) > 50);
}

// --- what is asked of sampling -------------------------------------------------------------------

typedef struct heard {
  uint32_t request;
  uint32_t count;
  int32_t tokens[MOST_NEW];
  double logprobs[MOST_NEW];
  uint32_t top_counts[MOST_NEW];
  mgl_token_logprob top[MOST_NEW][MGL_MAX_TOP_LOGPROBS];
  mgl_finish_reason finish;
  uint32_t most;  // the callback wants no more tokens than these
} heard;

static bool hear(void *context, const mgl_generated_token *token) {
  heard *h = context;
  assert_int_equal(token->request, h->request);
  assert_int_equal(h->finish, MGL_FINISH_NONE);
  assert_true(h->count < h->most);
  h->tokens[h->count] = token->token;
  h->logprobs[h->count] = token->logprob;
  h->top_counts[h->count] = token->top_count;
  memcpy(h->top[h->count++], token->top, token->top_count * sizeof *token->top);
  h->finish = token->finish;
  return h->count < h->most;
}

static void generate(mgl_engine *engine, const mgl_request *like, heard *h) {
  static const int32_t prompt[] = {3, 14, 15, 92, 65, 35};
  mgl_request request = *like;
  mgl_error err = {0};
  uint32_t most = h->most;
  memset(h, 0, sizeof *h);
  h->most = most;
  request.prompt = prompt;
  request.prompt_count = 6;
  if (mgl_engine_submit(engine, &request, &h->request, &err) != MGL_OK ||
      mgl_engine_run(engine, hear, NULL, h, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_false(mgl_engine_has_work(engine));
}

// Log probabilities come with each token, the chosen one's is among the likeliest, and asking for
// them changes no token.
static void log_probabilities_come_with_tokens(mgl_engine *engine) {
  static heard plain, asked;
  mgl_request request = {.max_new_tokens = 20, .sampling = {.temperature = 0.8, .top_p = 1}};
  plain.most = asked.most = MOST_NEW;
  generate(engine, &request, &plain);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 20;
  generate(engine, &request, &asked);
  assert_memory_equal(plain.tokens, asked.tokens, sizeof plain.tokens);
  for (uint32_t i = 0; i < 20; i++) {
    double mass = 0;
    assert_true(isnan(plain.logprobs[i]) && plain.top_counts[i] == 0);
    assert_int_equal(asked.top_counts[i], 20);
    for (uint32_t j = 0; j < 20; j++) {
      mass += exp(asked.top[i][j].logprob);
      assert_true(j == 0 || asked.top[i][j].logprob <= asked.top[i][j - 1].logprob);
      if (asked.top[i][j].token == asked.tokens[i]) {
        assert_true(asked.top[i][j].logprob == asked.logprobs[i]);
      }
    }
    assert_true(mass <= 1 + 1e-6 && asked.logprobs[i] <= asked.top[i][0].logprob);
  }
}

static void penalties_change_what_is_generated(mgl_engine *engine) {
  static heard h;
  h.most = MOST_NEW;
  // As strong as it gets: nothing comes twice.
  mgl_request request = {
      .max_new_tokens = MOST_NEW,
      .sampling = {.top_p = 1, .presence_penalty = 2, .repetition_penalty = 100}};
  generate(engine, &request, &h);
  for (uint32_t i = 0; i < h.count; i++) {
    for (uint32_t j = 0; j < i; j++) {
      assert_int_not_equal(h.tokens[i], h.tokens[j]);
    }
  }
  // A bias decides alone.
  mgl_logit_bias bias = {.token = 77, .value = 100};
  request.sampling = (mgl_sampling){.temperature = 1, .top_p = 1, .biases = &bias, .bias_count = 1};
  generate(engine, &request, &h);
  for (uint32_t i = 0; i < h.count; i++) {
    assert_int_equal(h.tokens[i], 77);
  }
}

static void requests_end_when_they_should(mgl_engine *engine) {
  static heard h;
  h.most = MOST_NEW;
  mgl_request request = {.max_new_tokens = 20, .sampling = {.top_p = 1}};
  generate(engine, &request, &h);
  assert_true(h.count == 20 && h.finish == MGL_FINISH_LENGTH);
  int32_t stop = h.tokens[0];
  request.stop_ids = &stop;
  request.stop_count = 1;
  generate(engine, &request, &h);
  assert_true(h.count == 1 && h.finish == MGL_FINISH_STOP);
  request.sampling.min_tokens = 5;
  generate(engine, &request, &h);
  assert_true(h.count > 5);
  for (uint32_t i = 0; i < 5; i++) {
    assert_int_not_equal(h.tokens[i], stop);
  }
  request.stop_count = 0;
  h.most = 7;  // and when the callback says so
  generate(engine, &request, &h);
  assert_true(h.count == 7 && h.finish == MGL_FINISH_NONE);
  request.sampling.min_tokens = 21;
  mgl_error err = {0};
  static const int32_t prompt = 1;
  request.prompt = &prompt;
  request.prompt_count = 1;
  assert_int_equal(mgl_engine_submit(engine, &request, &h.request, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "min tokens"));
}

static void sampling_does_what_is_asked(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_runner *runner = make_runner(1, 0);
  mgl_engine *engine = NULL;
  assert_int_equal(mgl_engine_create(runner, &(mgl_engine_options){0}, &engine, &err), MGL_OK);
  log_probabilities_come_with_tokens(engine);
  penalties_change_what_is_generated(engine);
  requests_end_when_they_should(engine);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sampling_does_what_is_asked),
      cmocka_unit_test(a_batch_gives_what_each_request_gives_alone),
      cmocka_unit_test(cancelled_requests_free_their_pages),
      cmocka_unit_test(a_million_cancelled_requests_leave_nothing),
      cmocka_unit_test(paused_requests_go_on_where_they_were),
      cmocka_unit_test(prompts_share_pages_under_one_salt),
      cmocka_unit_test(logits_that_are_not_finite_end_the_run),
      cmocka_unit_test(bad_requests_are_refused),
      cmocka_unit_test(bad_runner_options_are_refused),
      cmocka_unit_test(allocation_failures_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
