#include "support/reference_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/must.h"

enum { SEQUENCES = 2 };

mgl_build mgl_reference_build(const mgl_reference *reference) {
  return (mgl_build){
      .sequences = SEQUENCES,
      .sequence_tokens = (uint32_t)(reference->prompt_count + reference->continuation_count),
      .logit_rows = MGL_INVARIANT_TOKENS,
      .weights = MGL_WEIGHTS_MAPPED,
  };
}

void mgl_reference_run_open(mgl_reference_run *out, const mgl_reference_model *model,
                            mgl_runner *runner, const mgl_mode *modes, uint32_t mode_count) {
  *out = (mgl_reference_run){
      .reference = &model->reference, .runner = runner, .mode_count = mode_count};
  assert_true(mode_count >= 1 && mode_count <= MGL_REFERENCE_MAX_MODES);
  memcpy(out->modes, modes, mode_count * sizeof *modes);
  MUST(mgl_plan_create(mgl_runner_limits(runner), &out->plan, &err));
  out->prompt_count = (uint32_t)model->reference.prompt_count;
  out->page_count = mgl_runner_limits(runner)->pages_per_sequence;
  out->pages = mgl_alloc_zeroed(out->page_count, sizeof *out->pages);
  assert_non_null(out->pages);
  assert_true(mgl_runner_page_count(runner) >= 2 * out->page_count);
  for (uint32_t i = 0; i < out->page_count; i++) {
    out->pages[i] = (int32_t)(2 * (out->page_count - i) - 1);
  }
}

void mgl_reference_run_close(mgl_reference_run *run) {
  mgl_free(run->pages);
  mgl_plan_destroy(run->plan);
}

// Runs one chunk alone of the sequence, in every mode, which must give the same bits; its logits
// are borrowed until the next run.
static const float *run_chunk(mgl_reference_run *run, const int32_t *tokens, uint32_t count,
                              uint32_t position, mgl_plan_logits want) {
  mgl_logits logits = {0};
  float *first = NULL;  // the modes share their memory
  mgl_plan_clear(run->plan);
  mgl_plan_add(run->plan, &(mgl_plan_chunk){.tokens = tokens,
                                            .token_count = count,
                                            .position = position,
                                            .prompt_count = run->prompt_count,
                                            .pages = run->pages,
                                            .page_count = run->page_count,
                                            .logits = want});
  size_t bytes = (size_t)run->plan->logit_row_count * run->reference->vocab_size * sizeof(float);
  for (uint32_t i = 0; i < run->mode_count; i++) {
    MUST(mgl_runner_run(run->runner, run->modes[i], run->plan, &logits, &err));
    if (i == 0 && run->mode_count > 1) {
      first = malloc(bytes + 1);
      assert_non_null(first);
      memcpy(first, logits.rows, bytes);
    } else if (i > 0) {
      assert_memory_equal(first, logits.rows, bytes);
    }
  }
  free(first);
  return logits.rows;
}

// Runs the prompt in chunks; out is [position_count, V].
static void run_prompt(mgl_reference_run *run, uint32_t chunk_tokens, float *out) {
  const mgl_reference *r = run->reference;
  size_t first_stored = r->prompt_count - r->position_count;
  for (size_t begin = 0; begin < r->prompt_count; begin += chunk_tokens) {
    size_t left = r->prompt_count - begin;
    size_t count = left < chunk_tokens ? left : chunk_tokens;
    bool stored = begin + count > first_stored;
    const float *logits = run_chunk(run, r->prompt + begin, (uint32_t)count, (uint32_t)begin,
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
static void begin_again_if_long(mgl_reference_run *run, size_t continued) {
  const mgl_reference *r = run->reference;
  const mgl_rope *rope = mgl_runner_rope(run->runner);
  uint32_t count = (uint32_t)(r->prompt_count + continued);
  if (rope->kind != MGL_ROPE_LONGROPE || !mgl_rope_is_long(rope, count + 1) ||
      mgl_rope_is_long(rope, run->prompt_count)) {
    return;
  }
  run->prompt_count = count + 1;
  for (uint32_t i = 0; i < count; i++) {
    const int32_t *token =
        i < r->prompt_count ? &r->prompt[i] : &r->continuation[i - r->prompt_count];
    (void)run_chunk(run, token, 1, i, MGL_LOGITS_NONE);
  }
}

// Steps where the margin demands the reference's token and the engine chose another.
static size_t wrong_steps(mgl_reference_run *run, const float *last_logits, size_t *out_decided) {
  const mgl_reference *r = run->reference;
  const float *logits = last_logits;
  size_t wrong = 0;
  *out_decided = 0;
  for (size_t i = 0; i < r->continuation_count; i++) {
    bool decided = r->margins[i] > r->bf16_logit_error;
    *out_decided += decided;
    wrong += decided && largest_at(logits, r->vocab_size) != r->continuation[i];
    begin_again_if_long(run, i);
    logits =
        run_chunk(run, &r->continuation[i], 1, (uint32_t)(r->prompt_count + i), MGL_LOGITS_LAST);
  }
  return wrong;
}

mgl_reference_verdict mgl_reference_run_judge(mgl_reference_run *run, uint32_t chunk_tokens) {
  const mgl_reference *r = run->reference;
  mgl_reference_verdict v = {0};
  float *logits = mgl_alloc(r->position_count * r->vocab_size * sizeof *logits);
  assert_non_null(logits);
  run_prompt(run, chunk_tokens, logits);
  v.found = mgl_reference_divergence(r->logits, logits, r->position_count, r->vocab_size);
  v.wrong = wrong_steps(run, logits + (r->position_count - 1) * r->vocab_size, &v.decided);
  v.fine = v.found.mean_kl <= r->bf16_mean_kl && v.wrong == 0;
  mgl_free(logits);
  return v;
}

void mgl_reference_verdict_print(const mgl_reference_verdict *v, const mgl_reference *r, char *out,
                                 size_t bytes) {
  (void)snprintf(out, bytes,
                 "mean KL %.2e (%.2f of bf16's), max KL %.2f, logit error %.2f; %zu of %zu decided "
                 "steps differ%s",
                 v->found.mean_kl, v->found.mean_kl / r->bf16_mean_kl,
                 v->found.max_kl / r->bf16_max_kl, v->found.max_logit_error / r->bf16_logit_error,
                 v->wrong, v->decided, v->fine ? "" : "   <-- FAILED");
}
