// A schedule says what the workers of a target do in an iteration of up to T tokens, in which
// order, and what each piece of work waits for. It is made from a program and, where there is one,
// its task graph; devices bind it to memory and run it, and add nothing to it. All that a target
// runs, in any mode, is a schedule, so one verifier proves them all (verify.c), and `megalith
// compile --dump lower` prints what will run.
//
// There are four lowerings (a file each):
//   tasks    the task graph as it is: a step waits until its event is activated
//   words    the same without waits for activations whose words say themselves that they are there
//   stages   large iterations: an op's steps are spread over all workers, and the next op waits for
//            all of them. Linears are cut in two dimensions and along k; ops that this cuts in two
//            (a norm, the rotation) are ops of the schedule
//   kernels  an op is a launch, which waits for the launch before it
//
// Plain data in one arena; no pointer to a device's memory is in it.
#ifndef MGL_LOWER_SCHEDULE_H
#define MGL_LOWER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"
#include "graph/graph.h"
#include "twin/task.h"

typedef enum mgl_lowering {
  MGL_LOWER_TASKS,
  MGL_LOWER_WORDS,
  MGL_LOWER_STAGES,
  MGL_LOWER_KERNELS,
  MGL_LOWER_COUNT,
} mgl_lowering;

const char *mgl_lowering_name(mgl_lowering lowering);  // "words"

// What a step waits for before it reads what other steps wrote.
typedef enum mgl_wait {
  MGL_WAIT_NOTHING,  // all that it reads was there before the iteration
  MGL_WAIT_EVENT,    // an event has been triggered as often as it counts
  MGL_WAIT_WORDS,    // the words that it reads are written
  MGL_WAIT_STAGE,    // an event that all steps of the stage before trigger
  MGL_WAIT_KERNEL,   // the launch before has ended
} mgl_wait;

// An op of the schedule computes an op of the program, or a part of it, or more than one.
typedef struct mgl_schedule_op {
  uint32_t kind;  // mgl_op_kind of what is computed: the op's own; or, in stages, RMSNORM, the norm
      // that the op begins with, KV_WRITE, the rotation before attend, ROUTE, the choice
      // of experts and the sorting of rows before experts_up, ADD, of the sums of slots
      // behind experts_down, and MGL_WIDE_WIDEN, which makes bf16 of the op's codes
  uint32_t op;     // of the program
  uint32_t with;   // MGL_NO_OP, or what it computes besides: in kernels another op; in stages, with
                   // MGL_WIDE_WEIGHS the norm of op `with`, with MGL_WIDE_ROTATES its rotation
  uint32_t flags;  // mgl_wide_op_flags (twin/wide_run.h)
  uint32_t stage;  // number of the stage or launch; ops of one stage wait for the same
  uint32_t rows;   // that it computes, of stages: a multiple of a tile's
  uint32_t
      units;  // its steps cut [0, units): in stages as twin/wide_run.h says, else as task/tile.h
  // Stages:
  uint32_t splits;        // of linears: the sums of so many steps make a tile of the result (of
                          // MGL_WIDE_OVER: with those of as many steps of each other rank); of
                          // norms: so many parts, which the linear before left, are added
  uint32_t tiles;         // of a linear's result, each of units / tiles units; 0: it has none
  uint32_t first_shared;  // number of the first tile's counter among those of tiles that several
                          // steps make; MGL_NOT_SHARED: every tile is one step's
} mgl_schedule_op;

#define MGL_NOT_SHARED UINT32_MAX

// Steps stand in an order that is topological: all that a step waits for stands before it.
typedef struct mgl_schedule_step {
  uint32_t op;  // of the schedule; MGL_NO_OP: it computes nothing, and whoever activates the
                // event that it waits for triggers in its place
  uint32_t begin, end;  // units [begin, end) of the op
  uint32_t worker;      // MGL_SCHEDULE_ANYONE: whoever takes it once it may run
  uint32_t wait;        // mgl_wait
  uint32_t event;       // that it waits for; MGL_NO_EVENT unless wait is EVENT, STAGE or KERNEL
  uint32_t trigger;     // event; MGL_NO_EVENT: nobody waits for it but by its words
} mgl_schedule_step;

#define MGL_SCHEDULE_ANYONE UINT32_MAX

typedef struct mgl_schedule {
  mgl_lowering lowering;
  mgl_target target;
  uint32_t tokens;      // most of an iteration
  uint32_t logit_rows;  // most rows with logits
  uint32_t worker_count;
  uint32_t strides;      // steps of a KV head in attention (task/tile.h); in stages 0
  uint32_t tile_tokens;  // of linears in stages, else 0
  uint32_t op_count, step_count, event_count;
  mgl_schedule_op *ops;
  mgl_schedule_step *steps;
  mgl_event *events;  // trigger counts; types and flags of a task graph's events
  uint32_t
      *list_start;      // [worker_count + 1]: worker w's steps, in the order in which it runs them,
  uint32_t *list;       // are list[list_start[w] ... list_start[w + 1])
  uint64_t part_bytes;  // stages: most bytes of the sums that a linear's steps leave for others
  uint64_t inbox_bytes;    // stages: most bytes of the sums of all ranks that a norm adds
  uint32_t shared_tiles;   // stages: counters of tiles that several steps make
  uint64_t widened_bytes;  // stages: of all weights that are made of codes
  mgl_arena arena;
} mgl_schedule;

void mgl_schedule_destroy(mgl_schedule *schedule);  // NULL is fine

// --- lowerings -----------------------------------------------------------------------------------

// A verified task graph, by its events, or, for MGL_LOWER_WORDS, by words (words.c says of which
// graphs).
mgl_status mgl_lower_graph(const mgl_graph *program, const mgl_task_graph *graph,
                           mgl_lowering lowering, mgl_schedule **out, mgl_error *err);

typedef struct mgl_stages_options {
  uint32_t tokens;       // of the graph, a multiple of 64
  uint32_t tile_tokens;  // of a linear's tile: 64, 128, 192 or 256
  uint32_t logit_rows;
  uint32_t workers;
} mgl_stages_options;

// `program` is fused for the GPU; MGL_ERR_UNSUPPORTED names an op that stages have no kernel for.
mgl_status mgl_lower_stages(const mgl_graph *program, const mgl_stages_options *options,
                            mgl_schedule **out, mgl_error *err);

typedef struct mgl_kernels_options {
  uint32_t tokens, logit_rows, workers;
  uint32_t strides;     // of attention, at most
  bool plan_at_logits;  // the next plan is made beside logits, else beside the first attention
} mgl_kernels_options;

// `program` is fused for the GPU, or has no next_plan: then every op is a launch of its own.
// Refuses with MGL_ERR_UNSUPPORTED a program with more than one next_plan, or one without one
// rope_angles, which share a launch with others.
mgl_status mgl_lower_kernels(const mgl_graph *program, const mgl_kernels_options *options,
                             mgl_schedule **out, mgl_error *err);

// --- looking at one ------------------------------------------------------------------------------

// Proves from nothing but the program that running the schedule computes it (verify.c).
mgl_status mgl_schedule_verify(const mgl_graph *program, const mgl_schedule *schedule,
                               mgl_error *err);

// A line for each op and each step, and the hash at the end.
void mgl_schedule_print(const mgl_graph *program, const mgl_schedule *schedule, mgl_text *out);
// Of ops, steps, events and lists: equal for equal schedules on every machine.
uint64_t mgl_schedule_hash(const mgl_schedule *schedule);

#endif
