// Op after op of small models (dense, of codes, with experts) has the same bits by fused tasks in
// mode mega and by plain kernels: which op it is where `modes_same` finds others. What runs is the
// model from its first op to that one, behind a cache that both are given.
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/op_test.h"
#include "gpu/gpu_bench.h"
#include "support/programs.h"

// Of a mixture's ops a GPU fuses five in another way than the CPU, whose program is looked at.
enum { LAYERS = 1, DENSE_OPS = 8, MIXTURE_OPS = 6, REPEATED_TOKENS = 9 };

typedef struct side {
  mgl_runner *runner;
  mgl_op_test *test;
} side;

static void open_side(gpu_bench *bench, const mgl_model_folder *folder, uint32_t tokens,
                      uint32_t context, bool plain, side *out) {
  const mgl_cuda_options cuda = {.device = &bench->device};
  const mgl_mode mode = plain ? mgl_mode_of(MGL_LEVEL_EAGER, MGL_GRAPHS_NONE) : MGL_MODE_MEGA;
  const mgl_op_test_options options = {
      .tokens = tokens, .context = context, .seed = GPU_SEED, .mode = mode, .tolerance = -1};
  mgl_error err = {0};
  mgl_build build = mgl_op_test_build(&options);
  build.weights = MGL_WEIGHTS_DUMMY;
  build.seed = GPU_SEED;
  build.plain = plain;
  build.cuda = &cuda;
  gpu_must(mgl_runner_create(folder, &build, &out->runner, &err), &err);
  gpu_must(mgl_op_test_create(out->runner, folder, &options, &out->test, &err), &err);
}

static void close_side(side *s) {
  mgl_op_test_destroy(s->test);
  mgl_runner_destroy(s->runner);
}

static const mgl_op_result *find_result(const mgl_op_result *results, uint32_t count,
                                        const char *name) {
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(results[i].name, name) == 0) {
      return &results[i];
    }
  }
  return NULL;
}

// How many elements differ. A fused row may have those of several ops, of which the last one names
// it.
static size_t count_others(const mgl_op_result *fused, const mgl_op_result *plain) {
  const size_t rows = fused->dims[0];
  const size_t fused_row = fused->count / rows, plain_row = plain->count / rows;
  size_t others = 0;
  for (size_t i = 0; i < plain->count; i++) {
    const float *at = fused->values + (i / plain_row + 1) * fused_row - plain_row + i % plain_row;
    others += memcmp(at, plain->values + i, sizeof *at) != 0;
  }
  return others;
}

// False: there is no such op on both sides.
static bool compare_op(gpu_bench *bench, side *fused, side *plain, uint32_t op, uint32_t tokens) {
  const mgl_op_result *ours = NULL, *theirs = NULL;
  uint32_t our_count = 0, their_count = 0, own = 0;
  mgl_error err = {0};
  const mgl_graph *program = mgl_op_test_program(fused->test);
  const char *name = program->tensors[program->ops[op].output].name;
  if (mgl_op_test_find(plain->test, name, &own, &err) != MGL_OK) {
    return false;
  }
  if (mgl_op_test_run(fused->test, 0, op, &ours, &our_count, &err) != MGL_OK) {
    return false;  // the GPU has fused it with the next one
  }
  gpu_must(mgl_op_test_run(plain->test, 0, own, &theirs, &their_count, &err), &err);
  const mgl_op_result *a = find_result(ours, our_count, name);
  const mgl_op_result *b = find_result(theirs, their_count, name);
  if (a == NULL || b == NULL) {
    gpu_check(bench, false, "%u tokens, \"%s\": expected a result of both", tokens, name);
    return true;
  }
  const size_t others = count_others(a, b);
  gpu_check(bench, others == 0, "%u tokens, %s: %zu of %zu elements of \"%s\" differ", tokens,
            mgl_op_name(a->op), others, b->count, name);
  return true;
}

// The last op again and again, since some faults depend on which warps are late. (Where a GPU is
// emulated they are so by chance; routes of experts that overwrote sums showed in two of ten runs.)
static void repeat_last_op(gpu_bench *bench, side *fused, side *plain, uint32_t tokens) {
  enum { TIMES = 12 };
  const uint32_t last = (uint32_t)mgl_op_test_program(fused->test)->op_count - 1;
  for (uint32_t i = 0; i < TIMES; i++) {
    gpu_check(bench, compare_op(bench, fused, plain, last, tokens), "the last op, time %u", i);
  }
}

// Behind a context of two chunks of attention, or of so many positions that chunks are longer.
static void compare_model(gpu_bench *bench, const mgl_config *config, uint32_t context,
                          uint32_t least_ops) {
  static const uint32_t tokens[] = {1, REPEATED_TOKENS, 40};
  const mgl_model_folder folder = {.config = *config};
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
    side fused, plain;
    open_side(bench, &folder, tokens[i], context, false, &fused);
    open_side(bench, &folder, tokens[i], context, true, &plain);
    const size_t ops = mgl_op_test_program(fused.test)->op_count;
    uint32_t compared = 0;
    for (uint32_t op = 0; op < ops; op++) {
      compared += compare_op(bench, &fused, &plain, op, tokens[i]);
    }
    gpu_check(bench, compared >= least_ops, "%u of %zu ops were compared", compared, ops);
    if (config->mixture.expert_count > 0 && tokens[i] == REPEATED_TOKENS) {
      repeat_last_op(bench, &fused, &plain, tokens[i]);
    }
    close_side(&fused);
    close_side(&plain);
  }
}

void gpu_ops_same_run(gpu_bench *bench, int count, char **arguments) {
  const char *only = count > 0 ? arguments[0] : "";
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.layer_count = LAYERS;
  config.hidden_size = 1024;
  config.intermediate_size = 1536;
  config.head_count = 8;
  config.vocab_size = 640;
  config.context_tokens = 4096;
  printf("\n## The same bits op by op\n\n");
  // Of small models, which have experts.
  static const char *const models[] = {"oss", "oss_mxfp4", "experts_fp8", "experts_int4"};
  bool known = only[0] == 0 || strcmp(only, "codes") == 0 || strcmp(only, "dense") == 0 ||
               strcmp(only, "mixture") == 0 || strchr(only, '/') != NULL;
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    known = known || strcmp(only, models[i]) == 0;
  }
  gpu_check(
      bench, known,
      "expected codes, dense, mixture, oss, oss_mxfp4, experts_fp8, experts_int4, a folder or "
      "nothing, found \"%s\"",
      only);
  if (only[0] == 0 || strcmp(only, "codes") == 0) {
    static const mgl_form forms[] = {
        {MGL_DTYPE_E4M3, 128, false}, {MGL_DTYPE_I4, 64, false}, {MGL_DTYPE_I8, 32, false}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
      mgl_config coded = config;
      coded.quantization = (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = forms[i]};
      compare_model(bench, &coded, 150, DENSE_OPS);
    }
  }
  if (only[0] == 0 || strcmp(only, "dense") == 0) {
    mgl_config biased = config;
    biased.family = MGL_FAMILY_QWEN2;
    biased.qk_norm = false;
    biased.qkv_bias = true;
    biased.hidden_size = 576;  // part of a page
    biased.intermediate_size = 1160;
    compare_model(bench, &config, 150, DENSE_OPS);
    compare_model(bench, &biased, 2100, DENSE_OPS);
  }
  if (only[0] == 0 || strcmp(only, "mixture") == 0) {
    config.family = MGL_FAMILY_QWEN3_MOE;
    config.mixture = (mgl_mixture){
        .expert_count = 16, .slots = 4, .inner_size = 256, .renormalise = true, .scale = 1};
    compare_model(bench, &config, 150, MIXTURE_OPS);
  }
  if (strchr(only, '/') != NULL) {
    gpu_model model;
    gpu_model_open(only, &model);
    compare_model(bench, &model.config, 150, 1);
    gpu_model_close(&model);
  }
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    if (only[0] == 0 || strcmp(only, models[i]) == 0) {
      gpu_model model;
      gpu_model_open(models[i], &model);
      compare_model(bench, &model.config, 150, MIXTURE_OPS);
      gpu_model_close(&model);
    }
  }
}
