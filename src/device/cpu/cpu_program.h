// A tensor program bound to memory on the CPU: where every tensor lies, and how to run a share of
// an op.
//
// The binding is the same for every mode; a mode only decides which worker runs which units when.
// Weights, KV cache, activations and scratch are those of an mgl_cpu_memory, which several programs
// share; a program adds where its activations lie in their block: in a layout of its own for ops
// one after the other (storage is reused once its last reader is past), or in that of a task graph.
// A program is bound for the largest dims that it can serve and runs every plan within them.
//
// Not thread-safe, but for mgl_cpu_op_run here and mgl_cpu_task_run in cpu_tasks.h, which any
// worker may call for disjoint units of an op.
#ifndef MGL_DEVICE_CPU_CPU_PROGRAM_H
#define MGL_DEVICE_CPU_CPU_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "device/cpu/cpu_forward.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_scratch.h"
#include "graph/graph.h"
#include "kernels/cpu/cpu_kernels.h"
#include "twin/task.h"

typedef struct mgl_cpu_program_options {
  mgl_simd simd;
  mgl_dim_values largest;            // of a plan; ignored with a task graph, which has its own
  const mgl_task_graph *task_graph;  // whose activation offsets and attention strides to use;
                                     // borrowed while creating. NULL: own layout, one stride
  const uint32_t *step;  // [op_count] of a program in pieces: each op's (cpu_layout.h); borrowed
                         // while creating. NULL: ops run one after the other
  bool only_wanted;      // leave out rows that no logits are wanted of (cpu_wanted.h)
  bool check_regions;    // of experts (cpu_regions.h), also where the build does not
} mgl_cpu_program_options;

typedef struct mgl_cpu_regions mgl_cpu_regions;

typedef struct mgl_cpu_program {
  const mgl_graph *graph;
  mgl_cpu_memory *memory;  // shared with other programs
  const mgl_cpu_kernels *kernels;
  mgl_linear_way way;  // of the memory's options, or the usual one of the kernels
  mgl_dim_values largest;
  uint32_t strides;         // tasks per KV head in attention ops; in pieces, of the present one
  uint32_t logits;          // the tensor "logits", MGL_NO_TENSOR if there is none
  mgl_dtype act;            // graph/act_dtype.h
  mgl_forward forward;      // of the present iteration; none runs: poisoned
  mgl_dim_values dims;      // of that one, or of the latest
  uint64_t iteration;       // its number among the iterations of all programs of this memory
  const void **data;        // [tensor_count] weights; inputs, set by each plan
  const void **shorts;      // [tensor_count] short rows of weights; NULL: none, or not to be read
  uint64_t *offsets;        // [tensor_count] of activations in the block
  size_t activation_bytes;  // of the block
  mgl_kv_layer *kv;         // [tensor_count], set for KV tensors
  unsigned char *barrier;   // [op_count] 1: the op needs results or storage of ops since the last
                            // barrier; with a task graph NULL
  unsigned char *only_wanted;      // [op_count] cpu_wanted.h; NULL: all compute all rows
  mgl_cpu_scratch_layout scratch;  // of a worker
  mgl_word *pieces;          // [op_count] of ops that share experts by turns: which piece is next
  mgl_cpu_regions *regions;  // NULL: not checked
} mgl_cpu_program;

// Binds, and reserves what the program needs of the shared memory. The graph and the memory must
// outlive *out. Refuses with MGL_ERR_UNSUPPORTED what was made for the GPU: programs with next_plan
// or sample, and task graphs of another target than the CPU.
mgl_status mgl_cpu_program_create(const mgl_graph *graph, mgl_cpu_memory *memory,
                                  const mgl_cpu_program_options *options, mgl_cpu_program **out,
                                  mgl_error *err);
typedef struct mgl_cpu_program_sizes {
  size_t activation_bytes;
  size_t scratch_bytes;  // of a worker, a multiple of MGL_CPU_SCRATCH_ALIGNMENT
} mgl_cpu_program_sizes;

// Measures what a program that is created with these options reserves.
mgl_status mgl_cpu_program_measure(const mgl_graph *graph, const mgl_cpu_program_options *options,
                                   mgl_cpu_program_sizes *out, mgl_error *err);
void mgl_cpu_program_destroy(mgl_cpu_program *program);  // NULL is fine

// Sets the plan of the next iteration and counts that iteration; call it before each one. The plan
// must stay unchanged until the iteration is over.
void mgl_cpu_program_set_plan(mgl_cpu_program *program, const mgl_plan *plan);
// Ends that iteration: no op may run until the next plan is set. Results stay readable.
void mgl_cpu_program_end_plan(mgl_cpu_program *program);

// The plan of the present iteration, which there must be (asserted).
static inline const mgl_plan *mgl_cpu_plan(const mgl_cpu_program *program) {
  return mgl_forward_plan(&program->forward);
}

// Units of work of a canonical op under the present plan, and how many consecutive ones should stay
// together. (Fused ops run as tasks only, in the tile units of task/tile.h.)
size_t mgl_cpu_op_units(const mgl_cpu_program *program, size_t op_idx);
size_t mgl_cpu_op_grain(const mgl_cpu_program *program, size_t op_idx);
// Runs units [begin, end) as worker `worker` (whose scratch it uses).
void mgl_cpu_op_run(const mgl_cpu_program *program, size_t op_idx, uint32_t worker, size_t begin,
                    size_t end);

// Memory of an input, weight or activation, NULL for a KV tensor. Activations are valid until
// another op reuses their storage, outputs until the next iteration of any program.
void *mgl_cpu_program_tensor(const mgl_cpu_program *program, uint32_t tensor);

// Where that rank has its part of what this rank has at `tensor`.
const float *mgl_cpu_program_part(const mgl_cpu_program *program, uint32_t tensor, uint32_t rank);

// Memory of the op's first input of that role; NULL if it has none.
void *mgl_cpu_program_input(const mgl_cpu_program *program, const mgl_op *op, mgl_role role);

// Elements of a tensor under the present plan, or the latest.
uint64_t mgl_cpu_program_elements(const mgl_cpu_program *program, uint32_t tensor);

#endif
