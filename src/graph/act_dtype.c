#include "graph/act_dtype.h"

mgl_dtype mgl_graph_act_dtype(const mgl_graph *graph) {
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    mgl_op_range matrices = mgl_op_inputs(op, MGL_ROLE_MATRIX);
    for (uint32_t j = 0; j < matrices.count; j++) {
      if (!mgl_dtype_fits_bf16(graph->tensors[op->inputs[matrices.first + j]].dtype)) {
        return MGL_DTYPE_F32;
      }
    }
  }
  return MGL_DTYPE_BF16;
}
