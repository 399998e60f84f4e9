// Plain linears of codes, also of experts, in the order of the fused tasks (linear/codes.cuh): of
// E4M3, integers and E2M1 without offsets. Only on a GPU; elsewhere codes keep the order of
// plain_linear.cuh.
//
// A warp has 128 columns of each panel of 1024. x of these is made whole numbers of 15 bits, or
// f16, by the largest of them; sums of whole numbers are exact, so who adds them up in which order
// does not matter, and those of f16 are the same products of tensor cores. A share has one sum, or
// two or four where some matrix of the model has groups of 64 or 32; scales go onto sums.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_CODES_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_CODES_CUH

#include "kernels/cuda/plain/plain_ordered.cuh"

#ifdef __CUDACC__

enum {
  MGL_CODED_PANEL_K = 1024,  // as MGL_PANEL_K
  MGL_CODED_SHARE_K = 128,   // as MGL_SHARE_K
  MGL_CODED_CHUNKS = 4,      // of a share, of 32 columns
};

// Whole numbers, once they are multiplied by 2^mgl_coded_shift; else E4M3.
MGL_PLAIN_FN bool mgl_coded_is_whole(const mgl_plain_tensor *w) {
  return w->dtype == MGL_DTYPE_I8 || w->dtype == MGL_DTYPE_I4 || w->dtype == MGL_DTYPE_E2M1;
}

// As mgl_coded's CODE_SHIFT.
MGL_PLAIN_FN uint32_t mgl_coded_shift(const mgl_plain_tensor *w) {
  return w->dtype == MGL_DTYPE_I4 ? 4 : w->dtype == MGL_DTYPE_E2M1 ? 1 : 0;
}

MGL_PLAIN_FN bool mgl_coded_takes(const mgl_plain_op *op, const mgl_plain_tensor *x,
                                  const mgl_plain_tensor *w) {
  const bool has_order = mgl_plain_has_bytes(w) || mgl_coded_is_whole(w);
  return op->fused_order != 0 && w->code != 0 && has_order && w->offsets == 0 &&
         w->width % MGL_ORDERED_RUN == 0 && (op->normed != 0 || x->dtype == MGL_DTYPE_BF16);
}

MGL_PLAIN_FN bool mgl_plain_is_ordered_coded(const mgl_plain_op *op) {
  return mgl_coded_takes(op, &op->in[0], &op->in[1]);
}

// This lane's x of its token in a share: eight elements of each chunk; what they are multiplied by,
// and what their products are.
typedef struct mgl_coded_x {
  mgl_plain_words v[MGL_CODED_CHUNKS];
  float up, down;
} mgl_coded_x;

MGL_PLAIN_FN float mgl_coded_element(const mgl_plain_words *v, uint32_t i) {
  return mgl_bf16_to_f32((mgl_bf16)(v->words[i / 2] >> i % 2 * 16));
}

// first: of the share.
MGL_PLAIN_FN mgl_coded_x mgl_coded_take_x(const mgl_plain_op *op, const mgl_ordered_source *s,
                                          uint32_t first, float *squares) {
  const uint32_t x_shift = mgl_coded_is_whole(s->w_low) ? 13 : 14;
  const uint32_t down = x_shift + mgl_coded_shift(s->w_low);
  mgl_coded_x out;
  uint32_t largest = 0;
  MGL_PLAIN_UNROLL
  for (uint32_t chunk = 0; chunk < MGL_CODED_CHUNKS; chunk++) {
    const uint32_t e = first + chunk * MGL_ORDERED_CHUNK_K + threadIdx.x % 4 * MGL_ORDERED_RUN;
    out.v[chunk].words[0] = out.v[chunk].words[1] = 0;
    out.v[chunk].words[2] = out.v[chunk].words[3] = 0;
    if (s->x != 0 && e < s->width) {
      out.v[chunk] = mgl_ordered_x(op, s->x, e, squares);
    }
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t low = out.v[chunk].words[i] & 0x7fffu;
      const uint32_t high = out.v[chunk].words[i] >> 16 & 0x7fffu;
      largest = max(largest, max(low, high));
    }
  }
  largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const uint32_t exponent = max(largest >> 7, down + 1);
  out.up = __int_as_float((int)((254 + x_shift - exponent) << 23));
  out.down = __int_as_float(exponent == 255 ? 0x7fc00000 : (int)((exponent - down) << 23));
  return out;
}

// Column e of a row of weights: where that row lies, and which of its columns it is.
typedef struct mgl_coded_at {
  const mgl_plain_tensor *w;
  const uint8_t *row;  // NULL: there is none
  uint32_t e;
} mgl_coded_at;

MGL_PLAIN_FN mgl_coded_at mgl_coded_find(const mgl_ordered_source *s, const mgl_plain_tensor *w,
                                         uint32_t row, uint32_t e) {
  mgl_coded_at at = {w, 0, e};
  if (row == MGL_ORDERED_NO_ROW || e >= s->width) {
    return at;
  }
  uint64_t from = row;
  if (s->routes != 0) {  // rows of experts one behind the other
    const uint32_t slot = e / w->width;
    from += (uint64_t)s->routes[2 * slot] * s->expert_rows;
    at.e = e - slot * w->width;
  }
  at.row = (const uint8_t *)w->data + from * w->row_bytes;
  return at;
}

// The scale of a sum that begins there.
MGL_PLAIN_FN float mgl_coded_scale(mgl_coded_at at) {
  return at.row != 0 ? ((const float *)(const void *)(at.row + at.w->scales))[at.e / at.w->group]
                     : 0.0f;
}

// As mgl_add_scaled.
MGL_PLAIN_FN void mgl_coded_add(const mgl_plain_op *op, float value, float scale, float *sum) {
  *sum = op->share_sums == 1 ? *sum + value * scale : mgl_plain_fma(value, scale, *sum);
}

// The code of the i-th column from there on, by their table.
MGL_PLAIN_FN float mgl_coded_value(mgl_coded_at at, uint32_t i) {
  return at.w->code[mgl_plain_code_bits(at.w, at.row, at.e + i)];
}

// Feature f of the tile at column e, whose row a lane of the warp has. All lanes.
MGL_PLAIN_FN mgl_coded_at mgl_coded_feature(const mgl_ordered_source *s, uint32_t f, uint32_t e) {
  const uint32_t low = __shfl_sync(0xffffffffu, s->low, (int)(f % 8 * 4));
  const uint32_t high = __shfl_sync(0xffffffffu, s->high, (int)(f % 8 * 4));
  return mgl_coded_find(s, f < 8 ? s->w_low : s->w_high, f < 8 ? low : high, e);
}

// Whole numbers: a lane goes on with features 4t to 4t + 3 of token g. (Loops are not unrolled:
// lookups by a table are many instructions, and this is compiled before a model's first token.)
MGL_PLAIN_FN void mgl_coded_share_whole(const mgl_plain_op *op, const mgl_ordered_source *s,
                                        uint32_t first, const mgl_coded_x *x, float sums[4]) {
  const float factor = (float)(1 << mgl_coded_shift(s->w_low));
  const uint32_t t = threadIdx.x % 4, chunks = MGL_CODED_CHUNKS / op->share_sums;
  int made[MGL_ORDERED_FEATURES];
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < MGL_CODED_CHUNKS; chunk++) {
    const uint32_t e = first + chunk * MGL_ORDERED_CHUNK_K + t * MGL_ORDERED_RUN;
    const mgl_plain_words v = x->v[chunk];
    int numbers[MGL_ORDERED_RUN];
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < MGL_ORDERED_RUN; i++) {  // the number and 128 in the lower 16 bits
      const float added = mgl_plain_fma(mgl_coded_element(&v, i), x->up, 12582912.0f + 128.0f);
      numbers[i] = (int)(short)(__float_as_int(added) & 0xffff) - 128;
    }
#pragma unroll 1
    for (uint32_t f = 0; f < MGL_ORDERED_FEATURES; f++) {
      int sum = chunk % chunks == 0 ? 0 : made[f];
      const mgl_coded_at at = mgl_coded_feature(s, f, e);
      if (at.row != 0) {
        MGL_PLAIN_UNROLL
        for (uint32_t i = 0; i < MGL_ORDERED_RUN; i++) {
          sum += numbers[i] * (int)(mgl_coded_value(at, i) * factor);
        }
      }
      made[f] = sum;
    }
    if ((chunk + 1) % chunks != 0) {
      continue;
    }
    const uint32_t begin = first + (chunk + 1 - chunks) * MGL_ORDERED_CHUNK_K;
    MGL_PLAIN_UNROLL
    for (uint32_t f = 0; f < MGL_ORDERED_FEATURES; f++) {
      int sum = made[f] + __shfl_xor_sync(0xffffffffu, made[f], 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float scale = mgl_coded_scale(mgl_coded_feature(s, f, begin));
      if (f / 4 == t) {
        mgl_coded_add(op, (float)sum * x->down, scale, &sums[f % 4]);
      }
    }
  }
}

MGL_PLAIN_FN uint32_t mgl_coded_f16_pair(float low, float high) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// Columns i and i + 2 from there on.
MGL_PLAIN_FN uint32_t mgl_coded_pair(mgl_coded_at at, uint32_t i) {
  return at.row != 0 ? mgl_coded_f16_pair(mgl_coded_value(at, i), mgl_coded_value(at, i + 2)) : 0;
}

// E4M3: a lane has rows g and g + 8 of tokens 2t and 2t + 1. Of one sum a share the two halves are
// products of their own.
MGL_PLAIN_FN void mgl_coded_share_f16(const mgl_plain_op *op, const mgl_ordered_source *s,
                                      uint32_t first, const mgl_coded_x *x, float sums[4]) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES;
  const uint32_t chunks = op->share_sums > 2 ? 1 : 2;  // of products that are added up
  const float down[2] = {__shfl_sync(0xffffffffu, x->down, (int)(lane % 4 * 8)),
                         __shfl_sync(0xffffffffu, x->down, (int)(lane % 4 * 8 + 4))};
  float made[4], before[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < MGL_CODED_CHUNKS; chunk++) {
    const mgl_plain_words v = x->v[chunk];
    const uint32_t e = first + chunk * MGL_ORDERED_CHUNK_K + lane % 4 * MGL_ORDERED_RUN;
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
      made[i] = chunk % chunks == 0 ? 0 : made[i];
    }
    const mgl_coded_at low = mgl_coded_find(s, s->w_low, s->low, e);
    const mgl_coded_at high = mgl_coded_find(s, s->w_high, s->high, e);
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < MGL_ORDERED_RUN; i += 4) {
      const uint32_t a[4] = {mgl_coded_pair(low, i), mgl_coded_pair(high, i),
                             mgl_coded_pair(low, i + 1), mgl_coded_pair(high, i + 1)};
      float b[4];
      MGL_PLAIN_UNROLL
      for (uint32_t j = 0; j < 4; j++) {
        b[j] = mgl_coded_element(&v, i + j) * x->up;
      }
      mgl_mma_f16<false>(made, a, mgl_coded_f16_pair(b[0], b[2]), mgl_coded_f16_pair(b[1], b[3]));
    }
    if ((chunk + 1) % chunks != 0) {
      continue;
    }
    const bool is_half = op->share_sums == 1 && chunk + 1 < MGL_CODED_CHUNKS;
    const uint32_t of_sum = MGL_CODED_CHUNKS / op->share_sums;
    const uint32_t begin = first + (chunk + 1 - of_sum) * MGL_ORDERED_CHUNK_K;
    const float scales[2] = {mgl_coded_scale(mgl_coded_find(s, s->w_low, s->low, begin)),
                             mgl_coded_scale(mgl_coded_find(s, s->w_high, s->high, begin))};
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
      if (is_half) {
        before[i] = made[i];
      } else {
        const float value = (op->share_sums == 1 ? before[i] + made[i] : made[i]) * down[i % 2];
        mgl_coded_add(op, value, scales[i / 2], &sums[i]);
      }
    }
  }
}

// As mgl_ordered_multiply.
MGL_PLAIN_FN void mgl_coded_multiply(const mgl_plain_op *op, const mgl_ordered_source *s,
                                     mgl_ordered_parts *parts) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES, slice = threadIdx.x / MGL_PLAIN_LANES;
  const bool whole = mgl_coded_is_whole(s->w_low);
  float sums[4] = {0, 0, 0, 0}, squares = 0;
  for (uint32_t panel = 0; panel < s->width; panel += MGL_CODED_PANEL_K) {
    const uint32_t first = panel + slice * MGL_CODED_SHARE_K;
    const mgl_coded_x x = mgl_coded_take_x(op, s, first, &squares);
    if (whole) {
      mgl_coded_share_whole(op, s, first, &x, sums);
    } else {
      mgl_coded_share_f16(op, s, first, &x, sums);
    }
  }
  mgl_ordered_share_squares(lane, slice, squares, parts);
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t token = whole ? lane / 4 : lane % 4 * 2 + i % 2;
    const uint32_t feature = whole ? lane % 4 * 4 + i : lane / 4 + i / 2 * 8;
    parts->sums[slice][token][feature] = sums[i];
  }
  __syncthreads();
}

// A tile's sums, of bf16 or codes.
MGL_PLAIN_FN void mgl_ordered_multiply_any(const mgl_plain_op *op, const mgl_ordered_source *s,
                                           mgl_ordered_parts *parts) {
  if (s->w_low->code == 0) {
    mgl_ordered_multiply(op, s, parts);
  } else {
    mgl_coded_multiply(op, s, parts);
  }
}

#else

MGL_PLAIN_FN bool mgl_coded_takes(const mgl_plain_op *op, const mgl_plain_tensor *x,
                                  const mgl_plain_tensor *w) {
  (void)op;
  (void)x;
  (void)w;
  return false;
}

MGL_PLAIN_FN bool mgl_plain_is_ordered_coded(const mgl_plain_op *op) {
  (void)op;
  return false;
}

#endif

#endif
