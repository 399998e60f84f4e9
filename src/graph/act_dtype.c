#include "graph/act_dtype.h"

mgl_dtype mgl_graph_act_dtype(const mgl_graph *graph) {
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    for (uint32_t j = 0; j < op->input_count; j++) {
      mgl_role role = mgl_op_role(op, j);
      if ((role == MGL_ROLE_MATRIX || role == MGL_ROLE_EXPERTS) &&
          !mgl_dtype_fits_bf16(graph->tensors[op->inputs[j]].dtype)) {
        return MGL_DTYPE_F32;
      }
    }
  }
  return MGL_DTYPE_BF16;
}
