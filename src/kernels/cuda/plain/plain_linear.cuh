// The plain linear: a warp computes a few features of a few tokens; its lanes take eight elements
// of a row each in turn. So a weight is read once for every eight tokens, from the caches but for
// the first time, and rows of any length, dtype and form do.
//
// Rejected: tiles in shared memory and tensor cores. Those are the fused tasks' business.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_LINEAR_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_LINEAR_CUH

#include "kernels/cuda/plain/plain_block.cuh"
#include "kernels/cuda/plain/plain_ordered.cuh"
#include "kernels/cuda/plain/plain_ordered_codes.cuh"

#define MGL_PLAIN_NO_ROW 0xffffffffu

// Four rows of weights, and up to eight of x.
typedef struct mgl_plain_products {
  const mgl_plain_tensor *w[MGL_PLAIN_FEATURES];
  uint64_t w_rows[MGL_PLAIN_FEATURES];
  const mgl_plain_tensor *x;
  uint32_t x_rows[MGL_PLAIN_TOKENS];  // MGL_PLAIN_NO_ROW: none
} mgl_plain_products;

// The lane's products, added to its sums.
MGL_PLAIN_FN void mgl_plain_multiply(const mgl_plain_products *p, uint32_t lane, uint32_t lanes,
                                     float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS]) {
  uint32_t width = p->w[0]->width;
  for (uint32_t k = lane * MGL_PLAIN_RUN; k < width; k += lanes * MGL_PLAIN_RUN) {
    float weights[MGL_PLAIN_FEATURES][MGL_PLAIN_RUN];
    MGL_PLAIN_UNROLL
    for (uint32_t f = 0; f < MGL_PLAIN_FEATURES; f++) {
      mgl_plain_weights(p->w[f], p->w_rows[f], k, weights[f]);
    }
    MGL_PLAIN_UNROLL
    for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
      if (p->x_rows[j] != MGL_PLAIN_NO_ROW) {
        float values[MGL_PLAIN_RUN];
        const uint8_t *row = (const uint8_t *)p->x->data + p->x_rows[j] * p->x->row_bytes;
        mgl_plain_load_run(row, p->x->dtype, k, width, values);
        MGL_PLAIN_UNROLL
        for (uint32_t f = 0; f < MGL_PLAIN_FEATURES; f++) {
          MGL_PLAIN_UNROLL
          for (uint32_t i = 0; i < MGL_PLAIN_RUN; i++) {
            sums[f][j] = mgl_plain_fma(values[i], weights[f][i], sums[f][j]);
          }
        }
      }
    }
  }
}

// Of a matrix: rows n to n + 3, of experts behind row `first`; behind the last one, that one again.
MGL_PLAIN_FN void mgl_plain_take_rows(mgl_plain_products *p, const mgl_plain_tensor *w,
                                      uint64_t first, uint32_t n, uint32_t rows) {
  MGL_PLAIN_UNROLL
  for (uint32_t f = 0; f < MGL_PLAIN_FEATURES; f++) {
    p->w[f] = w;
    p->w_rows[f] = first + (n + f < rows ? n + f : rows - 1);
  }
}

// Features from n on, of tokens from t on.
MGL_PLAIN_FN void mgl_plain_linear_tile(const mgl_plain_op *op, uint32_t lane, uint32_t lanes,
                                        uint32_t n, uint32_t t) {
  const mgl_plain_tensor *x = &op->in[0], *w = &op->in[1];
  const float *bias = op->input_count > 2 ? mgl_plain_f32(&op->in[2]) : 0;
  float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS] = {{0}};
  mgl_plain_products p;
  p.x = x;
  mgl_plain_take_rows(&p, w, 0, n, w->rows);
  MGL_PLAIN_UNROLL
  for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
    p.x_rows[j] = t + j < x->rows ? t + j : MGL_PLAIN_NO_ROW;
  }
  mgl_plain_multiply(&p, lane, lanes, sums);
  MGL_PLAIN_UNROLL
  for (uint32_t f = 0; f < MGL_PLAIN_FEATURES; f++) {
    MGL_PLAIN_UNROLL
    for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
      if (t + j < x->rows) {  // the same in all lanes
        float sum = mgl_plain_warp_sum(sums[f][j]);
        if (lane == 0 && n + f < w->rows) {
          sum = bias != 0 ? sum + bias[n + f] : sum;
          ((float *)op->out.data)[(uint64_t)(t + j) * op->out.width + n + f] = sum;
        }
      }
    }
  }
}

// --- in the order of fused tasks -----------------------------------------------------------------

MGL_PLAIN_FN void mgl_ordered_put(const mgl_plain_op *op, uint32_t n, uint32_t t, float value) {
  if (op->input_count > 2) {
    value += mgl_plain_f32(&op->in[2])[n];
  }
  ((float *)op->out.data)[(uint64_t)t * op->out.width + n] = value;
}

// Features from n on, of tokens from t on. All threads of a block.
MGL_PLAIN_FN void mgl_ordered_tile(const mgl_plain_op *op, uint32_t n, uint32_t t) {
  const mgl_plain_tensor *w = &op->in[1];
  const uint32_t tokens = op->in[0].rows;
  mgl_ordered_source s = mgl_ordered_source_of(w, w, w->width);
#ifdef __CUDACC__
  __shared__ mgl_ordered_parts parts;
  const uint32_t row = threadIdx.x % MGL_PLAIN_LANES / 4;
  s.low = n + row < w->rows ? n + row : MGL_ORDERED_NO_ROW;
  s.high = n + row + 8 < w->rows ? n + row + 8 : MGL_ORDERED_NO_ROW;
  s.x = t + row < tokens ? mgl_ordered_row(op, t + row) : 0;
  mgl_ordered_multiply_any(op, &s, &parts);
  const uint32_t token = threadIdx.x / MGL_ORDERED_FEATURES;
  const uint32_t feature = threadIdx.x % MGL_ORDERED_FEATURES;
  if (token < MGL_ORDERED_TOKENS && t + token < tokens && n + feature < w->rows) {
    mgl_ordered_put(op, n + feature, t + token, mgl_ordered_total(op, &s, &parts, token, feature));
  }
#else
  for (uint32_t i = n; i < n + MGL_ORDERED_FEATURES && i < w->rows; i++) {
    for (uint32_t j = t; j < t + MGL_ORDERED_TOKENS && j < tokens; j++) {
      s.low = i;
      s.x = mgl_ordered_row(op, j);
      mgl_ordered_put(op, i, j, mgl_ordered_one(op, &s));
    }
  }
#endif
}

// A block computes a tile.
MGL_PLAIN_FN void mgl_ordered_linear(const mgl_plain_op *op, mgl_plain_place at) {
  uint64_t token_tiles = (op->in[0].rows + MGL_ORDERED_TOKENS - 1) / MGL_ORDERED_TOKENS;
  uint64_t tiles = (op->units + MGL_ORDERED_FEATURES - 1) / MGL_ORDERED_FEATURES * token_tiles;
  for (uint64_t i = at.block; i < tiles; i += at.blocks) {
    const uint32_t n = (uint32_t)(i / token_tiles) * MGL_ORDERED_FEATURES;
    const uint32_t t = (uint32_t)(i % token_tiles) * MGL_ORDERED_TOKENS;
    mgl_ordered_tile(op, n, t);
  }
}

MGL_PLAIN_FN void mgl_plain_linear(const mgl_plain_op *op, mgl_plain_place at) {
  if (mgl_plain_is_ordered(op) || mgl_plain_is_ordered_coded(op)) {
    mgl_ordered_linear(op, at);
    return;
  }
  uint32_t lanes = mgl_plain_lanes(at);
  uint64_t token_tiles = (op->in[0].rows + MGL_PLAIN_TOKENS - 1) / MGL_PLAIN_TOKENS;
  uint64_t tiles = (op->units + MGL_PLAIN_FEATURES - 1) / MGL_PLAIN_FEATURES * token_tiles;
  // Neighbours have the same features, so that a block's first level cache serves them.
  for (uint64_t i = mgl_plain_first_warp(at); i < tiles; i += mgl_plain_warp_step(at)) {
    mgl_plain_linear_tile(op, at.thread % lanes, lanes,
                          (uint32_t)(i / token_tiles) * MGL_PLAIN_FEATURES,
                          (uint32_t)(i % token_tiles) * MGL_PLAIN_TOKENS);
  }
}

#endif
