// The compiler's tables (docs/log/019): what each pass makes of real models, and how long it takes.
//   bench_compile_table [--canonical] [--workers=N] CONFIGS...   (folders with a config.json)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "graph/family.h"
#include "model/model_folder.h"

static bool verify;  // MGL_VERIFY in the environment: check everything, and time that too

enum { REPEATS = 3 };

static _Noreturn void die(const char *message) {
  (void)fprintf(stderr, "bench_compile_table: %s\n", message);
  exit(1);
}

static mgl_graph *read_program(const char *folder, bool canonical) {
  mgl_error err = {0};
  mgl_model_folder model;
  mgl_graph *program = NULL;
  if (mgl_model_folder_open(folder, 0, &model, &err) != MGL_OK ||
      mgl_family_build(&model.config, NULL, &program, &err) != MGL_OK) {
    die(err.text);
  }
  mgl_model_folder_close(&model);
  if (!canonical) {
    mgl_graph *fused = NULL;
    if (mgl_fuse_ops(program, &fused, &err) != MGL_OK) {
      die(err.text);
    }
    mgl_graph_destroy(program);
    program = fused;
  }
  return program;
}

// Fastest of some compilations; the report is the same each time.
static void print_row(const char *name, const mgl_graph *program, uint32_t tokens,
                      uint32_t workers) {
  mgl_compile_options options = {.tokens = tokens, .workers = workers, .verify = verify};
  mgl_compile_report best = {0};
  for (int i = 0; i < REPEATS; i++) {
    mgl_task_graph *graph = NULL;
    mgl_compile_report report;
    mgl_error err = {0};
    if (mgl_compile(program, &options, &graph, &report, &err) != MGL_OK) {
      die(err.text);
    }
    mgl_task_graph_destroy(graph);
    if (i == 0 || report.ms < best.ms) {
      best = report;
    }
  }
  const mgl_compile_report *r = &best;
  uint64_t objects = r->task_count + r->final_events;
  printf(
      "| %s | %u | %u | %u | %u | %u | %u | %llu | %u | %.0f | %u | %u | %.2f%% | %.0f | %.0f | "
      "%.3f "
      "| %.1f |\n",
      name, workers, tokens, r->op_count, r->stage_count, r->chain_length, r->task_count,
      (unsigned long long)r->dependent_pairs, r->fused_events,
      (double)r->dependent_pairs / r->fused_events, r->pruned_events, r->widened_ops,
      100.0 * (r->empty_tasks + r->added_events) / (double)objects,
      (double)r->descriptor_bytes / 1024, (double)r->weight_bytes / (1 << 20),
      (double)r->worker_bytes_max * workers / (double)r->worker_bytes_total, r->ms);
}

int main(int argc, char **argv) {
  static const uint32_t tokens[] = {1, 8, 64};
  uint32_t workers[2] = {132, 2};
  size_t worker_counts = 2;
  bool canonical = false;
  int first = 1;
  verify = getenv("MGL_VERIFY") != NULL;
  for (; first < argc && argv[first][0] == '-'; first++) {
    canonical |= strcmp(argv[first], "--canonical") == 0;
    if (strncmp(argv[first], "--workers=", 10) == 0) {
      workers[0] = (uint32_t)strtoul(argv[first] + 10, NULL, 10);
      worker_counts = 1;
    }
  }
  printf(
      "| model | workers | tokens | ops | stages | chain | tasks | events: one a pair | fused | "
      "fewer, times | pruned | ops widened | empty tasks and events added | descriptors, KiB | "
      "weights read, "
      "MiB | bytes a worker, max / mean | compile, ms |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = first; i < argc; i++) {
    mgl_graph *program = read_program(argv[i], canonical);
    const char *slash = strrchr(argv[i], '/');
    for (size_t w = 0; w < worker_counts; w++) {
      for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
        print_row(slash != NULL ? slash + 1 : argv[i], program, tokens[t], workers[w]);
      }
    }
    mgl_graph_destroy(program);
  }
  return 0;
}
