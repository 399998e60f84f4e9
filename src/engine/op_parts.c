#include "engine/op_parts.h"

#include <string.h>

#include "base/alloc.h"

static bool is_activation(const mgl_graph *graph, uint32_t tensor) {
  return graph->tensors[tensor].placement == MGL_PLACE_ACTIVATION;
}

uint32_t mgl_op_maker(const mgl_graph *graph, uint32_t tensor) {
  for (uint32_t i = 0; i < graph->op_count; i++) {
    if (graph->ops[i].output == tensor && is_activation(graph, tensor)) {
      return i;
    }
  }
  return UINT32_MAX;
}

// The result of the canonical op with that matrix and the input x.
static uint32_t find_product(const mgl_graph *canonical, const char *matrix, uint32_t x) {
  uint32_t weight = mgl_graph_find(canonical, matrix);
  for (uint32_t i = 0; i < canonical->op_count && weight != MGL_NO_TENSOR; i++) {
    const mgl_op *op = &canonical->ops[i];
    if (mgl_op_input(op, MGL_ROLE_MATRIX) == weight && mgl_op_input(op, MGL_ROLE_X) == x) {
      return op->output;
    }
  }
  return MGL_NO_TENSOR;
}

static mgl_status no_part(const char *name, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_INTERNAL, "the model's program has nothing for \"%s\"", name);
}

mgl_status mgl_value_parts_find(const mgl_graph *canonical, const mgl_graph *fused, uint32_t tensor,
                                mgl_value_parts *out, mgl_error *err) {
  const mgl_tensor *value = &fused->tensors[tensor];
  uint32_t same = mgl_graph_find(canonical, value->name);
  uint32_t maker = mgl_op_maker(fused, tensor);
  *out = (mgl_value_parts){{same}, 1};
  if (same == MGL_NO_TENSOR || maker == UINT32_MAX) {
    return no_part(value->name, err);
  }
  if (mgl_tensor_row_elements(&canonical->tensors[same]) == mgl_tensor_row_elements(value)) {
    return MGL_OK;
  }
  const mgl_op *op = &fused->ops[maker];
  uint32_t x = mgl_op_input(&canonical->ops[mgl_op_maker(canonical, same)], MGL_ROLE_X);
  mgl_op_range matrices = mgl_op_inputs(op, MGL_ROLE_MATRIX);
  uint64_t elements = 0;
  out->count = matrices.count;
  for (uint32_t i = 0; i < matrices.count; i++) {
    const char *matrix = fused->tensors[op->inputs[matrices.first + i]].name;
    out->tensors[i] = find_product(canonical, matrix, x);
    if (out->tensors[i] == MGL_NO_TENSOR) {
      return no_part(value->name, err);
    }
    elements += mgl_tensor_row_elements(&canonical->tensors[out->tensors[i]]);
  }
  return elements == mgl_tensor_row_elements(value) ? MGL_OK : no_part(value->name, err);
}

// --- ops -----------------------------------------------------------------------------------------

enum { WANTED = 1, GIVEN = 2 };  // of a canonical tensor

// Marks what the fused ops [from, to) make.
static mgl_status mark_results(const mgl_graph *canonical, const mgl_graph *fused, uint32_t from,
                               uint32_t to, unsigned char mark, unsigned char *marks,
                               mgl_error *err) {
  for (uint32_t i = from; i < to; i++) {
    const mgl_op *op = &fused->ops[i];
    mgl_value_parts parts = {.count = 0};
    if (is_activation(fused, op->output)) {
      MGL_TRY(mgl_value_parts_find(canonical, fused, op->output, &parts, err));
    }
    for (uint32_t j = 0; j < parts.count; j++) {
      marks[parts.tensors[j]] |= mark;
    }
    // A cache that it writes is known to both by one name.
    for (uint32_t j = 0; j <= op->input_count; j++) {
      uint32_t tensor = j < op->input_count ? op->inputs[j] : op->output;
      if (mark == WANTED && fused->tensors[tensor].placement == MGL_PLACE_KV &&
          (j == op->input_count || mgl_op_updates(op, j))) {
        marks[mgl_graph_find(canonical, fused->tensors[tensor].name)] |= WANTED;
      }
    }
  }
  return MGL_OK;
}

// From the results back to what is given.
static void collect(const mgl_graph *canonical, unsigned char *marks, bool *out) {
  for (uint32_t i = (uint32_t)canonical->op_count; i-- > 0;) {
    const mgl_op *op = &canonical->ops[i];
    if (marks[op->output] != WANTED) {
      continue;
    }
    out[i] = true;
    marks[op->output] = 0;  // a cache may have been written before
    for (uint32_t j = 0; j < op->input_count; j++) {
      marks[op->inputs[j]] |= is_activation(canonical, op->inputs[j]) ? WANTED : 0;
    }
  }
}

mgl_status mgl_op_parts_find(const mgl_graph *canonical, const mgl_graph *fused, uint32_t first,
                             uint32_t last, bool *out, mgl_error *err) {
  unsigned char *marks = mgl_alloc_zeroed(canonical->tensor_count, 1);
  if (marks == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the parts of ops");
  }
  memset(out, 0, canonical->op_count * sizeof *out);
  mgl_status status = mark_results(canonical, fused, 0, first, GIVEN, marks, err);
  if (status == MGL_OK) {
    status = mark_results(canonical, fused, first, last + 1, WANTED, marks, err);
  }
  if (status == MGL_OK) {
    collect(canonical, marks, out);
  }
  mgl_free(marks);
  return status;
}
