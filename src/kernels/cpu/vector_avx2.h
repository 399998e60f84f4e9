// Vector operations of the AVX2 level (with FMA and F16C): 8 lanes of f32. The same names and
// meanings as vector_avx512.h, where they are explained. There are no masked loads of 16-bit
// elements, so partial ones go through a small buffer.
#ifndef MGL_KERNELS_CPU_VECTOR_AVX2_H
#define MGL_KERNELS_CPU_VECTOR_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/cpu/vector_words.h"

typedef __m256 vec;

enum { vec_lanes = 8, vec_accumulators = 8 };
#define LINEAR_TOKENS 4
#define VEC_DOT_IS_ONE false

INLINE __m256i vec_mask(size_t count) {
  static const int32_t table[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256((const __m256i *)(const void *)(table + 8 - count));
}

INLINE vec vec_zero(void) {
  return _mm256_setzero_ps();
}

INLINE vec vec_set(float value) {
  return _mm256_set1_ps(value);
}

INLINE vec vec_add(vec a, vec b) {
  return _mm256_add_ps(a, b);
}

INLINE vec vec_sub(vec a, vec b) {
  return _mm256_sub_ps(a, b);
}

INLINE vec vec_mul(vec a, vec b) {
  return _mm256_mul_ps(a, b);
}

INLINE vec vec_div(vec a, vec b) {
  return _mm256_div_ps(a, b);
}

INLINE vec vec_fma(vec a, vec b, vec c) {
  return _mm256_fmadd_ps(a, b, c);
}

INLINE vec vec_fnma(vec a, vec b, vec c) {
  return _mm256_fnmadd_ps(a, b, c);
}

INLINE vec vec_max(vec a, vec b) {
  return _mm256_max_ps(a, b);
}

INLINE vec vec_min(vec a, vec b) {
  return _mm256_min_ps(a, b);
}

INLINE vec vec_round(vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Two factors, since 2^n alone may lie outside the exponent range; the first product is exact.
INLINE vec vec_scale(vec a, vec n) {
  __m256i exponent = _mm256_cvtps_epi32(n);
  __m256i first = _mm256_srai_epi32(exponent, 1);
  __m256i second = _mm256_sub_epi32(exponent, first);
  __m256i bias = _mm256_set1_epi32(127);
  vec low = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  vec high = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return vec_mul(vec_mul(a, low), high);
}

INLINE vec vec_select(size_t count, vec a, vec b) {
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(vec_mask(count)));
}

INLINE vec vec_load(const void *from) {
  return _mm256_loadu_ps(from);
}

INLINE vec vec_load_partial(const void *from, size_t count) {
  return _mm256_maskload_ps(from, vec_mask(count));
}

INLINE void vec_store(float *to, vec a) {
  _mm256_storeu_ps(to, a);
}

INLINE void vec_store_partial(float *to, size_t count, vec a) {
  _mm256_maskstore_ps(to, vec_mask(count), a);
}

INLINE __m128i load_halves(const void *from) {
  return _mm_loadu_si128(from);
}

INLINE __m128i load_halves_partial(const void *from, size_t count) {
  uint16_t buffer[8] = {0};
  memcpy(buffer, from, count * sizeof *buffer);
  return load_halves(buffer);
}

INLINE vec vec_from_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

INLINE vec vec_load_bf16(const void *from) {
  return vec_from_bf16(load_halves(from));
}

INLINE vec vec_load_bf16_partial(const void *from, size_t count) {
  return vec_from_bf16(load_halves_partial(from, count));
}

INLINE vec vec_load_f16(const void *from) {
  return _mm256_cvtph_ps(load_halves(from));
}

INLINE vec vec_load_f16_partial(const void *from, size_t count) {
  return _mm256_cvtph_ps(load_halves_partial(from, count));
}

INLINE __m128i vec_to_bf16(vec a) {
  __m256i bits = _mm256_castps_si256(a);
  __m256i high = _mm256_srli_epi32(bits, 16);
  __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  __m256i biased = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i rounded = _mm256_srli_epi32(biased, 16);
  __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}

INLINE void vec_store_bf16(mgl_bf16 *to, vec a) {
  _mm_storeu_si128((__m128i *)(void *)to, vec_to_bf16(a));
}

INLINE void vec_store_bf16_partial(mgl_bf16 *to, size_t count, vec a) {
  mgl_bf16 buffer[8];
  vec_store_bf16(buffer, a);
  memcpy(to, buffer, count * sizeof *buffer);
}

INLINE void vec_deinterleave(vec first, vec second, vec *even, vec *odd) {
  __m256 low = _mm256_permute2f128_ps(first, second, 0x20);
  __m256 high = _mm256_permute2f128_ps(first, second, 0x31);
  *even = _mm256_shuffle_ps(low, high, 0x88);
  *odd = _mm256_shuffle_ps(low, high, 0xdd);
}

INLINE vec4 vec_sum4(vec a, vec b, vec c, vec d) {
  vec ab = vec_add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  vec cd = vec_add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  vec abcd = vec_add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}

INLINE vec vec_load_pairs(const void *from) {
  return _mm256_loadu_ps(from);
}

INLINE vec vec_load_pairs_partial(const void *from, size_t count) {  // count 0 to 16
  uint16_t buffer[16] = {0};
  memcpy(buffer, from, count * sizeof *buffer);
  return vec_load_pairs(buffer);
}

INLINE vec vec_pairs_even(vec pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}

INLINE vec vec_pairs_odd(vec pairs) {
  __m256i high = _mm256_set1_epi32((int)0xffff0000u);
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), high));
}

INLINE vec vec_dot_pairs(vec acc, vec x, vec w) {
  acc = vec_fma(vec_pairs_odd(x), vec_pairs_odd(w), acc);
  return vec_fma(vec_pairs_even(x), vec_pairs_even(w), acc);
}

// Short rows: a base, added to codes that are shifted to where bf16 has its exponent.
#define SHORT_AT_ONCE 4
typedef __m256i short_base;

INLINE short_base vec_short_base(uint16_t base) {
  return _mm256_set1_epi16((short)base);
}

// Elements e to e + 15 of a block; e is a multiple of 16.
INLINE vec vec_short_pairs(const char *block, size_t e, short_base base) {
  const __m256i swap = _mm256_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14, 1, 0,
                                        3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  const size_t word = e % 32 * sizeof(uint16_t);
  __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(block + 128 + word));
  __m256i signs = _mm256_loadu_si256((const __m256i *)(const void *)(block + e / 64 * 64 + word));
  codes = e / 32 == 0   ? _mm256_slli_epi16(codes, 7)
          : e / 32 == 1 ? _mm256_slli_epi16(codes, 3)
          : e / 32 == 2 ? _mm256_srli_epi16(codes, 1)
                        : _mm256_srli_epi16(codes, 5);
  codes = _mm256_add_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x0780)), base);
  signs = e / 32 % 2 == 0 ? signs : _mm256_shuffle_epi8(signs, swap);
  signs = _mm256_and_si256(signs, _mm256_set1_epi16((short)0x807f));
  return _mm256_castsi256_ps(_mm256_or_si256(codes, signs));
}

// vec_dot_pairs treats subnormals as all instructions of this level do.
INLINE uint32_t vec_subnormals_begin(vec *accumulators, size_t count) {
  (void)accumulators;
  return (uint32_t)count;
}

INLINE void vec_subnormals_end(uint32_t before, vec *accumulators, size_t count) {
  (void)before, (void)accumulators, (void)count;
}

enum { vec_stream_block = 256 };

INLINE uint64_t vec_read_stream(const char *from, size_t blocks) {
  __m256i sums[8];
  for (int i = 0; i < 8; i++) {
    sums[i] = _mm256_setzero_si256();
  }
  for (; blocks > 0; blocks--, from += vec_stream_block) {
    for (size_t i = 0; i < 8; i++) {
      const void *at = from + i * 32;
      sums[i] = _mm256_add_epi64(sums[i], _mm256_loadu_si256(at));
    }
  }
  for (int i = 1; i < 8; i++) {
    sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  }
  uint64_t words[4];
  _mm256_storeu_si256((__m256i *)(void *)words, sums[0]);
  return words[0] + words[1] + words[2] + words[3];
}

#endif
