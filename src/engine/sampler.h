// Choosing the next token from logits: greedy, temperature, top-k, top-p.
//
// The random number comes from a counter-based generator, keyed by the request's seed and the
// position of the token, so a result depends on nothing but the logits, the parameters, the seed
// and the position.
#ifndef MGL_ENGINE_SAMPLER_H
#define MGL_ENGINE_SAMPLER_H

#include <stdint.h>

#include "base/status.h"

typedef struct mgl_sampling {
  double temperature;  // 0: greedy; else logits are divided by it
  uint32_t top_k;      // 0: off; else only the k largest logits
  double top_p;        // 1: off; else the smallest set of largest probabilities that reaches top_p
  uint64_t seed;
} mgl_sampling;

// Ranges: temperature 0 to 100, top_p above 0 to 1.
mgl_status mgl_sampling_check(const mgl_sampling *sampling, mgl_error *err);

typedef struct mgl_sampler mgl_sampler;  // scratch for one thread
mgl_status mgl_sampler_create(uint32_t vocab_size, mgl_sampler **out, mgl_error *err);
void mgl_sampler_destroy(mgl_sampler *sampler);  // NULL is fine

// Index of the largest logit; the smallest index among equals. The first NaN counts as the largest,
// so that one look at the result tells whether a row is sound. (CPU workers find it on the way:
// runtime/cpu_argmax.h.)
uint32_t mgl_argmax(const float *logits, uint32_t count);

// The token for `position`. best: the index of the largest logit, as mgl_argmax finds it. Order
// of operations as in the field: temperature, then top-k, then top-p. Ties at the edge of top-k or
// top-p are cut in favour of smaller ids.
// Where the largest logit is not finite (a NaN, an infinity, or all -infinity), it is the token:
// the caller must check for that, since then no choice has a meaning.
uint32_t mgl_sample(mgl_sampler *sampler, const float *logits, uint32_t best,
                    const mgl_sampling *sampling, uint64_t position);

// The generator: uniform in [0, 1), 53 bits, of (seed, position).
double mgl_sampling_uniform(uint64_t seed, uint64_t position);

#endif
