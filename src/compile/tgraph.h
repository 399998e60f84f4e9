// The task graph while it is compiled: what the passes hand to each other.
//
// Tasks are numbered op by op in program order ("task numbers", not the final linear order); empty
// tasks, which normalisation adds, come behind them. Every array lives in one arena, which goes
// when the compilation ends. A pass fills the fields under its name and reads those above; pass
// functions return false when memory is out and report anything else through *err.
#ifndef MGL_COMPILE_TGRAPH_H
#define MGL_COMPILE_TGRAPH_H

#include "compile/compile.h"
#include "compile/task_set.h"
#include "task/tile.h"

typedef struct mgl_tg_task {
  uint32_t op;  // MGL_NO_OP for an empty task
  uint32_t begin, end;
  uint64_t cost;
} mgl_tg_task;

// An event with the tasks that trigger it and the tasks that wait for it.
typedef struct mgl_tg_event {
  mgl_task_set in;
  mgl_task_set out;
} mgl_tg_event;

typedef struct mgl_tgraph {
  mgl_arena arena;
  const mgl_graph *program;
  const mgl_compile_options *options;
  mgl_compile_report report;
  mgl_span_list scratch;  // of whichever pass runs

  // partition
  uint32_t strides;
  mgl_tg_task *tasks;  // [task_count]; normalise appends empty_count more
  uint32_t task_count;
  uint32_t *op_first;  // [op_count + 1]: op o's tasks are [op_first[o], op_first[o + 1])

  // depend
  mgl_task_set *producers;  // [task_count] the tasks that each task must come after, by its regions

  // fuse events
  mgl_tg_event *events;  // [event_count], by their first waiting task: a topological order
  uint32_t event_count;
  uint32_t *wait;  // [task_count] each task's event, or MGL_NO_EVENT

  // prune (also rewrites producers; fuse events runs again)
  mgl_task_set *ancestors;  // [task_count] all tasks that come before a task
  mgl_task_set *before;     // [op_count] all tasks that come before every task of an op
  uint32_t *settled;        // [op_count] tasks [0, settled) come before this and all later ops

  // normalise; events from here on: fused ones, then forks, then END_OF_TASK_GRAPH
  uint32_t empty_count;
  uint32_t graph_event_count;  // all of them
  uint32_t *dependent;         // [task_count + empty_count] event, or MGL_NO_EVENT
  uint32_t *trigger;           // [task_count + empty_count] event
  uint32_t *trigger_count;     // [graph_event_count]

  // linearise
  uint32_t *order;        // [task_count + empty_count] task number at each linear position
  uint32_t ready_count;   // positions [0, ready_count) wait for nothing
  uint32_t *event_order;  // [graph_event_count] event at each final index; the last one is END
  uint32_t *event_first;  // [graph_event_count + 1] by final index: positions of its tasks

  // label
  unsigned char *op_jit;  // [op_count]

  // place
  uint16_t *worker;  // [task_count] by task number; MGL_NO_WORKER for JIT

  // lay out
  uint64_t *offsets;  // [tensor_count]
  uint64_t activation_bytes;
} mgl_tgraph;

// The passes, in order. Each file's head states what its pass requires and ensures.
mgl_status mgl_pass_partition(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_depend(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_fuse_events(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_prune(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_widen(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_normalise(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_linearise(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_label(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_place(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_lay_out(mgl_tgraph *tg, mgl_error *err);
mgl_status mgl_pass_emit(mgl_tgraph *tg, mgl_task_graph **out, mgl_error *err);

// Checks the contract of the pass of that name, which has just run (check.c).
mgl_status mgl_check_pass(mgl_tgraph *tg, const char *pass, mgl_error *err);
// Prints what the pass of that name made (dump.c): at most some hundred lines.
void mgl_dump_pass(const mgl_tgraph *tg, const char *pass, mgl_text *out);

// --- shared by compile and verify ----------------------------------------------------------------

// The tensors whose storage a chain of in-place ops passes on, and who touches it.
typedef struct mgl_storage {
  uint32_t root;        // the first tensor of the chain, MGL_NO_TENSOR: not an activation
  uint32_t first_op;    // writes the root; 0 where it was written before the program
  uint32_t last_op;     // of all that touch the chain, in program order
  const uint32_t *ops;  // [op_count] that touch the chain, ascending
  uint32_t op_count;
  bool is_output;  // a tensor of the chain is read after the iteration, or by other ranks, or was
                   // written before the program
  uint64_t bytes;
} mgl_storage;

// The largest dims of an iteration.
mgl_dim_values mgl_compile_dims(const mgl_compile_options *options);

// storages[tensor] for every tensor; only roots have ops and bytes. False: out of memory.
bool mgl_find_storages(const mgl_graph *program, const mgl_dim_values *dims, mgl_arena *arena,
                       mgl_storage **out);
// True if every task that touches `a` comes before every task of b's first op; before[op] holds the
// tasks that come before all tasks of an op.
bool mgl_storage_is_free(const mgl_storage *a, const mgl_storage *b, const uint32_t *op_first,
                         const mgl_task_set *before);
// before[op] for all ops, from the ancestors of every task.
bool mgl_find_common_ancestors(const mgl_task_set *ancestors, const uint32_t *op_first,
                               size_t op_count, mgl_arena *arena, mgl_span_list *scratch,
                               mgl_task_set **out);

// The workers' lists of AOT tasks, in linear order, by counting sort. aot_start[w + 1] holds the
// number of worker w's tasks when it begins.
void mgl_fill_aot_lists(mgl_task_graph *graph);
// settled[op]: tasks [0, settled) come before this and all later ops.
bool mgl_find_settled(const mgl_task_set *before, size_t op_count, mgl_arena *arena,
                      uint32_t **out);
// Checks what a finished program must fulfil besides, to be cut into tasks: at least one op,
// bounded activations, and no op that reads, in other tiles, what it overwrites.
mgl_status mgl_check_program(const mgl_graph *program, mgl_error *err);

mgl_status mgl_out_of_memory(mgl_error *err);

// The op whose tasks hold `task`.
uint32_t mgl_op_of_task(const uint32_t *op_first, size_t op_count, uint32_t task);

#endif
