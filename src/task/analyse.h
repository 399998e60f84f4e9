// These functions say what a task graph looks like from outside: counts, costs, the load of
// workers, and which chain of tasks takes longest.
//
// Pure functions over a verified task graph and its program: topological order, tasks of an event
// consecutive, every index in range. The model behind finish times is deliberately small: a task
// takes its cost in bytes, and one that waits for an event takes hop_bytes more; workers are
// unlimited. So the longest chain is a lower bound of an iteration, as total cost over workers is
// another. Rejected: simulating the schedule, which would need a model of the machine to mean more.
#ifndef MGL_TASK_ANALYSE_H
#define MGL_TASK_ANALYSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"
#include "twin/task.h"

enum { MGL_EVENT_TYPE_COUNT = MGL_EVENT_LAUNCH_DEPENDENT_TASKS + 1 };
#define MGL_NO_TASK UINT32_MAX

// The tasks of one op, or of all ops of one kind.
typedef struct mgl_op_tasks {
  uint32_t op_count;  // ops that have tasks
  uint32_t task_count;
  uint32_t jit_count;             // of them
  uint32_t units_min, units_max;  // tile units of a task
  uint32_t cost_max;              // of a task
  uint64_t cost;                  // of all
} mgl_op_tasks;

// The AOT tasks of one worker.
typedef struct mgl_worker_load {
  uint32_t task_count;
  uint64_t cost;
} mgl_worker_load;

typedef struct mgl_analysis {
  uint64_t hop_bytes;  // as given
  uint32_t aot_count, jit_count, empty_count;
  uint64_t cost;                                  // of all tasks
  uint32_t events_by_type[MGL_EVENT_TYPE_COUNT];  // events of that mgl_event_type
  mgl_op_tasks kinds[MGL_OP_COUNT];
  mgl_op_tasks *ops;         // [op_count of the program]
  mgl_worker_load *workers;  // [worker_count]
  uint32_t *producer_start;  // [event_count + 1]: what triggers event e are
  uint32_t *producers;       // the tasks producers[producer_start[e] ... producer_start[e + 1])
  uint64_t *finish;          // [task_count] cost of the most expensive chain that ends with a task
  uint32_t *before;          // [task_count] the task before it on that chain, or MGL_NO_TASK
  uint32_t *depth;           // [task_count] most tasks on a chain before it, empty ones not counted
  uint32_t depth_count;      // stages: largest depth + 1; 0 without tasks
  uint32_t last;             // the critical path ends with this task; MGL_NO_TASK without tasks
} mgl_analysis;

// Tasks of a LAUNCH_DEPENDENT_TASKS event begin a chain: they waited in the iteration before.
mgl_status mgl_analysis_create(const mgl_graph *program, const mgl_task_graph *graph,
                               uint64_t hop_bytes, mgl_analysis **out, mgl_error *err);
void mgl_analysis_destroy(mgl_analysis *analysis);  // NULL is fine

// Tasks of the most expensive chain that ends with `task`.
uint32_t mgl_analysis_chain_length(const mgl_analysis *analysis, uint32_t task);
// Writes them to chain[mgl_analysis_chain_length(...)], from a ready task to `task`.
void mgl_analysis_chain(const mgl_analysis *analysis, uint32_t task, uint32_t *chain);

// Whether a task waits for something within an iteration.
bool mgl_task_waits(const mgl_task_graph *graph, const mgl_task *task);

const char *mgl_event_type_name(mgl_event_type type);  // "launch_tasks"
// "0.gate_up": an op is called after its output; an empty task "empty".
const char *mgl_task_op_name(const mgl_graph *program, const mgl_task *task);
// "gate_up"; "empty".
const char *mgl_task_kind_name(const mgl_task *task);

#endif
