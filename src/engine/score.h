// Scoring: the log probability that a model gives to each token of a text.
//
// The tokens are fed as one sequence in chunks of an iteration's size, with logits for every token,
// through mgl_runner_run: the same path that generates, so a score checks what a user gets.
#ifndef MGL_ENGINE_SCORE_H
#define MGL_ENGINE_SCORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/runner.h"

enum {
  // Most rows with logits in an iteration: so many has one on a GPU (MGL_MAX_SEQUENCES), and
  // more would need more memory than they save time.
  MGL_SCORE_MOST_ROWS = 1024,
};

typedef struct mgl_score_request {
  mgl_mode mode;
  const int32_t *tokens;  // [count] ids in [0, V)
  size_t count;           // 1 to the runner's sequence_tokens
  // Called for every position in order with its logits [V], valid during the call; may be NULL. A
  // failure ends the scoring.
  mgl_status (*on_logits)(void *context, size_t position, const float *logits, mgl_error *err);
  void *context;
} mgl_score_request;

// The options that a runner for scoring `count` tokens needs, in chunks of at most iteration_tokens
// (0: MGL_INVARIANT_TOKENS) and MGL_SCORE_MOST_ROWS; the caller adds threads and weights. All
// logits of a chunk are in memory.
mgl_build mgl_score_build(uint32_t count, uint32_t iteration_tokens);

// Fills logprobs[0 .. count): natural logarithm of the probability of tokens[i] behind tokens
// 0 .. i - 1, softmax in double; NAN at 0, where nothing comes before. Logits that are not
// finite are an MGL_ERR_FORMAT.
mgl_status mgl_score(mgl_runner *runner, const mgl_score_request *request, double *logprobs,
                     mgl_error *err);

#endif
