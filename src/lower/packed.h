// A linear's matrices as a GPU has them: packed in row blocks (twin/packing.h). What a row block
// is, mgl_cuda_op.weights of twin/device_run.h says.
#ifndef MGL_LOWER_PACKED_H
#define MGL_LOWER_PACKED_H

#include <stdint.h>

#include "graph/graph.h"

// The matrices of a linear op are its inputs [first, first + count); count 0: the op is no linear.
typedef struct mgl_packed_matrices {
  uint32_t first, count;
  uint32_t k, k_padded;
  uint32_t row_blocks;  // of all of them
} mgl_packed_matrices;

mgl_packed_matrices mgl_packed_matrices_of(const mgl_graph *program, const mgl_op *op);
// Bytes of a packed row block.
uint64_t mgl_packed_row_block_bytes(const mgl_packed_matrices *matrices);
// Bytes of all of a program's matrices.
uint64_t mgl_packed_program_bytes(const mgl_graph *program);

#endif
