// Arithmetic of PTX that C does not have: what lanes.def's results call.
#ifndef TESTS_EMULATOR_ARITHMETIC_H
#define TESTS_EMULATOR_ARITHMETIC_H

#include <fenv.h>

#include "emulator/warp_state.h"

static int64_t divide(int64_t a, int64_t b, bool remainder) {
  if (b == 0 || b == -1) {
    return b == 0 ? (remainder ? a : -1) : remainder ? 0 : (int64_t)(0 - (uint64_t)a);
  }
  return remainder ? a % b : a / b;
}

static uint32_t reverse(uint32_t a) {
  uint32_t r = 0;
  for (int i = 0; i < 32; i++) {
    r = r << 1 | (a >> i & 1);
  }
  return r;
}

static uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t r = 0;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t s = selector >> (4 * i) & 15;
    uint32_t byte = (uint32_t)(bytes >> (8 * (s & 7))) & 255;
    byte = s < 8 ? byte : byte >> 7 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}

static uint32_t funnel(uint32_t a, uint32_t b, uint32_t by) {
  return (uint32_t)(((uint64_t)b << 32 | a) << by >> 32);
}

static uint32_t funnel_right(uint32_t a, uint32_t b, uint32_t by) {
  return (uint32_t)(((uint64_t)b << 32 | a) >> by);
}

static uint32_t extract(uint32_t a, uint32_t at, uint32_t length) {
  at &= 255;
  length &= 255;
  const uint64_t mask = length < 32 ? ((uint64_t)1 << length) - 1 : UINT32_MAX;
  return at < 32 ? (uint32_t)(a >> at & mask) : 0;
}

static uint64_t insert(uint64_t a, uint64_t b, uint32_t at, uint32_t length, uint32_t bits) {
  at &= 255;
  length &= 255;
  if (at >= bits || length == 0) {
    return b;
  }
  length = length < bits - at ? length : bits - at;
  const uint64_t mask = (length < 64 ? ((uint64_t)1 << length) - 1 : UINT64_MAX) << at;
  return (b & ~mask) | (a << at & mask);
}

static float least(float a, float b) {
  return a != a ? b : b != b ? a : a == b ? (__builtin_signbit(a) ? a : b) : a < b ? a : b;
}

static float most(float a, float b) {
  return a != a ? b : b != b ? a : a == b ? (__builtin_signbit(a) ? b : a) : a > b ? a : b;
}

static float flush(float a) {
  return __builtin_fabsf(a) < 0x1p-126f ? __builtin_copysignf(0, a) : a;
}

static double rough(double a) {
  uint64_t bits;
  memcpy(&bits, &a, sizeof bits);
  bits &= 0xffffffff00000000;
  memcpy(&a, &bits, sizeof a);
  return a;
}

__attribute__((noinline)) static float fma_down(float a, float b, float c) {
  volatile float x = a, y = b, z = c;
  (void)fesetround(FE_DOWNWARD);
  volatile float r = __builtin_fmaf(x, y, z);
  (void)fesetround(FE_TONEAREST);
  return r;
}

static int64_t whole(double a, int64_t lowest, int64_t highest) {
  return a != a ? 0 : a < (double)lowest ? lowest : a > (double)highest ? highest : (int64_t)a;
}

static uint64_t whole_long(double a) {
  return a != a ? (uint64_t)1 << 63 : a < 0 ? 0 : a >= 0x1p64 ? UINT64_MAX : (uint64_t)a;
}

static uint32_t halves(emu_half kind, float high, float low, bool saturate) {
  return (uint32_t)emu_to_half(kind, high, EMU_NEAREST, saturate, false) << 16 |
         emu_to_half(kind, low, EMU_NEAREST, saturate, false);
}

static uint16_t eights(emu_eight kind, float high, float low) {
  return (uint16_t)(emu_to_eight(kind, high, false) << 8 | emu_to_eight(kind, low, false));
}

static uint32_t halves_of_eights(emu_eight kind, uint16_t bits) {
  return halves(EMU_F16, emu_from_eight(kind, (uint8_t)(bits >> 8)),
                emu_from_eight(kind, (uint8_t)bits), false);
}

// Rounds once: what a sum of doubles loses, and a float behind it, stays in the lowest bit.
static uint16_t fma_half(uint16_t a, uint16_t b, uint16_t c) {
  const double product = (double)emu_from_bf16(a) * (double)emu_from_bf16(b);  // exact
  const double addend = (double)emu_from_bf16(c);
  double sum = product + addend;
  const double back = sum - product, lost = (product - (sum - back)) + (addend - back);
  uint64_t bits;
  if (sum != sum || __builtin_isinf(sum)) {
    return emu_to_half(EMU_BF16, (float)sum, EMU_NEAREST, false, false);
  }
  memcpy(&bits, &sum, sizeof bits);
  if (lost != 0 && (bits & 1) == 0) {
    bits += (lost > 0) == (sum > 0) ? 1 : UINT64_MAX;
    memcpy(&sum, &bits, sizeof bits);
  }
  float value = (float)sum;
  if ((double)value != sum && !__builtin_isinf(value)) {
    uint32_t low;
    memcpy(&low, &value, sizeof low);
    low -= __builtin_fabs((double)value) > __builtin_fabs(sum) ? 1 : 0;  // to zero, then odd
    low |= 1;
    memcpy(&value, &low, sizeof value);
  }
  return emu_to_half(EMU_BF16, value, EMU_NEAREST, false, false);
}

static uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
  return fma_half((uint16_t)a, (uint16_t)b, (uint16_t)c) |
         (uint32_t)fma_half((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16)) << 16;
}

static uint16_t most_half(uint16_t a, uint16_t b) {
  const float x = emu_from_bf16(a), y = emu_from_bf16(b);
  return x != x || y != y ? 0x7fff : x > y || (x == y && (a >> 15) == 0) ? a : b;
}

static uint32_t most_halves(uint32_t a, uint32_t b) {
  return most_half((uint16_t)a, (uint16_t)b) |
         (uint32_t)most_half((uint16_t)(a >> 16), (uint16_t)(b >> 16)) << 16;
}

static uint32_t add_bytes(uint32_t a, uint32_t b, uint32_t c) {
  for (uint32_t i = 0; i < 32; i += 8) {
    c += (uint32_t)((int8_t)(a >> i) * (int8_t)(b >> i));
  }
  return c;
}

#endif
