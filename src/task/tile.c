// This file says what tiles touch, op by op: one function a family of ops lists the operands;
// regions and costs are read off that list, so that dependencies, placement and the JSON form
// cannot disagree. Rejected: maps from grid axes to tensor dims as MPK has them, which cannot say
// that a tile of attend reads three pieces of qkv.
#include "task/tile.h"

#include <assert.h>
#include <string.h>

// The list under construction.
typedef struct operand_list {
  const mgl_graph *graph;
  const mgl_op *op;
  mgl_dim_values dims;
  mgl_tile_operand *operands;
  uint32_t count;
} operand_list;

static uint32_t tensor_of(const operand_list *list, uint32_t input) {
  return input == MGL_TILE_OUTPUT ? list->op->output : list->op->inputs[input];
}

static uint32_t rows_of(const operand_list *list, uint32_t input) {
  const mgl_tensor *tensor = &list->graph->tensors[tensor_of(list, input)];
  return (uint32_t)mgl_dim_value(tensor->dims[0], &list->dims);
}

static uint32_t columns_of(const operand_list *list, uint32_t input) {
  const mgl_tensor *tensor = &list->graph->tensors[tensor_of(list, input)];
  return tensor->placement == MGL_PLACE_KV ? 1 : (uint32_t)mgl_tensor_row_elements(tensor);
}

// Adds a rectangle if it is not empty.
static void add(operand_list *list, uint32_t input, uint32_t row_begin, uint32_t row_end,
                uint32_t column_begin, uint32_t column_end) {
  if (row_begin < row_end && column_begin < column_end) {
    assert(list->count < MGL_TILE_MAX_OPERANDS);
    list->operands[list->count++] = (mgl_tile_operand){
        .region = {tensor_of(list, input), row_begin, row_end, column_begin, column_end},
        .input = input};
  }
}

static void add_whole(operand_list *list, uint32_t input) {
  add(list, input, 0, rows_of(list, input), 0, columns_of(list, input));
}

static void add_rows(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  add(list, input, begin, end, 0, columns_of(list, input));
}

static void add_columns(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  add(list, input, 0, rows_of(list, input), begin, end);
}

// Units [begin, end) of a matrix whose rows hold `per_row` units each: at most three rectangles.
static void add_units(operand_list *list, uint32_t input, uint32_t per_row, uint32_t begin,
                      uint32_t end) {
  uint32_t width = columns_of(list, input) / per_row;
  uint32_t first = begin / per_row;
  uint32_t last = end / per_row;
  uint32_t from = begin % per_row * width;
  uint32_t to = end % per_row * width;
  if (first == last) {
    add(list, input, first, first + 1, from, to);
    return;
  }
  if (from != 0) {
    add(list, input, first, first + 1, from, columns_of(list, input));
    first++;
  }
  add_rows(list, input, first, last);
  add(list, input, last, last + 1, 0, to);
}

// --- the ops -------------------------------------------------------------------------------------

static void list_rmsnorm(operand_list *list, uint32_t begin, uint32_t end) {
  const mgl_tensor *output = &list->graph->tensors[list->op->output];
  uint32_t per_row = columns_of(list, MGL_TILE_OUTPUT) / output->dims[output->rank - 1].number;
  if (list->op->input_count == 3) {
    add_whole(list, 0);  // which rows, the plan says
    add_whole(list, 1);
    add_rows(list, 2, begin, end);
  } else {
    add_units(list, 0, per_row, begin, end);
    add_whole(list, 1);
  }
  add_units(list, MGL_TILE_OUTPUT, per_row, begin, end);
}

// Rows [begin, end) of every input but the one that stays whole (an index of an input, or none).
static void list_rows(operand_list *list, uint32_t whole, uint32_t begin, uint32_t end) {
  for (uint32_t i = 0; i < list->op->input_count; i++) {
    if (i == whole) {
      add_whole(list, i);
    } else {
      add_rows(list, i, begin, end);
    }
  }
  if (list->graph->tensors[list->op->output].placement == MGL_PLACE_KV) {
    add_whole(list, MGL_TILE_OUTPUT);
  } else {
    add_rows(list, MGL_TILE_OUTPUT, begin, end);
  }
}

static void list_linear(operand_list *list, uint32_t begin, uint32_t end) {
  add_whole(list, 0);
  add_rows(list, 1, begin, end);
  if (list->op->input_count == 3) {
    add_rows(list, 2, begin, end);
  }
  add_columns(list, MGL_TILE_OUTPUT, begin, end);
}

// Columns [begin, end) of Q, K and V one after the other: those of each of the three weights.
static void list_qkv_proj(operand_list *list, uint32_t begin, uint32_t end) {
  add_whole(list, 0);
  add_whole(list, 1);
  for (uint32_t i = 2; i < list->op->input_count; i++) {
    uint32_t first = 0;
    for (uint32_t before = 2; before < 2 + (i - 2) % 3; before++) {
      first += rows_of(list, before);
    }
    uint32_t last = first + rows_of(list, i);
    uint32_t from = begin > first ? begin : first;
    uint32_t to = end < last ? end : last;
    if (from < to) {
      add_rows(list, i, from - first, to - first);
    }
  }
  add_columns(list, MGL_TILE_OUTPUT, begin, end);
}

static void list_attention(operand_list *list, uint32_t strides, uint32_t begin, uint32_t end) {
  const mgl_tensor *output = &list->graph->tensors[list->op->output];
  uint32_t head_dim = output->dims[2].number;
  uint32_t kv_heads = rows_of(list, 1);
  uint32_t group = output->dims[1].number / kv_heads * head_dim;  // columns of Q of one KV head
  uint32_t first = begin / strides;
  uint32_t last = (end + strides - 1) / strides;
  add_columns(list, 0, first * group, last * group);
  if (list->op->kind == MGL_OP_ATTEND) {
    uint32_t k = kv_heads * group;
    uint32_t v = k + kv_heads * head_dim;
    add_columns(list, 0, k + first * head_dim, k + last * head_dim);
    add_columns(list, 0, v + first * head_dim, v + last * head_dim);
  }
  add_rows(list, 1, first, last);
  for (uint32_t i = 2; i < list->op->input_count; i++) {
    add_whole(list, i);
  }
  add_columns(list, MGL_TILE_OUTPUT, first * group, last * group);
}

uint32_t mgl_tile_operands(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                           uint32_t strides, uint32_t begin, uint32_t end,
                           mgl_tile_operand out[MGL_TILE_MAX_OPERANDS]) {
  operand_list list = {graph, op, {tokens, tokens, tokens}, out, 0};
  switch (op->kind) {
    case MGL_OP_EMBED: list_rows(&list, 1, begin, end); break;
    case MGL_OP_RMSNORM: list_rmsnorm(&list, begin, end); break;
    case MGL_OP_LINEAR: list_linear(&list, begin, end); break;
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_ROPE:
    case MGL_OP_KV_WRITE: list_rows(&list, UINT32_MAX, begin, end); break;
    case MGL_OP_ATTENTION:
    case MGL_OP_ATTEND: list_attention(&list, strides, begin, end); break;
    case MGL_OP_SILU_MUL:
    case MGL_OP_ADD:
      add_columns(&list, 0, begin, end);
      add_columns(&list, 1, begin, end);
      add_columns(&list, MGL_TILE_OUTPUT, begin, end);
      break;
    case MGL_OP_QKV_PROJ: list_qkv_proj(&list, begin, end); break;
    case MGL_OP_LINEAR_ADD:
      add_columns(&list, 0, begin, end);
      add_whole(&list, 1);
      add_rows(&list, 2, begin, end);
      add_columns(&list, MGL_TILE_OUTPUT, begin, end);
      break;
    case MGL_OP_GATE_UP:
    case MGL_OP_LOGITS:
      add_whole(&list, 0);
      add_whole(&list, 1);
      if (op->kind == MGL_OP_LOGITS) {
        add_whole(&list, 2);
      } else {
        add_rows(&list, 2, begin, end);
      }
      add_rows(&list, 3, begin, end);
      add_columns(&list, MGL_TILE_OUTPUT, begin, end);
      break;
    case MGL_OP_NEXT_PLAN:
      add_whole(&list, 0);
      add_whole(&list, MGL_TILE_OUTPUT);
      break;
    case MGL_OP_SAMPLE: list_rows(&list, 1, begin, end); break;
    case MGL_OP_COUNT: assert(0 && "unknown op"); break;
  }
  return list.count;
}

// --- units ---------------------------------------------------------------------------------------

bool mgl_tile_is_attention(const mgl_op *op) {
  return op->kind == MGL_OP_ATTENTION || op->kind == MGL_OP_ATTEND;
}

uint32_t mgl_tile_kv_heads(const mgl_graph *graph, const mgl_op *op) {
  return graph->tensors[op->inputs[1]].dims[0].number;
}

uint32_t mgl_tile_units(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                        uint32_t strides) {
  const mgl_dim_values dims = {tokens, tokens, tokens};
  const mgl_tensor *output = &graph->tensors[op->output];
  switch (op->kind) {
    case MGL_OP_EMBED:
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_ROPE:
    case MGL_OP_SAMPLE: return (uint32_t)mgl_dim_value(output->dims[0], &dims);
    case MGL_OP_NEXT_PLAN: return 1;
    case MGL_OP_KV_WRITE:
      return (uint32_t)mgl_dim_value(graph->tensors[op->inputs[0]].dims[0], &dims);
    case MGL_OP_RMSNORM:
      return (uint32_t)(mgl_tensor_elements(output, &dims) / output->dims[output->rank - 1].number);
    case MGL_OP_ATTENTION:
    case MGL_OP_ATTEND: return mgl_tile_kv_heads(graph, op) * strides;
    case MGL_OP_LINEAR:
    case MGL_OP_SILU_MUL:
    case MGL_OP_ADD:
    case MGL_OP_QKV_PROJ:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_GATE_UP:
    case MGL_OP_LOGITS: return (uint32_t)mgl_tensor_row_elements(output);
    case MGL_OP_COUNT: break;
  }
  assert(0 && "unknown op");
  return 0;
}

uint32_t mgl_tile_grain(const mgl_op *op, mgl_target target) {
  switch (op->kind) {
    case MGL_OP_LINEAR:
    case MGL_OP_SILU_MUL:
    case MGL_OP_ADD:
    case MGL_OP_QKV_PROJ:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_LOGITS: return 16;
    case MGL_OP_GATE_UP: return target == MGL_TARGET_CUDA ? 8 : 16;
    case MGL_OP_EMBED:
    case MGL_OP_RMSNORM:
    case MGL_OP_ROPE_ANGLES:
    case MGL_OP_ROPE:
    case MGL_OP_KV_WRITE:
    case MGL_OP_ATTENTION:
    case MGL_OP_ATTEND:
    case MGL_OP_NEXT_PLAN:
    case MGL_OP_SAMPLE: return 1;
    case MGL_OP_COUNT: break;
  }
  assert(0 && "unknown op");
  return 1;
}

// --- regions and costs ---------------------------------------------------------------------------

void mgl_tile_regions(const mgl_graph *graph, const mgl_op *op, uint32_t tokens, uint32_t strides,
                      uint32_t begin, uint32_t end, mgl_tile_access *out) {
  mgl_tile_operand operands[MGL_TILE_MAX_OPERANDS];
  uint32_t count = mgl_tile_operands(graph, op, tokens, strides, begin, end, operands);
  out->read_count = 0;
  out->write_count = 0;
  for (uint32_t i = 0; i < count; i++) {
    const mgl_tile_operand *operand = &operands[i];
    mgl_placement placement = graph->tensors[operand->region.tensor].placement;
    if (placement != MGL_PLACE_ACTIVATION && placement != MGL_PLACE_KV) {
      continue;
    }
    bool is_output = operand->input == MGL_TILE_OUTPUT;
    bool taken_over = operand->input == 0 && mgl_op_info_of(op->kind)->in_place;
    bool updates_kv = operand->input == 1 && op->kind == MGL_OP_ATTEND;
    if (!is_output) {
      assert(out->read_count < MGL_TILE_MAX_REGIONS);
      out->reads[out->read_count++] = operand->region;
    }
    if (is_output || taken_over || updates_kv) {
      assert(out->write_count < MGL_TILE_MAX_REGIONS);
      out->writes[out->write_count++] = operand->region;
    }
  }
}

static uint64_t region_bytes(const mgl_graph *graph, const mgl_region *region) {
  const mgl_tensor *tensor = &graph->tensors[region->tensor];
  uint64_t rows = region->row_end - region->row_begin;
  if (tensor->group != 0) {  // of codes: whole rows
    return rows * mgl_tensor_row_bytes(tensor);
  }
  return rows * (region->column_end - region->column_begin) * mgl_dtype_bytes(tensor->dtype);
}

uint64_t mgl_tile_weight_bytes(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                               uint32_t strides, uint32_t begin, uint32_t end) {
  mgl_tile_operand operands[MGL_TILE_MAX_OPERANDS];
  uint32_t count = mgl_tile_operands(graph, op, tokens, strides, begin, end, operands);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) {
    mgl_region region = operands[i].region;
    if (graph->tensors[region.tensor].placement != MGL_PLACE_WEIGHT) {
      continue;
    }
    if (op->kind == MGL_OP_EMBED) {
      region.row_end = end - begin;  // a row of the table a token
      region.row_begin = 0;
    }
    bytes += region_bytes(graph, &region);
  }
  return bytes;
}

uint64_t mgl_tile_cost(const mgl_graph *graph, const mgl_op *op, uint32_t tokens, uint32_t strides,
                       uint32_t begin, uint32_t end) {
  mgl_tile_operand operands[MGL_TILE_MAX_OPERANDS];
  uint32_t count = mgl_tile_operands(graph, op, tokens, strides, begin, end, operands);
  uint64_t bytes = mgl_tile_weight_bytes(graph, op, tokens, strides, begin, end);
  for (uint32_t i = 0; i < count; i++) {
    if (graph->tensors[operands[i].region.tensor].placement == MGL_PLACE_ACTIVATION) {
      bytes += region_bytes(graph, &operands[i].region);
    }
  }
  if (mgl_tile_is_attention(op)) {
    const mgl_tensor *kv = &graph->tensors[op->inputs[1]];
    uint64_t sequence =
        (uint64_t)MGL_TILE_MODEL_CONTEXT * 2 * kv->dims[1].number * mgl_dtype_bytes(kv->dtype);
    uint64_t unit = strides <= tokens ? (tokens + strides - 1) / strides * sequence
                                      : sequence * tokens / strides;  // chunks of a sequence
    bytes += (end - begin) * unit;
  }
  if (op->kind == MGL_OP_NEXT_PLAN) {
    bytes += MGL_TILE_NEXT_PLAN_BYTES;
  }
  return bytes;
}
