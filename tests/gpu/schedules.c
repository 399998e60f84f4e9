// What runs is what the compiler prints: the hash of the schedule that an iteration of N tokens has
// run (of the device's planner's own choice, read back) beside that of `megalith compile --target
// cuda --tokens N --dump lower`, which is verified; in modes mega and full. tokens=N: iterations of
// up to N tokens, in mode mega alone, so that fewer kernels are compiled.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"
#include "lower/choose.h"

enum {
  MOST = MGL_MAX_ITERATION_TOKENS,
  PAGES = MOST / GPU_PAGE_TOKENS + 1,
  SPARE_PAGES = 8,
};

// On both sides of where another schedule begins.
static const uint32_t sizes[] = {1,  2,   3,   5,   8,   9,   16,  17,   32,   33,   64,
                                 65, 128, 129, 256, 257, 512, 513, 1024, 1025, 2047, 2048};

typedef struct schedules {
  gpu_bench *bench;
  gpu_model model;
  mgl_cuda_program *program;
  uint32_t most;  // tokens of an iteration
  int32_t tokens[MOST];
} schedules;

// As the command makes it: nothing is known of the program that runs.
static uint64_t printed(const schedules *s, uint32_t tokens, bool full, const char **lowering) {
  mgl_error err = {0};
  mgl_schedule *schedule = NULL;
  mgl_graph *fused = NULL;
  const mgl_iteration_options options = {
      .compile = {.target = MGL_TARGET_CUDA,
                  .tokens = tokens,
                  .workers = mgl_cuda_program_describe(s->program).workers},
      .few = s->bench->device.kernels == MGL_CUDA_KERNELS_WGMMA,
      .kernels = full};
  gpu_must(mgl_fuse_ops_for(MGL_TARGET_CUDA, s->model.program, &fused, &err), &err);
  gpu_must(mgl_lower_iteration(fused, &options, &schedule, &err), &err);
  gpu_must(mgl_schedule_verify(fused, schedule, &err), &err);
  uint64_t hash = mgl_schedule_hash(schedule);
  *lowering = mgl_lowering_name(schedule->lowering);
  mgl_schedule_destroy(schedule);
  mgl_graph_destroy(fused);
  return hash;
}

// A job of one iteration: a prompt of so many tokens, and one token more.
static uint64_t ran(const schedules *s, uint32_t tokens, bool full) {
  mgl_error err = {0};
  uint64_t hash = 0;
  const mgl_cuda_request request = {
      .prompt = s->tokens, .prompt_count = tokens, .max_new_tokens = 1};
  const mgl_cuda_generate job = {
      .requests = &request, .request_count = 1, .launch = {.full = full}};
  gpu_must(mgl_cuda_program_generate(s->program, &job, &err), &err);
  gpu_must(mgl_cuda_program_ran(s->program, &hash, &err), &err);
  return hash;
}

static void compare(schedules *s, bool full) {
  uint32_t alike = 0, count = 0;
  printf("\n| tokens, mode %s | lowering | printed | ran |\n|---|---|---|---|\n",
         full ? "full" : "mega");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (sizes[i] > s->most || (full && sizes[i] > MGL_CUDA_MAX_TOKENS)) {
      break;
    }
    const char *lowering = NULL;
    uint64_t wanted = printed(s, sizes[i], full, &lowering);
    uint64_t found = ran(s, sizes[i], full);
    printf("| %" PRIu32 " | %s | %016" PRIx64 " | %016" PRIx64 " |%s\n", sizes[i], lowering, wanted,
           found, found == wanted ? "" : " OTHER");
    (void)fflush(stdout);
    alike += found == wanted ? 1 : 0;
    count++;
  }
  printf("\n");
  gpu_check(s->bench, alike == count,
            "%s, mode %s: %u of %u sizes of iterations run the schedule that is printed and proven",
            s->model.name, full ? "full" : "mega", alike, count);
}

static void check_model(gpu_bench *bench, const char *name, uint32_t most) {
  schedules *s = gpu_must_alloc(1, sizeof *s);
  s->bench = bench;
  s->most = most;
  gpu_model_open(name, &s->model);
  printf("\n## Schedules: %s\n", s->model.name);
  for (uint32_t i = 0; i < MOST; i++) {
    s->tokens[i] = gpu_model_token(&s->model, i);
  }
  s->program = gpu_program(bench, &s->model,
                           (mgl_cuda_program_options){.sizes.limits.tokens = most,
                                                      .sizes.sequences = MGL_STAGES_USUAL_ROWS,
                                                      .sizes.limits.pages_per_sequence = PAGES,
                                                      .sizes.page_count = PAGES + SPARE_PAGES});
  compare(s, false);
  if (most == MOST) {
    compare(s, true);
  }
  mgl_cuda_program_destroy(s->program);
  gpu_model_close(&s->model);
  mgl_free(s);
}

void gpu_schedules_run(gpu_bench *bench, int count, char **arguments) {
  uint32_t most = MOST;
  int models = 0;
  for (int i = 0; i < count; i++) {
    if (strncmp(arguments[i], "tokens=", 7) == 0) {
      most = (uint32_t)strtoul(arguments[i] + 7, NULL, 10);
    }
  }
  for (int i = 0; i < count; i++) {
    if (strchr(arguments[i], '=') == NULL) {
      check_model(bench, arguments[i], most);
      models++;
    }
  }
  if (models == 0) {
    check_model(bench, "tiny", most);
  }
}
