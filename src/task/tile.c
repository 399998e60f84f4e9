// This file says what tiles touch, one function a unit: it lists the operands by their roles
// (graph/op.def); regions and costs are read off that list, so that dependencies, placement and the
// JSON form cannot disagree. Rejected: maps from grid axes to tensor dims as MPK has them, which
// cannot say that a tile of attend reads three pieces of qkv.
#include "task/tile.h"

#include <assert.h>
#include <string.h>

#include "graph/balance.h"

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

// --- the ops, by their unit and the roles of their inputs ----------------------------------------

static void add_of_rows(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  mgl_role role = mgl_op_role(list->op, input);
  if (role == MGL_ROLE_TABLE || role == MGL_ROLE_NEXT_PLAN || role == MGL_ROLE_EXPERT_BIAS) {
    add_whole(list, input);
  } else {
    add_rows(list, input, begin, end);
  }
}

static uint32_t vectors_per_row(const operand_list *list) {
  return columns_of(list, MGL_TILE_OUTPUT) / mgl_op_vector_elements(list->graph, list->op);
}

static void add_of_vectors(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  mgl_role role = mgl_op_role(list->op, input);
  bool is_weight = list->graph->tensors[tensor_of(list, input)].placement == MGL_PLACE_WEIGHT;
  if (role == MGL_ROLE_ROWS || (role == MGL_ROLE_Y && !is_weight)) {
    add_rows(list, input, begin, end);
  } else if (role == MGL_ROLE_X && mgl_op_input(list->op, MGL_ROLE_ROWS) == MGL_NO_TENSOR) {
    add_units(list, input, vectors_per_row(list), begin, end);
  } else {
    add_whole(list, input);  // of x: which rows, the plan says
  }
}

// Rows of a matrix, or elements of its bias, that columns [begin, end) of the result come from. If
// all matrices have as many rows as the result has columns, these are those of one after the other;
// else each has a row for every column.
static void add_features(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  mgl_op_range matrices = mgl_op_inputs(list->op, MGL_ROLE_MATRIX);
  uint32_t place = input - mgl_op_inputs(list->op, mgl_op_role(list->op, input)).first;
  uint32_t first = 0;
  uint32_t all = 0;
  for (uint32_t i = 0; i < matrices.count; i++) {
    first += i < place ? rows_of(list, matrices.first + i) : 0;
    all += rows_of(list, matrices.first + i);
  }
  first = all == columns_of(list, MGL_TILE_OUTPUT) ? first : 0;
  uint32_t last = first + rows_of(list, input);
  uint32_t from = begin > first ? begin : first;
  uint32_t to = end < last ? end : last;
  if (from < to) {
    add_rows(list, input, from - first, to - first);
  }
}

static void add_of_columns(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  switch (mgl_op_role(list->op, input)) {
    case MGL_ROLE_MATRIX:
    case MGL_ROLE_BIAS: add_features(list, input, begin, end); break;
    case MGL_ROLE_RESIDUAL: add_columns(list, input, begin, end); break;
    default: add_whole(list, input); break;
  }
}

// Of all experts: which of them are read, data say; and where data say which part of the result a
// tile computes, all of it is what it may write: the union of what it writes by any routes. Two
// tiles of one op write different parts (mgl_expert_share_of, checked by cpu_regions.h).
static void add_of_experts(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  const mgl_tensor *tensor = &list->graph->tensors[tensor_of(list, input)];
  uint32_t inner = tensor->rank == 3 ? tensor->dims[2].number : 1;
  if (mgl_op_shares_by_data(list->op)) {
    add_whole(list, input);
    return;
  }
  switch (input == MGL_TILE_OUTPUT ? MGL_ROLE_RESIDUAL : mgl_op_role(list->op, input)) {
    case MGL_ROLE_EXPERTS: add_columns(list, input, begin * inner, end * inner); break;
    case MGL_ROLE_RESIDUAL: add_columns(list, input, begin, end); break;
    default: add_whole(list, input); break;
  }
}

// KV heads [first, last) of attention.
static void add_of_heads(operand_list *list, uint32_t input, uint32_t first, uint32_t last) {
  const mgl_tensor *output = &list->graph->tensors[list->op->output];
  uint32_t head_dim = output->dims[2].number;
  uint32_t kv_heads = mgl_tile_kv_heads(list->graph, list->op);
  uint32_t group = output->dims[1].number / kv_heads * head_dim;  // columns of Q of one KV head
  uint32_t k = kv_heads * group;
  uint32_t v = k + kv_heads * head_dim;
  mgl_role role = input == MGL_TILE_OUTPUT ? MGL_ROLE_Q : mgl_op_role(list->op, input);
  if (role == MGL_ROLE_KV) {
    add_rows(list, input, first, last);
  } else if (role != MGL_ROLE_Q && role != MGL_ROLE_QKV) {
    add_whole(list, input);
  } else {
    add_columns(list, input, first * group, last * group);
    if (role == MGL_ROLE_QKV) {
      add_columns(list, input, k + first * head_dim, k + last * head_dim);
      add_columns(list, input, v + first * head_dim, v + last * head_dim);
    }
  }
}

// Of what all ranks have parts of, the same columns of each of them. Where a rank reads its share
// of the columns, that is all of them: which these are differs between ranks, which run the same
// tasks, and tiles that wait for some of the same tasks of other ranks would need events of both.
static void add_of_elements(operand_list *list, uint32_t input, uint32_t begin, uint32_t end) {
  uint32_t units = mgl_op_row_units(list->graph, list->op);
  if (input != MGL_TILE_OUTPUT && columns_of(list, input) > units) {
    add_whole(list, input);
    return;
  }
  for (uint32_t at = 0; at < columns_of(list, input); at += units) {
    add_columns(list, input, at + begin, at + end);
  }
}

static void add_output(operand_list *list, mgl_unit unit, uint32_t begin, uint32_t end) {
  bool is_kv = list->graph->tensors[list->op->output].placement == MGL_PLACE_KV;
  switch (is_kv ? MGL_UNIT_WHOLE : unit) {
    case MGL_UNIT_ROW: add_rows(list, MGL_TILE_OUTPUT, begin, end); break;
    case MGL_UNIT_VECTOR:
      add_units(list, MGL_TILE_OUTPUT, vectors_per_row(list), begin, end);
      break;
    case MGL_UNIT_COLUMN: add_columns(list, MGL_TILE_OUTPUT, begin, end); break;
    case MGL_UNIT_EXPERT: add_of_experts(list, MGL_TILE_OUTPUT, begin, end); break;
    case MGL_UNIT_ELEMENT: add_of_elements(list, MGL_TILE_OUTPUT, begin, end); break;
    case MGL_UNIT_HEAD: add_of_heads(list, MGL_TILE_OUTPUT, begin, end); break;
    default: add_whole(list, MGL_TILE_OUTPUT); break;
  }
}

uint32_t mgl_tile_operands(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                           uint32_t strides, uint32_t begin, uint32_t end,
                           mgl_tile_operand out[MGL_TILE_MAX_OPERANDS]) {
  operand_list list = {graph, op, {tokens, tokens, tokens}, out, 0};
  mgl_unit unit = mgl_op_info_of(op->kind)->unit;
  if (unit == MGL_UNIT_HEAD) {  // strides of a head read and write the same rectangles
    begin = begin / strides;
    end = (end + strides - 1) / strides;
  }
  for (uint32_t i = 0; i < op->input_count; i++) {
    switch (unit) {
      case MGL_UNIT_ROW: add_of_rows(&list, i, begin, end); break;
      case MGL_UNIT_VECTOR: add_of_vectors(&list, i, begin, end); break;
      case MGL_UNIT_COLUMN: add_of_columns(&list, i, begin, end); break;
      case MGL_UNIT_EXPERT: add_of_experts(&list, i, begin, end); break;
      case MGL_UNIT_ELEMENT: add_of_elements(&list, i, begin, end); break;
      case MGL_UNIT_HEAD: add_of_heads(&list, i, begin, end); break;
      case MGL_UNIT_WHOLE:
      case MGL_UNIT_COUNT: add_whole(&list, i); break;
    }
  }
  add_output(&list, unit, begin, end);
  return list.count;
}

// --- units ---------------------------------------------------------------------------------------

bool mgl_tile_is_attention(const mgl_op *op) {
  return mgl_op_info_of(op->kind)->unit == MGL_UNIT_HEAD;
}

uint32_t mgl_tile_kv_heads(const mgl_graph *graph, const mgl_op *op) {
  return mgl_graph_input(graph, op, MGL_ROLE_KV)->dims[0].number;
}

uint32_t mgl_tile_units(const mgl_graph *graph, const mgl_op *op, uint32_t tokens,
                        uint32_t strides) {
  const mgl_dim_values dims = {tokens, tokens, tokens};
  const mgl_tensor *output = &graph->tensors[op->output];
  switch (mgl_op_info_of(op->kind)->unit) {
    case MGL_UNIT_ROW: {
      bool is_kv = output->placement == MGL_PLACE_KV;  // which has no row a token
      const mgl_tensor *rows = is_kv ? &graph->tensors[op->inputs[0]] : output;
      return (uint32_t)mgl_dim_value(rows->dims[0], &dims);
    }
    case MGL_UNIT_VECTOR:
      return (uint32_t)(mgl_tensor_elements(output, &dims) / mgl_op_vector_elements(graph, op));
    case MGL_UNIT_COLUMN:
    case MGL_UNIT_EXPERT: return (uint32_t)mgl_tensor_row_elements(output);
    case MGL_UNIT_ELEMENT: return mgl_op_row_units(graph, op);
    case MGL_UNIT_HEAD: return mgl_tile_kv_heads(graph, op) * strides;
    case MGL_UNIT_WHOLE:
    case MGL_UNIT_COUNT: break;
  }
  return 1;
}

uint32_t mgl_tile_grain(const mgl_op *op, mgl_target target) {
  const mgl_op_info *info = mgl_op_info_of(op->kind);
  return target == MGL_TARGET_CUDA ? info->cuda_grain : info->cpu_grain;
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
    bool is_updated = !is_output && mgl_op_updates(op, operand->input);
    if (!is_output) {
      assert(out->read_count < MGL_TILE_MAX_REGIONS);
      out->reads[out->read_count++] = operand->region;
    }
    if (is_output || is_updated) {
      assert(out->write_count < MGL_TILE_MAX_REGIONS);
      out->writes[out->write_count++] = operand->region;
    }
  }
}

static uint64_t region_bytes(const mgl_graph *graph, const mgl_region *region) {
  const mgl_tensor *tensor = &graph->tensors[region->tensor];
  uint64_t rows = region->row_end - region->row_begin;
  uint64_t columns = region->column_end - region->column_begin;
  if (tensor->group != 0) {  // of codes: whole rows of a matrix
    return rows * (columns / tensor->dims[tensor->rank - 1].number) *
           mgl_tensor_inner_bytes(tensor);
  }
  return rows * columns * mgl_dtype_bytes(tensor->dtype);
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
    if (mgl_op_role(op, operands[i].input) == MGL_ROLE_TABLE) {
      region.row_end = end - begin;  // a row of the table a token
      region.row_begin = 0;
    }
    if (mgl_op_role(op, operands[i].input) == MGL_ROLE_EXPERTS && mgl_op_is_linear(op)) {
      const mgl_tensor *w = &graph->tensors[region.tensor];
      bool sums = mgl_op_input(op, MGL_ROLE_RESIDUAL) != MGL_NO_TENSOR;  // over a token's slots
      uint64_t x = mgl_tensor_row_elements(mgl_graph_input(graph, op, MGL_ROLE_X));
      uint64_t rows = (uint64_t)tokens * (end - begin) * (sums ? x / w->dims[2].number : 1);
      bytes += rows * mgl_tensor_inner_bytes(w);
      continue;
    }
    if (mgl_op_role(op, operands[i].input) == MGL_ROLE_EXPERTS) {
      uint64_t most = (uint64_t)mgl_op_slots(graph, op) * tokens;  // that are chosen
      region.row_end = most < region.row_end ? (uint32_t)most : region.row_end;
      if (mgl_op_shares_by_data(op)) {  // equal shares are as large as columns
        const uint32_t inner = graph->tensors[region.tensor].dims[2].number;
        region.column_begin = begin * inner;
        region.column_end = end * inner;
      }
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
    const mgl_tensor *kv = mgl_graph_input(graph, op, MGL_ROLE_KV);
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
