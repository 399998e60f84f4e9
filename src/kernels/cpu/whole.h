// Rows of x as whole numbers, for linears whose weights are integer codes (base/form.h).
//
// Each block of MGL_CODE_BLOCK elements of a row has a scale, a power of two, and an element is a
// whole number of 15 bits and a sign times it: the largest of a block takes all 15 bits, so an
// element of bf16 is exact down to a 128th of it. Then sums of products with codes are whole
// numbers of 32 bits, exact in any order. A block with an infinity or a NaN has the scale NaN, so
// that results show it.
//
// A packed row: values (int16, zeros behind K), scales (f32, one a block), sums of the elements of
// every MGL_WHOLE_UNIT values (f32), which offsets of weights are multiplied with.
#ifndef MGL_KERNELS_CPU_WHOLE_H
#define MGL_KERNELS_CPU_WHOLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/form.h"

enum {
  MGL_WHOLE_UNIT = 16,  // the shortest group
  MGL_WHOLE_BITS = 15,
  MGL_WHOLE_LEAST = 67,  // exponent in f32's bits: a block below 2^-60 is scaled as if it were that
};

typedef struct mgl_whole_layout {
  uint32_t blocks;  // of a row
  size_t scales, sums, bytes;
} mgl_whole_layout;

static inline mgl_whole_layout mgl_whole_layout_of(uint32_t k) {
  const uint32_t blocks = (k + MGL_CODE_BLOCK - 1) / MGL_CODE_BLOCK;
  mgl_whole_layout layout = {.blocks = blocks};
  layout.scales = (size_t)blocks * MGL_CODE_BLOCK * sizeof(int16_t);
  layout.sums = layout.scales + blocks * sizeof(float);
  layout.bytes = layout.sums + (size_t)blocks * (MGL_CODE_BLOCK / MGL_WHOLE_UNIT) * sizeof(float);
  layout.bytes = (layout.bytes + 63) / 64 * 64;
  return layout;
}

// A power of two, from its exponent in f32's bits.
static inline float mgl_whole_power(uint32_t exponent) {
  const uint32_t bits = exponent << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

// Exponent of a block's largest magnitude, which is finite.
static inline uint32_t mgl_whole_exponent(float largest) {
  uint32_t bits;
  memcpy(&bits, &largest, sizeof bits);
  const uint32_t exponent = bits >> 23;
  return exponent < MGL_WHOLE_LEAST ? (uint32_t)MGL_WHOLE_LEAST : exponent;
}

static inline float mgl_whole_scale(uint32_t exponent) {
  return mgl_whole_power(exponent - (MGL_WHOLE_BITS - 1));
}

static inline float mgl_whole_inverse(uint32_t exponent) {
  return mgl_whole_power(2 * 127 + (MGL_WHOLE_BITS - 1) - exponent);
}

// Sums of a block's values by units.
static inline void mgl_whole_sum(const int16_t *values, float scale, float *sums) {
  for (uint32_t unit = 0; unit < MGL_CODE_BLOCK / MGL_WHOLE_UNIT; unit++) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < MGL_WHOLE_UNIT; i++) {
      sum += values[unit * MGL_WHOLE_UNIT + i];
    }
    sums[unit] = (float)sum * scale;
  }
}

#endif
