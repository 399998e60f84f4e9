// The op constructors of graph.h: each declares its output, with the shape that op.def says, and
// appends the op; mgl_graph_op checks it.
#include <string.h>

#include "graph/graph.h"

// Declares the output and appends the op.
static uint32_t append(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t rank,
                       const mgl_dim *dims, mgl_op op) {
  op.output = mgl_graph_tensor(graph, name, MGL_PLACE_ACTIVATION, dtype, rank, dims);
  mgl_graph_op(graph, op);
  return op.output;
}

uint32_t mgl_graph_embed(mgl_graph *graph, const char *name, uint32_t tokens, uint32_t table) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_dim dims[] = {MGL_DIM_T, graph->tensors[table].dims[1]};
  return append(graph, name, MGL_DTYPE_F32, 2, dims,
                (mgl_op){.kind = MGL_OP_EMBED, .input_count = 2, .inputs = {tokens, table}});
}

uint32_t mgl_graph_rmsnorm(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                           uint32_t weight, uint32_t rows, double eps) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_RMSNORM, .input_count = 2, .inputs = {x, weight}};
  op.attrs[MGL_ATTR_EPS] = eps;
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, graph->tensors[x].dims, sizeof dims);
  if (rows != MGL_NO_TENSOR) {
    op.inputs[op.input_count++] = rows;
    dims[0] = MGL_DIM_L;
  }
  return append(graph, name, dtype, graph->tensors[x].rank, dims, op);
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
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, graph->tensors[x].dims, sizeof dims);
  return append(graph, name, MGL_DTYPE_F32, graph->tensors[x].rank, dims,
                (mgl_op){.kind = MGL_OP_ROPE, .input_count = 2, .inputs = {x, angles}});
}

void mgl_graph_kv_write(mgl_graph *graph, uint32_t k, uint32_t v, uint32_t slots, uint32_t kv) {
  mgl_graph_op(
      graph,
      (mgl_op){.kind = MGL_OP_KV_WRITE, .input_count = 3, .inputs = {k, v, slots}, .output = kv});
}

uint32_t mgl_graph_attention(mgl_graph *graph, const char *name, mgl_dtype dtype,
                             const mgl_attention_inputs *inputs) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_op op = {.kind = MGL_OP_ATTENTION,
               .input_count = 4,
               .inputs = {inputs->q, inputs->kv, inputs->positions, inputs->block_tables}};
  op.attrs[MGL_ATTR_SCALE] = inputs->scale;
  op.attrs[MGL_ATTR_WINDOW] = inputs->window;
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, graph->tensors[inputs->q].dims, sizeof dims);
  return append(graph, name, dtype, graph->tensors[inputs->q].rank, dims, op);
}

uint32_t mgl_graph_silu_mul(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t gate,
                            uint32_t up) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, graph->tensors[gate].dims, sizeof dims);
  return append(graph, name, dtype, graph->tensors[gate].rank, dims,
                (mgl_op){.kind = MGL_OP_SILU_MUL, .input_count = 2, .inputs = {gate, up}});
}

uint32_t mgl_graph_add(mgl_graph *graph, const char *name, uint32_t x, uint32_t y) {
  if (graph->error.status != MGL_OK) {
    return MGL_NO_TENSOR;
  }
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  memcpy(dims, graph->tensors[x].dims, sizeof dims);
  return append(graph, name, MGL_DTYPE_F32, graph->tensors[x].rank, dims,
                (mgl_op){.kind = MGL_OP_ADD, .input_count = 2, .inputs = {x, y}});
}
