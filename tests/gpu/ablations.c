// What each mechanism of the megakernel is worth: the time of an iteration with it changed, beside
// the default. Variants take turns, several rounds of all, medians of the rounds' medians.
//
// With trace=DIR each variant runs once with the trace instead and leaves DIR/MODEL-VARIANT.json
// for `megalith trace --summary`, which says why. The variants of the last linear change how
// lm_head alone is cut, so that its workers have several tasks to pipeline; their traces are
// compared with last_linear.py, which times cuBLAS.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"

enum { MAX_ROUNDS = 9, TRACE_SPANS = 512, JIT_SHARE = 8, PATH_BYTES = 1024 };

// What a program is compiled for; all zero is the default.
typedef struct shape {
  mgl_launch launch;     // of all ops
  bool jit_attention;    // of attention alone: hybrid
  bool coarse;           // one event between two ops
  bool events_only;      // tasks wait for events, not for words of activations
  uint32_t schedulers;   // 0: whoever activates an event schedules
  bool scheduler_warps;  // they are warps of worker blocks
  uint32_t logit_tasks;  // of lm_head for each worker; 0: one
} shape;

typedef struct variant {
  const char *name;
  shape shape;
  mgl_cuda_launch_options launch;
} variant;

// Those of one shape stand together: they share a program.
static const variant variants[] = {
    {.name = "default"},
    {.name = "no-prefetch", .launch = {.no_prefetch = true}},
    {.name = "in-flight-2-2", .launch = {.in_flight = 2, .in_flight_ahead = 2}},
    {.name = "in-flight-4-2", .launch = {.in_flight = 4, .in_flight_ahead = 2}},
    {.name = "in-flight-8-3", .launch = {.in_flight = 8, .in_flight_ahead = 3}},
    {.name = "in-flight-8-6", .launch = {.in_flight = 8, .in_flight_ahead = 6}},
    {.name = "in-flight-no-bound", .launch = {.in_flight = 12, .in_flight_ahead = 12}},
    {.name = "no-descriptor-prefetch", .launch = {.step_batch = 1}},
    {.name = "events", .shape = {.events_only = true}},
    {.name = "events-no-prefetch", .shape = {.events_only = true}, .launch = {.no_prefetch = true}},
    {.name = "coarse", .shape = {.coarse = true}},
    {.name = "coarse-no-prefetch-no-bound-no-descriptor-prefetch",
     .shape = {.coarse = true},
     .launch = {.no_prefetch = true, .in_flight = 12, .in_flight_ahead = 12, .step_batch = 1}},
    {.name = "hybrid-embedded", .shape = {.jit_attention = true}},
    {.name = "hybrid-1-block", .shape = {.jit_attention = true, .schedulers = 1}},
    {.name = "hybrid-4-in-a-block", .shape = {.jit_attention = true, .schedulers = 4}},
    {.name = "hybrid-4-warps",
     .shape = {.jit_attention = true, .schedulers = 4, .scheduler_warps = true}},
    {.name = "jit-embedded", .shape = {.launch = MGL_LAUNCH_JIT}},
    {.name = "jit-1-block", .shape = {.launch = MGL_LAUNCH_JIT, .schedulers = 1}},
    {.name = "jit-4-in-a-block", .shape = {.launch = MGL_LAUNCH_JIT, .schedulers = 4}},
    {.name = "jit-4-warps",
     .shape = {.launch = MGL_LAUNCH_JIT, .schedulers = 4, .scheduler_warps = true}},
    {.name = "all-off",
     .shape = {.coarse = true, .launch = MGL_LAUNCH_JIT, .schedulers = 1},
     .launch = {.no_prefetch = true, .in_flight = 12, .in_flight_ahead = 12, .step_batch = 1}},
    {.name = "lm-head-8-tasks", .shape = {.logit_tasks = 8}},
    {.name = "lm-head-8-tasks-no-prefetch",
     .shape = {.logit_tasks = 8},
     .launch = {.no_prefetch = true}},
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

typedef struct ablation_options {
  gpu_load load;
  uint32_t rounds;
  uint32_t jit;  // 0: without the variants that have JIT tasks, which take most of the time
  const char *csv, *trace, *only;
} ablation_options;

typedef struct study {
  gpu_bench *bench;
  const ablation_options *options;
  gpu_model model;
  double ms[VARIANTS][MAX_ROUNDS];
} study;

static bool is_slow(const variant *v) {
  return v->shape.launch == MGL_LAUNCH_JIT || v->shape.jit_attention;
}

static bool is_wanted(const study *s, const variant *v) {
  const char *only = s->options->only;
  return v == variants ||
         ((only == NULL || strstr(v->name, only) != NULL) && (s->options->jit != 0 || !is_slow(v)));
}

static bool same_shape(const shape *a, const shape *b) {
  return a->launch == b->launch && a->jit_attention == b->jit_attention && a->coarse == b->coarse &&
         a->schedulers == b->schedulers && a->scheduler_warps == b->scheduler_warps &&
         a->logit_tasks == b->logit_tasks && a->events_only == b->events_only;
}

static mgl_cuda_program *make(const study *s, const shape *wanted) {
  const gpu_load *load = &s->options->load;
  const uint32_t each = MGL_CUDA_BLOCK_SCHEDULERS;
  uint32_t blocks = wanted->scheduler_warps ? 0 : (wanted->schedulers + each - 1) / each;
  uint32_t workers = s->bench->device.sm_count - blocks;
  mgl_compile_override overrides[2];
  uint32_t count = 0;
  if (wanted->jit_attention) {
    overrides[count++] = (mgl_compile_override){.op = "attend", .launch = MGL_LAUNCH_JIT};
  }
  if (wanted->logit_tasks > 0) {
    overrides[count++] =
        (mgl_compile_override){.op = "logits", .grid = {wanted->logit_tasks * workers, 1, 1}};
  }
  uint32_t longest = load->prompt + load->generate;
  return gpu_program(
      s->bench, &s->model,
      (mgl_cuda_program_options){
          .sizes.limits.tokens = MGL_CUDA_MAX_TOKENS,
          .sizes.sequences = load->batch,
          .sizes.limits.pages_per_sequence = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS,
          .build.launch = wanted->launch,
          .build.overrides = overrides,
          .build.override_count = count,
          .build.coarse = wanted->coarse,
          .build.events_only = wanted->events_only,
          .build.schedulers = wanted->schedulers,
          .build.scheduler_warps = wanted->scheduler_warps,
          .build.trace_tasks = s->options->trace != NULL ? TRACE_SPANS : 0});
}

static void run_variant(study *s, const variant *v, mgl_cuda_program *program, uint32_t round) {
  gpu_load load = s->options->load;
  mgl_cuda_launch_options launch = v->launch;
  launch.deadline_ns = UINT64_C(30000000000);
  if (is_slow(v) && load.generate > 2 * JIT_SHARE) {
    load.generate /= JIT_SHARE;
  }
  s->ms[v - variants][round] = gpu_measure(program, &s->model, &load, &launch).median_ms;
  if (s->options->trace != NULL) {
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s-%s.json", s->options->trace, s->model.name, v->name);
    gpu_write_trace(program, path);
  }
}

static void run_round(study *s, uint32_t round) {
  mgl_cuda_program *program = NULL;
  const shape *made = NULL;
  for (const variant *v = variants; v < variants + VARIANTS; v++) {
    if (!is_wanted(s, v)) {
      continue;
    }
    if (made == NULL || !same_shape(made, &v->shape)) {
      mgl_cuda_program_destroy(program);
      program = make(s, &v->shape);
      made = &v->shape;
      // A program's first launch is 1% slower.
      gpu_load load = s->options->load;
      load.generate = is_slow(v) ? 2 : load.generate;
      (void)gpu_measure(program, &s->model, &load, &(mgl_cuda_launch_options){0});
    }
    run_variant(s, v, program, round);
  }
  mgl_cuda_program_destroy(program);
}

// --- results -------------------------------------------------------------------------------------

static void print_csv_row(FILE *csv, const study *s, const variant *v, const double *ms,
                          double ratio) {
  static const char *const launches[] = {"aot", "aot", "jit"};  // these graphs: auto is aot
  const ablation_options *o = s->options;
  (void)fprintf(csv, "%s,%s,%u,%u,%u,%s,%s,%s,%u,%s,%u,%u,%u,%u,%u,%.4f,%.4f,%.4f,%.3f,%u\n",
                s->bench->device.name, s->model.name, o->load.batch, o->load.prompt,
                is_slow(v) ? o->load.generate / JIT_SHARE : o->load.generate, v->name,
                v->shape.jit_attention ? "hybrid" : launches[v->shape.launch],
                v->shape.coarse ? "coarse" : "fine", v->shape.schedulers,
                v->shape.schedulers == 0   ? "none"
                : v->shape.scheduler_warps ? "warps"
                                           : "blocks",
                v->launch.no_prefetch ? 0u : 1u, v->launch.in_flight, v->launch.in_flight_ahead,
                v->launch.step_batch, v->shape.logit_tasks, ms[o->rounds / 2], ms[0],
                ms[o->rounds - 1], ratio, o->rounds);
}

static FILE *open_csv(const char *path) {
  FILE *csv = path != NULL ? fopen(path, "ab") : NULL;
  if (csv != NULL && ftell(csv) == 0) {
    (void)fprintf(csv,
                  "gpu,model,batch,prompt,generate,variant,launch,dependencies,schedulers,"
                  "scheduler_kind,prefetch,in_flight,in_flight_ahead,step_batch,lm_head_tasks,ms,"
                  "least_ms,most_ms,ratio,rounds\n");
  }
  if (path != NULL && csv == NULL) {
    printf("%s cannot be written\n", path);
  }
  return csv;
}

static void print_study(study *s) {
  const ablation_options *o = s->options;
  FILE *csv = open_csv(o->csv);
  printf(
      "\n## Ablations: %s, batch %u, prompt %u, generate %u\n\n"
      "| variant | ms an iteration | of the default | least to most of %u rounds |\n"
      "|---|---|---|---|\n",
      s->model.name, o->load.batch, o->load.prompt, o->load.generate, o->rounds);
  double usual = 0;
  for (const variant *v = variants; v < variants + VARIANTS; v++) {
    if (is_wanted(s, v)) {
      double *ms = s->ms[v - variants];
      double median = gpu_median(ms, o->rounds);
      usual = v == variants ? median : usual;
      printf("| %s | %.4f | %.3f | %.4f to %.4f |\n", v->name, median, median / usual, ms[0],
             ms[o->rounds - 1]);
      if (csv != NULL) {
        print_csv_row(csv, s, v, ms, median / usual);
      }
    }
  }
  if (csv != NULL) {
    (void)fclose(csv);
  }
  (void)fflush(stdout);
}

static void run_study(gpu_bench *bench, const char *folder, const ablation_options *options) {
  study *s = gpu_must_alloc(1, sizeof *s);
  s->bench = bench;
  s->options = options;
  gpu_model_open(folder, &s->model);
  for (uint32_t round = 0; round < options->rounds; round++) {
    run_round(s, round);
  }
  print_study(s);
  gpu_model_close(&s->model);
  mgl_free(s);
}

static bool set_option(ablation_options *o, const char *argument) {
  const struct {
    const char *key;
    uint32_t *number;
    const char **text;
  } keys[] = {{"prompt=", &o->load.prompt, NULL},
              {"generate=", &o->load.generate, NULL},
              {"batch=", &o->load.batch, NULL},
              {"rounds=", &o->rounds, NULL},
              {"jit=", &o->jit, NULL},
              {"csv=", NULL, &o->csv},
              {"trace=", NULL, &o->trace},
              {"only=", NULL, &o->only}};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    size_t length = strlen(keys[i].key);
    if (strncmp(argument, keys[i].key, length) == 0) {
      if (keys[i].text != NULL) {
        *keys[i].text = argument + length;
      } else {
        *keys[i].number = (uint32_t)strtoul(argument + length, NULL, 10);
      }
      return true;
    }
  }
  return false;
}

void gpu_ablations_run(gpu_bench *bench, int count, char **arguments) {
  ablation_options o = {.load = {.prompt = 64, .generate = 128, .batch = 1}, .rounds = 3, .jit = 1};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  o.rounds = o.trace != NULL || o.rounds < 1 ? 1 : o.rounds > MAX_ROUNDS ? MAX_ROUNDS : o.rounds;
  ablation_options ignored = o;
  for (int i = 0; i < count; i++) {
    if (!set_option(&ignored, arguments[i])) {
      run_study(bench, arguments[i], &o);
    }
  }
}
