// Tasks on the CPU: one tile of any op, canonical or fused, under the present plan.
//
// A tile computes the same bits as mode eager computes for the canonical ops behind it: fused ops
// run the kernels of those ops one after the other, on a part small enough that what lies between
// them stays in the worker's scratch.
//
// A worker's scratch has two parts. The *stage* holds the normed rows of qkv_proj, gate_up or
// logits, under a key: all tiles that a worker runs of one op, and of other ops that norm the same
// x, make them once an iteration. The *work* part is free between tasks.
#ifndef MGL_RUNTIME_CPU_TASKS_H
#define MGL_RUNTIME_CPU_TASKS_H

#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"
#include "runtime/cpu_program.h"

// Runs tile units [begin, end) (task/tile.h) of op `op` as worker `worker`. Rows that the plan does
// not bring are left out; strides of attention ops are those of program->strides. Any worker may
// call it, at the same time as others for other tiles; everything that the tile reads must be
// complete.
void mgl_cpu_task_run(const mgl_cpu_program *program, uint32_t worker, uint32_t op, uint32_t begin,
                      uint32_t end);

// The weights that such a tile reads, in the order in which it reads them: those from byte `from`
// on, as far as they lie in one piece. Returns their bytes, and where they are; 0: there are no
// more. Reads nothing that a plan changes, so it may be called at any time.
size_t mgl_cpu_task_weights(const mgl_cpu_program *program, uint32_t op, uint32_t begin,
                            uint32_t end, size_t from, const void **out);

typedef struct mgl_cpu_scratch_sizes {
  size_t stage_bytes;  // both multiples of 64
  size_t total_bytes;
} mgl_cpu_scratch_sizes;

// What a worker needs for the largest op of a program, for plans up to these dims.
mgl_cpu_scratch_sizes mgl_cpu_scratch_needed(const mgl_graph *graph, const mgl_dim_values *largest);

// The work part of a worker's scratch, 64-byte aligned.
void *mgl_cpu_work_scratch(const mgl_cpu_program *program, uint32_t worker);

#endif
