#include "graph/op.h"

#include <assert.h>

#include "graph/custom_op.h"
#include "graph/graph.h"

// The names of op.def as they stand there, without a prefix.
enum {
#define MGL_ROLE(enum_name) enum_name = MGL_ROLE_##enum_name,
#include "graph/op.def"
};

#define MGL_ATTR_BIT(attr) (1u << MGL_ATTR_##attr)
#define MGL_UNPACK(...) __VA_ARGS__
#define MGL_COUNT(roles) ((uint32_t)sizeof((const uint8_t[]){MGL_UNPACK roles}))

static const mgl_op_info op_infos[MGL_OP_COUNT] = {
#define MGL_OP(enum_name, op_name, tile_unit, cpu, cuda, input_roles, optional, updated, attrs) \
  {.name = #op_name,                                                                            \
   .unit = MGL_UNIT_##tile_unit,                                                                \
   .cpu_grain = (cpu),                                                                          \
   .cuda_grain = (cuda),                                                                        \
   .roles = {MGL_UNPACK input_roles},                                                           \
   .input_count = MGL_COUNT(input_roles) - (optional),                                          \
   .optional_count = (optional),                                                                \
   .updates = MGL_ROLE_##updated,                                                               \
   .in_place = MGL_ROLE_##updated != MGL_ROLE_NONE && MGL_ROLE_##updated != MGL_ROLE_KV,        \
   .attributes = (attrs)},
#include "graph/op.def"
};

static const char *const attr_names[MGL_ATTR_COUNT] = {
#define MGL_ATTR(enum_name, name, optional) #name,
#include "graph/op.def"
};

static const bool attr_optional[MGL_ATTR_COUNT] = {
#define MGL_ATTR(enum_name, name, optional) optional,
#include "graph/op.def"
};

const mgl_op_info *mgl_op_info_of(mgl_op_kind kind) {
  assert(kind < MGL_OP_COUNT);
  return &op_infos[kind];
}

const char *mgl_attr_name(mgl_attr attr) {
  return attr_names[attr];
}

bool mgl_attr_is_optional(mgl_attr attr) {
  return attr_optional[attr];
}

// --- ops of a program ----------------------------------------------------------------------------

// Optional inputs are left out from the last one on, but for attend's: it has both norms, or sinks.
static mgl_role role_at(const mgl_op *op, uint32_t input) {
  const mgl_op_info *info = mgl_op_info_of(op->kind);
  const bool alone = input == info->input_count && op->input_count == input + 1;
  return op->kind == MGL_OP_ATTEND && alone ? MGL_ROLE_SINKS : (mgl_role)info->roles[input];
}

mgl_op_range mgl_op_inputs(const mgl_op *op, mgl_role role) {
  mgl_op_range range = {0, 0};
  while (range.first < op->input_count && role_at(op, range.first) != role) {
    range.first++;
  }
  while (range.first + range.count < op->input_count &&
         role_at(op, range.first + range.count) == role) {
    range.count++;
  }
  return range;
}

uint32_t mgl_op_input(const mgl_op *op, mgl_role role) {
  mgl_op_range range = mgl_op_inputs(op, role);
  return range.count == 0 ? MGL_NO_TENSOR : op->inputs[range.first];
}

mgl_role mgl_op_role(const mgl_op *op, uint32_t input) {
  assert(input < op->input_count);
  return role_at(op, input);
}

bool mgl_op_updates(const mgl_op *op, uint32_t input) {
  mgl_role updated = mgl_op_info_of(op->kind)->updates;
  return updated != MGL_ROLE_NONE && mgl_op_role(op, input) == updated;
}

const char *mgl_op_name(const mgl_op *op) {
  return op->custom != NULL ? op->custom->name : mgl_op_info_of(op->kind)->name;
}

bool mgl_op_is_linear(const mgl_op *op) {
  return mgl_op_kind_is_linear((uint32_t)op->kind);
}

const mgl_tensor *mgl_graph_input(const mgl_graph *graph, const mgl_op *op, mgl_role role) {
  uint32_t tensor = mgl_op_input(op, role);
  return tensor == MGL_NO_TENSOR ? NULL : &graph->tensors[tensor];
}
