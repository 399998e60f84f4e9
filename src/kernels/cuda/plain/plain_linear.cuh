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

// Elements k to k + 7 of every row of the tile: the lane's products, added to its sums.
MGL_PLAIN_FN void mgl_plain_linear_run(const mgl_plain_op *op, uint32_t n, uint32_t t, uint32_t k,
                                       float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS]) {
  const mgl_plain_tensor *x = &op->in[0], *w = &op->in[1];
  float weights[MGL_PLAIN_FEATURES][MGL_PLAIN_RUN];
  MGL_PLAIN_UNROLL
  for (uint32_t f = 0; f < MGL_PLAIN_FEATURES; f++) {  // rows behind the last one: that one again
    mgl_plain_weights(w, n + f < w->rows ? n + f : w->rows - 1, k, weights[f]);
  }
  MGL_PLAIN_UNROLL
  for (uint32_t j = 0; j < MGL_PLAIN_TOKENS; j++) {
    if (t + j < x->rows) {
      float values[MGL_PLAIN_RUN];
      const uint8_t *row = (const uint8_t *)x->data + (t + j) * x->row_bytes;
      mgl_plain_load_run(row, x->dtype, k, x->width, values);
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

// Features from n on, of tokens from t on.
MGL_PLAIN_FN void mgl_plain_linear_tile(const mgl_plain_op *op, uint32_t lane, uint32_t lanes,
                                        uint32_t n, uint32_t t) {
  const mgl_plain_tensor *x = &op->in[0], *w = &op->in[1];
  const float *bias = op->input_count > 2 ? mgl_plain_f32(&op->in[2]) : 0;
  float sums[MGL_PLAIN_FEATURES][MGL_PLAIN_TOKENS] = {{0}};
  for (uint32_t k = lane * MGL_PLAIN_RUN; k < w->width; k += lanes * MGL_PLAIN_RUN) {
    mgl_plain_linear_run(op, n, t, k, sums);
  }
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

// In the order of fused tasks: a block computes a tile.
MGL_PLAIN_FN void mgl_ordered_linear(const mgl_plain_op *op, mgl_plain_place at) {
  uint64_t token_tiles = (op->in[0].rows + MGL_ORDERED_TOKENS - 1) / MGL_ORDERED_TOKENS;
  uint64_t tiles = (op->units + MGL_ORDERED_FEATURES - 1) / MGL_ORDERED_FEATURES * token_tiles;
  for (uint64_t i = at.block; i < tiles; i += at.blocks) {
    const uint32_t n = (uint32_t)(i / token_tiles) * MGL_ORDERED_FEATURES;
    const uint32_t t = (uint32_t)(i % token_tiles) * MGL_ORDERED_TOKENS;
    if (mgl_plain_is_ordered(op)) {
      mgl_ordered_tile(op, n, t);
    } else {
      mgl_coded_tile(op, n, t);
    }
  }
}

MGL_PLAIN_FN void mgl_plain_linear(const mgl_plain_op *op, mgl_plain_place at) {
  if (mgl_plain_is_ordered(op) || mgl_plain_is_ordered_coded(op)) {
    mgl_ordered_linear(op, at);
    return;
  }
  uint32_t lanes = mgl_plain_lanes(at);
  uint32_t warps = at.threads / lanes;
  uint64_t token_tiles = (op->in[0].rows + MGL_PLAIN_TOKENS - 1) / MGL_PLAIN_TOKENS;
  uint64_t tiles = (op->units + MGL_PLAIN_FEATURES - 1) / MGL_PLAIN_FEATURES * token_tiles;
  // Neighbours have the same features, so that a block's first level cache serves them.
  for (uint64_t i = (uint64_t)at.block * warps + at.thread / lanes; i < tiles;
       i += (uint64_t)at.blocks * warps) {
    mgl_plain_linear_tile(op, at.thread % lanes, lanes,
                          (uint32_t)(i / token_tiles) * MGL_PLAIN_FEATURES,
                          (uint32_t)(i % token_tiles) * MGL_PLAIN_TOKENS);
  }
}

#endif
