// The activation dtype of a program: that of what feeds its linears.
#ifndef MGL_GRAPH_ACT_DTYPE_H
#define MGL_GRAPH_ACT_DTYPE_H

#include "graph/graph.h"

// "act" of op.def where an op does not show it: bf16 when the matrices of all linear ops, fused
// ones included, are bf16 or codes, else f32. qkv_proj, gate_up and logits keep the norm of x in
// it. The programs of the model families have this dtype in all their norms (family.h); fuse_ops
// leaves a norm of another dtype alone, so that the rule says what a fused op must do.
mgl_dtype mgl_graph_act_dtype(const mgl_graph *graph);

#endif
