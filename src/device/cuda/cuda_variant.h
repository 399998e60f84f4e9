// The host's side of twin/variant.def: mode full's kernels and their choice, and names for people.
#ifndef MGL_DEVICE_CUDA_CUDA_VARIANT_H
#define MGL_DEVICE_CUDA_CUDA_VARIANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"
#include "twin/variant.h"

// What chooses a kernel of mode full besides the op.
typedef struct mgl_full_case {
  uint32_t pages;     // of a linear: that the block with the most of them goes through in a pass
  bool long_context;  // attention of one token has one
  bool calm;          // all sequences decode, and the host knows of the next plan
} mgl_full_case;

typedef struct mgl_full_info {
  const char *name;  // of the function
  uint32_t threads;  // of a block
  mgl_scratch scratch;
} mgl_full_info;

const mgl_full_info *mgl_full_info_of(mgl_full_kernel kernel);
// MGL_FULL_KERNELS: it has none of its own.
mgl_full_kernel mgl_full_kernel_of(const mgl_cuda_op *op, mgl_full_case of);

enum { MGL_TASK_FUNCTION_NAME_BYTES = 40 };

// "linear_rows_1", "i4 one_normed": an mgl_task_function.
void mgl_task_function_name(uint32_t function, char out[MGL_TASK_FUNCTION_NAME_BYTES]);

// Why it is that one (variant.def); static.
const char *mgl_task_function_why(const mgl_cuda_op *op, uint32_t capability);
const char *mgl_full_kernel_why(mgl_full_kernel kernel);

// The bodies of op `op` of a program that is fused for the GPU, in iterations of up to `tokens`
// tokens and at most MGL_CUDA_MAX_TOKENS.
typedef struct mgl_bodies {
  char mega[MGL_TASK_FUNCTION_NAME_BYTES];  // AOT tasks
  const char *full;                         // NULL: it has no kernel of its own
  const char *mega_why, *full_why;
} mgl_bodies;

// capability: 10 times the GPU's. Of attention, mode full's body for decoding in short contexts.
mgl_bodies mgl_bodies_of(const mgl_graph *program, uint32_t tokens, uint32_t logit_rows,
                         uint32_t workers, uint32_t capability, uint32_t op);

#endif
