// Elements of a KV cache of a vector level: how they are made f32 and back.
//
// E4M3 goes by way of f16, whose exponents are the larger ones: shifted to where f16 has its own,
// the bits are the value times 2^-8, subnormals too, without a table and without a subnormal f32.
// That factor is a power of two, so the kernels multiply it in where they multiply by the scale,
// behind their sums. It is written in vectors of the compiler, one source for all levels: the only
// instruction that matters and is not plain integer arithmetic, f16 to f32, is vec_load_f16.
//
// Included by kernels_vector.inc.h.

typedef int8_t kv_bytes __attribute__((vector_size(vec_lanes)));
typedef int16_t kv_wide_bytes __attribute__((vector_size(2 * vec_lanes)));
typedef uint16_t kv_halves __attribute__((vector_size(2 * vec_lanes)));
typedef uint8_t kv_codes __attribute__((vector_size(vec_lanes)));
typedef uint32_t kv_words __attribute__((vector_size(4 * vec_lanes)));
typedef float kv_floats __attribute__((vector_size(4 * vec_lanes)));

// What loaded elements are to be multiplied with, beside the cache's scale.
INLINE float kv_unit(mgl_dtype dtype) {
  return dtype == MGL_DTYPE_KV8 ? 256 : 1;
}

// Sign, then 4 bits of exponent below f16's highest, 3 of mantissa. The code of NaN is the one that
// a step carries into that highest bit, which then makes it f16's NaN.
INLINE vec kv_from_e4m3(kv_bytes bytes) {
  kv_halves bits = (kv_halves) __builtin_convertvector(bytes, kv_wide_bytes) << 7;
  bits &= 0xbf80;
  bits |= (bits + 0x80) & 0x4000;
  return vec_load_f16(&bits);
}

INLINE vec kv_load(const void *from, mgl_dtype dtype) {
  if (dtype == MGL_DTYPE_KV8) {
    kv_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return kv_from_e4m3(bytes);
  }
  return dtype == MGL_DTYPE_BF16 ? vec_load_bf16(from) : vec_load(from);
}

// The first `count` elements, at most one vector.
INLINE vec kv_load_up_to(const void *from, mgl_dtype dtype, size_t count) {
  if (dtype != MGL_DTYPE_KV8 || count >= vec_lanes) {
    return count >= vec_lanes ? kv_load(from, dtype) : load_partial_as(from, dtype, 0, count);
  }
  kv_bytes bytes = {0};
  memcpy(&bytes, from, count);
  return kv_from_e4m3(bytes);
}

// As mgl_f32_to_e4m3, which explains it.
INLINE kv_codes kv_to_e4m3(vec value) {
  float lanes[vec_lanes];
  kv_words bits;
  vec_store(lanes, value);
  memcpy(&bits, lanes, sizeof bits);
  kv_words magnitude = bits & 0x7fffffffu;
  kv_words large = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  kv_words small = (kv_words)((kv_floats)magnitude + 0x1p14f) - 0x46800000u;
  kv_words is_small = (kv_words)(magnitude < 0x3c800000u);
  kv_words code = (is_small & small) | (~is_small & large);
  kv_words is_beyond = (kv_words)(code > 0x7eu), is_nan = (kv_words)(magnitude > 0x7f800000u);
  code = (is_beyond & 0x7eu) | (~is_beyond & code);
  code = (is_nan & 0x7fu) | (~is_nan & code);
  return __builtin_convertvector(code | (bits >> 24 & 0x80u), kv_codes);
}

// Elements index to index + count, at most one vector.
INLINE void kv_store_up_to(void *data, mgl_dtype dtype, size_t index, size_t count, vec value) {
  if (dtype == MGL_DTYPE_KV8) {
    kv_codes codes = kv_to_e4m3(value);
    memcpy((uint8_t *)data + index, &codes, count < vec_lanes ? count : vec_lanes);
  } else {
    store_up_to(data, dtype, index, count, value);
  }
}
