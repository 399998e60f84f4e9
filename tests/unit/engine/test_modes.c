// Every mode computes the same bits as mode mega, of dense models, of mixtures and of one whose ops
// are not fused: in random iterations of prompts, of decoding sequences, and of both. And each mode
// launches what it says: L + 1 graphs and L ops an iteration in pieces. (test_modes_requests.c serves
// requests in all of them.) Sanitized trees see three threads and a quarter of the iterations: what
// is repeated there is data.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/compilation.h"
#include "engine/piece_mode.h"
#include "engine/runner.h"
#include "support/plan_feed.h"
#include "support/poisoned_model.h"
#include "support/programs.h"

enum { VOCAB = 300, CONTEXT = 96, SEQUENCES = 9, TOKENS = 48 };

#ifdef MGL_TEST_SANITIZED
enum { ITERATIONS = 9, LEAST_THREADS = 3 };
#else
enum { ITERATIONS = 36, LEAST_THREADS = 1 };
#endif

static uint64_t random_state;

static uint32_t next_random(uint32_t below) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % below;
}

// A compilation by its JSON text.
static void read_compilation(mgl_compilation *c, const char *json) {
  mgl_compilation_init(c);
  MUST(mgl_compilation_read(c, "test", json, &err));
  MUST(mgl_compilation_check(c, NULL, &err));
}

static mgl_runner *make_runner(const mgl_config *config, uint32_t threads,
                               const mgl_compilation *compilation) {
  mgl_runner *runner = NULL;
  const mgl_model_folder folder = {.config = *config};
  const mgl_build build = {.threads = threads,
                           .iteration_tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .sequence_tokens = CONTEXT,
                           .logit_rows = TOKENS,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 5,
                           .compilation = compilation};
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  return runner;
}

// --- the same bits -------------------------------------------------------------------------------

// Fills the plan of a random iteration: some sequences decode, some compute a chunk. kind 0: only
// decoding, 1: only prompts, 2: both. A sequence that is full begins again.
static void random_plan(mgl_plan *plan, uint32_t kind, uint32_t position[SEQUENCES]) {
  static int32_t pages[SEQUENCES][CONTEXT / MGL_PAGE_TOKENS];
  static int32_t tokens[SEQUENCES][CONTEXT];
  const uint32_t page_count = CONTEXT / MGL_PAGE_TOKENS;
  uint32_t left = TOKENS;
  mgl_plan_clear(plan);
  for (uint32_t s = 0; s < SEQUENCES && left > 0; s++) {
    bool chunk = kind == 1 || (kind == 2 && next_random(2) == 0);
    uint32_t count = chunk ? 2 + next_random(20) : 1;
    if (next_random(4) == 0 && plan->token_count > 0) {
      continue;
    }
    if (position[s] + count > CONTEXT) {
      position[s] = 0;
    }
    count = count < left ? count : left;
    for (uint32_t i = 0; i < page_count; i++) {
      pages[s][i] = (int32_t)(((i * 5 + s) % page_count) * SEQUENCES + s);
    }
    for (uint32_t i = 0; i < count; i++) {
      tokens[s][position[s] + i] = (int32_t)next_random(VOCAB);
    }
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = &tokens[s][position[s]],
                                         .token_count = count,
                                         .position = position[s],
                                         .pages = pages[s],
                                         .page_count = page_count,
                                         .logits = (mgl_plan_logits)next_random(3)});
    position[s] += count;
    left -= count;
  }
}

// The logits of all iterations, one behind the other; *count says how many.
static float *run_mode(const mgl_config *config, uint32_t threads, mgl_mode mode,
                       const mgl_compilation *compilation, size_t *count) {
  mgl_runner *runner = make_runner(config, threads, compilation);
  mgl_plan *plan = NULL;
  uint32_t position[SEQUENCES] = {0};
  float *out = calloc((size_t)ITERATIONS * TOKENS * VOCAB, sizeof *out);
  assert_non_null(out);
  MUST(mgl_plan_create(mgl_runner_limits(runner), &plan, &err));
  random_state = 7;
  *count = 0;
  for (uint32_t i = 0; i < ITERATIONS; i++) {
    mgl_logits logits = {0};
    random_plan(plan, i % 3, position);
    MUST(mgl_runner_run(runner, mode, plan, &logits, &err));
    size_t values = (size_t)plan->logit_row_count * VOCAB;
    memcpy(out + *count, logits.rows, values * sizeof *out);
    for (uint32_t row = 0; row < plan->logit_row_count; row++) {
      uint32_t best = logits.best[row];
      for (uint32_t v = 0; v < VOCAB; v++) {
        assert_true(logits.rows[(size_t)row * VOCAB + v] <=
                    logits.rows[(size_t)row * VOCAB + best]);
      }
    }
    *count += values;
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
  return out;
}

static mgl_config mixture_config(void) {
  mgl_config config = small_mixture_config();
  config.layer_count = 3;
  return config;
}

static void check_modes(const mgl_config *config) {
  // What is set besides the mode; the first is nothing.
  static const char *const settings[] = {
      NULL,
      "{\"capture_sizes\": [8, 1, 20], \"graph_mode\": \"full_and_piecewise\"}",
      "{\"graph_sizes\": [40], \"compile_sizes\": [13, 30], \"graph_mode\": \"PIECEWISE\"}",
      "{\"splitting_ops\": [\"linear_add\", \"attention\"]}",
      "{\"splitting_ops\": [\"attention\"], \"use_compiler\": false}",
  };
  const bool is_fused = config->family != MGL_FAMILY_PHI;
  size_t expected_count = 0, found_count = 0;
  float *expected = run_mode(config, 1, MGL_MODE_MEGA, NULL, &expected_count);
  for (size_t i = 0; i < expected_count; i++) {
    assert_true(expected[i] == expected[i]);
  }
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    mgl_compilation c;
    if (i == 3 && !is_fused) {
      continue;  // it has no such op
    }
    if (settings[i] != NULL) {
      read_compilation(&c, settings[i]);
    }
    for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
      int64_t live = mgl_alloc_live();
      for (uint32_t threads = LEAST_THREADS; threads <= 3; threads += 2) {
        float *found = run_mode(config, threads, (mgl_mode)mode, settings[i] == NULL ? NULL : &c,
                                &found_count);
        assert_int_equal(found_count, expected_count);
        if (memcmp(found, expected, found_count * sizeof *found) != 0) {
          fail_msg("%s, %s, %u threads: other bits than in mode mega",
                   mgl_mode_name((mgl_mode)mode), settings[i] == NULL ? "" : settings[i], threads);
        }
        free(found);
      }
      assert_int_equal(mgl_alloc_live(), live);
    }
  }
  free(expected);
}

static void a_dense_model_has_the_same_bits(void **state) {
  (void)state;
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  check_modes(&config);
}

static void a_mixture_has_the_same_bits(void **state) {
  (void)state;
  mgl_config config = mixture_config();
  check_modes(&config);
}

// However tasks share the experts, in every mode.
static void every_balance_has_the_same_bits(void **state) {
  (void)state;
  mgl_config config = mixture_config();
  size_t expected_count = 0, found_count = 0;
  float *expected = run_mode(&config, 1, MGL_MODE_MEGA, NULL, &expected_count);
  for (uint32_t balance = 0; mgl_balance_name(balance) != NULL; balance++) {
    mgl_compilation c;
    char text[64];
    (void)snprintf(text, sizeof text, "{\"expert_balance\": \"%s\"}", mgl_balance_name(balance));
    read_compilation(&c, text);
    for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
      for (uint32_t threads = 1; threads <= 5; threads += 2) {
        float *found = run_mode(&config, threads, (mgl_mode)mode, &c, &found_count);
        assert_int_equal(found_count, expected_count);
        if (memcmp(found, expected, found_count * sizeof *found) != 0) {
          fail_msg("%s, %s, %u threads: other bits than in mode mega",
                   mgl_mode_name((mgl_mode)mode), text, threads);
        }
        free(found);
      }
    }
  }
  free(expected);
}

static void a_dense_model_has_no_balance(void **state) {
  (void)state;
  mgl_compilation c;
  mgl_error err = {0};
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  mgl_model_folder folder = {.config = config};
  mgl_runner *runner = NULL;
  read_compilation(&c, "{\"expert_balance\": \"hybrid\"}");
  const mgl_build build = {.weights = MGL_WEIGHTS_DUMMY, .sequence_tokens = 32, .compilation = &c};
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_ARGUMENT);
  assert_string_equal(
      err.text, "expert_balance: expected a mixture of experts, found a model without experts");
}

static void ops_that_are_not_fused_have_the_same_bits(void **state) {
  (void)state;
  mgl_config config = small_config(MGL_FAMILY_PHI);
  config.dtype = MGL_DTYPE_F32;
  check_modes(&config);
}

// --- launches ------------------------------------------------------------------------------------

static mgl_plan_limits limits_of(void) {
  return (mgl_plan_limits){.tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .pages_per_sequence = CONTEXT / MGL_PAGE_TOKENS,
                           .page_tokens = MGL_PAGE_TOKENS};
}

// The iterations that mgl_piece_mode_run gets: kinds[i] as for random_plan.
typedef struct script {
  const uint32_t *kinds;
  uint32_t left;
  mgl_plan *plan;
  uint32_t position[SEQUENCES];
} script;

static const mgl_plan *next_of_script(void *context, const mgl_logits *logits) {
  script *s = context;
  (void)logits;
  if (s->left == 0) {
    return NULL;
  }
  s->left--;
  do {
    random_plan(s->plan, *s->kinds, s->position);
  } while (mgl_plan_decodes(s->plan) != (*s->kinds == 0));
  s->kinds++;
  return s->plan;
}

// What a mode launches in these iterations of a model with two layers.
static mgl_launch_counts count_launches(mgl_mode mode, const char *settings, const uint32_t *kinds,
                                        uint32_t iterations) {
  mgl_compilation c;
  if (settings != NULL) {
    read_compilation(&c, settings);
  }
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  mgl_runner *runner = make_runner(&config, 2, settings == NULL ? NULL : &c);
  script s = {.kinds = kinds, .left = iterations};
  const mgl_plan_limits limits = limits_of();
  MUST(mgl_plan_create(&limits, &s.plan, &err));
  random_state = 3;
  MUST(mgl_runner_loop(runner, mode, next_of_script, &s, &err));
  mgl_launch_counts counts = mgl_runner_launches(runner);
  mgl_plan_destroy(s.plan);
  mgl_runner_destroy(runner);
  return counts;
}

static void modes_launch_what_they_say(void **state) {
  (void)state;
  static const uint32_t kinds[] = {0, 1, 2, 0};  // two decode, two do not
  enum { LAYERS = 2, OPS = 2 + 5 * LAYERS + 1 };
  static const struct {
    mgl_mode mode;
    uint32_t graphs, ops;
    const char *settings;
  } cases[] = {
      {MGL_MODE_COMPILED, 0, 4 * OPS, NULL},
      {MGL_MODE_PIECEWISE, 4 * (LAYERS + 1), 4 * LAYERS, NULL},
      {MGL_MODE_FULL, 4, 0, NULL},
      {MGL_MODE_FULL_DECODE_ONLY, 2, 2 * OPS, NULL},
      {MGL_MODE_FULL_AND_PIECEWISE, 2 + 2 * (LAYERS + 1), 2 * LAYERS, NULL},
      // A piece before each linear_add and behind the last; what has more tokens than the largest
      // size runs op by op.
      {MGL_MODE_PIECEWISE, 4 * (2 * LAYERS + 1), 8 * LAYERS,
       "{\"splitting_ops\": [\"linear_add\"]}"},
      {MGL_MODE_FULL, 2, 2 * OPS, "{\"capture_sizes\": [9], \"graph_mode\": \"FULL\"}"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    mgl_launch_counts counts = count_launches(cases[i].mode, cases[i].settings, kinds, 4);
    if (counts.graphs != cases[i].graphs || counts.ops != cases[i].ops || counts.iterations != 4) {
      fail_msg("%s: expected %u graphs and %u ops, found %u and %u", mgl_mode_name(cases[i].mode),
               cases[i].graphs, cases[i].ops, (unsigned)counts.graphs, (unsigned)counts.ops);
    }
  }
}

// --- numbers that are none, and the check of level 1 ----------------------------------------------

// One token's embedding is not a number: the first op that reads it is named.
static void a_nan_is_found_where_it_is_made(void **state) {
  (void)state;
  static const char *const levels[] = {"{\"level\": 0, \"check_numbers\": true}",
                                       "{\"level\": 2, \"check_numbers\": true}"};
  temp_folder folder;
  mgl_model_folder model;
  poisoned_model_write(MGL_TEST_DATA, &folder);
  MUST(mgl_model_folder_open(folder.path, MGL_NEED_WEIGHTS, &model, &err));
  for (size_t i = 0; i < 2; i++) {
    mgl_compilation c;
    mgl_runner *runner = NULL;
    mgl_plan *plan = NULL;
    mgl_logits logits;
    mgl_error err = {0};
    const int32_t page = 0;
    int32_t token = POISONED_TOKEN - 1;
    read_compilation(&c, levels[i]);
    const mgl_build build = {.threads = 2,
                             .iteration_tokens = 4,
                             .sequences = 1,
                             .sequence_tokens = 16,
                             .compilation = &c};
    assert_int_equal(mgl_runner_create(&model, &build, &runner, &err), MGL_OK);
    assert_int_equal(mgl_plan_create(mgl_runner_limits(runner), &plan, &err), MGL_OK);
    for (; token <= POISONED_TOKEN; token++) {
      mgl_plan_clear(plan);
      mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = &token,
                                           .token_count = 1,
                                           .pages = &page,
                                           .page_count = 1,
                                           .logits = MGL_LOGITS_LAST});
      mgl_status status =
          mgl_runner_run(runner, mgl_runner_usual_mode(runner), plan, &logits, &err);
      assert_int_equal(status, token == POISONED_TOKEN ? MGL_ERR_FORMAT : MGL_OK);
    }
    if (strstr(err.text, "op embed computed a NaN in \"embedded\", row 0") == NULL) {
      fail_msg("%s", err.text);
    }
    mgl_plan_destroy(plan);
    mgl_runner_destroy(runner);
  }
  mgl_model_folder_close(&model);
  temp_folder_remove(&folder);
}

static void level_1_says_that_all_compiles(void **state) {
  (void)state;
  mgl_compilation c;
  const mgl_config configs[] = {small_config(MGL_FAMILY_QWEN3), mixture_config(),
                                small_config(MGL_FAMILY_PHI)};
  read_compilation(&c, "{\"level\": 1}");
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
    mgl_runner *runner = make_runner(&configs[i], 1, &c);
    assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_EAGER);
    assert_string_equal(mgl_runner_note(runner),
                        "level 1: all pieces and the whole program compile, and are verified");
    mgl_runner_destroy(runner);
  }
}

// Other kernels for some ops: the same bits in all modes, near those of the usual ones.
static void variants_of_kernels_are_taken_in_all_modes(void **state) {
  (void)state;
  static mgl_compilation c;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  size_t usual_count = 0, count = 0;
  uint32_t others = 0;
  read_compilation(&c, "{\"variant\": {\"attention\": \"scalar\", \"rmsnorm\": \"scalar\"}}");
  float *usual = run_mode(&config, 1, MGL_MODE_MEGA, NULL, &usual_count);
  float *expected = run_mode(&config, 1, MGL_MODE_EAGER, &c, &count);
  assert_int_equal(count, usual_count);
  for (size_t i = 0; i < count; i++) {
    float difference = expected[i] - usual[i];
    assert_true(difference < 0.1f && difference > -0.1f);
    others += difference != 0;
  }
  assert_true(mgl_simd_detected() == MGL_SIMD_SCALAR || getenv("MEGALITH_SIMD") != NULL ||
              others > 0);
  for (int mode = 0; mode < MGL_MODE_COUNT; mode++) {
    float *found = run_mode(&config, 2, (mgl_mode)mode, &c, &count);
    assert_memory_equal(found, expected, count * sizeof *found);
    free(found);
  }
  free(usual);
  free(expected);
}

static bool has_file(const temp_folder *folder, const char *name) {
  char path[TEMP_PATH_BYTES + 64];
  (void)snprintf(path, sizeof path, "%s/rank_0/%s", folder->path, name);
  return access(path, F_OK) == 0 && unlink(path) == 0;
}

static void what_was_compiled_is_dumped(void **state) {
  (void)state;
  static const char *const names[] = {"program.txt",
                                      "fused.txt",
                                      "PIECEWISE-4.pieces.txt",
                                      "PIECEWISE-4.graph-0.json",
                                      "PIECEWISE-4.graph-2.json",
                                      "FULL-4.graph-0.json",
                                      "FULL-4.pieces.txt",
                                      "FULL-4.passes.txt",
                                      "PIECEWISE-4.passes.txt",
                                      "PIECEWISE-4.graph-1.json"};
  temp_folder folder;
  char json[TEMP_PATH_BYTES + 200];
  mgl_compilation c;
  const mgl_config config = small_config(MGL_FAMILY_QWEN3);
  temp_folder_create(&folder);
  (void)snprintf(json, sizeof json,
                 "{\"graph_mode\": \"FULL_AND_PIECEWISE\", \"capture_sizes\": [4], "
                 "\"debug_dump_path\": \"%s\"}",
                 folder.path);
  read_compilation(&c, json);
  mgl_runner *runner = make_runner(&config, 1, &c);
  MUST(mgl_runner_prepare(runner, mgl_runner_usual_mode(runner), &err));
  mgl_runner_destroy(runner);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (!has_file(&folder, names[i])) {
      fail_msg("%s is missing", names[i]);
    }
  }
  (void)snprintf(json, sizeof json, "%s/rank_0", folder.path);
  assert_int_equal(rmdir(json), 0);  // there is nothing else
  temp_folder_remove(&folder);
}

// Before any weight is there.
static void an_unknown_splitting_op_is_refused(void **state) {
  (void)state;
  mgl_compilation c;
  mgl_error err = {0};
  mgl_runner *runner = NULL;
  const mgl_model_folder folder = {.config = small_config(MGL_FAMILY_QWEN3)};
  read_compilation(&c, "{\"splitting_ops\": [\"softmax\"]}");
  mgl_build build = {.sequence_tokens = 16, .weights = MGL_WEIGHTS_DUMMY, .compilation = &c};
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "splitting_ops: \"softmax\" is neither a kind of op"));
  read_compilation(&c, "{\"capture_sizes\": [129], \"graph_mode\": \"FULL\"}");
  assert_int_equal(mgl_runner_create(&folder, &build, &runner, &err), MGL_ERR_LIMIT);
  assert_string_equal(err.text,
                      "capture_sizes: expected at most the 128 tokens of an iteration, found 129");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dense_model_has_the_same_bits),
      cmocka_unit_test(a_mixture_has_the_same_bits),
      cmocka_unit_test(every_balance_has_the_same_bits),
      cmocka_unit_test(a_dense_model_has_no_balance),
      cmocka_unit_test(ops_that_are_not_fused_have_the_same_bits),
      cmocka_unit_test(modes_launch_what_they_say),
      cmocka_unit_test(a_nan_is_found_where_it_is_made),
      cmocka_unit_test(level_1_says_that_all_compiles),
      cmocka_unit_test(variants_of_kernels_are_taken_in_all_modes),
      cmocka_unit_test(what_was_compiled_is_dumped),
      cmocka_unit_test(an_unknown_splitting_op_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
