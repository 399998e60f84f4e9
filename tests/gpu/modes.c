// Mode mega against mode full, the same tasks as one kernel for every op in a CUDA graph: medians
// of decode iterations, in one process, rounds of the two modes in turn. Contexts are not computed:
// what the KV cache holds does not change the time.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"

enum { MOST_VALUES = 16, MOST_ROUNDS = 64, CEILING_PASSES = 5 };

typedef struct value_list {
  uint32_t values[MOST_VALUES];
  uint32_t count;
} value_list;

typedef struct modes_options {
  value_list batches, contexts;
  uint32_t generate, rounds, spans;
  const char *csv, *sweep, *trace;
} modes_options;

static const struct {
  const char *name;
  bool full;
} modes[] = {{"mega", false}, {"full", true}};

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
  const char *value = strchr(argument, '=');
  if (value == NULL) {
    return false;
  }
  size_t length = (size_t)(value++ - argument);
  if (strncmp(argument, "batches", length) == 0) {
    parse_list(value, &o->batches);
  } else if (strncmp(argument, "contexts", length) == 0) {
    parse_list(value, &o->contexts);
  } else if (strncmp(argument, "generate", length) == 0) {
    o->generate = (uint32_t)strtoul(value, NULL, 10);
  } else if (strncmp(argument, "rounds", length) == 0) {
    o->rounds = (uint32_t)strtoul(value, NULL, 10);
  } else if (strncmp(argument, "spans", length) == 0) {
    o->spans = (uint32_t)strtoul(value, NULL, 10);
  } else if (strncmp(argument, "csv", length) == 0) {
    o->csv = value;
  } else if (strncmp(argument, "sweep", length) == 0) {
    o->sweep = value;
  } else if (strncmp(argument, "trace", length) == 0) {
    o->trace = value;
  }
  return true;
}

static uint32_t largest(const value_list *list) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < list->count; i++) {
    most = list->values[i] > most ? list->values[i] : most;
  }
  return most;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

static double median(double *values, uint32_t count) {
  qsort(values, count, sizeof *values, compare);
  return values[count / 2];
}

// A cell of the table: the median over rounds of each round's median iteration.
static void measure_cell(gpu_bench *bench, mgl_cuda_program *program, const gpu_model *model,
                         const modes_options *o, uint32_t batch, uint32_t context, FILE *csv) {
  double ms[MODES][MOST_ROUNDS];
  gpu_measured last[MODES];
  gpu_load load = {
      .batch = batch, .prompt = context, .cached = context - 1, .generate = o->generate};
  for (uint32_t round = 0; round <= o->rounds; round++) {  // the first one is thrown away
    for (uint32_t i = 0; i < MODES; i++) {
      mgl_cuda_launch_options launch = {.full = modes[i].full};
      last[i] = gpu_measure(program, model, &load, &launch);
      ms[i][round > 0 ? round - 1 : 0] = last[i].median_ms;
    }
  }
  double medians[MODES];
  for (uint32_t i = 0; i < MODES; i++) {
    double least = ms[i][0];
    medians[i] = median(ms[i], o->rounds);
    least = ms[i][0];
    if (csv != NULL) {
      (void)fprintf(csv, "%s,%u,%u,%s,%.4f,%.4f,%u,%u\n", model->name, batch, context,
                    modes[i].name, medians[i], least, o->rounds, o->generate);
    }
  }
  printf("| %s | %u | %u | %.3f | %.3f | %.3f | %s |\n", model->name, batch, context, medians[0],
         medians[1], medians[1] / medians[0],
         last[0].hash == last[1].hash ? "same" : "**different**");
  (void)fflush(stdout);
  if (last[0].hash != last[1].hash) {
    gpu_check(bench, false, "%s, batch %u, context %u: modes mega and full give the same tokens",
              model->name, batch, context);
  }
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

// Settings of mode full: in_flight, in_flight_ahead, l2_pages, late, no_prefetch.
static void sweep(mgl_cuda_program *program, const gpu_model *model, const modes_options *o) {
  uint32_t v[5];
  const char *at = o->sweep;
  while (at != NULL && sscanf(at, "%u.%u.%u.%u.%u", &v[0], &v[1], &v[2], &v[3], &v[4]) == 5) {
    mgl_cuda_launch_options launch = {.full = true,
                                      .in_flight = v[0],
                                      .in_flight_ahead = v[1],
                                      .l2_pages = v[2],
                                      .late = v[3],
                                      .no_prefetch = v[4] != 0};
    gpu_load load = {.batch = o->batches.values[0],
                     .prompt = o->contexts.values[0],
                     .cached = o->contexts.values[0] - 1,
                     .generate = o->generate};
    gpu_measured m = gpu_measure(program, model, &load, &launch);
    m = gpu_measure(program, model, &load, &launch);
    printf("| %s | %u %u %u %u %u | %.4f | %.4f | %016llx |\n", model->name, v[0], v[1], v[2], v[3],
           v[4], m.median_ms, m.least_ms, (unsigned long long)m.hash);
    (void)fflush(stdout);
    at = strchr(at, ',');
    at = at == NULL ? NULL : at + 1;
  }
}

static void compare_modes(gpu_bench *bench, const char *folder, const modes_options *o, FILE *csv) {
  mgl_error err = {0};
  gpu_model model;
  gpu_model_open(folder, &model);
  uint32_t longest = largest(&o->contexts) + o->generate;
  uint32_t batch = largest(&o->batches);
  mgl_cuda_program *program =
      gpu_program(bench, &model,
                  (mgl_cuda_program_options){
                      .iteration_tokens = batch,
                      .sequences = batch,
                      .pages_per_sequence = (longest + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS,
                      .trace_spans = o->trace != NULL ? o->spans : 0});
  double ceiling = 0;
  gpu_must(mgl_cuda_program_read_ceiling(program, CEILING_PASSES, &ceiling, &err), &err);
  mgl_cuda_program_info info = mgl_cuda_program_describe(program);
  printf("\n## Modes: %s\n\nRead ceiling %.0f GB/s: %.3f ms for the weights of an iteration.\n\n",
         model.name, ceiling / 1e9,
         ceiling > 0 ? (double)info.step_bytes / ceiling * 1e3 : 0);
  printf("| model | batch | context | mega, ms | full, ms | full / mega | tokens |\n");
  printf("|---|---|---|---|---|---|---|\n");
  (void)fflush(stdout);
  if (o->sweep != NULL) {
    sweep(program, &model, o);
  } else if (o->trace != NULL) {
    gpu_load load = {.batch = batch,
                     .prompt = o->contexts.values[0],
                     .cached = o->contexts.values[0] - 1,
                     .generate = o->generate};
    mgl_cuda_launch_options launch = {.full = true};
    gpu_measured m = gpu_measure(program, &model, &load, &launch);
    printf("traced: %.4f ms\n", m.median_ms);
    write_trace(program, o->trace);
  }
  for (uint32_t i = 0; o->sweep == NULL && o->trace == NULL && i < o->batches.count; i++) {
    for (uint32_t j = 0; j < o->contexts.count; j++) {
      measure_cell(bench, program, &model, o, o->batches.values[i], o->contexts.values[j], csv);
    }
  }
  mgl_cuda_program_destroy(program);
  gpu_model_close(&model);
}

void gpu_modes_run(gpu_bench *bench, int count, char **arguments) {
  modes_options o = {.batches = {{1, 2, 4, 8, 16}, 5},
                     .contexts = {{64, 1024, 8192}, 3},
                     .generate = 64,
                     .rounds = 3,
                     .spans = 256};
  for (int i = 0; i < count; i++) {
    (void)set_option(&o, arguments[i]);
  }
  FILE *csv = o.csv != NULL ? fopen(o.csv, "wb") : NULL;
  if (o.csv != NULL && csv == NULL) {
    printf("FAILED: %s cannot be written\n", o.csv);
    bench->failures++;
    return;
  }
  if (csv != NULL) {
    (void)fprintf(csv, "model,batch,context,mode,ms_median,ms_least,rounds,generate\n");
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
