// Graph storage and the checks of shapes. See graph.h for the contract.
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
  if (!mgl_dtype_is_code(form.dtype)) {
    return true;
  }
  if (placement != MGL_PLACE_WEIGHT || rank != 2) {
    (void)mgl_error_set(&graph->error, MGL_ERR_ARGUMENT,
                        "tensor \"%s\": only a weight [N,K] can be of codes", name);
    return false;
  }
  if (mgl_form_check(form, dims[1].number, &graph->error) != MGL_OK) {
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
  uint32_t max_rank = placement == MGL_PLACE_WEIGHT ? 2 : MGL_GRAPH_MAX_RANK;
  if (rank < 1 || rank > max_rank || graph->tensor_count >= MGL_GRAPH_MAX_TENSORS) {
    (void)mgl_error_set(err, MGL_ERR_LIMIT, "tensor \"%s\": rank %u of 1 to %u, tensor %zu of %d",
                        name, rank, max_rank, graph->tensor_count, MGL_GRAPH_MAX_TENSORS);
    return MGL_NO_TENSOR;
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; i++) {
    elements *= dims[i].symbol == MGL_DIM_NUMBER ? dims[i].number : 1;
    if (elements == 0 || elements > MGL_GRAPH_MAX_ELEMENTS) {
      (void)mgl_error_set(err, MGL_ERR_LIMIT, "tensor \"%s\": expected 1 to 2^38 elements", name);
      return MGL_NO_TENSOR;
    }
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
    case MGL_DIM_TOKENS: return values->tokens;
    case MGL_DIM_LOGIT_ROWS: return values->logit_rows;
    case MGL_DIM_SEQUENCES: return values->sequences;
  }
  assert(0 && "unknown dim symbol");
  return 0;
}

uint64_t mgl_tensor_elements(const mgl_tensor *tensor, const mgl_dim_values *values) {
  return mgl_dim_value(tensor->dims[0], values) * mgl_tensor_row_elements(tensor);
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
  return tensor->group == 0 ? elements * mgl_dtype_bytes(tensor->dtype)
                            : mgl_row_layout_of(mgl_tensor_form(tensor), (uint32_t)elements).bytes;
}

// --- checks of one op: what its comment in op.def says -------------------------------------------

static bool is_f32(const mgl_tensor *t) {
  return t->dtype == MGL_DTYPE_F32;
}

static bool is_act(const mgl_tensor *t) {
  return t->placement == MGL_PLACE_ACTIVATION &&
         (t->dtype == MGL_DTYPE_F32 || t->dtype == MGL_DTYPE_BF16);
}

static bool is_float_weight(const mgl_tensor *t) {
  return t->placement == MGL_PLACE_WEIGHT && t->dtype != MGL_DTYPE_I32;
}

static bool is_index(const mgl_tensor *t, mgl_dim_symbol symbol) {
  return t->placement == MGL_PLACE_INPUT && t->dtype == MGL_DTYPE_I32 && t->rank == 1 &&
         t->dims[0].symbol == symbol;
}

static bool same_dim(mgl_dim a, mgl_dim b) {
  return a.symbol == b.symbol && a.number == b.number;
}

static bool same_shape(const mgl_tensor *a, const mgl_tensor *b) {
  bool same = a->rank == b->rank;
  for (uint32_t i = 0; same && i < a->rank; i++) {
    same = same_dim(a->dims[i], b->dims[i]);
  }
  return same;
}

// f32 activation of shape [T, heads, HD].
static bool is_heads(const mgl_tensor *t) {
  return is_act(t) && is_f32(t) && t->rank == 3;
}

static const char *check_embed(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_index(in[0], MGL_DIM_TOKENS)) {
    return "tokens must be an input i32[T]";
  }
  if (!is_float_weight(in[1]) || in[1]->rank != 2) {
    return "the table must be a weight [V,D]";
  }
  bool fits = is_f32(out) && out->rank == 2 && same_dim(out->dims[0], in[0]->dims[0]) &&
              same_dim(out->dims[1], in[1]->dims[1]);
  return fits ? NULL : "the result must be f32[T,D]";
}

static const char *check_rmsnorm(const mgl_tensor *const *in, uint32_t count,
                                 const mgl_tensor *out) {
  uint32_t last = in[0]->rank - 1;
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank < 2) {
    return "x must be an f32 activation of rank 2 or more";
  }
  if (!is_float_weight(in[1]) || in[1]->rank != 1 || !same_dim(in[1]->dims[0], in[0]->dims[last])) {
    return "the weight must be as long as the last dim of x";
  }
  if (count == 3 && (!is_index(in[2], MGL_DIM_LOGIT_ROWS) || in[0]->rank != 2)) {
    return "rows must be an input i32[L], with x of rank 2";
  }
  bool fits = is_act(out) && out->rank == in[0]->rank &&
              same_dim(out->dims[0], count == 3 ? in[2]->dims[0] : in[0]->dims[0]);
  for (uint32_t i = 1; fits && i < out->rank; i++) {
    fits = same_dim(out->dims[i], in[0]->dims[i]);
  }
  return fits ? NULL : "the result must have the shape of x (L rows where rows are given)";
}

static const char *check_linear(const mgl_tensor *const *in, uint32_t count,
                                const mgl_tensor *out) {
  if (!is_act(in[0]) || in[0]->rank < 2) {
    return "x must be an activation of rank 2 or more";
  }
  if (!is_float_weight(in[1]) || in[1]->rank != 2) {
    return "the weight must be [N,K]";
  }
  if (mgl_tensor_row_elements(in[0]) != in[1]->dims[1].number) {
    return "the rows of x must have the K elements of the weight [N,K]";
  }
  if (in[0]->dtype == MGL_DTYPE_BF16 && !mgl_dtype_fits_bf16(in[1]->dtype)) {
    return "bf16 activations need a weight of bf16 or codes";
  }
  if (count == 3 &&
      (!is_float_weight(in[2]) || in[2]->rank != 1 || !same_dim(in[2]->dims[0], in[1]->dims[0]))) {
    return "the bias must be a weight [N]";
  }
  bool fits = is_act(out) && is_f32(out) && out->rank >= 2 &&
              same_dim(out->dims[0], in[0]->dims[0]) &&
              mgl_tensor_row_elements(out) == in[1]->dims[0].number;
  return fits ? NULL : "the result must be f32 with the rows of x and N elements a row";
}

// Frequencies that depend on lengths have them, and either a base that grows or a second set.
static const char *check_frequencies(const mgl_op *op, uint32_t half) {
  const double *a = op->attrs;
  const double original = a[MGL_ATTR_ORIGINAL];
  bool grows = a[MGL_ATTR_THETA] != 0;
  if (original < 0 || a[MGL_ATTR_THETA] < 0 || a[MGL_ATTR_AMPLITUDE] < 0 ||
      (grows && (!(original > 0) || half < 2 || !(a[MGL_ATTR_FACTOR] >= 1))) ||
      (!grows && a[MGL_ATTR_FACTOR] != 0)) {
    return "amplitude, original and theta must not be negative; a theta needs original, a factor "
           "of "
           "at least 1 and 4 dims";
  }
  if ((original != 0) != (op->input_count == 2)) {
    return "lengths are needed with original, and only then";
  }
  uint32_t sets = original != 0 && !grows ? 2 : 1;
  if (op->value_count != sets * (uint64_t)half) {
    return "values must be the RD/2 frequencies, twice as many with original and no theta";
  }
  for (uint32_t i = 0; i < op->value_count; i++) {
    if (!(op->values[i] >= 0) || !isfinite(op->values[i])) {
      return "values must be finite and not negative";
    }
  }
  return NULL;
}

static const char *check_rope_angles(const mgl_op *op, const mgl_tensor *const *in,
                                     const mgl_tensor *out) {
  for (uint32_t i = 0; i < op->input_count; i++) {
    if (!is_index(in[i], MGL_DIM_TOKENS)) {
      return "positions and lengths must be inputs i32[T]";
    }
  }
  bool fits = is_act(out) && is_f32(out) && out->rank == 3 &&
              same_dim(out->dims[0], in[0]->dims[0]) && same_dim(out->dims[2], MGL_DIM(2)) &&
              out->dims[1].number <= MGL_MAX_HEAD_DIM / 2;
  return fits ? check_frequencies(op, out->dims[1].number) : "the result must be f32[T,RD/2,2]";
}

// The angles of heads [T,heads,HD].
static bool are_angles(const mgl_tensor *angles, const mgl_tensor *heads) {
  return is_act(angles) && is_f32(angles) && angles->rank == 3 &&
         same_dim(angles->dims[0], heads->dims[0]) && angles->dims[2].number == 2 &&
         (uint64_t)angles->dims[1].number * 2 <= heads->dims[2].number;
}

static const char *check_rope(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_heads(in[0])) {
    return "x must be f32[T,heads,HD]";
  }
  if (!are_angles(in[1], in[0])) {
    return "angles must be f32[T,RD/2,2] with RD at most HD";
  }
  return is_heads(out) && same_shape(out, in[0]) ? NULL : "the result must have the shape of x";
}

static const char *check_kv_write(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_heads(in[0]) || !is_heads(in[1]) || !same_shape(in[0], in[1])) {
    return "k and v must be f32[T,HKV,HD]";
  }
  if (!is_index(in[2], MGL_DIM_TOKENS)) {
    return "slots must be an input i32[T]";
  }
  bool fits = out->placement == MGL_PLACE_KV && out->rank == 2 &&
              (out->dtype == MGL_DTYPE_BF16 || out->dtype == MGL_DTYPE_F32) &&
              same_dim(out->dims[0], in[0]->dims[1]) && same_dim(out->dims[1], in[0]->dims[2]);
  return fits ? NULL : "the result must be a bf16 or f32 kv tensor [HKV,HD]";
}

static bool is_window(double tokens) {
  return tokens >= 0 && tokens <= UINT32_MAX && tokens == floor(tokens);
}

static const char *check_attention(const mgl_op *op, const mgl_tensor *const *in,
                                   const mgl_tensor *out) {
  if (!is_heads(in[0])) {
    return "q must be f32[T,H,HD]";
  }
  if (in[1]->placement != MGL_PLACE_KV || !same_dim(in[1]->dims[1], in[0]->dims[2]) ||
      in[0]->dims[1].number % in[1]->dims[0].number != 0) {
    return "kv must be [HKV,HD] with HKV dividing H";
  }
  if (!is_index(in[2], MGL_DIM_TOKENS) || !is_index(in[3], MGL_DIM_SEQUENCES)) {
    return "positions must be an input i32[T], block_tables i32[R]";
  }
  if (!(op->attrs[MGL_ATTR_SCALE] > 0) || !is_window(op->attrs[MGL_ATTR_WINDOW])) {
    return "scale must be positive, the window a number of tokens, or 0";
  }
  return is_act(out) && same_shape(out, in[0]) ? NULL : "the result must have the shape of q";
}

static const char *check_silu_mul(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || !is_act(in[1]) || !is_f32(in[1]) ||
      !same_shape(in[0], in[1])) {
    return "gate and up must be f32 of one shape";
  }
  return is_act(out) && same_shape(out, in[0]) ? NULL : "the result must have the shape of gate";
}

static const char *check_add(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || !is_act(in[1]) || !is_f32(in[1]) ||
      !same_shape(in[0], in[1])) {
    return "x and y must be f32 of one shape";
  }
  return is_act(out) && is_f32(out) && same_shape(out, in[0])
             ? NULL
             : "the result must be f32 with the shape of x";
}

// --- fused ops -----------------------------------------------------------------------------------

// x f32[T,D] and norm[D], the first two inputs of all ops that begin with a norm.
static bool is_normed_input(const mgl_tensor *const *in) {
  return is_act(in[0]) && is_f32(in[0]) && in[0]->rank == 2 && is_float_weight(in[1]) &&
         in[1]->rank == 1 && same_dim(in[1]->dims[0], in[0]->dims[1]);
}

// A weight [N,K] whose K is `columns`.
static bool is_matrix(const mgl_tensor *t, uint64_t columns) {
  return is_float_weight(t) && t->rank == 2 && t->dims[1].number == columns;
}

static const char *check_qkv_proj(const mgl_op *op, const mgl_tensor *const *in,
                                  const mgl_tensor *out) {
  if (!is_normed_input(in)) {
    return "x must be f32[T,D], norm a weight [D]";
  }
  uint64_t features = 0;
  for (uint32_t i = 2; i < 5; i++) {
    if (!is_matrix(in[i], in[0]->dims[1].number)) {
      return "wq, wk and wv must be weights [N,D]";
    }
    features += in[i]->dims[0].number;
  }
  if (op->input_count != 5 && op->input_count != 8) {
    return "expected no bias or three";
  }
  for (uint32_t i = 5; i < op->input_count; i++) {
    if (!is_float_weight(in[i]) || in[i]->rank != 1 ||
        !same_dim(in[i]->dims[0], in[i - 3]->dims[0])) {
      return "a bias must be as long as its weight has rows";
    }
  }
  bool fits = is_heads(out) && same_dim(out->dims[0], in[0]->dims[0]) &&
              mgl_tensor_row_elements(out) == features &&
              same_dim(in[3]->dims[0], in[4]->dims[0]) &&
              in[3]->dims[0].number % out->dims[2].number == 0;
  return fits ? NULL : "the result must be f32[T,H+2*HKV,HD]";
}

static const char *check_attend(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  if (!is_heads(in[0]) || in[1]->placement != MGL_PLACE_KV ||
      !same_dim(in[1]->dims[1], in[0]->dims[2]) ||
      in[0]->dims[1].number <= 2 * in[1]->dims[0].number ||
      (in[0]->dims[1].number - 2 * in[1]->dims[0].number) % in[1]->dims[0].number != 0) {
    return "qkv must be f32[T,H+2*HKV,HD] and kv [HKV,HD], with HKV dividing H";
  }
  if (!are_angles(in[2], in[0])) {
    return "angles must be f32[T,RD/2,2] with RD at most HD";
  }
  if (!is_window(op->attrs[MGL_ATTR_WINDOW])) {
    return "the window must be a number of tokens, or 0";
  }
  if (!is_index(in[3], MGL_DIM_TOKENS) || !is_index(in[4], MGL_DIM_TOKENS) ||
      !is_index(in[5], MGL_DIM_SEQUENCES)) {
    return "positions and slots must be inputs i32[T], block_tables i32[R]";
  }
  if (op->input_count != 6 && op->input_count != 8) {
    return "expected no head norm or two";
  }
  for (uint32_t i = 6; i < op->input_count; i++) {
    if (!is_float_weight(in[i]) || in[i]->rank != 1 || !same_dim(in[i]->dims[0], in[0]->dims[2])) {
      return "q_norm and k_norm must be weights [HD]";
    }
  }
  bool fits = op->attrs[MGL_ATTR_SCALE] > 0 && is_act(out) && out->rank == 3 &&
              same_dim(out->dims[0], in[0]->dims[0]) && same_dim(out->dims[2], in[0]->dims[2]) &&
              out->dims[1].number == in[0]->dims[1].number - 2 * in[1]->dims[0].number;
  return fits ? NULL : "scale must be positive and the result act[T,H,HD]";
}

static const char *check_linear_add(const mgl_tensor *const *in, const mgl_tensor *out) {
  const char *wrong = check_linear(in + 1, 2, out);
  if (wrong != NULL) {
    return wrong;
  }
  return is_act(in[0]) && same_shape(in[0], out) ? NULL
                                                 : "the residual must have the result's shape";
}

static const char *check_gate_up(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_normed_input(in) || !is_matrix(in[2], in[0]->dims[1].number) ||
      !is_matrix(in[3], in[0]->dims[1].number) || !same_shape(in[2], in[3])) {
    return "x must be f32[T,D], norm [D], w_gate and w_up [F,D]";
  }
  bool fits = is_act(out) && out->rank == 2 && same_dim(out->dims[0], in[0]->dims[0]) &&
              same_dim(out->dims[1], in[2]->dims[0]);
  return fits ? NULL : "the result must be act[T,F]";
}

static const char *check_logits(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_normed_input(in) || !is_index(in[2], MGL_DIM_LOGIT_ROWS) ||
      !is_matrix(in[3], in[0]->dims[1].number)) {
    return "x must be f32[T,D], norm [D], rows i32[L], w [V,D]";
  }
  bool fits = is_act(out) && is_f32(out) && out->rank == 2 &&
              same_dim(out->dims[0], in[2]->dims[0]) && same_dim(out->dims[1], in[3]->dims[0]);
  return fits ? NULL : "the result must be f32[L,V]";
}

// --- device ops ----------------------------------------------------------------------------------

// i32 activation of rank 1 and that length.
static bool is_int_vector(const mgl_tensor *t, mgl_dim dim) {
  return t->placement == MGL_PLACE_ACTIVATION && t->dtype == MGL_DTYPE_I32 && t->rank == 1 &&
         same_dim(t->dims[0], dim);
}

static const char *check_next_plan(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_index(in[0], MGL_DIM_TOKENS)) {
    return "tokens must be an input i32[T]";
  }
  return is_int_vector(out, MGL_DIM(1)) ? NULL : "the result must be i32[1]";
}

static const char *check_sample(const mgl_tensor *const *in, const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2 ||
      !same_dim(in[0]->dims[0], MGL_DIM_L)) {
    return "logits must be f32[L,V]";
  }
  if (!is_int_vector(in[1], MGL_DIM(1))) {
    return "next_plan must be an activation i32[1]";
  }
  return is_int_vector(out, MGL_DIM_L) ? NULL : "the result must be i32[L]";
}

// NULL, or what is wrong with the op.
static const char *check_op(const mgl_op *op, const mgl_tensor *const *in, const mgl_tensor *out) {
  if (op->attrs[MGL_ATTR_EPS] < 0) {
    return "eps must not be negative";
  }
  switch (op->kind) {
    case MGL_OP_EMBED: return check_embed(in, out);
    case MGL_OP_RMSNORM: return check_rmsnorm(in, op->input_count, out);
    case MGL_OP_LINEAR: return check_linear(in, op->input_count, out);
    case MGL_OP_ROPE_ANGLES: return check_rope_angles(op, in, out);
    case MGL_OP_ROPE: return check_rope(in, out);
    case MGL_OP_KV_WRITE: return check_kv_write(in, out);
    case MGL_OP_ATTENTION: return check_attention(op, in, out);
    case MGL_OP_SILU_MUL: return check_silu_mul(in, out);
    case MGL_OP_ADD: return check_add(in, out);
    case MGL_OP_QKV_PROJ: return check_qkv_proj(op, in, out);
    case MGL_OP_ATTEND: return check_attend(op, in, out);
    case MGL_OP_LINEAR_ADD: return check_linear_add(in, out);
    case MGL_OP_GATE_UP: return check_gate_up(in, out);
    case MGL_OP_LOGITS: return check_logits(in, out);
    case MGL_OP_NEXT_PLAN: return check_next_plan(in, out);
    case MGL_OP_SAMPLE: return check_sample(in, out);
    case MGL_OP_COUNT: break;
  }
  assert(0 && "unknown op kind");
  return "unknown op";
}

void mgl_graph_op(mgl_graph *graph, mgl_op op) {
  if (failed(graph)) {
    return;
  }
  mgl_error *err = &graph->error;
  const mgl_op_info *info = mgl_op_info_of(op.kind);
  if (op.input_count < info->input_count ||
      op.input_count > info->input_count + info->optional_count) {
    (void)mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %u to %u inputs, found %u", info->name,
                        info->input_count, info->input_count + info->optional_count,
                        op.input_count);
    return;
  }
  const mgl_tensor *inputs[MGL_OP_MAX_INPUTS] = {0};
  for (uint32_t i = 0; i < op.input_count; i++) {
    assert(op.inputs[i] < graph->tensor_count);
    inputs[i] = &graph->tensors[op.inputs[i]];
  }
  assert(op.output < graph->tensor_count);
  const mgl_tensor *output = &graph->tensors[op.output];
  const char *wrong = check_op(&op, inputs, output);
  if (wrong != NULL) {
    (void)mgl_error_set(err, MGL_ERR_ARGUMENT, "%s = %s(%s, ...): %s", output->name, info->name,
                        inputs[0]->name, wrong);
    return;
  }
  void *ops = graph->ops;
  if (graph->op_count >= MGL_GRAPH_MAX_OPS) {
    (void)mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d ops, found more",
                        MGL_GRAPH_MAX_OPS);
    return;
  }
  if (mgl_grow(&ops, &graph->op_capacity, graph->op_count + 1, sizeof op, err) != MGL_OK) {
    return;
  }
  graph->ops = ops;
  if (op.value_count > 0) {
    float *values = mgl_alloc(op.value_count * sizeof *values);
    if (values == NULL) {
      (void)mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the values of an op");
      return;
    }
    memcpy(values, op.values, op.value_count * sizeof *values);
    op.values = values;
  }
  graph->ops[graph->op_count++] = op;
}

// --- the whole program ---------------------------------------------------------------------------

enum tensor_state { UNWRITTEN, WRITTEN, READ, TAKEN_OVER };

static mgl_status check_read(const mgl_graph *graph, const mgl_op *op, uint32_t input,
                             unsigned char *state, mgl_error *err) {
  const mgl_tensor *tensor = &graph->tensors[input];
  const char *op_name = mgl_op_info_of(op->kind)->name;
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
