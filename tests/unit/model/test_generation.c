// generation_config.json: what it says of sampling, what is not applied, and everything refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/config.h"

static mgl_status parse_generation(const char *json, mgl_generation *out, mgl_error *err) {
  *out = (mgl_generation){
      .eos_ids = {7}, .eos_count = 1, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
  return mgl_generation_parse(json, strlen(json), "generation_config.json", 1000, out, err);
}

static void test_generation(void **state) {
  (void)state;
  mgl_generation g;
  mgl_error err = {0};
  assert_int_equal(parse_generation("{}", &g, &err), MGL_OK);
  assert_int_equal(g.eos_count, 1);
  assert_int_equal(g.eos_ids[0], 7);
  assert_int_equal(parse_generation("{\"eos_token_id\":[3,999],\"do_sample\":true,"
                                    "\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,"
                                    "\"repetition_penalty\":1.1,\"pad_token_id\":5,"
                                    "\"min_p\":0.05,\"min_new_tokens\":3}",
                                    &g, &err),
                   MGL_OK);
  assert_int_equal(g.eos_count, 2);
  assert_int_equal(g.eos_ids[1], 999);
  assert_true(g.do_sample && g.temperature == 0.6 && g.top_k == 20 && g.top_p == 0.95);
  assert_true(g.repetition_penalty == 1.1 && g.min_p == 0.05 && g.min_new_tokens == 3);
  assert_string_equal(g.unapplied, "");
  assert_int_equal(parse_generation("{\"eos_token_id\":8}", &g, &err), MGL_OK);
  assert_int_equal(g.eos_count, 1);
  assert_int_equal(g.eos_ids[0], 8);
}

// transformers samples from 50 tokens where top_k is absent; max_new_tokens is a default of -n.
static void test_generation_defaults(void **state) {
  (void)state;
  mgl_generation g;
  mgl_error err = {0};
  assert_int_equal(parse_generation("{\"do_sample\":true}", &g, &err), MGL_OK);
  assert_int_equal(g.top_k, 50);
  assert_int_equal(parse_generation("{\"do_sample\":true,\"top_k\":0}", &g, &err), MGL_OK);
  assert_int_equal(g.top_k, 0);
  assert_int_equal(parse_generation("{\"do_sample\":false}", &g, &err), MGL_OK);
  assert_int_equal(g.top_k, 0);
  assert_int_equal(g.max_new_tokens, 0);
  assert_true(g.repetition_penalty == 1 && g.min_p == 0 && g.min_new_tokens == 0);
  assert_int_equal(parse_generation("{\"max_new_tokens\":77}", &g, &err), MGL_OK);
  assert_int_equal(g.max_new_tokens, 77);
}

// What changes the output and is not applied is named; values that change nothing are not.
static void test_generation_unapplied(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{\"min_length\":5,\"typical_p\":0.9,\"num_beams\":4}", "typical_p, num_beams, min_length"},
      {"{\"suppress_tokens\":[1],\"bad_words_ids\":[[2]],\"stop_strings\":\"x\"}",
       "suppress_tokens, bad_words_ids, stop_strings"},
      {"{\"penalty_alpha\":0.6,\"eta_cutoff\":1e-3,\"encoder_repetition_penalty\":2}",
       "eta_cutoff, penalty_alpha, encoder_repetition_penalty"},
      {"{\"min_p\":0,\"typical_p\":1.0,\"num_beams\":1,\"suppress_tokens\":[],"
       "\"stop_strings\":null,\"max_length\":20,\"epsilon_cutoff\":0.0,\"guidance_scale\":null,"
       "\"repetition_penalty\":1}",
       ""},
      {"{\"max_length\":4096}", "max_length"},
      {"{\"max_length\":4096,\"max_new_tokens\":5}", ""},
      {"{\"num_beams\":\"many\"}", "num_beams"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_generation g;
    mgl_error err = {0};
    assert_int_equal(parse_generation(cases[i][0], &g, &err), MGL_OK);
    assert_string_equal(g.unapplied, cases[i][1]);
  }
}

static void test_generation_refused(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{\"eos_token_id\":1000}", "below vocab_size (1000)"},
      {"{\"eos_token_id\":true}", "eos_token_id"},
      {"{\"do_sample\":1}", "do_sample"},
      {"{\"temperature\":-0.5}", "temperature"},
      {"{\"temperature\":\"hot\"}", "temperature"},
      {"{\"top_k\":-1}", "top_k"},
      {"{\"top_k\":1.5}", "top_k"},
      {"{\"top_p\":1.5}", "top_p"},
      {"{\"max_new_tokens\":0}", "max_new_tokens"},
      {"{\"min_new_tokens\":-1}", "min_new_tokens"},
      {"{\"min_p\":1.5}", "min_p"},
      {"{\"repetition_penalty\":0}", "repetition_penalty"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_generation g;
    mgl_error err = {0};
    if (parse_generation(cases[i][0], &g, &err) != MGL_ERR_FORMAT ||
        strstr(err.text, cases[i][1]) == NULL ||
        strstr(err.text, "generation_config.json: ") != err.text) {
      fail_msg("%s: \"%s\"", cases[i][0], err.text);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_generation),
      cmocka_unit_test(test_generation_defaults),
      cmocka_unit_test(test_generation_unapplied),
      cmocka_unit_test(test_generation_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
