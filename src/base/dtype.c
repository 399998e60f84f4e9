#include "base/dtype.h"

#include <assert.h>
#include <math.h>

#include "base/e4m3.h"

size_t mgl_dtype_bytes(mgl_dtype dtype) {
  switch (dtype) {
    case MGL_DTYPE_F32:
    case MGL_DTYPE_I32: return 4;
    case MGL_DTYPE_F16:
    case MGL_DTYPE_BF16: return 2;
    case MGL_DTYPE_KV8: return 1;
    default: break;
  }
  assert(0 && "a plain dtype");
  return 0;
}

const char *mgl_dtype_name(mgl_dtype dtype) {
  static const char *const names[MGL_DTYPE_COUNT] = {
      "f32",
      "f16",
      "bf16",
      "i32",
#define MGL_CODE(enum_name, name, bits) #name,
#include "base/form.def"
  };
  return names[dtype];
}

float mgl_f16_to_f32(mgl_f16 value) {
  uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
  uint32_t exponent = (value >> 10) & 0x1fu;
  uint32_t mantissa = value & 0x3ffu;
  uint32_t bits;
  float result;
  if (exponent == 0) {
    result = (float)mantissa * 0x1p-24f;  // zero and subnormals are exact in f32
    memcpy(&bits, &result, sizeof bits);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  }
  memcpy(&result, &bits, sizeof result);
  return result;
}

mgl_f16 mgl_f32_to_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return (mgl_f16)(sign | 0x7e00u);
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    return (mgl_f16)(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal half; adding 0.5 aligns its bits
    float aligned;
    memcpy(&aligned, &magnitude, sizeof aligned);
    aligned += 0.5f;
    memcpy(&magnitude, &aligned, sizeof magnitude);
    return (mgl_f16)(sign | (magnitude - 0x3f000000u));
  }
  uint32_t odd = (magnitude >> 13) & 1u;
  return (mgl_f16)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float mgl_e4m3_to_f32(uint8_t value) {
  unsigned exponent = value >> 3 & 15, mantissa = value & 7;
  float magnitude = exponent == 0 ? (float)mantissa * 0x1p-9f
                                  : (float)(8 + mantissa) * (float)(1u << exponent) * 0x1p-10f;
  magnitude = (value & 0x7f) == 0x7f ? NAN : magnitude;
  return (value & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t mgl_f32_to_e4m3(float value) {
  return mgl_e4m3_nearest(value);
}

void mgl_widen_f32(mgl_dtype dtype, const void *from, size_t count, float *to) {
  const unsigned char *bytes = from;
  if (dtype == MGL_DTYPE_F32) {
    memcpy(to, bytes, count * sizeof *to);
    return;
  }
  if (dtype == MGL_DTYPE_KV8) {
    for (size_t i = 0; i < count; i++) {
      to[i] = mgl_e4m3_to_f32(bytes[i]);
    }
    return;
  }
  assert(dtype == MGL_DTYPE_BF16 || dtype == MGL_DTYPE_F16);
  for (size_t i = 0; i < count; i++) {
    uint16_t value;
    memcpy(&value, bytes + 2 * i, sizeof value);
    to[i] = dtype == MGL_DTYPE_BF16 ? mgl_bf16_to_f32(value) : mgl_f16_to_f32(value);
  }
}
