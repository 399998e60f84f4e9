// A schedule of stages under construction (stages.c): its steps, with their op and stage, what they
// wait for, and what they trigger.
#ifndef MGL_LOWER_STAGES_BUILDER_H
#define MGL_LOWER_STAGES_BUILDER_H

#include <string.h>

#include "lower/lower_parts.h"
#include "lower/stages.h"
#include "twin/wide_run.h"

// Whose tiles of tokens a step of a turned op computes.
typedef enum row_owner { ROWS_OF_OTHERS, ROWS_OF_OWN, ROW_OWNERS } row_owner;

// A schedule under construction; in the first of two passes it is only counted.
typedef struct builder {
  const mgl_graph *program;
  const mgl_stages_options *options;
  mgl_schedule *out;  // its arrays are NULL while counting
  uint32_t op_count, step_count, stage_count, event_count;
  uint32_t stage_steps;  // of this stage so far; of turned tiles, of stages before it too
  uint32_t event;        // that this stage's end is; MGL_NO_EVENT: it has none yet
  // What steps wait for, of each chain of token tiles, of the other ranks' and this one's.
  uint32_t ready[MGL_STAGES_CHAINS][ROW_OWNERS];
  uint32_t splits;  // of the linear whose parts the next norm adds; 1: there are none
  bool weighed;     // that linear does the norm too
  bool turned;      // its parts go to the ranks whose rows they are
  bool rotated;     // qkv_proj does the rotation too
  uint32_t border;  // mgl_stages_border
  uint32_t behind;  // of the layer before, what the second chain has come to; or MGL_NO_EVENT
  uint32_t beside;  // so many tiles, qkv_proj's last, own rows are rotated; 0: they are not
  uint32_t region_read[MGL_WIDENED_COUNT];  // the end of the last stage that read it
  uint32_t shared_tiles;                    // so far
  uint64_t part_bytes;                      // most bytes of the sums of a linear's steps
  uint64_t inbox_bytes;                     // and of those of all ranks
} builder;

static inline void set_ready(builder *b, uint32_t event) {
  for (uint32_t chain = 0; chain < MGL_STAGES_CHAINS; chain++) {
    b->ready[chain][ROWS_OF_OTHERS] = b->ready[chain][ROWS_OF_OWN] = event;
  }
}

// The next op's steps wait for all of this stage, if it ends with one event. If not, they wait for
// their chains only: then those workers go on who have had a tile less.
static inline void end_stage(builder *b) {
  if (b->event != MGL_NO_EVENT) {
    set_ready(b, b->event);
    b->stage_steps = 0;
  }
  b->event = MGL_NO_EVENT;
  b->stage_count++;
}

// The event of this stage's end.
static inline uint32_t end_event(builder *b) {
  b->event = b->event == MGL_NO_EVENT ? b->event_count++ : b->event;
  return b->event;
}

static inline void count_trigger(builder *b, uint32_t event) {
  if (b->out->events != NULL && event != MGL_NO_EVENT) {
    b->out->events[event].trigger_count++;
  }
}

// A step of op number `idx`, which is or will be `op`.
static inline void put_step(builder *b, uint32_t idx, const mgl_schedule_op *op, uint32_t worker,
                            uint32_t begin, uint32_t end, uint32_t wait, uint32_t trigger) {
  if (b->out->steps != NULL) {
    const uint32_t others = mgl_stages_others(op, trigger);
    b->out->steps[b->step_count] =
        (mgl_schedule_step){.op = idx,
                            .begin = begin,
                            .end = end,
                            .worker = worker,
                            .wait = wait == MGL_NO_EVENT ? MGL_WAIT_NOTHING : MGL_WAIT_STAGE,
                            .event = wait,
                            .trigger = trigger};
    count_trigger(b, trigger);
    count_trigger(b, others == trigger ? MGL_NO_EVENT : others);
  }
  b->step_count++;
}

// A step of the op that add_op adds next, of all rows.
static inline void add_step(builder *b, const mgl_schedule_op *op, uint32_t worker, uint32_t begin,
                            uint32_t end) {
  put_step(b, b->op_count, op, worker, begin, end, b->ready[0][ROWS_OF_OWN], end_event(b));
  b->stage_steps++;
}

static inline void add_op(builder *b, const mgl_schedule_op *op) {
  if (b->out->ops != NULL) {
    b->out->ops[b->op_count] = *op;
    b->out->ops[b->op_count].stage = b->stage_count;
  }
  b->op_count++;
}

// Steps of an op in this stage: `count` with equal shares of its units, in turn to the workers.
static inline void add_steps(builder *b, const mgl_schedule_op *op, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    add_step(b, op, b->stage_steps % b->options->workers,
             (uint32_t)((uint64_t)op->units * i / count),
             (uint32_t)((uint64_t)op->units * (i + 1) / count));
  }
  add_op(b, op);
}

static inline void add_spread(builder *b, const mgl_schedule_op *op) {
  add_steps(b, op, op->units < b->options->workers ? op->units : b->options->workers);
}

static inline mgl_schedule_op simple(const builder *b, mgl_op_kind kind, const mgl_op *op,
                                     uint32_t units) {
  return (mgl_schedule_op){.kind = (uint32_t)kind,
                           .op = (uint32_t)(op - b->program->ops),
                           .with = MGL_NO_OP,
                           .rows = b->options->tokens,
                           .units = units,
                           .splits = 1,
                           .first_shared = MGL_NOT_SHARED};
}

#endif
