// The engine against transformers, on every model of tests/data/reference (its README.md lists
// them).
//
// The bar is that of support/reference_run.h. Every SIMD level of this processor is measured,
// prompts in chunks of several sizes, KV pages in scattered order.
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

#include "base/simd.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "model/model_folder.h"
#include "support/must.h"
#include "support/reference_model.h"
#include "support/reference_run.h"

// Under a sanitizer a third of the models and the best SIMD level have to do: the release tree runs
// all.
#ifdef MGL_TEST_SANITIZED
enum { MODEL_STRIDE = 3, SANITIZED = 1 };
#else
enum { MODEL_STRIDE = 1, SANITIZED = 0 };
#endif

enum {
  THREADS = 2,
  SHARDS = 3,
};

// One model, loaded through the real loaders.
typedef struct fixture {
  mgl_reference_model of;
  mgl_runner *runner;
} fixture;

static void set_up(fixture *f, const char *name, mgl_simd simd, uint32_t shard_count) {
  *f = (fixture){0};
  mgl_reference_model_open(&f->of, MGL_TEST_DATA "/reference", name, shard_count);
  mgl_build options = mgl_reference_build(&f->of.reference);
  options.threads = THREADS;
  assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name(simd), 1), 0);
  MUST(mgl_runner_create(&f->of.model, &options, &f->runner, &err));
  assert_int_equal(mgl_runner_simd(f->runner), simd);
}

static void tear_down(fixture *f) {
  mgl_runner_destroy(f->runner);
  mgl_reference_model_close(&f->of);
  (void)unsetenv("MEGALITH_SIMD");
}

// True if the model, run this way, stays within the bar; modes eager and mega must give the same
// bits. Prints its figures.
static bool within_bar(const char *name, mgl_simd simd, uint32_t shard_count,
                       uint32_t chunk_tokens) {
  static const mgl_mode modes[] = {MGL_MODE_EAGER, MGL_MODE_MEGA};
  fixture f;
  mgl_reference_run run;
  char figures[256];
  set_up(&f, name, simd, shard_count);
  mgl_reference_run_open(&run, &f.of, f.runner, modes, 2);
  mgl_reference_verdict verdict = mgl_reference_run_judge(&run, chunk_tokens);
  mgl_reference_verdict_print(&verdict, &f.of.reference, figures, sizeof figures);
  print_message("%-25s %-11s chunk %2u: %s\n", name, mgl_simd_name(simd), chunk_tokens, figures);
  mgl_reference_run_close(&run);
  tear_down(&f);
  return verdict.fine;
}

static void all_models_at_every_simd_level(void **state) {
  (void)state;
  bool fine = true;
  for (int simd = MGL_SIMD_SCALAR; simd < MGL_SIMD_COUNT; simd++) {
    if (simd > (int)mgl_simd_detected()) {
      print_message("%s: skipped, this processor does not have it\n",
                    mgl_simd_name((mgl_simd)simd));
      continue;
    }
    if (SANITIZED && simd != (int)mgl_simd_detected()) {
      print_message("%s: skipped under a sanitizer\n", mgl_simd_name((mgl_simd)simd));
      continue;
    }
    for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STRIDE) {
      const char *name = MGL_REFERENCE_NAMES[i];
      if ((SANITIZED || simd == MGL_SIMD_SCALAR) && strstr(name, "3200") != NULL) {
        print_message("%s: skipped, too slow here\n", name);
        continue;
      }
      fine =
          within_bar(name, (mgl_simd)simd, i % 4 == 0 ? SHARDS : 1, MGL_INVARIANT_TOKENS) && fine;
    }
  }
  assert_true(fine);
}

// Chunk borders inside pages, and a prompt token by token.
static void prompts_in_small_chunks(void **state) {
  (void)state;
  bool fine = true;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STRIDE) {
    if (strstr(MGL_REFERENCE_NAMES[i], "3200") == NULL) {
      fine = within_bar(MGL_REFERENCE_NAMES[i], mgl_simd_detected(), 1, i % 2 == 0 ? 7 : 1) && fine;
    }
  }
  assert_true(fine);
}

typedef struct generated {
  const mgl_reference *reference;
  size_t count;
  size_t first_difference;  // continuation_count if none
} generated;

static bool on_token(void *context, const mgl_generated_token *token) {
  generated *g = context;
  assert_true(g->count < g->reference->continuation_count);
  if (token->token != g->reference->continuation[g->count] && g->count < g->first_difference) {
    g->first_difference = g->count;
  }
  g->count++;
  return true;
}

// The whole engine, fed its own tokens: equal up to the first step that bf16 could turn.
static void generates_the_continuation(void **state) {
  (void)state;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i += MODEL_STRIDE) {
    fixture f;
    mgl_engine *engine = NULL;
    uint32_t request_idx = 0;
    set_up(&f, MGL_REFERENCE_NAMES[i], mgl_simd_detected(), 1);
    generated g = {.reference = &f.of.reference,
                   .first_difference = f.of.reference.continuation_count};
    MUST(mgl_engine_create(f.runner, &(mgl_engine_options){.mode = MGL_MODE_MEGA}, &engine, &err));
    mgl_request request = {.prompt = f.of.reference.prompt,
                           .prompt_count = f.of.reference.prompt_count,
                           .max_new_tokens = (uint32_t)f.of.reference.continuation_count,
                           .sampling = {.temperature = 0, .top_p = 1}};
    MUST(mgl_engine_submit(engine, &request, &request_idx, &err));
    MUST(mgl_engine_run(engine, on_token, NULL, &g, &err));
    assert_int_equal(g.count, f.of.reference.continuation_count);
    print_message("%-25s: %zu of %zu tokens equal\n", MGL_REFERENCE_NAMES[i], g.first_difference,
                  g.count);
    if (g.first_difference < g.count) {
      assert_true(f.of.reference.margins[g.first_difference] <= f.of.reference.bf16_logit_error);
    }
    mgl_engine_destroy(engine);
    tear_down(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_models_at_every_simd_level),
      cmocka_unit_test(prompts_in_small_chunks),
      cmocka_unit_test(generates_the_continuation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
