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
//
// Experts (plain_ordered_experts.cuh) are linears whose rows of weights data choose.
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

#define MGL_ORDERED_NO_ROW 0xffffffffu

// What a tile's products are of. Lane 4 g + t has rows low and high of weights, which are rows g
// and g + 8 of the products, and row x, which is their column g.
typedef struct mgl_ordered_source {
  const mgl_plain_tensor *w_low, *w_high;
  uint32_t low, high;    // MGL_ORDERED_NO_ROW: none
  const uint8_t *x;      // of what the norm reads, where there is one; NULL: none
  uint32_t width;        // elements along k
  const float *routes;   // NULL, or of the token: rows of experts stand behind each other along k
  uint32_t expert_rows;  // of one expert, then
} mgl_ordered_source;

MGL_PLAIN_FN mgl_ordered_source mgl_ordered_source_of(const mgl_plain_tensor *w_low,
                                                      const mgl_plain_tensor *w_high,
                                                      uint32_t width) {
  mgl_ordered_source s = {w_low, w_high, MGL_ORDERED_NO_ROW, MGL_ORDERED_NO_ROW, 0, width, 0, 0};
  return s;
}

// Whether matrices and x are such as fused tasks multiply. Codes keep the order of their own.
MGL_PLAIN_FN bool mgl_ordered_takes(const mgl_plain_op *op, const mgl_plain_tensor *x,
                                    const mgl_plain_tensor *w) {
  return op->fused_order != 0 && w->code == 0 && w->dtype == MGL_DTYPE_BF16 &&
         w->width % MGL_ORDERED_RUN == 0 && (op->normed != 0 || x->dtype == MGL_DTYPE_BF16);
}

MGL_PLAIN_FN bool mgl_plain_is_ordered(const mgl_plain_op *op) {
  return mgl_ordered_takes(op, &op->in[0], &op->in[1]);
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

// Where elements e .. e + 7 of a row of weights lie.
MGL_PLAIN_FN const mgl_plain_words *mgl_ordered_weights(const mgl_ordered_source *s,
                                                        const mgl_plain_tensor *w, uint32_t row,
                                                        uint32_t e) {
  uint64_t at = row;
  if (s->routes != 0) {
    uint32_t slot = e / w->width;
    at += (uint64_t)s->routes[2 * slot] * s->expert_rows;
    e -= slot * w->width;
  }
  return (const mgl_plain_words *)(const void *)((const uint8_t *)w->data + at * w->row_bytes +
                                                 e * sizeof(mgl_bf16));
}

// What the sums of a row are multiplied by; squares: the sum of all.
MGL_PLAIN_FN float mgl_ordered_factor(const mgl_plain_op *op, uint32_t width, float squares) {
  float inverse_k = mgl_plain_divide_fast(1.0f, (float)width);
  return op->normed == 0 ? 1.0f : mgl_plain_rsqrt(mgl_plain_fma(squares, inverse_k, op->norm_eps));
}

#ifdef __CUDACC__

#include "kernels/cuda/common/mma.cuh"

// What the warps of a block have of a tile.
typedef struct mgl_ordered_parts {
  float sums[MGL_ORDERED_SLICES][MGL_ORDERED_TOKENS][MGL_ORDERED_FEATURES];
  float squares[MGL_ORDERED_SLICES][MGL_ORDERED_TOKENS];
} mgl_ordered_parts;

// The warp's slice of a page, from element `first` on, added to its sums.
MGL_PLAIN_FN void mgl_ordered_page(const mgl_plain_op *op, const mgl_ordered_source *s,
                                   uint32_t first, float sums[4], float *squares) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES;
  float products[MGL_ORDERED_PRODUCTS][4] = {};
  MGL_PLAIN_UNROLL
  for (uint32_t chunk = 0; chunk < MGL_ORDERED_PRODUCTS / 2; chunk++) {
    const uint32_t e = first + chunk * MGL_ORDERED_CHUNK_K + lane % 4 * MGL_ORDERED_RUN;
    mgl_plain_words b = {{0, 0, 0, 0}}, low = b, high = b;
    if (e < s->width) {
      low = s->low != MGL_ORDERED_NO_ROW ? *mgl_ordered_weights(s, s->w_low, s->low, e) : low;
      high = s->high != MGL_ORDERED_NO_ROW ? *mgl_ordered_weights(s, s->w_high, s->high, e) : high;
      b = s->x != 0 ? mgl_ordered_x(op, s->x, e, squares) : b;
    }
    MGL_PLAIN_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t a[4] = {low.words[2 * i], high.words[2 * i], low.words[2 * i + 1],
                             high.words[2 * i + 1]};
      mgl_mma(products[2 * chunk + i], a, b.words[2 * i], b.words[2 * i + 1]);
    }
  }
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    sums[i] += (products[0][i] + products[1][i]) + (products[2][i] + products[3][i]);
  }
}

// The squares of a slice that a lane has found, added up over those of its row.
MGL_PLAIN_FN void mgl_ordered_share_squares(uint32_t lane, uint32_t slice, float squares,
                                            mgl_ordered_parts *parts) {
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  __syncthreads();  // the sums of the tile before have been read
  if (lane % 4 == 0) {
    parts->squares[slice][lane / 4] = squares;
  }
}

// A tile's sums, into shared memory, where all threads of the block may read them.
MGL_PLAIN_FN void mgl_ordered_multiply(const mgl_plain_op *op, const mgl_ordered_source *s,
                                       mgl_ordered_parts *parts) {
  const uint32_t lane = threadIdx.x % MGL_PLAIN_LANES, slice = threadIdx.x / MGL_PLAIN_LANES;
  float sums[4] = {0, 0, 0, 0}, squares = 0;
  for (uint32_t page = 0; page < s->width; page += MGL_ORDERED_PAGE_K) {
    mgl_ordered_page(op, s, page + slice * MGL_ORDERED_SLICE_K, sums, &squares);
  }
  mgl_ordered_share_squares(lane, slice, squares, parts);
  MGL_PLAIN_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    parts->sums[slice][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sums[i];
  }
  __syncthreads();
}

// The sum of a feature of a token, times the norm's factor.
MGL_PLAIN_FN float mgl_ordered_total(const mgl_plain_op *op, const mgl_ordered_source *s,
                                     const mgl_ordered_parts *parts, uint32_t token,
                                     uint32_t feature) {
  float total = 0, squares = 0;
  for (uint32_t i = 0; i < MGL_ORDERED_SLICES; i++) {
    total += parts->sums[i][token][feature];
    squares += parts->squares[i][token];
  }
  return total * mgl_ordered_factor(op, s->width, squares);
}

#else

// The same of one feature, in w_low and low, and the token x.
MGL_PLAIN_FN float mgl_ordered_one(const mgl_plain_op *op, const mgl_ordered_source *s) {
  float total = 0, all = 0;
  for (uint32_t slice = 0; slice < MGL_ORDERED_SLICES; slice++) {
    float sum = 0, squares[4] = {0};
    for (uint32_t page = slice * MGL_ORDERED_SLICE_K; page < s->width; page += MGL_ORDERED_PAGE_K) {
      float products[MGL_ORDERED_PRODUCTS] = {0};
      for (uint32_t i = 0; i < MGL_ORDERED_SLICE_K && page + i < s->width; i++) {
        const uint32_t run = i / MGL_ORDERED_RUN, in_run = i % MGL_ORDERED_RUN;
        float ignored = 0;
        const mgl_plain_words x =
            mgl_ordered_x(op, s->x, page + i - in_run, in_run == 0 ? &squares[run % 4] : &ignored);
        const mgl_plain_words *w = mgl_ordered_weights(s, s->w_low, s->low, page + i - in_run);
        const uint32_t shift = in_run % 2 * 16;
        products[run / 4 * 2 + in_run / 4] +=
            mgl_bf16_to_f32((mgl_bf16)(x.words[in_run / 2] >> shift)) *
            mgl_bf16_to_f32((mgl_bf16)(w->words[in_run / 2] >> shift));
      }
      sum += (products[0] + products[1]) + (products[2] + products[3]);
    }
    total += sum;
    all += (squares[0] + squares[1]) + (squares[2] + squares[3]);
  }
  return total * mgl_ordered_factor(op, s->width, all);
}

#endif

#endif
