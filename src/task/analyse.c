#include "task/analyse.h"

#include <string.h>

#include "base/alloc.h"

const char *mgl_event_type_name(mgl_event_type type) {
  static const char *const names[MGL_EVENT_TYPE_COUNT] = {
      [MGL_EVENT_TERMINATE] = "terminate",
      [MGL_EVENT_LAUNCH_TASKS] = "launch_tasks",
      [MGL_EVENT_END_OF_TASK_GRAPH] = "end_of_task_graph",
      [MGL_EVENT_EMPTY] = "empty",
      [MGL_EVENT_LAUNCH_MASSIVE_TASKS] = "launch_massive_tasks",
      [MGL_EVENT_LAUNCH_DEPENDENT_TASKS] = "launch_dependent_tasks",
  };
  return (uint32_t)type < MGL_EVENT_TYPE_COUNT ? names[type] : "unknown";
}

const char *mgl_task_op_name(const mgl_graph *program, const mgl_task *task) {
  return task->op == MGL_NO_OP ? "empty" : program->tensors[program->ops[task->op].output].name;
}

const char *mgl_task_kind_name(const mgl_task *task) {
  return task->op == MGL_NO_OP ? "empty" : mgl_op_info_of((mgl_op_kind)task->type)->name;
}

bool mgl_task_waits(const mgl_task_graph *graph, const mgl_task *task) {
  return task->dependent_event != MGL_NO_EVENT &&
         graph->events[task->dependent_event].type != MGL_EVENT_LAUNCH_DEPENDENT_TASKS;
}

// --- counts --------------------------------------------------------------------------------------

static void count_task(const mgl_task *task, mgl_op_tasks *row) {
  uint32_t units = task->end - task->begin;
  row->units_min = row->task_count == 0 || units < row->units_min ? units : row->units_min;
  row->units_max = units > row->units_max ? units : row->units_max;
  row->cost_max = task->cost > row->cost_max ? task->cost : row->cost_max;
  row->cost += task->cost;
  row->task_count++;
  row->jit_count += (task->flags & MGL_TASK_JIT) != 0;
}

static void count_all(const mgl_graph *program, const mgl_task_graph *graph,
                      mgl_analysis *analysis) {
  for (uint32_t t = 0; t < graph->task_count; t++) {
    const mgl_task *task = &graph->tasks[t];
    analysis->cost += task->cost;
    if (task->op == MGL_NO_OP) {
      analysis->empty_count++;
      continue;
    }
    mgl_op_tasks *kind = &analysis->kinds[program->ops[task->op].kind];
    kind->op_count += analysis->ops[task->op].task_count == 0;
    analysis->ops[task->op].op_count = 1;
    count_task(task, kind);
    count_task(task, &analysis->ops[task->op]);
    if ((task->flags & MGL_TASK_JIT) != 0) {
      analysis->jit_count++;
    } else {
      analysis->aot_count++;
    }
    if (task->worker < graph->worker_count) {
      analysis->workers[task->worker].task_count++;
      analysis->workers[task->worker].cost += task->cost;
    }
  }
  for (uint32_t e = 0; e < graph->event_count; e++) {
    if (graph->events[e].type < MGL_EVENT_TYPE_COUNT) {
      analysis->events_by_type[graph->events[e].type]++;
    }
  }
}

// --- chains --------------------------------------------------------------------------------------

// Lists the producers of every event, ascending: a counting sort of the tasks by trigger event.
static void list_producers(const mgl_task_graph *graph, mgl_analysis *analysis) {
  uint32_t *start = analysis->producer_start;  // zeroed
  for (uint32_t t = 0; t < graph->task_count; t++) {
    if (graph->tasks[t].trigger_event != MGL_NO_EVENT) {
      start[graph->tasks[t].trigger_event]++;
    }
  }
  uint32_t sum = 0;
  for (uint32_t e = 0; e <= graph->event_count; e++) {
    uint32_t count = start[e];
    start[e] = sum + count;  // the end for now; filling from behind makes it the start
    sum += count;
  }
  for (uint32_t t = graph->task_count; t > 0; t--) {
    uint32_t event = graph->tasks[t - 1].trigger_event;
    if (event != MGL_NO_EVENT) {
      analysis->producers[--start[event]] = t - 1;
    }
  }
}

// Tasks stand in topological order, so one pass sees all producers of an event before its tasks.
// `latest` and `stages` are [event_count], for the producer of each event that finishes last (at
// first MGL_NO_TASK) and for the depth behind its deepest one (at first 0).
static void find_chains(const mgl_task_graph *graph, mgl_analysis *analysis, uint32_t *latest,
                        uint32_t *stages) {
  for (uint32_t t = 0; t < graph->task_count; t++) {
    const mgl_task *task = &graph->tasks[t];
    bool is_empty = task->op == MGL_NO_OP;
    uint64_t cost = task->cost;
    uint32_t depth = 0;
    analysis->before[t] = MGL_NO_TASK;
    if (mgl_task_waits(graph, task)) {
      uint32_t before = latest[task->dependent_event];
      depth = stages[task->dependent_event];
      cost += is_empty ? 0 : analysis->hop_bytes;  // an empty task is resolved on the spot
      if (before != MGL_NO_TASK) {
        analysis->before[t] = before;
        cost += analysis->finish[before];
      }
    }
    analysis->finish[t] = cost;
    analysis->depth[t] = depth;
    uint32_t after = depth + (is_empty ? 0 : 1);
    analysis->depth_count = after > analysis->depth_count ? after : analysis->depth_count;
    if (analysis->last == MGL_NO_TASK || cost > analysis->finish[analysis->last]) {
      analysis->last = t;
    }
    uint32_t event = task->trigger_event;
    if (event != MGL_NO_EVENT) {
      stages[event] = after > stages[event] ? after : stages[event];
      if (latest[event] == MGL_NO_TASK || cost > analysis->finish[latest[event]]) {
        latest[event] = t;
      }
    }
  }
}

uint32_t mgl_analysis_chain_length(const mgl_analysis *analysis, uint32_t task) {
  uint32_t length = 0;
  for (; task != MGL_NO_TASK; task = analysis->before[task]) {
    length++;
  }
  return length;
}

void mgl_analysis_chain(const mgl_analysis *analysis, uint32_t task, uint32_t *chain) {
  for (uint32_t i = mgl_analysis_chain_length(analysis, task); i > 0; i--) {
    chain[i - 1] = task;
    task = analysis->before[task];
  }
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_analysis_create(const mgl_graph *program, const mgl_task_graph *graph,
                               uint64_t hop_bytes, mgl_analysis **out, mgl_error *err) {
  mgl_analysis *a = mgl_alloc_zeroed(1, sizeof *a);
  uint32_t *latest = mgl_alloc(graph->event_count * sizeof *latest);
  uint32_t *stages = mgl_alloc_zeroed(graph->event_count, sizeof *stages);
  *out = NULL;
  if (a == NULL || latest == NULL || stages == NULL) {
    goto fail;
  }
  a->hop_bytes = hop_bytes;
  a->last = MGL_NO_TASK;
  a->ops = mgl_alloc_zeroed(program->op_count, sizeof *a->ops);
  a->workers = mgl_alloc_zeroed(graph->worker_count, sizeof *a->workers);
  a->producer_start = mgl_alloc_zeroed((size_t)graph->event_count + 1, sizeof *a->producer_start);
  a->producers = mgl_alloc(graph->task_count * sizeof *a->producers);
  a->finish = mgl_alloc(graph->task_count * sizeof *a->finish);
  a->before = mgl_alloc(graph->task_count * sizeof *a->before);
  a->depth = mgl_alloc(graph->task_count * sizeof *a->depth);
  if (a->ops == NULL || a->workers == NULL || a->producer_start == NULL || a->producers == NULL ||
      a->finish == NULL || a->before == NULL || a->depth == NULL) {
    goto fail;
  }
  memset(latest, 0xff, graph->event_count * sizeof *latest);  // MGL_NO_TASK
  count_all(program, graph, a);
  list_producers(graph, a);
  find_chains(graph, a, latest, stages);
  mgl_free(latest);
  mgl_free(stages);
  *out = a;
  return MGL_OK;

fail:
  mgl_free(latest);
  mgl_free(stages);
  mgl_analysis_destroy(a);
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the analysis of a task graph");
}

void mgl_analysis_destroy(mgl_analysis *analysis) {
  if (analysis != NULL) {
    mgl_free(analysis->ops);
    mgl_free(analysis->workers);
    mgl_free(analysis->producer_start);
    mgl_free(analysis->producers);
    mgl_free(analysis->finish);
    mgl_free(analysis->before);
    mgl_free(analysis->depth);
    mgl_free(analysis);
  }
}
