// Modes of plain kernels: op by op, in pieces and in graphs by size, each must compute the same bits,
// and launch as many graphs and ops as it says. A tiny model, one of experts, and wide ones, with
// dummy weights; with a FOLDER instead that one, and how long iterations of 1 and 16 sequences take.
// Then the tiny model with a custom op behind its logits, whose CUDA source must compute what a
// host does, to the last bit; and fused kernels in a graph, in pieces and one by one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/compilation.h"
#include "engine/runner.h"
#include "gpu/gpu_bench.h"
#include "graph/custom_op.h"
#include "support/plan_feed.h"
#include "support/programs.h"

enum { CONTEXT = 128, SEQUENCES = 40, TOKENS = 80, STEPS = 9, TIMED = 32 };

static const plan_step steps[STEPS] = {
    {3, 20, 2, MGL_LOGITS_LAST}, {3, 1, 0, MGL_LOGITS_LAST},  {13, 1, 0, MGL_LOGITS_LAST},
    {1, 80, 0, MGL_LOGITS_LAST}, {2, 1, 9, MGL_LOGITS_ALL},   {40, 1, 0, MGL_LOGITS_NONE},
    {14, 4, 9, MGL_LOGITS_LAST}, {33, 1, 0, MGL_LOGITS_LAST}, {1, 1, 0, MGL_LOGITS_LAST}};

static const struct {
  const char *json;
  uint32_t pieces;  // graphs of an iteration that has them, for each attention op; 0: one
  bool decode_full, mixed_full, decode_pieces, mixed_pieces;
  uint32_t most;
} ways[] = {
    {"{\"level\": 0}", 0, false, false, false, false, 0},
    {"{\"graph_mode\": \"FULL\", \"graph_sizes\": [80]}", 0, true, true, false, false, 80},
    {"{\"graph_mode\": \"PIECEWISE\", \"graph_sizes\": [80]}", 1, false, false, true, true, 80},
    {"{\"graph_mode\": \"FULL_DECODE_ONLY\", \"graph_sizes\": [64]}", 0, true, false, false, false,
     64},
    {"{\"graph_mode\": \"FULL_AND_PIECEWISE\", \"capture_sizes\": [1, 4, 16, 48]}", 1, true, false,
     false, true, 48},
};
enum { WAYS = sizeof ways / sizeof *ways };

static double time_decode(mgl_runner *runner, plan_feed *f, uint32_t sequences) {
  double ms[TIMED];
  for (uint32_t i = 0; i < TIMED; i++) {
    mgl_logits logits;
    mgl_error err = {0};
    plan_feed_fill(f, &(plan_step){sequences, 1, 0, MGL_LOGITS_LAST});
    uint64_t begin = mgl_clock_ns();
    gpu_must(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err), &err);
    ms[i] = (double)(mgl_clock_ns() - begin) / 1e6;
  }
  return gpu_median(ms, TIMED);
}

// The attention ops of a program, and all of its ops.
static void count_ops(const mgl_graph *program, uint32_t *attention, uint32_t *all) {
  *attention = 0;
  *all = (uint32_t)program->op_count;
  for (size_t i = 0; i < program->op_count; i++) {
    *attention += mgl_op_info_of(program->ops[i].kind)->unit == MGL_UNIT_HEAD;
  }
}

// Runs all steps one way; program: as text, NULL: the model's own; out: [STEPS, TOKENS, V]. False:
// it launched something else than it says.
static bool run_way(gpu_bench *bench, const mgl_model_folder *folder, const char *program,
                    size_t number, float *out, char line[256]) {
  const mgl_cuda_options cuda = {.device = &bench->device};
  mgl_compilation c;
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  uint32_t vocab = folder->config.vocab_size, attention = 0, all = 0;
  bool fine = true;
  mgl_compilation_init(&c);
  gpu_must(mgl_compilation_read(&c, "way", ways[number].json, &err), &err);
  gpu_must(mgl_compilation_check(&c, NULL, &err), &err);
  const mgl_build build = {.iteration_tokens = TOKENS,
                           .sequences = SEQUENCES,
                           .sequence_tokens = CONTEXT,
                           .logit_rows = TOKENS,
                           .weights = MGL_WEIGHTS_DUMMY,
                           .seed = 5,
                           .program = program,
                           .compilation = &c,
                           .cuda = &cuda};
  gpu_must(mgl_runner_create(folder, &build, &runner, &err), &err);
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), vocab, SEQUENCES, CONTEXT);
  count_ops(mgl_runner_program(runner), &attention, &all);
  for (uint32_t i = 0; i < STEPS; i++) {
    mgl_logits logits = {0};
    mgl_launch_counts before = mgl_runner_launches(runner);
    plan_feed_fill(f, &steps[i]);
    gpu_must(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err), &err);
    memcpy(out + (size_t)i * TOKENS * vocab, logits.rows,
           (size_t)f->plan->logit_row_count * vocab * sizeof *out);
    mgl_launch_counts after = mgl_runner_launches(runner);
    uint32_t tokens = f->plan->token_count;
    bool decodes = tokens == f->plan->sequence_count, fits = tokens <= ways[number].most;
    bool full = fits && (decodes ? ways[number].decode_full : ways[number].mixed_full);
    bool pieces = fits && (decodes ? ways[number].decode_pieces : ways[number].mixed_pieces);
    fine = fine &&
           after.graphs - before.graphs == (full     ? 1
                                            : pieces ? attention + 1
                                                     : 0) &&
           after.ops - before.ops == (full     ? 0
                                      : pieces ? attention
                                               : all);
  }
  (void)snprintf(line, 256, "%.3f ms with 1 sequence, %.3f with 16; %s", time_decode(runner, f, 1),
                 time_decode(runner, f, 16), mgl_runner_note(runner));
  plan_feed_destroy(f);
  mgl_runner_destroy(runner);
  return fine;
}

static void check_model(gpu_bench *bench, const char *name, const mgl_model_folder *folder) {
  size_t values = (size_t)STEPS * TOKENS * folder->config.vocab_size;
  float *expected = gpu_must_alloc(values, sizeof *expected);
  float *found = gpu_must_alloc(values, sizeof *found);
  char line[256];
  memset(expected, 0, values * sizeof *expected);
  for (size_t i = 0; i < WAYS; i++) {
    memset(found, 0, values * sizeof *found);
    bool launches = run_way(bench, folder, NULL, i, i == 0 ? expected : found, line);
    bool same = i == 0 || memcmp(expected, found, values * sizeof *found) == 0;
    gpu_check(bench, launches && same, "%s, %s: %s, %s; %s", name, ways[i].json,
              same ? "the same bits" : "OTHER BITS",
              launches ? "launches as said" : "OTHER LAUNCHES", line);
  }
  free(expected);
  free(found);
}

static void check_folder(gpu_bench *bench, const char *path) {
  mgl_model_folder folder;
  mgl_error err = {0};
  gpu_must(mgl_model_folder_open(path, 0, &folder, &err), &err);
  check_model(bench, path, &folder);
  mgl_model_folder_close(&folder);
}

// --- a custom op ---------------------------------------------------------------------------------

static const double cap = 2.5;
static const char cap_source[] =
    "__device__ void gpu_cap(const megalith_custom_call *call) {\n"
    "  const float cap = (float)call->attributes[0];\n"
    "  const uint32_t columns = call->output_type->dims[1];\n"
    "  for (uint32_t row = call->first_row; row < call->end_row; row++) {\n"
    "    const float *x = (const float *)call->inputs[0] + (size_t)row * columns;\n"
    "    float *out = (float *)call->output + (size_t)row * columns;\n"
    "    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x)\n"
    "      out[i] = cap * (x[i] / cap / (1.0f + (x[i] < 0 ? -x[i] : x[i]) / cap));\n"
    "  }\n"
    "}\n";

static void cap_on_host(const mgl_custom_op *op, const mgl_custom_call *call) {
  (void)op, (void)call;
  (void)fprintf(stderr, "the CPU's function of a custom op was called for a GPU\n");
  abort();
}

// The model's program with the op behind its logits; freed by the caller.
static char *capped_program(const mgl_config *config) {
  mgl_graph *graph = build_program(config);
  mgl_text text = {0}, out = {0};
  mgl_graph_print(graph, &text);
  mgl_graph_destroy(graph);
  char *line = strstr(text.data, "\nlogits = "), *end = strstr(text.data, "\noutput");
  mgl_error err = {0};
  if (line == NULL || end == NULL) {
    gpu_must(mgl_error_set(&err, MGL_ERR_FORMAT, "expected a program with \"logits =\""), &err);
    return NULL;
  }
  mgl_text_format(&out, "%.*s\nraw = %.*s\nlogits = gpu_cap(raw) cap=%g : f32[L,%u]%s",
                  (int)(line - text.data), text.data, (int)(end - line) - 10, line + 10, cap,
                  config->vocab_size, end);
  mgl_text_free(&text);
  return out.data;
}

static void check_custom(gpu_bench *bench) {
  const mgl_custom_op op = {.name = "gpu_cap",
                            .input_count = 1,
                            .attr_count = 1,
                            .attr_names = {"cap"},
                            .run = cap_on_host,
                            .cuda_source = (char *)(uintptr_t)cap_source,
                            .cuda_tile_rows = 3};
  const mgl_model_folder tiny = {.config = small_config(MGL_FAMILY_QWEN3)};
  size_t values = (size_t)STEPS * TOKENS * tiny.config.vocab_size;
  float *expected = gpu_must_alloc(values, sizeof *expected);
  float *found = gpu_must_alloc(values, sizeof *found);
  mgl_error err = {0};
  char line[256];
  gpu_must(mgl_custom_op_register(&op, &err), &err);
  char *program = capped_program(&tiny.config);
  memset(expected, 0, values * sizeof *expected);
  (void)run_way(bench, &tiny, NULL, 0, expected, line);
  for (size_t i = 0; i < values; i++) {
    const float most = (float)cap, x = expected[i];
    expected[i] = most * (x / most / (1.0f + (x < 0 ? -x : x) / most));
  }
  for (size_t i = 0; i < WAYS; i++) {
    memset(found, 0, values * sizeof *found);
    bool launches = run_way(bench, &tiny, program, i, found, line);
    bool same = memcmp(expected, found, values * sizeof *found) == 0;
    gpu_check(bench, launches && same, "a custom op, %s: %s, %s; %s", ways[i].json,
              same ? "the host's bits" : "OTHER BITS",
              launches ? "launches as said" : "OTHER LAUNCHES", line);
  }
  mgl_free(program);
  free(expected);
  free(found);
}

// --- fused kernels -------------------------------------------------------------------------------

enum { FUSED_TOKENS = 64, FUSED_STEPS = 7 };

// Mode mega, and the same tasks as kernels: in a graph, in pieces, one by one, and by what an
// iteration is. All must have the bits of mode mega.
static void check_fused(gpu_bench *bench) {
  static const struct {
    const char *json;
    bool decode_graph, mixed_graph, decode_pieces, mixed_pieces;
  } modes[] = {{"{\"graph_mode\": \"MEGA\"}", false, false, false, false},
               {"{\"graph_mode\": \"FULL\"}", true, true, false, false},
               {"{\"graph_mode\": \"PIECEWISE\"}", false, false, true, true},
               {"{\"level\": 2}", false, false, false, false},
               {"{\"graph_mode\": \"FULL_DECODE_ONLY\"}", true, false, false, false},
               {"{\"graph_mode\": \"FULL_AND_PIECEWISE\"}", true, false, false, true}};
  static const plan_step fused_steps[FUSED_STEPS] = {
      {3, 5, 2, MGL_LOGITS_LAST},  {3, 1, 0, MGL_LOGITS_LAST},  {13, 1, 0, MGL_LOGITS_LAST},
      {1, 60, 0, MGL_LOGITS_LAST}, {40, 1, 0, MGL_LOGITS_LAST}, {14, 2, 9, MGL_LOGITS_LAST},
      {1, 1, 0, MGL_LOGITS_LAST}};
  mgl_model_folder model = {.config = small_config(MGL_FAMILY_QWEN3)};
  model.config.hidden_size = 1024;
  model.config.intermediate_size = 3072;
  model.config.head_count = 8;
  model.config.vocab_size = 4096;
  const mgl_cuda_options cuda = {.device = &bench->device};
  size_t values = (size_t)FUSED_STEPS * FUSED_TOKENS * model.config.vocab_size;
  float *expected = gpu_must_alloc(values, sizeof *expected);
  float *found = gpu_must_alloc(values, sizeof *found);
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    mgl_compilation c;
    mgl_runner *runner = NULL;
    mgl_error err = {0};
    bool launches = true;
    mgl_compilation_init(&c);
    gpu_must(mgl_compilation_read(&c, "mode", modes[i].json, &err), &err);
    gpu_must(mgl_compilation_check(&c, NULL, &err), &err);
    const mgl_build build = {.iteration_tokens = FUSED_TOKENS,
                             .sequences = SEQUENCES,
                             .sequence_tokens = CONTEXT,
                             .logit_rows = FUSED_TOKENS,
                             .weights = MGL_WEIGHTS_DUMMY,
                             .seed = 5,
                             .compilation = &c,
                             .cuda = &cuda};
    gpu_must(mgl_runner_create(&model, &build, &runner, &err), &err);
    plan_feed *f =
        plan_feed_create(mgl_runner_limits(runner), model.config.vocab_size, SEQUENCES, CONTEXT);
    memset(found, 0, values * sizeof *found);
    for (uint32_t step = 0; step < FUSED_STEPS; step++) {
      const uint32_t layers = model.config.layer_count;
      mgl_logits logits = {0};
      mgl_launch_counts before = mgl_runner_launches(runner);
      plan_feed_fill(f, &fused_steps[step]);
      gpu_must(mgl_runner_run(runner, mgl_runner_usual_mode(runner), f->plan, &logits, &err), &err);
      mgl_launch_counts after = mgl_runner_launches(runner);
      memcpy(found + (size_t)step * FUSED_TOKENS * model.config.vocab_size, logits.rows,
             (size_t)f->plan->logit_row_count * model.config.vocab_size * sizeof *found);
      bool decodes = f->plan->token_count == f->plan->sequence_count;
      bool graph = decodes ? modes[i].decode_graph : modes[i].mixed_graph;
      bool pieces = decodes ? modes[i].decode_pieces : modes[i].mixed_pieces;
      // Those of FULL_AND_PIECEWISE may be found faster kernel by kernel.
      pieces = pieces && (i + 1 < sizeof modes / sizeof *modes || after.graphs != before.graphs);
      launches = launches && after.graphs - before.graphs == (graph ? 1 : pieces ? layers + 1 : 0);
      launches = launches && (!pieces || after.ops - before.ops == layers);
      launches = launches && (!graph || after.ops == before.ops);
    }
    if (i == 0) {
      memcpy(expected, found, values * sizeof *found);
    }
    bool same = memcmp(expected, found, values * sizeof *found) == 0;
    gpu_check(bench, same && launches, "fused kernels, %s: %s, %s; %s", modes[i].json,
              same ? "the same bits" : "OTHER BITS",
              launches ? "launches as said" : "OTHER LAUNCHES", mgl_runner_note(runner));
    plan_feed_destroy(f);
    mgl_runner_destroy(runner);
  }
  free(expected);
  free(found);
}

void gpu_launch_run(gpu_bench *bench, int count, char **arguments) {
  if (count > 0) {
    for (int i = 0; i < count; i++) {
      check_folder(bench, arguments[i]);
    }
    return;
  }
  mgl_model_folder tiny = {.config = small_config(MGL_FAMILY_QWEN3)};
  check_model(bench, "tiny", &tiny);
  tiny.config = small_mixture_config();
  check_model(bench, "tiny mixture", &tiny);
  tiny.config = small_config(MGL_FAMILY_PHI);
  tiny.config.hidden_size = 2560;
  tiny.config.intermediate_size = 10240;
  tiny.config.head_count = tiny.config.kv_head_count = 32;
  tiny.config.head_dim = 80;
  tiny.config.rotary_dim = 32;
  tiny.config.vocab_size = 51200;
  tiny.config.rms_norm_eps = 1e-5;
  check_model(bench, "wide phi", &tiny);
  check_custom(bench);
  check_fused(bench);
}
