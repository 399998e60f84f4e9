// The sampler: greedy choice and ties, the sets that top-k and top-p keep, and the distribution of
// samples against exact probabilities (chi-squared, fixed seeds).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "engine/sampler.h"

enum { VOCAB = 1000 };

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

// Logits of a peaked distribution with many exact ties.
static void draw_logits(uint64_t seed, float *logits) {
  uint64_t state = seed * 77 + 1;
  for (int i = 0; i < VOCAB; i++) {
    logits[i] = (float)(next_random(&state) % 64) * 0.25f - 8.0f;
  }
}

typedef struct ranked {
  double logit;
  int id;
} ranked;

static int by_rank(const void *a, const void *b) {
  const ranked *x = a;
  const ranked *y = b;
  return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

// The exact probabilities, by sorting everything: the definition, not the method under test.
static void exact_probabilities(const float *logits, const mgl_sampling *s, double *out) {
  ranked order[VOCAB];
  double total = 0;
  for (int i = 0; i < VOCAB; i++) {
    order[i] = (ranked){(double)logits[i] / s->temperature, i};
    out[i] = 0;
  }
  qsort(order, VOCAB, sizeof *order, by_rank);
  int count = s->top_k > 0 && s->top_k < VOCAB ? (int)s->top_k : VOCAB;
  for (int i = 0; i < count; i++) {
    total += exp(order[i].logit - order[0].logit);
  }
  double reached = 0;
  int kept = 0;
  while (kept < count && (kept == 0 || reached < s->top_p * total)) {
    reached += exp(order[kept++].logit - order[0].logit);
  }
  for (int i = 0; i < kept; i++) {
    out[order[i].id] = exp(order[i].logit - order[0].logit) / reached;
  }
}

static void samples_follow_the_exact_distribution(void **state) {
  (void)state;
  static const mgl_sampling cases[] = {
      {.temperature = 1.0, .top_p = 1},
      {.temperature = 0.7, .top_p = 1},
      {.temperature = 1.0, .top_k = 40, .top_p = 1},
      {.temperature = 1.0, .top_p = 0.9},
      {.temperature = 1.5, .top_p = 0.5},
      {.temperature = 2.0, .top_k = 100, .top_p = 0.95},
      {.temperature = 0.3, .top_k = 3, .top_p = 0.99},
      {.temperature = 100.0, .top_p = 0.999},
  };
  enum { SAMPLES = 40000 };
  mgl_sampler *sampler = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_sampler_create(VOCAB, &sampler, &err), MGL_OK);
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    float logits[VOCAB];
    double expected[VOCAB];
    unsigned found[VOCAB] = {0};
    mgl_sampling s = cases[c];
    s.seed = 1000 + c;
    draw_logits(c, logits);
    exact_probabilities(logits, &s, expected);
    uint32_t best = mgl_argmax(logits, VOCAB);
    for (uint64_t i = 0; i < SAMPLES; i++) {
      uint32_t id = mgl_sample(sampler, logits, best, &s, i);
      assert_true(id < VOCAB);
      if (expected[id] == 0) {
        fail_msg("case %zu: sampled %u, which top-k or top-p excludes", c, id);
      }
      found[id]++;
    }
    // Cells of at least 10 expected samples; the rest is one cell.
    double chi2 = 0;
    double rest_expected = 0;
    double rest_found = 0;
    int cells = 0;
    for (int i = 0; i < VOCAB; i++) {
      double e = expected[i] * SAMPLES;
      if (e >= 10) {
        chi2 += ((double)found[i] - e) * ((double)found[i] - e) / e;
        cells++;
      } else {
        rest_expected += e;
        rest_found += found[i];
      }
    }
    if (rest_expected >= 10) {
      chi2 += (rest_found - rest_expected) * (rest_found - rest_expected) / rest_expected;
      cells++;
    }
    // Mean cells-1, variance 2(cells-1); five standard deviations above is far beyond 1e-5.
    double limit = (double)(cells - 1) + 5 * sqrt(2.0 * (double)(cells - 1)) + 3;
    if (chi2 > limit) {
      fail_msg("case %zu: chi-squared %.1f over %d cells, at most %.1f", c, chi2, cells, limit);
    }
  }
  mgl_sampler_destroy(sampler);
}

static void greedy_takes_the_first_of_the_largest(void **state) {
  (void)state;
  float logits[5] = {-1, 3, 2, 3, -INFINITY};
  assert_int_equal(mgl_argmax(logits, 5), 1);
  mgl_sampler *sampler = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_sampler_create(5, &sampler, &err), MGL_OK);
  mgl_sampling greedy = {.temperature = 0, .top_p = 1};
  mgl_sampling top_1 = {.temperature = 5, .top_k = 1, .top_p = 1};
  mgl_sampling tiny_p = {.temperature = 5, .top_p = 1e-9};
  for (uint64_t i = 0; i < 100; i++) {
    assert_int_equal(mgl_sample(sampler, logits, 1, &greedy, i), 1);
    assert_int_equal(mgl_sample(sampler, logits, 1, &top_1, i), 1);
    assert_int_equal(mgl_sample(sampler, logits, 1, &tiny_p, i), 1);
  }
  // A largest logit that is no number is the token, however that is chosen.
  static const float broken[][5] = {
      {NAN, -INFINITY, 1, 3, 0}, {1, 2, NAN, 3, 0},
      {1, 2, 0, 3, NAN},         {NAN, NAN, NAN, NAN, NAN},
      {1, INFINITY, 0, 3, 2},    {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};
  mgl_sampling warm = {.temperature = 1, .top_k = 2, .top_p = 0.9};
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
    uint32_t best = mgl_argmax(broken[i], 5);
    assert_true(!isfinite(broken[i][best]));
    assert_int_equal(mgl_sample(sampler, broken[i], best, &greedy, i), best);
    assert_int_equal(mgl_sample(sampler, broken[i], best, &warm, i), best);
  }
  mgl_sampler_destroy(sampler);
}

static void parameters_are_checked(void **state) {
  (void)state;
  static const struct {
    mgl_sampling sampling;
    const char *message;
  } bad[] = {{{.temperature = -1, .top_p = 1}, "temperature"},
             {{.temperature = NAN, .top_p = 1}, "temperature"},
             {{.temperature = 1, .top_p = 0}, "top-p"},
             {{.temperature = 1, .top_p = 1.5}, "top-p"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    mgl_error err = {0};
    assert_int_equal(mgl_sampling_check(&bad[i].sampling, &err), MGL_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, bad[i].message));
  }
}

static void uniform_is_in_range_and_keyed(void **state) {
  (void)state;
  double sum = 0;
  for (uint64_t i = 0; i < 10000; i++) {
    double u = mgl_sampling_uniform(7, i);
    assert_true(u >= 0 && u < 1);
    assert_true(u == mgl_sampling_uniform(7, i));
    sum += u;
  }
  assert_true(fabs(sum / 10000 - 0.5) < 0.015);
  assert_true(mgl_sampling_uniform(7, 3) != mgl_sampling_uniform(8, 3));
  assert_true(mgl_sampling_uniform(7, 3) != mgl_sampling_uniform(7, 4));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_follow_the_exact_distribution),
      cmocka_unit_test(greedy_takes_the_first_of_the_largest),
      cmocka_unit_test(parameters_are_checked),
      cmocka_unit_test(uniform_is_in_range_and_keyed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
