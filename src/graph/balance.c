#include "graph/balance.h"

#include <string.h>

static const char *const names[MGL_BALANCE_COUNT] = {"columns", "static", "dynamic", "hybrid"};

const char *mgl_balance_name(uint32_t index) {
  return index < MGL_BALANCE_COUNT ? names[index] : NULL;
}

mgl_status mgl_balance_parse(const char *name, mgl_balance *out, mgl_error *err) {
  for (int i = 0; i < MGL_BALANCE_COUNT; i++) {
    if (strcmp(name, names[i]) == 0) {
      *out = (mgl_balance)i;
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected columns, static, dynamic or hybrid, found \"%.40s\"", name);
}

static bool has_balance(const mgl_op *op) {
  return mgl_op_info_of(op->kind)->unit == MGL_UNIT_EXPERT;
}

mgl_balance mgl_op_balance(const mgl_op *op) {
  return (mgl_balance)op->attrs[MGL_ATTR_BALANCE];
}

bool mgl_op_shares_by_data(const mgl_op *op) {
  return op->kind == MGL_OP_EXPERT_GATE_UP && mgl_op_balance(op) != MGL_BALANCE_COLUMNS;
}

mgl_status mgl_graph_set_balance(mgl_graph *graph, mgl_balance balance, mgl_error *err) {
  bool found = false;
  for (size_t i = 0; i < graph->op_count; i++) {
    if (has_balance(&graph->ops[i])) {
      graph->ops[i].attrs[MGL_ATTR_BALANCE] = balance;
      found = true;
    }
  }
  return found ? MGL_OK
               : mgl_error_set(err, MGL_ERR_ARGUMENT,
                               "expert_balance: expected a mixture of experts, found a model "
                               "without experts");
}

// The part of [first, first + width) that lies before `end`.
static uint32_t before(uint64_t end, uint64_t first, uint32_t width) {
  return end <= first ? 0 : end - first < width ? (uint32_t)(end - first) : width;
}

mgl_expert_share mgl_expert_share_of(mgl_balance balance, uint32_t columns, uint32_t begin,
                                     uint32_t end, uint32_t place, uint32_t count) {
  if (balance == MGL_BALANCE_COLUMNS) {
    return (mgl_expert_share){begin, end};
  }
  // Matrices begin at grains of the line, so that pieces of them do, too.
  const uint32_t width = (columns + MGL_SHARE_GRAIN - 1) / MGL_SHARE_GRAIN * MGL_SHARE_GRAIN;
  const uint64_t first = (uint64_t)place * width;
  const uint64_t from = (uint64_t)(begin == columns ? width : begin) * count;
  const uint64_t to = (uint64_t)(end == columns ? width : end) * count;
  const mgl_expert_share share = {before(from, first, width), before(to, first, width)};
  return (mgl_expert_share){share.begin < columns ? share.begin : columns,
                            share.end < columns ? share.end : columns};
}
