// Inside of the CPU runtime: shared by cpu_mega.c and cpu_watchdog.c only.
#ifndef MGL_DEVICE_CPU_CPU_MEGA_PARTS_H
#define MGL_DEVICE_CPU_CPU_MEGA_PARTS_H

#include <pthread.h>
#include <stdio.h>

#include "device/cpu/cpu_mega.h"
#include "twin/protocol.h"

enum { MGL_OP_NAME_BYTES = 32 };

// One task of the trace.
typedef struct trace_entry {
  uint64_t iteration;
  uint64_t start_ns;
  uint64_t end_ns;
  uint32_t graph;
  uint32_t task;
} trace_entry;

// A worker's ring of the latest trace_tasks entries; written by that worker.
typedef struct task_trace {
  trace_entry *entries;  // NULL: no trace
  uint64_t count;        // entries ever written
  uint8_t padding[48];
} task_trace;

typedef struct watchdog {
  bool started;
  pthread_t thread;
  pthread_mutex_t lock;  // of everything below
  pthread_cond_t wake;   // `quit` was set
  bool quit;
  bool active;   // a run is under way; while it is, the protocol's state is not reset
  uint64_t run;  // how many runs were begun
  char message[MGL_ERROR_TEXT_BYTES];  // of the fault that it raised in this run; "" for none
} watchdog;

struct mgl_cpu_mega {
  mgl_protocol protocol;
  mgl_team *team;
  mgl_cpu_mega_options options;
  bool crowded;  // more threads than processors
  const mgl_task_graph *graphs[MGL_CPU_MEGA_MAX_GRAPHS];
  uint64_t counter_count;
  uint64_t jit_count;               // JIT tasks of all graphs
  mgl_word *counters;               // [counter_count] of all graphs, one behind the other
  uint32_t *jit_tasks;              // [jit_count] of all graphs, one behind the other
  mgl_queue_slot *scheduler_slots;  // [schedulers][MGL_SCHEDULER_SLOTS]
  task_trace *traces;               // [workers]
  mgl_word *clocks;                 // [workers] of its thread's processor time, + 1; 0: not known
  uint64_t *spent_ns;  // [workers] of that time, at the latest progress; the watchdog's
  watchdog watch;
};

// The name that the callback gives, or "op N" in the buffer.
const char *mgl_cpu_mega_op_name(const mgl_cpu_mega *mega, uint32_t graph, const mgl_task *task,
                                 char buffer[MGL_OP_NAME_BYTES]);

// Tasks that the workers finished in this run.
static inline uint64_t mgl_protocol_progress(const mgl_protocol *p) {
  uint64_t tasks = 0;
  for (uint32_t w = 0; w < p->worker_count; w++) {
    tasks += mgl_load_relaxed(&p->workers[w].progress);
  }
  return tasks;
}

void mgl_watchdog_init(mgl_cpu_mega *mega);
// Starts its thread, which looks at all that the runtime has: once that is there.
mgl_status mgl_watchdog_start(mgl_cpu_mega *mega, mgl_error *err);
void mgl_watchdog_stop(mgl_cpu_mega *mega);

#endif
