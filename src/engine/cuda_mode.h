// Modes mega and full on a GPU: the model as a GPU program, and two ways to run it.
//
// A job is one launch for whole requests: the device plans and samples by itself, and the host only
// hands requests and tokens on. What a job cannot do (logits for scoring, a single iteration) runs
// plan by plan, a launch for each. The runner owns the mode.
#ifndef MGL_ENGINE_CUDA_MODE_H
#define MGL_ENGINE_CUDA_MODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "device/cpu/cpu_weights.h"
#include "device/cuda/cuda_program.h"
#include "engine/iteration.h"
#include "engine/mega_mode.h"
#include "engine/memory_plan.h"

// A runner on a GPU takes these options besides those of all. Zeros are the defaults, but for the
// device.
typedef struct mgl_cuda_options {
  const mgl_cuda_device *device;  // opened by the thread that creates the runner; outlives it
  mgl_cuda_launch_options launch;
  bool coarse;                       // one event between two ops (compile/compile.h)
  bool events_only;                  // no activation carries its readiness (twin/device_run.h)
  bool scheduler_warps;              // schedulers are warps of worker blocks
  mgl_cuda_code_function *get_code;  // NULL: mgl_cuda_code_get
} mgl_cuda_options;

typedef struct mgl_cuda_mode mgl_cuda_mode;

typedef struct mgl_cuda_mode_options {
  mgl_cuda_options cuda;
  const mgl_graph *program;          // canonical; borrowed while creating, as all pointers here
  const mgl_checkpoint *checkpoint;  // NULL: dummy weights
  uint64_t seed;
  mgl_plan_limits limits;  // with KV pages of MGL_CUDA_KV_PAGE_TOKENS tokens
  uint32_t sequences;      // that run at once
  uint32_t page_count;
  uint32_t logit_rows;
  uint32_t schedulers;  // dedicated; 0: whoever activates an event schedules its tasks
  mgl_launch launch;
  const mgl_compile_override *overrides;
  uint32_t override_count;
  uint32_t trace_spans;  // that each multiprocessor and role keeps; 0: no trace
  const mgl_weights_progress *progress;
} mgl_cuda_mode_options;

// Plans the memory that mgl_cuda_mode_create would take.
mgl_status mgl_cuda_mode_plan_memory(const mgl_cuda_mode_options *options, mgl_memory_plan *out,
                                     mgl_error *err);

mgl_status mgl_cuda_mode_create(const mgl_cuda_mode_options *options, mgl_cuda_mode **out,
                                mgl_error *err);
void mgl_cuda_mode_destroy(mgl_cuda_mode *mode);  // NULL is fine

// Runs iterations until `next` returns NULL, each in a launch of its own. full: of mode full.
mgl_status mgl_cuda_mode_run(mgl_cuda_mode *mode, bool full, mgl_next_plan_callback *next,
                             void *context, mgl_error *err);

// A launch for whole requests, under the mode's options; full: in mode full.
mgl_status mgl_cuda_mode_generate(mgl_cuda_mode *mode, bool full, const mgl_cuda_generate *job,
                                  mgl_error *err);

mgl_cuda_program *mgl_cuda_mode_program(mgl_cuda_mode *mode);

#endif
