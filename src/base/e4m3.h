// Rounding to E4M3 (dtype.h says how), inline for loops over many values.
#ifndef MGL_BASE_E4M3_H
#define MGL_BASE_E4M3_H

#include <math.h>
#include <stdint.h>
#include <string.h>

// Without branches, so that a loop can be vectorised.
static inline uint8_t mgl_e4m3_nearest(float value) {
  // Below 2^-6 steps are 2^-9, as those of 2^14 in f32.
  const float aligned = fabsf(value) + 0x1p14f;
  uint32_t bits, small;
  memcpy(&bits, &value, sizeof bits);
  memcpy(&small, &aligned, sizeof small);
  small -= 0x46800000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t large = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  large = large < 0x7e ? large : 0x7e;
  uint32_t code = magnitude < 0x3c800000u ? small : large;
  code = magnitude > 0x7f800000u ? 0x7f : code;
  return (uint8_t)((bits >> 24 & 0x80u) | code);
}

#endif
