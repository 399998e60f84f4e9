// Milliseconds of an iteration against what reading the weights costs, dummy weights.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "gpu/gpu_bench.h"

enum { CEILING_PASSES = 10 };

typedef struct speed_options {
  uint32_t prompt, generate, batch, tokens, workers, runs;
  uint32_t in_flight, ahead;
  bool no_prefetch, sweep, full;
  const char *trace;
} speed_options;

static bool set_option(speed_options *o, const char *argument) {
  const struct {
    const char *key;
    uint32_t *value;
  } numbers[] = {{"prompt=", &o->prompt},       {"generate=", &o->generate}, {"batch=", &o->batch},
                 {"tokens=", &o->tokens},       {"workers=", &o->workers},   {"runs=", &o->runs},
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
  o->full = o->full || strcmp(argument, "full=1") == 0;
  o->sweep = o->sweep || strcmp(argument, "sweep=1") == 0;
  return strchr(argument, '=') != NULL;
}

static void print_row(const char *name, const speed_options *o, const mgl_cuda_program_info *info,
                      const mgl_cuda_launch_options *launch, const gpu_measured *m, double ceiling) {
  double rate = m->median_ms > 0 ? (double)info->step_bytes / (m->median_ms / 1e3) : 0;
  printf("| %s | %u | %u + %u | %u, %u%s | %.3f | %.3f | %.0f | %.1f%% | %.1f | %016llx |\n", name,
         o->batch, o->prompt, o->generate, launch->in_flight, launch->in_flight_ahead,
         launch->no_prefetch ? ", no prefetch" : "", m->median_ms, m->least_ms, rate / 1e9,
         ceiling > 0 ? 100 * rate / ceiling : 0, m->prompt_ms, (unsigned long long)m->hash);
  (void)fflush(stdout);
}

static void write_trace(mgl_cuda_program *program, const char *path) {
  mgl_error err = {0};
  mgl_text text = {0};
  gpu_must(mgl_cuda_program_trace_json(program, &text, &err), &err);
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(text.data, 1, text.bytes, file) != text.bytes) {
    printf("the trace cannot be written to %s\n", path);
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  mgl_text_free(&text);
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

static void speed(gpu_bench *bench, const char *folder, const speed_options *o) {
  static const uint32_t swept[][2] = {{12, 12}, {8, 8}, {6, 2}, {6, 1}, {4, 4},
                                      {4, 2},   {4, 1}, {3, 2}, {3, 1}, {2, 2}};
  mgl_error err = {0};
  gpu_model model;
  gpu_model_open(folder, &model);
  uint64_t start = mgl_clock_ns();
  uint32_t longest = o->prompt + o->generate;
  mgl_cuda_program *program =
      gpu_program(bench, &model,
                  (mgl_cuda_program_options){
                      .iteration_tokens = o->tokens,
                      .sequences = o->batch,
                      .pages_per_sequence = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS,
                      .workers = o->workers,
                      .trace_spans = o->trace != NULL ? 4096 : 0});
  mgl_cuda_program_info info = mgl_cuda_program_describe(program);
  printf("\n## Speed: %s\n", model.name);
  print_memory(&info, (double)(mgl_clock_ns() - start) / 1e9);
  gpu_load load = {.batch = o->batch, .prompt = o->prompt, .generate = o->generate};
  double ceiling = 0;
  gpu_must(mgl_cuda_program_read_ceiling(program, CEILING_PASSES, &ceiling, &err), &err);
  printf("Read ceiling %.0f GB/s: %.3f ms for the weights of an iteration.\n\n", ceiling / 1e9,
         ceiling > 0 ? (double)info.step_bytes / ceiling * 1e3 : 0);
  printf(
      "| model | batch | tokens | pages in flight | ms an iteration, median | least | GB/s | of "
      "the ceiling | prompts, ms | tokens' hash |\n");
  printf("|---|---|---|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
  mgl_cuda_launch_options launch = {.in_flight = o->in_flight,
                                    .in_flight_ahead = o->ahead,
                                    .no_prefetch = o->no_prefetch,
                                    .full = o->full,
                                    .deadline_ns = UINT64_C(30000000000)};
  for (uint32_t i = 0; i < o->runs; i++) {
    gpu_measured m = gpu_measure(program, &model, &load, &launch);
    print_row(model.name, o, &info, &launch, &m, ceiling);
  }
  for (size_t i = 0; o->sweep && i < sizeof swept / sizeof swept[0]; i++) {
    launch.in_flight = swept[i][0];
    launch.in_flight_ahead = swept[i][1];
    gpu_measured m = gpu_measure(program, &model, &load, &launch);
    print_row(model.name, o, &info, &launch, &m, ceiling);
  }
  if (o->trace != NULL) {
    write_trace(program, o->trace);
  }
  mgl_cuda_program_destroy(program);
  gpu_model_close(&model);
}

void gpu_speed_run(gpu_bench *bench, int count, char **arguments) {
  speed_options o = {.prompt = 64,
                     .generate = 128,
                     .batch = 1,
                     .tokens = 64,
                     .runs = 2,
                     .in_flight = 0,  // the runtime's own choice
                     .ahead = 0};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  speed_options ignored = o;
  for (int i = 0; i < count; i++) {
    if (!set_option(&ignored, arguments[i])) {
      speed(bench, arguments[i], &o);
    }
  }
}
