// Parameters and edits: ranges, rules, which tokens have an edit and what it makes of a logit,
// against formulas written down independently; the arithmetic that host and device share.
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
#include "batch/sampling.h"

enum { VOCAB = 300 };

static uint32_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

static void parameters_are_checked(void **state) {
  (void)state;
  static const mgl_logit_bias large = {.token = 1, .value = 101};
  static const struct {
    mgl_sampling sampling;
    const char *message;
  } bad[] = {
      {{.temperature = -1, .top_p = 1}, "temperature: expected 0 to 100, found -1"},
      {{.temperature = NAN, .top_p = 1}, "temperature"},
      {{.temperature = 1, .top_p = 0}, "top-p"},
      {{.temperature = 1, .top_p = 1.5}, "top-p"},
      {{.top_p = 1, .min_p = -0.1}, "min-p"},
      {{.top_p = 1, .min_p = 1.1}, "min-p: expected 0 to 1, found 1.1"},
      {{.top_p = 1, .repetition_penalty = -1}, "repetition penalty"},
      {{.top_p = 1, .repetition_penalty = 0.001}, "repetition penalty: expected 0.01 to 100"},
      {{.top_p = 1, .repetition_penalty = NAN}, "repetition penalty"},
      {{.top_p = 1, .presence_penalty = 2.1}, "presence penalty: expected -2 to 2"},
      {{.top_p = 1, .frequency_penalty = -2.1}, "frequency penalty"},
      {{.top_p = 1, .bias_count = 1, .biases = &large}, "logit bias: expected -100 to 100"},
      {{.top_p = 1, .bias_count = MGL_MAX_LOGIT_BIASES + 1}, "at most 1024, found 1025"},
      {{.top_p = 1, .top_logprobs = 21}, "at most 20, found 21"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    mgl_error err = {0};
    assert_true(mgl_sampling_check(&bad[i].sampling, &err) != MGL_OK);
    if (strstr(err.text, bad[i].message) == NULL) {
      fail_msg("case %zu: %s", i, err.text);
    }
  }
}

static void requests_are_checked(void **state) {
  (void)state;
  static const mgl_logit_bias outside = {.token = VOCAB, .value = 1};
  static const mgl_logit_bias negative = {.token = -1, .value = 1};
  static const mgl_logit_bias twice[] = {{3, 1}, {4, 1}, {3, 2}};
  static const int32_t stops[] = {0, 1, 2};
  static const uint32_t whole[] = {3};
  static const uint32_t empty[] = {1, 1};
  static const struct {
    mgl_sampling sampling;
    uint32_t vocab_size;
    const char *message;
  } bad[] = {
      {{.top_p = 2}, VOCAB, "top-p"},
      {{.top_p = 1, .bias_count = 1, .biases = &outside}, VOCAB, "0 to 299, found 300"},
      {{.top_p = 1, .bias_count = 1, .biases = &negative}, VOCAB, "found -1"},
      {{.top_p = 1, .bias_count = 3, .biases = twice}, VOCAB, "token 3 twice"},
      {{.top_p = 1, .min_tokens = 11}, VOCAB, "at most the most tokens, 10, found 11"},
      {{.top_p = 1, .min_tokens = 1}, 3, "3 stop tokens in a vocabulary of 3"},
      {{.top_p = 1, .bad_runs = {stops, whole, 513}},
       VOCAB,
       "at most 512 runs of tokens, found 513"},
      {{.top_p = 1, .bad_runs = {stops, empty, 2}}, VOCAB, "expected 1 to 1024 tokens, found 0"},
      {{.top_p = 1, .bad_runs = {&outside.token, empty, 1}}, VOCAB, "0 to 299, found 300"},
      {{.top_p = 1, .bad_runs = {stops, whole, 1}}, 4, "to leave a token of a vocabulary of 4"},
      {{.top_p = 1, .bad_runs = {stops, whole, 1}, .allowed = stops, .allowed_count = 1},
       VOCAB,
       "one of bad words and allowed tokens"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    mgl_sampling_state made;
    mgl_error err = {0};
    mgl_sampling_request request = {.sampling = &bad[i].sampling,
                                    .prompt = stops,
                                    .prompt_count = 3,
                                    .max_new_tokens = 10,
                                    .stop_ids = stops,
                                    .stop_count = 3,
                                    .vocab_size = bad[i].vocab_size};
    assert_true(mgl_sampling_state_init(&made, &request, &err) != MGL_OK);
    if (strstr(err.text, bad[i].message) == NULL) {
      fail_msg("case %zu: %s", i, err.text);
    }
    mgl_sampling_state_reset(&made);
  }
}

static void rules_say_what_is_asked_for(void **state) {
  (void)state;
  static const mgl_logit_bias bias = {.token = 1, .value = 1};
  static const struct {
    mgl_sampling sampling;
    uint32_t flags;
  } cases[] = {
      {{.top_p = 1}, 0},
      {{.top_p = 1, .temperature = 1}, MGL_SAMPLING_DRAWS},
      {{.top_p = 1, .temperature = 1, .top_k = 1}, 0},
      {{.top_p = 1, .repetition_penalty = 1}, 0},
      {{.top_p = 1, .repetition_penalty = 1.1}, MGL_SAMPLING_EDITS | MGL_SAMPLING_COUNTS},
      {{.top_p = 1, .presence_penalty = -1}, MGL_SAMPLING_EDITS | MGL_SAMPLING_COUNTS},
      {{.top_p = 1, .frequency_penalty = 1}, MGL_SAMPLING_EDITS | MGL_SAMPLING_COUNTS},
      {{.top_p = 1, .bias_count = 1, .biases = &bias}, MGL_SAMPLING_EDITS},
      {{.top_p = 1, .min_tokens = 4}, MGL_SAMPLING_HOLDS},
      {{.top_p = 1, .logprobs = true, .top_logprobs = 3}, MGL_SAMPLING_LOGPROBS},
      {{.top_p = 1, .top_logprobs = 3}, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_sampling_rule rule = mgl_sampling_rule_of(&cases[i].sampling, 7);
    assert_int_equal(rule.flags, cases[i].flags);
    assert_true(rule.repetition_penalty > 0);
    assert_int_equal(rule.stop_position, 7 + cases[i].sampling.min_tokens);
    assert_int_equal(rule.top_logprobs, rule.flags & MGL_SAMPLING_LOGPROBS ? 3 : 0);
  }
  mgl_sampling_rule rule = mgl_sampling_rule_of(
      &(mgl_sampling){.temperature = 1e-60, .top_p = 1e-60, .min_p = 1e-60}, 0);
  assert_true(isfinite(rule.inverse) && rule.inverse > 1e29f);
  assert_true(rule.top_p > 0 && rule.least == -28);
  rule = mgl_sampling_rule_of(&(mgl_sampling){.temperature = 0.5, .top_p = 1, .min_p = 0.5}, 0);
  assert_true(rule.inverse == 2 && fabsf(rule.least + 0.693147f) < 1e-6f);
}

// --- edits ---------------------------------------------------------------------------------------

static const mgl_logit_edit *find_edit(const mgl_sampling_state *state, int32_t token) {
  const mgl_logit_edit *found = NULL;
  for (uint32_t i = 0; i < state->edit_count; i++) {
    if (state->edits[i].token == token) {
      assert_null(found);  // each token once
      found = &state->edits[i];
    }
  }
  return found;
}

static uint32_t count_in(const int32_t *tokens, uint32_t count, int32_t token) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; i++) {
    found += tokens[i] == token ? 1 : 0;
  }
  return found;
}

// What a logit must become, from the whole sequence.
static double expected_logit(const mgl_sampling_request *r, const int32_t *tokens, uint32_t count,
                             int32_t token, double logit) {
  const mgl_sampling *p = r->sampling;
  uint32_t generated = count_in(tokens + r->prompt_count, count - r->prompt_count, token);
  if (count - r->prompt_count < p->min_tokens && count_in(r->stop_ids, r->stop_count, token) > 0) {
    return -INFINITY;
  }
  for (uint32_t i = 0; i < p->bias_count; i++) {
    logit += p->biases[i].token == token ? (double)p->biases[i].value : 0;
  }
  if (p->repetition_penalty != 0 && count_in(tokens, count, token) > 0) {
    logit *= logit > 0 ? 1 / p->repetition_penalty : p->repetition_penalty;
  }
  return logit - p->frequency_penalty * generated - (generated > 0 ? p->presence_penalty : 0);
}

static void check_edits(const mgl_sampling_request *r, const mgl_sampling_state *state,
                        const int32_t *tokens, uint32_t count) {
  for (int32_t token = 0; token < VOCAB; token++) {
    const mgl_logit_edit *edit = find_edit(state, token);
    float logit = (float)(token % 17) * 0.7f - 5;
    bool applies = edit != NULL && mgl_edits_apply(&state->rule, count);
    double found = (double)(applies ? mgl_edited_logit(&state->rule, edit, count, logit) : logit);
    double expected = expected_logit(r, tokens, count, token, (double)logit);
    if (found != expected && !(fabs(found - expected) < 1e-5)) {
      fail_msg("token %d after %u: %g, expected %g", token, count, found, expected);
    }
  }
}

// Random requests, token after token.
static void edits_follow_the_sequence(void **state) {
  (void)state;
  enum { PROMPT = 50, NEW = 40, ROUNDS = 300 };
  uint64_t random = 11;
  for (int round = 0; round < ROUNDS; round++) {
    int32_t tokens[PROMPT + NEW];
    int32_t stops[3];
    mgl_logit_bias biases[5];
    mgl_sampling p = {.top_p = 1, .biases = biases};
    uint32_t mask = next_random(&random);
    p.repetition_penalty = mask & 1 ? 0.5 + next_random(&random) % 10 * 0.2 : 0;
    p.presence_penalty = mask & 2 ? 1.25 : 0;
    p.frequency_penalty = mask & 4 ? -0.375 : 0;
    p.bias_count = mask & 8 ? 5 : 0;
    p.min_tokens = mask & 16 ? 1 + next_random(&random) % NEW : 0;
    uint32_t prompt_count = 1 + next_random(&random) % PROMPT;
    for (uint32_t i = 0; i < PROMPT + NEW; i++) {
      tokens[i] = (int32_t)(next_random(&random) % 20 * 7);
    }
    for (uint32_t i = 0; i < 3; i++) {  // one of them twice, now and then
      stops[i] = (int32_t)(next_random(&random) % 10 * 14);
    }
    for (int32_t i = 0; i < 5; i++) {
      biases[i] = (mgl_logit_bias){i * 21, (float)i - 2.5f};
    }
    mgl_sampling_request request = {.sampling = &p,
                                    .prompt = tokens,
                                    .prompt_count = prompt_count,
                                    .max_new_tokens = NEW,
                                    .stop_ids = stops,
                                    .stop_count = 3,
                                    .vocab_size = VOCAB};
    mgl_sampling_state made;
    mgl_error err = {0};
    if (mgl_sampling_state_init(&made, &request, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    assert_true((made.edits != NULL) == ((mask & 31) != 0));
    for (uint32_t count = prompt_count; count < prompt_count + NEW;) {
      mgl_sampling_state_count(&made, tokens, count);
      assert_true(made.edit_count <= made.edit_capacity || made.edits == NULL);
      check_edits(&request, &made, tokens, count);
      count += 1 + next_random(&random) % 3;  // not each one by itself
    }
    mgl_sampling_state_reset(&made);
  }
}

// Of random runs over few tokens: what is barred behind every beginning of a sequence.
static void runs_bar_their_last_token(void **state) {
  enum { PROMPT = 5, NEW = 60, RUNS = 40, LONGEST = 4, FEW = 3 };
  uint64_t random = 11;
  uint32_t met = 0;
  (void)state;
  for (int round = 0; round < 50; round++) {
    int32_t tokens[PROMPT + NEW];
    int32_t run_tokens[RUNS * LONGEST];
    uint32_t ends[RUNS];
    uint32_t end = 0;
    for (uint32_t i = 0; i < RUNS; i++) {
      for (uint32_t left = 1 + next_random(&random) % LONGEST; left > 0; left--) {
        run_tokens[end++] = (int32_t)(next_random(&random) % FEW);
      }
      ends[i] = end;
    }
    for (uint32_t i = 0; i < PROMPT + NEW; i++) {
      tokens[i] = (int32_t)(next_random(&random) % FEW);
    }
    const mgl_sampling p = {.top_p = 1, .bad_runs = {run_tokens, ends, RUNS}};
    mgl_sampling_request request = {.sampling = &p,
                                    .prompt = tokens,
                                    .prompt_count = PROMPT,
                                    .max_new_tokens = NEW,
                                    .vocab_size = VOCAB};
    mgl_sampling_state made;
    mgl_error err = {0};
    assert_int_equal(mgl_sampling_state_init(&made, &request, &err), MGL_OK);
    for (uint32_t count = PROMPT; count <= PROMPT + NEW; count++) {
      uint32_t expected = 0;
      mgl_sampling_state_count(&made, tokens, count);
      for (uint32_t i = 0, begin = 0; i < RUNS; begin = ends[i++]) {
        uint32_t same = 0;
        uint32_t before = ends[i] - begin - 1;
        while (same < before && count - before + same >= PROMPT && count >= before &&
               tokens[count - before + same] == run_tokens[begin + same]) {
          same++;
        }
        if (same == before) {
          assert_true(expected < made.barred_count);
          assert_int_equal(run_tokens[begin + before], made.barred[expected++]);
        }
        met += same == before && before > 1 ? 1 : 0;
      }
      assert_int_equal(expected, made.barred_count);
    }
    mgl_sampling_state_reset(&made);
  }
  assert_true(met > 1000);
}

static void states_need_memory(void **state) {
  (void)state;
  static const int32_t prompt[] = {1, 2, 3};
  static const uint32_t ends[] = {3};
  static const mgl_sampling p = {
      .top_p = 1, .repetition_penalty = 2, .bad_runs = {prompt, ends, 1}};
  mgl_sampling_request request = {.sampling = &p,
                                  .prompt = prompt,
                                  .prompt_count = 3,
                                  .max_new_tokens = 5,
                                  .vocab_size = VOCAB};
  int64_t live = mgl_alloc_live();
  for (uint64_t nth = 1; nth <= 5; nth++) {
    mgl_sampling_state made;
    mgl_error err = {0};
    mgl_alloc_fail_nth(nth);
    assert_int_equal(mgl_sampling_state_init(&made, &request, &err), MGL_ERR_MEMORY);
    mgl_alloc_fail_nth(0);
    mgl_sampling_state_reset(&made);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

// --- arithmetic ----------------------------------------------------------------------------------

static void weights_are_exponentials(void **state) {
  (void)state;
  uint64_t random = 3;
  double worst = 0;
  assert_true(mgl_logit_weight(0) == UINT64_C(1) << MGL_WEIGHT_BITS);
  assert_true(mgl_logit_weight(-28) == 0 && mgl_logit_weight(-INFINITY) == 0);
  assert_true(mgl_logit_weight(-1e30f) == 0 && mgl_logit_weight(-27.5f) == 1);
  for (int i = 0; i < 2000000; i++) {
    float below = -(float)next_random(&random) * 0x1p-31f * (i % 2 == 0 ? 28 : 1);
    double exact = exp((double)below) * 0x1p40;
    double error = fabs((double)mgl_logit_weight(below) - exact);
    double bound = 3e-7 - 6e-8 * (double)below;
    assert_true(error <= 1 + exact * bound);
    worst = below > -1 && error / exact > worst ? error / exact : worst;
  }
  print_message("largest relative error of a weight above 1/e: %.2g\n", worst);
  assert_true(worst > 0);
}

static void sums_are_cut_where_they_should(void **state) {
  (void)state;
  assert_true(mgl_chosen_sum(0, 10) == 1 && mgl_chosen_sum(0.999999, 10) == 10);
  assert_true(mgl_chosen_sum(0.5, 10) == 6 && mgl_chosen_sum(0, 1) == 1);
  assert_true(mgl_chosen_sum(1 - 0x1p-53, UINT64_C(1) << 60) <= UINT64_C(1) << 60);
  assert_true(mgl_top_p_sum(0.5f, 10) == 5 && mgl_top_p_sum(0.5f, 11) == 6);
  assert_true(mgl_top_p_sum(1e-30f, 10) == 1 && mgl_top_p_sum(1, 10) == 10);
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
      cmocka_unit_test(parameters_are_checked),
      cmocka_unit_test(requests_are_checked),
      cmocka_unit_test(rules_say_what_is_asked_for),
      cmocka_unit_test(edits_follow_the_sequence),
      cmocka_unit_test(runs_bar_their_last_token),
      cmocka_unit_test(states_need_memory),
      cmocka_unit_test(weights_are_exponentials),
      cmocka_unit_test(sums_are_cut_where_they_should),
      cmocka_unit_test(uniform_is_in_range_and_keyed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
