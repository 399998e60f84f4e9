// Plain kernels against transformers: models of tests/data/reference on the fake GPU, which
// runs the device's own source of plain kernels with blocks of one thread
// (support/fake_cuda_plain.c). Among them are all that fused tasks do not cover: Phi, partial
// rotary, ropes that depend on lengths, sliding windows, sinks, biases, f16 and f32, mixtures.
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

#include "base/alloc.h"
#include "engine/engine.h"
#include "engine/op_test.h"
#include "support/fake_cuda.h"
#include "support/must.h"
#include "support/programs.h"
#include "support/reference_model.h"
#include "support/reference_run.h"

// One of every kind: the fake GPU takes seconds for each, and `gpu_tests plain` runs all.
static const char *const names[] = {
    "phi_half_rotary",       "qwen2_window_layers", "llama_dynamic_long",
    "qwen3_yarn_biases",     "llama_longrope_long", "phi_f16_whole",
    "qwen3_moe_512_experts", "olmoe_whole_norm",    "mixtral_one_slot_window",
    "qwen2_moe_f32",         "glm4_moe_groups",     "glm4_moe_biases_f32",
    "qwen3_moe_one_expert",  "gpt_oss_f32",         "gpt_oss_mxfp4"};
#ifdef MGL_TEST_SANITIZED
enum { MODELS = 1 };
#else
enum { MODELS = sizeof names / sizeof *names };
#endif

static bool within_bar(const char *name, uint32_t chunk_tokens, uint32_t page_tokens) {
  static const mgl_mode full = MGL_MODE_FULL;
  mgl_reference_model of;
  mgl_reference_run run;
  mgl_runner *runner = NULL;
  char figures[256];
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_reference_model_open(&of, MGL_TEST_DATA "/reference", name, 1);
  mgl_build build = mgl_reference_build(&of.reference);
  build.cuda = &cuda;
  build.plain = true;
  build.page_tokens = page_tokens;
  MUST(mgl_runner_create(&of.model, &build, &runner, &err));
  assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_FULL);
  uint32_t launches = fake.plain_launches;
  mgl_reference_run_open(&run, &of, runner, &full, 1);
  mgl_reference_verdict verdict = mgl_reference_run_judge(&run, chunk_tokens);
  assert_true(fake.plain_launches > launches);
  mgl_reference_verdict_print(&verdict, &of.reference, figures, sizeof figures);
  print_message("%-25s chunk %2u: %s\n", name, chunk_tokens, figures);
  mgl_reference_run_close(&run);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
  mgl_reference_model_close(&of);
  return verdict.fine;
}

static void models_stay_within_the_bar(void **state) {
  (void)state;
  bool fine = true;
  for (size_t i = 0; i < MODELS; i++) {
    fine = within_bar(names[i], i % 2 == 0 ? MGL_INVARIANT_TOKENS : 7, i % 3 == 0 ? 0 : 32) && fine;
  }
  assert_true(fine);
}

// A mixture of a checkpoint whose experts tasks cover: its weights find their places.
static void experts_of_a_checkpoint_are_uploaded_for_tasks(void **state) {
  (void)state;
  mgl_reference_model of;
  mgl_runner *runner = NULL;
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  device.sm_count = 132;
  assert_int_equal(setenv("MEGALITH_MIXTURES", "tasks", 1), 0);
  mgl_reference_model_open(&of, MGL_TEST_DATA "/reference", "qwen3_moe_8_of_16", 1);
  mgl_build build = mgl_reference_build(&of.reference);
  build.cuda = &cuda;
  build.iteration_tokens = MGL_INVARIANT_TOKENS;
  MUST(mgl_runner_create(&of.model, &build, &runner, &err));
  assert_int_equal(mgl_runner_usual_mode(runner), MGL_MODE_MEGA);
  mgl_runner_destroy(runner);
  mgl_reference_model_close(&of);
  assert_int_equal(unsetenv("MEGALITH_MIXTURES"), 0);
  assert_int_equal(fake.live, 0);
}

// --- the engine ----------------------------------------------------------------------------------

enum { CONTEXT = 128, REQUESTS = 3, NEW_TOKENS = 12 };

typedef struct outputs {
  int32_t tokens[REQUESTS][NEW_TOKENS];
  uint32_t counts[REQUESTS];
} outputs;

static mgl_build build_of(const mgl_cuda_options *cuda) {
  return (mgl_build){.threads = cuda == NULL ? 2 : 0,
                     .iteration_tokens = 16,
                     .sequences = 2,
                     .sequence_tokens = CONTEXT,
                     .weights = MGL_WEIGHTS_DUMMY,
                     .seed = 5,
                     .cuda = cuda};
}

static bool on_token(void *context, const mgl_generated_token *token) {
  outputs *o = context;
  o->tokens[token->request][o->counts[token->request]++] = token->token;
  return true;
}

// Three requests for two places, in iterations of up to 16 tokens.
static void generate(const mgl_config *config, const mgl_cuda_options *cuda, outputs *out) {
  const mgl_build build = build_of(cuda);
  const mgl_model_folder folder = {.config = *config};
  mgl_runner *runner = NULL;
  mgl_engine *engine = NULL;
  *out = (outputs){0};
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  MUST(mgl_engine_create(
      runner, &(mgl_engine_options){.mode = mgl_runner_usual_mode(runner), .prefix_cache = true},
      &engine, &err));
  for (uint32_t i = 0; i < REQUESTS; i++) {
    int32_t prompt[CONTEXT];
    uint32_t number = 0;
    for (uint32_t j = 0; j < 5 + 20 * i; j++) {
      prompt[j] = (int32_t)((j * 37 + i * 5) % config->vocab_size);
    }
    const mgl_request request = {.prompt = prompt,
                                 .prompt_count = 5 + 20 * i,
                                 .max_new_tokens = NEW_TOKENS,
                                 .sampling = {.top_p = 1}};
    MUST(mgl_engine_submit(engine, &request, &number, &err));
  }
  MUST(mgl_engine_run(engine, on_token, NULL, out, &err));
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

static mgl_config config_of(mgl_family family, mgl_dtype dtype) {
  mgl_config config = small_config(family);
  config.dtype = dtype;
  return config;
}

static mgl_config mixture_of(mgl_dtype dtype) {
  mgl_config config = config_of(MGL_FAMILY_QWEN3_MOE, dtype);
  config.mixture = (mgl_mixture){.expert_count = 5, .slots = 2, .inner_size = 72, .scale = 1};
  return config;
}

// In f32, where no rounding of activations can turn a token.
static void check_tokens(const mgl_config *config) {
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  outputs gpu;
  outputs cpu;
  uint32_t launches = fake.plain_launches;
  generate(config, &cuda, &gpu);
  assert_true(fake.plain_launches > launches);
  generate(config, NULL, &cpu);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    assert_int_equal(gpu.counts[i], NEW_TOKENS);
    assert_memory_equal(gpu.tokens[i], cpu.tokens[i], sizeof gpu.tokens[i]);
  }
  assert_int_equal(fake.live, 0);
}

static void an_engine_generates_as_on_the_cpu(void **state) {
  (void)state;
  mgl_config config = config_of(MGL_FAMILY_PHI, MGL_DTYPE_F32);
  check_tokens(&config);
  config = config_of(MGL_FAMILY_LLAMA, MGL_DTYPE_F32);
  config.window_tokens = 20;
  config.window_layers[0] = 3;
  check_tokens(&config);
  config = mixture_of(MGL_DTYPE_F32);
  check_tokens(&config);
  const mgl_form forms[] = {{MGL_DTYPE_E4M3, 128, false},
                            {MGL_DTYPE_I8, MGL_FORM_WHOLE_ROW, false},
                            {MGL_DTYPE_I4, 32, true},
                            {MGL_DTYPE_E2M1, 16, false}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    config = config_of(MGL_FAMILY_QWEN3, MGL_DTYPE_F32);
    config.quantization = (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = forms[i]};
    check_tokens(&config);
    config = mixture_of(MGL_DTYPE_F32);
    config.quantization = (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = forms[i]};
    check_tokens(&config);
  }
}

// --- parts of an iteration -----------------------------------------------------------------------

// Runs a range; returns how many of its outputs do not pass.
static uint32_t failed_in(mgl_op_test *test, uint32_t first, uint32_t last) {
  const mgl_op_result *results = NULL;
  uint32_t count = 0;
  uint32_t failed = 0;
  MUST(mgl_op_test_run(test, first, last, &results, &count, &err));
  assert_true(count >= 1);
  for (uint32_t i = 0; i < count; i++) {
    failed += results[i].passed ? 0 : 1;
  }
  return failed;
}

// Every op by itself, and all of them; or only all, of mixtures, whose routes are no random values.
static void check_parts(const mgl_config *config, uint32_t tokens) {
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  const mgl_op_test_options options = {
      .tokens = tokens, .context = 19, .seed = 7, .mode = MGL_MODE_EAGER, .tolerance = -1};
  const mgl_model_folder folder = {.config = *config};
  mgl_build build = mgl_op_test_build(&options);
  mgl_runner *runner = NULL;
  mgl_op_test *test = NULL;
  build.weights = MGL_WEIGHTS_DUMMY;
  build.seed = 5;
  build.cuda = &cuda;
  build.plain = true;
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  MUST(mgl_op_test_create(runner, &folder, &options, &test, &err));
  uint32_t count = (uint32_t)mgl_op_test_program(test)->op_count;
  for (uint32_t i = 0; i < count && config->mixture.expert_count == 0; i++) {
    uint32_t launches = fake.plain_launches;
    if (failed_in(test, i, i) != 0) {
      fail_msg("op %u of %u with %u tokens: another result than the reference's", i, count, tokens);
    }
    assert_int_equal(fake.plain_launches, launches + 1);
  }
  assert_int_equal(failed_in(test, 0, count - 1), 0);
  mgl_op_test_destroy(test);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
}

static void parts_of_an_iteration_compute_what_the_reference_does(void **state) {
  (void)state;
  mgl_config config = config_of(MGL_FAMILY_PHI, MGL_DTYPE_BF16);
  check_parts(&config, 1);
  check_parts(&config, 21);
  config = config_of(MGL_FAMILY_LLAMA, MGL_DTYPE_F16);
  config.window_tokens = 20;
  config.window_layers[0] = 3;
  check_parts(&config, 7);
  config = mixture_of(MGL_DTYPE_F32);
  check_parts(&config, 5);
  // In the order of fused tasks, which cover these: linears read through norms, and biases.
  config = config_of(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16);
  config.vocab_size = 304;
  check_parts(&config, 1);
  check_parts(&config, 21);
  config.family = MGL_FAMILY_QWEN2;
  config.qk_norm = false;
  config.qkv_bias = true;
  config.hidden_size = 576;
  check_parts(&config, 9);
  config = config_of(MGL_FAMILY_QWEN3_MOE, MGL_DTYPE_BF16);
  config.qk_norm = true;
  config.hidden_size = 1024;
  config.vocab_size = 304;
  config.mixture = (mgl_mixture){
      .expert_count = 8, .slots = 2, .inner_size = 512, .renormalise = true, .scale = 1};
  check_parts(&config, 3);
}

// --- which device --------------------------------------------------------------------------------

// NULL: fused tasks run it.
static void check_choice(const mgl_config *config, const char *why) {
  mgl_cuda_device device = fake_cuda_device();
  const mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  const mgl_model_folder folder = {.config = *config};
  mgl_build build = build_of(&cuda);
  mgl_runner *runner = NULL;
  mgl_sizes sizes;
  mgl_error refusal = {0};
  MUST(mgl_runner_measure(&folder, &build, &sizes, &err));
  MUST(mgl_runner_create(&folder, &build, &runner, &err));
  assert_int_equal(mgl_runner_usual_mode(runner),
                   why == NULL ? (int)MGL_MODE_MEGA : (int)MGL_MODE_FULL);
  assert_true(mgl_runner_has_mode(runner, MGL_MODE_FULL));
  assert_string_equal(sizes.note, mgl_runner_note(runner));
  if (why == NULL) {
    assert_string_equal(mgl_runner_note(runner), "");
  } else if (strstr(mgl_runner_note(runner), why) == NULL ||
             strstr(mgl_runner_note(runner), "plain kernels") == NULL ||
             strstr(mgl_runner_note(runner), "--device") != NULL) {
    fail_msg("expected \"%s\" in the note \"%s\"", why, mgl_runner_note(runner));
  }
  mgl_runner_destroy(runner);
  // Asked for by name, fused tasks are all that will do.
  build.fused = true;
  mgl_status status = mgl_runner_create(&folder, &build, &runner, &refusal);
  assert_int_equal(status, why == NULL ? MGL_OK : MGL_ERR_UNSUPPORTED);
  if (why != NULL) {
    assert_non_null(strstr(refusal.text, why));
    assert_non_null(strstr(refusal.text, "try --device cpu"));
  } else {
    mgl_runner_destroy(runner);
  }
  assert_int_equal(fake.live, 0);
}

static void what_no_task_covers_runs_by_plain_kernels(void **state) {
  (void)state;
  mgl_config config = config_of(MGL_FAMILY_QWEN3, MGL_DTYPE_BF16);
  config.vocab_size = 304;
  check_choice(&config, NULL);
  config.vocab_size = 301;
  check_choice(&config, "expected a multiple of 8 as the rows");
  config.vocab_size = 304;
  config.dtype = MGL_DTYPE_F16;
  check_choice(&config, "expected matrices in bf16");
  config.dtype = MGL_DTYPE_BF16;
  config.head_dim = 48;
  check_choice(&config, "expected a head dim that is a multiple of 32");
  config.head_dim = 32;
  config.rotary_dim = 16;
  check_choice(&config, "partial rotary");
  config = config_of(MGL_FAMILY_PHI, MGL_DTYPE_BF16);
  check_choice(&config, "a layer norm");
  config = mixture_of(MGL_DTYPE_BF16);
  check_choice(&config, "a mixture of experts");
}

static mgl_status make_runner(void *context, mgl_error *err) {
  mgl_config config = config_of(MGL_FAMILY_PHI, MGL_DTYPE_BF16);
  const mgl_model_folder folder = {.config = config};
  const mgl_build build = build_of(context);
  mgl_runner *runner = NULL;
  mgl_status status = mgl_runner_create(&folder, &build, &runner, err);
  mgl_runner_destroy(runner);
  assert_int_equal(fake.live, 0);
  return status;
}

static void failures_leave_nothing_behind(void **state) {
  (void)state;
  mgl_cuda_device device = fake_cuda_device();
  mgl_cuda_options cuda = {.device = &device, .get_code = fake_cuda_code};
  mgl_error err = {0};
  const int64_t live = mgl_alloc_live();
  uint32_t failed = 0;
  bool reached = true;
  for (uint64_t n = 1; reached; n++) {  // where pages lie is a wish: without memory it is not told
    mgl_alloc_fail_nth(n);
    mgl_status status = make_runner(&cuda, &err);
    reached = mgl_alloc_count() >= n;
    mgl_alloc_fail_nth(0);
    assert_true(status == MGL_OK || (reached && status == MGL_ERR_MEMORY));
    assert_int_equal(mgl_alloc_live(), live);
    failed += status == MGL_OK ? 0 : 1;
  }
  assert_true(failed > 100);
  fake.free_bytes = 100000;
  assert_int_equal(make_runner(&cuda, &err), MGL_ERR_MEMORY);
  assert_non_null(strstr(err.text, "MiB free, and the model needs"));
  fake.free_bytes = (size_t)1 << 32;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(models_stay_within_the_bar),
      cmocka_unit_test(experts_of_a_checkpoint_are_uploaded_for_tasks),
      cmocka_unit_test(an_engine_generates_as_on_the_cpu),
      cmocka_unit_test(parts_of_an_iteration_compute_what_the_reference_does),
      cmocka_unit_test(what_no_task_covers_runs_by_plain_kernels),
      cmocka_unit_test(failures_leave_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
