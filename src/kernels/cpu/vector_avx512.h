// Vector operations of the AVX-512 levels (F, BW, VL, DQ; BF16 where the compiler is told so): 16
// lanes of f32. The same names as vector_avx2.h; kernels_vector.inc.h and its parts are written
// against them. "partial" operations touch the first `count` (0 to 16) elements only: lanes beyond
// are zero after a load and never stored, and memory beyond is never accessed.
#ifndef MGL_KERNELS_CPU_VECTOR_AVX512_H
#define MGL_KERNELS_CPU_VECTOR_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/cpu/vector_words.h"

typedef __m512 vec;

// vec_accumulators: how many accumulators a register tile of the attention may have.
// LINEAR_TOKENS: tokens of a register tile of linears, of four rows.
// VEC_DOT_IS_ONE: vec_dot_pairs is one instruction.
enum { vec_lanes = 16, vec_accumulators = 16 };
#define LINEAR_TOKENS 6
#if defined(__AVX512BF16__)
#define VEC_DOT_IS_ONE true
#else
#define VEC_DOT_IS_ONE false
#endif

INLINE __mmask16 vec_mask(size_t count) {
  return (__mmask16)((1u << count) - 1u);
}

INLINE vec vec_zero(void) {
  return _mm512_setzero_ps();
}

INLINE vec vec_set(float value) {
  return _mm512_set1_ps(value);
}

INLINE vec vec_add(vec a, vec b) {
  return _mm512_add_ps(a, b);
}

INLINE vec vec_sub(vec a, vec b) {
  return _mm512_sub_ps(a, b);
}

INLINE vec vec_mul(vec a, vec b) {
  return _mm512_mul_ps(a, b);
}

INLINE vec vec_div(vec a, vec b) {
  return _mm512_div_ps(a, b);
}

INLINE vec vec_fma(vec a, vec b, vec c) {  // a * b + c
  return _mm512_fmadd_ps(a, b, c);
}

INLINE vec vec_fnma(vec a, vec b, vec c) {  // c - a * b
  return _mm512_fnmadd_ps(a, b, c);
}

// NaN in b stays: the instruction returns its second operand when either is NaN.
INLINE vec vec_max(vec a, vec b) {
  return _mm512_max_ps(a, b);
}

INLINE vec vec_min(vec a, vec b) {
  return _mm512_min_ps(a, b);
}

INLINE vec vec_round(vec a) {  // to the nearest integer, ties to even
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE vec vec_scale(vec a, vec n) {  // a * 2^n for integral n, rounded once
  return _mm512_scalef_ps(a, n);
}

// The first `count` lanes of a, the rest of b: whatever a holds there, NaN included, has no effect.
INLINE vec vec_select(size_t count, vec a, vec b) {
  return _mm512_mask_blend_ps(vec_mask(count), b, a);
}

INLINE vec vec_load(const void *from) {
  return _mm512_loadu_ps(from);
}

INLINE vec vec_load_partial(const void *from, size_t count) {
  return _mm512_maskz_loadu_ps(vec_mask(count), from);
}

INLINE void vec_store(float *to, vec a) {
  _mm512_storeu_ps(to, a);
}

INLINE void vec_store_partial(float *to, size_t count, vec a) {
  _mm512_mask_storeu_ps(to, vec_mask(count), a);
}

// Each to the upper half of its lane, by one permutation: to widen and to shift is two instructions
// on the units that multiply (docs/log/260).
INLINE vec vec_from_bf16(__m256i bits) {
  __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i from = _mm512_slli_epi32(lanes, 16);
  __m512i all = _mm512_castsi256_si512(bits);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, from, all));
}

INLINE vec vec_load_bf16(const void *from) {
  return vec_from_bf16(_mm256_loadu_si256(from));
}

INLINE vec vec_load_bf16_partial(const void *from, size_t count) {
  return vec_from_bf16(_mm256_maskz_loadu_epi16(vec_mask(count), from));
}

INLINE vec vec_load_f16(const void *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(from));
}

INLINE vec vec_load_f16_partial(const void *from, size_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vec_mask(count), from));
}

// As mgl_f32_to_bf16. VCVTNEPS2BF16 would flush subnormals and is not there in every level.
INLINE __m256i vec_to_bf16(vec a) {
  __m512i bits = _mm512_castps_si512(a);
  __m512i high = _mm512_srli_epi32(bits, 16);
  __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i biased = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i rounded = _mm512_srli_epi32(biased, 16);
  __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
}

INLINE void vec_store_bf16(mgl_bf16 *to, vec a) {
  _mm256_storeu_si256((__m256i *)(void *)to, vec_to_bf16(a));
}

INLINE void vec_store_bf16_partial(mgl_bf16 *to, size_t count, vec a) {
  _mm256_mask_storeu_epi16(to, vec_mask(count), vec_to_bf16(a));
}

// Splits 16 (even, odd) pairs, given as two vectors, into their evens and odds.
INLINE void vec_deinterleave(vec first, vec second, vec *even, vec *odd) {
  __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  __m512i odds = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  *even = _mm512_permutex2var_ps(first, evens, second);
  *odd = _mm512_permutex2var_ps(first, odds, second);
}

// The sums of the lanes of a, b, c and d. Each sum has the same order of additions wherever it
// stands, so that a row of a tile and a single row get the same bits.
INLINE vec4 vec_sum4(vec a, vec b, vec c, vec d) {
  vec ab = vec_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  vec cd = vec_add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  vec abcd = vec_add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// bf16 operands of a dot product in pairs: lane i holds elements 2i and 2i + 1, as loaded.
INLINE vec vec_load_pairs(const void *from) {
  return _mm512_castsi512_ps(_mm512_loadu_si512(from));
}

INLINE vec vec_load_pairs_partial(const void *from, size_t count) {  // count 0 to 32
  __mmask32 mask = (__mmask32)((UINT64_C(1) << count) - 1u);
  return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from));
}

// The even and the odd elements of pairs, as f32.
INLINE vec vec_pairs_even(vec pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}

INLINE vec vec_pairs_odd(vec pairs) {
  __m512i high = _mm512_set1_epi32((int)0xffff0000u);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), high));
}

// acc + x[2i] * w[2i] + x[2i + 1] * w[2i + 1], the odd product first. VDPBF16PS does the same but
// that it treats subnormals as zero.
INLINE vec vec_dot_pairs(vec acc, vec x, vec w) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
#else
  acc = vec_fma(vec_pairs_odd(x), vec_pairs_odd(w), acc);
  return vec_fma(vec_pairs_even(x), vec_pairs_even(w), acc);
#endif
}

// Short rows (kernels/cpu/short_rows.h). SHORT_AT_ONCE: rows of a group whose accumulators are in
// registers. short_base: the exponents of all codes, looked up twice: an index has 5 bits, and the
// fifth is one of the next code.
#define SHORT_AT_ONCE 16
typedef __m512i short_base;

INLINE short_base vec_short_base(uint16_t base) {
  const __m512i codes = _mm512_broadcast_i64x4(
      _mm256_setr_epi16(0, 1 << 7, 2 << 7, 3 << 7, 4 << 7, 5 << 7, 6 << 7, 7 << 7, 8 << 7, 9 << 7,
                        10 << 7, 11 << 7, 12 << 7, 13 << 7, 14 << 7, 15 << 7));
  return _mm512_add_epi16(codes, _mm512_set1_epi16((short)base));
}

// Elements e to e + 31 of a block; e is a multiple of 32.
INLINE vec vec_short_pairs(const char *block, size_t e, short_base base) {
  const __m512i swap =
      _mm512_broadcast_i32x4(_mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  __m512i codes = _mm512_loadu_si512(block + 128);
  __m512i signs = _mm512_loadu_si512(block + e / 64 * 64);
  codes = e == 0    ? codes
          : e == 32 ? _mm512_srli_epi16(codes, 4)
          : e == 64 ? _mm512_srli_epi16(codes, 8)
                    : _mm512_srli_epi16(codes, 12);
  signs = e % 64 == 0 ? signs : _mm512_shuffle_epi8(signs, swap);
  // a | b & c
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_permutexvar_epi16(codes, base), signs,
                                                       _mm512_set1_epi16((short)0x807f), 0xf8));
}

// Between these two, other instructions treat subnormals as vec_dot_pairs does. What is computed
// there must pass through both as `accumulators`, or the compiler may compute it elsewhere: it does
// not know that arithmetic depends on the control register.
INLINE uint32_t vec_subnormals_begin(vec *accumulators, size_t count) {
#if defined(__AVX512BF16__)
  uint32_t before, zeroed;
  __asm__ volatile("stmxcsr %0" : "=m"(before));
  zeroed = before | _MM_FLUSH_ZERO_ON | 0x40u;  // of results, of operands
  __asm__ volatile("ldmxcsr %0" : : "m"(zeroed) : "memory");
  UNROLL for (size_t i = 0; i < count; i++) {
    __asm__ volatile("" : "+v"(accumulators[i]));
  }
  return before;
#else
  (void)accumulators;
  return (uint32_t)count;
#endif
}

INLINE void vec_subnormals_end(uint32_t before, vec *accumulators, size_t count) {
#if defined(__AVX512BF16__)
  UNROLL for (size_t i = 0; i < count; i++) {
    __asm__ volatile("" : "+v"(accumulators[i]));
  }
  __asm__ volatile("ldmxcsr %0" : : "m"(before) : "memory");
  UNROLL for (size_t i = 0; i < count; i++) {
    __asm__ volatile("" : "+v"(accumulators[i]));
  }
#else
  (void)before, (void)accumulators, (void)count;
#endif
}

// The sum of the 8-byte words of `blocks` blocks of 512 bytes, in eight independent chains.
enum { vec_stream_block = 512 };

INLINE uint64_t vec_read_stream(const char *from, size_t blocks) {
  __m512i sums[8];
  for (int i = 0; i < 8; i++) {
    sums[i] = _mm512_setzero_si512();
  }
  for (; blocks > 0; blocks--, from += vec_stream_block) {
    for (size_t i = 0; i < 8; i++) {
      sums[i] = _mm512_add_epi64(sums[i], _mm512_loadu_si512(from + i * 64));
    }
  }
  for (int i = 1; i < 8; i++) {
    sums[0] = _mm512_add_epi64(sums[0], sums[i]);
  }
  // Not _mm512_reduce_add_epi64: its last additions are signed, and these sums wrap around.
  uint64_t lanes[8];
  uint64_t sum = 0;
  _mm512_storeu_si512(lanes, sums[0]);
  for (int i = 0; i < 8; i++) {
    sum += lanes[i];
  }
  return sum;
}

#endif
