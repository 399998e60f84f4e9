#include "engine/score.h"

#include <math.h>

#include "base/alloc.h"

mgl_build mgl_score_build(uint32_t count, uint32_t iteration_tokens) {
  uint32_t most = iteration_tokens == 0 ? MGL_INVARIANT_TOKENS : iteration_tokens;
  most = most < MGL_SCORE_MOST_ROWS ? most : MGL_SCORE_MOST_ROWS;
  uint32_t chunk = count < most ? count : most;
  return (mgl_build){
      .iteration_tokens = chunk, .sequences = 1, .sequence_tokens = count, .logit_rows = chunk};
}

// log softmax(logits)[token], shifted by the largest logit so that exp cannot overflow.
static double log_probability(const float *logits, uint32_t vocab_size, double largest,
                              int32_t token) {
  double sum = 0;
  for (uint32_t i = 0; i < vocab_size; i++) {
    sum += exp(logits[i] - largest);
  }
  return logits[token] - largest - log(sum);
}

static mgl_status check_request(const mgl_runner *runner, const mgl_score_request *request,
                                mgl_error *err) {
  const mgl_plan_limits *limits = mgl_runner_limits(runner);
  uint64_t most = (uint64_t)limits->pages_per_sequence * limits->page_tokens;
  uint64_t pages = ((uint64_t)request->count + limits->page_tokens - 1) / limits->page_tokens;
  uint32_t vocab_size = mgl_runner_vocab_size(runner);
  if (request->count < 1 || request->count > most || pages > mgl_runner_page_count(runner)) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "score: expected 1 to %llu tokens, found %zu",
                         (unsigned long long)most, request->count);
  }
  for (size_t i = 0; i < request->count; i++) {
    if (request->tokens[i] < 0 || (uint32_t)request->tokens[i] >= vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "token %zu: expected an id of 0 to %u, found %d",
                           i, vocab_size - 1, request->tokens[i]);
    }
  }
  return MGL_OK;
}

// Runs the chunk that starts at `position` and scores the tokens that its rows predict.
static mgl_status score_chunk(mgl_runner *runner, const mgl_score_request *request, mgl_plan *plan,
                              const mgl_plan_chunk *chunk, double *logprobs, mgl_error *err) {
  uint32_t vocab_size = mgl_runner_vocab_size(runner);
  mgl_logits logits;
  mgl_plan_clear(plan);
  mgl_plan_add(plan, chunk);
  MGL_TRY(mgl_runner_run(runner, request->mode, plan, &logits, err));
  for (uint32_t i = 0; i < chunk->token_count; i++) {
    const float *row = logits.rows + (size_t)i * vocab_size;
    size_t next = (size_t)chunk->position + i + 1;
    float largest = row[logits.best[i]];
    if (!isfinite(largest)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "the model's logits are not finite (NaN or infinity) at position %zu: "
                           "damaged weights?",
                           next - 1);
    }
    if (next < request->count) {
      logprobs[next] = log_probability(row, vocab_size, (double)largest, request->tokens[next]);
    }
    if (request->on_logits != NULL) {
      MGL_TRY(request->on_logits(request->context, next - 1, row, err));
    }
  }
  return MGL_OK;
}

mgl_status mgl_score(mgl_runner *runner, const mgl_score_request *request, double *logprobs,
                     mgl_error *err) {
  MGL_TRY(check_request(runner, request, err));
  const mgl_plan_limits *limits = mgl_runner_limits(runner);
  uint32_t page_count =
      (uint32_t)((request->count + limits->page_tokens - 1) / limits->page_tokens);
  mgl_plan *plan = NULL;
  int32_t *pages = mgl_alloc_zeroed(page_count, sizeof *pages);
  if (pages == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a score of %zu tokens",
                         request->count);
  }
  for (uint32_t i = 0; i < page_count; i++) {
    pages[i] = (int32_t)i;
  }
  logprobs[0] = NAN;
  mgl_status status = mgl_plan_create(limits, &plan, err);
  uint32_t most = mgl_runner_logit_rows(runner);  // every row of a chunk has some
  most = limits->tokens < most ? limits->tokens : most;
  for (size_t at = 0; status == MGL_OK && at < request->count; at += most) {
    size_t left = request->count - at;
    mgl_plan_chunk chunk = {.tokens = request->tokens + at,
                            .token_count = left < most ? (uint32_t)left : most,
                            .position = (uint32_t)at,
                            .prompt_count = (uint32_t)request->count,
                            .pages = pages,
                            .page_count = page_count,
                            .logits = MGL_LOGITS_ALL};
    status = score_chunk(runner, request, plan, &chunk, logprobs, err);
  }
  mgl_plan_destroy(plan);
  mgl_free(pages);
  return status;
}
