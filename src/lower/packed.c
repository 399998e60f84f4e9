#include "lower/packed.h"

#include "twin/device_run.h"

mgl_packed_matrices mgl_packed_matrices_of(const mgl_graph *program, const mgl_op *op) {
  mgl_op_range inputs = mgl_op_inputs(op, MGL_ROLE_MATRIX);
  mgl_packed_matrices m = {.first = inputs.first, .count = inputs.count};
  if (m.count == 0) {
    return (mgl_packed_matrices){0};
  }
  uint32_t halves = 0;
  m.k = program->tensors[op->inputs[m.first]].dims[1].number;
  m.k_padded = (m.k + MGL_CUDA_K_ALIGN - 1) / MGL_CUDA_K_ALIGN * MGL_CUDA_K_ALIGN;
  for (uint32_t i = 0; i < m.count; i++) {
    uint32_t rows = program->tensors[op->inputs[m.first + i]].dims[0].number;
    halves += (rows + MGL_CUDA_HALF_ROWS - 1) / MGL_CUDA_HALF_ROWS;
  }
  m.row_blocks = (halves + 1) / 2;
  return m;
}

uint64_t mgl_packed_row_block_bytes(const mgl_packed_matrices *matrices) {
  return (uint64_t)matrices->k_padded * MGL_CUDA_BLOCK_ROWS * 2;
}

uint64_t mgl_packed_program_bytes(const mgl_graph *program) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
    bytes += m.row_blocks * mgl_packed_row_block_bytes(&m);
  }
  return bytes;
}
