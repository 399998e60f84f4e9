// A tensor program bound to memory on the CPU: where every tensor lies, and how to run a share of
// an op.
//
// The binding is the same for every mode; a mode only decides which worker runs which units when.
// Activations live in one block, with storage reused once its last reader is past; KV tensors in
// another. A program is bound for the limits of a plan and serves every plan within them. Not
// thread-safe, but for mgl_cpu_op_run, which any worker may call for disjoint units of an op.
#ifndef MGL_RUNTIME_CPU_PROGRAM_H
#define MGL_RUNTIME_CPU_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "graph/graph.h"
#include "kernels/cpu/cpu_kernels.h"
#include "runtime/cpu_weights.h"

typedef struct mgl_cpu_program_options {
  mgl_plan_limits limits;
  uint32_t logit_rows;  // at most this many rows with logits in an iteration, 1 to limits.tokens
  uint32_t page_count;  // KV pages of limits.page_tokens tokens
  uint32_t workers;     // each gets its own scratch
  mgl_simd simd;
} mgl_cpu_program_options;

// A range of the activation block, for finding which ops depend on each other.
typedef struct mgl_byte_range {
  size_t begin, end;
} mgl_byte_range;

typedef struct mgl_cpu_program {
  const mgl_graph *graph;
  const mgl_cpu_kernels *kernels;
  mgl_cpu_program_options options;
  const mgl_plan *plan;    // of the present iteration
  void **data;             // [tensor_count] weights and activations; inputs are set by each plan
  mgl_byte_range *ranges;  // [tensor_count] of activations in the block
  mgl_kv_layer *kv;        // [tensor_count], set for KV tensors
  float **inv_freq;        // [op_count], set for rope_angles ops
  unsigned char
      *barrier;  // [op_count] 1: the op needs results or storage of ops since the last barrier
  void *activations;
  size_t activation_bytes;
  void *kv_pages;
  size_t kv_bytes;
  unsigned char *scratch;  // [workers][scratch_bytes]
  size_t scratch_bytes;
} mgl_cpu_program;

// Binds. The graph and the weights must outlive *out.
mgl_status mgl_cpu_program_create(const mgl_graph *graph, const mgl_cpu_weights *weights,
                                  const mgl_cpu_program_options *options,
                                  const mgl_topology *topology, mgl_cpu_program **out,
                                  mgl_error *err);
void mgl_cpu_program_destroy(mgl_cpu_program *program);  // NULL is fine

// Sets the plan of the next iteration; it must stay unchanged until that iteration is over.
void mgl_cpu_program_set_plan(mgl_cpu_program *program, const mgl_plan *plan);

// Units of work of an op under the present plan, and how many consecutive ones should stay
// together.
size_t mgl_cpu_op_units(const mgl_cpu_program *program, size_t op_idx);
size_t mgl_cpu_op_grain(const mgl_cpu_program *program, size_t op_idx);
// Runs units [begin, end) as worker `worker` (whose scratch it uses).
void mgl_cpu_op_run(const mgl_cpu_program *program, size_t op_idx, uint32_t worker, size_t begin,
                    size_t end);

// Memory of a tensor by name, NULL if there is none. Outputs are valid until the next iteration.
void *mgl_cpu_program_find(const mgl_cpu_program *program, const char *name);

// KV bytes of one token over all layers.
uint64_t mgl_graph_kv_bytes_per_token(const mgl_graph *graph);

#endif
