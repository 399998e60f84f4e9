// The numerics contract: the logits of a sequence have the same bits for any number of threads, run
// after run, alone or in a batch, and however its prompt was chunked; on every SIMD level of this
// machine. On the CPU that holds for iterations of any size. What differs from run to run differs by
// the threads' timing, whatever the kernels: the best level repeats its runs 4 times, the others and
// sanitized trees twice; all 10 times with MGL_TEST_LONG. The scalar level, which takes nearly all of
// the time and computes row by row, sees every fourth way, once each, without MGL_TEST_LONG.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/simd.h"
#include "engine/runner.h"

#ifdef MGL_TEST_SANITIZED
enum { REPEATS = 2 };
#else
enum { REPEATS = 4 };
#endif
enum { OTHER_REPEATS = 2, LONG_REPEATS = 10 };

enum { PROMPT = 150, LONG_PROMPT = 1100, DECODED = 6, VOCAB = 211, OTHERS = 7 };
enum { MOST_TOKENS = LONG_PROMPT + DECODED };

// Odd sizes on purpose: widths that are no multiples of a vector, an odd number of heads.
static const mgl_config qwen3_config = {.family = MGL_FAMILY_QWEN3,
                                        .hidden_size = 200,
                                        .intermediate_size = 328,
                                        .layer_count = 2,
                                        .head_count = 6,
                                        .kv_head_count = 2,
                                        .head_dim = 80,
                                        .vocab_size = VOCAB,
                                        .context_tokens = 2048,
                                        .rms_norm_eps = 1e-6,
                                        .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                                        .tie_word_embeddings = true,
                                        .qk_norm = true,
                                        .dtype = MGL_DTYPE_BF16,
                                        .bos_id = -1};
static const mgl_config llama_f32_config = {
    .family = MGL_FAMILY_LLAMA,
    .hidden_size = 96,
    .intermediate_size = 200,
    .layer_count = 2,
    .head_count = 3,
    .kv_head_count = 1,
    .head_dim = 64,
    .vocab_size = VOCAB,
    .context_tokens = 2048,
    .rms_norm_eps = 1e-5,
    .rope = {.kind = MGL_ROPE_LINEAR, .theta = 1e4, .factor = 4},
    .dtype = MGL_DTYPE_F32,
    .bos_id = -1};

// What depends on more than the positions before a token: a window across pages and splits, lengths
// beyond the original context, parts of heads that turn, biases.
static const mgl_config phi3_config = {
    .family = MGL_FAMILY_PHI3,
    .hidden_size = 96,
    .intermediate_size = 136,
    .layer_count = 2,
    .head_count = 6,
    .kv_head_count = 2,
    .head_dim = 48,
    .rotary_dim = 36,
    .vocab_size = VOCAB,
    .context_tokens = 2048,
    .rms_norm_eps = 1e-5,
    .rope = {.kind = MGL_ROPE_DYNAMIC, .theta = 1e4, .factor = 4, .original_context = 100},
    .window_tokens = 70,
    .window_layers = {2},
    .dtype = MGL_DTYPE_BF16,
    .bos_id = -1};
// No op of it is fused.
static const mgl_config phi_config = {.family = MGL_FAMILY_PHI,
                                      .hidden_size = 104,
                                      .intermediate_size = 200,
                                      .layer_count = 2,
                                      .head_count = 4,
                                      .kv_head_count = 2,
                                      .head_dim = 26,
                                      .rotary_dim = 12,
                                      .vocab_size = VOCAB,
                                      .context_tokens = 2048,
                                      .rms_norm_eps = 1e-5,
                                      .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .mlp_bias = true,
                                      .head_bias = true,
                                      .dtype = MGL_DTYPE_BF16,
                                      .bos_id = -1};
static const mgl_config biased_config = {.family = MGL_FAMILY_LLAMA,
                                         .hidden_size = 96,
                                         .intermediate_size = 200,
                                         .layer_count = 2,
                                         .head_count = 3,
                                         .kv_head_count = 1,
                                         .head_dim = 64,
                                         .vocab_size = VOCAB,
                                         .context_tokens = 2048,
                                         .rms_norm_eps = 1e-5,
                                         .rope = {.kind = MGL_ROPE_LONGROPE,
                                                  .theta = 1e4,
                                                  .original_context = 100,
                                                  .attention_factor = 1.2,
                                                  .short_factors = {[0 ... 31] = 1.5f},
                                                  .long_factors = {[0 ... 31] = 7}},
                                         .qkv_bias = true,
                                         .output_bias = true,
                                         .mlp_bias = true,
                                         .window_tokens = 300,
                                         .window_layers = {3},
                                         .dtype = MGL_DTYPE_F32,
                                         .bos_id = -1};

// Mixtures of experts; the first has a layer without one and an expert that all tokens have.
static const mgl_config shared_mixture_config = {.family = MGL_FAMILY_QWEN2_MOE,
                                                 .hidden_size = 104,
                                                 .intermediate_size = 136,
                                                 .layer_count = 3,
                                                 .head_count = 4,
                                                 .kv_head_count = 2,
                                                 .head_dim = 40,
                                                 .vocab_size = VOCAB,
                                                 .context_tokens = 2048,
                                                 .rms_norm_eps = 1e-6,
                                                 .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                                                 .qkv_bias = true,
                                                 .mixture = {.expert_count = 9,
                                                             .slots = 3,
                                                             .inner_size = 72,
                                                             .shared_size = 56,
                                                             .shared_gate = true,
                                                             .renormalise = true,
                                                             .scale = 1,
                                                             .dense_layers = {1}},
                                                 .dtype = MGL_DTYPE_BF16,
                                                 .bos_id = -1};
static const mgl_config f32_mixture_config = {.family = MGL_FAMILY_MIXTRAL,
                                              .hidden_size = 72,
                                              .intermediate_size = 88,
                                              .layer_count = 2,
                                              .head_count = 3,
                                              .kv_head_count = 1,
                                              .head_dim = 48,
                                              .vocab_size = VOCAB,
                                              .context_tokens = 2048,
                                              .rms_norm_eps = 1e-5,
                                              .rope = {.kind = MGL_ROPE_PLAIN, .theta = 1e4},
                                              .mixture = {.expert_count = 12,
                                                          .slots = 4,
                                                          .inner_size = 88,
                                                          .scores = MGL_SCORES_SIGMOID,
                                                          .renormalise = true,
                                                          .scale = 2.5,
                                                          .groups = 4,
                                                          .top_groups = 2},
                                              .dtype = MGL_DTYPE_F32,
                                              .bos_id = -1};
// gpt-oss: sinks, windows in turn, a clamped activation, biases everywhere, experts in MXFP4.
static const mgl_config oss_config = {
    .family = MGL_FAMILY_GPT_OSS,
    .hidden_size = 96,
    .intermediate_size = 72,
    .layer_count = 3,
    .head_count = 6,
    .kv_head_count = 2,
    .head_dim = 40,
    .vocab_size = VOCAB,
    .context_tokens = 2048,
    .rms_norm_eps = 1e-5,
    .rope = {.kind = MGL_ROPE_YARN,
             .theta = 150000,
             .factor = 32,
             .beta_fast = 32,
             .beta_slow = 1,
             .attention_factor = 1.3,
             .original_context = 64},
    .qkv_bias = true,
    .output_bias = true,
    .sinks = true,
    .window_tokens = 30,
    .window_layers = {5},
    .mixture = {.expert_count = 9,
                .slots = 3,
                .inner_size = 72,
                .scores = MGL_SCORES_SOFTMAX_OF_CHOSEN,
                .router_bias = true,
                .expert_biases = true,
                .limit = 1,
                .scale = 1},
    .dtype = MGL_DTYPE_BF16,
    .quantization = {.method = MGL_QUANT_MXFP4,
                     .drawn = {.dtype = MGL_DTYPE_E2M1, .group = MGL_MXFP4_GROUP}},
    .bos_id = -1};

static mgl_kv_dtype kv_dtype;  // of what runs

// How the tokens of the observed sequence reach the model.
typedef struct way {
  uint32_t threads;
  uint32_t chunk;   // prompt tokens an iteration
  uint32_t others;  // sequences that share the iterations
  mgl_mode mode;
  mgl_launch launch;    // of mode mega; AUTO here means hybrid: the overrides below and the labels
  uint32_t schedulers;  // of mode mega
  uint32_t iteration;   // tokens of an iteration at most; 0: 64
} way;

// The default labels of such small graphs are AOT throughout; these make the others wait for JIT
// tasks.
static const mgl_compile_override hybrid[] = {{.op = "attend", .launch = MGL_LAUNCH_JIT},
                                              {.op = "1.gated", .launch = MGL_LAUNCH_JIT}};
static const mgl_compile_override plain_hybrid[] = {{.op = "attention", .launch = MGL_LAUNCH_JIT},
                                                    {.op = "1.active", .launch = MGL_LAUNCH_JIT}};

static int32_t token_at(uint32_t sequence, uint32_t position) {
  return (int32_t)((sequence * 7919u + position * 104729u + 13u) % VOCAB);
}

typedef struct feeding {
  mgl_plan *plan;
  uint32_t prompt;  // tokens of the observed sequence's
  int32_t pages[OTHERS + 1][(MOST_TOKENS + MGL_PAGE_TOKENS - 1) / MGL_PAGE_TOKENS];
  int32_t tokens[OTHERS + 1][MOST_TOKENS];
} feeding;

static void add_chunk(feeding *f, uint32_t sequence, uint32_t position, uint32_t count,
                      mgl_plan_logits logits) {
  mgl_plan_add(f->plan, &(mgl_plan_chunk){
                            .tokens = &f->tokens[sequence][position],
                            .token_count = count,
                            .position = position,
                            .prompt_count = sequence == 0 ? f->prompt : 30,
                            .pages = f->pages[sequence],
                            .page_count = f->plan->limits.pages_per_sequence,
                            .logits = logits,
                        });
}

static uint32_t first_largest(const float *row) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < VOCAB; i++) {
    best = row[i] > row[best] ? i : best;
  }
  return best;
}

// Runs the observed sequence (and others beside it); stores its logits of every position.
static void run_way(const mgl_config *config, uint32_t prompt, way w, float *out) {
  const uint32_t tokens = prompt + DECODED, iteration = w.iteration == 0 ? 64 : w.iteration;
  mgl_error err = {0};
  mgl_model_folder folder = {.config = *config};
  mgl_build options = {.threads = w.threads,
                       .iteration_tokens = iteration,
                       .sequences = OTHERS + 1,
                       .sequence_tokens = tokens,
                       .logit_rows = iteration,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .seed = 5,
                       .kv_dtype = kv_dtype,
                       .launch = w.launch,
                       .overrides = config->family == MGL_FAMILY_PHI ? plain_hybrid : hybrid,
                       .override_count = w.launch == MGL_LAUNCH_AUTO ? 2 : 0,
                       .schedulers = w.schedulers};
  mgl_runner *runner = NULL;
  if (mgl_runner_create(&folder, &options, &runner, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  feeding *f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->prompt = prompt;
  assert_int_equal(mgl_plan_create(mgl_runner_limits(runner), &f->plan, &err), MGL_OK);
  // Pages in an order that differs between ways, so that physical places do not matter either.
  uint32_t page_count = f->plan->limits.pages_per_sequence;
  for (uint32_t s = 0; s <= OTHERS; s++) {
    for (uint32_t i = 0; i < page_count; i++) {
      f->pages[s][i] = (int32_t)(((i * 3 + w.chunk) % page_count) * (OTHERS + 1) +
                                 (s + w.others) % (OTHERS + 1));
    }
    for (uint32_t i = 0; i < tokens; i++) {
      f->tokens[s][i] = token_at(s, i);
    }
  }
  uint32_t other_position = 0;
  for (uint32_t position = 0; position < tokens;) {
    uint32_t left = position < prompt ? prompt - position : 1;
    uint32_t room = iteration - w.others;
    uint32_t count = left < w.chunk ? left : w.chunk;
    count = count < room ? count : room;
    mgl_plan_clear(f->plan);
    // The observed sequence stands between the others.
    for (uint32_t s = 1; s <= w.others / 2; s++) {
      add_chunk(f, s, other_position, 1, MGL_LOGITS_LAST);
    }
    uint32_t first_row = f->plan->logit_row_count;
    add_chunk(f, 0, position, count, MGL_LOGITS_ALL);
    for (uint32_t s = w.others / 2 + 1; s <= w.others; s++) {
      add_chunk(f, s, other_position, 1, MGL_LOGITS_NONE);
    }
    mgl_logits logits = {0};
    if (mgl_runner_run(runner, w.mode, f->plan, &logits, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    memcpy(out + (size_t)position * VOCAB, logits.rows + (size_t)first_row * VOCAB,
           (size_t)count * VOCAB * sizeof *out);
    for (uint32_t row = 0; row < f->plan->logit_row_count; row++) {
      assert_int_equal(logits.best[row], first_largest(logits.rows + (size_t)row * VOCAB));
    }
    position += count;
    other_position += other_position + 1 < tokens ? 1 : 0;
  }
  mgl_plan_destroy(f->plan);
  free(f);
  mgl_runner_destroy(runner);
}

// Is this the scalar level, besides others?
static bool is_scalar(void) {
  const char *level = getenv("MEGALITH_SIMD");
  return level != NULL && strcmp(level, mgl_simd_name(MGL_SIMD_SCALAR)) == 0 &&
         mgl_simd_detected() != MGL_SIMD_SCALAR;
}

static int repeats(void) {
  const char *level = getenv("MEGALITH_SIMD");
  if (getenv("MGL_TEST_LONG") != NULL) {
    return LONG_REPEATS;
  }
  bool is_best = level != NULL && strcmp(level, mgl_simd_name(mgl_simd_detected())) == 0;
  return is_best ? REPEATS : is_scalar() ? 1 : OTHER_REPEATS;
}

static size_t way_stride(void) {
  return is_scalar() && getenv("MGL_TEST_LONG") == NULL ? 4 : 1;
}

// The first way is what all are compared with; the first `repeated` run several times.
static void check_ways(const mgl_config *config, uint32_t prompt, const way *ways, size_t count,
                       size_t repeated) {
  size_t values = (size_t)(prompt + DECODED) * VOCAB;
  size_t bytes = values * sizeof(float);
  float *expected = malloc(bytes);
  float *found = malloc(bytes);
  assert_non_null(expected);
  assert_non_null(found);
  int64_t live = mgl_alloc_live();
  run_way(config, prompt, ways[0], expected);
  for (size_t i = 0; i < values; i++) {
    assert_true(expected[i] == expected[i]);  // no NaN: equality below would be of garbage
  }
  for (size_t i = 0; i < count; i += way_stride()) {
    int runs = i < repeated ? repeats() : 1;
    for (int run = 0; run < runs; run++) {
      memset(found, 0xff, bytes);
      run_way(config, prompt, ways[i], found);
      for (size_t j = 0; j < values; j++) {
        if (memcmp(&expected[j], &found[j], sizeof *found) != 0) {
          fail_msg(
              "threads %u chunk %u others %u %s launch %d schedulers %u iteration %u run %d: "
              "position %zu logit %zu: expected %.9g, found %.9g",
              ways[i].threads, ways[i].chunk, ways[i].others, mgl_mode_name(ways[i].mode),
              (int)ways[i].launch, ways[i].schedulers, ways[i].iteration, run, j / VOCAB, j % VOCAB,
              (double)expected[j], (double)found[j]);
        }
      }
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
  free(expected);
  free(found);
}

static void check_contract(const mgl_config *config) {
  static const way ways[] = {{1, 64, 0, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {2, 64, 0, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {2, 64, 0, MGL_MODE_MEGA, MGL_LAUNCH_AUTO, 0, 0},
                             {7, 64, 0, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {1, 1, 0, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {2, 7, 0, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {1, 64, 7, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {2, 1, 7, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {7, 7, 7, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {1, 13, 5, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 0},
                             {1, 64, 0, MGL_MODE_MEGA, MGL_LAUNCH_AUTO, 0, 0},
                             {3, 64, 7, MGL_MODE_MEGA, MGL_LAUNCH_AOT, 0, 0},
                             {7, 13, 5, MGL_MODE_MEGA, MGL_LAUNCH_AUTO, 0, 0},
                             {1, 7, 7, MGL_MODE_MEGA, MGL_LAUNCH_JIT, 0, 0},
                             {2, 1, 0, MGL_MODE_MEGA, MGL_LAUNCH_JIT, 0, 0},
                             {3, 64, 3, MGL_MODE_MEGA, MGL_LAUNCH_JIT, 1, 0},
                             {2, 7, 7, MGL_MODE_MEGA, MGL_LAUNCH_JIT, 2, 0},
                             {2, 64, 7, MGL_MODE_MEGA, MGL_LAUNCH_AUTO, 3, 0},
                             {7, 64, 7, MGL_MODE_MEGA, MGL_LAUNCH_JIT, 4, 0}};
  check_ways(config, PROMPT, ways, sizeof ways / sizeof ways[0], 3);
}

// Iterations of up to 2048 tokens: several blocks of a linear, partial ones, and task graphs for
// all of these sizes.
static void check_large_iterations(const mgl_config *config) {
  static const way ways[] = {{1, 64, 0, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 64},
                             {2, 128, 0, MGL_MODE_MEGA, MGL_LAUNCH_AUTO, 0, 128},
                             {2, 130, 7, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 256},
                             {3, 300, 7, MGL_MODE_MEGA, MGL_LAUNCH_JIT, 0, 307},
                             {2, 512, 5, MGL_MODE_MEGA, MGL_LAUNCH_AOT, 0, 2048},
                             {1, 700, 3, MGL_MODE_EAGER, MGL_LAUNCH_AUTO, 0, 1024},
                             {2, 2048, 7, MGL_MODE_MEGA, MGL_LAUNCH_AUTO, 1, 2048}};
  check_ways(config, LONG_PROMPT, ways, sizeof ways / sizeof ways[0], 0);
}

// Under a sanitizer the best level only: its kernels share their sources with the others.
static void check_on_all_levels(const mgl_config *config, void (*check)(const mgl_config *config)) {
#ifdef MGL_TEST_SANITIZED
  const int first = (int)mgl_simd_detected();
#else
  const int first = MGL_SIMD_SCALAR;
#endif
  for (int simd = first; simd <= (int)mgl_simd_detected(); simd++) {
    assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name((mgl_simd)simd), 1), 0);
    check(config);
  }
  assert_int_equal(unsetenv("MEGALITH_SIMD"), 0);
}

static void bf16_bits_do_not_depend_on_the_way(void **state) {
  (void)state;
  check_on_all_levels(&qwen3_config, check_contract);
}

static void f32_bits_do_not_depend_on_the_way(void **state) {
  (void)state;
  check_on_all_levels(&llama_f32_config, check_contract);
}

// A cache in FP8: as it is, and with windows and lengths of a prompt.
static void fp8_caches_keep_the_bits(void **state) {
  (void)state;
  kv_dtype = MGL_KV_FP8;
  check_on_all_levels(&qwen3_config, check_contract);
  check_contract(&llama_f32_config);
  check_contract(&phi3_config);
  check_large_iterations(&qwen3_config);
  kv_dtype = MGL_KV_AUTO;
}

static void windows_and_lengths_keep_the_bits(void **state) {
  (void)state;
  check_on_all_levels(&phi3_config, check_contract);
  check_on_all_levels(&biased_config, check_contract);
}

static void ops_that_are_not_fused_keep_the_bits(void **state) {
  (void)state;
  check_on_all_levels(&phi_config, check_contract);
}

static void mixtures_keep_the_bits(void **state) {
  (void)state;
  check_on_all_levels(&shared_mixture_config, check_contract);
  check_on_all_levels(&f32_mixture_config, check_contract);
}

static void sinks_keep_the_bits(void **state) {
  (void)state;
  mgl_config f32 = oss_config;
  f32.quantization = (mgl_quantization){0};
  f32.dtype = MGL_DTYPE_F32;
  f32.window_tokens = 300;
  check_on_all_levels(&oss_config, check_contract);
  check_on_all_levels(&f32, check_contract);
}

static void mixtures_in_codes_keep_the_bits(void **state) {
  (void)state;
  mgl_config config = shared_mixture_config;
  config.quantization = (mgl_quantization){.method = MGL_QUANT_COMPRESSED,
                                           .drawn = {.dtype = MGL_DTYPE_I4, .group = 32}};
  assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name(mgl_simd_detected()), 1), 0);
  check_contract(&config);
  assert_int_equal(unsetenv("MEGALITH_SIMD"), 0);
}

static void mixtures_in_large_iterations(void **state) {
  (void)state;
  assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name(mgl_simd_detected()), 1), 0);
  check_large_iterations(&shared_mixture_config);
  check_large_iterations(&f32_mixture_config);
  check_large_iterations(&oss_config);
  assert_int_equal(unsetenv("MEGALITH_SIMD"), 0);
}

// On the best level only, for time; the second model's window is longer than a split.
static void windows_and_lengths_in_large_iterations(void **state) {
  (void)state;
  assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name(mgl_simd_detected()), 1), 0);
  check_large_iterations(&phi3_config);
  check_large_iterations(&biased_config);
  check_large_iterations(&phi_config);
  assert_int_equal(unsetenv("MEGALITH_SIMD"), 0);
}

static void bf16_bits_of_large_iterations(void **state) {
  (void)state;
  check_on_all_levels(&qwen3_config, check_large_iterations);
}

static void f32_bits_of_large_iterations(void **state) {
  (void)state;
  check_on_all_levels(&llama_f32_config, check_large_iterations);
}

// Codes, drawn: groups that end in blocks, at every 32 codes and in the middle of a step, whole rows.
static void codes_keep_the_bits(void **state) {
  (void)state;
  static const mgl_form forms[] = {{MGL_DTYPE_E4M3, 128, false},
                                   {MGL_DTYPE_I8, MGL_FORM_WHOLE_ROW, false},
                                   {MGL_DTYPE_I4, 32, true},
                                   {MGL_DTYPE_E2M1, 16, false}};
  assert_int_equal(setenv("MEGALITH_SIMD", mgl_simd_name(mgl_simd_detected()), 1), 0);
#ifdef MGL_TEST_SANITIZED
  enum { FIRST = 2, LAST = 3 };  // the one with the most parts
#else
  enum { FIRST = 0, LAST = sizeof forms / sizeof *forms };
#endif
  for (size_t i = FIRST; i < LAST; i++) {
    mgl_config config = i % 2 == 0 ? qwen3_config : biased_config;
    config.quantization = (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = forms[i]};
    check_contract(&config);
  }
  assert_int_equal(unsetenv("MEGALITH_SIMD"), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_bits_do_not_depend_on_the_way),
      cmocka_unit_test(f32_bits_do_not_depend_on_the_way),
      cmocka_unit_test(fp8_caches_keep_the_bits),
      cmocka_unit_test(windows_and_lengths_keep_the_bits),
      cmocka_unit_test(ops_that_are_not_fused_keep_the_bits),
      cmocka_unit_test(windows_and_lengths_in_large_iterations),
      cmocka_unit_test(bf16_bits_of_large_iterations),
      cmocka_unit_test(f32_bits_of_large_iterations),
      cmocka_unit_test(codes_keep_the_bits),
      cmocka_unit_test(mixtures_keep_the_bits),
      cmocka_unit_test(sinks_keep_the_bits),
      cmocka_unit_test(mixtures_in_codes_keep_the_bits),
      cmocka_unit_test(mixtures_in_large_iterations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
