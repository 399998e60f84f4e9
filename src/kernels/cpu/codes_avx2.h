// Codes of weights (base/form.def) to vectors, with AVX2: the same names as codes_avx512.h.
#ifndef MGL_KERNELS_CPU_CODES_AVX2_H
#define MGL_KERNELS_CPU_CODES_AVX2_H

#include "base/form.h"
#include "kernels/cpu/vector_avx2.h"

// The bits that a 4-bit code's place in its word begins at; a constant, as the shifts want it.
#define SHIFT_WORDS(shift, words, e)                    \
  ((e) % MGL_CODE_BLOCK / 32 == 0   ? (words)           \
   : (e) % MGL_CODE_BLOCK / 32 == 1 ? shift((words), 4) \
   : (e) % MGL_CODE_BLOCK / 32 == 2 ? shift((words), 8) \
                                    : shift((words), 12))

// 16 words of which each has a 4-bit code in its lowest bits.
INLINE __m256i nibble_words(const char *block, size_t e) {
  __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)(block + e % 32 * 2));
  words = SHIFT_WORDS(_mm256_srli_epi16, words, e);
  return e % MGL_CODE_BLOCK / 32 == 3 ? words : _mm256_and_si256(words, _mm256_set1_epi16(15));
}

// Such words of E2M1 to bf16: a lookup for each half of the result.
INLINE __m256i bf16_of_e2m1(__m256i index) {
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0, 0, (char)0x80,
                    (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0));
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf, (char)0xbf,
                    (char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0));
  // An index with its highest bit gives 0.
  __m256i low_index = _mm256_or_si256(index, _mm256_set1_epi16((short)0x8000));
  __m256i high_index = _mm256_or_si256(_mm256_slli_epi16(index, 8), _mm256_set1_epi16(0x80));
  return _mm256_or_si256(_mm256_shuffle_epi8(low, low_index),
                         _mm256_shuffle_epi8(high, high_index));
}

INLINE __m256i bf16_of_e4m3(__m128i bytes) {
  __m256i words = _mm256_cvtepi8_epi16(bytes);
  __m256i magnitude = _mm256_and_si256(_mm256_slli_epi16(words, 4), _mm256_set1_epi16(0x7f0));
  __m256i normal = _mm256_add_epi16(magnitude, _mm256_set1_epi16(120 << 7));
  // The eight subnormals, and zero, are looked up: their lower bytes stand before their upper ones.
  const __m256i small =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x20, 0x40, 0x60,
                                                0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c));
  __m256i index = _mm256_srli_epi16(magnitude, 4);
  __m256i twice = _mm256_or_si256(index, _mm256_slli_epi16(index, 8));
  __m256i looked_up = _mm256_shuffle_epi8(small, _mm256_add_epi16(twice, _mm256_set1_epi16(0x800)));
  __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), index);
  __m256i value = _mm256_blendv_epi8(normal, looked_up, is_small);
  return _mm256_or_si256(value, _mm256_and_si256(words, _mm256_set1_epi16((short)0x8000)));
}

// Elements e to e + 15 of E2M1 or E4M3 as bf16; e is a multiple of 16.
INLINE vec vec_codes_pairs(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    return _mm256_castsi256_ps(bf16_of_e2m1(nibble_words(block, e)));
  }
  __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(block + e));
  return _mm256_castsi256_ps(bf16_of_e4m3(bytes));
}

// Elements e to e + 7 of E2M1 or E4M3 as f32; e is a multiple of 8.
INLINE vec vec_codes(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    __m256i words = _mm256_cvtepu16_epi32(load_halves(block + e % 32 * 2));
    words = SHIFT_WORDS(_mm256_srli_epi32, words, e);
    const vec magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(words, _mm256_set1_epi32(8)), 28);
    vec magnitude = _mm256_permutevar8x32_ps(magnitudes, words);
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
  }
  __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(block + e));
  // As f16 the bits are 2^-8 of the value, subnormals included.
  __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
  halves = _mm_and_si128(halves, _mm_set1_epi16((short)0xbfff));
  return vec_mul(_mm256_cvtph_ps(halves), vec_set(256));
}

// A vector of this level's pairs never spans two groups.
INLINE vec vec_set_halves(float low, float high) {
  return _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low));
}

// --- whole numbers: see codes_avx512.h -----------------------------------------------------------

typedef __m256i ints;
typedef __m256i words;
#define WHOLE_TOKENS 2

INLINE ints ints_zero(void) {
  return _mm256_setzero_si256();
}

INLINE ints ints_set(int32_t value) {
  return _mm256_set1_epi32(value);
}

INLINE ints ints_load(const char *from) {
  return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

INLINE ints ints_of_bits(vec a) {
  return _mm256_castps_si256(a);
}

INLINE vec bits_of_ints(ints a) {
  return _mm256_castsi256_ps(a);
}

INLINE ints ints_sixteenth(ints a) {
  return _mm256_srai_epi32(a, 4);
}

INLINE ints ints_add(ints a, ints b) {
  return _mm256_add_epi32(a, b);
}

INLINE ints ints_add_products(ints acc, words a, words b) {
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
  KEEP_ORDER("+x", acc);
  return acc;
}

INLINE vec vec_of_ints(ints a) {
  return _mm256_cvtepi32_ps(a);
}

INLINE void ints_turn_four(ints rows[4]) {
  ints a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
  ints c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm256_unpacklo_epi64(a, c);
  rows[1] = _mm256_unpackhi_epi64(a, c);
  rows[2] = _mm256_unpacklo_epi64(b, d);
  rows[3] = _mm256_unpackhi_epi64(b, d);
}

INLINE void ints_turn_fours(ints rows[vec_lanes]) {
  UNROLL for (size_t c = 0; c < 4; c++) {
    ints first = rows[c], last = rows[4 + c];
    rows[c] = _mm256_permute2x128_si256(first, last, 0x20);
    rows[4 + c] = _mm256_permute2x128_si256(first, last, 0x31);
  }
}

INLINE ints ints_sum_four(ints a, ints b, ints c, ints d) {
  ints ab = ints_add(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  ints cd = ints_add(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  return ints_add(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

INLINE ints ints_sum_fours(const ints fours[vec_lanes / 4]) {
  return ints_add(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                  _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

// No group is half a vector of this level.
INLINE void ints_sum_fours_halves(const ints fours[vec_lanes / 4], ints sums[2]) {
  sums[0] = sums[1] = ints_sum_fours(fours);
}

INLINE words words_load(const int16_t *from) {
  return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

INLINE void words_store(int16_t *to, words a) {
  _mm256_storeu_si256((__m256i *)(void *)to, a);
}

INLINE words words_set_pair(const int16_t *from) {
  int pair;
  memcpy(&pair, from, sizeof pair);
  return _mm256_set1_epi32(pair);
}

INLINE words words_of_bytes(const char *from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
}

INLINE words words_less(words a, int16_t by) {
  return _mm256_sub_epi16(a, _mm256_set1_epi16(by));
}

INLINE words words_of_turned(ints lanes, size_t q, mgl_dtype code) {
  if (!mgl_code_is_nibble(code)) {
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const __m256i high = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(lanes, q == 0 ? low : high), 8);
  }
  __m256i nibbles = SHIFT_WORDS(_mm256_srli_epi16, lanes, 32 * q);
  return q == 3 ? nibbles : _mm256_and_si256(nibbles, _mm256_set1_epi16(15));
}

INLINE words words_of_nibbles(ints lanes, size_t q) {
  return _mm256_and_si256(q < 2 ? lanes : _mm256_srli_epi16(lanes, 8),
                          _mm256_set1_epi16(q % 2 == 1 ? 0xf0 : 15));
}

INLINE void vec_store_words(int16_t *to, vec a) {
  __m256i all = _mm256_cvtps_epi32(a);
  _mm_storeu_si128((__m128i *)(void *)to,
                   _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

#endif
