// The verifier's own data: what verify_ops.c and verify.c hand to each other.
#ifndef MGL_LOWER_VERIFY_PARTS_H
#define MGL_LOWER_VERIFY_PARTS_H

#include "compile/task_set.h"
#include "lower/access.h"
#include "lower/schedule.h"

// A step, by its op and then its units: steps are numbered in this order.
typedef struct mgl_numbered_step {
  uint32_t op, begin, end;
  uint32_t step;
  uint32_t first_access, access_count;
} mgl_numbered_step;

typedef struct mgl_verifier {
  const mgl_graph *program;
  const mgl_schedule *s;
  mgl_arena arena;
  mgl_span_list scratch;
  mgl_numbered_step *steps;  // [count] by number, those that compute
  uint32_t *number;          // [step_count] of each step; MGL_NO_OP: it computes nothing
  uint32_t *op_first;        // [op_count + 1] numbers of an op's steps
  uint32_t count;
  mgl_access *accesses;     // of all steps, one after the other
  mgl_task_set *before;     // [event_count] numbers that have happened when an event is activated
  mgl_task_set *ancestors;  // [count] that have happened when a step begins
  uint32_t *triggers;       // [event_count] seen so far
  mgl_span_list *gathered;  // [event_count] what its triggers bring, until it is activated
} mgl_verifier;

mgl_status mgl_schedule_wrong(mgl_error *err, const char *what, uint64_t where, uint64_t found);
mgl_status mgl_verifier_out_of_memory(const mgl_verifier *v, mgl_error *err);

// The ops are the program's; steps get their numbers; lists hold the steps; steps cut the ops'
// units and share tiles as kernels ask (verify_ops.c).
mgl_status mgl_verify_ops(mgl_verifier *v, mgl_error *err);

#endif
