// A memory plan is what a runner takes of a device's memory, known before any is taken, and how
// many KV pages a share of the memory leaves room for.
//
// The figures come from the same layouts that the runtime allocates by (cpu_program.h,
// cuda_layout.h), not from a formula beside them.
#ifndef MGL_ENGINE_MEMORY_PLAN_H
#define MGL_ENGINE_MEMORY_PLAN_H

#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "compile/compile.h"
#include "device/cpu/cpu_weights.h"
#include "device/cuda/cuda_program.h"
#include "graph/graph.h"

typedef struct mgl_memory_plan {
  uint64_t free_bytes;        // of the device, before the runner takes any
  uint64_t weight_bytes;      // that are allocated
  uint64_t mapped_bytes;      // that stay in their files and want to be in the page cache
  uint64_t activation_bytes;  // activations, and the workers' scratch
  uint64_t other_bytes;       // what else is as large as the model: descriptors, state of launches
  uint64_t loading_bytes;     // that are only taken while weights are loaded
  uint64_t kv_bytes_per_token;
  uint32_t page_tokens;
  uint32_t page_count;
  uint32_t workers;
  uint32_t sequences;  // that may run at once
} mgl_memory_plan;

uint64_t mgl_memory_plan_kv_bytes(const mgl_memory_plan *plan);
// All but what is taken for loading only. Mapped files count.
uint64_t mgl_memory_plan_total(const mgl_memory_plan *plan);

typedef struct mgl_memory_plan_options {
  mgl_plan_limits limits;
  uint32_t logit_rows;
  uint32_t page_count;
  // On the CPU:
  mgl_weight_source weights;
  uint32_t workers, schedulers;
  mgl_launch launch;
  const mgl_compile_override *overrides;
  uint32_t override_count;
} mgl_memory_plan_options;

// `program` is canonical. free_bytes is mgl_memory_available().
mgl_status mgl_memory_plan_cpu(const mgl_graph *program, const mgl_memory_plan_options *options,
                               mgl_memory_plan *out, mgl_error *err);
// Plans the memory of the program that mgl_cuda_program_create would make.
mgl_status mgl_memory_plan_gpu(const mgl_cuda_device *device,
                               const mgl_cuda_program_options *options, uint32_t page_tokens,
                               mgl_memory_plan *out, mgl_error *err);

// Lowers page_count until the total is at most `share` (above 0 to 1) of the free memory.
// MGL_ERR_MEMORY if not even one page is left, with what is needed and what there is.
mgl_status mgl_memory_plan_share(mgl_memory_plan *plan, double share, mgl_error *err);

#endif
