#include "app/logit_comparison.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

enum { MAX_LOGITS = 1 << 28 };

size_t mgl_logit_comparison_most(size_t vocab_size) {
  return MAX_LOGITS / vocab_size;
}

mgl_status mgl_logit_comparison_begin(size_t count, size_t vocab_size, mgl_logit_comparison *out,
                                      mgl_error *err) {
  *out = (mgl_logit_comparison){.count = count, .vocab_size = vocab_size};
  out->logits = mgl_alloc_zeroed(count, vocab_size * sizeof *out->logits);
  return out->logits != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the logits of a text");
}

void mgl_logit_comparison_free(mgl_logit_comparison *comparison) {
  mgl_free(comparison->logits);
  *comparison = (mgl_logit_comparison){0};
}

mgl_status mgl_logit_comparison_keep(void *context, size_t position, const float *logits,
                                     mgl_error *err) {
  mgl_logit_comparison *c = context;
  (void)err;
  if (position < c->count) {
    memcpy(c->logits + position * c->vocab_size, logits, c->vocab_size * sizeof *logits);
  }
  return MGL_OK;
}

static double log_sum(const float *logits, size_t count, size_t *out_largest) {
  double sum = 0;
  *out_largest = 0;
  for (size_t i = 1; i < count; i++) {
    *out_largest = logits[i] > logits[*out_largest] ? i : *out_largest;
  }
  for (size_t i = 0; i < count; i++) {
    sum += exp((double)logits[i] - logits[*out_largest]);
  }
  return log(sum) + logits[*out_largest];
}

mgl_status mgl_logit_comparison_add(void *context, size_t position, const float *logits,
                                    mgl_error *err) {
  mgl_logit_comparison *c = context;
  (void)err;
  if (position >= c->count) {
    return MGL_OK;
  }
  const float *old = c->logits + position * c->vocab_size;
  size_t old_largest = 0, new_largest = 0;
  double old_sum = log_sum(old, c->vocab_size, &old_largest);
  double new_sum = log_sum(logits, c->vocab_size, &new_largest);
  for (size_t i = 0; i < c->vocab_size; i++) {
    double p = (double)old[i] - old_sum, q = (double)logits[i] - new_sum;
    c->sum += exp(p) * (p - q);
  }
  c->same += old_largest == new_largest;
  c->added++;
  return MGL_OK;
}

double mgl_logit_comparison_kl(const mgl_logit_comparison *comparison) {
  return comparison->sum / (double)comparison->added;
}

double mgl_logit_comparison_same(const mgl_logit_comparison *comparison) {
  return (double)comparison->same / (double)comparison->added;
}
