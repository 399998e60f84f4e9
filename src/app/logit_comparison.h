// How far the logits of one model are from those of another on the same text: the mean KL
// divergence, and how often the likeliest token is the same.
//
// The first model's logits are kept while the second one runs, so that the two need not be in
// memory together. mgl_logit_comparison_keep and _add are mgl_score's callbacks.
#ifndef MGL_APP_LOGIT_COMPARISON_H
#define MGL_APP_LOGIT_COMPARISON_H

#include <stddef.h>

#include "base/status.h"

typedef struct mgl_logit_comparison {
  size_t count, vocab_size;  // of positions
  float *logits;             // [count, vocab_size] of the first model
  double sum;                // of KL(first || second) over the positions so far
  size_t added, same;        // positions so far; of these, with the same likeliest token
} mgl_logit_comparison;

// Positions whose logits are kept at most: 1 GiB.
size_t mgl_logit_comparison_most(size_t vocab_size);

// For `count` positions. Zero-initialise *out; free it also after a failure.
mgl_status mgl_logit_comparison_begin(size_t count, size_t vocab_size, mgl_logit_comparison *out,
                                      mgl_error *err);
void mgl_logit_comparison_free(mgl_logit_comparison *comparison);

// context: the comparison. Positions behind its last one are left out.
mgl_status mgl_logit_comparison_keep(void *context, size_t position, const float *logits,
                                     mgl_error *err);
mgl_status mgl_logit_comparison_add(void *context, size_t position, const float *logits,
                                    mgl_error *err);

double mgl_logit_comparison_kl(const mgl_logit_comparison *comparison);    // nats a position
double mgl_logit_comparison_same(const mgl_logit_comparison *comparison);  // share, 0 to 1

#endif
