#include "graph/act_dtype.h"

// The inputs [*first, *first + *count) of an op that are matrices of linears.
static void find_matrices(const mgl_op *op, uint32_t *first, uint32_t *count) {
  *count = 1;
  switch (op->kind) {
    case MGL_OP_LINEAR: *first = 1; return;
    case MGL_OP_QKV_PROJ: *first = 2, *count = 3; return;
    case MGL_OP_LINEAR_ADD: *first = 2; return;
    case MGL_OP_GATE_UP: *first = 2, *count = 2; return;
    case MGL_OP_LOGITS: *first = 3; return;
    default: *first = 0, *count = 0; return;
  }
}

mgl_dtype mgl_graph_act_dtype(const mgl_graph *graph) {
  for (size_t i = 0; i < graph->op_count; i++) {
    uint32_t first = 0;
    uint32_t count = 0;
    find_matrices(&graph->ops[i], &first, &count);
    for (uint32_t j = first; j < first + count; j++) {
      if (!mgl_dtype_fits_bf16(graph->tensors[graph->ops[i].inputs[j]].dtype)) {
        return MGL_DTYPE_F32;
      }
    }
  }
  return MGL_DTYPE_BF16;
}
