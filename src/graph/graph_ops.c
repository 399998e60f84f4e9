// The ops of a program: appended, if they are what op.def says of each; a function for each,
// check_NAME, says what is wrong. op_constructors.c makes ops.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/balance.h"
#include "graph/custom_op.h"
#include "graph/graph.h"

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
         t->dims[0].symbol == symbol && t->dims[0].number == 0;
}

// f32 activation of shape [T, heads, HD].
static bool is_heads(const mgl_tensor *t) {
  return is_act(t) && is_f32(t) && t->rank == 3;
}

static bool is_number(double value, double most) {
  return value >= 0 && value <= most && value == floor(value);
}

static const char *check_embed(const mgl_op *op, const mgl_tensor *const *in,
                               const mgl_tensor *out) {
  if (!is_index(in[0], MGL_DIM_TOKENS)) {
    return "tokens must be an input i32[T]";
  }
  if (op->attrs[MGL_ATTR_OVER] != 0 && !is_number(op->attrs[MGL_ATTR_OVER], MGL_MAX_RANKS)) {
    return "over must be 0, or ranks";
  }
  if (!is_float_weight(in[1]) || in[1]->rank != 2) {
    return "the table must be a weight [V,D]";
  }
  bool fits = is_f32(out) && out->rank == 2 && mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              mgl_dim_same(out->dims[1], in[1]->dims[1]);
  return fits ? NULL : "the result must be f32[T,D]";
}

// x, `weights` vectors, and rows if there is one input more.
static const char *check_norm(const mgl_tensor *const *in, uint32_t weights, uint32_t count,
                              const mgl_tensor *out) {
  const mgl_tensor *rows = count == weights + 2 ? in[count - 1] : NULL;
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank < 2) {
    return "x must be an f32 activation of rank 2 or more";
  }
  for (uint32_t i = 1; i <= weights; i++) {
    bool fits = is_float_weight(in[i]) && in[i]->rank == 1 &&
                (in[i]->dims[0].number == in[0]->dims[in[0]->rank - 1].number ||
                 in[i]->dims[0].number == mgl_tensor_row_elements(in[0])) &&
                mgl_dim_same(in[i]->dims[0], in[1]->dims[0]);
    if (!fits) {
      return "the weight must be as long as the last dim of x, or as a row";
    }
  }
  if (rows != NULL && (!is_index(rows, MGL_DIM_LOGIT_ROWS) || in[0]->rank != 2)) {
    return "rows must be an input i32[L], with x of rank 2";
  }
  bool fits = is_act(out) && out->rank == in[0]->rank &&
              mgl_dim_same(out->dims[0], rows != NULL ? rows->dims[0] : in[0]->dims[0]);
  for (uint32_t i = 1; fits && i < out->rank; i++) {
    fits = mgl_dim_same(out->dims[i], in[0]->dims[i]);
  }
  return fits ? NULL : "the result must have the shape of x (L rows where rows are given)";
}

static const char *check_rmsnorm(const mgl_op *op, const mgl_tensor *const *in,
                                 const mgl_tensor *out) {
  return check_norm(in, 1, op->input_count, out);
}

static const char *check_layernorm(const mgl_op *op, const mgl_tensor *const *in,
                                   const mgl_tensor *out) {
  return check_norm(in, 2, op->input_count, out);
}

// x, a matrix and, with `count` 3, a bias.
static const char *check_product(const mgl_tensor *const *in, uint32_t count,
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
  if (count == 3 && (!is_float_weight(in[2]) || in[2]->rank != 1 ||
                     !mgl_dim_same(in[2]->dims[0], in[1]->dims[0]))) {
    return "the bias must be a weight [N]";
  }
  bool fits = is_act(out) && is_f32(out) && out->rank >= 2 &&
              mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              mgl_tensor_row_elements(out) == in[1]->dims[0].number;
  return fits ? NULL : "the result must be f32 with the rows of x and N elements a row";
}

static const char *check_linear(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  return check_product(in, op->input_count, out);
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
              mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              mgl_dim_same(out->dims[2], MGL_DIM(2)) && out->dims[1].number <= MGL_MAX_HEAD_DIM / 2;
  return fits ? check_frequencies(op, out->dims[1].number) : "the result must be f32[T,RD/2,2]";
}

// The angles of heads [T,heads,HD].
static bool are_angles(const mgl_tensor *angles, const mgl_tensor *heads) {
  return is_act(angles) && is_f32(angles) && angles->rank == 3 &&
         mgl_dim_same(angles->dims[0], heads->dims[0]) && angles->dims[2].number == 2 &&
         (uint64_t)angles->dims[1].number * 2 <= heads->dims[2].number;
}

static const char *check_rope(const mgl_op *op, const mgl_tensor *const *in,
                              const mgl_tensor *out) {
  (void)op;
  if (!is_heads(in[0])) {
    return "x must be f32[T,heads,HD]";
  }
  if (!are_angles(in[1], in[0])) {
    return "angles must be f32[T,RD/2,2] with RD at most HD";
  }
  return is_heads(out) && mgl_tensor_same_shape(out, in[0]) ? NULL
                                                            : "the result must have the shape of x";
}

static const char *check_kv_write(const mgl_op *op, const mgl_tensor *const *in,
                                  const mgl_tensor *out) {
  (void)op;
  if (!is_heads(in[0]) || !is_heads(in[1]) || !mgl_tensor_same_shape(in[0], in[1])) {
    return "k and v must be f32[T,HKV,HD]";
  }
  if (!is_index(in[2], MGL_DIM_TOKENS)) {
    return "slots must be an input i32[T]";
  }
  bool fits = out->placement == MGL_PLACE_KV && out->rank == 2 &&
              (out->dtype == MGL_DTYPE_BF16 || out->dtype == MGL_DTYPE_F32 ||
               out->dtype == MGL_DTYPE_KV8) &&
              mgl_dim_same(out->dims[0], in[0]->dims[1]) &&
              mgl_dim_same(out->dims[1], in[0]->dims[2]);
  return fits ? NULL : "the result must be a bf16, f32 or e4m3 kv tensor [HKV,HD]";
}

static bool is_window(double tokens) {
  return tokens >= 0 && tokens <= UINT32_MAX && tokens == floor(tokens);
}

static const char *check_attention(const mgl_op *op, const mgl_tensor *const *in,
                                   const mgl_tensor *out) {
  if (!is_heads(in[0])) {
    return "q must be f32[T,H,HD]";
  }
  if (in[1]->placement != MGL_PLACE_KV || !mgl_dim_same(in[1]->dims[1], in[0]->dims[2]) ||
      in[0]->dims[1].number % in[1]->dims[0].number != 0) {
    return "kv must be [HKV,HD] with HKV dividing H";
  }
  if (!is_index(in[2], MGL_DIM_TOKENS) || !is_index(in[3], MGL_DIM_SEQUENCES)) {
    return "positions must be an input i32[T], block_tables i32[R]";
  }
  if (!(op->attrs[MGL_ATTR_SCALE] > 0) || !is_window(op->attrs[MGL_ATTR_WINDOW])) {
    return "scale must be positive, the window a number of tokens, or 0";
  }
  if (op->input_count == 5 && (!is_float_weight(in[4]) || in[4]->rank != 1 ||
                               !mgl_dim_same(in[4]->dims[0], in[0]->dims[1]))) {
    return "the sinks must be a weight [H]";
  }
  return is_act(out) && mgl_tensor_same_shape(out, in[0]) ? NULL
                                                          : "the result must have the shape of q";
}

static const char *check_silu_mul(const mgl_op *op, const mgl_tensor *const *in,
                                  const mgl_tensor *out) {
  (void)op;
  if (!is_act(in[0]) || !is_f32(in[0]) || !is_act(in[1]) || !is_f32(in[1]) ||
      !mgl_tensor_same_shape(in[0], in[1])) {
    return "gate and up must be f32 of one shape";
  }
  return is_act(out) && mgl_tensor_same_shape(out, in[0])
             ? NULL
             : "the result must have the shape of gate";
}

static const char *check_gelu(const mgl_op *op, const mgl_tensor *const *in,
                              const mgl_tensor *out) {
  (void)op;
  return is_act(in[0]) && is_f32(in[0]) && is_act(out) && mgl_tensor_same_shape(out, in[0])
             ? NULL
             : "x must be an f32 activation, the result one of its shape";
}

static const char *check_add(const mgl_op *op, const mgl_tensor *const *in, const mgl_tensor *out) {
  (void)op;
  if (!is_act(in[0]) || !is_f32(in[0]) || !is_act(in[1]) || !is_f32(in[1]) ||
      !mgl_tensor_same_shape(in[0], in[1])) {
    return "x and y must be f32 of one shape";
  }
  return is_act(out) && is_f32(out) && mgl_tensor_same_shape(out, in[0])
             ? NULL
             : "the result must be f32 with the shape of x";
}

// --- fused ops -----------------------------------------------------------------------------------

// x f32[T,D] and norm[D], the first two inputs of all ops that begin with a norm.
static bool is_normed_input(const mgl_tensor *const *in) {
  return is_act(in[0]) && is_f32(in[0]) && in[0]->rank == 2 && is_float_weight(in[1]) &&
         in[1]->rank == 1 && mgl_dim_same(in[1]->dims[0], in[0]->dims[1]);
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
        !mgl_dim_same(in[i]->dims[0], in[i - 3]->dims[0])) {
      return "a bias must be as long as its weight has rows";
    }
  }
  bool fits = is_heads(out) && mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              mgl_tensor_row_elements(out) == features &&
              mgl_dim_same(in[3]->dims[0], in[4]->dims[0]) &&
              in[3]->dims[0].number % out->dims[2].number == 0;
  return fits ? NULL : "the result must be f32[T,H+2*HKV,HD]";
}

static const char *check_attend(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  if (!is_heads(in[0]) || in[1]->placement != MGL_PLACE_KV ||
      !mgl_dim_same(in[1]->dims[1], in[0]->dims[2]) ||
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
  if (op->input_count == 7 && (!is_float_weight(in[6]) || in[6]->rank != 1 ||
                               !mgl_dim_same(in[6]->dims[0], out->dims[1]))) {
    return "the sinks must be a weight [H]";
  }
  for (uint32_t i = 6; op->input_count == 8 && i < 8; i++) {
    if (!is_float_weight(in[i]) || in[i]->rank != 1 ||
        !mgl_dim_same(in[i]->dims[0], in[0]->dims[2])) {
      return "q_norm and k_norm must be weights [HD]";
    }
  }
  bool fits = op->attrs[MGL_ATTR_SCALE] > 0 && is_act(out) && out->rank == 3 &&
              mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              mgl_dim_same(out->dims[2], in[0]->dims[2]) &&
              out->dims[1].number == in[0]->dims[1].number - 2 * in[1]->dims[0].number;
  return fits ? NULL : "scale must be positive and the result act[T,H,HD]";
}

static const char *check_linear_add(const mgl_op *op, const mgl_tensor *const *in,
                                    const mgl_tensor *out) {
  const char *wrong = check_product(in + 1, op->input_count - 1, out);
  const double over = op->attrs[MGL_ATTR_OVER];
  if (wrong != NULL) {
    return wrong;
  }
  if (over != 0 && !(over >= 2 && over <= MGL_MAX_RANKS && over == floor(over))) {
    return "over must be 2 to 8 ranks, or left out";
  }
  return is_act(in[0]) && mgl_tensor_same_shape(in[0], out)
             ? NULL
             : "the residual must have the result's shape";
}

static const char *check_gate_up(const mgl_op *op, const mgl_tensor *const *in,
                                 const mgl_tensor *out) {
  (void)op;
  if (!is_normed_input(in) || !is_matrix(in[2], in[0]->dims[1].number) ||
      !is_matrix(in[3], in[0]->dims[1].number) || !mgl_tensor_same_shape(in[2], in[3])) {
    return "x must be f32[T,D], norm [D], w_gate and w_up [F,D]";
  }
  bool fits = is_act(out) && out->rank == 2 && mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              mgl_dim_same(out->dims[1], in[2]->dims[0]);
  return fits ? NULL : "the result must be act[T,F]";
}

static const char *check_logits(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  (void)op;
  if (!is_normed_input(in) || !is_index(in[2], MGL_DIM_LOGIT_ROWS) ||
      !is_matrix(in[3], in[0]->dims[1].number)) {
    return "x must be f32[T,D], norm [D], rows i32[L], w [V,D]";
  }
  bool fits = is_act(out) && is_f32(out) && out->rank == 2 &&
              mgl_dim_same(out->dims[0], in[2]->dims[0]) &&
              mgl_dim_same(out->dims[1], in[3]->dims[0]);
  return fits ? NULL : "the result must be f32[L,V]";
}

// --- device ops ----------------------------------------------------------------------------------

// i32 activation of rank 1 and that length.
static bool is_int_vector(const mgl_tensor *t, mgl_dim dim) {
  return t->placement == MGL_PLACE_ACTIVATION && t->dtype == MGL_DTYPE_I32 && t->rank == 1 &&
         mgl_dim_same(t->dims[0], dim);
}

static const char *check_next_plan(const mgl_op *op, const mgl_tensor *const *in,
                                   const mgl_tensor *out) {
  (void)op;
  if (!is_index(in[0], MGL_DIM_TOKENS)) {
    return "tokens must be an input i32[T]";
  }
  return is_int_vector(out, MGL_DIM(1)) ? NULL : "the result must be i32[1]";
}

static const char *check_sample(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  (void)op;
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2 ||
      !mgl_dim_same(in[0]->dims[0], MGL_DIM_L)) {
    return "logits must be f32[L,V]";
  }
  if (!is_int_vector(in[1], MGL_DIM(1))) {
    return "next_plan must be an activation i32[1]";
  }
  return is_int_vector(out, MGL_DIM_L) ? NULL : "the result must be i32[L]";
}

// --- mixtures of experts -------------------------------------------------------------------------

static const char *check_route(const mgl_op *op, const mgl_tensor *const *in,
                               const mgl_tensor *out) {
  const double *a = op->attrs;
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2) {
    return "logits must be f32[T,E]";
  }
  const uint32_t experts = in[0]->dims[1].number;
  if (op->input_count == 2 && (!is_float_weight(in[1]) || in[1]->rank != 1 ||
                               !mgl_dim_same(in[1]->dims[0], in[0]->dims[1]))) {
    return "the bias must be a weight [E]";
  }
  if (!(a[MGL_ATTR_SCALE] > 0) || !is_number(a[MGL_ATTR_SCORES], MGL_SCORES_COUNT - 1) ||
      !is_number(a[MGL_ATTR_RENORMALISE], 1)) {
    return "scale must be positive, scores 0, 1 or 2, renormalise 0 or 1";
  }
  bool fits = is_act(out) && is_f32(out) && out->rank == 3 &&
              mgl_dim_same(out->dims[0], in[0]->dims[0]) && out->dims[1].number <= experts &&
              experts <= MGL_MAX_EXPERTS && out->dims[2].number == 2;
  if (!fits) {
    return "the result must be f32[T,S,2] with S at most E, of at most 1024 experts";
  }
  const double groups = a[MGL_ATTR_GROUPS] == 0 ? 1 : a[MGL_ATTR_GROUPS];
  if (!is_number(groups, experts) || fmod(experts, groups) != 0 ||
      !is_number(a[MGL_ATTR_TOP_GROUPS], groups) ||
      (a[MGL_ATTR_TOP_GROUPS] != 0 &&
       a[MGL_ATTR_TOP_GROUPS] * (experts / groups) < out->dims[1].number)) {
    return "groups must divide E, and top_groups of them must have S experts";
  }
  return NULL;
}

// A weight [E,N,K] and, where there is a bias, that as [E*N].
static bool are_experts(const mgl_tensor *w, const mgl_tensor *bias, uint64_t columns) {
  bool fits = is_float_weight(w) && w->rank == 3 && w->dims[2].number == columns &&
              w->dims[0].number <= MGL_MAX_EXPERTS;
  return fits && (bias == NULL || (is_float_weight(bias) && bias->rank == 1 &&
                                   bias->dims[0].number / w->dims[1].number == w->dims[0].number &&
                                   bias->dims[0].number % w->dims[1].number == 0));
}

static bool are_routes(const mgl_tensor *t, mgl_dim rows) {
  return is_act(t) && is_f32(t) && t->rank == 3 && mgl_dim_same(t->dims[0], rows) &&
         t->dims[2].number == 2;
}

static bool takes_experts(const mgl_tensor *x, const mgl_tensor *w) {
  return x->dtype != MGL_DTYPE_BF16 || mgl_dtype_fits_bf16(w->dtype);
}

static const char wrong_balance[] =
    "balance must be 0 (columns), 1 (static), 2 (dynamic) or 3 (hybrid)";

static const char *check_expert_gate_up(const mgl_op *op, const mgl_tensor *const *in,
                                        const mgl_tensor *out) {
  const bool biased = op->input_count == 6;
  if (!is_act(in[0]) || in[0]->rank != 2 || !mgl_dim_same(in[0]->dims[0], MGL_DIM_T) ||
      !are_routes(in[1], in[0]->dims[0])) {
    return "x must be act[T,D], routes f32[T,S,2]";
  }
  if ((op->input_count != 4 && !biased) ||
      !are_experts(in[2], biased ? in[4] : NULL, in[0]->dims[1].number) ||
      !are_experts(in[3], biased ? in[5] : NULL, in[0]->dims[1].number) ||
      !mgl_tensor_same_shape(in[2], in[3])) {
    return "w_gate and w_up must be weights [E,F,D], with biases [E*F] or none";
  }
  if (!takes_experts(in[0], in[2]) || !takes_experts(in[0], in[3])) {
    return "bf16 activations need weights of bf16 or codes";
  }
  if (!(op->attrs[MGL_ATTR_LIMIT] >= 0) || in[1]->dims[1].number > in[2]->dims[0].number) {
    return "limit must not be negative, and a token has at most all experts";
  }
  if (!is_number(op->attrs[MGL_ATTR_BALANCE], MGL_BALANCE_COUNT - 1)) {
    return wrong_balance;
  }
  bool fits = is_act(out) && out->rank == 2 &&
              mgl_dim_same(out->dims[0], MGL_DIM_T_TIMES(in[1]->dims[1].number)) &&
              mgl_dim_same(out->dims[1], in[2]->dims[1]);
  return fits ? NULL : "the result must be act[sT,F], S rows a token";
}

static const char *check_expert_down(const mgl_op *op, const mgl_tensor *const *in,
                                     const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2 ||
      !mgl_dim_same(in[0]->dims[0], MGL_DIM_T) || !are_routes(in[2], in[0]->dims[0])) {
    return "the residual must be f32[T,N], routes f32[T,S,2]";
  }
  if (!is_act(in[1]) || in[1]->rank != 2 ||
      !mgl_dim_same(in[1]->dims[0], MGL_DIM_T_TIMES(in[2]->dims[1].number))) {
    return "x must be act[sT,F], S rows a token";
  }
  if (!are_experts(in[3], op->input_count == 5 ? in[4] : NULL, in[1]->dims[1].number) ||
      !mgl_dim_same(in[3]->dims[1], in[0]->dims[1]) || !takes_experts(in[1], in[3]) ||
      in[2]->dims[1].number > in[3]->dims[0].number) {
    return "w must be a weight [E,N,F] that x fits, with a bias [E*N] or none";
  }
  if (!is_number(op->attrs[MGL_ATTR_BALANCE], MGL_BALANCE_COUNT - 1)) {
    return wrong_balance;
  }
  return is_act(out) && is_f32(out) && mgl_tensor_same_shape(out, in[0])
             ? NULL
             : "the result must be f32 with the shape of the residual";
}

// --- several ranks -------------------------------------------------------------------------------

static bool is_part(const mgl_tensor *t) {
  return is_act(t) && is_f32(t) && t->rank == 2 && !t->is_output;
}

static const char *check_ranks(const mgl_op *op) {
  const double ranks = op->attrs[MGL_ATTR_RANKS];
  return ranks >= 2 && is_number(ranks, MGL_MAX_RANKS) ? NULL : "ranks must be 2 to 8";
}

static const char *check_all_reduce(const mgl_op *op, const mgl_tensor *const *in,
                                    const mgl_tensor *out) {
  if (!is_part(in[1]) || in[0] == in[1]) {
    return "part must be an f32 activation of rank 2, and not the residual or an output";
  }
  bool fits = is_act(in[0]) && is_f32(in[0]) && mgl_tensor_same_shape(in[0], in[1]) &&
              is_act(out) && is_f32(out) && mgl_tensor_same_shape(out, in[0]);
  return fits ? check_ranks(op) : "residual and result must be f32 with the shape of part";
}

static const char *check_reduce_scatter(const mgl_op *op, const mgl_tensor *const *in,
                                        const mgl_tensor *out) {
  if (!is_part(in[0])) {
    return "part must be an f32 activation of rank 2, and not an output";
  }
  const char *wrong = check_ranks(op);
  bool fits = is_act(out) && is_f32(out) && out->rank == 2 &&
              mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              in[0]->dims[1].number == out->dims[1].number * op->attrs[MGL_ATTR_RANKS];
  return wrong != NULL ? wrong
         : fits        ? NULL
                       : "the result must be f32 with a rank's columns of part";
}

static const char *check_all_gather(const mgl_op *op, const mgl_tensor *const *in,
                                    const mgl_tensor *out) {
  if (!is_part(in[0])) {
    return "part must be an f32 activation of rank 2, and not an output";
  }
  const char *wrong = check_ranks(op);
  bool fits = is_act(out) && is_f32(out) && out->rank == 2 &&
              mgl_dim_same(out->dims[0], in[0]->dims[0]) &&
              out->dims[1].number == in[0]->dims[1].number * op->attrs[MGL_ATTR_RANKS];
  return wrong != NULL ? wrong : fits ? NULL : "the result must be f32 with a part for each rank";
}

static const char *check_zeros(const mgl_op *op, const mgl_tensor *const *in,
                               const mgl_tensor *out) {
  (void)op;
  return is_part(in[0]) && is_part(out) && mgl_tensor_same_shape(out, in[0])
             ? NULL
             : "x must be an f32 activation of rank 2, the result one of its shape";
}

// The router's logits, of one token a row.
static bool are_router_logits(const mgl_tensor *t, const mgl_tensor *w) {
  return is_act(t) && is_f32(t) && t->rank == 2 && mgl_dim_same(t->dims[0], MGL_DIM_T) &&
         mgl_dim_same(t->dims[1], w->dims[0]);
}

static const char *check_router(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2 ||
      !mgl_dim_same(in[0]->dims[0], MGL_DIM_T) || !is_float_weight(in[1]) || in[1]->rank != 1 ||
      !mgl_dim_same(in[1]->dims[0], in[0]->dims[1])) {
    return "x must be f32[T,D] with a norm [D]";
  }
  if (!is_float_weight(in[2]) || in[2]->rank != 2 ||
      !mgl_dim_same(in[2]->dims[1], in[0]->dims[1])) {
    return "w must be a weight [E,D]";
  }
  if (op->input_count == 4 && (!is_float_weight(in[3]) || in[3]->rank != 1 ||
                               !mgl_dim_same(in[3]->dims[0], in[2]->dims[0]))) {
    return "the bias must be a weight [E]";
  }
  return are_router_logits(out, in[2]) ? NULL : "the result must be f32[T,E]";
}

// Columns of S slots of F each.
static bool are_slots(const mgl_tensor *t, uint32_t features, uint32_t experts) {
  return is_act(t) && t->rank == 2 && mgl_dim_same(t->dims[0], MGL_DIM_T) &&
         t->dims[1].number % features == 0 && t->dims[1].number / features <= experts;
}

static const char *check_experts_up(const mgl_op *op, const mgl_tensor *const *in,
                                    const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2 ||
      !mgl_dim_same(in[0]->dims[0], MGL_DIM_T) || !is_float_weight(in[1]) || in[1]->rank != 1 ||
      !mgl_dim_same(in[1]->dims[0], in[0]->dims[1])) {
    return "x must be f32[T,D] with a norm [D]";
  }
  const bool biased = op->input_count == 7;
  if ((op->input_count != 5 && !biased) ||
      !are_experts(in[3], biased ? in[5] : NULL, in[0]->dims[1].number) ||
      !are_experts(in[4], biased ? in[6] : NULL, in[0]->dims[1].number) ||
      !mgl_tensor_same_shape(in[3], in[4]) || !are_router_logits(in[2], in[3])) {
    return "w_gate and w_up must be weights [E,F,D], with biases [E*F] or none, logits f32[T,E]";
  }
  if (!(op->attrs[MGL_ATTR_SCALE] > 0) || !(op->attrs[MGL_ATTR_LIMIT] >= 0) ||
      !is_number(op->attrs[MGL_ATTR_SCORES], MGL_SCORES_COUNT - 1)) {
    return "scale must be positive, scores 0, 1 or 2, limit not negative";
  }
  return are_slots(out, in[3]->dims[1].number, in[3]->dims[0].number)
             ? NULL
             : "the result must be act[T,S*F]";
}

static const char *check_experts_down(const mgl_op *op, const mgl_tensor *const *in,
                                      const mgl_tensor *out) {
  if (!is_act(in[0]) || !is_f32(in[0]) || in[0]->rank != 2 ||
      !mgl_dim_same(in[0]->dims[0], MGL_DIM_T)) {
    return "the residual must be f32[T,N]";
  }
  if (op->input_count == 5 && !are_experts(in[3], in[4], in[3]->dims[2].number)) {
    return "w must be a weight [E,N,F], its bias [E*N]";
  }
  if (!is_float_weight(in[3]) || in[3]->rank != 3 ||
      !mgl_dim_same(in[3]->dims[1], in[0]->dims[1]) || !are_router_logits(in[2], in[3]) ||
      !are_slots(in[1], in[3]->dims[2].number, in[3]->dims[0].number)) {
    return "x must be act[T,S*F], w a weight [E,N,F], logits f32[T,E]";
  }
  return mgl_tensor_same_shape(in[0], out) && is_act(out) && is_f32(out)
             ? NULL
             : "the result must be f32[T,N]";
}

// mgl_custom_op_check says what is wrong.
static const char *check_custom(const mgl_op *op, const mgl_tensor *const *in,
                                const mgl_tensor *out) {
  (void)op, (void)in, (void)out;
  return NULL;
}

static const char *check_custom_update(const mgl_op *op, const mgl_tensor *const *in,
                                       const mgl_tensor *out) {
  return check_custom(op, in, out);
}

// --- all of them ---------------------------------------------------------------------------------

typedef const char *check_function(const mgl_op *op, const mgl_tensor *const *in,
                                   const mgl_tensor *out);

static check_function *const checks[MGL_OP_COUNT] = {
#define MGL_OP(KIND, name, ...) [MGL_OP_##KIND] = check_##name,
#include "graph/op.def"
};

// NULL, or what is wrong with the op.
static const char *check_op(const mgl_op *op, const mgl_tensor *const *in, const mgl_tensor *out) {
  assert((uint32_t)op->kind < MGL_OP_COUNT);
  return op->attrs[MGL_ATTR_EPS] < 0 ? "eps must not be negative" : checks[op->kind](op, in, out);
}

// Whether an op of experts takes what a route made for as many of them: their numbers are then
// those of experts that there are.
static bool is_routed(const mgl_graph *graph, const mgl_op *op) {
  const uint32_t routes = mgl_op_input(op, MGL_ROLE_ROUTES);
  for (size_t i = graph->op_count; routes != MGL_NO_TENSOR && i-- > 0;) {
    const mgl_op *made = &graph->ops[i];
    if (made->output == routes) {
      return made->kind == MGL_OP_ROUTE &&
             mgl_graph_input(graph, made, MGL_ROLE_X)->dims[1].number ==
                 mgl_graph_input(graph, op, MGL_ROLE_EXPERTS)->dims[0].number;
    }
  }
  return routes == MGL_NO_TENSOR;
}

void mgl_graph_op(mgl_graph *graph, mgl_op op) {
  if (graph->error.status != MGL_OK) {
    return;
  }
  mgl_error *err = &graph->error;
  const mgl_op_info *info = mgl_op_info_of(op.kind);
  if (op.input_count < info->input_count ||
      op.input_count > info->input_count + info->optional_count) {
    (void)mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %u to %u inputs, found %u",
                        mgl_op_name(&op), info->input_count,
                        info->input_count + info->optional_count, op.input_count);
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
  if (wrong == NULL && !is_routed(graph, &op)) {
    wrong = "routes must come from a route of as many experts";
  }
  if (wrong != NULL) {
    (void)mgl_error_set(err, MGL_ERR_ARGUMENT, "%s = %s(%s, ...): %s", output->name, info->name,
                        inputs[0]->name, wrong);
    return;
  }
  if (op.custom != NULL && mgl_custom_op_check(&op, inputs, output, err) != MGL_OK) {
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

mgl_op_kind mgl_op_kind_of_one(mgl_op_kind kind) {
  switch (kind) {
    case MGL_OP_ROUTER: return MGL_OP_QKV_PROJ;
    case MGL_OP_EXPERTS_UP: return MGL_OP_GATE_UP;
    case MGL_OP_EXPERTS_DOWN: return MGL_OP_LINEAR_ADD;
    default: return kind;
  }
}
