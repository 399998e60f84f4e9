#include "engine/mega_mode.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_argmax.h"
#include "device/cpu/cpu_linears.h"
#include "device/cpu/cpu_mega.h"
#include "device/cpu/cpu_tasks.h"
#include "device/debug_dump.h"
#include "graph/graph_text.h"

enum {
  MAX_GRAPHS = 12,  // 1, 2, 4 ... 2048 tokens
  // Weights of an iteration that may stay in the last-level cache: workers that wait have nothing
  // to fetch then, and looking for it takes 1% of the time of a tiny model.
  CACHED_BYTES = 64 << 20,
};
_Static_assert(1 << (MAX_GRAPHS - 1) == MGL_MAX_ITERATION_TOKENS, "a graph for every token count");

struct mgl_mega_mode {
  mgl_graph *fused;                    // NULL: the ops are not fused
  const mgl_graph *program;            // that, or the job's
  uint32_t first, last;                // ops that compute (mgl_mega_mode_choose)
  bool makes_logits;                   // theirs is among them
  mgl_task_graph *graphs[MAX_GRAPHS];  // graphs[i] is for up to 1 << i tokens
  mgl_cpu_program *programs[MAX_GRAPHS];
  uint32_t graph_count;
  mgl_cpu_mega *mega;
  mgl_ranks *ranks;  // NULL: there is one
  // The present run's.
  mgl_error error;  // of the ranks
  mgl_next_plan_callback *next;
  void *next_context;
  mgl_cpu_program *current;  // of the iteration that runs
  const mgl_cpu_memory *memory;
};

// The smallest graph that fits.
static uint32_t graph_for(uint32_t tokens) {
  uint32_t graph = 0;
  while ((1u << graph) < tokens) {
    graph++;
  }
  return graph;
}

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  const mgl_mega_mode *mode = context;
  if (task->op < mode->first || task->op > mode->last) {
    return;
  }
  mgl_cpu_task_run(mode->programs[graph_for(graph->tokens)], worker, task->op, task->begin,
                   task->end);
}

static size_t weights_of_task(void *context, const mgl_task_graph *graph, const mgl_task *task,
                              size_t from, const void **out) {
  const mgl_mega_mode *mode = context;
  return mgl_cpu_linear_weights(mode->programs[graph_for(graph->tokens)], task->op, task->begin,
                                task->end, from, out);
}

mgl_logits mgl_logits_of(const mgl_cpu_program *program) {
  return (mgl_logits){.rows = mgl_cpu_program_tensor(program, program->logits),
                      .best = mgl_cpu_program_best_logits(program)};
}

// The plan of rank 0 goes to all of them; the others get it.
static const mgl_plan *share_plan(mgl_mega_mode *mode, const mgl_plan *plan) {
  if (mgl_ranks_rank(mode->ranks) != 0) {
    return mgl_ranks_take(mode->ranks, &plan) == MGL_RANK_PLAN ? plan : NULL;
  }
  mgl_rank_command command = plan != NULL ? MGL_RANK_PLAN : MGL_RANK_END;
  return mgl_ranks_post(mode->ranks, command, plan, &mode->error) == MGL_OK ? plan : NULL;
}

static bool is_follower(const mgl_mega_mode *mode) {
  return mode->ranks != NULL && mgl_ranks_rank(mode->ranks) != 0;
}

static void end_iteration(mgl_mega_mode *mode) {
  if (mode->current != NULL) {
    mgl_cpu_program_end_plan(mode->current);
  }
}

static int next_plan(void *context, uint64_t iteration) {
  mgl_mega_mode *mode = context;
  mgl_logits logits = {0};
  if (iteration > 0 && mode->makes_logits) {
    logits = mgl_logits_of(mode->current);
  }
  end_iteration(mode);
  const mgl_plan *plan = NULL;
  if (!is_follower(mode)) {
    plan = mode->next(mode->next_context, iteration > 0 ? &logits : NULL);
  }
  if (mode->ranks != NULL) {
    plan = share_plan(mode, plan);
  }
  if (plan == NULL) {
    return -1;
  }
  uint32_t graph = graph_for(plan->token_count);
  assert(graph < mode->graph_count);
  mgl_cpu_program_set_plan(mode->programs[graph], plan);
  mode->current = mode->programs[graph];
  return (int)graph;
}

static uint64_t pulses(void *context) {
  const mgl_mega_mode *mode = context;
  return mgl_cpu_memory_pulses(mode->memory);
}

static const char *op_name(void *context, const mgl_task_graph *graph, uint32_t op) {
  const mgl_mega_mode *mode = context;
  (void)graph;
  return mode->program->tensors[mode->program->ops[op].output].name;
}

static mgl_status compile_graph(mgl_mega_mode *mode, const mgl_device_job *job, uint32_t i,
                                mgl_error *err) {
  char name[64];
  mgl_text passes = {0};
  mgl_compile_options compile = mgl_build_compile(job->build, job->sizes, MGL_TARGET_CPU, 1u << i);
  if (mgl_debug_dump_folder(job->build->compilation) != NULL) {
    compile.dump = MGL_ALL_PASSES;
    compile.dump_text = &passes;
  }
  mgl_status status = mgl_compile(mode->program, &compile, &mode->graphs[i], NULL, err);
  (void)snprintf(name, sizeof name, "MEGA-%u.passes.txt", 1u << i);
  if (status == MGL_OK) {
    status = mgl_debug_dump(job->build, name, &passes, err);
  }
  mgl_text_free(&passes);
  return status;
}

static mgl_status compile_graphs(mgl_mega_mode *mode, mgl_cpu_memory *memory,
                                 const mgl_device_job *job, mgl_simd simd, mgl_error *err) {
  uint32_t count = graph_for(job->sizes->limits.tokens) + 1;
  char name[64];
  MGL_TRY(mgl_debug_dump_program(job->build, "fused.txt", mode->program, err));
  MGL_TRY(mgl_build_take_given(job->build, job->sizes, MGL_TARGET_CPU, mode->program, mode->graphs,
                               count, err));
  for (uint32_t i = 0; i < count; i++) {
    if (mode->graphs[i] == NULL) {  // none was given
      MGL_TRY(compile_graph(mode, job, i, err));
    }
    mgl_cpu_program_options program = {
        .simd = simd, .task_graph = mode->graphs[i], .only_wanted = true};
    MGL_TRY(mgl_cpu_program_create(mode->program, memory, &program, &mode->programs[i], err));
    (void)snprintf(name, sizeof name, "MEGA-%u.graph-0.json", 1u << i);
    MGL_TRY(mgl_debug_dump_graph(job->build, name, mode->program, mode->graphs[i], err));
    mode->graph_count = i + 1;
  }
  return MGL_OK;
}

// A task that hangs cannot be ended: its process is, or of rank 0 the others are.
static void end_hung(void *context, const char *message) {
  const mgl_mega_mode *mode = context;
  mgl_error err = {0};
  if (is_follower(mode)) {
    (void)mgl_error_set(&err, MGL_ERR_INTERNAL, "%s", message);
    mgl_ranks_leave(mode->ranks, &err);
  }
  mgl_ranks_abandon(mode->ranks);
}

static void fail_run(void *context, const char *why) {
  mgl_cpu_mega_fail(context, why);
}

mgl_status mgl_mega_mode_create(const mgl_device_job *job, mgl_cpu_memory *memory, mgl_team *team,
                                mgl_simd simd, mgl_ranks *ranks, mgl_mega_mode **out,
                                mgl_error *err) {
  *out = NULL;
  mgl_mega_mode *mode = mgl_alloc_zeroed(1, sizeof *mode);
  if (mode == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for mode mega");
  }
  mode->memory = memory;
  mgl_cpu_mega_options mega = mgl_cpu_mega_defaults();
  mega.schedulers = job->build->schedulers;
  mega.trace_tasks = job->build->trace_tasks;
  mega.context = mode;
  mode->ranks = ranks;
  if (ranks != NULL) {
    const mgl_cpu_memory_options *shared = &memory->options;
    mega.rank = shared->rank;
    mega.rank_count = shared->rank_count;
    mega.counter_capacity = shared->shared_counters;
    mega.hang_ms = simd == MGL_SIMD_SCALAR ? 0 : MGL_RANK_HANG_MS;  // which takes long at anything
    mega.on_fault = end_hung;
    for (uint32_t rank = 0; rank < shared->rank_count; rank++) {
      mega.counters[rank] = mgl_ranks_counters(ranks, rank);
    }
  }
  mega.run_task = run_task;
  mega.next_plan = next_plan;
  mega.pulses = pulses;
  mega.op_name = op_name;
  mega.weights = memory->weights->step_bytes > CACHED_BYTES ? weights_of_task : NULL;
  mode->last = UINT32_MAX;
  mode->makes_logits = true;
  mgl_status status = job->build->plain ? MGL_OK : mgl_fuse_ops(job->program, &mode->fused, err);
  mode->program = mode->fused != NULL ? mode->fused : job->program;
  if (status == MGL_OK) {
    status = compile_graphs(mode, memory, job, simd, err);
  }
  if (status == MGL_OK) {
    status = mgl_cpu_mega_create((const mgl_task_graph *const *)mode->graphs, mode->graph_count,
                                 team, &mega, &mode->mega, err);
  }
  if (status != MGL_OK) {
    mgl_mega_mode_destroy(mode);
    return status;
  }
  if (ranks != NULL) {
    mgl_ranks_listen(ranks, fail_run, mode->mega);
  }
  *out = mode;
  return MGL_OK;
}

void mgl_mega_mode_destroy(mgl_mega_mode *mode) {
  if (mode == NULL) {
    return;
  }
  if (mode->ranks != NULL) {
    mgl_ranks_listen(mode->ranks, NULL, NULL);
  }
  mgl_cpu_mega_destroy(mode->mega);
  for (uint32_t i = 0; i < MAX_GRAPHS; i++) {
    mgl_cpu_program_destroy(mode->programs[i]);
    mgl_task_graph_destroy(mode->graphs[i]);
  }
  mgl_graph_destroy(mode->fused);
  mgl_free(mode);
}

mgl_status mgl_mega_mode_run(mgl_mega_mode *mode, mgl_next_plan_callback *next, void *context,
                             mgl_error *err) {
  mode->next = next;
  mode->next_context = context;
  mode->error = (mgl_error){0};
  if (mode->ranks != NULL) {
    MGL_TRY(mgl_ranks_post(mode->ranks, MGL_RANK_RUN, NULL, err));
  }
  mgl_status status = mgl_cpu_mega_run(mode->mega, err);
  end_iteration(mode);  // of a run that failed in the middle of it
  if (mode->ranks == NULL) {
    return status;
  }
  if (status == MGL_OK && mode->error.status != MGL_OK) {
    status = mgl_error_set(err, mode->error.status, "%s", mode->error.text);
  }
  if (status != MGL_OK) {
    mgl_ranks_abandon(mode->ranks);
  }
  return status;
}

mgl_status mgl_mega_mode_follow(mgl_mega_mode *mode, mgl_error *err) {
  const mgl_plan *unused = NULL;
  mgl_rank_command command = mgl_ranks_take(mode->ranks, &unused);
  while (command == MGL_RANK_RUN) {
    MGL_TRY(mgl_cpu_mega_run(mode->mega, err));
    command = mgl_ranks_take(mode->ranks, &unused);
  }
  return MGL_OK;
}

const mgl_graph *mgl_mega_mode_program(const mgl_mega_mode *mode) {
  return mode->program;
}

mgl_cpu_program *mgl_mega_mode_binding(const mgl_mega_mode *mode, uint32_t tokens) {
  return mode->programs[graph_for(tokens)];
}

void mgl_mega_mode_choose(mgl_mega_mode *mode, uint32_t first, uint32_t last) {
  mode->first = first;
  mode->last = last;
  mode->makes_logits = false;
  uint32_t logits = mgl_graph_find(mode->program, "logits");
  for (uint32_t i = first; i < mode->program->op_count && i <= last; i++) {
    mode->makes_logits = mode->makes_logits || mode->program->ops[i].output == logits;
  }
  memset(mode->memory->activations, 0xff, mode->memory->activation_bytes);
}

mgl_status mgl_mega_mode_trace(const mgl_mega_mode *mode, mgl_text *out, mgl_error *err) {
  return mgl_cpu_mega_trace_json(mode->mega, out, err);
}
