// 500 requests, of a dense model and of a mixture, get the same tokens with the same bits of log
// probabilities at every level and in every mode: served in iterations of prompts, of sequences that
// decode and of both, greedy and sampled. Where fused tasks cover the model, plain kernels have
// their bits (kernels/cuda/plain/plain_ordered.cuh). The same on the CPU:
// tests/unit/engine/test_modes_requests.c.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/form.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "gpu/gpu_bench.h"
#include "support/mixed_requests.h"
#include "support/plan_feed.h"
#include "support/programs.h"

enum { CONTEXT = 128, SEQUENCES = 40, TOKENS = 64 };

static uint32_t requests = MIXED_MOST_REQUESTS;

static const char *const fused_ways[] = {
    "{\"graph_mode\": \"MEGA\"}",
    "{\"level\": 2}",
    "{\"level\": 3}",
    "{\"graph_mode\": \"FULL\"}",
    "{\"graph_mode\": \"FULL_DECODE_ONLY\"}",
    "{\"graph_mode\": \"FULL_AND_PIECEWISE\"}",
};

// By plain kernels; of a model that fused tasks cover, those with sizes are by fused kernels.
static const char *const plain_ways[] = {
    "{\"level\": 0}",
    "{\"level\": 1}",
    "{\"graph_mode\": \"PIECEWISE\", \"graph_sizes\": [64]}",
    "{\"graph_mode\": \"FULL\", \"graph_sizes\": [64]}",
    "{\"graph_mode\": \"FULL_DECODE_ONLY\", \"graph_sizes\": [16]}",
    "{\"preset\": \"fastest-graphs\", \"capture_sizes\": [1, 5, 40]}",
    "{\"splitting_ops\": [\"attention\", \"linear\"], \"use_compiler\": false}",
};
enum {
  FUSED_WAYS = sizeof fused_ways / sizeof *fused_ways,
  PLAIN_WAYS = sizeof plain_ways / sizeof *plain_ways
};

// What came of one way.
typedef struct served {
  mixed_served requests;
  mgl_launch_counts launches;
} served;

static void serve(gpu_bench *bench, const mgl_config *config, const char *json, served *out) {
  static mgl_compilation c;
  const mgl_model_folder folder = {.config = *config};
  const mgl_cuda_options cuda = {.device = &bench->device};
  mgl_runner *runner = NULL;
  mgl_engine *engine = NULL;
  mgl_error err = {0};
  mgl_compilation_init(&c);
  gpu_must(mgl_compilation_read(&c, "way", json, &err), &err);
  gpu_must(mgl_compilation_check(&c, NULL, &err), &err);
  const mgl_build build = {.sequences = SEQUENCES,
                           .iteration_tokens = TOKENS,
                           .sequence_tokens = CONTEXT,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 3,
                           .compilation = &c,
                           .cuda = &cuda};
  memset(out, 0, sizeof *out);
  gpu_must(mgl_runner_create(&folder, &build, &runner, &err), &err);
  const mgl_engine_options options = {
      .mode = mgl_runner_usual_mode(runner), .prefix_cache = true, .chunk_tokens = 48};
  gpu_must(mgl_engine_create(runner, &options, &engine, &err), &err);
  gpu_must(mixed_requests_run(engine, requests, config->vocab_size, &out->requests, &err), &err);
  out->launches = mgl_runner_launches(runner);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
}

static uint32_t count_same(const mixed_answers *a, const mixed_answers *b) {
  uint32_t same = 0;
  for (uint32_t i = 0; i < requests; i++) {
    same += memcmp(a->tokens[i], b->tokens[i], sizeof a->tokens[i]) == 0;
  }
  return same;
}

// All ways of a family. *expected: what they should answer; with `first`, what the first one does.
static void check_family(gpu_bench *bench, const char *name, const mgl_config *config,
                         const char *const *ways, size_t count, bool first, served *expected) {
  served *found = gpu_must_alloc(1, sizeof *found);
  for (size_t i = 0; i < count; i++) {
    served *to = i == 0 && first ? expected : found;
    uint64_t begin = mgl_clock_ns(), tokens = 0;
    serve(bench, config, ways[i], to);
    const mixed_served *got = &to->requests;
    bool same = memcmp(&got->answers, &expected->requests.answers, sizeof got->answers) == 0;
    bool all = !got->failed && got->prompts > 0 && got->decodes > 0 && got->both > 0;
    for (uint32_t r = 0; r < requests; r++) {
      all = all && got->answers.counts[r] > 0;
      tokens += got->answers.counts[r];
    }
    gpu_check(bench, same && all,
              "%s, %s: %s, the same tokens to %u of %u requests; %llu tokens, %u iterations of "
              "prompts, %u that decode, %u of both; %llu graphs, %llu ops; %.1f s",
              name, ways[i], same ? "the same bits" : "OTHER BITS",
              count_same(&got->answers, &expected->requests.answers), requests,
              (unsigned long long)tokens, got->prompts, got->decodes, got->both,
              (unsigned long long)to->launches.graphs, (unsigned long long)to->launches.ops,
              (double)(mgl_clock_ns() - begin) / 1e9);
  }
  free(found);
}

void gpu_modes_same_run(gpu_bench *bench, int count, char **arguments) {
  const char *only = "";
  bool small = false;
  size_t others = PLAIN_WAYS;
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "requests=", 9) == 0) {
      requests = (uint32_t)strtoul(arguments[i] + 9, NULL, 10);
    } else if (strcmp(arguments[i], "fused") == 0) {
      others = 0;
    } else if (strcmp(arguments[i], "small") == 0) {
      small = true;
    } else {
      only = arguments[i];
    }
  }
  if (requests < 1 || requests > MIXED_MOST_REQUESTS) {
    gpu_check(bench, false, "expected 1 to %d requests, found %u", MIXED_MOST_REQUESTS, requests);
    return;
  }
  served *expected = gpu_must_alloc(1, sizeof *expected);
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.hidden_size = 1024;
  config.intermediate_size = small ? 1024 : 3072;
  config.head_count = 8;
  config.vocab_size = small ? 512 : 4096;
  config.layer_count = small ? 1 : config.layer_count;
  printf("\n## The same bits in every mode: %u requests\n\n", requests);
  if (only[0] == 0 || strcmp(only, "dense") == 0) {
    check_family(bench, "dense, fused kernels", &config, fused_ways, FUSED_WAYS, true, expected);
    check_family(bench, "dense, other ways", &config, plain_ways, others, false, expected);
  }
  if (strcmp(only, "dense") != 0 && strcmp(only, "mixture") != 0) {
    const mgl_form forms[] = {
        {MGL_DTYPE_E4M3, 128, false}, {MGL_DTYPE_I4, 64, false}, {MGL_DTYPE_I8, 32, false}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
      mgl_config coded = config;
      char name[MGL_FORM_NAME_BYTES + 16];
      coded.quantization = (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = forms[i]};
      mgl_form_name(forms[i], name);
      if (only[0] != 0 && strcmp(only, "codes") != 0 && strstr(name, only) == NULL) {
        continue;
      }
      check_family(bench, name, &coded, fused_ways, FUSED_WAYS, true, expected);
      check_family(bench, name, &coded, plain_ways, others, false, expected);
    }
  }
  config.mixture = (mgl_mixture){
      .expert_count = 16, .slots = 4, .inner_size = 256, .renormalise = true, .scale = 1};
  if (only[0] == 0 || strcmp(only, "experts") == 0) {
    mgl_config coded = config;
    coded.family = MGL_FAMILY_QWEN3_MOE;
    coded.mixture.inner_size = 1024;  // whole panels
    coded.quantization =
        (mgl_quantization){.method = MGL_QUANT_COMPRESSED, .drawn = {MGL_DTYPE_E4M3, 128, false}};
    check_family(bench, "experts of codes", &coded, fused_ways, FUSED_WAYS, true, expected);
  }
  if (only[0] == 0 || strcmp(only, "mixture") == 0) {
    config.family = MGL_FAMILY_QWEN3_MOE;
    check_family(bench, "mixture, fused kernels", &config, fused_ways, FUSED_WAYS, true, expected);
    check_family(bench, "mixture, other ways", &config, plain_ways, others, false, expected);
    config = small_mixture_config();
    check_family(bench, "mixture that tasks do not cover", &config, plain_ways, others, true,
                 expected);
  }
  free(expected);
}
