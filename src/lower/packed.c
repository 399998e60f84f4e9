#include "lower/packed.h"

#include "twin/device_run.h"

mgl_packed_matrices mgl_packed_matrices_of(const mgl_graph *program, const mgl_op *op) {
  mgl_packed_matrices m = {0};
  switch (op->kind) {
    case MGL_OP_QKV_PROJ: m = (mgl_packed_matrices){.first = 2, .count = 3}; break;
    case MGL_OP_LINEAR_ADD: m = (mgl_packed_matrices){.first = 2, .count = 1}; break;
    case MGL_OP_GATE_UP: m = (mgl_packed_matrices){.first = 2, .count = 2}; break;
    case MGL_OP_LOGITS: m = (mgl_packed_matrices){.first = 3, .count = 1}; break;
    default: return m;
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
