// From task graphs to what the megakernel reads: bound ops, and each worker's steps. Pure:
// addresses in, bytes out.
#ifndef MGL_DEVICE_CUDA_CUDA_STEPS_H
#define MGL_DEVICE_CUDA_CUDA_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_layout.h"
#include "graph/graph.h"
#include "twin/custom_call.h"
#include "twin/device_run.h"
#include "twin/task.h"

// A program in device memory.
typedef struct mgl_cuda_addresses {
  const mgl_graph *program;  // fused for the GPU
  const mgl_cuda_layout *layout;
  const mgl_cu_ptr *base;  // [MGL_CUDA_MEMORY_COUNT]
  uint32_t logit_rows;     // most rows with logits
} mgl_cuda_addresses;

// The address as the device's structs hold it.
static inline void *mgl_cuda_pointer(mgl_cu_ptr address) {
  return (void *)(uintptr_t)address;
}

// Of a weight vector, NULL for MGL_CUDA_NOWHERE.
static inline const float *mgl_cuda_vector_at(const mgl_cu_ptr *base, uint64_t offset) {
  return offset == MGL_CUDA_NOWHERE ? NULL
                                    : mgl_cuda_pointer(base[MGL_CUDA_MEMORY_VECTORS] + offset);
}

// What the tasks of a custom op get in a graph (mgl_cuda_op.weights of that one points to it).
mgl_custom_launch mgl_cuda_bind_custom(const mgl_cuda_addresses *a, uint32_t graph, uint32_t tokens,
                                       uint32_t op_idx);

// Units of a task of attend op `op` of a graph, at most.
uint32_t mgl_cuda_most_units(const mgl_task_graph *graph, uint32_t op);

// True if MGL_CUDA_UNITS_APART holds for attend op `op` of a graph.
bool mgl_cuda_units_are_apart(const mgl_task_graph *graph, uint32_t op);

// Returns where an activation of a graph lies, and the first copy of one that has copies.
mgl_cu_ptr mgl_cuda_activation(const mgl_cuda_addresses *a, uint32_t graph, uint32_t tensor);

// What is known of op `op` without addresses, in a graph for up to `tokens` tokens.
mgl_cuda_op mgl_cuda_size_op(const mgl_graph *program, uint32_t tokens, uint32_t logit_rows,
                             uint32_t op);

// Binds op `op` for graph `graph`, which is for up to `tokens` tokens.
mgl_cuda_op mgl_cuda_bind_op(const mgl_cuda_addresses *a, uint32_t graph, uint32_t tokens,
                             uint32_t op);

// What mgl_cuda_make_steps makes, in memory of the caller.
typedef struct mgl_cuda_lists {
  mgl_cuda_step *steps;  // [aot_start[workers] + JIT tasks] every worker's list, then JIT tasks
  uint32_t *step_start;  // [workers + 1]
  uint32_t *jit_tasks;   // [JIT tasks] in linear order
  uint32_t *jit_below;   // [aot_start[workers]] how many of them come before a step
  uint64_t *hash;        // of the schedule (lower/schedule.h)
} mgl_cuda_lists;

// The lists of a task graph's schedule (lower/words.c), by words if carrying.
mgl_status mgl_cuda_make_steps(const mgl_graph *program, const mgl_task_graph *graph, bool carrying,
                               const mgl_cuda_lists *out, mgl_error *err);

#endif
