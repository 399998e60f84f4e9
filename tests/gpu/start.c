// What a start takes, and whether memory is as planned: a runner as the commands make it, with
// dummy weights, in narrow and in large iterations; first without cached code, then with it. The
// plan is the one that `megalith plan` prints; what is used is what the driver says is not free any
// more.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/runner.h"
#include "gpu/gpu_bench.h"
#include "support/temp_folder.h"

enum { NARROW_TOKENS = 64, WIDE_TOKENS = 2048, NARROW_SEQUENCES = 64, WIDE_SEQUENCES = 256 };

#define MOST_COLD_S 30.0
#define MOST_WARM_S 5.0
#define MOST_DEVIATION 0.03

static double free_bytes(gpu_bench *bench) {
  size_t free_now = 0;
  size_t total = 0;
  mgl_error err = {0};
  gpu_must(mgl_cuda_check(&bench->device.driver,
                          bench->device.driver.memory_info(&free_now, &total), "memory_info", &err),
           &err);
  return (double)free_now;
}

typedef struct start {
  double seconds;
  double planned_bytes, used_bytes;
} start;

static start start_once(gpu_bench *bench, const mgl_model_folder *folder, uint32_t tokens) {
  bool wide = tokens > NARROW_TOKENS;
  mgl_error err = {0};
  mgl_runner *runner = NULL;
  mgl_sizes plan;
  mgl_cuda_options cuda = {.device = &bench->device};
  mgl_build options = {.iteration_tokens = tokens,
                       .sequences = wide ? (uint32_t)WIDE_SEQUENCES : (uint32_t)NARROW_SEQUENCES,
                       .sequence_tokens = folder->config.context_tokens,
                       .memory_share = MGL_USUAL_SHARE,
                       .weights = MGL_WEIGHTS_DUMMY,
                       .cuda = &cuda};
  double before = free_bytes(bench);
  gpu_must(mgl_runner_measure(folder, &options, &plan, &err), &err);
  uint64_t begin = mgl_clock_ns();
  gpu_must(mgl_runner_create(folder, &options, &runner, &err), &err);
  start out = {.seconds = (double)(mgl_clock_ns() - begin) / 1e9,
               .planned_bytes = (double)mgl_sizes_total(&plan),
               .used_bytes = before - free_bytes(bench)};
  mgl_runner_destroy(runner);
  return out;
}

static void start_model(gpu_bench *bench, const char *name, uint32_t tokens, bool cold) {
  temp_folder cache;
  mgl_model_folder folder;
  mgl_error err = {0};
  char usual[1024] = "";
  start first = {0};
  gpu_must(mgl_model_folder_open(name, 0, &folder, &err), &err);
  if (cold) {
    const char *set = getenv("MEGALITH_CACHE");
    (void)snprintf(usual, sizeof usual, "%s", set != NULL ? set : "");
    temp_folder_create(&cache);
    (void)setenv("MEGALITH_CACHE", cache.path, 1);
    first = start_once(bench, &folder, tokens);
  }
  start warm = start_once(bench, &folder, tokens);
  if (cold) {
    (void)setenv("MEGALITH_CACHE", usual, 1);
    temp_folder_remove(&cache);
  }
  double deviation = warm.used_bytes / warm.planned_bytes - 1;
  printf("| %s | %u | %.1f | %.2f | %.3f | %.3f | %+.2f%% |\n", name, tokens, first.seconds,
         warm.seconds, warm.planned_bytes / 1e9, warm.used_bytes / 1e9, 100 * deviation);
  (void)fflush(stdout);
  if (first.seconds > MOST_COLD_S || warm.seconds > MOST_WARM_S ||
      fabs(deviation) > MOST_DEVIATION) {
    gpu_check(bench, false, "%s: at most %.0f s cold and %.0f s warm, memory within %.0f%%", name,
              MOST_COLD_S, MOST_WARM_S, 100 * MOST_DEVIATION);
  }
  mgl_model_folder_close(&folder);
}

void gpu_start_run(gpu_bench *bench, int count, char **arguments) {
  bool cold = true;
  int models = 0;
  for (int i = 0; i < count; i++) {
    if (strchr(arguments[i], '=') == NULL) {
      arguments[models++] = arguments[i];
    } else if (strcmp(arguments[i], "cold=0") == 0) {
      cold = false;
    }
  }
  printf(
      "\n## Start\n\n| model | tokens an iteration | s without cached code (0: not run) | with "
      "it ");
  printf("| GB planned | GB used | deviation |\n|---|---|---|---|---|---|---|\n");
  bool large = bench->device.major == 9 && bench->device.minor == 0;
  for (int i = 0; i < models; i++) {
    start_model(bench, arguments[i], NARROW_TOKENS, cold && !large);
    if (large) {
      start_model(bench, arguments[i], WIDE_TOKENS, cold);
    }
  }
}
