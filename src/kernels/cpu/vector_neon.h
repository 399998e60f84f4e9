// Vector operations of the NEON levels (aarch64; BF16 where the compiler is told so): 8 lanes of
// f32, in two registers. The same names and meanings as vector_avx512.h, where they are explained;
// without BF16 also the same order of operations as vector_avx2.h, and so the same bits.
#ifndef MGL_KERNELS_CPU_VECTOR_NEON_H
#define MGL_KERNELS_CPU_VECTOR_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/cpu/vector_words.h"

typedef struct vec {
  float32x4_t low, high;
} vec;

// 32 registers hold 2 x 4 accumulators of two, with what they multiply.
enum { vec_lanes = 8, vec_accumulators = 8 };
#define LINEAR_TOKENS 2
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define VEC_DOT_IS_ONE true
#else
#define VEC_DOT_IS_ONE false
#endif

INLINE vec vec_zero(void) {
  return (vec){vdupq_n_f32(0), vdupq_n_f32(0)};
}

INLINE vec vec_set(float value) {
  return (vec){vdupq_n_f32(value), vdupq_n_f32(value)};
}

INLINE vec vec_set_halves(float low, float high) {
  return (vec){vdupq_n_f32(low), vdupq_n_f32(high)};
}

INLINE vec vec_add(vec a, vec b) {
  return (vec){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}

INLINE vec vec_sub(vec a, vec b) {
  return (vec){vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}

INLINE vec vec_mul(vec a, vec b) {
  return (vec){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}

INLINE vec vec_div(vec a, vec b) {
  return (vec){vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}

INLINE vec vec_fma(vec a, vec b, vec c) {
  return (vec){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}

INLINE vec vec_fnma(vec a, vec b, vec c) {
  return (vec){vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}

// Not vmaxq_f32, which returns a NaN of either side.
INLINE vec vec_max(vec a, vec b) {
  return (vec){vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low),
               vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high)};
}

INLINE vec vec_min(vec a, vec b) {
  return (vec){vbslq_f32(vcltq_f32(a.low, b.low), a.low, b.low),
               vbslq_f32(vcltq_f32(a.high, b.high), a.high, b.high)};
}

INLINE vec vec_round(vec a) {
  return (vec){vrndnq_f32(a.low), vrndnq_f32(a.high)};
}

// Two factors, since 2^n alone may lie outside the exponent range; the first product is exact.
INLINE float32x4_t scale_register(float32x4_t a, float32x4_t n) {
  int32x4_t exponent = vcvtnq_s32_f32(n), bias = vdupq_n_s32(127);
  int32x4_t first = vshrq_n_s32(exponent, 1), second = vsubq_s32(exponent, first);
  float32x4_t low = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(first, bias), 23));
  float32x4_t high = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(second, bias), 23));
  return vmulq_f32(vmulq_f32(a, low), high);
}

INLINE vec vec_scale(vec a, vec n) {
  return (vec){scale_register(a.low, n.low), scale_register(a.high, n.high)};
}

INLINE vec vec_load(const void *from) {
  const char *bytes = from;
  return (vec){vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)bytes)),
               vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)bytes + 16))};
}

INLINE vec vec_load_partial(const void *from, size_t count) {
  float buffer[8] = {0};
  memcpy(buffer, from, count * sizeof *buffer);
  return vec_load(buffer);
}

INLINE void vec_store(float *to, vec a) {
  vst1q_f32(to, a.low);
  vst1q_f32(to + 4, a.high);
}

INLINE void vec_store_partial(float *to, size_t count, vec a) {
  float buffer[8];
  vec_store(buffer, a);
  memcpy(to, buffer, count * sizeof *buffer);
}

INLINE vec vec_select(size_t count, vec a, vec b) {
  static const uint32_t table[16] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX,
                                     UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
  return (vec){vbslq_f32(vld1q_u32(table + 8 - count), a.low, b.low),
               vbslq_f32(vld1q_u32(table + 12 - count), a.high, b.high)};
}

INLINE uint16x8_t load_halves(const void *from) {
  return vreinterpretq_u16_u8(vld1q_u8(from));
}

INLINE uint16x8_t load_halves_partial(const void *from, size_t count) {
  uint16_t buffer[8] = {0};
  memcpy(buffer, from, count * sizeof *buffer);
  return load_halves(buffer);
}

INLINE vec vec_from_bf16(uint16x8_t bits) {
  return (vec){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
               vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16))};
}

INLINE vec vec_load_bf16(const void *from) {
  return vec_from_bf16(load_halves(from));
}

INLINE vec vec_load_bf16_partial(const void *from, size_t count) {
  return vec_from_bf16(load_halves_partial(from, count));
}

INLINE vec vec_from_f16(uint16x8_t bits) {
  return (vec){vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(bits))),
               vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(bits)))};
}

INLINE vec vec_load_f16(const void *from) {
  return vec_from_f16(load_halves(from));
}

INLINE vec vec_load_f16_partial(const void *from, size_t count) {
  return vec_from_f16(load_halves_partial(from, count));
}

// As mgl_f32_to_bf16: BFCVT would depend on the control register.
INLINE uint16x4_t register_to_bf16(float32x4_t a) {
  uint32x4_t bits = vreinterpretq_u32_f32(a), high = vshrq_n_u32(bits, 16);
  uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
  uint32x4_t biased = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
  return vmovn_u32(vbslq_u32(vceqq_f32(a, a), vshrq_n_u32(biased, 16), quiet));
}

INLINE void vec_store_bf16(mgl_bf16 *to, vec a) {
  uint16x8_t bits = vcombine_u16(register_to_bf16(a.low), register_to_bf16(a.high));
  memcpy(to, &bits, sizeof bits);
}

INLINE void vec_store_bf16_partial(mgl_bf16 *to, size_t count, vec a) {
  mgl_bf16 buffer[8];
  vec_store_bf16(buffer, a);
  memcpy(to, buffer, count * sizeof *buffer);
}

INLINE void vec_deinterleave(vec first, vec second, vec *even, vec *odd) {
  *even = (vec){vuzp1q_f32(first.low, first.high), vuzp1q_f32(second.low, second.high)};
  *odd = (vec){vuzp2q_f32(first.low, first.high), vuzp2q_f32(second.low, second.high)};
}

// The sums of four registers, as _mm256_unpack and _mm256_shuffle have them in each half.
INLINE float32x4_t sum4_registers(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
  float32x4_t ab = vaddq_f32(vzip1q_f32(a, b), vzip2q_f32(a, b));
  float32x4_t cd = vaddq_f32(vzip1q_f32(c, d), vzip2q_f32(c, d));
  return vaddq_f32(vcombine_f32(vget_low_f32(ab), vget_low_f32(cd)),
                   vcombine_f32(vget_high_f32(ab), vget_high_f32(cd)));
}

INLINE vec4 vec_sum4(vec a, vec b, vec c, vec d) {
  return (vec4)vaddq_f32(sum4_registers(a.low, b.low, c.low, d.low),
                         sum4_registers(a.high, b.high, c.high, d.high));
}

INLINE vec vec_load_pairs(const void *from) {
  return vec_load(from);
}

INLINE vec vec_load_pairs_partial(const void *from, size_t count) {  // count 0 to 16
  uint16_t buffer[16] = {0};
  memcpy(buffer, from, count * sizeof *buffer);
  return vec_load_pairs(buffer);
}

INLINE float32x4_t even_of_register(float32x4_t pairs) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs), 16));
}

INLINE float32x4_t odd_of_register(float32x4_t pairs) {
  return vreinterpretq_f32_u32(
      vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(UINT32_C(0xffff0000))));
}

INLINE vec vec_pairs_even(vec pairs) {
  return (vec){even_of_register(pairs.low), even_of_register(pairs.high)};
}

INLINE vec vec_pairs_odd(vec pairs) {
  return (vec){odd_of_register(pairs.low), odd_of_register(pairs.high)};
}

// BFDOT adds both products to each other first, rounds to odd, and treats subnormals as zero.
INLINE vec vec_dot_pairs(vec acc, vec x, vec w) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (vec){
      vbfdotq_f32(acc.low, vreinterpretq_bf16_f32(x.low), vreinterpretq_bf16_f32(w.low)),
      vbfdotq_f32(acc.high, vreinterpretq_bf16_f32(x.high), vreinterpretq_bf16_f32(w.high))};
#else
  acc = vec_fma(vec_pairs_odd(x), vec_pairs_odd(w), acc);
  return vec_fma(vec_pairs_even(x), vec_pairs_even(w), acc);
#endif
}

// Short rows: a base, added to codes that are shifted to where bf16 has its exponent.
#define SHORT_AT_ONCE 4
typedef uint16x8_t short_base;

INLINE short_base vec_short_base(uint16_t base) {
  return vdupq_n_u16(base);
}

INLINE float32x4_t short_register(const char *block, size_t e, short_base base) {
  const size_t word = e % 32 * sizeof(uint16_t);
  uint16x8_t codes = load_halves(block + 128 + word);
  uint16x8_t signs = load_halves(block + e / 64 * 64 + word);
  codes = e / 32 == 0   ? vshlq_n_u16(codes, 7)
          : e / 32 == 1 ? vshlq_n_u16(codes, 3)
          : e / 32 == 2 ? vshrq_n_u16(codes, 1)
                        : vshrq_n_u16(codes, 5);
  codes = vaddq_u16(vandq_u16(codes, vdupq_n_u16(0x0780)), base);
  signs = e / 32 % 2 == 0 ? signs : vreinterpretq_u16_u8(vrev16q_u8(vreinterpretq_u8_u16(signs)));
  return vreinterpretq_f32_u16(vbslq_u16(vdupq_n_u16(0x807f), signs, codes));
}

// Elements e to e + 15 of a block; e is a multiple of 16.
INLINE vec vec_short_pairs(const char *block, size_t e, short_base base) {
  return (vec){short_register(block, e, base), short_register(block, e + 8, base)};
}

// Two products of f32 do not have BFDOT's order, so nothing is gained by its subnormals.
INLINE uint32_t vec_subnormals_begin(vec *accumulators, size_t count) {
  (void)accumulators;
  return (uint32_t)count;
}

INLINE void vec_subnormals_end(uint32_t before, vec *accumulators, size_t count) {
  (void)before, (void)accumulators, (void)count;
}

enum { vec_stream_block = 256 };

INLINE uint64_t vec_read_stream(const char *from, size_t blocks) {
  uint64x2_t sums[16];
  UNROLL for (size_t i = 0; i < 16; i++) {
    sums[i] = vdupq_n_u64(0);
  }
  for (; blocks > 0; blocks--, from += vec_stream_block) {
    UNROLL for (size_t i = 0; i < 16; i++) {
      sums[i] = vaddq_u64(sums[i], vreinterpretq_u64_u8(vld1q_u8((const uint8_t *)from + i * 16)));
    }
  }
  UNROLL for (size_t i = 1; i < 16; i++) {
    sums[0] = vaddq_u64(sums[0], sums[i]);
  }
  return vgetq_lane_u64(sums[0], 0) + vgetq_lane_u64(sums[0], 1);
}

#endif
