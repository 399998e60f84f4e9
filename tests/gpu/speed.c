// Milliseconds of an iteration against what reading the weights costs, dummy weights.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gpu/gpu_bench.h"

enum { CEILING_PASSES = 10, TRACE_SPANS = 1024 };

typedef struct speed_options {
  gpu_load load;
  uint32_t tokens, workers, runs;
  uint32_t in_flight, ahead;
  bool no_prefetch, sweep, events_only, full;
  const char *trace;
} speed_options;

static bool set_option(speed_options *o, const char *argument) {
  const struct {
    const char *key;
    uint32_t *value;
  } numbers[] = {{"prompt=", &o->load.prompt},  {"generate=", &o->load.generate},
                 {"batch=", &o->load.batch},    {"tokens=", &o->tokens},
                 {"workers=", &o->workers},     {"runs=", &o->runs},
                 {"in_flight=", &o->in_flight}, {"ahead=", &o->ahead}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    size_t length = strlen(numbers[i].key);
    if (strncmp(argument, numbers[i].key, length) == 0) {
      *numbers[i].value = (uint32_t)strtoul(argument + length, NULL, 10);
      return true;
    }
  }
  if (strncmp(argument, "trace=", 6) == 0) {
    o->trace = argument + 6;
    return true;
  }
  o->no_prefetch = o->no_prefetch || strcmp(argument, "prefetch=0") == 0;
  o->sweep = o->sweep || strcmp(argument, "sweep=1") == 0;
  o->events_only = o->events_only || strcmp(argument, "events=1") == 0;
  o->full = o->full || strcmp(argument, "full=1") == 0;
  return strchr(argument, '=') != NULL;
}

static void print_row(const char *name, const speed_options *o, const mgl_cuda_program_info *info,
                      const mgl_cuda_launch_options *launch, const gpu_measured *m,
                      double ceiling) {
  double rate = m->median_ms > 0 ? (double)info->step_bytes / (m->median_ms / 1e3) : 0;
  printf("| %s | %u | %u + %u | %u, %u%s | %.3f | %.3f | %.0f | %.1f%% | %.1f | %.1f | %016llx |\n",
         name, o->load.batch, o->load.prompt, o->load.generate, launch->in_flight,
         launch->in_flight_ahead, launch->no_prefetch ? ", no prefetch" : "", m->median_ms,
         m->least_ms, rate / 1e9, ceiling > 0 ? 100 * rate / ceiling : 0, m->prompt_ms, m->turn_us,
         (unsigned long long)m->hash);
  (void)fflush(stdout);
}

static void print_memory(const mgl_cuda_program_info *info, double seconds) {
  printf(
      "\n%u workers, %u tasks, %u events, %u registers, %u bytes spilled, %u smem pages; %.1f s "
      "to make. MiB:",
      info->workers, info->task_count, info->event_count, info->usage.registers,
      info->usage.spill_bytes, info->smem_pages, seconds);
  for (uint32_t i = 0; i < MGL_CUDA_MEMORY_COUNT; i++) {
    if (info->memory[i] > 0) {
      printf(" %s %.1f,", mgl_cuda_memory_name((mgl_cuda_memory_kind)i),
             (double)info->memory[i] / (1 << 20));
    }
  }
  printf(" weights read by an iteration %.1f.\n", (double)info->step_bytes / (1 << 20));
}

static mgl_cuda_program *make(gpu_bench *bench, const gpu_model *model, const speed_options *o,
                              uint32_t trace_spans) {
  uint32_t longest = o->load.prompt + o->load.generate;
  return gpu_program(
      bench, model,
      (mgl_cuda_program_options){
          .sizes.limits.tokens = o->tokens,
          .sizes.sequences = o->load.batch,
          .sizes.limits.pages_per_sequence = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS,
          .sizes.workers = o->workers,
          .build.events_only = o->events_only,
          .build.trace_tasks = trace_spans});
}

// What a trace costs: launches of a program with it beside those of the one without, in turn;
// medians of each launch's medians.
static void compare_traced(mgl_cuda_program *plain, mgl_cuda_program *traced,
                           const gpu_model *model, const speed_options *o,
                           const mgl_cuda_launch_options *launch, double ceiling) {
  mgl_cuda_program_info infos[] = {mgl_cuda_program_describe(plain),
                                   mgl_cuda_program_describe(traced)};
  double *ms = gpu_must_alloc((size_t)2 * o->runs, sizeof *ms);  // [2, runs]
  for (uint32_t i = 0; i < 2 * o->runs; i++) {
    gpu_measured m = gpu_measure(i % 2 == 0 ? plain : traced, model, &o->load, launch);
    print_row(i % 2 == 0 ? model->name : "with its trace", o, &infos[i % 2], launch, &m, ceiling);
    ms[i % 2 * o->runs + i / 2] = m.median_ms;
  }
  double off = gpu_median(ms, o->runs);
  double on = gpu_median(ms + o->runs, o->runs);
  printf("\nThe trace: %.4f ms without, %.4f ms with it: %+.1f%%.\n", off, on,
         100 * (on / off - 1));
  mgl_free(ms);
}

static void speed(gpu_bench *bench, const char *folder, const speed_options *o) {
  static const uint32_t swept[][2] = {{12, 12}, {8, 6}, {8, 4}, {8, 3}, {8, 2},
                                      {4, 4},   {4, 3}, {4, 2}, {4, 1}, {2, 2}};
  mgl_error err = {0};
  gpu_model model;
  gpu_model_open(folder, &model);
  uint64_t start = mgl_clock_ns();
  mgl_cuda_program *program = make(bench, &model, o, 0);
  mgl_cuda_program_info info = mgl_cuda_program_describe(program);
  printf("\n## Speed: %s\n", model.name);
  print_memory(&info, (double)(mgl_clock_ns() - start) / 1e9);
  double ceiling = 0;
  gpu_must(mgl_cuda_program_read_ceiling(program, CEILING_PASSES, &ceiling, &err), &err);
  printf("Read ceiling %.0f GB/s: %.3f ms for the weights of an iteration.\n\n", ceiling / 1e9,
         ceiling > 0 ? (double)info.step_bytes / ceiling * 1e3 : 0);
  printf(
      "| model | batch | tokens | pages in flight | ms an iteration, median | least | GB/s | of "
      "the ceiling | prompts, ms | us a turn of the planner | tokens' hash |\n");
  printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
  mgl_cuda_launch_options launch = {.in_flight = o->in_flight,
                                    .in_flight_ahead = o->ahead,
                                    .no_prefetch = o->no_prefetch,
                                    .full = o->full,
                                    .deadline_ns = UINT64_C(30000000000)};
  if (o->trace != NULL) {
    mgl_cuda_program *traced = make(bench, &model, o, TRACE_SPANS);
    compare_traced(program, traced, &model, o, &launch, ceiling);
    gpu_write_trace(traced, o->trace);
    mgl_cuda_program_destroy(traced);
  } else {
    for (uint32_t i = 0; i < o->runs; i++) {
      gpu_measured m = gpu_measure(program, &model, &o->load, &launch);
      print_row(model.name, o, &info, &launch, &m, ceiling);
    }
  }
  for (size_t i = 0; o->sweep && i < sizeof swept / sizeof swept[0]; i++) {
    launch.in_flight = swept[i][0];
    launch.in_flight_ahead = swept[i][1];
    gpu_measured m = gpu_measure(program, &model, &o->load, &launch);
    print_row(model.name, o, &info, &launch, &m, ceiling);
  }
  mgl_cuda_program_destroy(program);
  gpu_model_close(&model);
}

void gpu_speed_run(gpu_bench *bench, int count, char **arguments) {
  speed_options o = {.load = {.prompt = 64, .generate = 128, .batch = 1},
                     .tokens = 64,
                     .runs = 2,
                     .in_flight = 0,  // the runtime's own choice
                     .ahead = 0};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  speed_options ignored = o;
  int models = 0;
  for (int i = 0; i < count; i++) {
    if (!set_option(&ignored, arguments[i])) {
      speed(bench, arguments[i], &o);
      models++;
    }
  }
  if (models == 0) {
    gpu_check(bench, false,
              "speed: expected a model's folder (such as bench/configs/qwen3-0.6b), found none");
  }
}
