// Shared by the kernel tests: levels, random data, and buffers with guard zones.
//
// A guarded buffer has a canary before and after it and is filled with NaN, so that a kernel that
// writes outside its output, or leaves a part of it unwritten, or reads it, is caught.
#ifndef MGL_TESTS_KERNEL_TEST_H
#define MGL_TESTS_KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/cpu_kernels.h"

// Unit roundoff of f32 and of bf16; the least normal f32 (VDPBF16PS flushes what is below).
#define F32_ROUNDOFF 0x1p-24
#define BF16_ROUNDOFF 0x1p-8
#define F32_TINY 0x1p-126

enum { guard_bytes = 256, guard_byte = 0xa5 };

typedef struct guarded {
  unsigned char *memory;
  void *data;  // aligned to 64 plus the skew asked for
  size_t bytes;
} guarded;

static inline guarded guarded_create(size_t bytes, size_t skew) {
  guarded buffer = {.bytes = bytes};
  size_t total = (2 * guard_bytes + skew + bytes + 63) / 64 * 64;
  buffer.memory = aligned_alloc(64, total);
  assert_non_null(buffer.memory);
  buffer.data = buffer.memory + guard_bytes + skew;
  memset(buffer.memory, guard_byte, total);
  memset(buffer.data, 0xff, bytes);  // NaN as f32, f16 and bf16
  return buffer;
}

static inline void guarded_check(const guarded *buffer) {
  const unsigned char *data = buffer->data;
  for (int i = 1; i <= guard_bytes; i++) {
    assert_int_equal(data[-i], guard_byte);
    assert_int_equal(data[buffer->bytes + (size_t)i - 1], guard_byte);
  }
}

static inline void guarded_destroy(guarded *buffer) {
  guarded_check(buffer);
  free(buffer->memory);
}

// xorshift64*: the same numbers everywhere.
static uint64_t random_state = 88172645463325252u;

static inline uint32_t random_bits(void) {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)((random_state * 2685821657736338717u) >> 32);
}

static inline uint32_t random_below(uint32_t limit) {
  return random_bits() % limit;
}

// Uniform in (-1, 1), now and then much larger or smaller.
static inline float random_float(void) {
  float value = (float)random_bits() * 0x1p-31f - 1.0f;
  uint32_t kind = random_below(64);
  return kind == 0 ? value * 50.0f : kind == 1 ? value * 1e-4f : value;
}

static inline float element_load(const void *data, mgl_dtype dtype, size_t index) {
  const char *at = (const char *)data + index * mgl_dtype_bytes(dtype);
  if (dtype == MGL_DTYPE_F32) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
  }
  if (dtype == MGL_DTYPE_KV8) {
    return mgl_e4m3_to_f32(*(const uint8_t *)at);
  }
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  return dtype == MGL_DTYPE_BF16 ? mgl_bf16_to_f32(bits) : mgl_f16_to_f32(bits);
}

static inline void element_store(void *data, mgl_dtype dtype, size_t index, float value) {
  char *at = (char *)data + index * mgl_dtype_bytes(dtype);
  if (dtype == MGL_DTYPE_F32) {
    memcpy(at, &value, sizeof value);
    return;
  }
  if (dtype == MGL_DTYPE_KV8) {
    *(uint8_t *)at = mgl_f32_to_e4m3(value);
    return;
  }
  uint16_t bits = dtype == MGL_DTYPE_BF16 ? mgl_f32_to_bf16(value) : mgl_f32_to_f16(value);
  memcpy(at, &bits, sizeof bits);
}

static inline mgl_dtype random_kv_dtype(void) {
  static const mgl_dtype dtypes[] = {MGL_DTYPE_BF16, MGL_DTYPE_F32, MGL_DTYPE_KV8};
  return dtypes[random_below(3)];
}

static inline void fill_random(void *data, mgl_dtype dtype, size_t count) {
  for (size_t i = 0; i < count; i++) {
    element_store(data, dtype, i, random_float());
  }
}

// |value - expected| <= bound, or both are the same infinity, and value is not NaN. bf16 outputs may
// round once more.
static inline void check_close(float value, double expected, double bound, mgl_dtype dtype) {
  if (dtype == MGL_DTYPE_BF16) {
    bound += (fabs(expected) + bound) * BF16_ROUNDOFF;
  }
  if ((double)value != expected && !(fabs((double)value - expected) <= bound)) {
    fail_msg("found %.9g, expected %.9g within %.3g", (double)value, expected, bound);
  }
}

// Whether to try the next of many cases: each, but one of 17 where an emulator tries them.
static inline bool takes_case(void) {
#if defined(MGL_TEST_EMULATED)
  static unsigned count;
  return count++ % 17 == 0;
#else
  return true;
#endif
}

// The levels that this processor can run, by index.
static inline size_t level_count(void) {
  return (size_t)mgl_simd_detected() + 1;
}

static inline const mgl_cpu_kernels *level(size_t index) {
  return mgl_cpu_kernels_for((mgl_simd)index);
}

#endif
