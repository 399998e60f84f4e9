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

// Codes to bf16, by a lookup for each byte of the result.
INLINE uint16x8_t bf16_of_nibbles(uint16x8_t words, mgl_dtype code) {
  static const uint8_t low[3][16] = {
      {0, 0xe0, 0xc0, 0xa0, 0x80, 0x40, 0, 0x80, 0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0},
      {0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70},
      {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0}};
  static const uint8_t high[3][16] = {
      {0xc1, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf, 0, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40},
      {0, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41},
      {0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0,
       0xc0}};
  size_t kind = code == MGL_DTYPE_I4 ? 0 : code == MGL_DTYPE_U4 ? 1 : 2;
  uint8x16_t index = vreinterpretq_u8_u16(words);
  uint16x8_t lows = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(low[kind]), index));
  uint16x8_t highs = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(high[kind]), index));
  // The upper byte of each index is 0, and so is not an index but a hole.
  return vsliq_n_u16(vandq_u16(lows, vdupq_n_u16(0xff)), highs, 8);
}

INLINE uint16x8_t bf16_of_bytes(int8x8_t bytes, mgl_dtype code) {
  int16x8_t words = vmovl_s8(bytes);
  if (code == MGL_DTYPE_I8) {  // exact in the upper half of a float
    float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
    float32x4_t high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(words)));
    return vcombine_u16(vshrn_n_u32(vreinterpretq_u32_f32(low), 16),
                        vshrn_n_u32(vreinterpretq_u32_f32(high), 16));
  }
  // E4M3: as f16 the bits are 2^-8 of the value, subnormals included.
  uint16x8_t halves = vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(words, 7)), vdupq_n_u16(0xbfff));
  vec value = vec_mul(vec_from_f16(halves), vec_set(256));
  return vcombine_u16(vshrn_n_u32(vreinterpretq_u32_f32(value.low), 16),
                      vshrn_n_u32(vreinterpretq_u32_f32(value.high), 16));
}

// Elements e to e + 7 as bf16; e is a multiple of 8.
INLINE uint16x8_t bf16_of_codes(const char *block, size_t e, mgl_dtype code) {
  if (mgl_code_is_nibble(code)) {
    return bf16_of_nibbles(nibble_words(block, e), code);
  }
  return bf16_of_bytes(vld1_s8((const int8_t *)block + e), code);
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

#endif
