// Codes of weights (base/form.def) to vectors, with NEON: the same names as codes_avx512.h.
#ifndef MGL_KERNELS_CPU_CODES_NEON_H
#define MGL_KERNELS_CPU_CODES_NEON_H

#include "base/form.h"
#include "kernels/cpu/vector_neon.h"

// Eight words of which each has a 4-bit code in its lowest bits: shifts are constants after
// inlining, since element e of a block is (e / 32)th of its word.
INLINE uint16x8_t nibble_words(const char *block, size_t e) {
  uint16x8_t words = load_halves(block + e % 32 * 2);
  switch (e % MGL_CODE_BLOCK / 32) {
    case 1: words = vshrq_n_u16(words, 4); break;
    case 2: words = vshrq_n_u16(words, 8); break;
    case 3: words = vshrq_n_u16(words, 12); break;
    default: break;
  }
  return vandq_u16(words, vdupq_n_u16(15));
}

// E2M1 to bf16, by a lookup for each byte of the result.
INLINE uint16x8_t bf16_of_e2m1(uint16x8_t words) {
  static const uint8_t low[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                                  0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
  static const uint8_t high[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                   0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  uint8x16_t index = vreinterpretq_u8_u16(words);
  uint16x8_t lows = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(low), index));
  uint16x8_t highs = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(high), index));
  // The upper byte of each index is 0, and so is not an index but a hole.
  return vsliq_n_u16(vandq_u16(lows, vdupq_n_u16(0xff)), highs, 8);
}

// E4M3: as f16 the bits are 2^-8 of the value, subnormals included.
INLINE uint16x8_t bf16_of_e4m3(int8x8_t bytes) {
  int16x8_t words = vmovl_s8(bytes);
  uint16x8_t halves = vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(words, 7)), vdupq_n_u16(0xbfff));
  vec value = vec_mul(vec_from_f16(halves), vec_set(256));
  return vcombine_u16(vshrn_n_u32(vreinterpretq_u32_f32(value.low), 16),
                      vshrn_n_u32(vreinterpretq_u32_f32(value.high), 16));
}

// Elements e to e + 7 of E2M1 or E4M3 as bf16; e is a multiple of 8.
INLINE uint16x8_t bf16_of_codes(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    return bf16_of_e2m1(nibble_words(block, e));
  }
  return bf16_of_e4m3(vld1_s8((const int8_t *)block + e));
}

// Elements e to e + 15 as bf16; e is a multiple of 16.
INLINE vec vec_codes_pairs(const char *block, size_t e, mgl_dtype code) {
  return (vec){vreinterpretq_f32_u16(bf16_of_codes(block, e, code)),
               vreinterpretq_f32_u16(bf16_of_codes(block, e + 8, code))};
}

// Elements e to e + 7 as f32; e is a multiple of 8.
INLINE vec vec_codes(const char *block, size_t e, mgl_dtype code) {
  return vec_from_bf16(bf16_of_codes(block, e, code));
}

// --- whole numbers: see codes_avx512.h -----------------------------------------------------------

typedef struct ints {
  int32x4_t low, high;
} ints;
typedef struct words {
  int16x8_t low, high;
} words;
#define WHOLE_TOKENS 2

INLINE ints ints_zero(void) {
  return (ints){vdupq_n_s32(0), vdupq_n_s32(0)};
}

INLINE ints ints_set(int32_t value) {
  return (ints){vdupq_n_s32(value), vdupq_n_s32(value)};
}

INLINE ints ints_load(const char *from) {
  const int8_t *bytes = (const int8_t *)from;
  return (ints){vreinterpretq_s32_s8(vld1q_s8(bytes)), vreinterpretq_s32_s8(vld1q_s8(bytes + 16))};
}

INLINE ints ints_of_bits(vec a) {
  return (ints){vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)};
}

INLINE vec bits_of_ints(ints a) {
  return (vec){vreinterpretq_f32_s32(a.low), vreinterpretq_f32_s32(a.high)};
}

INLINE ints ints_sixteenth(ints a) {
  return (ints){vshrq_n_s32(a.low, 4), vshrq_n_s32(a.high, 4)};
}

INLINE ints ints_add(ints a, ints b) {
  return (ints){vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}

// Sums of neighbouring products of eight elements.
INLINE int32x4_t products_of_pairs(int16x8_t a, int16x8_t b) {
  return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}

INLINE ints ints_add_products(ints acc, words a, words b) {
  acc.low = vaddq_s32(acc.low, products_of_pairs(a.low, b.low));
  acc.high = vaddq_s32(acc.high, products_of_pairs(a.high, b.high));
  KEEP_ORDER("+w", acc.low);
  KEEP_ORDER("+w", acc.high);
  return acc;
}

INLINE vec vec_of_ints(ints a) {
  return (vec){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)};
}

// Turns four rows of four lanes.
INLINE void turn_four(int32x4_t *a, int32x4_t *b, int32x4_t *c, int32x4_t *d) {
  int64x2_t even_low = vreinterpretq_s64_s32(vtrn1q_s32(*a, *b));
  int64x2_t odd_low = vreinterpretq_s64_s32(vtrn2q_s32(*a, *b));
  int64x2_t even_high = vreinterpretq_s64_s32(vtrn1q_s32(*c, *d));
  int64x2_t odd_high = vreinterpretq_s64_s32(vtrn2q_s32(*c, *d));
  *a = vreinterpretq_s32_s64(vtrn1q_s64(even_low, even_high));
  *b = vreinterpretq_s32_s64(vtrn1q_s64(odd_low, odd_high));
  *c = vreinterpretq_s32_s64(vtrn2q_s64(even_low, even_high));
  *d = vreinterpretq_s32_s64(vtrn2q_s64(odd_low, odd_high));
}

INLINE void ints_turn_four(ints rows[4]) {
  turn_four(&rows[0].low, &rows[1].low, &rows[2].low, &rows[3].low);
  turn_four(&rows[0].high, &rows[1].high, &rows[2].high, &rows[3].high);
}

INLINE void ints_turn_fours(ints rows[vec_lanes]) {
  UNROLL for (size_t c = 0; c < 4; c++) {
    ints first = rows[c], last = rows[4 + c];
    rows[c] = (ints){first.low, last.low};
    rows[4 + c] = (ints){first.high, last.high};
  }
}

INLINE ints ints_sum_four(ints a, ints b, ints c, ints d) {
  return (ints){vpaddq_s32(vpaddq_s32(a.low, b.low), vpaddq_s32(c.low, d.low)),
                vpaddq_s32(vpaddq_s32(a.high, b.high), vpaddq_s32(c.high, d.high))};
}

INLINE ints ints_sum_fours(const ints fours[vec_lanes / 4]) {
  return (ints){vaddq_s32(fours[0].low, fours[0].high), vaddq_s32(fours[1].low, fours[1].high)};
}

// No group is half a vector of this level.
INLINE void ints_sum_fours_halves(const ints fours[vec_lanes / 4], ints sums[2]) {
  sums[0] = sums[1] = ints_sum_fours(fours);
}

INLINE words words_load(const int16_t *from) {
  return (words){vld1q_s16(from), vld1q_s16(from + 8)};
}

INLINE void words_store(int16_t *to, words a) {
  vst1q_s16(to, a.low);
  vst1q_s16(to + 8, a.high);
}

INLINE words words_set_pair(const int16_t *from) {
  int32_t pair;
  memcpy(&pair, from, sizeof pair);
  int16x8_t all = vreinterpretq_s16_s32(vdupq_n_s32(pair));
  return (words){all, all};
}

INLINE words words_of_bytes(const char *from) {
  int8x16_t bytes = vld1q_s8((const int8_t *)from);
  return (words){vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
}

// Words of bytes 2 q and 2 q + 1 of each lane.
INLINE int16x8_t words_of_lanes(int32x4_t lanes, size_t q) {
  // Both halves of a lane become its lower or its upper word; then each its own byte.
  int32x4_t word = q == 0 ? vshlq_n_s32(lanes, 16) : lanes;
  int32x4_t second = vshrq_n_s32(word, 24);
  int32x4_t first = vshrq_n_s32(vshlq_n_s32(word, 8), 24);
  return vreinterpretq_s16_s32(vsliq_n_s32(first, second, 16));
}

INLINE int16x8_t nibbles_of_lanes(int32x4_t lanes, size_t q) {
  uint16x8_t bits = vreinterpretq_u16_s32(lanes);
  switch (q) {
    case 1: bits = vshrq_n_u16(bits, 4); break;
    case 2: bits = vshrq_n_u16(bits, 8); break;
    case 3: bits = vshrq_n_u16(bits, 12); break;
    default: break;
  }
  return vreinterpretq_s16_u16(vandq_u16(bits, vdupq_n_u16(15)));
}

INLINE words words_less(words a, int16_t by) {
  return (words){vsubq_s16(a.low, vdupq_n_s16(by)), vsubq_s16(a.high, vdupq_n_s16(by))};
}

INLINE words words_of_turned(ints lanes, size_t q, mgl_dtype code) {
  if (!mgl_code_is_nibble(code)) {
    return (words){words_of_lanes(lanes.low, q), words_of_lanes(lanes.high, q)};
  }
  return (words){nibbles_of_lanes(lanes.low, q), nibbles_of_lanes(lanes.high, q)};
}

INLINE int16x8_t large_nibbles_of_lanes(int32x4_t lanes, size_t q) {
  uint16x8_t bits = vreinterpretq_u16_s32(lanes);
  bits = q < 2 ? bits : vshrq_n_u16(bits, 8);
  return vreinterpretq_s16_u16(vandq_u16(bits, vdupq_n_u16(q % 2 == 1 ? 0xf0 : 15)));
}

INLINE words words_of_nibbles(ints lanes, size_t q) {
  return (words){large_nibbles_of_lanes(lanes.low, q), large_nibbles_of_lanes(lanes.high, q)};
}

INLINE void vec_store_words(int16_t *to, vec a) {
  vst1q_s16(to,
            vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.low)), vqmovn_s32(vcvtnq_s32_f32(a.high))));
}

#endif
