// What an iteration is asked for, what it gives, and what it computed, for statistics.
#ifndef MGL_ENGINE_ITERATION_H
#define MGL_ENGINE_ITERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "batch/plan.h"

// An iteration gives mgl_logits, which are valid until the next one runs.
typedef struct mgl_logits {
  const float *rows;     // [plan->logit_row_count, V]
  const uint32_t *best;  // [plan->logit_row_count] index of each row's largest logit, the smallest
                         // of equal ones; a NaN counts as the largest, so that one look at that
                         // logit tells whether the row is sound
} mgl_logits;

// The plan of the next iteration, NULL to stop. logits: of the iteration before; NULL at first.
// Called on any thread of the team, one at a time, after everything of the iteration before.
typedef const mgl_plan *mgl_next_plan_callback(void *context, const mgl_logits *logits);

typedef struct mgl_iteration {
  uint32_t prompt_tokens;
  uint32_t decode_tokens;
  uint64_t kv_tokens;  // context that the sequences that decoded read, each its own
  uint64_t ns;         // planning, running and committing
} mgl_iteration;

// Called after an iteration, once its tokens were reported; false ends the run.
typedef bool mgl_iteration_callback(void *context, const mgl_iteration *iteration);

#endif
