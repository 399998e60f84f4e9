// Sampling against transformers: what it generates with penalties, biases and stop tokens that must
// wait, the log probabilities that it gives, and the probabilities that its warpers leave
// (tests/data/sampling, made by tools/make_sampling_cases.py).
//
// The models are in float32, so tokens differ only where the best two logits nearly tie: then a
// case ends there. Log probabilities may differ by what transformers in float32 is off float64, a
// few times.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "support/must.h"
#include "support/reference_model.h"

enum { MOST_TOKENS = 64, MOST_STOPS = 8, SAMPLES = 40000 };

#define LOGPROB_ERRORS 6  // in units of transformers' own float32 error

typedef struct fixture {
  json_t *cases;
  mgl_reference_model of;
  mgl_runner *runner;
} fixture;

static void set_up(fixture *f, const char *name) {
  char path[512];
  json_error_t error;
  *f = (fixture){0};
  (void)snprintf(path, sizeof path, "%s/sampling/%s.json", MGL_TEST_DATA, name);
  f->cases = json_load_file(path, 0, &error);
  if (f->cases == NULL) {
    fail_msg("%s: %s", path, error.text);
  }
  mgl_reference_model_open(&f->of, MGL_TEST_DATA "/reference", name, 1);
  mgl_build options = {.threads = 2,
                       .sequences = 1,
                       .sequence_tokens = (uint32_t)f->of.reference.prompt_count + MOST_TOKENS,
                       .weights = MGL_WEIGHTS_MAPPED};
  MUST(mgl_runner_create(&f->of.model, &options, &f->runner, &err));
}

static void tear_down(fixture *f) {
  mgl_runner_destroy(f->runner);
  mgl_reference_model_close(&f->of);
  json_decref(f->cases);
}

static double number(const json_t *object, const char *key, double otherwise) {
  const json_t *value = json_object_get(object, key);
  return value == NULL ? otherwise : json_number_value(value);
}

static double item(const json_t *array, size_t i) {
  const json_t *value = json_array_get(array, i);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

// --- generations ---------------------------------------------------------------------------------

typedef struct expected {
  const fixture *f;
  const json_t *generation;
  size_t idx;
  size_t at;  // tokens so far
  double worst;
  bool undecided;  // the best two were too close: what follows is another text
} expected;

static void check_logprob(expected *e, double found, double wanted) {
  double error = fabs(found - wanted);
  e->worst = error > e->worst ? error : e->worst;
  if (!(error <= LOGPROB_ERRORS * e->f->of.reference.fp32_logit_error)) {
    fail_msg("case %zu, token %zu: log probability %.7f, expected %.7f", e->idx, e->at, found,
             wanted);
  }
}

static bool check_token(void *context, const mgl_generated_token *token) {
  expected *e = context;
  const json_t *g = e->generation;
  assert_true(e->at < json_array_size(json_object_get(g, "tokens")));
  const json_t *top = json_array_get(json_object_get(g, "top_logprobs"), e->at);
  const json_t *top_tokens = json_array_get(json_object_get(g, "top_tokens"), e->at);
  assert_int_equal(token->top_count, json_array_size(top));
  for (uint32_t i = 0; i < token->top_count; i++) {
    check_logprob(e, token->top[i].logprob, item(top, i));
    // Neighbours of nearly one probability may stand the other way round.
    bool close = (i > 0 && item(top, i - 1) - item(top, i) < 1e-3) || i + 1 == token->top_count ||
                 item(top, i) - item(top, i + 1) < 1e-3;
    if (!close) {
      assert_int_equal(token->top[i].token, (int32_t)item(top_tokens, i));
    }
  }
  if (token->token != (int32_t)item(json_object_get(g, "tokens"), e->at)) {
    double margin = item(json_object_get(g, "margins"), e->at);
    if (margin > LOGPROB_ERRORS * e->f->of.reference.fp32_logit_error) {
      fail_msg("case %zu: token %zu is %d", e->idx, e->at, token->token);
    }
    e->undecided = true;
    return false;
  }
  check_logprob(e, token->logprob, item(json_object_get(g, "logprobs"), e->at));
  e->at++;
  bool last = e->at == json_array_size(json_object_get(g, "tokens"));
  assert_true(token->finish == MGL_FINISH_STOP ? last : true);
  return !last;
}

static double check_generation(const fixture *f, size_t idx) {
  expected e = {.f = f, .idx = idx};
  mgl_logit_bias biases[8];
  int32_t stops[MOST_STOPS];
  mgl_engine *engine = NULL;
  uint32_t request_idx = 0;
  e.generation = json_array_get(json_object_get(f->cases, "generations"), idx);
  const json_t *bias_list = json_object_get(e.generation, "biases");
  const json_t *stop_list = json_object_get(e.generation, "stops");
  uint32_t bias_count = (uint32_t)json_array_size(bias_list);
  for (uint32_t i = 0; i < bias_count; i++) {
    const json_t *pair = json_array_get(bias_list, i);
    biases[i] = (mgl_logit_bias){(int32_t)item(pair, 0), (float)item(pair, 1)};
  }
  for (size_t i = 0; i < json_array_size(stop_list); i++) {
    stops[i] = (int32_t)item(stop_list, i);
  }
  mgl_request request = {
      .prompt = f->of.reference.prompt,
      .prompt_count = f->of.reference.prompt_count,
      .max_new_tokens = MOST_TOKENS,
      .sampling = {.top_p = 1,
                   .repetition_penalty = number(e.generation, "repetition_penalty", 1),
                   .min_tokens = (uint32_t)number(e.generation, "min_tokens", 0),
                   .biases = biases,
                   .bias_count = bias_count,
                   .logprobs = true,
                   .top_logprobs = MGL_MAX_TOP_LOGPROBS},
      .stop_ids = stops,
      .stop_count = (uint32_t)json_array_size(stop_list)};
  MUST(mgl_engine_create(f->runner, &(mgl_engine_options){0}, &engine, &err));
  MUST(mgl_engine_submit(engine, &request, &request_idx, &err));
  MUST(mgl_engine_run(engine, check_token, NULL, &e, &err));
  assert_true(e.undecided || e.at == json_array_size(json_object_get(e.generation, "tokens")));
  assert_false(mgl_engine_has_work(engine));
  mgl_engine_destroy(engine);
  return e.worst;
}

// --- distributions -------------------------------------------------------------------------------

static void check_distribution(const fixture *f, size_t idx) {
  const json_t *d = json_array_get(json_object_get(f->cases, "distributions"), idx);
  const json_t *tokens = json_object_get(d, "tokens");
  const json_t *probabilities = json_object_get(d, "probabilities");
  const mgl_reference *reference = &f->of.reference;
  uint32_t vocab_size = (uint32_t)reference->vocab_size;
  mgl_sampling p = {.temperature = number(d, "temperature", 1),
                    .top_k = (uint32_t)number(d, "top_k", 0),
                    .top_p = number(d, "top_p", 1),
                    .min_p = number(d, "min_p", 0),
                    .repetition_penalty = number(d, "repetition_penalty", 1),
                    .seed = idx};
  mgl_sampling_request request = {.sampling = &p,
                                  .prompt = reference->prompt,
                                  .prompt_count = (uint32_t)reference->prompt_count,
                                  .max_new_tokens = 1,
                                  .vocab_size = vocab_size};
  mgl_sampling_state state;
  mgl_sampler *sampler = NULL;
  unsigned *found = calloc(vocab_size, sizeof *found);
  MUST(mgl_sampling_state_init(&state, &request, &err));
  MUST(mgl_sampler_create(vocab_size, &sampler, &err));
  const float *logits = reference->logits + (reference->position_count - 1) * vocab_size;
  mgl_sample_row row = {.logits = logits, .best = mgl_argmax(logits, vocab_size), .state = &state};
  for (uint32_t i = 0; i < SAMPLES; i++) {
    row.position = i;
    found[mgl_sample(sampler, &row)]++;
  }
  double chi2 = 0;
  unsigned kept = 0;
  uint32_t cells = 0;
  for (size_t i = 0; i < json_array_size(tokens); i++) {
    double e = item(probabilities, i) * SAMPLES;
    unsigned n = found[(size_t)item(tokens, i)];
    kept += n;
    if (e >= 10) {
      chi2 += ((double)n - e) * ((double)n - e) / e;
      cells++;
    }
  }
  assert_int_equal(kept, SAMPLES);  // nothing that transformers leaves out
  double limit = cells + 5 * sqrt(2.0 * cells) + 3;
  if (chi2 > limit) {
    fail_msg("distribution %zu: chi-squared %.1f over %u cells", idx, chi2, cells);
  }
  free(found);
  mgl_sampler_destroy(sampler);
  mgl_sampling_state_reset(&state);
}

static void sampling_is_that_of_transformers(void **unused) {
  (void)unused;
  static const char *const names[] = {"llama_llama3_f32", "mistral_f32"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    fixture f;
    double worst = 0;
    set_up(&f, names[i]);
    for (size_t j = 0; j < json_array_size(json_object_get(f.cases, "generations")); j++) {
      double error = check_generation(&f, j);
      worst = error > worst ? error : worst;
    }
    for (size_t j = 0; j < json_array_size(json_object_get(f.cases, "distributions")); j++) {
      check_distribution(&f, j);
    }
    print_message("%s: log probabilities are off by %.2g (float32's own error: %.2g)\n", names[i],
                  worst, f.of.reference.fp32_logit_error);
    tear_down(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sampling_is_that_of_transformers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
