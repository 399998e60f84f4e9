// The task graph as the runtime executes it: descriptors shared by host, device and
// task_graph.json.
//
// A task is the work of one op on one tile, an event a counter that tasks trigger and tasks wait
// for. Tasks stand in linear order, which is topological; the tasks that wait for one event are
// consecutive. Every task has at most one dependent and one trigger event. Plain data, no pointers:
// the same bytes are valid on every target. Layouts are checked by static asserts in both
// compilers.
#ifndef MGL_TWIN_TASK_H
#define MGL_TWIN_TASK_H

#include <stdbool.h>
#include <stdint.h>

#define MGL_NO_EVENT UINT32_MAX
#define MGL_NO_WORKER UINT16_MAX
#define MGL_NO_OP UINT32_MAX

// A task graph is compiled for a target. Grains, cuts and attention strides differ (task/tile.h).
typedef enum mgl_target {
  MGL_TARGET_CPU,
  MGL_TARGET_CUDA,
} mgl_target;

// Numbers of MPK's schema (compile/task_graph_json.c).
typedef enum mgl_event_type {
  MGL_EVENT_TERMINATE = 0,               // ends schedulers and workers
  MGL_EVENT_LAUNCH_TASKS = 1,            // its tasks may run
  MGL_EVENT_END_OF_TASK_GRAPH = 2,       // the iteration is over: the next plan is asked for
  MGL_EVENT_EMPTY = 3,                   // nothing waits for it
  MGL_EVENT_LAUNCH_MASSIVE_TASKS = 4,    // as LAUNCH_TASKS: many of its tasks are JIT
  MGL_EVENT_LAUNCH_DEPENDENT_TASKS = 5,  // its tasks run in the next iteration
} mgl_event_type;

typedef enum mgl_task_flags {
  MGL_TASK_JIT = 1,    // of whichever worker takes it, by a ticket; else AOT
  MGL_TASK_EMPTY = 2,  // from normalisation: no work, resolved by whoever activates its event
} mgl_task_flags;

// 32 bytes.
typedef struct mgl_task {
  uint16_t type;     // mgl_op_kind of its op; 0xffff for an empty task
  uint16_t variant;  // MPK: which implementation of the kind; always 0 here
  uint16_t flags;    // mgl_task_flags
  uint16_t worker;   // AOT: its worker; MGL_NO_WORKER for JIT and empty tasks
  uint32_t op;       // index in the program; MGL_NO_OP for an empty task
  uint32_t begin;    // tile: units [begin, end) of the op (task/tile.h says what a unit is)
  uint32_t end;
  uint32_t dependent_event;  // what it waits for; MGL_NO_EVENT: ready when the iteration starts
  uint32_t trigger_event;    // what it triggers when done; every task leads to the end of the graph
  uint32_t cost;             // modelled cost in bytes moved, for placement and reports
} mgl_task;

typedef enum mgl_event_flags {
  MGL_EVENT_HAS_JIT = 1,    // some of its tasks are JIT: workers may sleep until its activation
  MGL_EVENT_HAS_EMPTY = 2,  // some of its tasks are empty: resolved at activation
  MGL_EVENT_HAS_AOT = 4,    // some of its tasks are AOT: workers may sleep until its activation
  MGL_EVENT_REMOTE = 8,     // its tasks read what all ranks made: the triggers of all ranks count
} mgl_event_flags;

// 16 bytes.
typedef struct mgl_event {
  uint16_t type;           // mgl_event_type
  uint16_t flags;          // mgl_event_flags
  uint32_t trigger_count;  // triggers that activate it, each run of the graph
  uint32_t first_task;     // tasks [first_task, last_task) wait for it
  uint32_t last_task;
} mgl_event;

_Static_assert(sizeof(mgl_task) == 32, "task descriptors are copied to the device as they are");
_Static_assert(sizeof(mgl_event) == 16, "event descriptors are copied to the device as they are");

// One task graph: the program for up to `tokens` tokens an iteration.
typedef struct mgl_task_graph {
  uint32_t tokens;
  uint32_t logit_rows;  // most rows of an iteration that need logits: its storage holds so many
  uint32_t worker_count;
  uint32_t task_count;
  uint32_t event_count;
  mgl_task *tasks;       // [task_count], linear order
  mgl_event *events;     // [event_count]; the last one is END_OF_TASK_GRAPH
  uint32_t *aot_start;   // [worker_count + 1]: worker w's AOT tasks are aot_tasks[aot_start[w] ...)
  uint32_t *aot_tasks;   // task indices, ascending per worker
  uint32_t ready_count;  // tasks [0, ready_count) wait for nothing (first_tasks of the schema)
  uint32_t tensor_count;         // of the program
  uint64_t *activation_offsets;  // [tensor_count] bytes into the activation block; 0 for others
  uint64_t activation_bytes;     // of the block
  uint32_t attention_strides;    // tasks per KV head in attention ops
  mgl_target target;             // what runs it: tiles lie at multiples of that target's grain
} mgl_task_graph;

const char *mgl_target_name(mgl_target target);  // "cpu", "cuda"
// False: no target has that name.
bool mgl_target_parse(const char *name, mgl_target *out);

void mgl_task_graph_destroy(mgl_task_graph *graph);  // NULL is fine

#endif
