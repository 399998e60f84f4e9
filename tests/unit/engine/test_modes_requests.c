// 500 requests, of a dense model and of a mixture, get the same tokens with the same bits of log
// probabilities at every level and in every mode, whatever is set besides, on one, two and three
// threads: served in iterations of prompts, of decoding sequences and of both, greedy and sampled.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "support/mixed_requests.h"
#include "unit/engine/small_engine.h"

#ifdef MGL_TEST_SANITIZED
enum { REQUESTS = 80 };
#else
enum { REQUESTS = 500 };
#endif
enum { CONTEXT = 128 };

static const char *const ways[] = {
    "{\"graph_mode\": \"MEGA\"}",
    "{\"level\": 0}",
    "{\"level\": 1}",
    "{\"level\": 2}",
    "{\"level\": 3}",
    "{\"graph_mode\": \"FULL\"}",
    "{\"graph_mode\": \"FULL_DECODE_ONLY\", \"graph_sizes\": [16]}",
    "{\"preset\": \"fastest-graphs\", \"capture_sizes\": [1, 5, 40], \"compile_sizes\": [3]}",
    "{\"splitting_ops\": [\"attention\", \"linear\"], \"use_compiler\": false}",
};
enum { WAYS = sizeof ways / sizeof *ways };

static void serve(const mgl_config *config, const char *json, uint32_t threads, mixed_served *out) {
  static mgl_compilation c;
  const mgl_model_folder folder = {.config = *config};
  mgl_runner *runner = NULL;
  mgl_engine *engine = NULL;
  mgl_compilation_init(&c);
  MUST(mgl_compilation_read(&c, "test", json, &err));
  MUST(mgl_compilation_check(&c, NULL, &err));
  const mgl_build build = {.threads = threads,
                           .sequences = 40,
                           .iteration_tokens = 64,
                           .sequence_tokens = CONTEXT,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 3,
                           .compilation = &c};
  memset(out, 0, sizeof *out);
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  const mgl_engine_options options = {
      .mode = mgl_runner_usual_mode(runner), .prefix_cache = true, .chunk_tokens = 48};
  assert_int_equal(options.mode, c.mode);
  MUST(mgl_engine_create(runner, &options, &engine, &err));
  MUST(mixed_requests_run(engine, REQUESTS, SMALL_ENGINE_VOCAB, out, &err));
  assert_false(out->failed);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

static void check(const mgl_config *config) {
  static mixed_served expected, found;
  uint64_t begin = mgl_clock_ns();
  serve(config, ways[0], 1, &expected);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    assert_true(expected.answers.counts[i] > 0);
  }
  for (size_t i = 0; i < WAYS; i++) {
    uint32_t threads = 1 + (uint32_t)(i + 1) % 3;
    serve(config, ways[i], threads, &found);
    if (memcmp(&found.answers, &expected.answers, sizeof found.answers) != 0) {
      fail_msg("%s, %u threads: other tokens or log probabilities than %s", ways[i], threads,
               ways[0]);
    }
    assert_true(found.prompts > 0 && found.decodes > 0 && found.both > 0);
  }
  print_message("%d ways of %d requests: %.1f s\n", WAYS + 1, REQUESTS,
                (double)(mgl_clock_ns() - begin) / 1e9);
}

static void a_dense_model(void **state) {
  (void)state;
  const mgl_config config = small_engine_config(CONTEXT);
  check(&config);
}

static void a_mixture_of_experts(void **state) {
  (void)state;
  mgl_config config = small_engine_config(CONTEXT);
  config.family = MGL_FAMILY_QWEN2_MOE;
  config.mixture = (mgl_mixture){.expert_count = 6,
                                 .slots = 2,
                                 .inner_size = 48,
                                 .shared_size = 32,
                                 .shared_gate = true,
                                 .renormalise = true,
                                 .scale = 1};
  check(&config);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dense_model),
      cmocka_unit_test(a_mixture_of_experts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
