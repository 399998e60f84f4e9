// What a dependency hop costs in the megakernel: chains of stages whose tasks do nothing.
//
// A model with many layers runs as always (plan, embedding, logits, sampling, next iteration), but
// the ops of its layers are emptied: their tasks wait for their event and trigger the next one.
// With MGL_CUDA_OP_STREAMED the loaders still stream some pages of weights for each task, which
// consumers take and let go. The time of a stage is the difference of two depths, over the stages
// by which they differ, so that nothing of the rest of an iteration counts.
//
// Graphs are coarse (one event between two ops), so that a stage of n tasks means n triggers of one
// event and n tasks that wait for it. Where activations carry their readiness there is no event and
// no empty task: so at last models with all their work, with words, with events, and with JIT
// attention.
//
// With few workers the linears have four tasks for each, and one linear of a layer is made uneven:
// some of its tasks stream eight times as much. Tickets should even that out, lists cannot.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_program_parts.h"
#include "gpu/gpu_bench.h"
#include "graph/family.h"
#include "task/protocol_check.h"

enum {
  SHALLOW = 2,
  DEEP = 18,
  STAGES = 5,    // of a layer
  LAUNCHES = 3,  // of a measurement, behind one that says how long they should be
  MOST = 160,    // iterations of a launch
  LEAST = 12,
  PAGES = (MOST + GPU_PAGE_TOKENS) / GPU_PAGE_TOKENS + 1,
  ALL_PAGES = 99,  // of every row block
  UNEVEN_WORKERS = 33,
  UNEVEN_TASKS = 4 * UNEVEN_WORKERS,  // of a linear, a row block each
  UNEVEN_LONG = 8,  // row blocks that a long task streams; one of so many tasks is one
};

#define LAUNCH_MS 60.0

// Who schedules JIT tasks.
typedef struct way {
  const char *name;
  bool jit;
  uint32_t schedulers;
  bool warps;
} way;

static const way ways[] = {
    {"AOT", false, 0, false},         {"JIT, embedded", true, 0, false},
    {"JIT, 1 warp", true, 1, true},   {"JIT, 4 warps", true, 4, true},
    {"JIT, 1 block", true, 1, false}, {"JIT, 4 blocks", true, 4, false},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

// Which ops are cut to one task, and which are JIT where the way is.
typedef struct cut {
  bool one_linear, one_attend;
  bool jit_linears;
  uint32_t workers;  // 0: all
} cut;

static double median_of(double *values, uint32_t count) {
  for (uint32_t i = 1; i < count; i++) {  // few
    for (uint32_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
      double value = values[j];
      values[j] = values[j - 1];
      values[j - 1] = value;
    }
  }
  return values[count / 2];
}

// --- programs ------------------------------------------------------------------------------------

// 132 row blocks in every linear and 11 KV heads, whose attention has workers / 11 strides.
static void open_model(uint32_t layers, gpu_model *out) {
  char json[1024];
  mgl_generation generation;
  mgl_error err = {0};
  (void)snprintf(json, sizeof json,
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                 "\"vocab_size\":1024,\"hidden_size\":2112,\"intermediate_size\":1056,"
                 "\"num_hidden_layers\":%u,\"num_attention_heads\":44,\"num_key_value_heads\":11,"
                 "\"head_dim\":32,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-5,"
                 "\"rope_theta\":500000,\"tie_word_embeddings\":true,"
                 "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\"}",
                 layers);
  *out = (gpu_model){.name = "hops"};
  gpu_must(mgl_config_parse(json, strlen(json), out->name, &out->config, &generation, &err), &err);
  gpu_must(mgl_family_build(&out->config, NULL, &out->program, &err), &err);
}

static mgl_cuda_program *make_program(gpu_bench *bench, const way *by, const cut *c,
                                      uint32_t layers) {
  static const char *const linears[] = {"qkv_proj", "linear_add", "gate_up"};
  mgl_compile_override overrides[4] = {{.op = "attend"}};
  overrides[0].launch = by->jit ? MGL_LAUNCH_JIT : MGL_LAUNCH_AOT;
  for (uint32_t i = 0; i < 3; i++) {
    overrides[i + 1].op = linears[i];
    overrides[i + 1].launch = by->jit && c->jit_linears ? MGL_LAUNCH_JIT : MGL_LAUNCH_AOT;
  }
  for (uint32_t i = 0; i < 4; i++) {
    if (i == 0 ? c->one_attend : c->one_linear) {
      memcpy(overrides[i].grid, (uint32_t[3]){1, 1, 1}, sizeof overrides[i].grid);
    } else if (i > 0 && c->workers != 0) {
      memcpy(overrides[i].grid, (uint32_t[3]){UNEVEN_TASKS, 1, 1}, sizeof overrides[i].grid);
    }
  }
  gpu_model model;
  open_model(layers, &model);
  mgl_cuda_program *program =
      gpu_program(bench, &model,
                  (mgl_cuda_program_options){.sizes.limits.tokens = 1,
                                             .sizes.sequences = 1,
                                             .sizes.workers = c->workers,
                                             .sizes.limits.pages_per_sequence = PAGES,
                                             .build.launch = MGL_LAUNCH_AOT,
                                             .build.overrides = overrides,
                                             .build.override_count = 4,
                                             .build.coarse = true,
                                             .build.events_only = true,
                                             .build.schedulers = by->schedulers,
                                             .build.scheduler_warps = by->warps});
  gpu_model_close(&model);
  return program;
}

static bool is_linear(uint32_t kind) {
  return kind == MGL_OP_QKV_PROJ || kind == MGL_OP_LINEAR_ADD || kind == MGL_OP_GATE_UP;
}

// Empties the ops of the layers; `pages` of every row block of their linears are still streamed, as
// far as it has so many. Returns the bytes that a layer streams (of ops that are AOT).
static double empty_layers(mgl_cuda_program *p, uint32_t pages) {
  size_t count = p->program->op_count;
  mgl_cuda_op *ops = gpu_must_alloc(count, sizeof *ops);
  mgl_cuda_addresses addresses = {p->program, &p->layout, p->memory, p->sizes.logit_rows};
  const mgl_task_graph *graph = p->graphs[0];
  mgl_error err = {0};
  double bytes = 0;
  for (uint32_t i = 0; i < count; i++) {
    ops[i] = mgl_cuda_bind_op(&addresses, 0, graph->tokens, i);
    if (is_linear(ops[i].kind) || ops[i].kind == MGL_OP_ATTEND) {
      bool streams = pages > 0 && is_linear(ops[i].kind);
      ops[i].kind = streams ? MGL_CUDA_OP_STREAMED : MGL_CUDA_OP_EMPTY;
      uint32_t most = pages * MGL_CUDA_PAGE_K;
      ops[i].k_padded = ops[i].k_padded < most ? ops[i].k_padded : most;
    }
  }
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if ((task->flags & (MGL_TASK_JIT | MGL_TASK_EMPTY)) == 0 &&
        ops[task->op].kind == MGL_CUDA_OP_STREAMED) {
      uint32_t columns = task->type == MGL_OP_GATE_UP ? MGL_CUDA_HALF_ROWS : MGL_CUDA_BLOCK_ROWS;
      bytes += (double)((task->end - task->begin + columns - 1) / columns) *
               ops[task->op].k_padded * MGL_CUDA_BLOCK_ROWS * 2;
    }
  }
  const mgl_cuda_driver *driver = &p->device->driver;
  gpu_must(mgl_cuda_check(driver,
                          driver->copy_to_device(
                              p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + p->layout.graphs[0].ops, ops,
                              count * sizeof *ops),
                          "copy_to_device", &err),
           &err);
  gpu_must(mgl_cuda_check(driver, driver->context_synchronize(), "emptying ops", &err), &err);
  mgl_free(ops);
  return bytes / mgl_cuda_program_describe(p).layer_count;
}

// Tasks of a stage in the graph for one token: the mean over all ops of that kind, or of the layers
// for MGL_OP_COUNT.
static uint32_t tasks_of(const mgl_cuda_program *p, mgl_op_kind kind) {
  uint32_t tasks = 0;
  uint32_t ops = 0;
  for (size_t i = 0; i < p->program->op_count; i++) {
    mgl_op_kind found = p->program->ops[i].kind;
    bool counts = kind == MGL_OP_COUNT ? is_linear(found) || found == MGL_OP_ATTEND : found == kind;
    for (uint32_t j = 0; counts && j < p->graphs[0]->task_count; j++) {
      const mgl_task *task = &p->graphs[0]->tasks[j];
      tasks += (task->flags & MGL_TASK_EMPTY) == 0 && task->op == i ? 1 : 0;
    }
    ops += counts ? 1 : 0;
  }
  return ops > 0 ? tasks / ops : 0;
}

// --- times ---------------------------------------------------------------------------------------

// Median time of an iteration of one launch, in us.
static double launch_us(mgl_cuda_program *program, const mgl_cuda_launch_options *launch,
                        uint32_t generate) {
  uint64_t times[MOST + 2] = {0};
  double us[MOST + 1];
  int32_t prompt[1] = {1};
  mgl_error err = {0};
  mgl_cuda_request request = {.prompt = prompt, .prompt_count = 1, .max_new_tokens = generate};
  mgl_cuda_outcome outcome = {.iteration_ns = times, .iteration_capacity = MOST + 2};
  mgl_cuda_generate job = {
      .requests = &request, .request_count = 1, .launch = *launch, .outcome = &outcome};
  job.launch.deadline_ns = UINT64_C(20000000000);
  gpu_must(mgl_cuda_program_generate(program, &job, &err), &err);
  if (outcome.iterations < generate) {
    gpu_must(mgl_error_set(&err, MGL_ERR_INTERNAL, "expected %u iterations, found %u", generate,
                           outcome.iterations),
             &err);
  }
  uint32_t first = 2;  // the first ones begin with cold caches
  for (uint32_t i = first; i < generate; i++) {
    us[i - first] = (double)(times[i + 1] - times[i]) / 1e3;
  }
  return median_of(us, generate - first);
}

static double iteration_us(mgl_cuda_program *program, const mgl_cuda_launch_options *launch) {
  double us[LAUNCHES];
  double wanted = LAUNCH_MS * 1e3 / launch_us(program, launch, LEAST);
  uint32_t generate = wanted < LEAST ? LEAST : wanted > MOST ? MOST : (uint32_t)wanted;
  for (uint32_t i = 0; i < LAUNCHES; i++) {
    us[i] = launch_us(program, launch, generate);
  }
  return median_of(us, LAUNCHES);
}

// The two depths of one way.
typedef struct pair {
  mgl_cuda_program *shallow, *deep;
} pair;

static pair make_pair(gpu_bench *bench, const way *by, const cut *c) {
  return (pair){make_program(bench, by, c, SHALLOW), make_program(bench, by, c, DEEP)};
}

static void destroy_pair(pair *p) {
  mgl_cuda_program_destroy(p->shallow);
  mgl_cuda_program_destroy(p->deep);
}

// us of a layer.
static double layer_us(const pair *p, uint32_t pages, const mgl_cuda_launch_options *launch,
                       double *out_bytes) {
  (void)empty_layers(p->shallow, pages);
  *out_bytes = empty_layers(p->deep, pages);
  return (iteration_us(p->deep, launch) - iteration_us(p->shallow, launch)) / (DEEP - SHALLOW);
}

// --- tables --------------------------------------------------------------------------------------

static void alone(gpu_bench *bench) {
  static const cut cuts[] = {{true, true, true, 0}, {false, false, true, 0}};
  bool sound = true;
  printf(
      "\n## A hop alone\n\nus a stage: the difference of %d and %d layers of %d stages; no weights "
      "stream. All ops of the layers AOT or all JIT.\n\n"
      "| launch | workers | 1 task a stage | tasks of a stage | us |\n|---|---|---|---|---|\n",
      SHALLOW, DEEP, STAGES);
  for (uint32_t i = 0; i < WAYS; i++) {
    double us[2];
    uint32_t tasks[2];
    uint32_t workers = 0;
    for (uint32_t j = 0; j < 2; j++) {
      double bytes = 0;
      pair p = make_pair(bench, &ways[i], &cuts[j]);
      us[j] = layer_us(&p, 0, &(mgl_cuda_launch_options){0}, &bytes) / STAGES;
      tasks[j] = tasks_of(p.deep, MGL_OP_COUNT);
      workers = mgl_cuda_program_describe(p.deep).workers;
      destroy_pair(&p);
    }
    printf("| %s | %u | %.2f | %u | %.2f |\n", ways[i].name, workers, us[0], tasks[1], us[1]);
    (void)fflush(stdout);
    sound = sound && tasks[0] == 1 && tasks[1] > 100 && us[0] > 0 && us[1] > 0;
  }
  printf("\n");
  gpu_check(bench, sound, "chains of one task a stage and of a hundred or more, and times above 0");
}

typedef struct streaming {
  uint32_t pages, in_flight, ahead;
} streaming;

static void while_weights_stream(gpu_bench *bench) {
  static const streaming columns[] = {{0, 4, 1}, {1, 4, 1},         {2, 4, 1},
                                      {2, 4, 2}, {ALL_PAGES, 4, 1}, {ALL_PAGES, 12, 12}};
  printf(
      "\n## While weights stream\n\nus a layer of %d stages, in brackets the GB/s that are "
      "streamed. Linears are AOT with a task for every worker; the loaders stream pages of 16 KB "
      "for each of their tasks. Attention (no weights) as the row says.\n\n"
      "| attention | its tasks | no pages | 1 page, 4 + 1 in flight | 2 pages, 4 + 1 | 2 pages, "
      "4 + 2 | all pages (3 to 5), 4 + 1 | all, 12 + 12 |\n|---|---|---|---|---|---|---|---|\n",
      STAGES);
  for (uint32_t one = 0; one < 2; one++) {
    for (uint32_t i = 0; i < WAYS; i++) {
      cut c = {.one_attend = one != 0};
      pair p = make_pair(bench, &ways[i], &c);
      printf("| %s | %u |", ways[i].name, tasks_of(p.deep, MGL_OP_ATTEND));
      for (size_t j = 0; j < sizeof columns / sizeof columns[0]; j++) {
        mgl_cuda_launch_options launch = {.in_flight = columns[j].in_flight,
                                          .in_flight_ahead = columns[j].ahead};
        double bytes = 0;
        double us = layer_us(&p, columns[j].pages, &launch, &bytes);
        printf(" %.2f (%.0f) |", us, bytes / us / 1e3);
        (void)fflush(stdout);
      }
      printf("\n");
      destroy_pair(&p);
    }
  }
}

// --- uneven --------------------------------------------------------------------------------------

// The long tasks of a gate_up, by number in the op: all that one of UNEVEN_LONG workers has, where
// they are AOT, as attention's tasks of a sequence with a long context.
static void choose_long(const mgl_cuda_program *p, bool out[UNEVEN_TASKS]) {
  const mgl_task_graph *graph = p->graphs[0];
  uint32_t op = MGL_NO_OP;
  uint32_t n = 0;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    const mgl_task *task = &graph->tasks[i];
    if (task->type == MGL_OP_GATE_UP && (op == MGL_NO_OP || op == task->op) && n < UNEVEN_TASKS) {
      op = task->op;
      out[n++] = task->worker % UNEVEN_LONG == 0;
    }
  }
}

// Makes gate_up uneven: its long tasks stream as many row blocks as UNEVEN_LONG others. Returns the
// longest share of a worker and the mean, in row blocks, where the tasks are AOT.
static void make_uneven(mgl_cuda_program *p, const bool is_long[UNEVEN_TASKS], uint32_t *longest,
                        double *mean) {
  const mgl_task_graph *graph = p->graphs[0];
  const mgl_cuda_driver *driver = &p->device->driver;
  const mgl_cu_ptr at = p->memory[MGL_CUDA_MEMORY_DESCRIPTORS] + p->layout.graphs[0].steps;
  uint32_t count = graph->aot_start[graph->worker_count] + mgl_protocol_jit_tasks(graph, NULL);
  mgl_cuda_step *steps = gpu_must_alloc(count, sizeof *steps);
  uint32_t *first = gpu_must_alloc(p->program->op_count, sizeof *first);  // task of an op
  uint32_t *shares = gpu_must_alloc(graph->worker_count, sizeof *shares);
  uint32_t op = UINT32_MAX;  // the first gate_up, of which shares are counted
  uint32_t all = 0;
  mgl_error err = {0};
  gpu_must(mgl_cuda_check(driver, driver->copy_to_host(steps, at, count * sizeof *steps),
                          "copy_to_host", &err),
           &err);
  for (uint32_t i = graph->task_count; i-- > 0;) {
    if ((graph->tasks[i].flags & MGL_TASK_EMPTY) == 0) {
      first[graph->tasks[i].op] = i;
      op = graph->tasks[i].type == MGL_OP_GATE_UP ? graph->tasks[i].op : op;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    const mgl_task *task = &graph->tasks[steps[i].task];
    const uint32_t n = steps[i].task - first[task->op];
    if (task->type == MGL_OP_GATE_UP && n < UNEVEN_TASKS && is_long[n]) {
      const uint32_t most = UNEVEN_TASKS - UNEVEN_LONG;
      steps[i].begin = steps[i].begin < most ? steps[i].begin : most;
      steps[i].end = steps[i].begin + UNEVEN_LONG;
    }
    if (task->op == op) {
      uint32_t blocks = steps[i].end - steps[i].begin;
      all += blocks;
      shares[task->worker < graph->worker_count ? task->worker : 0] += blocks;
    }
  }
  *longest = 0;
  for (uint32_t w = 0; w < graph->worker_count; w++) {
    *longest = shares[w] > *longest ? shares[w] : *longest;
  }
  *mean = (double)all / graph->worker_count;
  gpu_must(mgl_cuda_check(driver, driver->copy_to_device(at, steps, count * sizeof *steps),
                          "copy_to_device", &err),
           &err);
  mgl_free(steps);
  mgl_free(first);
  mgl_free(shares);
}

static void uneven(gpu_bench *bench) {
  printf(
      "\n## An uneven op\n\n%d workers, four tasks of each linear for each. us a layer, in which "
      "all "
      "pages are streamed; uneven: one of %d tasks of gate_up, all of some workers where they are "
      "AOT, streams %d times as "
      "much.\n\n| launch | even | uneven | longest share of a worker, in row blocks | mean |\n"
      "|---|---|---|---|---|\n",
      UNEVEN_WORKERS, UNEVEN_LONG, UNEVEN_LONG);
  double us[2][2];
  bool long_tasks[UNEVEN_TASKS] = {false};
  for (uint32_t i = 0; i < 2; i++) {
    const cut c = {.one_attend = true, .jit_linears = true, .workers = UNEVEN_WORKERS};
    const mgl_cuda_launch_options launch = {0};
    double bytes = 0;
    double mean = 0;
    uint32_t longest = 0;
    pair p = make_pair(bench, &ways[i], &c);
    us[i][0] = layer_us(&p, ALL_PAGES, &launch, &bytes);
    if (i == 0) {
      choose_long(p.deep, long_tasks);
    }
    make_uneven(p.shallow, long_tasks, &longest, &mean);
    make_uneven(p.deep, long_tasks, &longest, &mean);
    us[i][1] =
        (iteration_us(p.deep, &launch) - iteration_us(p.shallow, &launch)) / (DEEP - SHALLOW);
    printf("| %s | %.2f | %.2f | %u | %.1f |\n", ways[i].name, us[i][0], us[i][1],
           ways[i].jit ? 0 : longest, mean);
    (void)fflush(stdout);
    destroy_pair(&p);
  }
  printf("\n");
  gpu_check(bench, us[1][1] < us[0][1], "an uneven op takes less time by tickets than by lists");
}

// --- with their work -----------------------------------------------------------------------------

// us of an iteration in which all ops do their work and attention is launched this way.
static double working_us(gpu_bench *bench, const gpu_model *model, const way *by, bool events_only,
                         mgl_cuda_program_info *info, uint32_t *tasks) {
  mgl_compile_override override = {.op = "attend",
                                   .launch = by->jit ? MGL_LAUNCH_JIT : MGL_LAUNCH_AOT};
  mgl_cuda_program *program =
      gpu_program(bench, model,
                  (mgl_cuda_program_options){.sizes.limits.tokens = 1,
                                             .sizes.sequences = 1,
                                             .sizes.limits.pages_per_sequence = PAGES,
                                             .build.launch = MGL_LAUNCH_AOT,
                                             .build.overrides = &override,
                                             .build.override_count = 1,
                                             .build.events_only = events_only,
                                             .build.schedulers = by->schedulers,
                                             .build.scheduler_warps = by->warps});
  double us = iteration_us(program, &(mgl_cuda_launch_options){0});
  *info = mgl_cuda_program_describe(program);
  *tasks = tasks_of(program, MGL_OP_ATTEND);
  mgl_cuda_program_destroy(program);
  return us;
}

static void print_working(const char *model, const char *launch, uint32_t tasks, double layer,
                          double bytes) {
  printf("| %s | %s | %u | %.2f | %.0f |\n", model, launch, tasks, layer, bytes / layer / 1e3);
  (void)fflush(stdout);
}

static const char *name_of(const way *by, bool events_only) {
  return by->jit ? by->name : events_only ? "AOT, events" : "AOT, words";
}

// The model of the chains, by its two depths.
static void chain_with_work(gpu_bench *bench) {
  for (uint32_t events_only = 0; events_only < 2; events_only++) {
    mgl_cuda_program_info info[2];
    double us[2];
    uint32_t tasks = 0;
    for (uint32_t i = 0; i < 2; i++) {
      gpu_model model;
      open_model(i == 0 ? SHALLOW : DEEP, &model);
      us[i] = working_us(bench, &model, &ways[0], events_only != 0, &info[i], &tasks);
      gpu_model_close(&model);
    }
    double layers = DEEP - SHALLOW;
    print_working("hops", name_of(&ways[0], events_only != 0), tasks, (us[1] - us[0]) / layers,
                  (double)(info[1].step_bytes - info[0].step_bytes) / layers);
  }
}

static void real(gpu_bench *bench, const char *folder) {
  gpu_model model;
  gpu_model_open(folder, &model);
  for (uint32_t i = 0; i < WAYS + 1; i++) {
    const way *by = &ways[i > 0 ? i - 1 : 0];
    mgl_cuda_program_info info;
    uint32_t tasks = 0;
    double us = working_us(bench, &model, by, i > 0, &info, &tasks);
    print_working(model.name, name_of(by, i > 0), tasks, us / info.layer_count,
                  (double)info.step_bytes / info.layer_count);
  }
  gpu_model_close(&model);
}

// Arguments: models for the last table; part=alone, uneven or stream: that table alone.
void gpu_hops_run(gpu_bench *bench, int count, char **arguments) {
  static const struct {
    const char *name;
    void (*run)(gpu_bench *bench);
  } parts[] = {
      {"part=alone", alone}, {"part=uneven", uneven}, {"part=stream", while_weights_stream}};
  const bool one = count == 1 && strncmp(arguments[0], "part=", 5) == 0;
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (!one || strcmp(arguments[0], parts[i].name) == 0) {
      parts[i].run(bench);
    }
  }
  if (one) {
    return;
  }
  printf(
      "\n## With their work\n\nBatch 1, up to %d tokens of context, dummy weights; exact events; "
      "all "
      "but attention is AOT. Words: activations carry their readiness. us a layer: the difference "
      "of %d and %d layers (hops), or an iteration over its layers, its ends included.\n\n"
      "| model | attention | its tasks | us a layer | GB/s |\n|---|---|---|---|---|\n",
      MOST, SHALLOW, DEEP);
  chain_with_work(bench);
  for (int i = 0; i < count; i++) {
    real(bench, arguments[i]);
  }
}
