// Method: candidates are cut down before they are sorted. top-k selects with a heap-free
// quickselect; top-p needs the largest probabilities in order, found by sorting only the candidates
// above a threshold that a histogram of the logits gives. Rejected: sorting the whole vocabulary
// (10 ms for 150k entries).
#include "engine/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { BUCKETS = 1024 };

typedef struct candidate {
  float logit;
  uint32_t id;
} candidate;

struct mgl_sampler {
  uint32_t vocab_size;
  candidate *candidates;  // [vocab_size]
};

mgl_status mgl_sampling_check(const mgl_sampling *s, mgl_error *err) {
  if (!(s->temperature >= 0 && s->temperature <= 100)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "temperature: expected 0 to 100, found %g",
                         s->temperature);
  }
  if (!(s->top_p > 0 && s->top_p <= 1)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "top-p: expected above 0 and at most 1, found %g",
                         s->top_p);
  }
  return MGL_OK;
}

mgl_status mgl_sampler_create(uint32_t vocab_size, mgl_sampler **out, mgl_error *err) {
  *out = NULL;
  mgl_sampler *sampler = mgl_alloc_zeroed(1, sizeof *sampler);
  candidate *candidates = mgl_alloc_zeroed(vocab_size, sizeof *candidates);
  if (sampler == NULL || candidates == NULL) {
    mgl_free(sampler);
    mgl_free(candidates);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a sampler of %u tokens",
                         vocab_size);
  }
  *sampler = (mgl_sampler){vocab_size, candidates};
  *out = sampler;
  return MGL_OK;
}

void mgl_sampler_destroy(mgl_sampler *sampler) {
  if (sampler != NULL) {
    mgl_free(sampler->candidates);
    mgl_free(sampler);
  }
}

uint32_t mgl_argmax(const float *logits, uint32_t count) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; i++) {
    if (!(logits[i] <= logits[best])) {  // larger, or a NaN among the two
      if (isnan(logits[best])) {
        break;
      }
      best = i;
    }
  }
  return best;
}

double mgl_sampling_uniform(uint64_t seed, uint64_t position) {
  // splitmix64's output function over a counter; two rounds decorrelate nearby seeds and positions.
  uint64_t x = seed;
  for (int round = 0; round < 2; round++) {
    x += (position + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return (double)(x >> 11) * 0x1p-53;
}

// Larger logits first, smaller ids first among equals.
static bool goes_before(const candidate *a, const candidate *b) {
  return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b) {
  return goes_before(a, b) ? -1 : goes_before(b, a) ? 1 : 0;
}

static void swap(candidate *a, candidate *b) {
  candidate t = *a;
  *a = *b;
  *b = t;
}

// Moves the k that go before all others to the front, in no order (Hoare's selection, middle
// pivot).
static void select_first(candidate *c, size_t count, size_t k) {
  size_t begin = 0;
  size_t end = count;
  while (end - begin > 1) {
    candidate pivot = c[begin + (end - begin) / 2];
    size_t i = begin;
    size_t j = end - 1;
    for (;;) {
      while (goes_before(&c[i], &pivot)) {
        i++;
      }
      while (goes_before(&pivot, &c[j])) {
        j--;
      }
      if (i >= j) {
        break;
      }
      swap(&c[i++], &c[j--]);
    }
    // [begin, i) go before or equal the pivot, the rest after or equal; ids make all distinct.
    size_t cut = i > begin ? i : begin + 1;
    if (k <= cut) {
      end = cut;
    } else {
      begin = cut;
    }
    if (k == begin || k == end) {
      return;
    }
  }
}

// Keeps the candidates that can be in the top-p set: a histogram over logits tells below which
// logit the mass above already reaches top_p. Returns how many are kept; weights are relative to
// the largest logit.
static size_t prune_for_top_p(candidate *c, size_t count, float largest, double temperature,
                              double top_p, double total) {
  double mass[BUCKETS] = {0};
  // Buckets of 1/32 of a scaled logit; the last holds all that is below exp(-32) of the largest.
  const double per_bucket = 1.0 / 32;
  for (size_t i = 0; i < count; i++) {
    double below = ((double)largest - (double)c[i].logit) / temperature;
    size_t bucket = below < (BUCKETS - 1) * per_bucket ? (size_t)(below / per_bucket) : BUCKETS - 1;
    mass[bucket] += exp(-below);
  }
  size_t last = 0;
  double reached = mass[0];
  while (last < BUCKETS - 1 && reached < top_p * total) {
    reached += mass[++last];
  }
  if (last == BUCKETS - 1) {
    return count;
  }
  // One bucket more than needed: the sums here and there round differently.
  double limit = (double)(last + 2) * per_bucket;
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (((double)largest - (double)c[i].logit) / temperature < limit) {
      c[kept++] = c[i];
    }
  }
  return kept;
}

uint32_t mgl_sample(mgl_sampler *sampler, const float *logits, uint32_t best,
                    const mgl_sampling *sampling, uint64_t position) {
  if (sampling->temperature == 0 || sampling->top_k == 1 || !isfinite(logits[best])) {
    return best;
  }
  candidate *c = sampler->candidates;
  size_t count = 0;
  for (uint32_t i = 0; i < sampler->vocab_size; i++) {
    c[count++] = (candidate){logits[i], i};
  }
  if (sampling->top_k > 0 && sampling->top_k < count) {
    select_first(c, count, sampling->top_k);
    count = sampling->top_k;
  }
  const double largest = (double)logits[best];
  double total = 0;
  for (size_t i = 0; i < count; i++) {
    total += exp(((double)c[i].logit - largest) / sampling->temperature);
  }
  double wanted = total;
  if (sampling->top_p < 1) {
    count = prune_for_top_p(c, count, logits[best], sampling->temperature, sampling->top_p, total);
    qsort(c, count, sizeof *c, compare);
    double reached = 0;
    size_t kept = 0;
    while (kept < count && reached < sampling->top_p * total) {
      reached += exp(((double)c[kept++].logit - largest) / sampling->temperature);
    }
    count = kept;
    wanted = reached;
  }
  wanted *= mgl_sampling_uniform(sampling->seed, position);
  double reached = 0;
  for (size_t i = 0; i < count; i++) {
    reached += exp(((double)c[i].logit - largest) / sampling->temperature);
    if (reached > wanted) {
      return c[i].id;
    }
  }
  return best;  // the sum rounded below `wanted`
}
