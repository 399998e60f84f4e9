// The plain linear in the order of the fused tasks (linear/tasks_linear.cuh), where weights and
// activations are bf16 and fused tasks cover the model: the same bits, op by op.
//
// A block computes 16 features of 8 tokens, a warp its 64 elements of every 512 along k: four
// products of 16 elements, which begin with 0 and are added in pairs; then page after page, then
// warp after warp. Which element stands where in a product is as there, too: lane 4 g + t has
// elements 8t .. 8t + 7 of each 32, of which the first four belong to one product.
//
// A linear behind an RMS norm multiplies x * weight, rounded to bf16, and then its sums by
// 1 / sqrt(mean(x^2) + eps), so what it reads is the norm's input. (The norm's own kernel runs all
// the same, for others who read what it makes.)
//   Rejected: fused tasks that sum as op by op: a linear would wait for its norm.
#ifndef MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_CUH
#define MGL_KERNELS_CUDA_PLAIN_PLAIN_ORDERED_CUH

#include "kernels/cuda/plain/plain_block.cuh"

enum {
  MGL_ORDERED_SLICES = 8,    // as MGL_CUDA_CONSUMER_WARPS
  MGL_ORDERED_PAGE_K = 512,  // as MGL_CUDA_PAGE_K
  MGL_ORDERED_SLICE_K = 64,  // of a page
  MGL_ORDERED_CHUNK_K = 32,  // two products
  MGL_ORDERED_PRODUCTS = 4,  // of a slice
  MGL_ORDERED_RUN = 8,       // elements that a lane has of a row in a chunk
};

// Whether a linear can be computed so. What else the model has (codes) keeps the order of its own.
MGL_PLAIN_FN bool mgl_plain_is_ordered(const mgl_plain_op *op) {
  const mgl_plain_tensor *w = &op->in[1];
  return op->fused_order != 0 && w->code == 0 && w->dtype == MGL_DTYPE_BF16 &&
         w->width % MGL_ORDERED_RUN == 0 && (op->normed != 0 || op->in[0].dtype == MGL_DTYPE_BF16);
}

// Row t of what is multiplied: of x, or of what the norm in front of x reads.
MGL_PLAIN_FN const uint8_t *mgl_ordered_row(const mgl_plain_op *op, uint32_t t) {
  const mgl_plain_tensor *x = op->normed != 0 ? &op->norm_x : &op->in[0];
  uint64_t row = t;
  if (op->normed != 0 && op->norm_rows.data != 0) {
    row = mgl_plain_u32(&op->norm_rows)[t];
  }
  return (const uint8_t *)x->data + row * x->row_bytes;
}

// Elements e .. e + 7 of a row as bf16; adds their squares to *squares where there is a norm.
MGL_PLAIN_FN mgl_plain_words mgl_ordered_x(const mgl_plain_op *op, const uint8_t *row, uint32_t e,
                                           float *squares) {
  mgl_plain_words out;
  if (op->normed == 0) {
    return *(const mgl_plain_words *)(const void *)(row + (uint64_t)e * sizeof(mgl_bf16));
  }
  const float *x = (const float *)(const void *)row + e;
  const float *weight = mgl_plain_f32(&op->norm_weight) + e;
  float even = 0, odd = 0;
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    float low = x[2 * i], high = x[2 * i + 1];
    even = mgl_plain_fma(low, low, even);
    odd = mgl_plain_fma(high, high, odd);
    out.words[i] = mgl_f32_to_bf16(low * weight[2 * i]) |
                   (uint32_t)mgl_f32_to_bf16(high * weight[2 * i + 1]) << 16;
  }
  *squares += even + odd;
  return out;
}

// What the sums of a row are multiplied by; squares: the sum of all.
MGL_PLAIN_FN float mgl_ordered_factor(const mgl_plain_op *op, float squares) {
  float inverse_k = mgl_plain_divide_fast(1.0f, (float)op->in[1].width);
  return op->normed == 0 ? 1.0f : mgl_plain_rsqrt(mgl_plain_fma(squares, inverse_k, op->norm_eps));
}

MGL_PLAIN_FN void mgl_ordered_put(const mgl_plain_op *op, uint32_t n, uint32_t t, float total,
                                  float squares) {
  float value = total * mgl_ordered_factor(op, squares);
  if (op->input_count > 2) {
    value += mgl_plain_f32(&op->in[2])[n];
  }
  ((float *)op->out.data)[(uint64_t)t * op->out.width + n] = value;
}

#ifdef __CUDACC__

// d += a b, as mgl_mma of common/worker.cuh.
MGL_PLAIN_FN void mgl_ordered_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// This lane's elements e .. e + 7 of a row of weights; 0 behind the last row.
MGL_PLAIN_FN mgl_plain_words mgl_ordered_weights(const mgl_plain_tensor *w, uint32_t row,
                                                 uint32_t e) {
  mgl_plain_words none = {{0, 0, 0, 0}};
  const uint8_t *at = (const uint8_t *)w->data + row * w->row_bytes + e * sizeof(mgl_bf16);
  return row < w->rows ? *(const mgl_plain_words *)(const void *)at : none;
}

// The warp's slice of a page, from element `first` on, added to its sums.
MGL_PLAIN_FN void mgl_ordered_page(const mgl_plain_op *op, const uint8_t *x, uint32_t n,
                                   uint32_t first, float sums[4], float *squares) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES;
  float products[MGL_ORDERED_PRODUCTS][4] = {};
  MGL_PLAIN_UNROLL
  for (uint32_t chunk = 0; chunk < MGL_ORDERED_PRODUCTS / 2; chunk++) {
    const uint32_t e = first + chunk * MGL_ORDERED_CHUNK_K + lane % 4 * MGL_ORDERED_RUN;
    mgl_plain_words b = {{0, 0, 0, 0}}, low = b, high = b;
    if (e < op->in[1].width) {
      low = mgl_ordered_weights(&op->in[1], n + lane / 4, e);
      high = mgl_ordered_weights(&op->in[1], n + lane / 4 + 8, e);
      b = x != 0 ? mgl_ordered_x(op, x, e, squares) : b;
    }
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t a[4] = {low.words[2 * i], high.words[2 * i], low.words[2 * i + 1],
                             high.words[2 * i + 1]};
      mgl_ordered_mma(products[2 * chunk + i], a, b.words[2 * i], b.words[2 * i + 1]);
    }
  }
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    sums[i] += (products[0][i] + products[1][i]) + (products[2][i] + products[3][i]);
  }
}

// Features from n on, of tokens from t on. All threads of a block.
MGL_PLAIN_FN void mgl_ordered_tile(const mgl_plain_op *op, uint32_t n, uint32_t t) {
  __shared__ float parts[MGL_ORDERED_SLICES][MGL_ORDERED_TOKENS][MGL_ORDERED_FEATURES];
  __shared__ float squares_of[MGL_ORDERED_SLICES][MGL_ORDERED_TOKENS];
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES, slice = threadIdx.x / MGL_PLAIN_LANES;
  const uint32_t tokens = op->in[0].rows;
  const uint8_t *x = t + lane / 4 < tokens ? mgl_ordered_row(op, t + lane / 4) : 0;
  float sums[4] = {0, 0, 0, 0}, squares = 0;
  for (uint32_t page = 0; page < op->in[1].width; page += MGL_ORDERED_PAGE_K) {
    mgl_ordered_page(op, x, n, page + slice * MGL_ORDERED_SLICE_K, sums, &squares);
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  if (lane % 4 == 0) {
    squares_of[slice][lane / 4] = squares;
  }
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    parts[slice][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sums[i];
  }
  __syncthreads();
  const uint32_t token = threadIdx.x / MGL_ORDERED_FEATURES;
  const uint32_t feature = threadIdx.x % MGL_ORDERED_FEATURES;
  if (token < MGL_ORDERED_TOKENS && t + token < tokens && n + feature < op->in[1].rows) {
    float total = 0, all = 0;
    for (uint32_t i = 0; i < MGL_ORDERED_SLICES; i++) {
      total += parts[i][token][feature];
      all += squares_of[i][token];
    }
    mgl_ordered_put(op, n + feature, t + token, total, all);
  }
  __syncthreads();  // before the next tile's sums
}

#else

// The slice of one feature and token in the page that begins there.
MGL_PLAIN_FN float mgl_ordered_slice(const mgl_plain_op *op, const uint8_t *x, const mgl_bf16 *w,
                                     uint32_t first, float squares[4]) {
  float products[MGL_ORDERED_PRODUCTS] = {0};
  for (uint32_t run = 0; run < MGL_ORDERED_SLICE_K / MGL_ORDERED_RUN; run++) {
    const uint32_t e = first + run * MGL_ORDERED_RUN;
    if (e >= op->in[1].width) {
      break;
    }
    const mgl_plain_words b = mgl_ordered_x(op, x, e, &squares[run % 4]);
    for (uint32_t i = 0; i < MGL_ORDERED_RUN; i++) {
      const mgl_bf16 bits = (mgl_bf16)(b.words[i / 2] >> i % 2 * 16);
      products[run / 4 * 2 + i / 4] += mgl_bf16_to_f32(bits) * mgl_bf16_to_f32(w[e + i]);
    }
  }
  return (products[0] + products[1]) + (products[2] + products[3]);
}

MGL_PLAIN_FN void mgl_ordered_output(const mgl_plain_op *op, uint32_t n, uint32_t t) {
  const mgl_plain_tensor *w = &op->in[1];
  const mgl_bf16 *row =
      (const mgl_bf16 *)(const void *)((const uint8_t *)w->data + n * w->row_bytes);
  float total = 0, all = 0;
  for (uint32_t slice = 0; slice < MGL_ORDERED_SLICES; slice++) {
    float sum = 0, squares[4] = {0};
    for (uint32_t page = 0; page < w->width; page += MGL_ORDERED_PAGE_K) {
      sum += mgl_ordered_slice(op, mgl_ordered_row(op, t), row, page + slice * MGL_ORDERED_SLICE_K,
                               squares);
    }
    total += sum;
    all += (squares[0] + squares[1]) + (squares[2] + squares[3]);
  }
  mgl_ordered_put(op, n, t, total, all);
}

MGL_PLAIN_FN void mgl_ordered_tile(const mgl_plain_op *op, uint32_t n, uint32_t t) {
  for (uint32_t i = n; i < n + MGL_ORDERED_FEATURES && i < op->in[1].rows; i++) {
    for (uint32_t j = t; j < t + MGL_ORDERED_TOKENS && j < op->in[0].rows; j++) {
      mgl_ordered_output(op, i, j);
    }
  }
}

#endif

MGL_PLAIN_FN void mgl_ordered_linear(const mgl_plain_op *op, mgl_plain_place at) {
  uint64_t token_tiles = (op->in[0].rows + MGL_ORDERED_TOKENS - 1) / MGL_ORDERED_TOKENS;
  uint64_t tiles = (op->units + MGL_ORDERED_FEATURES - 1) / MGL_ORDERED_FEATURES * token_tiles;
  for (uint64_t i = at.block; i < tiles; i += at.blocks) {
    mgl_ordered_tile(op, (uint32_t)(i / token_tiles) * MGL_ORDERED_FEATURES,
                     (uint32_t)(i % token_tiles) * MGL_ORDERED_TOKENS);
  }
}

#endif
