// Custom ops as tasks of the megakernel: sources with shared memory, barriers and the plan's
// positions compute what a host does, to the last bit; what is sampled is what the last of them
// says; and with mode mega's other options the same. With a FOLDER instead: milliseconds of a token
// of that model with an op behind its logits, in the megakernel and by plain kernels, and without.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/compilation.h"
#include "engine/engine.h"
#include "gpu/gpu_bench.h"
#include "graph/custom_op.h"
#include "model/model_folder.h"
#include "support/plan_feed.h"
#include "support/programs.h"

enum { CONTEXT = 128, SEQUENCES = 40, TOKENS = 64, STEPS = 7, VOCAB = 4096, WIDTH = 1024 };

static const plan_step steps[STEPS] = {{3, 5, 2, MGL_LOGITS_LAST},  {3, 1, 0, MGL_LOGITS_LAST},
                                       {13, 1, 0, MGL_LOGITS_LAST}, {1, 60, 0, MGL_LOGITS_LAST},
                                       {40, 1, 0, MGL_LOGITS_LAST}, {14, 2, 9, MGL_LOGITS_LAST},
                                       {1, 1, 0, MGL_LOGITS_LAST}};

// --- the ops -------------------------------------------------------------------------------------

static const char turn_source[] =  // x, by way of shared memory
    "__device__ void gpu_turn(const megalith_custom_call *call) {\n"
    "  __shared__ float shared[256];\n"
    "  const uint32_t columns = call->output_type->dims[1];\n"
    "  const int32_t *positions = (const int32_t *)call->inputs[1];\n"
    "  for (uint32_t row = call->first_row; row < call->end_row; row++) {\n"
    "    const float *x = (const float *)call->inputs[0] + (size_t)row * columns;\n"
    "    float *out = (float *)call->output + (size_t)row * columns;\n"
    "    for (uint32_t first = 0; first < columns; first += blockDim.x) {\n"
    "      shared[255 - threadIdx.x] = x[first + threadIdx.x];\n"
    "      __syncthreads();\n"
    "      float value = shared[threadIdx.x];\n"
    "      if (positions[row] < 0 || positions[row] >= 128 || blockDim.x != 256) value = -1;\n"
    "      out[first + 255 - threadIdx.x] = value;\n"
    "      __syncthreads();\n"
    "    }\n"
    "  }\n"
    "}\n";

static const char cap_source[] =
    "__device__ void gpu_soften(const megalith_custom_call *call) {\n"
    "  const float cap = (float)call->attributes[0];\n"
    "  const uint32_t columns = call->output_type->dims[1];\n"
    "  for (uint32_t row = call->first_row; row < call->end_row; row++) {\n"
    "    const float *x = (const float *)call->inputs[0] + (size_t)row * columns;\n"
    "    float *out = (float *)call->output + (size_t)row * columns;\n"
    "    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x)\n"
    "      out[i] = cap * (x[i] / cap / (1.0f + (x[i] < 0 ? -x[i] : x[i]) / cap));\n"
    "  }\n"
    "}\n";

// Whatever the logits are, of all tokens number WINNER has the largest.
enum { WINNER = 1234 };
static const char fixed_source[] =
    "__device__ void gpu_fixed(const megalith_custom_call *call) {\n"
    "  const uint32_t columns = call->output_type->dims[1];\n"
    "  for (uint32_t row = call->first_row; row < call->end_row; row++) {\n"
    "    float *out = (float *)call->output + (size_t)row * columns;\n"
    "    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x)\n"
    "      out[i] = -(float)((i + columns - 1234) % columns);\n"
    "  }\n"
    "}\n";

static void run_nothing(const mgl_custom_op *op, const mgl_custom_call *call) {
  (void)op, (void)call;
  (void)fprintf(stderr, "the CPU's function of a custom op was called for a GPU\n");
  abort();
}

static void register_ops(void) {
  const mgl_custom_op ops[] = {{.name = "gpu_turn",
                                .input_count = 2,
                                .run = run_nothing,
                                .cuda_source = (char *)(uintptr_t)turn_source,
                                .cuda_tile_rows = 2},
                               {.name = "gpu_soften",
                                .input_count = 1,
                                .attr_count = 1,
                                .attr_names = {"cap"},
                                .run = run_nothing,
                                .cuda_source = (char *)(uintptr_t)cap_source,
                                .cuda_tile_rows = 1},
                               {.name = "gpu_fixed",
                                .input_count = 1,
                                .run = run_nothing,
                                .cuda_source = (char *)(uintptr_t)fixed_source,
                                .cuda_tile_rows = 3}};
  mgl_error err = {0};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    gpu_must(mgl_custom_op_register(&ops[i], &err), &err);
  }
}

// The model's program with `op` behind its logits; freed by the caller.
static char *capped_program(const mgl_config *config, const char *op) {
  mgl_graph *graph = build_program(config);
  mgl_text text = {0}, out = {0};
  mgl_error err = {0};
  mgl_graph_print(graph, &text);
  mgl_graph_destroy(graph);
  const char *logits = strstr(text.data, "\nlogits = ");
  const char *end = logits != NULL ? strstr(logits, "\noutput") : NULL;
  if (end == NULL) {
    gpu_must(mgl_error_set(&err, MGL_ERR_FORMAT, "expected \"logits =\""), &err);
    return NULL;
  }
  mgl_text_format(&out, "%.*s\nraw = %.*s\nlogits = %s : f32[L,%u]%s", (int)(logits - text.data),
                  text.data, (int)(end - logits) - 10, logits + 10, op, config->vocab_size, end);
  mgl_text_free(&text);
  return out.data;
}

// The same, and gpu_turn before its last norm.
static char *changed_program(const mgl_config *config, const char *op) {
  mgl_graph *graph = build_program(config);
  mgl_text text = {0}, out = {0};
  char x[64] = "";
  mgl_error err = {0};
  mgl_graph_print(graph, &text);
  mgl_graph_destroy(graph);
  const char *norm = strstr(text.data, ", model.norm.weight, logit_rows)");
  const char *begin = norm, *name = norm;
  while (norm != NULL && begin[-1] != '\n') {
    begin--;
  }
  while (norm != NULL && name[-1] != '(') {
    name--;
  }
  const char *logits = norm != NULL ? strstr(norm, "\nlogits = ") : NULL;
  const char *end = logits != NULL ? strstr(logits, "\noutput") : NULL;
  if (end == NULL || (size_t)(norm - name) >= sizeof x) {
    gpu_must(mgl_error_set(&err, MGL_ERR_FORMAT, "expected a norm, and \"logits =\""), &err);
    return NULL;
  }
  (void)snprintf(x, sizeof x, "%.*s", (int)(norm - name), name);
  mgl_text_format(&out, "%.*sturned = gpu_turn(%s, positions) : f32[T,%d]\n%.*sturned%.*s",
                  (int)(begin - text.data), text.data, x, WIDTH, (int)(name - begin), begin,
                  (int)(logits - norm), norm);
  mgl_text_format(&out, "\nraw = %.*s\nlogits = %s : f32[L,%d]%s", (int)(end - logits) - 10,
                  logits + 10, op, VOCAB, end);
  mgl_text_free(&text);
  return out.data;
}

// --- running -------------------------------------------------------------------------------------

static mgl_config model_config(void) {
  mgl_config config = small_config(MGL_FAMILY_QWEN3);
  config.hidden_size = WIDTH;
  config.intermediate_size = 3072;
  config.head_count = 8;
  config.vocab_size = VOCAB;
  return config;
}

static mgl_runner *make_runner(gpu_bench *bench, const char *program, const mgl_build *more) {
  static mgl_model_folder folder;
  static mgl_cuda_options cuda;
  static mgl_compilation c;
  mgl_runner *runner = NULL;
  mgl_error err = {0};
  mgl_build build = *more;
  folder.config = model_config();
  cuda = (mgl_cuda_options){.device = &bench->device};
  mgl_compilation_init(&c);
  gpu_must(mgl_compilation_read(&c, "mega", "{\"graph_mode\": \"MEGA\"}", &err), &err);
  gpu_must(mgl_compilation_check(&c, NULL, &err), &err);
  build.iteration_tokens = TOKENS;
  build.sequences = SEQUENCES;
  build.sequence_tokens = CONTEXT;
  build.logit_rows = TOKENS;
  build.weights = MGL_WEIGHTS_DUMMY;
  build.seed = 5;
  build.program = program;
  build.compilation = &c;
  build.cuda = &cuda;
  gpu_must(mgl_runner_create(&folder, &build, &runner, &err), &err);
  return runner;
}

static void run_steps(mgl_runner *runner, float *out) {
  plan_feed *f = plan_feed_create(mgl_runner_limits(runner), VOCAB, SEQUENCES, CONTEXT);
  memset(out, 0, (size_t)STEPS * TOKENS * VOCAB * sizeof *out);
  for (uint32_t i = 0; i < STEPS; i++) {
    mgl_logits logits = {0};
    mgl_error err = {0};
    plan_feed_fill(f, &steps[i]);
    gpu_must(mgl_runner_run(runner, MGL_MODE_MEGA, f->plan, &logits, &err), &err);
    memcpy(out + (size_t)i * TOKENS * VOCAB, logits.rows,
           (size_t)f->plan->logit_row_count * VOCAB * sizeof *out);
  }
  plan_feed_destroy(f);
}

static void check_bits(gpu_bench *bench) {
  static const struct {
    const char *name;
    mgl_build build;
  } ways[] = {{"the usual one", {0}},
              {"a barrier between ops", {.coarse = true}},
              {"no carried words", {.events_only = true}}};
  const mgl_config config = model_config();
  const size_t values = (size_t)STEPS * TOKENS * VOCAB;
  const float cap = 2.5F;
  float *expected = gpu_must_alloc(values, sizeof *expected);
  float *found = gpu_must_alloc(values, sizeof *found);
  char *program = changed_program(&config, "gpu_soften(raw) cap=2.5");
  mgl_runner *runner = make_runner(bench, NULL, &(mgl_build){0});
  run_steps(runner, expected);
  mgl_runner_destroy(runner);
  for (size_t i = 0; i < values; i++) {
    const float x = expected[i];
    expected[i] = cap * (x / cap / (1 + (x < 0 ? -x : x) / cap));
  }
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    runner = make_runner(bench, program, &ways[i].build);
    run_steps(runner, found);
    size_t other = 0;
    for (size_t at = 0; at < values; at++) {
      other += memcmp(&found[at], &expected[at], sizeof found[at]) != 0;
    }
    gpu_check(bench, other == 0, "custom ops in the megakernel, %s: %zu of %zu logits differ",
              ways[i].name, other, values);
    mgl_runner_destroy(runner);
  }
  mgl_free(program);
  free(expected);
  free(found);
}

// --- what is sampled -----------------------------------------------------------------------------

typedef struct heard {
  uint32_t tokens, winners;
} heard;

static bool on_token(void *context, const mgl_generated_token *token) {
  heard *h = context;
  h->tokens++;
  h->winners += token->token == WINNER ? 1 : 0;
  return true;
}

static bool on_iteration(void *context, const mgl_iteration *iteration) {
  (void)context, (void)iteration;
  return true;
}

static void check_samples(gpu_bench *bench) {
  enum { REQUESTS = 50, NEW = 9 };
  const mgl_config config = model_config();
  char *program = changed_program(&config, "gpu_fixed(raw)");
  mgl_runner *runner = make_runner(bench, program, &(mgl_build){0});
  const mgl_engine_options options = {.mode = MGL_MODE_MEGA};
  mgl_engine *engine = NULL;
  mgl_error err = {0};
  heard h = {0};
  gpu_must(mgl_engine_create(runner, &options, &engine, &err), &err);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    int32_t prompt[20];
    uint32_t number = 0;
    for (uint32_t t = 0; t < 1 + i % 20; t++) {
      prompt[t] = (int32_t)((i * 37 + t * 11) % VOCAB);
    }
    const mgl_request request = {.prompt = prompt,
                                 .prompt_count = 1 + i % 20,
                                 .max_new_tokens = NEW,
                                 .sampling = {.top_p = 1}};
    gpu_must(mgl_engine_submit(engine, &request, &number, &err), &err);
  }
  gpu_must(mgl_engine_run(engine, on_token, on_iteration, &h, &err), &err);
  gpu_check(bench, h.tokens == REQUESTS * NEW && h.winners == h.tokens,
            "what a custom op made of logits is sampled: %u of %u tokens", h.winners, h.tokens);
  mgl_engine_destroy(engine);
  mgl_runner_destroy(runner);
  mgl_free(program);
}

// --- how long it takes ---------------------------------------------------------------------------

enum { TIMED_NEW = 64, TIMED_ROUNDS = 3 };

typedef struct timing {
  double us[TIMED_NEW * 4];
  uint32_t count;
} timing;

static bool take_token(void *context, const mgl_generated_token *token) {
  (void)context, (void)token;
  return true;
}

static bool note_iteration(void *context, const mgl_iteration *iteration) {
  timing *t = context;
  if (iteration->prompt_tokens == 0 && t->count < sizeof t->us / sizeof *t->us) {
    t->us[t->count++] = (double)iteration->ns / 1e3;
  }
  return true;
}

static double time_decode(mgl_runner *runner, mgl_mode mode, uint32_t sequences) {
  const mgl_engine_options options = {.mode = mode, .prompts_first = true};
  mgl_engine *engine = NULL;
  mgl_error err = {0};
  timing t = {0};
  gpu_must(mgl_engine_create(runner, &options, &engine, &err), &err);
  for (uint32_t i = 0; i < sequences; i++) {
    const int32_t prompt[8] = {(int32_t)i + 1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t number = 0;
    const mgl_request request = {
        .prompt = prompt, .prompt_count = 8, .max_new_tokens = TIMED_NEW, .sampling = {.top_p = 1}};
    gpu_must(mgl_engine_submit(engine, &request, &number, &err), &err);
  }
  gpu_must(mgl_engine_run(engine, take_token, note_iteration, &t, &err), &err);
  mgl_engine_destroy(engine);
  return gpu_median(t.us, t.count) / 1e3;
}

static void time_folder(gpu_bench *bench, const char *path) {
  static const char mega[] = "{\"graph_mode\": \"MEGA\"}", full[] = "{\"graph_mode\": \"FULL\"}";
  mgl_model_folder folder;
  mgl_error err = {0};
  gpu_must(mgl_model_folder_open(path, 0, &folder, &err), &err);
  char *program = capped_program(&folder.config, "gpu_soften(raw) cap=2.5");
  const struct {
    const char *name, *program, *json;
  } ways[] = {{"mega", NULL, mega},
              {"mega, with the op", program, mega},
              {"plain kernels in graphs, with the op", program, full}};
  enum { WAYS = sizeof ways / sizeof *ways };
  mgl_runner *runners[WAYS] = {NULL};
  static mgl_compilation compilations[WAYS];
  const mgl_cuda_options cuda = {.device = &bench->device};
  for (size_t i = 0; i < WAYS; i++) {
    mgl_compilation_init(&compilations[i]);
    gpu_must(mgl_compilation_read(&compilations[i], "way", ways[i].json, &err), &err);
    gpu_must(mgl_compilation_check(&compilations[i], NULL, &err), &err);
    const mgl_build build = {.iteration_tokens = TOKENS,
                             .sequences = 16,
                             .sequence_tokens = CONTEXT,
                             .weights = MGL_WEIGHTS_DUMMY,
                             .seed = 5,
                             .program = ways[i].program,
                             .compilation = &compilations[i],
                             .cuda = &cuda};
    gpu_must(mgl_runner_create(&folder, &build, &runners[i], &err), &err);
  }
  for (uint32_t round = 0; round < TIMED_ROUNDS; round++) {
    for (size_t i = 0; i < WAYS; i++) {
      const mgl_mode mode = mgl_runner_usual_mode(runners[i]);
      const double one = time_decode(runners[i], mode, 1);
      printf("- %s, %s (mode %s): %.3f ms a token with 1 sequence, %.3f with 16\n", path,
             ways[i].name, mgl_mode_name(mode), one, time_decode(runners[i], mode, 16));
    }
  }
  for (size_t i = 0; i < WAYS; i++) {
    mgl_runner_destroy(runners[i]);
  }
  mgl_free(program);
  mgl_model_folder_close(&folder);
}

void gpu_custom_tasks_run(gpu_bench *bench, int count, char **arguments) {
  printf("\n## Custom ops in the megakernel\n\n");
  register_ops();
  for (int i = 0; i < count; i++) {
    time_folder(bench, arguments[i]);
  }
  if (count > 0) {
    return;
  }
  check_bits(bench);
  check_samples(bench);
}
