// The sampler: greedy choice and ties; the distribution of samples against exact probabilities
// (chi-squared, fixed seeds) for every parameter and for combinations; log probabilities. The exact
// probabilities come from the definition: doubles, and everything sorted.
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

enum { VOCAB = 500, PROMPT = 60, ANSWER = 90, STOPS = 3, NEW = 200 };

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

// --- a sequence ----------------------------------------------------------------------------------

// Its likeliest tokens, of which prompt, answer, biases and stop tokens have some.
typedef struct sequence {
  float logits[VOCAB];
  int32_t tokens[PROMPT + ANSWER];
  int32_t stops[STOPS];
  mgl_logit_bias biases[8];
} sequence;

static void make_sequence(uint64_t seed, sequence *s) {
  uint64_t state = seed * 131 + 5;
  int32_t likely[VOCAB];
  uint32_t count = 0;
  draw_logits(seed, s->logits);
  for (int32_t i = 0; i < VOCAB; i++) {
    if (s->logits[i] > 5) {
      likely[count++] = i;
    }
  }
  assert_true(count > 36);
  for (uint32_t i = 0; i < PROMPT + ANSWER; i++) {  // the answer repeats some often
    uint64_t among = i < PROMPT ? count : count / 3;
    s->tokens[i] = likely[next_random(&state) % among];
  }
  for (uint32_t i = 0; i < STOPS; i++) {
    s->stops[i] = likely[i * 7];
  }
  for (uint32_t i = 0; i < 8; i++) {
    s->biases[i] = (mgl_logit_bias){likely[i * 5 + 1], i % 2 == 0 ? 1.5f : -2.25f};
  }
}

static void open_state(const sequence *s, const mgl_sampling *sampling, uint32_t answer,
                       mgl_sampling_state *state) {
  mgl_error err = {0};
  mgl_sampling_request request = {.sampling = sampling,
                                  .prompt = s->tokens,
                                  .prompt_count = PROMPT,
                                  .max_new_tokens = NEW,
                                  .stop_ids = s->stops,
                                  .stop_count = STOPS,
                                  .vocab_size = VOCAB};
  if (mgl_sampling_state_init(state, &request, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  mgl_sampling_state_count(state, s->tokens, PROMPT + answer);
}

// --- exact probabilities -------------------------------------------------------------------------

static double exact_logit(const sequence *s, const mgl_sampling *p, uint32_t answer, int32_t id) {
  double logit = (double)s->logits[id];
  uint32_t in_prompt = 0;
  uint32_t generated = 0;
  for (uint32_t i = 0; i < STOPS; i++) {
    if (s->stops[i] == id && answer < p->min_tokens) {
      return -INFINITY;
    }
  }
  for (uint32_t i = 0; i < p->bias_count; i++) {
    logit += p->biases[i].token == id ? (double)p->biases[i].value : 0;
  }
  for (uint32_t i = 0; i < PROMPT + answer; i++) {
    in_prompt += i < PROMPT && s->tokens[i] == id ? 1 : 0;
    generated += i >= PROMPT && s->tokens[i] == id ? 1 : 0;
  }
  if (p->repetition_penalty != 0 && in_prompt + generated > 0) {
    logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
  }
  logit -= p->frequency_penalty * generated;
  return logit - (generated > 0 ? p->presence_penalty : 0);
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

static void exact_probabilities(const sequence *s, const mgl_sampling *p, uint32_t answer,
                                double *out) {
  ranked order[VOCAB];
  double total = 0;
  for (int i = 0; i < VOCAB; i++) {
    order[i] = (ranked){exact_logit(s, p, answer, i) / p->temperature, i};
    out[i] = 0;
  }
  qsort(order, VOCAB, sizeof *order, by_rank);
  int count = VOCAB;
  while (exp(order[count - 1].logit - order[0].logit) < p->min_p) {
    count--;
  }
  count = p->top_k > 0 && (int)p->top_k < count ? (int)p->top_k : count;
  for (int i = 0; i < count; i++) {
    total += exp(order[i].logit - order[0].logit);
  }
  double reached = 0;
  int kept = 0;
  while (kept < count && (kept == 0 || reached < p->top_p * total)) {
    reached += exp(order[kept++].logit - order[0].logit);
  }
  for (int i = 0; i < kept; i++) {
    out[order[i].id] = exp(order[i].logit - order[0].logit) / reached;
  }
}

// --- distributions -------------------------------------------------------------------------------

#if defined(MGL_TEST_SANITIZED)
enum { SAMPLES = 8000 };
#else
enum { SAMPLES = 40000 };
#endif

// Cells of at least 10 expected samples; the rest is one cell.
static void check_chi_squared(size_t idx, const double *expected, const unsigned *found) {
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
    fail_msg("case %zu: chi-squared %.1f over %d cells, at most %.1f", idx, chi2, cells, limit);
  }
}

// The position is what makes a sample random, so all samples of a case have the same edits: the
// sampler's state, made for one position, is used at many. stop_position moves along.
static void check_distribution(mgl_sampler *sampler, size_t idx, mgl_sampling p) {
  sequence s;
  double expected[VOCAB];
  unsigned found[VOCAB] = {0};
  mgl_sampling_state state;
  make_sequence(idx, &s);
  p.seed = 1000 + idx;
  p.biases = s.biases;
  exact_probabilities(&s, &p, ANSWER, expected);
  open_state(&s, &p, ANSWER, &state);
  bool holds = p.min_tokens > ANSWER;
  mgl_sample_row row = {.logits = s.logits, .best = mgl_argmax(s.logits, VOCAB), .state = &state};
  for (uint32_t i = 0; i < SAMPLES; i++) {
    row.position = PROMPT + ANSWER + i;
    state.rule.stop_position = row.position + (holds ? 1 : 0);
    uint32_t id = mgl_sample(sampler, &row);
    assert_true(id < VOCAB);
    if (expected[id] == 0) {
      fail_msg("case %zu: sampled %u, which is excluded", idx, id);
    }
    found[id]++;
  }
  check_chi_squared(idx, expected, found);
  mgl_sampling_state_reset(&state);
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
      // Edges of min-p lie between the logits' steps of 0.25, so that no rounding decides.
      {.temperature = 1.0, .top_p = 1, .min_p = 0.07},
      {.temperature = 2.0, .top_p = 0.8, .min_p = 0.2},
      {.temperature = 1.5, .top_k = 50, .top_p = 1, .min_p = 0.1},
      {.temperature = 1.5, .top_k = 60, .top_p = 0.7, .min_p = 0.05},
      {.temperature = 1.0, .top_p = 1, .repetition_penalty = 1.3},
      {.temperature = 1.0, .top_p = 1, .repetition_penalty = 0.8},
      {.temperature = 1.2, .top_k = 80, .top_p = 1, .repetition_penalty = 1.1},
      {.temperature = 1.0, .top_p = 1, .presence_penalty = 1.5},
      {.temperature = 1.0, .top_p = 1, .presence_penalty = -0.75},
      {.temperature = 1.0, .top_p = 1, .frequency_penalty = 0.5},
      {.temperature = 1.0, .top_p = 1, .frequency_penalty = -0.125},
      {.temperature = 1.0, .top_p = 1, .bias_count = 8},
      {.temperature = 0.9, .top_k = 30, .top_p = 1, .bias_count = 8},
      {.temperature = 1.0, .top_p = 1, .min_tokens = ANSWER + 1},
      {.temperature = 1.0, .top_p = 1, .min_tokens = ANSWER},
      {.temperature = 1.0, .top_k = 20, .top_p = 1, .min_tokens = ANSWER + 5, .bias_count = 8},
      {.temperature = 1.4,
       .top_k = 90,
       .top_p = 0.93,
       .min_p = 0.011,
       .repetition_penalty = 1.17,
       .presence_penalty = 0.6,
       .frequency_penalty = 0.3,
       .bias_count = 8,
       .min_tokens = ANSWER + 10},
      {.temperature = 0.6,
       .top_p = 1,
       .min_p = 0.003,
       .repetition_penalty = 1.05,
       .presence_penalty = -0.4,
       .frequency_penalty = 0.05,
       .bias_count = 5},
  };
  mgl_sampler *sampler = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_sampler_create(VOCAB, &sampler, &err), MGL_OK);
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    check_distribution(sampler, c, cases[c]);
  }
  mgl_sampler_destroy(sampler);
}

// --- greedy --------------------------------------------------------------------------------------

static uint32_t sample(mgl_sampler *sampler, const float *logits, uint32_t count,
                       const mgl_sampling *sampling, uint32_t position) {
  mgl_sampling_state state = {.rule = mgl_sampling_rule_of(sampling, 1)};
  mgl_sample_row row = {logits, mgl_argmax(logits, count), position, &state, NULL};
  return mgl_sample(sampler, &row);
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
  for (uint32_t i = 0; i < 100; i++) {
    assert_int_equal(sample(sampler, logits, 5, &greedy, i), 1);
    assert_int_equal(sample(sampler, logits, 5, &top_1, i), 1);
    assert_int_equal(sample(sampler, logits, 5, &tiny_p, i), 1);
  }
  // All of the largest have a share of the largest, and nothing else has all of it.
  mgl_sampling all_p = {.temperature = 5, .top_p = 1, .min_p = 1};
  unsigned found[5] = {0};
  for (uint32_t i = 0; i < 1000; i++) {
    found[sample(sampler, logits, 5, &all_p, i)]++;
  }
  assert_true(found[1] > 400 && found[3] > 400 && found[1] + found[3] == 1000);
  // A largest logit that is no number is found wherever it is, however the token is chosen.
  static const float broken[][5] = {
      {NAN, -INFINITY, 1, 3, 0}, {1, 2, NAN, 3, 0},
      {1, 2, 0, 3, NAN},         {NAN, NAN, NAN, NAN, NAN},
      {1, INFINITY, 0, 3, 2},    {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};
  mgl_sampling warm = {.temperature = 1, .top_k = 2, .top_p = 0.9};
  mgl_sampling any = {.temperature = 1, .top_p = 1};
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
    bool finite = isfinite(broken[i][mgl_argmax(broken[i], 5)]);
    finite = finite || isfinite(broken[i][sample(sampler, broken[i], 5, &greedy, 0)]);
    finite = finite || isfinite(broken[i][sample(sampler, broken[i], 5, &warm, 0)]);
    finite = finite || isfinite(broken[i][sample(sampler, broken[i], 5, &any, 0)]);
    assert_false(finite);
  }
  mgl_sampler_destroy(sampler);
}

// Greedy choices follow edits: compared with the largest of the exact logits.
static void greedy_choices_are_edited(void **state) {
  (void)state;
  static const mgl_sampling cases[] = {
      {.top_p = 1, .repetition_penalty = 1.5},
      {.top_p = 1, .presence_penalty = 2},
      {.top_p = 1, .frequency_penalty = 0.7},
      {.top_p = 1, .bias_count = 8},
      {.top_p = 1, .min_tokens = ANSWER + 1},
      {.top_p = 1,
       .repetition_penalty = 1.2,
       .presence_penalty = 1,
       .frequency_penalty = 0.3,
       .bias_count = 8,
       .min_tokens = ANSWER + 1},
  };
  mgl_sampler *sampler = NULL;
  mgl_error err = {0};
  uint32_t changed = 0;
  assert_int_equal(mgl_sampler_create(VOCAB, &sampler, &err), MGL_OK);
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    for (uint32_t seed = 0; seed < 50; seed++) {
      sequence s;
      mgl_sampling p = cases[c];
      mgl_sampling_state sampling_state;
      make_sequence(seed, &s);
      p.biases = s.biases;
      open_state(&s, &p, ANSWER, &sampling_state);
      mgl_sample_row row = {s.logits, mgl_argmax(s.logits, VOCAB), PROMPT + ANSWER, &sampling_state,
                            NULL};
      uint32_t id = mgl_sample(sampler, &row);
      double best = -INFINITY;
      for (int32_t i = 0; i < VOCAB; i++) {
        double logit = exact_logit(&s, &p, ANSWER, i);
        best = logit > best ? logit : best;
      }
      assert_true(fabs(exact_logit(&s, &p, ANSWER, (int32_t)id) - best) < 1e-5);
      changed += id != row.best ? 1 : 0;
      mgl_sampling_state_reset(&sampling_state);
    }
  }
  assert_true(changed > 50);
  mgl_sampler_destroy(sampler);
}

// --- log probabilities ---------------------------------------------------------------------------

static void log_probabilities_are_those_of_the_logits(void **state) {
  (void)state;
  static const float scales[] = {1, 0.1f, 10};
  mgl_sampler *sampler = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_sampler_create(VOCAB, &sampler, &err), MGL_OK);
  for (size_t c = 0; c < sizeof scales / sizeof scales[0]; c++) {
    float logits[VOCAB];
    ranked order[VOCAB];
    double total = 0;
    draw_logits(c, logits);
    for (int i = 0; i < VOCAB; i++) {
      logits[i] = i % 100 == 7 ? -INFINITY : logits[i] * scales[c];
      order[i] = (ranked){(double)logits[i], i};
    }
    qsort(order, VOCAB, sizeof *order, by_rank);
    for (int i = 0; i < VOCAB; i++) {
      total += exp(order[i].logit - order[0].logit);
    }
    uint32_t best = mgl_argmax(logits, VOCAB);
    for (uint32_t top_count = 0; top_count <= MGL_MAX_TOP_LOGPROBS; top_count++) {
      mgl_token_logprob top[MGL_MAX_TOP_LOGPROBS];
      double logprob = 0;
      uint32_t token = top_count * 23;
      assert_int_equal(mgl_sample_logprobs(sampler, logits, best, token, top_count, top, &logprob),
                       top_count);
      double exact = (double)logits[token] - order[0].logit - log(total);
      assert_true(logprob == exact || fabs(logprob - exact) < 1e-6);
      for (uint32_t i = 0; i < top_count; i++) {
        assert_int_equal(top[i].token, order[i].id);
        assert_true(fabs(top[i].logprob - (order[i].logit - order[0].logit - log(total))) < 1e-6);
      }
    }
  }
  // No more than there are.
  float few[3] = {1, 2, 0};
  mgl_token_logprob top[MGL_MAX_TOP_LOGPROBS];
  double logprob = 0;
  mgl_sampler_destroy(sampler);
  assert_int_equal(mgl_sampler_create(3, &sampler, &err), MGL_OK);
  assert_int_equal(mgl_sample_logprobs(sampler, few, 1, 0, 20, top, &logprob), 3);
  assert_true(top[0].token == 1 && top[1].token == 0 && top[2].token == 2);
  assert_true(top[1].logprob == logprob);
  mgl_sampler_destroy(sampler);
}

static void a_sampler_needs_memory(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  for (uint64_t nth = 1; nth <= 4; nth++) {
    mgl_sampler *sampler = NULL;
    mgl_error err = {0};
    mgl_alloc_fail_nth(nth);
    assert_int_equal(mgl_sampler_create(VOCAB, &sampler, &err), MGL_ERR_MEMORY);
    mgl_alloc_fail_nth(0);
    assert_null(sampler);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_follow_the_exact_distribution),
      cmocka_unit_test(greedy_takes_the_first_of_the_largest),
      cmocka_unit_test(greedy_choices_are_edited),
      cmocka_unit_test(log_probabilities_are_those_of_the_logits),
      cmocka_unit_test(a_sampler_needs_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
