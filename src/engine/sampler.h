// Choosing the next token of a sequence from the model's logits, on the host.
//
// The steps and their order are vLLM's, so that a request means the same here (the OpenAI API names
// the parameters and leaves the order open):
//   1. log probabilities, if wanted: of the logits as the model gives them;
//   2. tokens that are not allowed are out, and stop tokens while fewer than min_tokens were
//      generated, and what would complete a bad word;
//   3. logit biases are added;
//   4. penalties: repetition (as transformers: over prompt and answer, a positive logit is divided
//      by it and any other multiplied), then frequency, then presence (over the answer);
//   5. tokens that a grammar does not allow are out (vLLM's first step, which comes to the same);
//   6. temperature 0 takes the largest logit; any other divides the logits;
//   7. min-p, then top-k, then top-p: each cuts what those before it left, and top-p is a share of
//      it. (transformers cuts by min-p last. That differs only where min-p and top-p are both used:
//      here top-p is a share of fewer tokens.) Ties at an edge go to smaller ids;
//   8. the token is drawn in proportion to what is left.
// transformers reports log probabilities of step 7 (scores) or of step 1 (logits); vLLM's default
// is step 1, and so says how likely the model itself finds a token.
//
// The random number comes from a counter-based generator, keyed by the request's seed and the
// position of the token, and everything is computed as twin/sampling_rule.h says: the megakernel
// chooses the same token from the same bits (kernels/cuda/small/tasks_sample.cuh). Of probabilities
// below 2^-40 of the largest nothing is left.
#ifndef MGL_ENGINE_SAMPLER_H
#define MGL_ENGINE_SAMPLER_H

#include <stdint.h>

#include "base/status.h"
#include "batch/sampling.h"

typedef struct mgl_sampler mgl_sampler;  // scratch for one thread
mgl_status mgl_sampler_create(uint32_t vocab_size, mgl_sampler **out, mgl_error *err);
void mgl_sampler_destroy(mgl_sampler *sampler);  // NULL is fine

// Index of the largest logit; the smallest index among equals. The first NaN counts as the largest,
// so that one look at the result tells whether a row is sound. (CPU workers find it on the way:
// device/cpu/cpu_argmax.h.)
uint32_t mgl_argmax(const float *logits, uint32_t count);

// A row of logits and what is to be chosen from it.
typedef struct mgl_sample_row {
  const float *logits;              // [V]
  uint32_t best;                    // mgl_argmax of them
  uint32_t position;                // of the token in the sequence
  const mgl_sampling_state *state;  // has counted all tokens before the position
  const uint64_t *mask;  // [ceil(V / 64)] bit t % 64 of word t / 64: token t is allowed; NULL: all
} mgl_sample_row;

// The token for the row's position. Where the largest logit is not finite (a NaN, an infinity, or
// all -infinity), it is the token: the caller must check for that, since then no choice has a
// meaning. So too where a mask leaves no token with a finite logit: the caller must leave one.
uint32_t mgl_sample(mgl_sampler *sampler, const mgl_sample_row *row);

// A token and the natural logarithm of the probability that the model gives it.
typedef struct mgl_token_logprob {
  int32_t token;
  double logprob;
} mgl_token_logprob;

// The log probability of `token`, and the likeliest tokens, most likely first: top[0] to
// top[returned count - 1], at most top_count (MGL_MAX_TOP_LOGPROBS) and V. The largest logit is
// finite.
uint32_t mgl_sample_logprobs(const mgl_sampler *sampler, const float *logits, uint32_t best,
                             uint32_t token, uint32_t top_count, mgl_token_logprob *top,
                             double *logprob);

#endif
