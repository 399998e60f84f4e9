#include "device/cpu/cpu_scratch.h"

#include "graph/act_dtype.h"
#include "kernels/cpu/cpu_kernels.h"

// Elements of gate, and of up, that lie in scratch at a time: 64 KiB, so that they stay in the L2
// cache until silu_mul reads them. With 64 tokens that is 128 columns, enough rows of weights for a
// kernel call to be free; with one, mostly the whole tile: each call begins its stream of weights
// anew (docs/log/036).
enum { GATE_UP_ELEMENTS = 8192, GATE_UP_LEAST_COLUMNS = 128 };

enum { KEY_BYTES = 64 };

static size_t align64(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

static size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

static uint32_t block_of(uint64_t rows) {
  return rows < MGL_CPU_BLOCK_TOKENS ? (uint32_t)rows : (uint32_t)MGL_CPU_BLOCK_TOKENS;
}

uint32_t mgl_cpu_gate_up_columns(uint32_t tokens) {
  uint32_t columns = GATE_UP_ELEMENTS / tokens / 16 * 16;
  return columns > GATE_UP_LEAST_COLUMNS ? columns : GATE_UP_LEAST_COLUMNS;
}

mgl_cpu_heads mgl_cpu_heads_of(const mgl_graph *graph, const mgl_op *op) {
  const mgl_tensor *kv = mgl_graph_input(graph, op, MGL_ROLE_KV);
  const mgl_tensor *out = &graph->tensors[op->output];
  return (mgl_cpu_heads){.head_count = out->dims[1].number,
                         .kv_head_count = kv->dims[0].number,
                         .head_dim = kv->dims[1].number,
                         .group = out->dims[1].number / kv->dims[0].number};
}

mgl_cpu_attend_layout mgl_cpu_lay_out_attend(const mgl_cpu_heads *h) {
  mgl_cpu_attend_layout layout = {0};
  size_t row = (size_t)MGL_ATTENTION_QUERY_TILE * h->head_dim * sizeof(float);
  layout.k = align64(row * h->group);
  layout.attention = layout.k + align64(row);
  layout.bytes = layout.attention +
                 align64(mgl_attention_scratch_bytes(h->head_count, h->kv_head_count, h->head_dim));
  return layout;
}

mgl_cpu_expert_layout mgl_cpu_lay_out_experts(const mgl_graph *graph, const mgl_op *op,
                                              uint32_t tokens) {
  const mgl_tensor *w = mgl_graph_input(graph, op, MGL_ROLE_EXPERTS);
  const mgl_tensor *x = mgl_graph_input(graph, op, MGL_ROLE_X);
  const size_t rows = block_of(tokens);
  mgl_cpu_expert_layout layout = {0};
  layout.rows = align64(((size_t)w->dims[0].number + 1) * sizeof(uint32_t));
  layout.gather =
      layout.rows + align64((size_t)tokens * mgl_op_slots(graph, op) * sizeof(uint32_t));
  layout.sums = layout.gather + align64(rows * w->dims[2].number * mgl_dtype_bytes(x->dtype));
  layout.bytes =
      layout.sums + 2 * sizeof(float) * larger(GATE_UP_LEAST_COLUMNS * rows, GATE_UP_ELEMENTS);
  return layout;
}

static size_t work_bytes(const mgl_graph *graph, const mgl_op *op, const mgl_dim_values *largest) {
  mgl_cpu_heads h;
  size_t elements;
  if (mgl_op_info_of(op->kind)->unit == MGL_UNIT_EXPERT) {
    return mgl_cpu_lay_out_experts(graph, op, largest->tokens).bytes;
  }
  switch (op->kind) {
    case MGL_OP_ATTENTION:
      h = mgl_cpu_heads_of(graph, op);
      return mgl_attention_scratch_bytes(h.head_count, h.kv_head_count, h.head_dim);
    case MGL_OP_ATTEND: h = mgl_cpu_heads_of(graph, op); return mgl_cpu_lay_out_attend(&h).bytes;
    case MGL_OP_GATE_UP:
      elements = (size_t)GATE_UP_LEAST_COLUMNS * block_of(largest->tokens);
      return 2 * sizeof(float) * larger(elements, GATE_UP_ELEMENTS);
    default: return 0;
  }
}

// Normed rows of a block, of the ops that norm.
static size_t stage_bytes(const mgl_graph *graph, const mgl_op *op, mgl_dtype act, uint32_t rows) {
  const mgl_tensor *norm = mgl_graph_input(graph, op, MGL_ROLE_NORM);
  return norm == NULL ? 0 : (size_t)rows * norm->dims[0].number * mgl_dtype_bytes(act);
}

// Whether an op has matrices of integer codes, for which x is packed as whole numbers.
static bool reads_integers(const mgl_graph *graph, const mgl_op *op) {
  for (uint32_t i = 0; i < op->input_count; i++) {
    if (mgl_code_is_integer(graph->tensors[op->inputs[i]].dtype)) {
      return true;
    }
  }
  return false;
}

// Rows of a linear that it computes at a time.
static uint32_t block_rows(const mgl_graph *graph, const mgl_op *op, uint32_t k,
                           const mgl_dim_values *largest) {
  const mgl_tensor *rows = mgl_graph_input(graph, op, MGL_ROLE_ROWS);
  uint64_t count = rows != NULL
                       ? mgl_dim_value(rows->dims[0], largest)
                       : mgl_tensor_elements(mgl_graph_input(graph, op, MGL_ROLE_X), largest) / k;
  return block_of(count);
}

mgl_cpu_scratch_layout mgl_cpu_scratch_lay_out(const mgl_graph *graph,
                                               const mgl_dim_values *largest) {
  mgl_dtype act = mgl_graph_act_dtype(graph);
  size_t stage = 0;
  size_t packed = 0;
  size_t work = 0;
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    const mgl_tensor *weight = mgl_graph_input(graph, op, MGL_ROLE_MATRIX);
    const mgl_tensor *experts = mgl_graph_input(graph, op, MGL_ROLE_EXPERTS);
    work = larger(work, work_bytes(graph, op, largest));
    if (weight == NULL && experts == NULL) {
      continue;
    }
    const mgl_dim *dims = weight != NULL ? weight->dims : experts->dims + 1;
    uint32_t rows = weight != NULL ? block_rows(graph, op, dims[1].number, largest)
                                   : block_of(largest->tokens);  // of an expert
    stage = larger(stage, stage_bytes(graph, op, act, rows));
    const mgl_linear_way soonest = {.pack_tokens = MGL_LINEAR_LEAST_PACKED};
    if (mgl_linear_packs(&soonest, rows, dims[0].number)) {  // in whatever way there will be
      packed = larger(packed, mgl_packed_bytes(rows, dims[1].number, act));
    }
    if (reads_integers(graph, op)) {
      packed = larger(packed, mgl_whole_bytes(rows, dims[1].number));
    }
  }
  mgl_cpu_scratch_layout layout = {.stage = KEY_BYTES};
  layout.packed = layout.stage + align64(stage);
  layout.work = layout.packed + align64(packed);
  layout.bytes = layout.work + align64(work);
  return layout;
}
