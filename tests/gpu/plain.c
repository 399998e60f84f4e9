// Models by plain kernels, an op a launch: what no fused task covers runs on a GPU too.
//
// First every model of tests/data/reference against transformers, under the bar of the CPU's own
// test (support/reference_run.h), with prompts in chunks of 64 and of 7, which must give the same
// figures to the last bit. Then models of a real one's width against the CPU: rows, heads and
// contexts of more than one block's work. With a FOLDER instead its speed, with dummy weights.
//
// tasks=1: those of the oracle's models that tasks cover run by these, in mode mega, with the same
// bar and the same demand, in iterations of up to 64 tokens.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/runner.h"
#include "gpu/gpu_bench.h"
#include "model/config.h"
#include "support/reference_run.h"

enum {
  CHUNK = 64,
  SMALL_CHUNK = 7,
  WIDE_TOKENS = 640,  // more than two splits of attention
  WIDE_CHUNK = 256,
  WIDE_ROWS = 40,  // with logits, at the end
};

static mgl_runner *open_runner(const mgl_model_folder *folder, mgl_build build,
                               const mgl_cuda_options *cuda) {
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  build.cuda = cuda;
  gpu_must(mgl_runner_create(folder, &build, &runner, &err), &err);
  return runner;
}

// --- the oracle's models -------------------------------------------------------------------------

// Returns how many models it has run: 0 for one that tasks are asked for and do not cover.
static uint32_t check_reference(gpu_bench *bench, const char *data, const char *name,
                                bool by_tasks) {
  const mgl_mode mode = by_tasks ? MGL_MODE_MEGA : MGL_MODE_FULL;
  const mgl_cuda_options cuda = {.device = &bench->device};
  mgl_reference_model of;
  mgl_reference_verdict verdicts[2];
  char figures[256];
  mgl_reference_model_open(&of, data, name, 1);
  mgl_build build = mgl_reference_build(&of.reference);
  mgl_sizes sizes;
  mgl_error err = {0};
  build.cuda = &cuda;
  gpu_must(mgl_runner_measure(&of.model, &build, &sizes, &err), &err);
  // Those that tasks cover are asked for plain kernels; the others get them by themselves.
  bool is_covered = sizes.note[0] == 0;
  if (by_tasks && !is_covered) {
    printf("- %s: no fused task: %s\n", name, sizes.note);
    mgl_reference_model_close(&of);
    return 0;
  }
  build.plain = is_covered && !by_tasks;
  build.iteration_tokens = by_tasks ? CHUNK : 0;
  mgl_runner *runner = open_runner(&of.model, build, &cuda);
  uint64_t begin_ns = mgl_clock_ns();
  for (uint32_t i = 0; i < 2; i++) {
    mgl_reference_run run;
    mgl_reference_run_open(&run, &of, runner, &mode, 1);
    verdicts[i] = mgl_reference_run_judge(&run, i == 0 ? CHUNK : SMALL_CHUNK);
    mgl_reference_run_close(&run);
  }
  double ms = (double)(mgl_clock_ns() - begin_ns) / 1e6;
  mgl_reference_verdict_print(&verdicts[0], &of.reference, figures, sizeof figures);
  bool same = verdicts[0].found.mean_kl == verdicts[1].found.mean_kl &&
              verdicts[0].found.max_logit_error == verdicts[1].found.max_logit_error;
  gpu_check(bench, verdicts[0].fine && verdicts[1].fine && same,
            "%s (%s): %s; in chunks of %d %s; %.0f ms", name,
            by_tasks     ? "tasks"
            : is_covered ? "asked for"
                         : "no fused task",
            figures, SMALL_CHUNK, same ? "the same" : "ANOTHER", ms);
  mgl_runner_destroy(runner);
  mgl_reference_model_close(&of);
  return 1;
}

// --- wide models against the CPU -----------------------------------------------------------------

static const struct {
  const char *name, *json;
} wide_models[] = {
    {"phi, 32 heads of 80, 51200 words",
     "{\"architectures\":[\"PhiForCausalLM\"],\"model_type\":\"phi\",\"vocab_size\":51200,"
     "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"max_position_embeddings\":2048,"
     "\"layer_norm_eps\":1e-5,\"rope_theta\":10000,\"partial_rotary_factor\":0.4,"
     "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"gelu_new\"}"},
    {"mistral, a window of 300, 16 heads of 256 for each of K and V, 32003 words",
     "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"vocab_size\":32003,"
     "\"hidden_size\":1500,\"intermediate_size\":4100,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":1,\"head_dim\":256,"
     "\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"
     "\"sliding_window\":300,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
     "\"hidden_act\":\"silu\"}"},
    // In f32: where roundings may turn a choice of experts, one side is as right as the other.
    {"a mixture of 42 experts, 6 a token, in f32",
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
     "\"vocab_size\":4001,\"hidden_size\":1000,\"intermediate_size\":2000,"
     "\"moe_intermediate_size\":516,\"num_experts\":42,\"num_experts_per_tok\":6,"
     "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
     "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
     "\"head_dim\":128,\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-6,"
     "\"rope_theta\":1000000,\"tie_word_embeddings\":false,\"torch_dtype\":\"float32\","
     "\"hidden_act\":\"silu\"}"},
};

// Runs the same text; out is [WIDE_ROWS, V]. Returns milliseconds of the last chunk.
static double run_text(mgl_runner *runner, mgl_mode mode, float *out) {
  int32_t tokens[WIDE_TOKENS];
  int32_t pages[WIDE_TOKENS];
  mgl_plan *plan = NULL;
  mgl_error err = {0};
  double ms = 0;
  uint32_t vocab = mgl_runner_vocab_size(runner);
  uint32_t page_count = mgl_runner_limits(runner)->pages_per_sequence;
  gpu_must(mgl_plan_create(mgl_runner_limits(runner), &plan, &err), &err);
  for (uint32_t i = 0; i < WIDE_TOKENS; i++) {
    tokens[i] = (int32_t)((i * 7919u + 13u) % vocab);
  }
  for (uint32_t i = 0; i < page_count; i++) {
    pages[i] = (int32_t)(page_count - 1 - i);
  }
  for (uint32_t at = 0; at < WIDE_TOKENS;) {
    bool is_last = at + WIDE_ROWS >= WIDE_TOKENS;
    uint32_t end = is_last ? (uint32_t)WIDE_TOKENS : (uint32_t)(WIDE_TOKENS - WIDE_ROWS);
    uint32_t count = end - at < WIDE_CHUNK ? end - at : (uint32_t)WIDE_CHUNK;
    mgl_logits logits = {0};
    mgl_plan_clear(plan);
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens + at,
                                         .token_count = count,
                                         .position = at,
                                         .prompt_count = WIDE_TOKENS,
                                         .pages = pages,
                                         .page_count = page_count,
                                         .logits = is_last ? MGL_LOGITS_ALL : MGL_LOGITS_NONE});
    uint64_t begin_ns = mgl_clock_ns();
    gpu_must(mgl_runner_run(runner, mode, plan, &logits, &err), &err);
    ms = (double)(mgl_clock_ns() - begin_ns) / 1e6;
    if (is_last) {
      memcpy(out, logits.rows, (size_t)WIDE_ROWS * vocab * sizeof *out);
    }
    at += count;
  }
  mgl_plan_destroy(plan);
  return ms;
}

static void check_wide(gpu_bench *bench, size_t number) {
  const mgl_cuda_options cuda = {.device = &bench->device};
  mgl_model_folder folder = {0};
  mgl_error err = {0};
  const char *json = wide_models[number].json;
  gpu_must(mgl_config_parse(json, strlen(json), wide_models[number].name, &folder.config,
                            &folder.generation, &err),
           &err);
  const mgl_build build = {.iteration_tokens = WIDE_CHUNK,
                           .sequences = 1,
                           .sequence_tokens = WIDE_TOKENS,
                           .logit_rows = WIDE_ROWS,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = GPU_SEED};
  mgl_runner *gpu = open_runner(&folder, build, &cuda);
  mgl_runner *cpu = open_runner(&folder, build, NULL);
  uint32_t vocab = folder.config.vocab_size;
  size_t count = (size_t)WIDE_ROWS * vocab;
  float *ours = gpu_must_alloc(count, sizeof *ours);
  float *theirs = gpu_must_alloc(count, sizeof *theirs);
  double ms = run_text(gpu, MGL_MODE_FULL, ours);
  (void)run_text(cpu, MGL_MODE_EAGER, theirs);
  mgl_divergence d = mgl_reference_divergence(theirs, ours, WIDE_ROWS, vocab);
  double error = gpu_error(ours, theirs, count);
  uint32_t flips = 0;
  for (uint32_t row = 0; row < WIDE_ROWS; row++) {
    size_t at = (size_t)row * vocab;
    flips += gpu_argmax(ours + at, vocab) != gpu_argmax(theirs + at, vocab);
  }
  // Two sides that round activations to bf16 differ by a fraction of a percent.
  gpu_check(bench, error < 0.02 && d.mean_kl < 1e-3,
            "%s: error %.1e beside the CPU, mean KL %.1e, %u of %d largest logits are others; "
            "%d rows took %.2f ms",
            wide_models[number].name, error, d.mean_kl, flips, WIDE_ROWS, WIDE_ROWS, ms);
  printf("  - %s\n", mgl_runner_note(gpu));
  mgl_free(ours);
  mgl_free(theirs);
  mgl_runner_destroy(cpu);
  mgl_runner_destroy(gpu);
}

// --- speed ---------------------------------------------------------------------------------------

enum { SPEED_PROMPT = 128, SPEED_STEPS = 24, SPEED_MOST = 8 };

// Milliseconds of an iteration of `count` tokens of each of `sequences` texts.
static double run_iteration(mgl_runner *runner, mgl_plan *plan, uint32_t sequences, uint32_t at,
                            uint32_t count) {
  int32_t tokens[SPEED_PROMPT];
  int32_t pages[(SPEED_PROMPT + SPEED_STEPS) / MGL_PAGE_TOKENS + 1];
  mgl_logits logits = {0};
  mgl_error err = {0};
  uint32_t page_count = mgl_runner_limits(runner)->pages_per_sequence;
  mgl_plan_clear(plan);
  for (uint32_t s = 0; s < sequences; s++) {
    for (uint32_t i = 0; i < count; i++) {
      tokens[i] = (int32_t)((s * 31 + (at + i) * 7919u) % mgl_runner_vocab_size(runner));
    }
    for (uint32_t i = 0; i < page_count; i++) {
      pages[i] = (int32_t)(s * page_count + i);
    }
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = tokens,
                                         .token_count = count,
                                         .position = at,
                                         .prompt_count = SPEED_PROMPT,
                                         .pages = pages,
                                         .page_count = page_count,
                                         .logits = MGL_LOGITS_LAST});
  }
  uint64_t begin_ns = mgl_clock_ns();
  gpu_must(mgl_runner_run(runner, MGL_MODE_FULL, plan, &logits, &err), &err);
  return (double)(mgl_clock_ns() - begin_ns) / 1e6;
}

// A model of a folder with a config.json, with dummy weights.
static void measure_speed(gpu_bench *bench, const char *path) {
  const mgl_cuda_options cuda = {.device = &bench->device};
  mgl_model_folder folder;
  mgl_plan *plan = NULL;
  mgl_error err = {0};
  double ceiling = 0;
  gpu_must(mgl_model_folder_open(path, 0, &folder, &err), &err);
  const mgl_build build = {.iteration_tokens = SPEED_PROMPT * SPEED_MOST,
                           .sequences = SPEED_MOST,
                           .sequence_tokens = SPEED_PROMPT + SPEED_STEPS,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .plain = true,
                           .seed = GPU_SEED};
  mgl_runner *runner = open_runner(&folder, build, &cuda);
  gpu_must(mgl_plan_create(mgl_runner_limits(runner), &plan, &err), &err);
  gpu_must(mgl_runner_read_ceiling(runner, 5, &ceiling, &err), &err);
  double bytes = (double)mgl_runner_step_bytes(runner);
  printf("\n%s: %.2f GB of weights a token, read in %.2f ms at the ceiling\n\n", path, bytes / 1e9,
         bytes / ceiling * 1e3);
  for (uint32_t sequences = 1; sequences <= SPEED_MOST; sequences *= SPEED_MOST) {
    double steps[SPEED_STEPS];
    double prompt = run_iteration(runner, plan, sequences, 0, SPEED_PROMPT);
    for (uint32_t i = 0; i < SPEED_STEPS; i++) {
      steps[i] = run_iteration(runner, plan, sequences, SPEED_PROMPT + i, 1);
    }
    printf("- batch %u: %.2f ms a token, prompts of %d in %.1f ms\n", sequences,
           gpu_median(steps, SPEED_STEPS), SPEED_PROMPT, prompt);
  }
  mgl_plan_destroy(plan);
  mgl_runner_destroy(runner);
  mgl_model_folder_close(&folder);
}

// -------------------------------------------------------------------------------------------------

void gpu_plain_run(gpu_bench *bench, int count, char **arguments) {
  const char *data = "tests/data/reference";
  const char *only = "";
  bool by_tasks = false;
  for (int i = 0; i < count; i++) {
    data = strncmp(arguments[i], "data=", 5) == 0 ? arguments[i] + 5 : data;
    only = strncmp(arguments[i], "only=", 5) == 0 ? arguments[i] + 5 : only;
    by_tasks = by_tasks || strcmp(arguments[i], "tasks=1") == 0;
    if (strchr(arguments[i], '=') == NULL) {
      measure_speed(bench, arguments[i]);
      only = NULL;
    }
  }
  if (only == NULL) {
    return;
  }
  printf("\n## %s\n\n", by_tasks ? "Tasks against transformers" : "Plain kernels");
  uint32_t run = 0;
  for (size_t i = 0; i < MGL_REFERENCE_COUNT; i++) {
    if (strstr(MGL_REFERENCE_NAMES[i], only) != NULL) {
      run += check_reference(bench, data, MGL_REFERENCE_NAMES[i], by_tasks);
    }
  }
  if (by_tasks) {
    gpu_check(bench, run > 0, "%u models were run by tasks", run);
  }
  for (size_t i = 0; !by_tasks && i < sizeof wide_models / sizeof *wide_models; i++) {
    if (strstr(wide_models[i].name, only) != NULL) {
      check_wide(bench, i);
    }
  }
}
