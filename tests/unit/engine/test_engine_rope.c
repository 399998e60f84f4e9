// Ropes that depend on a sequence's length, through the whole engine: what is generated does not
// depend on the cache, on chunks, or on what else runs, and a longrope sequence that outgrows its
// original context goes on as if it had been a long prompt.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "small_engine.h"

enum { CONTEXT = 128, ORIGINAL = 50, PROMPT = 40, NEW = 30, TOTAL = PROMPT + NEW, OTHERS = 3 };

// The tokens and log probabilities of one request.
typedef struct answer {
  uint32_t request, count;
  int32_t tokens[NEW];
  double logprobs[NEW];
} answer;

static bool hear(void *context, const mgl_generated_token *token) {
  answer *a = context;
  if (token->request == a->request) {
    a->tokens[a->count] = token->token;
    a->logprobs[a->count++] = token->logprob;
  }
  return true;
}

static mgl_runner *make_runner(mgl_rope_kind kind) {
  mgl_model_folder folder = {.config = small_engine_config(CONTEXT)};
  mgl_rope *rope = &folder.config.rope;
  *rope = (mgl_rope){.kind = kind, .theta = 1e4, .factor = 8, .original_context = ORIGINAL};
  for (int i = 0; i < MGL_MAX_HEAD_DIM / 2; i++) {
    rope->short_factors[i] = 1;
    rope->long_factors[i] = (float)(2 + i);
  }
  mgl_build options = {.threads = 2,
                       .iteration_tokens = 64,
                       .sequences = OTHERS + 1,
                       .sequence_tokens = CONTEXT,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .seed = 3};
  mgl_runner *runner = NULL;
  MUST(mgl_runner_create(&folder, &options, &runner, &err));
  return runner;
}

static mgl_engine *make_engine(mgl_runner *runner, mgl_mode mode, bool cache, uint32_t chunk) {
  mgl_engine *engine = NULL;
  MUST(mgl_engine_create(
      runner, &(mgl_engine_options){.mode = mode, .prefix_cache = cache, .chunk_tokens = chunk},
      &engine, &err));
  return engine;
}

static uint32_t submit(mgl_engine *engine, const int32_t *prompt, uint32_t count, uint32_t most) {
  const mgl_request request = {.prompt = prompt,
                               .prompt_count = count,
                               .max_new_tokens = most,
                               .sampling = {.temperature = 0.9, .top_p = 1, .logprobs = true}};
  uint32_t number = 0;
  MUST(mgl_engine_submit(engine, &request, &number, &err));
  return number;
}

static answer run_one(mgl_engine *engine, const int32_t *prompt, uint32_t count, uint32_t most) {
  answer a = {0};
  a.request = submit(engine, prompt, count, most);
  MUST(mgl_engine_run(engine, hear, NULL, &a, &err));
  assert_int_equal(a.count, most);
  return a;
}

static void fill_prompt(int32_t *out, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    out[i] = (int32_t)((i * 37 + 11) % SMALL_ENGINE_VOCAB);
  }
}

static void assert_same(const answer *a, const answer *b) {
  assert_int_equal(a->count, b->count);
  assert_memory_equal(a->tokens, b->tokens, a->count * sizeof *a->tokens);
  assert_memory_equal(a->logprobs, b->logprobs, a->count * sizeof *a->logprobs);
}

// Each token behind the switch, and before it, is the one that a prompt of all tokens before it
// gets: the same bits.
static void longrope_begins_again_beyond_its_context(void **state) {
  (void)state;
  for (int mode = 0; mode < 2; mode++) {
    mgl_runner *runner = make_runner(MGL_ROPE_LONGROPE);
    mgl_engine *engine = make_engine(runner, mode ? MGL_MODE_EAGER : MGL_MODE_MEGA, false, 0);
    int32_t tokens[TOTAL];
    fill_prompt(tokens, PROMPT);
    answer whole = run_one(engine, tokens, PROMPT, NEW);
    memcpy(tokens + PROMPT, whole.tokens, sizeof whole.tokens);
    for (uint32_t i = 0; i < NEW; i++) {
      answer next = run_one(engine, tokens, PROMPT + i, 1);
      assert_int_equal(next.tokens[0], whole.tokens[i]);
      assert_memory_equal(&next.logprobs[0], &whole.logprobs[i], sizeof(double));
    }
    mgl_engine_destroy(engine);
    mgl_runner_destroy(runner);
  }
}

// Cache, chunks, modes and company change no bit, of prompts on both sides of the original context.
static void lengths_do_not_depend_on_the_way(void **state) {
  (void)state;
  static const struct {
    mgl_mode mode;
    bool cache;
    uint32_t chunk, others, times;
  } ways[] = {{MGL_MODE_EAGER, false, 0, 0, 1},
              {MGL_MODE_MEGA, false, 7, 0, 1},
              {MGL_MODE_MEGA, true, 0, OTHERS, 3},
              {MGL_MODE_EAGER, true, 1, OTHERS, 2}};
  static const mgl_rope_kind kinds[] = {MGL_ROPE_DYNAMIC, MGL_ROPE_LONGROPE};
  int32_t prompt[CONTEXT];
  fill_prompt(prompt, CONTEXT);
  for (size_t k = 0; k < 2; k++) {
    for (uint32_t count = PROMPT; count <= 80; count += 20) {
      answer expected = {0};
      for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        mgl_runner *runner = make_runner(kinds[k]);
        mgl_engine *engine = make_engine(runner, ways[w].mode, ways[w].cache, ways[w].chunk);
        for (uint32_t time = 0; time < ways[w].times; time++) {
          for (uint32_t i = 0; i < ways[w].others; i++) {  // that begin alike, with other lengths
            (void)submit(engine, prompt, 33 + 21 * i, 20);
          }
          answer found = run_one(engine, prompt, count, NEW);
          expected = w == 0 ? found : expected;
          assert_same(&expected, &found);
        }
        mgl_engine_destroy(engine);
        mgl_runner_destroy(runner);
      }
    }
  }
}

// Pages are shared by prompts whose tokens turn alike: of one side of the context with longrope, of
// one length beyond it with dynamic.
static void pages_are_shared_by_lengths_that_turn_alike(void **state) {
  (void)state;
  static const struct {
    uint32_t count;
    uint64_t hits[2];  // dynamic, longrope
  } cases[] = {{40, {0, 0}},  {48, {32, 32}}, {80, {0, 0}},  {80, {64, 64}},
               {96, {0, 80}}, {96, {80, 80}}, {40, {32, 32}}};
  int32_t prompt[CONTEXT];
  fill_prompt(prompt, CONTEXT);
  for (int kind = 0; kind < 2; kind++) {
    mgl_runner *runner = make_runner(kind == 0 ? MGL_ROPE_DYNAMIC : MGL_ROPE_LONGROPE);
    mgl_engine *engine = make_engine(runner, MGL_MODE_MEGA, true, 0);
    mgl_engine_statistics s = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
      uint64_t before = s.prefix_hit_tokens;
      (void)run_one(engine, prompt, cases[i].count, 1);
      mgl_engine_get_statistics(engine, &s);
      if (s.prefix_hit_tokens - before != cases[i].hits[kind]) {
        fail_msg("kind %d, case %zu: expected %llu hits, found %llu", kind, i,
                 (unsigned long long)cases[i].hits[kind],
                 (unsigned long long)(s.prefix_hit_tokens - before));
      }
    }
    mgl_engine_destroy(engine);
    mgl_runner_destroy(runner);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(longrope_begins_again_beyond_its_context),
      cmocka_unit_test(lengths_do_not_depend_on_the_way),
      cmocka_unit_test(pages_are_shared_by_lengths_that_turn_alike),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
