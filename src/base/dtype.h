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

typedef uint16_t mgl_bf16;  // bit pattern: the upper half of an IEEE float
typedef uint16_t mgl_f16;   // bit pattern: IEEE half

size_t mgl_dtype_bytes(mgl_dtype dtype);      // of a plain one; rows of codes: base/form.h
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

// Widens `count` elements of f32, f16 or bf16 at any alignment to f32.
void mgl_widen_f32(mgl_dtype dtype, const void *from, size_t count, float *to);

#endif
