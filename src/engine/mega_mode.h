// Mode mega on the CPU: the model's task graphs, one for each power-of-two token count, bound to
// memory, and the megakernel that runs them. Made at the first use of the mode; the runner owns it.
#ifndef MGL_ENGINE_MEGA_MODE_H
#define MGL_ENGINE_MEGA_MODE_H

#include "base/cpu.h"
#include "base/status.h"
#include "batch/plan.h"
#include "compile/compile.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/team.h"

typedef struct mgl_mega_mode mgl_mega_mode;

typedef struct mgl_mega_mode_options {
  uint32_t workers;
  uint32_t schedulers;  // dedicated scheduler threads of the team, behind the workers; 0: embedded
  uint32_t tokens;      // most tokens of an iteration
  uint32_t logit_rows;  // most rows with logits of an iteration, 1 to tokens
  mgl_simd simd;
  mgl_launch launch;
  const mgl_compile_override *overrides;  // borrowed while creating
  uint32_t override_count;
  uint32_t trace_tasks;  // tasks per worker that the trace keeps; 0: no trace
} mgl_mega_mode_options;

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

// The logits of the iteration that a program has just run.
mgl_logits mgl_logits_of(const mgl_cpu_program *program);

// Fuses, compiles and binds. `program` (canonical), memory and team must outlive *out.
mgl_status mgl_mega_mode_create(const mgl_graph *program, mgl_cpu_memory *memory, mgl_team *team,
                                const mgl_mega_mode_options *options, mgl_mega_mode **out,
                                mgl_error *err);
void mgl_mega_mode_destroy(mgl_mega_mode *mode);  // NULL is fine

// Runs iterations until `next` returns NULL, in one run of the megakernel.
mgl_status mgl_mega_mode_run(mgl_mega_mode *mode, mgl_next_plan_callback *next, void *context,
                             mgl_error *err);

// Chrome trace of the latest run.
mgl_status mgl_mega_mode_trace(const mgl_mega_mode *mode, mgl_text *out, mgl_error *err);

#endif
