// Element types of tensors, and scalar conversions between them.
#ifndef MGL_BASE_DTYPE_H
#define MGL_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum mgl_dtype {
  MGL_DTYPE_F32,
  MGL_DTYPE_F16,
  MGL_DTYPE_BF16,
  MGL_DTYPE_I32,
#define MGL_CODE(enum_name, name, bits) MGL_DTYPE_##enum_name,
#include "base/form.def"
  MGL_DTYPE_COUNT,
} mgl_dtype;

// The elements of a KV cache of 8 bits (graph/kv_cache.h). Others are bf16 or f32.
#define MGL_DTYPE_KV8 MGL_DTYPE_E4M3

typedef uint16_t mgl_bf16;  // bit pattern: the upper half of an IEEE float
typedef uint16_t mgl_f16;   // bit pattern: IEEE half

// Of an element of a plain dtype, or of an MGL_DTYPE_KV8; rows of a weight's codes: base/form.h.
size_t mgl_dtype_bytes(mgl_dtype dtype);
const char *mgl_dtype_name(mgl_dtype dtype);  // "f32", "f16", "bf16", "i32", or a code's

static inline float mgl_bf16_to_f32(mgl_bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// Round to nearest even; a NaN stays a (quiet) NaN.
static inline mgl_bf16 mgl_f32_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (mgl_bf16)((bits >> 16) | 0x40u);
  }
  return (mgl_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float mgl_f16_to_f32(mgl_f16 value);
mgl_f16 mgl_f32_to_f16(float value);  // round to nearest even, overflow to infinity

// E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa. It has no infinities, and one magnitude
// is NaN (0x7f). Rounding goes to the nearest, ties to even; what is beyond 448, infinities too,
// becomes 448, and a NaN stays one.
float mgl_e4m3_to_f32(uint8_t value);
uint8_t mgl_f32_to_e4m3(float value);

// Widens `count` elements of f32, f16, bf16 or e4m3 at any alignment to f32.
void mgl_widen_f32(mgl_dtype dtype, const void *from, size_t count, float *to);

#endif
