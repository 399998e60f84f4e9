// The router against what can be said by hand: which experts, in which order, with what weights;
// ties, groups, biases, NaNs; and that a token's routes do not depend on the others.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/route.h"

enum { MOST_SLOTS = 512 };

// Routes one token and compares the experts' numbers.
static void expect_experts(mgl_route_args args, const uint32_t *expected, float *weights) {
  float out[2 * MOST_SLOTS];
  memset(out, 0xff, sizeof out);
  args.out = out;
  mgl_route(&args, 0, 1);
  for (uint32_t s = 0; s < args.slots; s++) {
    assert_true(out[2 * s] == (float)expected[s]);
    weights[s] = out[2 * s + 1];
  }
}

static void expect_near(float found, double expected) {
  assert_true(fabs(found - expected) <= 1e-6 * fabs(expected));
}

static void softmax_before_and_after_the_choice(void **state) {
  (void)state;
  const float logits[] = {0, logf(4), logf(2), logf(3)};  // softmax: 0.1, 0.4, 0.2, 0.3
  const uint32_t expected[] = {1, 3};
  float weights[2];
  mgl_route_args args = {.logits = logits, .expert_count = 4, .slots = 2, .scale = 1};
  expect_experts(args, expected, weights);
  expect_near(weights[0], 0.4);
  expect_near(weights[1], 0.3);
  args.renormalise = true;
  args.scale = 3;
  expect_experts(args, expected, weights);
  expect_near(weights[0], 3 * 4.0 / 7);
  expect_near(weights[1], 3 * 3.0 / 7);
  args.renormalise = false;
  args.scale = 1;
  args.scores = MGL_SCORES_SOFTMAX_OF_CHOSEN;
  expect_experts(args, expected, weights);
  expect_near(weights[0], 4.0 / 7);
  expect_near(weights[1], 3.0 / 7);
}

// A bias changes who is chosen, and no weight.
static void sigmoid_with_a_bias_that_chooses(void **state) {
  (void)state;
  const float logits[] = {0, 1, 2, -1};
  const float bias[] = {0.5f, 0, 0, 0};
  const uint32_t plain[] = {1, 2};
  const uint32_t biased[] = {0, 2};
  float weights[2];
  mgl_route_args args = {
      .logits = logits, .expert_count = 4, .slots = 2, .scale = 1, .scores = MGL_SCORES_SIGMOID};
  expect_experts(args, plain, weights);
  expect_near(weights[0], 1 / (1 + exp(-1)));
  args.bias = bias;
  expect_experts(args, biased, weights);
  expect_near(weights[0], 0.5);
  expect_near(weights[1], 1 / (1 + exp(-2)));
}

// Experts 0 to 3 and 4 to 7: the second group has the better two, though the best is in the first.
static void groups_by_their_two_best(void **state) {
  (void)state;
  const float logits[] = {3, -9, -9, -9, 2, -3, 2, -5};
  const uint32_t grouped[] = {4, 6};
  const uint32_t both[] = {0, 4};
  const uint32_t three[] = {4, 5, 6};
  float weights[3];
  mgl_route_args args = {.logits = logits,
                         .expert_count = 8,
                         .slots = 2,
                         .scale = 1,
                         .scores = MGL_SCORES_SIGMOID,
                         .groups = 2,
                         .top_groups = 1};
  expect_experts(args, grouped, weights);
  args.slots = 3;
  expect_experts(args, three, weights);
  args.slots = 2;
  args.top_groups = 2;
  expect_experts(args, both, weights);
}

static void ties_go_to_the_lower_number(void **state) {
  (void)state;
  float logits[MOST_SLOTS] = {0};
  uint32_t expected[MOST_SLOTS];
  float weights[MOST_SLOTS];
  for (uint32_t i = 0; i < MOST_SLOTS; i++) {
    expected[i] = i;
  }
  mgl_route_args args = {.logits = logits, .expert_count = MOST_SLOTS, .scale = 1};
  for (args.slots = 1; args.slots <= MOST_SLOTS; args.slots *= 2) {
    expect_experts(args, expected, weights);
    expect_near(weights[args.slots - 1], 1.0 / MOST_SLOTS);
  }
  const float some[] = {1, 2, 1, 2, 1};
  const uint32_t of_some[] = {0, 1, 3};
  expect_experts((mgl_route_args){.logits = some, .expert_count = 5, .slots = 3, .scale = 1},
                 of_some, weights);
}

static void nans_and_infinities_choose_experts_that_there_are(void **state) {
  (void)state;
  const float logits[] = {NAN, -INFINITY, 1, NAN, -INFINITY};
  const float all_nan[] = {NAN, NAN, NAN};
  const uint32_t expected[] = {0, 1, 2};
  float weights[3];
  expect_experts((mgl_route_args){.logits = logits, .expert_count = 5, .slots = 3, .scale = 1},
                 expected, weights);
  for (int scores = 0; scores < MGL_SCORES_COUNT; scores++) {
    expect_experts((mgl_route_args){.logits = all_nan,
                                    .expert_count = 3,
                                    .slots = 3,
                                    .scale = 1,
                                    .scores = (mgl_scores)scores},
                   expected, weights);
  }
}

// Against a choice by sorting, for random logits; each token alone gives the same bits.
static void random_tokens(void **state) {
  (void)state;
  enum { TOKENS = 50, EXPERTS = 61, SLOTS = 7 };
  float logits[TOKENS][EXPERTS];
  float out[TOKENS][SLOTS][2];
  float alone[TOKENS][SLOTS][2];
  srand(3);
  for (uint32_t i = 0; i < TOKENS * EXPERTS; i++) {
    logits[i / EXPERTS][i % EXPERTS] = (float)(rand() % 40) / 8;  // ties are many
  }
  mgl_route_args args = {.logits = logits[0],
                         .expert_count = EXPERTS,
                         .slots = SLOTS,
                         .scale = 1,
                         .renormalise = true,
                         .out = out[0][0]};
  mgl_route(&args, 0, TOKENS);
  args.out = alone[0][0];
  for (uint32_t t = TOKENS; t-- > 0;) {
    mgl_route(&args, t, t + 1);
  }
  assert_memory_equal(out, alone, sizeof out);
  for (uint32_t t = 0; t < TOKENS; t++) {
    double sum = 0;
    for (uint32_t s = 0; s < SLOTS; s++) {
      sum += out[t][s][1];
      assert_true(s == 0 || out[t][s][0] > out[t][s - 1][0]);
      uint32_t e = (uint32_t)out[t][s][0];
      uint32_t before = 0;  // experts that come before it
      for (uint32_t i = 0; i < EXPERTS; i++) {
        before += logits[t][i] > logits[t][e] || (logits[t][i] == logits[t][e] && i < e);
      }
      assert_true(before < SLOTS);
    }
    expect_near((float)sum, 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(softmax_before_and_after_the_choice),
      cmocka_unit_test(sigmoid_with_a_bias_that_chooses),
      cmocka_unit_test(groups_by_their_two_best),
      cmocka_unit_test(ties_go_to_the_lower_number),
      cmocka_unit_test(nans_and_infinities_choose_experts_that_there_are),
      cmocka_unit_test(random_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
