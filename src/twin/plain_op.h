// What a launch of a plain kernel gets: an op of the tensor program with its operands' addresses
// under the plan of one iteration. One struct for all ops, filled in from what op.def says of them,
// so that a new op needs a kernel and nothing on the host. One source for host and device.
#ifndef MGL_TWIN_PLAIN_OP_H
#define MGL_TWIN_PLAIN_OP_H

#include <stdint.h>

#include "graph/op.h"

enum {
  MGL_PLAIN_THREADS = 256,  // of a block
  MGL_PLAIN_MAX_INPUTS = 8,
  // Linears: a warp computes so many features of so many tokens.
  MGL_PLAIN_FEATURES = 4,
  MGL_PLAIN_TOKENS = 8,
  // Of those in the order of fused tasks a block computes so many.
  MGL_ORDERED_FEATURES = 16,
  MGL_ORDERED_TOKENS = 8,
};

typedef struct mgl_plain_tensor {
  void *data;         // of KV: K
  void *v;            // of KV: V
  const float *code;  // [256] values of a code's bits; NULL: elements are plain
  uint32_t dtype;     // mgl_dtype
  uint32_t rows;      // of the first dim, under this plan; of experts: of all their matrices
  uint32_t width;     // elements of a row, of all other dims; of one dim: 1; of experts: the last
  uint32_t last;      // elements of the last dim
  // Of codes (base/form.h): elements that share a scale, and where in a row's bytes scales and
  // offsets lie (0: there are none).
  uint32_t group, scales, offsets;
  uint32_t padding;
  uint64_t row_bytes;
} mgl_plain_tensor;

typedef struct mgl_plain_op {
  mgl_plain_tensor in[MGL_PLAIN_MAX_INPUTS];  // in the order of op.def
  mgl_plain_tensor out;
  uint32_t input_count;
  uint32_t value_count;
  const float *values;        // [value_count] of the op
  uint64_t units;             // of op.def's kind, but of HEAD a query head of a token
  const uint32_t *sequences;  // [T] row of the block tables
  uint32_t table_stride;      // entries of a row
  uint32_t page_tokens;       // P of K [pages, HKV, HD, P] and V [pages, HKV, P, HD]
  uint32_t fused_order;       // 1: sums have the order of fused tasks, which cover the model
  uint32_t share_sums;        // then, of codes: sums of 128 columns, 1, 2 or 4
  // 1: in[0] is what an RMS norm made of the rows below, and its factor is applied to the sums.
  uint32_t normed;
  float norm_eps;
  mgl_plain_tensor norm_x, norm_weight, norm_rows;  // norm_rows.data NULL: row by row
  double attrs[MGL_ATTR_COUNT];
} mgl_plain_op;

#endif
