// A constructor for each op: it declares the op's result, whose shape follows from the inputs', and
// appends the op, which mgl_graph_op checks.
#include <string.h>

#include "graph/graph.h"

// Declares the output and appends the op.
static uint32_t append(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t rank,
                       const mgl_dim *dims, mgl_op op) {
  op.output = mgl_graph_tensor(graph, name, MGL_PLACE_ACTIVATION, dtype, rank, dims);
  mgl_graph_op(graph, op);
  return op.output;
}

// The same, with the shape of tensor `like`. Nothing, of a graph that has failed.
static uint32_t append_like(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t like,
                            mgl_op op) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_dim dims[MGL_GRAPH_MAX_RANK];  // appending a tensor may move the others
  memcpy(dims, graph->tensors[like].dims, sizeof dims);
  return append(graph, name, dtype, graph->tensors[like].rank, dims, op);
}

uint32_t mgl_graph_embed(mgl_graph *graph, const char *name, uint32_t tokens, uint32_t table) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_dim dims[] = {MGL_DIM_T, graph->tensors[table].dims[1]};
  return append(graph, name, MGL_DTYPE_F32, 2, dims,
                (mgl_op){.kind = MGL_OP_EMBED, .input_count = 2, .inputs = {tokens, table}});
}

// A norm with its weights in place.
static uint32_t norm(mgl_graph *graph, const char *name, mgl_dtype dtype, mgl_op op, uint32_t rows,
                     double eps) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  uint32_t x = op.inputs[0];
  op.attrs[MGL_ATTR_EPS] = eps;
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, graph->tensors[x].dims, sizeof dims);
  if (rows != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = rows;
    dims[0] = MGL_DIM_L;
  }
  return append(graph, name, dtype, graph->tensors[x].rank, dims, op);
}

uint32_t mgl_graph_rmsnorm(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                           uint32_t weight, uint32_t rows, double eps) {
  const mgl_op op = {.kind = MGL_OP_RMSNORM, .input_count = 2, .inputs = {x, weight}};
  return norm(graph, name, dtype, op, rows, eps);
}

uint32_t mgl_graph_layernorm(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                             mgl_norm_weights weights, uint32_t rows, double eps) {
  const mgl_op op = {
      .kind = MGL_OP_LAYERNORM, .input_count = 3, .inputs = {x, weights.weight, weights.shift}};
  return norm(graph, name, dtype, op, rows, eps);
}

uint32_t mgl_graph_linear(mgl_graph *graph, const char *name, uint32_t x, uint32_t weight,
                          uint32_t bias, uint32_t heads) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_LINEAR, .input_count = 2, .inputs = {x, weight}};
  if (bias != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = bias;
  }
  mgl_dim features = graph->tensors[weight].dims[0];
  mgl_dim dims[] = {graph->tensors[x].dims[0], features, MGL_DIM(0)};
  if (heads != 0) {
    dims[1] = MGL_DIM(heads);
    dims[2] = MGL_DIM(features.number / heads);
  }
  return append(graph, name, MGL_DTYPE_F32, heads != 0 ? 3 : 2, dims, op);
}

uint32_t mgl_graph_rope_angles(mgl_graph *graph, const char *name, uint32_t positions,
                               uint32_t lengths, const mgl_rope_frequencies *rope) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_ROPE_ANGLES,
               .input_count = 1,
               .inputs = {positions},
               .value_count = rope->value_count,
               .values = rope->values};
  if (lengths != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = lengths;
  }
  op.attrs[MGL_ATTR_AMPLITUDE] = rope->amplitude == 1 ? 0 : rope->amplitude;
  op.attrs[MGL_ATTR_ORIGINAL] = rope->original;
  op.attrs[MGL_ATTR_THETA] = rope->theta;
  op.attrs[MGL_ATTR_FACTOR] = rope->factor;
  mgl_dim dims[] = {MGL_DIM_T, MGL_DIM(rope->half), MGL_DIM(2)};
  return append(graph, name, MGL_DTYPE_F32, 3, dims, op);
}

uint32_t mgl_graph_rope(mgl_graph *graph, const char *name, uint32_t x, uint32_t angles) {
  return append_like(graph, name, MGL_DTYPE_F32, x,
                     (mgl_op){.kind = MGL_OP_ROPE, .input_count = 2, .inputs = {x, angles}});
}

void mgl_graph_kv_write(mgl_graph *graph, uint32_t k, uint32_t v, uint32_t slots, uint32_t kv) {
  mgl_graph_op(
      graph,
      (mgl_op){.kind = MGL_OP_KV_WRITE, .input_count = 3, .inputs = {k, v, slots}, .output = kv});
}

uint32_t mgl_graph_attention(mgl_graph *graph, const char *name, mgl_dtype dtype,
                             const mgl_attention_inputs *inputs) {
  mgl_op op = {.kind = MGL_OP_ATTENTION,
               .input_count = 4,
               .inputs = {inputs->q, inputs->kv, inputs->positions, inputs->block_tables}};
  if (inputs->sinks != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = inputs->sinks;
  }
  op.attrs[MGL_ATTR_SCALE] = inputs->scale;
  op.attrs[MGL_ATTR_WINDOW] = inputs->window;
  return append_like(graph, name, dtype, inputs->q, op);
}

uint32_t mgl_graph_silu_mul(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t gate,
                            uint32_t up) {
  return append_like(graph, name, dtype, gate,
                     (mgl_op){.kind = MGL_OP_SILU_MUL, .input_count = 2, .inputs = {gate, up}});
}

uint32_t mgl_graph_gelu(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x) {
  return append_like(graph, name, dtype, x,
                     (mgl_op){.kind = MGL_OP_GELU, .input_count = 1, .inputs = {x}});
}

uint32_t mgl_graph_add(mgl_graph *graph, const char *name, uint32_t x, uint32_t y) {
  return append_like(graph, name, MGL_DTYPE_F32, x,
                     (mgl_op){.kind = MGL_OP_ADD, .input_count = 2, .inputs = {x, y}});
}

uint32_t mgl_graph_route(mgl_graph *graph, const char *name, uint32_t logits, uint32_t bias,
                         const mgl_route_options *options) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_ROUTE, .input_count = 1, .inputs = {logits}};
  if (bias != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = bias;
  }
  op.attrs[MGL_ATTR_SCALE] = options->scale;
  op.attrs[MGL_ATTR_SCORES] = options->scores;
  op.attrs[MGL_ATTR_RENORMALISE] = options->renormalise ? 1 : 0;
  op.attrs[MGL_ATTR_GROUPS] = options->groups;
  op.attrs[MGL_ATTR_TOP_GROUPS] = options->top_groups;
  mgl_dim dims[] = {MGL_DIM_T, MGL_DIM(options->slots), MGL_DIM(2)};
  return append(graph, name, MGL_DTYPE_F32, 3, dims, op);
}

uint32_t mgl_graph_expert_gate_up(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                                  uint32_t routes, const mgl_expert_weights *weights,
                                  double limit) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_EXPERT_GATE_UP,
               .input_count = 4,
               .inputs = {x, routes, weights->gate, weights->up}};
  if (weights->gate_bias != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = weights->gate_bias;
    op.inputs[op.input_count++] = weights->up_bias;
  }
  op.attrs[MGL_ATTR_LIMIT] = limit;
  mgl_dim dims[] = {MGL_DIM_T_TIMES(graph->tensors[routes].dims[1].number),
                    graph->tensors[weights->gate].dims[1]};
  return append(graph, name, dtype, 2, dims, op);
}

uint32_t mgl_graph_expert_down(mgl_graph *graph, const char *name, uint32_t residual, uint32_t x,
                               uint32_t routes, const mgl_expert_weights *weights) {
  mgl_op op = {
      .kind = MGL_OP_EXPERT_DOWN, .input_count = 4, .inputs = {residual, x, routes, weights->down}};
  if (weights->down_bias != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = weights->down_bias;
  }
  return append_like(graph, name, MGL_DTYPE_F32, residual, op);
}

uint32_t mgl_graph_all_reduce(mgl_graph *graph, const char *name, uint32_t residual, uint32_t part,
                              uint32_t ranks) {
  mgl_op op = {.kind = MGL_OP_ALL_REDUCE, .input_count = 2, .inputs = {residual, part}};
  op.attrs[MGL_ATTR_RANKS] = ranks;
  return append_like(graph, name, MGL_DTYPE_F32, residual, op);
}

uint32_t mgl_graph_reduce_scatter(mgl_graph *graph, const char *name, uint32_t part,
                                  uint32_t ranks) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_REDUCE_SCATTER, .input_count = 1, .inputs = {part}};
  op.attrs[MGL_ATTR_RANKS] = ranks;
  const mgl_dim *of = graph->tensors[part].dims;
  mgl_dim dims[] = {of[0], MGL_DIM(of[1].number / ranks)};
  return append(graph, name, MGL_DTYPE_F32, 2, dims, op);
}

uint32_t mgl_graph_zeros(mgl_graph *graph, const char *name, uint32_t x) {
  return append_like(graph, name, MGL_DTYPE_F32, x,
                     (mgl_op){.kind = MGL_OP_ZEROS, .input_count = 1, .inputs = {x}});
}

uint32_t mgl_graph_all_gather(mgl_graph *graph, const char *name, uint32_t part, uint32_t ranks) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_ALL_GATHER, .input_count = 1, .inputs = {part}};
  op.attrs[MGL_ATTR_RANKS] = ranks;
  const mgl_dim *of = graph->tensors[part].dims;
  mgl_dim dims[] = {of[0], MGL_DIM(of[1].number * ranks)};
  return append(graph, name, MGL_DTYPE_F32, 2, dims, op);
}
