// One model over several ranks against transformers, on the models of tests/data/reference that can
// be cut, by the bar of support/reference_run.h; and the same bits however their tasks are launched.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka.h needs four of the above
#include <cmocka.h>

#include "engine/runner.h"
#include "model/model_folder.h"
#include "support/must.h"
#include "support/reference_model.h"
#include "support/reference_run.h"

enum { LEAST_MODELS = 4, CHUNK = 7, PROMPT = 12, VOCAB = 320 };

// False if the model cannot be cut into so many parts.
static bool judge(const char *name, uint32_t ranks, bool *fine) {
  static const mgl_mode mega = MGL_MODE_MEGA;
  mgl_reference_model of;
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  mgl_reference_model_open(&of, MGL_TEST_DATA "/reference", name, 1);
  mgl_build options = mgl_reference_build(&of.reference);
  options.threads = 1;
  options.ranks = ranks;
  mgl_status status = mgl_runner_create(&of.model, &options, &runner, &err);
  if (status == MGL_OK) {
    char figures[256];
    mgl_reference_run run;
    mgl_reference_run_open(&run, &of, runner, &mega, 1);
    mgl_reference_verdict verdict = mgl_reference_run_judge(&run, CHUNK);
    mgl_reference_verdict_print(&verdict, &of.reference, figures, sizeof figures);
    print_message("%-25s %u ranks: %s\n", name, ranks, figures);
    *fine = *fine && verdict.fine;
    mgl_reference_run_close(&run);
  } else {
    assert_int_equal(status, MGL_ERR_UNSUPPORTED);
    print_message("%-25s not cut: %s\n", name, err.text);
  }
  mgl_runner_destroy(runner);
  mgl_reference_model_close(&of);
  return status == MGL_OK;
}

static void models_stay_within_the_bar(void **state) {
  (void)state;
  bool fine = true;
  for (uint32_t ranks = 2; ranks <= 4; ranks *= 2) {
    uint32_t models = 0;
    for (size_t i = 0; i < MGL_REFERENCE_COUNT; i++) {
      if (strstr(MGL_REFERENCE_NAMES[i], "3200") == NULL) {
        models += judge(MGL_REFERENCE_NAMES[i], ranks, &fine);
      }
    }
    assert_true(models >= LEAST_MODELS);
  }
  assert_true(fine);
}

// --- the same bits -------------------------------------------------------------------------------

static mgl_config config_of(void) {
  return (mgl_config){.family = MGL_FAMILY_QWEN2,
                      .hidden_size = 96,
                      .intermediate_size = 192,
                      .layer_count = 3,
                      .head_count = 8,
                      .kv_head_count = 2,
                      .head_dim = 32,
                      .vocab_size = VOCAB,
                      .context_tokens = 64,
                      .rms_norm_eps = 1e-6,
                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                      .qkv_bias = true,
                      .dtype = MGL_DTYPE_BF16};
}

// A prompt, and a token behind it: logits of both, in two runs of the megakernel.
static void compute(mgl_build options, float out[2 * VOCAB]) {
  const mgl_model_folder folder = {.config = config_of()};
  mgl_runner *runner = NULL;
  mgl_plan *plan = NULL;
  int32_t tokens[PROMPT + 1];
  const int32_t pages[] = {2, 0, 1, 3};
  options.sequence_tokens = 64;
  options.weights = MGL_WEIGHTS_DUMMY;
  options.seed = 5;
  options.sequences = 1;
  MUST(mgl_runner_create(&folder, &options, &runner, &err));
  MUST(mgl_plan_create(mgl_runner_limits(runner), &plan, &err));
  for (int i = 0; i <= PROMPT; i++) {
    tokens[i] = (i * 37 + 11) % VOCAB;
  }
  for (uint32_t step = 0; step < 2; step++) {
    mgl_logits logits;
    mgl_plan_clear(plan);
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = step == 0 ? tokens : tokens + PROMPT,
                                         .token_count = step == 0 ? PROMPT : 1,
                                         .position = step == 0 ? 0 : PROMPT,
                                         .pages = pages,
                                         .page_count = 4,
                                         .logits = MGL_LOGITS_LAST});
    MUST(mgl_runner_run(runner, MGL_MODE_MEGA, plan, &logits, &err));
    memcpy(out + (size_t)step * VOCAB, logits.rows, VOCAB * sizeof *out);
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
}

static void bits_do_not_depend_on_threads_or_launches(void **state) {
  (void)state;
  static const mgl_build builds[] = {{.threads = 1},
                                     {.threads = 3},
                                     {.threads = 2, .launch = MGL_LAUNCH_JIT},
                                     {.threads = 2, .launch = MGL_LAUNCH_JIT, .schedulers = 1},
                                     {.threads = 2, .launch = MGL_LAUNCH_AOT, .coarse = true},
                                     {.threads = 2, .plain = true},
                                     {.threads = 1}};
  float one[2 * VOCAB];
  compute(builds[0], one);
  for (uint32_t ranks = 2; ranks <= MGL_MAX_RANKS; ranks *= 2) {
    float first[2 * VOCAB];
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
      float found[2 * VOCAB];
      mgl_build options = builds[i];
      options.ranks = ranks;
      compute(options, found);
      if (i == 0) {
        memcpy(first, found, sizeof first);
      }
      assert_memory_equal(found, first, sizeof first);
    }
    for (size_t i = 0; i < 2 * VOCAB; i++) {  // sums in another order, rounded to bf16 between ops
      assert_true(first[i] > one[i] - 0.05f && first[i] < one[i] + 0.05f);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bits_do_not_depend_on_threads_or_launches),
      cmocka_unit_test(models_stay_within_the_bar),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
