// A linear's matrices as a GPU has them: packed in row blocks (twin/packing.h). What a row block
// is, mgl_cuda_op.weights of twin/device_run.h says.
#ifndef MGL_LOWER_PACKED_H
#define MGL_LOWER_PACKED_H

#include <stdint.h>

#include "graph/graph.h"
#include "twin/packing.h"

// The matrices of a linear op are its inputs [first, first + count); count 0: the op is no linear.
typedef struct mgl_packed_matrices {
  uint32_t first, count;
  uint32_t k, k_padded;
  uint32_t row_blocks;  // of all of them
  uint32_t experts;  // that have matrices of their own, one expert behind the other; 0: no mixture
  mgl_packing packing;
  uint32_t group;  // of codes: elements of a panel's row that share a scale
} mgl_packed_matrices;

mgl_packed_matrices mgl_packed_matrices_of(const mgl_graph *program, const mgl_op *op);
// Packing and group as the device has them in an op's flags.
uint32_t mgl_packed_flags(const mgl_packed_matrices *matrices);
// Bytes of a packed row block.
uint64_t mgl_packed_row_block_bytes(const mgl_packed_matrices *matrices);
// The same matrices as bf16.
mgl_packed_matrices mgl_packed_widened(const mgl_packed_matrices *matrices);
// Bytes of all of a program's matrices.
uint64_t mgl_packed_program_bytes(const mgl_graph *program);

// Says whether the matrices of a program can be packed: those of one op have one form, and groups
// are powers of two from MGL_PANEL_LEAST_GROUP on, or whole rows, with offsets only of i4.
// MGL_ERR_UNSUPPORTED names the weight.
mgl_status mgl_packed_check(const mgl_graph *program, mgl_error *err);
// Which packings a program has: bit 1 << mgl_packing.
uint32_t mgl_packed_kinds(const mgl_graph *program);
// Whether it has any but bf16.
bool mgl_packed_has_codes(const mgl_graph *program);
// Whether some matrix of codes has a scale for each `group` elements.
bool mgl_packed_has_group(const mgl_graph *program, uint32_t group);
// Bytes that an smem page needs for any of them.
uint32_t mgl_packed_page_bytes(const mgl_graph *program);

#endif
