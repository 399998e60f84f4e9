// Mode mega against mode full, the same tasks as one kernel for every op in a CUDA graph: medians
// of decode iterations, in one process, rounds of the two modes in turn. Contexts are computed
// once, by the first round, in iterations of up to `prefill` tokens; the others find them in the
// prefix cache.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu_bench.h"

enum { MOST_VALUES = 16, MOST_ROUNDS = 64, CEILING_PASSES = 5 };

typedef struct value_list {
  uint32_t values[MOST_VALUES];
  uint32_t count;
} value_list;

typedef struct modes_options {
  value_list batches, contexts;
  value_list rounds, generate, prefill;  // one value each
  const char *csv;
} modes_options;

static const struct {
  const char *name;
  bool full;
  // Iterations with more context are of the wide class; 0: what lower/choose.h says.
  uint64_t narrow_context;
} modes[] = {
    {"mega", false, 0}, {"full", true, 0}, {"large", false, 1}, {"small", false, UINT64_MAX}};

enum { MODES = sizeof modes / sizeof modes[0] };

static void parse_list(const char *text, value_list *out) {
  out->count = 0;
  while (text != NULL && out->count < MOST_VALUES) {
    char *end = NULL;
    out->values[out->count++] = (uint32_t)strtoul(text, &end, 10);
    text = *end == ',' ? end + 1 : NULL;
  }
}

// False: the argument is a folder.
static bool set_option(modes_options *o, const char *argument) {
  const struct {
    const char *key;
    value_list *list;
  } lists[] = {{"batches=", &o->batches},
               {"contexts=", &o->contexts},
               {"rounds=", &o->rounds},
               {"generate=", &o->generate},
               {"prefill=", &o->prefill}};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    size_t length = strlen(lists[i].key);
    if (strncmp(argument, lists[i].key, length) == 0) {
      parse_list(argument + length, lists[i].list);
      return true;
    }
  }
  if (strncmp(argument, "csv=", 4) == 0) {
    o->csv = argument + 4;
    return true;
  }
  return false;
}

static uint32_t largest(const value_list *list) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < list->count; i++) {
    most = list->values[i] > most ? list->values[i] : most;
  }
  return most;
}

// A cell of the table: the median over rounds of each round's median iteration.
static void measure_cell(gpu_bench *bench, mgl_cuda_program *program, const gpu_model *model,
                         const modes_options *o, const gpu_load *load, FILE *csv) {
  double ms[MODES][MOST_ROUNDS] = {{0}};
  double turn_us[MODES][MOST_ROUNDS] = {{0}};
  double medians[MODES];
  // Of the first run's tokens. (Larger iterations, in which mega computes the ends of prompts too,
  // have other bits.)
  uint64_t hash = 0;
  uint32_t rounds = o->rounds.values[0] < MOST_ROUNDS ? o->rounds.values[0] : MOST_ROUNDS;
  for (uint32_t round = 0; round <= rounds; round++) {  // the first one is thrown away
    for (uint32_t i = 0; i < MODES; i++) {
      if (modes[i].narrow_context != 0 && o->prefill.values[0] <= MGL_CUDA_MAX_TOKENS) {
        continue;  // there is no wide class
      }
      mgl_cuda_launch_options launch = {.full = modes[i].full,
                                        .narrow_context = modes[i].narrow_context};
      gpu_measured m = gpu_measure(program, model, load, &launch);
      ms[i][round > 0 ? round - 1 : 0] = m.median_ms;
      turn_us[i][round > 0 ? round - 1 : 0] = m.turn_us;
      if (round == 0 && i == 0) {
        hash = m.hash;
      } else if (m.hash != hash && o->prefill.values[0] <= MGL_CUDA_MAX_TOKENS) {
        gpu_check(bench, false,
                  "%s, batch %u, context %u: tokens of mode %s, round %u: hash %016llx, "
                  "of the first run %016llx",
                  model->name, load->batch, load->prompt, modes[i].name, round,
                  (unsigned long long)m.hash, (unsigned long long)hash);
      }
    }
  }
  for (uint32_t i = 0; i < MODES; i++) {
    medians[i] = gpu_median(ms[i], rounds);
    if (csv != NULL) {
      (void)fprintf(csv, "%s,%u,%u,%s,%.4f,%.4f,%u,%u,%.1f\n", model->name, load->batch,
                    load->prompt, modes[i].name, medians[i], ms[i][0], rounds, load->generate,
                    gpu_median(turn_us[i], rounds));
    }
  }
  printf("| %s | %u | %u | %.3f | %.3f | %.3f | %.3f | %.3f |\n", model->name, load->batch,
         load->prompt, medians[0], medians[1], medians[1] / medians[0], medians[2], medians[3]);
  (void)fflush(stdout);
}

static void compare_modes(gpu_bench *bench, const char *folder, const modes_options *o, FILE *csv) {
  mgl_error err = {0};
  gpu_model model;
  gpu_model_open(folder, &model);
  uint32_t longest = largest(&o->contexts) + o->generate.values[0];
  uint32_t batch = largest(&o->batches);
  uint32_t prefill = o->prefill.values[0];
  mgl_cuda_program *program = gpu_program(
      bench, &model,
      (mgl_cuda_program_options){
          .sizes.limits.tokens = prefill > batch ? prefill : batch,
          .sizes.sequences = batch,
          .sizes.limits.pages_per_sequence = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS});
  double ceiling = 0;
  gpu_must(mgl_cuda_program_read_ceiling(program, CEILING_PASSES, &ceiling, &err), &err);
  mgl_cuda_program_info info = mgl_cuda_program_describe(program);
  printf("\n## Modes: %s\n\nRead ceiling %.0f GB/s: %.3f ms for the weights of an iteration.\n\n",
         model.name, ceiling / 1e9, ceiling > 0 ? (double)info.step_bytes / ceiling * 1e3 : 0);
  printf(
      "| model | batch | context | mega, ms | full, ms | full / mega | wide, ms | narrow, ms |\n");
  printf("|---|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
  for (uint32_t i = 0; i < o->batches.count; i++) {
    for (uint32_t j = 0; j < o->contexts.count; j++) {
      uint32_t context = o->contexts.values[j];
      gpu_load load = {.prompt = context,
                       .generate = o->generate.values[0],
                       .batch = o->batches.values[i],
                       .cached = true};
      measure_cell(bench, program, &model, o, &load, csv);
    }
  }
  mgl_cuda_program_destroy(program);
  gpu_model_close(&model);
}

void gpu_modes_run(gpu_bench *bench, int count, char **arguments) {
  modes_options o = {.batches = {{1, 2, 4, 8, 16}, 5},
                     .contexts = {{64, 1024, 8192}, 3},
                     .rounds = {{3}, 1},
                     .generate = {{64}, 1},
                     .prefill = {{0}, 1}};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  if (bench->device.major != 9 || bench->device.minor != 0) {
    o.prefill.values[0] = 0;  // no wide class
  }
  FILE *csv = o.csv != NULL ? fopen(o.csv, "wb") : NULL;
  if (o.csv != NULL && csv == NULL) {
    gpu_check(bench, false, "%s cannot be written", o.csv);
    return;
  }
  if (csv != NULL) {
    (void)fprintf(csv,
                  "model,batch,context,mode,ms_median,ms_least,rounds,generate,planner_turn_us\n");
  }
  modes_options ignored = o;
  for (int i = 0; i < count; i++) {
    if (!set_option(&ignored, arguments[i])) {
      compare_modes(bench, arguments[i], &o, csv);
    }
  }
  if (csv != NULL) {
    (void)fclose(csv);
  }
}
