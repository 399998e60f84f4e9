// Codes of weights (base/form.def) to vectors, with AVX-512: see codes_avx2.h for the other level.
//
// `block` is MGL_CODE_BLOCK codes as base/form.h lays them out; elements come in order. e is a
// constant after inlining.
#ifndef MGL_KERNELS_CPU_CODES_AVX512_H
#define MGL_KERNELS_CPU_CODES_AVX512_H

#include "base/form.h"
#include "kernels/cpu/vector_avx512.h"

// The bits that a 4-bit code's place in its word begins at; a constant, as the shifts want it.
#define SHIFT_WORDS(shift, words, e)                    \
  ((e) % MGL_CODE_BLOCK / 32 == 0   ? (words)           \
   : (e) % MGL_CODE_BLOCK / 32 == 1 ? shift((words), 4) \
   : (e) % MGL_CODE_BLOCK / 32 == 2 ? shift((words), 8) \
                                    : shift((words), 12))

// Values of the 16 codes of 4 bits in bf16, twice: a lookup's index has 5 bits, and the fifth is
// one of the next code.
INLINE __m512i nibble_values_bf16(mgl_dtype code) {
  const __m256i integers = _mm256_setr_epi16(
      (short)0xc100, (short)0xc0e0, (short)0xc0c0, (short)0xc0a0, (short)0xc080, (short)0xc040,
      (short)0xc000, (short)0xbf80, 0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
  const __m256i unsigned_integers =
      _mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110,
                        0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
  const __m256i floats = _mm256_setr_epi16(
      0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, (short)0x8000, (short)0xbf00,
      (short)0xbf80, (short)0xbfc0, (short)0xc000, (short)0xc040, (short)0xc080, (short)0xc0c0);
  return _mm512_broadcast_i64x4(code == MGL_DTYPE_I4   ? integers
                                : code == MGL_DTYPE_U4 ? unsigned_integers
                                                       : floats);
}

INLINE __m512i bf16_of_e4m3(__m256i bytes) {
  __m512i words = _mm512_cvtepi8_epi16(bytes);
  // Exponent and mantissa stand where bf16 has them, once the biases' difference is added.
  __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(words, 4), _mm512_set1_epi16(0x7f0));
  __m512i normal = _mm512_add_epi16(magnitude, _mm512_set1_epi16(120 << 7));
  // The eight subnormals, and zero, are looked up.
  const __m512i small = _mm512_broadcast_i32x4(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  __mmask32 is_small = _mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x78));
  __m512i value = _mm512_mask_permutexvar_epi16(normal, is_small, words, small);
  return _mm512_or_si512(value, _mm512_and_si512(words, _mm512_set1_epi16((short)0x8000)));
}

// An integer of 8 bits is exact in the upper half of a float.
INLINE __m512i bf16_of_i8(__m256i bytes) {
  __m512i words = _mm512_cvtepi8_epi16(bytes);
  __m512i odd = _mm512_srai_epi32(words, 16);
  __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16);
  __m512i odd_bits = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
  __m512i even_bits = _mm512_castps_si512(_mm512_cvtepi32_ps(even));
  return _mm512_or_si512(odd_bits, _mm512_srli_epi32(even_bits, 16));
}

// Elements e to e + 31 as bf16; e is a multiple of 32.
INLINE vec vec_codes_pairs(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    __m512i words = _mm512_loadu_si512(block);
    words = SHIFT_WORDS(_mm512_srli_epi16, words, e);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(words, nibble_values_bf16(code)));
  }
  __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(block + e));
  return _mm512_castsi512_ps(code == MGL_DTYPE_I8 ? bf16_of_i8(bytes) : bf16_of_e4m3(bytes));
}

// Elements e to e + 15 as f32; e is a multiple of 16.
INLINE vec vec_codes(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    const vec values = vec_from_bf16(_mm512_castsi512_si256(nibble_values_bf16(code)));
    __m512i words = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256((const __m256i *)(const void *)(block + e % 32 * 2)));
    words = SHIFT_WORDS(_mm512_srli_epi32, words, e);
    return _mm512_permutexvar_ps(words, values);
  }
  __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(block + e));
  if (code == MGL_DTYPE_I8) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  // As f16 the bits are 2^-8 of the value, subnormals included.
  __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  halves = _mm256_and_si256(halves, _mm256_set1_epi16((short)0xbfff));
  return vec_mul(_mm512_cvtph_ps(halves), vec_set(256));
}

// Two groups' scales, of the lower and of the upper half of the lanes.
INLINE vec vec_set_halves(float low, float high) {
  return _mm512_mask_blend_ps(0xff00, vec_set(low), vec_set(high));
}

#endif
