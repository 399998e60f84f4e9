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

// Values of the 16 codes of E2M1 in bf16, twice: a lookup's index has 5 bits, and the fifth is one
// of the next code.
INLINE __m512i e2m1_values_bf16(void) {
  return _mm512_broadcast_i64x4(_mm256_setr_epi16(
      0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, (short)0x8000, (short)0xbf00,
      (short)0xbf80, (short)0xbfc0, (short)0xc000, (short)0xc040, (short)0xc080, (short)0xc0c0));
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

// Elements e to e + 31 of E2M1 or E4M3 as bf16; e is a multiple of 32.
INLINE vec vec_codes_pairs(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    __m512i words = _mm512_loadu_si512(block);
    words = SHIFT_WORDS(_mm512_srli_epi16, words, e);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(words, e2m1_values_bf16()));
  }
  __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(block + e));
  return _mm512_castsi512_ps(bf16_of_e4m3(bytes));
}

// Elements e to e + 15 of E2M1 or E4M3 as f32; e is a multiple of 16.
INLINE vec vec_codes(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    const vec values = vec_from_bf16(_mm512_castsi512_si256(e2m1_values_bf16()));
    __m512i words = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256((const __m256i *)(const void *)(block + e % 32 * 2)));
    words = SHIFT_WORDS(_mm512_srli_epi32, words, e);
    return _mm512_permutexvar_ps(words, values);
  }
  __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(block + e));
  // As f16 the bits are 2^-8 of the value, subnormals included.
  __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  halves = _mm256_and_si256(halves, _mm256_set1_epi16((short)0xbfff));
  return vec_mul(_mm512_cvtph_ps(halves), vec_set(256));
}

// Two groups' scales, of the lower and of the upper half of the lanes.
INLINE vec vec_set_halves(float low, float high) {
  return _mm512_mask_blend_ps(0xff00, vec_set(low), vec_set(high));
}

// --- whole numbers -------------------------------------------------------------------------------
//
// ints: a vector of vec_lanes 32-bit integers. words: one of twice as many 16-bit integers.
// WHOLE_TOKENS: tokens of a register tile of their products, of two vectors of rows.

typedef __m512i ints;
typedef __m512i words;
#define WHOLE_TOKENS 6

INLINE ints ints_zero(void) {
  return _mm512_setzero_si512();
}

INLINE ints ints_set(int32_t value) {
  return _mm512_set1_epi32(value);
}

INLINE ints ints_load(const char *from) {
  ints a = _mm512_loadu_si512(from);
#if defined(__AVX512F__)
  KEEP_ORDER("+v", a);  // gcc 12 takes it through the stack where it is an operand twice
#endif
  return a;
}

INLINE ints ints_of_bits(vec a) {
  return _mm512_castps_si512(a);
}

INLINE vec bits_of_ints(ints a) {
  return _mm512_castsi512_ps(a);
}

INLINE ints ints_sixteenth(ints a) {
  return _mm512_srai_epi32(a, 4);
}

INLINE ints ints_add(ints a, ints b) {
  return _mm512_add_epi32(a, b);
}

// Lane i of acc plus the products of elements 2 i and 2 i + 1.
INLINE ints ints_add_products(ints acc, words a, words b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(acc, a, b);
#else
  acc = _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#if defined(__AVX512F__)  // else it is only looked at, and no register is so wide
  KEEP_ORDER("+v", acc);
#endif
  return acc;
#endif
}

INLINE vec vec_of_ints(ints a) {
  return _mm512_cvtepi32_ps(a);
}

// Turning vec_lanes vectors, lane j of rows[i] to lane i of rows[j], goes by fours of them, which
// need not all be in registers at once, and what is left then.
INLINE void ints_turn_four(ints rows[4]) {
  ints a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
  ints c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
  // Quarter q of rows[i] has column 4 q + i of the four.
  rows[0] = _mm512_unpacklo_epi64(a, c);
  rows[1] = _mm512_unpackhi_epi64(a, c);
  rows[2] = _mm512_unpacklo_epi64(b, d);
  rows[3] = _mm512_unpackhi_epi64(b, d);
}

INLINE void ints_turn_fours(ints rows[vec_lanes]) {
  UNROLL for (size_t c = 0; c < 4; c++) {
    ints even_low = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
    ints odd_low = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
    ints even_high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    ints odd_high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    rows[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

// Sums over lanes of vec_lanes vectors, to lane i of vector i's, by fours likewise.
INLINE ints ints_sum_four(ints a, ints b, ints c, ints d) {
  ints ab = ints_add(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  ints cd = ints_add(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return ints_add(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// Sums of the lower and of the upper half of the lanes.
INLINE void ints_sum_fours_halves(const ints fours[vec_lanes / 4], ints sums[2]) {
  ints low = ints_add(_mm512_shuffle_i32x4(fours[0], fours[1], 0x88),
                      _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd));
  ints high = ints_add(_mm512_shuffle_i32x4(fours[2], fours[3], 0x88),
                       _mm512_shuffle_i32x4(fours[2], fours[3], 0xdd));
  sums[0] = _mm512_shuffle_i32x4(low, high, 0x88);
  sums[1] = _mm512_shuffle_i32x4(low, high, 0xdd);
}

INLINE ints ints_sum_fours(const ints fours[vec_lanes / 4]) {
  ints halves[2];
  ints_sum_fours_halves(fours, halves);
  return ints_add(halves[0], halves[1]);
}

INLINE words words_load(const int16_t *from) {
  return _mm512_loadu_si512(from);
}

INLINE void words_store(int16_t *to, words a) {
  _mm512_storeu_si512(to, a);
}

// Two elements, again and again.
INLINE words words_set_pair(const int16_t *from) {
  int pair;
  memcpy(&pair, from, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// Codes of 8 bits, as many as words has elements.
INLINE words words_of_bytes(const char *from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

INLINE words words_less(words a, int16_t by) {
  return _mm512_sub_epi16(a, _mm512_set1_epi16(by));
}

// Integer codes of lanes of 4 bytes: elements 2 q and 2 q + 1 of the four in a lane, or, of 4 bits,
// those that begin at bit 4 q of both words of a lane.
INLINE words words_of_turned(ints lanes, size_t q, mgl_dtype code) {
  if (!mgl_code_is_nibble(code)) {
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    return _mm512_srai_epi16(_mm512_shuffle_epi8(lanes, q == 0 ? low : high), 8);
  }
  __m512i nibbles = SHIFT_WORDS(_mm512_srli_epi16, lanes, 32 * q);
  return q == 3 ? nibbles : _mm512_and_si512(nibbles, _mm512_set1_epi16(15));
}

// The 4-bit codes that begin at bit 4 q of the words of lanes, or, where q is odd, 16 times these:
// a shift less.
INLINE words words_of_nibbles(ints lanes, size_t q) {
  return _mm512_and_si512(q < 2 ? lanes : _mm512_srli_epi16(lanes, 8),
                          _mm512_set1_epi16(q % 2 == 1 ? 0xf0 : 15));
}

// The nearest integers, which are cut off at 16 bits.
INLINE void vec_store_words(int16_t *to, vec a) {
  _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a)));
}

#endif
