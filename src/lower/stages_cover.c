// What stages have kernels for, and what is asked of a program's ops to tell that.
#include "lower/packed.h"
#include "lower/stages.h"
#include "twin/wide_layout.h"
#include "twin/wide_run.h"

mgl_stages_mixture mgl_stages_mixture_of(const mgl_graph *program, const mgl_op *op) {
  mgl_stages_mixture m = {0};
  if (op->kind != MGL_OP_EXPERTS_UP && op->kind != MGL_OP_EXPERTS_DOWN) {
    return m;
  }
  const bool up = op->kind == MGL_OP_EXPERTS_UP;
  const mgl_packed_matrices matrices = mgl_packed_matrices_of(program, op);
  const mgl_tensor *slots = &program->tensors[up ? op->output : op->inputs[1]];
  const mgl_tensor *first = &program->tensors[op->inputs[matrices.first]];
  m.up = up;
  m.around = up ? MGL_OP_ROUTE : MGL_OP_ADD;
  m.experts = matrices.experts;
  m.row_blocks = matrices.row_blocks / matrices.experts;
  m.features = up ? first->dims[1].number : matrices.k;
  m.slots = (uint32_t)mgl_tensor_row_elements(slots) / m.features;
  return m;
}

const mgl_op *mgl_stages_router_of(const mgl_graph *program, const mgl_op *op) {
  const uint32_t logits = mgl_op_input(op, MGL_ROLE_ROUTER);
  for (size_t i = 0; logits != MGL_NO_TENSOR && i < program->op_count; i++) {
    if (program->ops[i].output == logits) {
      return &program->ops[i];
    }
  }
  return NULL;
}

uint32_t mgl_stages_expert_tile(const mgl_graph *program, uint32_t tokens) {
  // Rows that an expert has, above which a second tile of 64 or 128 is needed too often.
  enum { FEW_ROWS = 48, MIDDLE_ROWS = 100 };
  for (size_t i = 0; i < program->op_count; i++) {
    const mgl_stages_mixture m = mgl_stages_mixture_of(program, &program->ops[i]);
    if (m.experts != 0) {
      const uint32_t rows = tokens * m.slots, middle = 2 * MGL_WIDE_LEAST_TILE;
      const uint32_t tile = rows <= m.experts * FEW_ROWS ? (uint32_t)MGL_WIDE_LEAST_TILE
                            : rows <= m.experts * MIDDLE_ROWS
                                ? middle
                                : (uint32_t)MGL_WIDE_MOST_EXPERTS_TILE;
      return tile <= tokens ? tile : middle <= tokens ? middle : (uint32_t)MGL_WIDE_LEAST_TILE;
    }
  }
  return 0;
}

bool mgl_stages_has_experts(const mgl_graph *program) {
  bool any = false;
  for (size_t i = 0; i < program->op_count; i++) {
    any = any || mgl_stages_mixture_of(program, &program->ops[i]).experts != 0;
  }
  return any;
}

// Experts of bf16 without biases and limits, whose rows are whole columns of x.
static bool has_experts_kernel(const mgl_graph *program, const mgl_op *op) {
  const mgl_packed_matrices matrices = mgl_packed_matrices_of(program, op);
  if (matrices.experts == 0) {
    return op->kind != MGL_OP_ROUTER || mgl_op_input(op, MGL_ROLE_BIAS) == MGL_NO_TENSOR;
  }
  const mgl_stages_mixture m = mgl_stages_mixture_of(program, op);
  const mgl_op *router = mgl_stages_router_of(program, op);
  return router != NULL &&
         (!m.up || (op->inputs[0] == router->inputs[0] && op->inputs[1] == router->inputs[1])) &&
         mgl_op_input(op, MGL_ROLE_EXPERT_BIAS) == MGL_NO_TENSOR &&
         op->attrs[MGL_ATTR_LIMIT] == 0 && matrices.packing == MGL_PACKING_BF16 &&
         m.experts <= MGL_WIDE_MOST_EXPERTS && m.slots <= MGL_WIDE_MOST_SLOTS &&
         m.features % MGL_WIDE_K == 0 &&
         mgl_tensor_row_elements(&program->tensors[op->output]) % MGL_WIDE_K == 0;
}

// Of the ops that mgl_fuse_ops_cuda makes, an all_reduce that is not part of a linear_add has none,
// nor has attention with a window or sinks, or a linear_add with a bias.
static bool has_kernel(const mgl_graph *program, const mgl_op *op) {
  bool mixture = !has_experts_kernel(program, op);
  bool cut = op->attrs[MGL_ATTR_WINDOW] != 0 || mgl_op_input(op, MGL_ROLE_SINKS) != MGL_NO_TENSOR;
  bool biased = mgl_op_input(op, MGL_ROLE_RESIDUAL) != MGL_NO_TENSOR &&
                mgl_op_input(op, MGL_ROLE_BIAS) != MGL_NO_TENSOR;
  return !mixture && !cut && !biased && op->kind != MGL_OP_ALL_REDUCE;
}

uint32_t mgl_stages_lacking(const mgl_graph *program) {
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (!has_kernel(program, &program->ops[i])) {
      return i;
    }
  }
  return MGL_NO_OP;
}

bool mgl_stages_cover(const mgl_graph *program) {
  return mgl_stages_lacking(program) == MGL_NO_OP;
}
