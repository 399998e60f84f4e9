// Scalar conversions against an independent formula for every half, and rounding at its edges.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/dtype.h"

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The definition of binary16, in double arithmetic.
static double half_value(uint16_t half) {
  int exponent = (half >> 10) & 31;
  int mantissa = half & 1023;
  double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

static void test_every_half(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 65536; i++) {
    mgl_f16 half = (mgl_f16)i;
    float value = mgl_f16_to_f32(half);
    uint32_t sign = i >> 15;
    if ((i & 0x7c00u) != 0x7c00u) {
      assert_true((double)value == half_value(half));
      assert_int_equal(to_bits(value) >> 31, sign);  // -0 too
      assert_int_equal(mgl_f32_to_f16(value), half);
    } else if ((i & 0x3ffu) == 0) {
      assert_true(isinf(value) && (value < 0) == (sign == 1));
      assert_int_equal(mgl_f32_to_f16(value), half);
    } else {
      assert_true(isnan(value));
      mgl_f16 back = mgl_f32_to_f16(value);
      assert_true((back & 0x7c00u) == 0x7c00u && (back & 0x3ffu) != 0);
      assert_int_equal(back >> 15, sign);
    }
  }
}

// Between each pair of neighbouring halves: the middle goes to the even one, and the next float on
// either side of the middle to its own side.
static void test_half_rounds_to_nearest_even(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 0x7bff; i++) {
    double low = half_value((uint16_t)i);
    double high = half_value((uint16_t)(i + 1));
    float middle = (float)((low + high) / 2);  // exact: one bit more than a half
    assert_int_equal(mgl_f32_to_f16(middle), i % 2 == 0 ? i : i + 1);
    assert_int_equal(mgl_f32_to_f16(nextafterf(middle, 0)), i);
    assert_int_equal(mgl_f32_to_f16(nextafterf(middle, INFINITY)), i + 1);
    assert_int_equal(mgl_f32_to_f16(-nextafterf(middle, INFINITY)), 0x8000u | (i + 1));
  }
  // Above the largest half (65504) the middle to 2^16 rounds to infinity.
  assert_int_equal(mgl_f32_to_f16(nextafterf(65520, 0)), 0x7bff);
  assert_int_equal(mgl_f32_to_f16(65520), 0x7c00);
  assert_int_equal(mgl_f32_to_f16(-1e30f), 0xfc00);
  assert_int_equal(mgl_f32_to_f16(from_bits(1)), 0);  // the least subnormal float
}

// The definition of E4M3, in double arithmetic.
static double e4m3_value(uint8_t code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Every code is its own; between each pair of neighbours the middle goes to the even one, and the
// next float on either side of the middle to its own side.
static void test_e4m3(void **state) {
  (void)state;
  for (uint32_t code = 0; code < 256; code++) {
    float value = mgl_e4m3_to_f32((uint8_t)code);
    if ((code & 0x7f) == 0x7f) {
      assert_true(isnan(value));
      assert_int_equal(mgl_f32_to_e4m3(value) & 0x7f, 0x7f);
      continue;
    }
    assert_true((double)value == e4m3_value((uint8_t)code));
    assert_int_equal(to_bits(value) >> 31, code >> 7);  // -0 too
    assert_int_equal(mgl_f32_to_e4m3(value), code);
  }
  for (uint32_t code = 0; code < 0x7e; code++) {
    float middle = (float)((e4m3_value((uint8_t)code) + e4m3_value((uint8_t)(code + 1))) / 2);
    assert_int_equal(mgl_f32_to_e4m3(middle), code % 2 == 0 ? code : code + 1);
    assert_int_equal(mgl_f32_to_e4m3(nextafterf(middle, 0)), code);
    assert_int_equal(mgl_f32_to_e4m3(nextafterf(middle, INFINITY)), code + 1);
    assert_int_equal(mgl_f32_to_e4m3(-nextafterf(middle, INFINITY)), 0x80 | (code + 1));
  }
}

static void test_e4m3_saturates(void **state) {
  (void)state;
  static const float beyond[] = {449, 464, 465, 480, 1e9f, 3e38f, INFINITY};
  for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
    assert_int_equal(mgl_f32_to_e4m3(beyond[i]), 0x7e);
    assert_int_equal(mgl_f32_to_e4m3(-beyond[i]), 0xfe);
  }
  assert_int_equal(mgl_f32_to_e4m3(NAN) & 0x7f, 0x7f);
  assert_int_equal(mgl_f32_to_e4m3(from_bits(0x7f800001)) & 0x7f, 0x7f);
  assert_int_equal(mgl_f32_to_e4m3(from_bits(1)), 0);  // the least subnormal float
  assert_int_equal(mgl_f32_to_e4m3(from_bits(0x80000001)), 0x80);
}

#if defined(__FLT16_MANT_DIG__) && defined(__x86_64__) && \
    (defined(__clang__) ? __clang_major__ >= 15 : __GNUC__ >= 12)
// All floats with one of 2^16 upper halves and a few lower ones, against the compiler's own type.
static void test_half_against_compiler(void **state) {
  (void)state;
  static const uint32_t lower[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x7fff, 0xffff};
  for (uint32_t i = 0; i < 65536; i++) {
    for (size_t n = 0; n < sizeof lower / sizeof lower[0]; n++) {
      float value = from_bits(i << 16 | lower[n]);
      _Float16 half = (_Float16)value;
      uint16_t bits;
      memcpy(&bits, &half, sizeof bits);
      if (!isnan(value)) {
        assert_int_equal(mgl_f32_to_f16(value), bits);
      }
    }
  }
}
#else
static void test_half_against_compiler(void **state) {
  (void)state;
  print_message("             skipped: this compiler has no _Float16\n");
  skip();
}
#endif

static void test_bf16(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 65536; i++) {
    float value = mgl_bf16_to_f32((mgl_bf16)i);
    assert_int_equal(to_bits(value), i << 16);
    if (isnan(value)) {
      assert_true(isnan(mgl_bf16_to_f32(mgl_f32_to_bf16(value))));
      continue;
    }
    assert_int_equal(mgl_f32_to_bf16(value), i);
    if (isinf(value)) {
      continue;
    }
    // The middle to the next bf16 away from zero: to even; its neighbours: to their side.
    uint32_t middle = i << 16 | 0x8000u;
    assert_int_equal(mgl_f32_to_bf16(from_bits(middle)), i % 2 == 0 ? i : i + 1);
    assert_int_equal(mgl_f32_to_bf16(from_bits(middle - 1)), i);
    assert_int_equal(mgl_f32_to_bf16(from_bits(middle + 1)), i + 1);
  }
  // A NaN whose payload is in the lower half only must not become infinity, and keeps its sign.
  assert_int_equal(mgl_f32_to_bf16(from_bits(0x7f800001u)), 0x7fc0);
  assert_int_equal(mgl_f32_to_bf16(from_bits(0xff800001u)), 0xffc0);
  assert_int_equal(mgl_f32_to_bf16(from_bits(0x7fffffffu)), 0x7fff);
  assert_int_equal(mgl_f32_to_bf16(from_bits(0x7f7fffffu)), 0x7f80);  // the largest float
}

static void test_sizes_and_names(void **state) {
  (void)state;
  assert_int_equal(mgl_dtype_bytes(MGL_DTYPE_F32), 4);
  assert_int_equal(mgl_dtype_bytes(MGL_DTYPE_F16), 2);
  assert_int_equal(mgl_dtype_bytes(MGL_DTYPE_BF16), 2);
  assert_int_equal(mgl_dtype_bytes(MGL_DTYPE_I32), 4);
  assert_string_equal(mgl_dtype_name(MGL_DTYPE_F32), "f32");
  assert_string_equal(mgl_dtype_name(MGL_DTYPE_F16), "f16");
  assert_string_equal(mgl_dtype_name(MGL_DTYPE_BF16), "bf16");
  assert_string_equal(mgl_dtype_name(MGL_DTYPE_I32), "i32");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_half),
      cmocka_unit_test(test_e4m3),
      cmocka_unit_test(test_e4m3_saturates),
      cmocka_unit_test(test_half_rounds_to_nearest_even),
      cmocka_unit_test(test_half_against_compiler),
      cmocka_unit_test(test_bf16),
      cmocka_unit_test(test_sizes_and_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
