// mgl_score: log probabilities against a softmax of the logits that it hands out, whatever the
// chunks; and its refusals.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "engine/score.h"

enum { VOCAB = 97, TOKENS = 150 };

static const mgl_config config = {.family = MGL_FAMILY_QWEN3,
                                  .hidden_size = 64,
                                  .intermediate_size = 96,
                                  .layer_count = 2,
                                  .head_count = 2,
                                  .kv_head_count = 1,
                                  .head_dim = 32,
                                  .vocab_size = VOCAB,
                                  .context_tokens = 256,
                                  .rms_norm_eps = 1e-6,
                                  .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                                  .tie_word_embeddings = true,
                                  .qk_norm = true,
                                  .dtype = MGL_DTYPE_BF16,
                                  .bos_id = -1};

// What on_logits saw.
typedef struct seen {
  size_t count;
  size_t fail_at;  // position at which it fails; TOKENS: never
  float logits[TOKENS][VOCAB];
} seen;

static mgl_status keep(void *context, size_t position, const float *logits, mgl_error *err) {
  seen *s = context;
  assert_int_equal(position, s->count);
  memcpy(s->logits[s->count++], logits, sizeof s->logits[0]);
  return position == s->fail_at ? mgl_error_set(err, MGL_ERR_IO, "stop") : MGL_OK;
}

static mgl_runner *create_runner(uint32_t chunk, double rms_norm_eps) {
  mgl_error err = {0};
  mgl_model_folder folder = {.config = config};
  folder.config.rms_norm_eps = rms_norm_eps;
  mgl_build options = mgl_score_build(TOKENS, 0);
  options.threads = 2;
  options.weights = MGL_WEIGHTS_DUMMY;
  options.iteration_tokens = chunk;
  options.logit_rows = chunk;
  mgl_runner *runner = NULL;
  if (mgl_runner_create(&folder, &options, &runner, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return runner;
}

static void fill_tokens(int32_t *tokens) {
  for (int32_t i = 0; i < TOKENS; i++) {
    tokens[i] = i * 31 % VOCAB;
  }
}

static mgl_status score(uint32_t chunk, const int32_t *tokens, size_t count, seen *s,
                        double *logprobs) {
  mgl_error err = {0};
  mgl_runner *runner = create_runner(chunk, config.rms_norm_eps);
  mgl_score_request request = {.mode = MGL_MODE_EAGER,
                               .tokens = tokens,
                               .count = count,
                               .on_logits = s == NULL ? NULL : keep,
                               .context = s};
  mgl_status status = mgl_score(runner, &request, logprobs, &err);
  mgl_runner_destroy(runner);
  return status;
}

static void test_logprobs(void **state) {
  (void)state;
  static seen whole;
  static seen chunked;
  int32_t tokens[TOKENS];
  double logprobs[TOKENS];
  double chunked_logprobs[TOKENS];
  fill_tokens(tokens);
  whole = (seen){.fail_at = TOKENS};
  chunked = (seen){.fail_at = TOKENS};
  assert_int_equal(score(64, tokens, TOKENS, &whole, logprobs), MGL_OK);
  assert_int_equal(score(7, tokens, TOKENS, &chunked, chunked_logprobs), MGL_OK);
  assert_int_equal(whole.count, TOKENS);
  assert_memory_equal(whole.logits, chunked.logits, sizeof whole.logits);
  assert_true(isnan(logprobs[0]));
  assert_memory_equal(logprobs + 1, chunked_logprobs + 1, sizeof logprobs - sizeof *logprobs);
  for (size_t i = 1; i < TOKENS; i++) {
    long double sum = 0;
    for (size_t j = 0; j < VOCAB; j++) {
      sum += expl(whole.logits[i - 1][j]);
    }
    double expected = (double)(whole.logits[i - 1][tokens[i]] - logl(sum));
    assert_true(fabs(logprobs[i] - expected) < 1e-9);
  }
  assert_int_equal(mgl_alloc_live(), 0);
}

static void test_one_token_without_callback(void **state) {
  (void)state;
  int32_t token = 5;
  double logprob = 0;
  assert_int_equal(score(64, &token, 1, NULL, &logprob), MGL_OK);
  assert_true(isnan(logprob));
}

static void test_failure_of_the_callback(void **state) {
  (void)state;
  static seen s;
  int32_t tokens[TOKENS];
  double logprobs[TOKENS];
  fill_tokens(tokens);
  s = (seen){.fail_at = 70};
  assert_int_equal(score(64, tokens, TOKENS, &s, logprobs), MGL_ERR_IO);
  assert_int_equal(s.count, 71);
  assert_int_equal(mgl_alloc_live(), 0);
}

static void test_logits_that_are_not_finite(void **state) {
  (void)state;
  static seen s;
  int32_t tokens[TOKENS];
  double logprobs[TOKENS];
  mgl_error err = {0};
  fill_tokens(tokens);
  s = (seen){.fail_at = TOKENS};
  mgl_runner *runner = create_runner(64, NAN);
  mgl_score_request request = {
      .mode = MGL_MODE_EAGER, .tokens = tokens, .count = TOKENS, .on_logits = keep, .context = &s};
  assert_int_equal(mgl_score(runner, &request, logprobs, &err), MGL_ERR_FORMAT);
  assert_non_null(strstr(err.text, "not finite (NaN or infinity) at position 0: damaged weights?"));
  assert_int_equal(s.count, 0);
  mgl_runner_destroy(runner);
}

static void test_refusals(void **state) {
  (void)state;
  int32_t tokens[512] = {0};
  double logprobs[512];
  assert_int_equal(score(64, tokens, 0, NULL, logprobs), MGL_ERR_LIMIT);
  assert_int_equal(score(64, tokens, 512, NULL, logprobs), MGL_ERR_LIMIT);
  tokens[1] = VOCAB;
  assert_int_equal(score(64, tokens, 2, NULL, logprobs), MGL_ERR_ARGUMENT);
  tokens[1] = -1;
  assert_int_equal(score(64, tokens, 2, NULL, logprobs), MGL_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_logprobs),
      cmocka_unit_test(test_one_token_without_callback),
      cmocka_unit_test(test_failure_of_the_callback),
      cmocka_unit_test(test_logits_that_are_not_finite),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
