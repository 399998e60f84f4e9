// Launch of attention tasks on a skewed batch: one sequence of 4000 tokens of context and seven of
// 10, decoding together on mode mega, as bench_skew CONFIG_FOLDER prints it. Three ways,
// interleaved:
//   aot         the compiler's default: one task a KV head, which takes all sequences
//   aot, fine   attention cut into 8 strides a KV head, tasks placed ahead of time
//   jit, fine   the same tasks, given to whoever is idle
// The KV cache holds zeros (nothing is prefilled): the work does not depend on its values.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "engine/runner.h"

enum { SEQUENCES = 8, LONG = 4000, SHORT = 10, STEPS = 24, ROUNDS = 5, WAYS = 3 };

static const char *const way_names[WAYS] = {"aot", "aot, fine", "jit, fine"};

typedef struct feed {
  mgl_plan *plan;
  uint32_t left;
  uint64_t last_ns;
  double ms[STEPS];
} feed;

static _Noreturn void die(const char *message) {
  (void)fprintf(stderr, "bench_skew: %s\n", message);
  exit(1);
}

// The same decode step again and again.
static const mgl_plan *next_step(void *context, const mgl_logits *logits) {
  feed *f = context;
  uint64_t now_ns = mgl_clock_ns();
  if (logits != NULL) {
    f->ms[STEPS - f->left] = (double)(now_ns - f->last_ns) / 1e6;
    f->left--;
  }
  f->last_ns = mgl_clock_ns();
  return f->left > 0 ? f->plan : NULL;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
  qsort(values, count, sizeof *values, by_value);
  return values[count / 2];
}

static mgl_plan *make_plan(const mgl_runner *runner, int32_t *pages) {
  static const int32_t token = 1;
  mgl_plan *plan = NULL;
  mgl_error err = {0};
  const mgl_plan_limits *limits = mgl_runner_limits(runner);
  if (mgl_plan_create(limits, &plan, &err) != MGL_OK) {
    die(err.text);
  }
  mgl_plan_clear(plan);
  uint32_t next_page = 0;
  for (uint32_t s = 0; s < SEQUENCES; s++) {
    uint32_t position = s == 0 ? LONG : SHORT;
    uint32_t count = position / limits->page_tokens + 1;
    for (uint32_t i = 0; i < count; i++) {
      pages[i] = (int32_t)next_page++;
    }
    mgl_plan_add(plan, &(mgl_plan_chunk){.tokens = &token,
                                         .token_count = 1,
                                         .position = position,
                                         .pages = pages,
                                         .page_count = count,
                                         .logits = MGL_LOGITS_LAST});
  }
  return plan;
}

int main(int argc, char **argv) {
  static const mgl_compile_override fine[] = {
      {.op = "attend", .grid = {64, 8, 1}, .launch = MGL_LAUNCH_AOT},
      {.op = "attend", .grid = {64, 8, 1}, .launch = MGL_LAUNCH_JIT}};
  mgl_error err = {0};
  mgl_model_folder folder;
  mgl_runner *runners[WAYS];
  feed feeds[WAYS];
  static int32_t pages[WAYS][LONG];
  static double all[WAYS][ROUNDS * STEPS];
  if (argc != 2 || mgl_model_folder_open(argv[1], 0, &folder, &err) != MGL_OK) {
    die(argc != 2 ? "usage: bench_skew CONFIG_FOLDER" : err.text);
  }
  for (int way = 0; way < WAYS; way++) {
    mgl_build options = {.sequences = SEQUENCES,
                         .sequence_tokens = LONG + 16,
                         .iteration_tokens = SEQUENCES,
                         .pool_tokens = LONG + 16 + SEQUENCES * 32,
                         .weights = MGL_WEIGHTS_DUMMY,
                         .overrides = way == 0 ? NULL : &fine[way - 1],
                         .override_count = way == 0 ? 0 : 1};
    if (mgl_runner_create(&folder, &options, &runners[way], &err) != MGL_OK) {
      die(err.text);
    }
    feeds[way].plan = make_plan(runners[way], pages[way]);
  }
  for (int round = 0; round < ROUNDS; round++) {
    for (int way = 0; way < WAYS; way++) {
      feeds[way].left = STEPS;
      if (mgl_runner_loop(runners[way], MGL_MODE_MEGA, next_step, &feeds[way], &err) != MGL_OK) {
        die(err.text);
      }
      for (int i = 0; i < STEPS; i++) {
        all[way][round * STEPS + i] = feeds[way].ms[i];
      }
    }
  }
  printf("| attention | ms/step, median of %d |\n|---|---|\n", ROUNDS * STEPS);
  for (int way = 0; way < WAYS; way++) {
    printf("| %s | %.3f |\n", way_names[way], median(all[way], ROUNDS * STEPS));
    mgl_plan_destroy(feeds[way].plan);
    mgl_runner_destroy(runners[way]);
  }
  mgl_model_folder_close(&folder);
  return 0;
}
