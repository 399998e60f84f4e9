// Graph storage, and the checks of whole programs. See graph.h for the contract.
#include "graph/graph.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

mgl_status mgl_graph_create(const char *name, mgl_graph **out, mgl_error *err) {
  *out = NULL;
  mgl_graph *graph = mgl_alloc_zeroed(1, sizeof *graph);
  char *copy = mgl_strdup(name);
  if (graph == NULL || copy == NULL) {
    mgl_free(graph);
    mgl_free(copy);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a tensor program");
  }
  graph->name = copy;
  *out = graph;
  return MGL_OK;
}

void mgl_graph_destroy(mgl_graph *graph) {
  if (graph == NULL) {
    return;
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    mgl_free(graph->tensors[i].name);
  }
  for (size_t i = 0; i < graph->op_count; i++) {
    mgl_free((void *)(uintptr_t)graph->ops[i].values);
  }
  mgl_free(graph->tensors);
  mgl_free(graph->ops);
  mgl_free(graph->name_table);
  mgl_free(graph->name);
  mgl_free(graph);
}

// --- names ---------------------------------------------------------------------------------------

static uint64_t hash_name(const char *name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (; *name != 0; name++) {
    hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
  }
  return hash;
}

// The slot of `name` in the table: its own, or the empty one where it belongs. The table has room.
static size_t name_slot(const mgl_graph *graph, const char *name) {
  size_t slot = (size_t)hash_name(name) & (graph->name_table_size - 1);
  while (graph->name_table[slot] != 0 &&
         strcmp(graph->tensors[graph->name_table[slot] - 1].name, name) != 0) {
    slot = (slot + 1) & (graph->name_table_size - 1);
  }
  return slot;
}

uint32_t mgl_graph_find(const mgl_graph *graph, const char *name) {
  if (graph->name_table_size == 0) {
    return MGL_NO_TENSOR;
  }
  uint32_t entry = graph->name_table[name_slot(graph, name)];
  return entry == 0 ? MGL_NO_TENSOR : entry - 1;
}

mgl_status mgl_graph_find_activation(const mgl_graph *graph, const char *name, size_t count,
                                     const mgl_dim_values *largest, uint32_t *out, mgl_error *err) {
  *out = mgl_graph_find(graph, name);
  const mgl_tensor *tensor = *out == MGL_NO_TENSOR ? NULL : &graph->tensors[*out];
  if (tensor == NULL || tensor->placement != MGL_PLACE_ACTIVATION ||
      mgl_tensor_elements(tensor, largest) < count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected an activation of %zu elements or more, found \"%s\"", count,
                         name);
  }
  return MGL_OK;
}

// Keeps the name table at most half full for one more tensor.
static bool grow_name_table(mgl_graph *graph) {
  if ((graph->tensor_count + 1) * 2 <= graph->name_table_size) {
    return true;
  }
  size_t size = graph->name_table_size == 0 ? 64 : graph->name_table_size * 2;
  uint32_t *table = mgl_alloc_zeroed(size, sizeof *table);
  if (table == NULL) {
    return false;
  }
  mgl_free(graph->name_table);
  graph->name_table = table;
  graph->name_table_size = size;
  for (size_t i = 0; i < graph->tensor_count; i++) {
    table[name_slot(graph, graph->tensors[i].name)] = (uint32_t)i + 1;
  }
  return true;
}

static bool name_is_valid(const char *name) {
  size_t bytes = strlen(name);
  return bytes >= 1 && bytes < MGL_GRAPH_MAX_NAME_BYTES &&
         strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == bytes;
}

// --- tensors and ops -----------------------------------------------------------------------------

static bool failed(const mgl_graph *graph) {
  return graph->error.status != MGL_OK;
}

static bool check_codes(mgl_graph *graph, const char *name, mgl_placement placement, mgl_form form,
                        uint32_t rank, const mgl_dim *dims) {
  const bool is_cache = placement == MGL_PLACE_KV && form.dtype == MGL_DTYPE_KV8 && form.group == 0;
  if (!mgl_dtype_is_code(form.dtype) || is_cache) {
    return true;
  }
  if (placement != MGL_PLACE_WEIGHT || rank < 2) {
    (void)mgl_error_set(
        &graph->error, MGL_ERR_ARGUMENT,
        "tensor \"%s\": only a weight [N,K] can be of codes, and a KV cache of e4m3", name);
    return false;
  }
  if (mgl_form_check(form, dims[rank - 1].number, &graph->error) != MGL_OK) {
    mgl_error_prefix(&graph->error, "tensor \"%s\"", name);
    return false;
  }
  return true;
}

uint32_t mgl_graph_tensor(mgl_graph *graph, const char *name, mgl_placement placement,
                          mgl_dtype dtype, uint32_t rank, const mgl_dim *dims) {
  return mgl_graph_form_tensor(graph, name, placement, mgl_form_plain(dtype), rank, dims);
}

uint32_t mgl_graph_form_tensor(mgl_graph *graph, const char *name, mgl_placement placement,
                               mgl_form form, uint32_t rank, const mgl_dim *dims) {
  if (failed(graph)) {
    return MGL_NO_TENSOR;
  }
  mgl_error *err = &graph->error;
  if (!name_is_valid(name)) {
    (void)mgl_error_set(err, MGL_ERR_ARGUMENT,
                        "tensor name \"%.64s\": expected 1 to %d letters, digits, '_', '.' or '-'",
                        name, MGL_GRAPH_MAX_NAME_BYTES - 1);
    return MGL_NO_TENSOR;
  }
  if (mgl_graph_find(graph, name) != MGL_NO_TENSOR) {
    (void)mgl_error_set(err, MGL_ERR_ARGUMENT, "tensor \"%s\" is declared twice", name);
    return MGL_NO_TENSOR;
  }
  uint32_t max_rank = placement == MGL_PLACE_WEIGHT ? 3 : MGL_GRAPH_MAX_RANK;
  if (rank < 1 || rank > max_rank || graph->tensor_count >= MGL_GRAPH_MAX_TENSORS) {
    (void)mgl_error_set(err, MGL_ERR_LIMIT, "tensor \"%s\": rank %u of 1 to %u, tensor %zu of %d",
                        name, rank, max_rank, graph->tensor_count, MGL_GRAPH_MAX_TENSORS);
    return MGL_NO_TENSOR;
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; i++) {
    const bool once = dims[i].symbol != MGL_DIM_NUMBER && dims[i].number == 0;  // a row a token
    elements *= once ? 1 : dims[i].number;
    if (elements == 0 || elements > MGL_GRAPH_MAX_ELEMENTS) {
      (void)mgl_error_set(err, MGL_ERR_LIMIT, "tensor \"%s\": expected 1 to 2^38 elements", name);
      return MGL_NO_TENSOR;
    }
  }
  if (placement == MGL_PLACE_WEIGHT && rank == 3 && elements / dims[0].number > INT32_MAX) {
    (void)mgl_error_set(err, MGL_ERR_LIMIT,
                        "tensor \"%s\": expected 1 to 2^31 - 1 elements of an "
                        "expert's matrix",
                        name);
    return MGL_NO_TENSOR;
  }
  if (!check_codes(graph, name, placement, form, rank, dims)) {
    return MGL_NO_TENSOR;
  }
  void *tensors = graph->tensors;
  char *copy = mgl_strdup(name);
  if (copy == NULL || !grow_name_table(graph) ||
      mgl_grow(&tensors, &graph->tensor_capacity, graph->tensor_count + 1, sizeof(mgl_tensor),
               NULL) != MGL_OK) {
    mgl_free(copy);
    (void)mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for tensor \"%s\"", name);
    return MGL_NO_TENSOR;
  }
  graph->tensors = tensors;
  mgl_tensor *tensor = &graph->tensors[graph->tensor_count];
  *tensor = (mgl_tensor){.name = copy,
                         .placement = placement,
                         .dtype = form.dtype,
                         .group = form.group,
                         .offsets = form.offsets,
                         .rank = rank};
  if (placement == MGL_PLACE_KV && form.dtype == MGL_DTYPE_KV8) {
    tensor->k_scale = tensor->v_scale = 1;
  }
  memcpy(tensor->dims, dims, rank * sizeof *dims);
  graph->name_table[name_slot(graph, name)] = (uint32_t)graph->tensor_count + 1;
  return (uint32_t)graph->tensor_count++;
}

void mgl_graph_mark_output(mgl_graph *graph, uint32_t tensor) {
  if (!failed(graph)) {
    graph->tensors[tensor].is_output = true;
  }
}

uint64_t mgl_dim_value(mgl_dim dim, const mgl_dim_values *values) {
  switch (dim.symbol) {
    case MGL_DIM_NUMBER: return dim.number;
    case MGL_DIM_TOKENS: return (uint64_t)values->tokens * (dim.number > 1 ? dim.number : 1);
    case MGL_DIM_LOGIT_ROWS: return values->logit_rows;
    case MGL_DIM_SEQUENCES: return values->sequences;
  }
  assert(0 && "unknown dim symbol");
  return 0;
}

uint64_t mgl_tensor_elements(const mgl_tensor *tensor, const mgl_dim_values *values) {
  return mgl_dim_value(tensor->dims[0], values) * mgl_tensor_row_elements(tensor);
}

bool mgl_dim_same(mgl_dim a, mgl_dim b) {
  return a.symbol == b.symbol && a.number == b.number;
}

bool mgl_tensor_same_shape(const mgl_tensor *a, const mgl_tensor *b) {
  bool same = a->rank == b->rank;
  for (uint32_t i = 0; same && i < a->rank; i++) {
    same = mgl_dim_same(a->dims[i], b->dims[i]);
  }
  return same;
}

uint64_t mgl_tensor_row_elements(const mgl_tensor *tensor) {
  uint64_t elements = 1;
  for (uint32_t i = 1; i < tensor->rank; i++) {
    elements *= tensor->dims[i].number;
  }
  return elements;
}

mgl_form mgl_tensor_form(const mgl_tensor *tensor) {
  return (mgl_form){.dtype = tensor->dtype, .group = tensor->group, .offsets = tensor->offsets};
}

uint64_t mgl_tensor_row_bytes(const mgl_tensor *tensor) {
  uint64_t elements = mgl_tensor_row_elements(tensor);
  return tensor->group == 0
             ? elements * mgl_dtype_bytes(tensor->dtype)
             : elements / tensor->dims[tensor->rank - 1].number * mgl_tensor_inner_bytes(tensor);
}

uint64_t mgl_tensor_inner_bytes(const mgl_tensor *tensor) {
  uint32_t k = tensor->dims[tensor->rank - 1].number;
  return tensor->group == 0 ? (uint64_t)k * mgl_dtype_bytes(tensor->dtype)
                            : mgl_row_layout_of(mgl_tensor_form(tensor), k).bytes;
}

uint32_t mgl_tensor_experts(const mgl_tensor *tensor) {
  return tensor->placement == MGL_PLACE_WEIGHT && tensor->rank == 3 ? tensor->dims[0].number : 0;
}

const char *mgl_stored_name(const mgl_tensor *tensor, char buffer[MGL_GRAPH_MAX_NAME_BYTES]) {
  size_t bytes = strlen(tensor->name);
  bytes -= tensor->slice.renamed ? strlen(MGL_PART_SUFFIX) : 0;
  memcpy(buffer, tensor->name, bytes);
  buffer[bytes] = 0;
  return buffer;
}

uint64_t mgl_stored_dim(const mgl_tensor *tensor, uint32_t dim) {
  return tensor->slice.whole != 0 && tensor->slice.dim == dim ? tensor->slice.whole
                                                              : tensor->dims[dim].number;
}

uint32_t mgl_slice_begin(const mgl_tensor *tensor, uint32_t rank) {
  return tensor->slice.whole == 0
             ? 0
             : rank / tensor->slice.share * tensor->dims[tensor->slice.dim].number /
                   (tensor->slice.pieces == 0 ? 1 : tensor->slice.pieces);
}

uint32_t mgl_op_row_units(const mgl_graph *graph, const mgl_op *op) {
  const mgl_tensor *part = mgl_graph_input(graph, op, MGL_ROLE_PART);
  const uint64_t of_output = mgl_tensor_row_elements(&graph->tensors[op->output]);
  const uint64_t of_part = part != NULL ? mgl_tensor_row_elements(part) : of_output;
  return (uint32_t)(of_part < of_output ? of_part : of_output);
}

uint32_t mgl_op_vector_elements(const mgl_graph *graph, const mgl_op *op) {
  const mgl_tensor *norm = mgl_graph_input(graph, op, MGL_ROLE_NORM);
  return norm != NULL ? norm->dims[0].number
                      : (uint32_t)mgl_tensor_row_elements(&graph->tensors[op->output]);
}

uint32_t mgl_op_slots(const mgl_graph *graph, const mgl_op *op) {
  const mgl_tensor *routes = mgl_graph_input(graph, op, MGL_ROLE_ROUTES);
  const mgl_tensor *w = mgl_graph_input(graph, op, MGL_ROLE_EXPERTS);
  if (routes != NULL) {
    return routes->dims[1].number;
  }
  return op->kind == MGL_OP_EXPERTS_DOWN
             ? mgl_graph_input(graph, op, MGL_ROLE_X)->dims[1].number / w->dims[2].number
             : graph->tensors[op->output].dims[1].number / w->dims[1].number;
}

// --- the whole program ---------------------------------------------------------------------------

enum tensor_state { UNWRITTEN, WRITTEN, READ, TAKEN_OVER };

static mgl_status check_read(const mgl_graph *graph, const mgl_op *op, uint32_t input,
                             unsigned char *state, mgl_error *err) {
  const mgl_tensor *tensor = &graph->tensors[input];
  const char *op_name = mgl_op_name(op);
  if (tensor->placement != MGL_PLACE_ACTIVATION) {
    return MGL_OK;
  }
  if (state[input] == UNWRITTEN) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s reads \"%s\" before an op writes it", op_name,
                         tensor->name);
  }
  if (state[input] == TAKEN_OVER) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s reads \"%s\" after an in-place op took over its storage", op_name,
                         tensor->name);
  }
  state[input] = READ;
  return MGL_OK;
}

static mgl_status check_program(const mgl_graph *graph, unsigned char *state, mgl_error *err) {
  for (size_t i = 0; i < graph->op_count; i++) {
    const mgl_op *op = &graph->ops[i];
    const mgl_tensor *output = &graph->tensors[op->output];
    for (uint32_t j = 0; j < op->input_count; j++) {
      MGL_TRY(check_read(graph, op, op->inputs[j], state, err));
    }
    if (mgl_op_info_of(op->kind)->in_place) {
      if (graph->tensors[op->inputs[0]].is_output) {
        return mgl_error_set(err, MGL_ERR_ARGUMENT, "output \"%s\" is taken over by an in-place op",
                             graph->tensors[op->inputs[0]].name);
      }
      state[op->inputs[0]] = TAKEN_OVER;
    }
    if (output->placement == MGL_PLACE_ACTIVATION && state[op->output] != UNWRITTEN) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" is written by two ops", output->name);
    }
    state[op->output] = WRITTEN;
  }
  for (size_t i = 0; i < graph->tensor_count; i++) {
    const mgl_tensor *tensor = &graph->tensors[i];
    if (tensor->placement == MGL_PLACE_ACTIVATION &&
        (state[i] == UNWRITTEN || (state[i] == WRITTEN && !tensor->is_output))) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\" is never %s", tensor->name,
                           state[i] == UNWRITTEN ? "written" : "read");
    }
  }
  return MGL_OK;
}

mgl_status mgl_graph_finish(mgl_graph *graph, mgl_error *err) {
  if (failed(graph)) {
    return mgl_error_set(err, graph->error.status, "%s", graph->error.text);
  }
  unsigned char *state = mgl_alloc_zeroed(graph->tensor_count, 1);
  if (state == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory checking a tensor program");
  }
  mgl_status status = check_program(graph, state, err);
  mgl_free(state);
  return status;
}
