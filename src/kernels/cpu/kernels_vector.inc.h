// The body of every vector level: included by kernels_LEVEL.c after vector_LEVEL.h, so that one
// source gives the kernels of all instruction sets. This file holds the ops that work element by
// element or row by row; linear_vector.inc.h, linear_packed.inc.h and attention_vector.inc.h those
// that matter for speed.
//
// Tails of fewer than a vector go through the same instructions with partial loads, so that the
// bits of an element do not depend on where a range begins or ends.
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/short_rows.h"
#include "kernels/cpu/whole.h"

#if !defined(LEVEL_HAS_TILES)
#define LEVEL_HAS_TILES false
#endif

INLINE vec load_as(const void *data, mgl_dtype dtype, size_t index) {
  switch (dtype) {
    case MGL_DTYPE_BF16: return vec_load_bf16((const char *)data + index * 2);
    case MGL_DTYPE_F16: return vec_load_f16((const char *)data + index * 2);
    default: return vec_load((const char *)data + index * 4);
  }
}

INLINE vec load_partial_as(const void *data, mgl_dtype dtype, size_t index, size_t count) {
  switch (dtype) {
    case MGL_DTYPE_BF16: return vec_load_bf16_partial((const char *)data + index * 2, count);
    case MGL_DTYPE_F16: return vec_load_f16_partial((const char *)data + index * 2, count);
    default: return vec_load_partial((const char *)data + index * 4, count);
  }
}

// Elements index to index + count, at most one vector.
INLINE vec load_up_to(const void *data, mgl_dtype dtype, size_t index, size_t count) {
  return count >= vec_lanes ? load_as(data, dtype, index)
                            : load_partial_as(data, dtype, index, count);
}

INLINE void store_up_to(void *data, mgl_dtype dtype, size_t index, size_t count, vec value) {
  if (dtype == MGL_DTYPE_BF16) {
    if (count >= vec_lanes) {
      vec_store_bf16((mgl_bf16 *)data + index, value);
    } else {
      vec_store_bf16_partial((mgl_bf16 *)data + index, count, value);
    }
  } else if (count >= vec_lanes) {
    vec_store((float *)data + index, value);
  } else {
    vec_store_partial((float *)data + index, count, value);
  }
}

// exp(x) within 1.01 ulp (2^-149 absolute where the result is subnormal); exp(-inf) = 0, exp of
// more than 88.73 is infinite, NaN stays NaN. x = n ln2 + r with |r| <= ln2 / 2; exp(r) = 1 + r +
// r^2 q(r), q a minimax polynomial of degree 4 (relative error 4e-9). ln2 has a high and a low
// part.
INLINE vec vec_exp(vec x) {
  x = vec_min(vec_set(89.0f), vec_max(vec_set(-105.0f), x));
  vec n = vec_round(vec_mul(x, vec_set(0x1.715476p+0f)));
  vec r = vec_fnma(n, vec_set(0x1.62e430p-1f), x);
  r = vec_fnma(n, vec_set(-0x1.05c610p-29f), r);
  vec q = vec_set(0x1.6a215ap-10f);
  q = vec_fma(q, r, vec_set(0x1.123b9ap-7f));
  q = vec_fma(q, r, vec_set(0x1.5558fcp-5f));
  q = vec_fma(q, r, vec_set(0x1.555490p-3f));
  q = vec_fma(q, r, vec_set(0x1.fffffcp-2f));
  vec result = vec_add(vec_fma(vec_mul(r, r), q, r), vec_set(1.0f));
  return vec_scale(result, n);
}

INLINE float sum_lanes(vec a) {
  return vec_sum4(a, vec_zero(), vec_zero(), vec_zero())[0];
}

static void embed(const mgl_embed_args *args, size_t begin, size_t end) {
  size_t width = args->width;
  if (mgl_dtype_is_code(args->table_dtype)) {
    mgl_scalar_embed(args, begin, end);
    return;
  }
  for (size_t t = begin; t < end; t++) {
    size_t row = (size_t)args->tokens[t] * width;
    for (size_t i = 0; i < width; i += vec_lanes) {
      vec value = load_up_to(args->table, args->table_dtype, row + i, width - i);
      store_up_to(args->out, MGL_DTYPE_F32, t * width + i, width - i, value);
    }
  }
}

// The sum of (x - mean)^power, 1 or 2.
static float sum_of_powers(const float *x, size_t width, float mean, int power) {
  vec sum = vec_zero();
  for (size_t i = 0; i < width; i += vec_lanes) {
    vec value = vec_sub(load_up_to(x, MGL_DTYPE_F32, i, width - i), vec_set(mean));
    value = width - i < vec_lanes ? vec_select(width - i, value, vec_zero()) : value;
    sum = power == 1 ? vec_add(sum, value) : vec_fma(value, value, sum);
  }
  return sum_lanes(sum);
}

// Four accumulators hide the latency of the additions; vector i goes to accumulator i mod 4.
static float sum_of_squares(const float *x, size_t width) {
  vec sums[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
  size_t i = 0;
  for (; i + 4 * vec_lanes <= width; i += 4 * vec_lanes) {
    for (size_t j = 0; j < 4; j++) {
      vec value = vec_load(x + i + j * vec_lanes);
      sums[j] = vec_fma(value, value, sums[j]);
    }
  }
  for (size_t j = 0; i < width; i += vec_lanes, j++) {
    vec value = load_up_to(x, MGL_DTYPE_F32, i, width - i);
    sums[j] = vec_fma(value, value, sums[j]);
  }
  return sum_lanes(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static void rmsnorm(const mgl_rmsnorm_args *args, size_t begin, size_t end) {
  size_t width = args->width;
  for (size_t row = begin; row < end; row++) {
    size_t source = args->x_row_index != NULL ? args->x_row_index[row] : row;
    const float *x = args->x + source * width;
    float mean = sum_of_squares(x, width) / (float)width;
    vec inverse = vec_set(1.0f / sqrtf(mean + args->eps));
    for (size_t i = 0; i < width; i += vec_lanes) {
      vec value = load_up_to(x, MGL_DTYPE_F32, i, width - i);
      vec weight = load_up_to(args->weight, MGL_DTYPE_F32, i, width - i);
      value = vec_mul(vec_mul(value, inverse), weight);
      store_up_to(args->out, args->out_dtype, row * width + i, width - i, value);
    }
  }
}

static void layernorm(const mgl_rmsnorm_args *args, size_t begin, size_t end) {
  size_t width = args->width;
  for (size_t row = begin; row < end; row++) {
    size_t source = args->x_row_index != NULL ? args->x_row_index[row] : row;
    const float *x = args->x + source * width;
    float mean = sum_of_powers(x, width, 0, 1) / (float)width;
    float variance = sum_of_powers(x, width, mean, 2) / (float)width;
    vec inverse = vec_set(1.0f / sqrtf(variance + args->eps));
    for (size_t i = 0; i < width; i += vec_lanes) {
      vec value = vec_sub(load_up_to(x, MGL_DTYPE_F32, i, width - i), vec_set(mean));
      vec weight = load_up_to(args->weight, MGL_DTYPE_F32, i, width - i);
      vec shift = load_up_to(args->shift, MGL_DTYPE_F32, i, width - i);
      value = vec_fma(vec_mul(value, inverse), weight, shift);
      store_up_to(args->out, args->out_dtype, row * width + i, width - i, value);
    }
  }
}
static void rope_head(float *x, const float *angles, size_t half) {
  for (size_t i = 0; i < half; i += vec_lanes) {
    size_t count = half - i < vec_lanes ? half - i : vec_lanes;
    size_t second_count = 2 * count > vec_lanes ? 2 * count - vec_lanes : 0;
    vec first = load_up_to(angles, MGL_DTYPE_F32, 2 * i, 2 * count);
    vec second = load_up_to(angles, MGL_DTYPE_F32, 2 * i + 2 * count - second_count, second_count);
    vec cosine, sine;
    vec_deinterleave(first, second, &cosine, &sine);
    vec low = load_up_to(x, MGL_DTYPE_F32, i, count);
    vec high = load_up_to(x, MGL_DTYPE_F32, i + half, count);
    vec new_low = vec_fnma(high, sine, vec_mul(low, cosine));
    vec new_high = vec_fma(low, sine, vec_mul(high, cosine));
    store_up_to(x, MGL_DTYPE_F32, i, count, new_low);
    store_up_to(x, MGL_DTYPE_F32, i + half, count, new_high);
  }
}

static void rope(const mgl_rope_args *args, size_t begin, size_t end) {
  size_t half = args->rotary_dim / 2;
  for (size_t t = begin; t < end; t++) {
    for (size_t head = 0; head < args->head_count; head++) {
      rope_head(args->x + (t * args->head_count + head) * args->head_dim,
                args->angles + t * half * 2, half);
    }
  }
}

#include "kernels/cpu/kv_vector.inc.h"

// K goes to a column of its page, so its elements are stored one by one.
static void write_key(const mgl_kv_layer *kv, size_t column, const float *key) {
  size_t stride = kv->page_tokens;
  vec scale = vec_set(mgl_kv_k_scale(kv));
  if (kv->dtype == MGL_DTYPE_F32) {
    float *out = (float *)kv->k + column;
    for (size_t i = 0; i < kv->head_dim; i++) {
      out[i * stride] = key[i];
    }
    return;
  }
  for (size_t i = 0; i < kv->head_dim; i += vec_lanes) {
    size_t count = kv->head_dim - i < vec_lanes ? kv->head_dim - i : vec_lanes;
    vec value = vec_div(load_up_to(key, MGL_DTYPE_F32, i, count), scale);
    if (kv->dtype == MGL_DTYPE_BF16) {
      mgl_bf16 rounded[vec_lanes];
      vec_store_bf16(rounded, value);
      for (size_t j = 0; j < count; j++) {
        ((mgl_bf16 *)kv->k)[column + (i + j) * stride] = rounded[j];
      }
    } else {
      kv_codes codes = kv_to_e4m3(value);
      for (size_t j = 0; j < count; j++) {
        ((uint8_t *)kv->k)[column + (i + j) * stride] = codes[j];
      }
    }
  }
}

static void kv_write(const mgl_kv_write_args *args, size_t begin, size_t end) {
  const mgl_kv_layer *kv = &args->kv;
  size_t head_dim = kv->head_dim, page_tokens = kv->page_tokens;
  vec scale = vec_set(mgl_kv_v_scale(kv));
  for (size_t t = begin; t < end; t++) {
    size_t page = args->slots[t] / page_tokens, offset = args->slots[t] % page_tokens;
    for (size_t head = args->head_begin; head < args->head_end; head++) {
      size_t row = (head - args->head_begin) * head_dim;
      const float *v = args->v + t * args->v_stride + row;
      size_t block = mgl_kv_block(kv, page, head);
      write_key(kv, block + offset, args->k + t * args->k_stride + row);
      for (size_t i = 0; i < head_dim; i += vec_lanes) {
        vec value = vec_div(load_up_to(v, MGL_DTYPE_F32, i, head_dim - i), scale);
        kv_store_up_to(kv->v, kv->dtype, block + offset * head_dim + i, head_dim - i, value);
      }
    }
  }
}

// exp(-x) is infinite below -88.7: the quotient is then -0, as it should be.
static void silu_mul(const mgl_silu_mul_args *args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += vec_lanes) {
    vec gate = load_up_to(args->gate, MGL_DTYPE_F32, i, end - i);
    vec up = load_up_to(args->up, MGL_DTYPE_F32, i, end - i);
    vec denominator = vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_zero(), gate)));
    store_up_to(args->out, args->out_dtype, i, end - i, vec_mul(vec_div(gate, denominator), up));
  }
}

// exp of more than 88.73 is infinite: the quotient is then -0, as it should be.
static void gelu(const mgl_gelu_args *args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += vec_lanes) {
    vec x = load_up_to(args->x, MGL_DTYPE_F32, i, end - i);
    vec inner = vec_fma(vec_mul(vec_mul(vec_set(MGL_GELU_CUBE), x), vec_mul(x, x)), vec_set(1), x);
    inner = vec_mul(vec_set(-MGL_GELU_SLOPE), inner);
    vec denominator = vec_add(vec_set(1.0f), vec_exp(inner));
    store_up_to(args->out, args->out_dtype, i, end - i, vec_div(x, denominator));
  }
}

static void add(const mgl_add_args *args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += vec_lanes) {
    vec x = load_up_to(args->x, MGL_DTYPE_F32, i, end - i);
    vec y = load_up_to(args->y, MGL_DTYPE_F32, i, end - i);
    store_up_to(args->x, MGL_DTYPE_F32, i, end - i, vec_add(x, y));
  }
}

// Vector comparisons lose a NaN, so four chains also add up x - x: 0, or a NaN of a NaN or an
// infinity, and then the scalar loop decides.
static float largest(const float *x, size_t count) {
  enum { chains = 4 };
  if (count < chains * vec_lanes) {
    return mgl_scalar_largest(x, count);
  }
  vec most[chains], zero[chains];
  UNROLL for (size_t j = 0; j < chains; j++) {
    most[j] = vec_load(x + j * vec_lanes);
    zero[j] = vec_sub(most[j], most[j]);
  }
  // The last step overlaps the one before it: an element may count twice.
  for (size_t i = chains * vec_lanes; i < count; i += chains * vec_lanes) {
    const float *from = x + (i < count - chains * vec_lanes ? i : count - chains * vec_lanes);
    UNROLL for (size_t j = 0; j < chains; j++) {
      vec value = vec_load(from + j * vec_lanes);
      most[j] = vec_max(most[j], value);
      zero[j] = vec_add(zero[j], vec_sub(value, value));
    }
  }
  float lanes[vec_lanes];
  vec_store(lanes, vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3])));
  vec zeros = vec_add(vec_add(zero[0], zero[1]), vec_add(zero[2], zero[3]));
  return isnan(sum_lanes(zeros)) ? mgl_scalar_largest(x, count)
                                 : mgl_scalar_largest(lanes, vec_lanes);
}

static uint64_t read_stream(const void *memory, size_t bytes) {
  const char *from = memory;
  size_t blocks = bytes / vec_stream_block;
  uint64_t sum = vec_read_stream(from, blocks);
  return sum + mgl_scalar_read_stream(from + blocks * vec_stream_block, bytes % vec_stream_block);
}

#include "kernels/cpu/attention_vector.inc.h"
#include "kernels/cpu/linear_vector.inc.h"
// Behind the tiles that they build on.
#include "kernels/cpu/linear_codes.inc.h"
#include "kernels/cpu/linear_whole.inc.h"
// Behind all others, between which it chooses.
#include "kernels/cpu/linear_packed.inc.h"

// The last argument is the usual way, which has commas.
#define KERNEL_LEVEL_WITH(level_name, pack_of_level, linear_of_level, ...) \
  {                                                                        \
    .kernels =                                                             \
        {                                                                  \
            .name = level_name,                                            \
            .embed = embed,                                                \
            .rmsnorm = rmsnorm,                                            \
            .layernorm = layernorm,                                        \
            .pack = pack_of_level,                                         \
            .linear = linear_of_level,                                     \
            .rope_angles = mgl_scalar_rope_angles,                         \
            .rope = rope,                                                  \
            .kv_write = kv_write,                                          \
            .attention = attention,                                        \
            .silu_mul = silu_mul,                                          \
            .gelu = gelu,                                                  \
            .add = add,                                                    \
            .largest = largest,                                            \
            .splits = splits,                                              \
            .tiles = LEVEL_HAS_TILES,                                      \
            .shorts = !LEVEL_HAS_TILES,                                    \
            .usual = __VA_ARGS__,                                          \
        },                                                                 \
    .read_stream = read_stream,                                            \
  }

#define KERNEL_LEVEL(level_name) KERNEL_LEVEL_WITH(level_name, pack, linear, USUAL_WAY)
