// Products of weights of codes with 2 to 16 tokens (tasks_linear_rows.cuh): x as operands, sums.
//
// Columns are tokens, so both pieces of x as whole numbers (codes.cuh) are products of their own. A
// panel's sums are those that tasks_linear_coded.cuh makes of one token, added in the same order,
// so a token gets the same bits.
#ifndef MGL_KERNELS_CUDA_LINEAR_CODED_ROWS_CUH
#define MGL_KERNELS_CUDA_LINEAR_CODED_ROWS_CUH

#include "kernels/cuda/linear/codes.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"

// --- x -------------------------------------------------------------------------------------------

// First element of this lane from page first_page on, and where others lie behind it. Of codes a
// warp has other columns (codes.cuh), and a group of pages is a panel.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_rows_first(const mgl_worker *w, uint32_t first_page) {
  return P == MGL_PACKING_BF16
             ? mgl_linear_first(w, first_page)
             : first_page * MGL_CUDA_PAGE_K + w->warp * MGL_SHARE_K + w->lane % 4 * 8;
}

template <mgl_packing P>
static __device__ constexpr uint32_t mgl_rows_element(int piece) {
  return P == MGL_PACKING_BF16
             ? mgl_linear_element(piece)
             : piece / MGL_SHARE_CHUNKS * MGL_PANEL_K + piece % MGL_SHARE_CHUNKS * MGL_CHUNK_K;
}

// What products of a panel with tokens 2t and 2t + 1 of each tile are, and the sums of
// their whole numbers, of each sum of products.
template <int TILES, mgl_packing P>
struct mgl_rows_scales {
  static constexpr int SUMS = mgl_coded<P>::ZEROS ? (int)MGL_SHARE_SUMS : 1;
  static constexpr bool GIVEN = TILES * SUMS <= 4;  // the sums; else each lane has its token's
  float down[TILES][2];
  float sum[TILES][SUMS][GIVEN ? 2 : 1];
};

// Of a lane's token g, for the lanes whose columns it is.
MGL_DEVICE void mgl_rows_give(const mgl_worker *w, float value, float (&out)[2]) {
  out[0] = __shfl_sync(0xffffffffu, value, (int)(w->lane % 4 * 8));
  out[1] = __shfl_sync(0xffffffffu, value, (int)(w->lane % 4 * 8 + 4));
}

// Makes operands of a group of bf16: of whole numbers, a piece's words x and y are the upper bytes,
// z and w the lower ones.
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_operands(const mgl_worker *w, mgl_linear_group<TILES> *x,
                                  mgl_rows_scales<TILES, P> *scales) {
  if constexpr (P == MGL_PACKING_BF16) {
    return;
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < MGL_SHARE_CHUNKS; i++) {
      largest = mgl_largest_bf16(x->x[tile][i / 2][i % 2], largest);
    }
    const mgl_x_scale scale = mgl_x_scale_of<P>(mgl_largest_of_lanes<2>(largest));
    mgl_rows_give(w, scale.down, scales->down[tile]);
    int sum = 0;
#pragma unroll
    for (int i = 0; i < MGL_SHARE_CHUNKS; i++) {
      uint4 *v = &x->x[tile][i / 2][i % 2];
      *v = mgl_coded<P>::WHOLE ? mgl_x_of_whole(*v, scale.up) : mgl_x_of_f16(*v, scale.up);
      if constexpr (mgl_coded<P>::ZEROS) {
        sum = mgl_sum_pieces(v->z, v->w, mgl_sum_pieces(v->x, v->y, 0) * 256 + sum);
        if ((i + 1) % (MGL_SHARE_CHUNKS / MGL_SHARE_SUMS) == 0) {
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          float(&to)[mgl_rows_scales<TILES, P>::GIVEN ? 2 : 1] =
              scales->sum[tile][i * MGL_SHARE_SUMS / MGL_SHARE_CHUNKS];
          if constexpr (mgl_rows_scales<TILES, P>::GIVEN) {
            mgl_rows_give(w, (float)sum, to);
          } else {
            to[0] = (float)sum;
          }
          sum = 0;
        }
      }
    }
  }
}

// --- products ------------------------------------------------------------------------------------

// The products of a panel, of each of its sums.
template <int TILES, mgl_packing P>
struct mgl_rows_made {
  static constexpr int CHAINS = mgl_coded<P>::CHAINS;
  int upper[mgl_coded<P>::WHOLE ? TILES : 1][CHAINS][4];  // of whole numbers: of both pieces of x
  int lower[mgl_coded<P>::WHOLE ? TILES : 1][CHAINS][4];
  float f16[mgl_coded<P>::WHOLE ? 1 : TILES][CHAINS][4];
};

// Sums [begin, end).
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_multiply_whole(const mgl_linear *l, const mgl_linear_group<TILES> *x,
                                        const mgl_share<P> *share, int begin, int end,
                                        mgl_rows_made<TILES, P> *out) {
  constexpr int in_sum = MGL_SHARE_CHUNKS / mgl_coded<P>::CHAINS;
#pragma unroll
  for (int chunk = begin * in_sum; chunk < end * in_sum; chunk++) {
    uint32_t a[4];
    mgl_decode_whole<P>(share, l->share.signs, chunk, a);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      int *upper = out->upper[tile][chunk / in_sum], *lower = out->lower[tile][chunk / in_sum];
      const uint4 b = x->x[tile][chunk / 2][chunk % 2];
      if (chunk % in_sum == 0) {
        upper[0] = upper[1] = upper[2] = upper[3] = 0;
        lower[0] = lower[1] = lower[2] = lower[3] = 0;
      }
      mgl_mma_s8(upper, a, b.x, b.y);
      mgl_mma_s8(lower, a, b.z, b.w);
    }
  }
}

template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_multiply_f16(const mgl_linear_group<TILES> *x, const mgl_share<P> *share,
                                      mgl_rows_made<TILES, P> *out) {
#pragma unroll
  for (int i = 0; i < 2 * MGL_SHARE_CHUNKS; i++) {  // in the order of mgl_coded_multiply
    const int step = i / 2 % 2, chunk = i % 2 * 2 + i / 4;
    constexpr int in_sum = MGL_SHARE_CHUNKS / mgl_coded<P>::CHAINS;
    uint32_t a[4];
    mgl_decode_f16<P>(share, chunk, step, a);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const uint4 b = x->x[tile][chunk / 2][chunk % 2];
      const uint32_t low = mgl_word_of(b, 2 * step), high = mgl_word_of(b, 2 * step + 1);
      if (step == 0 && chunk % in_sum == 0) {
        mgl_mma_f16<true>(out->f16[tile][chunk / in_sum], a, low, high);
      } else {
        mgl_mma_f16<false>(out->f16[tile][chunk / in_sum], a, low, high);
      }
    }
  }
}

// Sum `sum` of the products that a lane has, number i of a tile. x_sum: that of the whole numbers
// that they are of.
template <int TILES, mgl_packing P>
MGL_DEVICE float mgl_rows_sum(const mgl_rows_made<TILES, P> *made, const float2 *zero, float down,
                              float x_sum, int tile, int sum, int i) {
  if constexpr (mgl_coded<P>::WHOLE) {
    float value = mgl_whole_sum(made->upper[tile][sum][i], made->lower[tile][sum][i]);
    if constexpr (mgl_coded<P>::ZEROS) {
      value = mgl_less_zero(value, i < 2 ? zero[sum].x : zero[sum].y, x_sum);
    }
    return value * down;
  }
  const float(*p)[4] = made->f16[mgl_coded<P>::WHOLE ? 0 : tile];
  return (MGL_SHARE_SUMS == 1 ? p[0][i] + p[mgl_coded<P>::CHAINS - 1][i] : p[sum][i]) * down;
}

// Scales sums [begin, end) of a panel, and adds them.
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_add_panel(const mgl_worker *w, const mgl_rows_made<TILES, P> *made,
                                   const float2 *scale, const float2 *zero,
                                   const mgl_rows_scales<TILES, P> *scales, int begin, int end,
                                   float sums[TILES][4]) {
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int j = begin; j < end; j++) {
      float x_sum[2] = {};
      if constexpr (mgl_coded<P>::ZEROS) {
        if constexpr (mgl_rows_scales<TILES, P>::GIVEN) {
          x_sum[0] = scales->sum[tile][j][0];
          x_sum[1] = scales->sum[tile][j][1];
        } else {
          mgl_rows_give(w, scales->sum[tile][j][0], x_sum);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float value =
            mgl_rows_sum<TILES, P>(made, zero, scales->down[tile][i % 2], x_sum[i % 2], tile, j, i);
        mgl_add_scaled(value, i < 2 ? scale[j].x : scale[j].y, &sums[tile][i]);
      }
    }
  }
}

#endif
