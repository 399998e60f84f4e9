// The megakernel's CPU runtime: one team of threads runs task graphs, iteration after iteration,
// without returning and without barriers between ops (twin/protocol.h).
//
// Thread i of the team is worker i; dedicated schedulers, if asked for, are the threads behind the
// workers; further threads stay out. Idle threads spin, then yield, then sleep (cpu_wait.h).
// Nothing is allocated during a run. A watchdog thread raises a fault when work is outstanding and
// no task anywhere finished for a set time; the run then ends with a message that names the task,
// the worker and the event. A task body that never returns cannot be interrupted: then on_fault is
// all that the caller hears.
//
// Threads: create, run, destroy and the trace by the thread that created the team; callbacks as
// stated below. One run at a time.
#ifndef MGL_DEVICE_CPU_CPU_MEGA_H
#define MGL_DEVICE_CPU_CPU_MEGA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "base/text.h"
#include "device/cpu/cpu_lookahead.h"
#include "device/cpu/team.h"
#include "twin/atomics.h"
#include "twin/task.h"

enum {
  MGL_CPU_MEGA_MAX_GRAPHS = 16,
  MGL_CPU_MEGA_MAX_SCHEDULERS = 64,
  MGL_CPU_MEGA_MAX_TRACE = 1 << 24,  // tasks that one worker's trace can hold
};

typedef struct mgl_cpu_mega mgl_cpu_mega;

typedef struct mgl_cpu_mega_options {
  uint32_t schedulers;   // threads that only begin iterations; 0: workers do that (default)
  uint32_t fault_ms;     // 0: no watchdog; default 10000
  uint32_t hang_ms;      // processor time that a task may take without an end or a pulse, where
                         // fault_ms would be too long to wait; 0: any
  uint32_t trace_tasks;  // tasks per worker that the trace keeps (the latest); 0: no trace

  // Of several ranks: each one's counters of events, in memory that all have, `counter_capacity` of
  // them. next_plan keeps the ranks together (twin/protocol.h). rank_count 0: there are no others.
  uint32_t rank, rank_count;
  mgl_word *counters[MGL_MAX_RANKS];
  uint64_t counter_capacity;

  void *context;  // first argument of all callbacks

  // The body of a task, on its worker's thread. Never called for empty tasks. What its predecessors
  // wrote is visible.
  void (*run_task)(void *context, uint32_t worker, const mgl_task_graph *graph,
                   const mgl_task *task);

  // The plan of iteration 0, 1, ...: the index of the graph to run, or a negative number to end the
  // run. Called on one thread at a time, any of them, after all tasks of the iteration before. It
  // may block; the others then sleep, and the watchdog does not count the time.
  int (*next_plan)(void *context, uint64_t iteration);

  // A worker may fetch these weights into its cache while it waits for an AOT task's event. NULL:
  // none.
  mgl_task_weights *weights;

  // How often workers have told, in the middle of a long task, that they are at work: as long as
  // that number grows, the watchdog takes it for progress. Its thread calls this. NULL: never.
  uint64_t (*pulses)(void *context);

  // The name of an op, for messages and the trace. Any thread. NULL: "op N".
  const char *(*op_name)(void *context, const mgl_task_graph *graph, uint32_t op);

  // Called once on the watchdog's thread when it raises a fault, before the run ends. May be NULL.
  void (*on_fault)(void *context, const char *message);
} mgl_cpu_mega_options;

mgl_cpu_mega_options mgl_cpu_mega_defaults(void);

// Checks the graphs (protocol_check.h) and that the team has a thread for each worker and
// scheduler. Graphs, their arrays and the team are borrowed until destroy; all graphs have the same
// number of workers.
mgl_status mgl_cpu_mega_create(const mgl_task_graph *const *graphs, uint32_t graph_count,
                               mgl_team *team, const mgl_cpu_mega_options *options,
                               mgl_cpu_mega **out, mgl_error *err);
void mgl_cpu_mega_destroy(mgl_cpu_mega *mega);  // NULL is fine

// Runs from iteration 0 until next_plan says stop. MGL_ERR_INTERNAL if a fault was raised; another
// run may follow then as well.
mgl_status mgl_cpu_mega_run(mgl_cpu_mega *mega, mgl_error *err);

// Ends a run, if there is one, with this message and what the workers wait for. Any thread.
void mgl_cpu_mega_fail(mgl_cpu_mega *mega, const char *why);

// True once a fault was raised in this run: a long task body may look and give up. Any thread.
bool mgl_cpu_mega_faulted(const mgl_cpu_mega *mega);

// Iterations of the latest run, and tasks that its workers finished.
uint64_t mgl_cpu_mega_iterations(const mgl_cpu_mega *mega);
uint64_t mgl_cpu_mega_tasks(const mgl_cpu_mega *mega);

// The latest run's trace in Chrome's trace format, for https://ui.perfetto.dev: one track per
// worker; an entry has its op and tile as name, and graph, iteration, index and the microseconds
// since the worker's task before as arguments. Between runs.
mgl_status mgl_cpu_mega_trace_json(const mgl_cpu_mega *mega, mgl_text *out, mgl_error *err);

#endif
