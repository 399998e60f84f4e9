// The engine against transformers, on every model of tests/data/reference (its README.md lists
// them).
//
// The bar: over the stored positions the mean KL divergence from transformers in fp32 is no larger
// than that of transformers in bf16; and, fed the reference's own tokens, the engine chooses the
// next one of the greedy continuation wherever the reference's top two logits differ by more than
// the bf16 error. Every SIMD level of this processor is measured, prompts in chunks of several
// sizes, KV pages in scattered order. (The largest KL of one position is printed, not judged: it
// is the maximum of few values and passes the bar by chance.)
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka.h needs four of the above
#include <cmocka.h>

#include "base/alloc.h"
#include "base/simd.h"
#include "batch/plan.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "model/config.h"
#include "model/model_folder.h"
#include "model/safetensors.h"
#include "support/must.h"
#include "support/reference_model.h"

// Under a sanitizer a third of the models and the best SIMD level have to do: the release tree runs
// all.
#ifdef MGL_TEST_SANITIZED
enum { MODEL_STRIDE = 3, SANITIZED = 1 };
#else
enum { MODEL_STRIDE = 1, SANITIZED = 0 };
#endif

enum {
  THREADS = 2,
  SEQUENCES = 2,
  SHARDS = 3,
};

// One model, loaded through the real loaders, and a sequence's KV pages.
typedef struct fixture {
  mgl_reference_model of;
  mgl_runner *runner;
  mgl_plan *plan;
  int32_t *pages;  // [page_count]
  uint32_t page_count;
  uint32_t prompt_count;  // tokens that count as the prompt's (graph/rope.h)
} fixture;

static void set_up(fixture *f, const char *name, mgl_simd simd, uint32_t shard_count) {
  *f = (fixture){0};
  mgl_reference_model_open(&f->of, MGL_TEST_DATA "/reference", name, shard_count);
  mgl_build options = {
      .threads = THREADS,
      .sequences = SEQUENCES,
      .sequence_tokens =
          (uint32_t)(f->of.reference.prompt_count + f->of.reference.continuation_count),
      .logit_rows = MGL_INVARIANT_TOKENS,
      .weights = MGL_WEIGHTS_MAPPED,
  };
  assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name(simd), 1), 0);
  MUST(mgl_runner_create(&f->of.model, &options, &f->runner, &err));
  assert_int_equal(mgl_runner_simd(f->runner), simd);
  MUST(mgl_plan_create(mgl_runner_limits(f->runner), &f->plan, &err));
  // The sequence's pages lie in descending order, every second one of the pool.
  f->prompt_count = (uint32_t)f->of.reference.prompt_count;
  f->page_count = mgl_runner_limits(f->runner)->pages_per_sequence;
  f->pages = mgl_alloc_zeroed(f->page_count, sizeof *f->pages);
  assert_non_null(f->pages);
  assert_true(mgl_runner_page_count(f->runner) >= 2 * f->page_count);
  for (uint32_t i = 0; i < f->page_count; i++) {
    f->pages[i] = (int32_t)(2 * (f->page_count - i) - 1);
  }
}

static void tear_down(fixture *f) {
  mgl_free(f->pages);
  mgl_plan_destroy(f->plan);
  mgl_runner_destroy(f->runner);
  mgl_reference_model_close(&f->of);
  (void)unsetenv("MEGALITH_SIMD");
}

// Runs one chunk alone of the sequence, in mode eager and again in mode mega, which must give the
// same bits; its logits are borrowed until the next run.
static const float *run_chunk(fixture *f, const int32_t *tokens, uint32_t count, uint32_t position,
                              mgl_plan_logits want) {
  mgl_logits logits = {0};
  mgl_plan_clear(f->plan);
  mgl_plan_add(f->plan, &(mgl_plan_chunk){.tokens = tokens,
                                          .token_count = count,
                                          .position = position,
                                          .prompt_count = f->prompt_count,
                                          .pages = f->pages,
                                          .page_count = f->page_count,
                                          .logits = want});
  MUST(mgl_runner_run(f->runner, MGL_MODE_EAGER, f->plan, &logits, &err));
  size_t bytes = (size_t)f->plan->logit_row_count * f->of.reference.vocab_size * sizeof(float);
  float *eager = malloc(bytes + 1);  // the modes share their memory
  assert_non_null(eager);
  memcpy(eager, logits.rows, bytes);
  MUST(mgl_runner_run(f->runner, MGL_MODE_MEGA, f->plan, &logits, &err));
  assert_memory_equal(eager, logits.rows, bytes);
  free(eager);
  return logits.rows;
}

// Runs the prompt in chunks; out is [position_count, V].
static void run_prompt(fixture *f, uint32_t chunk_tokens, float *out) {
  const mgl_reference *r = &f->of.reference;
  size_t first_stored = r->prompt_count - r->position_count;
  for (size_t begin = 0; begin < r->prompt_count; begin += chunk_tokens) {
    size_t left = r->prompt_count - begin;
    size_t count = left < chunk_tokens ? left : chunk_tokens;
    bool stored = begin + count > first_stored;
    const float *logits = run_chunk(f, r->prompt + begin, (uint32_t)count, (uint32_t)begin,
                                    stored ? MGL_LOGITS_ALL : MGL_LOGITS_NONE);
    for (size_t i = 0; stored && i < count; i++) {
      if (begin + i >= first_stored) {
        memcpy(out + (begin + i - first_stored) * r->vocab_size, logits + i * r->vocab_size,
               r->vocab_size * sizeof *out);
      }
    }
  }
}

static int32_t largest_at(const float *logits, size_t count) {
  size_t best = 0;
  for (size_t i = 1; i < count; i++) {
    best = logits[i] > logits[best] ? i : best;
  }
  return (int32_t)best;
}

// Computes the sequence again once it is too long for the frequencies that it began with, as the
// engine does.
static void begin_again_if_long(fixture *f, size_t continued) {
  const mgl_reference *r = &f->of.reference;
  const mgl_rope *rope = mgl_runner_rope(f->runner);
  uint32_t count = (uint32_t)(r->prompt_count + continued);
  if (rope->kind != MGL_ROPE_LONGROPE || !mgl_rope_is_long(rope, count + 1) ||
      mgl_rope_is_long(rope, f->prompt_count)) {
    return;
  }
  f->prompt_count = count + 1;
  for (uint32_t i = 0; i < count; i++) {
    const int32_t *token =
        i < r->prompt_count ? &r->prompt[i] : &r->continuation[i - r->prompt_count];
    (void)run_chunk(f, token, 1, i, MGL_LOGITS_NONE);
  }
}

// Steps where the margin demands the reference's token and the engine chose another.
static size_t wrong_steps(fixture *f, const float *last_logits, size_t *out_decided) {
  const mgl_reference *r = &f->of.reference;
  const float *logits = last_logits;
  size_t wrong = 0;
  *out_decided = 0;
  for (size_t i = 0; i < r->continuation_count; i++) {
    bool decided = r->margins[i] > r->bf16_logit_error;
    *out_decided += decided;
    wrong += decided && largest_at(logits, r->vocab_size) != r->continuation[i];
    begin_again_if_long(f, i);
    logits = run_chunk(f, &r->continuation[i], 1, (uint32_t)(r->prompt_count + i), MGL_LOGITS_LAST);
  }
  return wrong;
}

// True if the model, run this way, stays within the bar. Prints its figures.
static bool within_bar(const char *name, mgl_simd simd, uint32_t shard_count,
                       uint32_t chunk_tokens) {
  fixture f;
  size_t decided = 0;
  set_up(&f, name, simd, shard_count);
  const mgl_reference *r = &f.of.reference;
  float *logits = mgl_alloc(r->position_count * r->vocab_size * sizeof *logits);
  assert_non_null(logits);
  run_prompt(&f, chunk_tokens, logits);
  mgl_divergence found =
      mgl_reference_divergence(r->logits, logits, r->position_count, r->vocab_size);
  size_t wrong = wrong_steps(&f, logits + (r->position_count - 1) * r->vocab_size, &decided);
  bool fine = found.mean_kl <= r->bf16_mean_kl && wrong == 0;
  print_message(
      "%-25s %-11s chunk %2u: mean KL %.2e (%.2f of bf16's), max KL %.2f, logit error "
      "%.2f; %zu of %zu decided steps differ%s\n",
      name, mgl_simd_name(simd), chunk_tokens, found.mean_kl, found.mean_kl / r->bf16_mean_kl,
      found.max_kl / r->bf16_max_kl, found.max_logit_error / r->bf16_logit_error, wrong, decided,
      fine ? "" : "   <-- FAILED");
  mgl_free(logits);
  tear_down(&f);
  return fine;
}

static void all_models_at_every_simd_level(void **state) {
  (void)state;
  bool fine = true;
  for (int simd = MGL_SIMD_SCALAR; simd < MGL_SIMD_COUNT; simd++) {
    if (simd > (int)mgl_simd_detected()) {
      print_message("%s: skipped, this processor does not have it\n",
                    mgl_simd_name((mgl_simd)simd));
      continue;
    }
    if (SANITIZED && simd != (int)mgl_simd_detected()) {
      print_message("%s: skipped under a sanitizer\n", mgl_simd_name((mgl_simd)simd));
      continue;
    }
    for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STRIDE) {
      const char *name = MGL_REFERENCE_NAMES[i];
      if ((SANITIZED || simd == MGL_SIMD_SCALAR) && strstr(name, "3200") != NULL) {
        print_message("%s: skipped, too slow here\n", name);
        continue;
      }
      fine =
          within_bar(name, (mgl_simd)simd, i % 4 == 0 ? SHARDS : 1, MGL_INVARIANT_TOKENS) && fine;
    }
  }
  assert_true(fine);
}

// Chunk borders inside pages, and a prompt token by token.
static void prompts_in_small_chunks(void **state) {
  (void)state;
  bool fine = true;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STRIDE) {
    if (strstr(MGL_REFERENCE_NAMES[i], "3200") == NULL) {
      fine = within_bar(MGL_REFERENCE_NAMES[i], mgl_simd_detected(), 1, i % 2 == 0 ? 7 : 1) && fine;
    }
  }
  assert_true(fine);
}

typedef struct generated {
  const mgl_reference *reference;
  size_t count;
  size_t first_difference;  // continuation_count if none
} generated;

static bool on_token(void *context, const mgl_generated_token *token) {
  generated *g = context;
  assert_true(g->count < g->reference->continuation_count);
  if (token->token != g->reference->continuation[g->count] && g->count < g->first_difference) {
    g->first_difference = g->count;
  }
  g->count++;
  return true;
}

// The whole engine, fed its own tokens: equal up to the first step that bf16 could turn.
static void generates_the_continuation(void **state) {
  (void)state;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STRIDE) {
    fixture f;
    mgl_engine *engine = NULL;
    uint32_t request_idx = 0;
    set_up(&f, MGL_REFERENCE_NAMES[i], mgl_simd_detected(), 1);
    generated g = {.reference = &f.of.reference,
                   .first_difference = f.of.reference.continuation_count};
    MUST(mgl_engine_create(f.runner, &(mgl_engine_options){.mode = MGL_MODE_MEGA}, &engine, &err));
    mgl_request request = {.prompt = f.of.reference.prompt,
                           .prompt_count = f.of.reference.prompt_count,
                           .max_new_tokens = (uint32_t)f.of.reference.continuation_count,
                           .sampling = {.temperature = 0, .top_p = 1}};
    MUST(mgl_engine_submit(engine, &request, &request_idx, &err));
    MUST(mgl_engine_run(engine, on_token, NULL, &g, &err));
    assert_int_equal(g.count, f.of.reference.continuation_count);
    print_message("%-25s: %zu of %zu tokens equal\n", MGL_REFERENCE_NAMES[i], g.first_difference,
                  g.count);
    if (g.first_difference < g.count) {
      assert_true(f.of.reference.margins[g.first_difference] <= f.of.reference.bf16_logit_error);
    }
    mgl_engine_destroy(engine);
    tear_down(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_models_at_every_simd_level),
      cmocka_unit_test(prompts_in_small_chunks),
      cmocka_unit_test(generates_the_continuation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
