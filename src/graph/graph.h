// The tensor program: what a model computes in one iteration, as a list of ops over named tensors.
//
// Model families build it by calling op constructors in the order in which a token meets them; a
// test, a user or a foreign front end can write it as text (graph_text.h). Ops are kept in
// execution order, which is topological by construction. A tensor has one producing op, but for KV
// tensors, which kv_write updates. One graph, one thread.
//
// Constructors have a sticky error: after the first failure they do nothing and return
// MGL_NO_TENSOR, and mgl_graph_finish reports it. So a family file reads like the model, without a
// check on every line.
#ifndef MGL_GRAPH_GRAPH_H
#define MGL_GRAPH_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/form.h"
#include "base/limits.h"
#include "base/status.h"
#include "graph/op.h"
#include "graph/rope.h"
#include "model/config.h"

enum {
  MGL_GRAPH_MAX_RANK = 4,
  MGL_GRAPH_MAX_TENSORS = 1 << 18,
  MGL_GRAPH_MAX_OPS = 1 << 18,
  MGL_GRAPH_MAX_NAME_BYTES = 256,
  MGL_GRAPH_MAX_VALUES = MGL_MAX_HEAD_DIM,  // of an op
  MGL_MAX_CUSTOM_ATTRS = 4,
};

#define MGL_NO_TENSOR UINT32_MAX
#define MGL_GRAPH_MAX_ELEMENTS (UINT64_C(1) << 38)  // of one tensor, symbols counted as 1

// A dim is a number, or a symbol whose value the plan of an iteration gives.
typedef enum mgl_dim_symbol {
  MGL_DIM_NUMBER,
  MGL_DIM_TOKENS,      // T
  MGL_DIM_LOGIT_ROWS,  // L
  MGL_DIM_SEQUENCES,   // R
} mgl_dim_symbol;

typedef struct mgl_dim {
  mgl_dim_symbol symbol;
  uint32_t number;  // with MGL_DIM_NUMBER: at least 1; of T 0, or that many times T, at least 2
} mgl_dim;

#define MGL_DIM(n) ((mgl_dim){MGL_DIM_NUMBER, (n)})
#define MGL_DIM_T ((mgl_dim){MGL_DIM_TOKENS, 0})
#define MGL_DIM_T_TIMES(n) ((mgl_dim){MGL_DIM_TOKENS, (n) > 1 ? (n) : 0})
#define MGL_DIM_L ((mgl_dim){MGL_DIM_LOGIT_ROWS, 0})
#define MGL_DIM_R ((mgl_dim){MGL_DIM_SEQUENCES, 0})

typedef enum mgl_placement {
  MGL_PLACE_INPUT,       // from the plan: tokens, positions, slots, block tables, logit rows
  MGL_PLACE_WEIGHT,      // from the checkpoint, by name
  MGL_PLACE_KV,          // one layer's paged cache: [HKV, HD]; pages are not part of the shape
  MGL_PLACE_ACTIVATION,  // allocated by the runtime
} mgl_placement;

// Which part of a stored weight a rank has: of dim `dim`, which has `whole` elements there, as many
// as the tensor's dim says, from element rank / share times that number on.
typedef struct mgl_weight_slice {
  uint32_t whole;   // 0: all of the weight
  uint32_t dim;     // 0 or 1; of experts' matrices 1 or 2
  uint32_t pieces;  // 0, or of a vector with as many pieces of one length: some of each piece
  uint32_t share;   // neighbouring ranks that have the same part, at least 1
  bool renamed;     // the weight's name is the tensor's without MGL_PART_SUFFIX
  bool only_first;  // rank 0 has all of it, the others zeros: a bias of a sum over the ranks
} mgl_weight_slice;

#define MGL_PART_SUFFIX ".part"

typedef struct mgl_tensor {
  char *name;  // unique in the graph
  mgl_placement placement;
  mgl_dtype dtype;
  uint32_t group;  // of a weight of codes (base/form.h): elements of a row that share a scale
  bool offsets;    // it has them
  bool made;       // of a weight: its rows are made when it is loaded, not used where they lie
  uint32_t rank;
  mgl_dim dims[MGL_GRAPH_MAX_RANK];
  float k_scale, v_scale;  // of a KV cache of MGL_DTYPE_KV8: what its elements are multiplied with
  bool is_output;          // read by the caller after the iteration
  mgl_weight_slice slice;  // of a weight of one of several ranks
} mgl_tensor;

typedef struct mgl_op {
  mgl_op_kind kind;
  uint32_t input_count;
  uint32_t inputs[MGL_OP_MAX_INPUTS];  // tensor indices
  uint32_t output;
  double attrs[MGL_ATTR_COUNT];        // those that the kind carries; 0 otherwise
  uint32_t value_count;                // rope_angles only
  const float *values;                 // [value_count]; an op of a graph has its own copy
  const struct mgl_custom_op *custom;  // of the kinds CUSTOM and CUSTOM_UPDATE; NULL: of others
  double custom_attrs[MGL_MAX_CUSTOM_ATTRS];
} mgl_op;

// Inputs [first, first + count) of an op: those of one role, which are neighbours. None: count 0.
typedef struct mgl_op_range {
  uint32_t first, count;
} mgl_op_range;

mgl_op_range mgl_op_inputs(const mgl_op *op, mgl_role role);
// The tensor that has that role, the first if several do; MGL_NO_TENSOR if none does.
uint32_t mgl_op_input(const mgl_op *op, mgl_role role);
mgl_role mgl_op_role(const mgl_op *op, uint32_t input);
bool mgl_op_updates(const mgl_op *op, uint32_t input);  // the op writes that input too
bool mgl_op_is_linear(const mgl_op *op);
const char *mgl_op_name(const mgl_op *op);  // of its kind, or of the custom op that it is

typedef struct mgl_graph {
  char *name;
  mgl_tensor *tensors;
  size_t tensor_count;
  size_t tensor_capacity;
  mgl_op *ops;
  size_t op_count;
  size_t op_capacity;
  uint32_t *name_table;  // open addressing, tensor index + 1, 0 = empty
  size_t name_table_size;
  mgl_error error;  // the first failure of a constructor
} mgl_graph;

mgl_status mgl_graph_create(const char *name, mgl_graph **out, mgl_error *err);
void mgl_graph_destroy(mgl_graph *graph);  // NULL is fine

// Declares a tensor. Name rules: 1 to MGL_GRAPH_MAX_NAME_BYTES - 1 of [A-Za-z0-9_.-], unique.
uint32_t mgl_graph_tensor(mgl_graph *graph, const char *name, mgl_placement placement,
                          mgl_dtype dtype, uint32_t rank, const mgl_dim *dims);
// Declares one of any form; codes are for weights [N,K] and [E,N,K] only.
uint32_t mgl_graph_form_tensor(mgl_graph *graph, const char *name, mgl_placement placement,
                               mgl_form form, uint32_t rank, const mgl_dim *dims);
// Appends an op whose output is an already declared tensor. Checks kinds, shapes and dtypes by
// op.def.
void mgl_graph_op(mgl_graph *graph, mgl_op op);
void mgl_graph_mark_output(mgl_graph *graph, uint32_t tensor);
// The tensor of that name, or MGL_NO_TENSOR.
uint32_t mgl_graph_find(const mgl_graph *graph, const char *name);

// Reports the sticky error, or checks what only a whole program can violate: no op reads an
// activation before it is written or after its storage was taken over; every activation but the
// outputs is read.
mgl_status mgl_graph_finish(mgl_graph *graph, mgl_error *err);

// --- op constructors: the result is a fresh activation named `name` ------------------------------
uint32_t mgl_graph_embed(mgl_graph *graph, const char *name, uint32_t tokens, uint32_t table);
typedef struct mgl_norm_weights {
  uint32_t weight, shift;
} mgl_norm_weights;
// rows may be MGL_NO_TENSOR.
uint32_t mgl_graph_rmsnorm(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                           uint32_t weight, uint32_t rows, double eps);
uint32_t mgl_graph_layernorm(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                             mgl_norm_weights weights, uint32_t rows, double eps);
// The output is [T, N], or [T, heads, N / heads] when heads is not 0. bias may be MGL_NO_TENSOR.
uint32_t mgl_graph_linear(mgl_graph *graph, const char *name, uint32_t x, uint32_t weight,
                          uint32_t bias, uint32_t heads);
// lengths: MGL_NO_TENSOR where the frequencies do not depend on them (graph/rope.h).
uint32_t mgl_graph_rope_angles(mgl_graph *graph, const char *name, uint32_t positions,
                               uint32_t lengths, const mgl_rope_frequencies *rope);
uint32_t mgl_graph_rope(mgl_graph *graph, const char *name, uint32_t x, uint32_t angles);
void mgl_graph_kv_write(mgl_graph *graph, uint32_t k, uint32_t v, uint32_t slots, uint32_t kv);
typedef struct mgl_attention_inputs {
  uint32_t q, kv, positions, block_tables;
  double scale;
  uint32_t window;  // 0: none
  uint32_t sinks;   // MGL_NO_TENSOR: none
} mgl_attention_inputs;
uint32_t mgl_graph_attention(mgl_graph *graph, const char *name, mgl_dtype dtype,
                             const mgl_attention_inputs *inputs);
uint32_t mgl_graph_silu_mul(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t gate,
                            uint32_t up);
uint32_t mgl_graph_gelu(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x);
uint32_t mgl_graph_add(mgl_graph *graph, const char *name, uint32_t x, uint32_t y);
typedef struct mgl_route_options {
  uint32_t slots;  // experts of a token
  mgl_scores scores;
  bool renormalise;
  double scale;
  uint32_t groups, top_groups;  // 0: none
} mgl_route_options;
// bias may be MGL_NO_TENSOR.
uint32_t mgl_graph_route(mgl_graph *graph, const char *name, uint32_t logits, uint32_t bias,
                         const mgl_route_options *options);
// Weights of all experts of a layer; biases may be MGL_NO_TENSOR, all of them or none.
typedef struct mgl_expert_weights {
  uint32_t gate, up, down;
  uint32_t gate_bias, up_bias, down_bias;
} mgl_expert_weights;
uint32_t mgl_graph_expert_gate_up(mgl_graph *graph, const char *name, mgl_dtype dtype, uint32_t x,
                                  uint32_t routes, const mgl_expert_weights *weights, double limit);
uint32_t mgl_graph_expert_down(mgl_graph *graph, const char *name, uint32_t residual, uint32_t x,
                               uint32_t routes, const mgl_expert_weights *weights);

// residual + the sum of all ranks' parts; and the parts side by side.
uint32_t mgl_graph_all_reduce(mgl_graph *graph, const char *name, uint32_t residual, uint32_t part,
                              uint32_t ranks);
uint32_t mgl_graph_reduce_scatter(mgl_graph *graph, const char *name, uint32_t part,
                                  uint32_t ranks);
uint32_t mgl_graph_all_gather(mgl_graph *graph, const char *name, uint32_t part, uint32_t ranks);
// Zeros of the shape of x.
uint32_t mgl_graph_zeros(mgl_graph *graph, const char *name, uint32_t x);
// The op that computes for one set of weights what ops of this kind compute for those of a router
// or of experts; other kinds: themselves.
mgl_op_kind mgl_op_kind_of_one(mgl_op_kind kind);

// Number of elements of a tensor, symbols replaced by these values.
typedef struct mgl_dim_values {
  uint32_t tokens;
  uint32_t logit_rows;
  uint32_t sequences;
} mgl_dim_values;
uint64_t mgl_dim_value(mgl_dim dim, const mgl_dim_values *values);
uint64_t mgl_tensor_elements(const mgl_tensor *tensor, const mgl_dim_values *values);
// mgl_op_input as a tensor; NULL if the op has none of that role.
const mgl_tensor *mgl_graph_input(const mgl_graph *graph, const mgl_op *op, mgl_role role);
bool mgl_dim_same(mgl_dim a, mgl_dim b);
bool mgl_tensor_same_shape(const mgl_tensor *a, const mgl_tensor *b);
// Elements of all dims but the first.
uint64_t mgl_tensor_row_elements(const mgl_tensor *tensor);
mgl_form mgl_tensor_form(const mgl_tensor *tensor);
// Bytes of these elements, with the scales and offsets of a weight of codes.
uint64_t mgl_tensor_row_bytes(const mgl_tensor *tensor);
// Bytes of a row [K] of a weight [N,K] or [E,N,K].
uint64_t mgl_tensor_inner_bytes(const mgl_tensor *tensor);
// Experts of a weight [E,N,K], which are bound one by one; 0 of all other tensors.
uint32_t mgl_tensor_experts(const mgl_tensor *tensor);
// Of a weight as it is stored, of which a rank may have a part: its name, in `buffer` where it has
// another one here, and its size in a dim.
const char *mgl_stored_name(const mgl_tensor *tensor, char buffer[MGL_GRAPH_MAX_NAME_BYTES]);
uint64_t mgl_stored_dim(const mgl_tensor *tensor, uint32_t dim);

// Finds an activation of at least `count` elements where the dims are at most `largest`.
mgl_status mgl_graph_find_activation(const mgl_graph *graph, const char *name, size_t count,
                                     const mgl_dim_values *largest, uint32_t *out, mgl_error *err);

// First element of a slice's dim, or of each of its pieces, on that rank.
uint32_t mgl_slice_begin(const mgl_tensor *tensor, uint32_t rank);
// Elements of a row of an ELEMENT op that are its units: of what it writes, or of its part.
uint32_t mgl_op_row_units(const mgl_graph *graph, const mgl_op *op);
// Elements of a vector of an op whose unit that is: those of its norm's weight; without one, a row.
uint32_t mgl_op_vector_elements(const mgl_graph *graph, const mgl_op *op);
// Experts that a token has: by the routes of an op of experts, or by its rows, where it has none.
uint32_t mgl_op_slots(const mgl_graph *graph, const mgl_op *op);

#endif
