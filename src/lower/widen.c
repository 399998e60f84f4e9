// Which weights of codes become bf16 in large iterations, and where these lie (stages.c makes the
// steps).
#include "lower/packed.h"
#include "lower/stages.h"
#include "twin/wide_run.h"

bool mgl_stages_widen(const mgl_graph *program, const mgl_op *op, uint32_t tile_tokens) {
  const mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
  return m.count > 0 && m.packing != MGL_PACKING_BF16 && tile_tokens > MGL_WIDE_MOST_CODED_TILE;
}

mgl_widened mgl_stages_widened(const mgl_graph *program, const mgl_op *op) {
  if (mgl_op_input(op, MGL_ROLE_RESIDUAL) != MGL_NO_TENSOR) {
    // Its x comes from attend or from gate_up.
    return program->tensors[op->inputs[1]].rank == 3 ? MGL_WIDENED_O : MGL_WIDENED_DOWN;
  }
  return mgl_packed_matrices_of(program, op).count == 3 ? MGL_WIDENED_QKV : MGL_WIDENED_GATE_UP;
}

uint32_t mgl_stages_panels(const mgl_graph *program, const mgl_op *op) {
  const mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
  return m.row_blocks * mgl_panels_of(m.k);
}

uint64_t mgl_stages_widened_at(const mgl_graph *program, mgl_widened region, uint32_t tile_tokens) {
  uint64_t bytes[MGL_WIDENED_COUNT] = {0};
  uint64_t at = 0;
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_op *op = &program->ops[i];
    if (mgl_stages_widen(program, op, tile_tokens)) {
      const mgl_packed_matrices m = mgl_packed_matrices_of(program, op);
      const mgl_packed_matrices widened = mgl_packed_widened(&m);
      const uint64_t of_op = m.row_blocks * mgl_packed_row_block_bytes(&widened);
      uint64_t *most = &bytes[mgl_stages_widened(program, op)];
      *most = of_op > *most ? of_op : *most;
    }
  }
  for (uint32_t i = 0; i < (uint32_t)region; i++) {
    at += bytes[i];
  }
  return at;
}

bool mgl_stages_widen_program(const mgl_graph *program, uint32_t tokens) {
  bool logits = false;  // of codes, which are more than all others of a layer
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_packed_matrices m = mgl_packed_matrices_of(program, &program->ops[i]);
    logits = logits || (mgl_op_input(&program->ops[i], MGL_ROLE_ROWS) != MGL_NO_TENSOR &&
                        m.packing != MGL_PACKING_BF16);
  }
  return tokens >= MGL_WIDE_WIDEN_TOKENS && !logits && !mgl_stages_has_ranks(program) &&
         !mgl_stages_has_experts(program);  // whose tiles have fewer tokens
}
