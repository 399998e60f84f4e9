// Matrices of warps against products written from PTX's tables of who has which element; formats of
// 16 and 8 bits against their definitions, every value of them.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "emulator/matrix.h"

enum { LANES = 32, MOST_REGISTERS = 128 };

static uint32_t words[MOST_REGISTERS][LANES];  // of d
static uint64_t state;

static uint32_t draw(void) {
  state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}

// A small whole number over 4: sums of few hundred products of those are exact in any order.
static float draw_value(void) {
  return (float)((int)(draw() % 17) - 8) / 4;
}

static uint32_t pair(emu_half kind, float low, float high) {
  return emu_to_half(kind, low, EMU_NEAREST, false, false) |
         (uint32_t)emu_to_half(kind, high, EMU_NEAREST, false, false) << 16;
}

// --- formats -------------------------------------------------------------------------------------

static void test_values(void **unused) {
  (void)unused;
  assert_true(emu_from_f16(0x3c00) == 1.0F && emu_from_f16(0x0001) == 0x1p-24F);
  assert_true(emu_from_f16(0x7bff) == 65504.0F && isinf(emu_from_f16(0xfc00)));
  assert_true(emu_from_f16(0x8400) == -0x1p-14F && isnan(emu_from_f16(0x7e00)));
  assert_true(emu_from_bf16(0x3f80) == 1.0F && isnan(emu_from_bf16(0x7fc0)));
  assert_true(emu_from_eight(EMU_E4M3, 0x7e) == 448.0F && isnan(emu_from_eight(EMU_E4M3, 0xff)));
  assert_true(emu_from_eight(EMU_E4M3, 0x01) == 0x1p-9F && emu_from_eight(EMU_E4M3, 0x38) == 1.0F);
  assert_true(emu_from_eight(EMU_E5M2, 0x7b) == 57344.0F && isinf(emu_from_eight(EMU_E5M2, 0x7c)));
  assert_true(emu_from_eight(EMU_E5M2, 0x81) == -0x1p-16F);
}

// Every value comes back from a float, and what lies between two goes to the nearest one, to the
// even one from the middle; rounded to zero, to the lower one.
static void check_halves(emu_half kind, uint32_t end) {
  for (uint32_t bits = 0; bits + 1 < end; bits++) {
    const float low = emu_from_half(kind, (uint16_t)bits);
    const float high = emu_from_half(kind, (uint16_t)(bits + 1));
    const float middle = (float)(((double)low + (double)high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    assert_true(low < high && low < middle && middle < high);
    assert_int_equal(emu_to_half(kind, low, EMU_NEAREST, false, false), bits);
    assert_int_equal(emu_to_half(kind, -low, EMU_NEAREST, false, false), bits | 0x8000);
    assert_int_equal(emu_to_half(kind, middle, EMU_NEAREST, false, false), even);
    assert_int_equal(emu_to_half(kind, nextafterf(middle, 0), EMU_NEAREST, true, false), bits);
    assert_int_equal(emu_to_half(kind, nextafterf(middle, high), EMU_NEAREST, false, true),
                     bits + 1);
    assert_int_equal(emu_to_half(kind, nextafterf(high, 0), EMU_TO_ZERO, false, false), bits);
  }
}

static void test_halves(void **unused) {
  (void)unused;
  check_halves(EMU_BF16, 0x7f80);
  check_halves(EMU_F16, 0x7c00);
  assert_int_equal(emu_to_half(EMU_F16, 65519.0F, EMU_NEAREST, false, false), 0x7bff);
  assert_int_equal(emu_to_half(EMU_F16, 65520.0F, EMU_NEAREST, false, false), 0x7c00);
  assert_int_equal(emu_to_half(EMU_F16, -1e9F, EMU_NEAREST, true, false), 0xfbff);
  assert_int_equal(emu_to_half(EMU_F16, -INFINITY, EMU_NEAREST, true, false), 0xfbff);
  assert_int_equal(emu_to_half(EMU_F16, -INFINITY, EMU_NEAREST, false, false), 0xfc00);
  assert_int_equal(emu_to_half(EMU_F16, NAN, EMU_NEAREST, true, false), 0x7fff);
  assert_int_equal(emu_to_half(EMU_BF16, NAN, EMU_NEAREST, false, true), 0x7fff);
  assert_int_equal(emu_to_half(EMU_BF16, 3.4e38F, EMU_NEAREST, false, false), 0x7f80);
  assert_int_equal(emu_to_half(EMU_BF16, INFINITY, EMU_NEAREST, false, false), 0x7f80);
  assert_int_equal(emu_to_half(EMU_BF16, INFINITY, EMU_NEAREST, true, false), 0x7f7f);
  assert_int_equal(emu_to_half(EMU_BF16, -1.0F, EMU_NEAREST, false, true), 0);
}

static void test_eights(void **unused) {
  static const struct {
    emu_eight kind;
    uint32_t largest;
  } kinds[] = {{EMU_E4M3, 0x7e}, {EMU_E5M2, 0x7b}};
  (void)unused;
  for (size_t i = 0; i < 2; i++) {
    const emu_eight kind = kinds[i].kind;
    for (uint32_t bits = 0; bits < kinds[i].largest; bits++) {
      const float low = emu_from_eight(kind, (uint8_t)bits);
      const float high = emu_from_eight(kind, (uint8_t)(bits + 1));
      const float middle = (low + high) / 2;
      assert_true(low < high);
      assert_int_equal(emu_to_eight(kind, low, false), bits);
      assert_int_equal(emu_to_eight(kind, -low, false), bits | 0x80);
      assert_int_equal(emu_to_eight(kind, middle, false), bits % 2 == 0 ? bits : bits + 1);
      assert_int_equal(emu_to_eight(kind, nextafterf(middle, 0), false), bits);
      assert_int_equal(emu_to_eight(kind, nextafterf(middle, high), false), bits + 1);
    }
    assert_int_equal(emu_to_eight(kind, 1e9F, false), kinds[i].largest);
    assert_int_equal(emu_to_eight(kind, -INFINITY, false), kinds[i].largest | 0x80);
    assert_int_equal(emu_to_eight(kind, NAN, false), 0x7f);
    assert_int_equal(emu_to_eight(kind, -1.0F, true), 0);
  }
}

// --- products ------------------------------------------------------------------------------------

static float a[64][32], b[32][256], c[64][256];

static void draw_matrices(uint32_t k, uint32_t n) {
  for (uint32_t i = 0; i < k; i++) {
    for (uint32_t row = 0; row < 64; row++) {
      a[row][i] = draw_value();
    }
    for (uint32_t column = 0; column < n; column++) {
      b[i][column] = draw_value();
    }
  }
  for (uint32_t row = 0; row < 64; row++) {
    for (uint32_t column = 0; column < n; column++) {
      c[row][column] = draw_value();
    }
  }
}

static float sum_of(uint32_t row, uint32_t column, uint32_t k, bool add, float sign) {
  float sum = add ? c[row][column] : 0;
  for (uint32_t i = 0; i < k; i++) {
    sum += sign * a[row][i] * b[i][column];
  }
  return sum;
}

// PTX: of accumulators, row = lane / 4 (+ 8 of registers 2 and 3 of each four), column = 2 (lane % 4)
// + register % 2.
static void check_sums(uint32_t first_row, uint32_t k, uint32_t n, bool add, float sign) {
  for (uint32_t lane = 0; lane < LANES; lane++) {
    for (uint32_t i = 0; i < n / 2; i++) {
      const uint32_t row = first_row + (lane >> 2) + ((i & 2) != 0 ? 8 : 0);
      const uint32_t column = i / 4 * 8 + (lane & 3) * 2 + (i & 1);
      assert_true(emu_float_of(words[i][lane]) == sum_of(row, column, k, add, sign));
    }
  }
}

static void fill_sums(uint32_t first_row, uint32_t n, uint32_t *d[MOST_REGISTERS]) {
  for (uint32_t i = 0; i < n / 2; i++) {
    d[i] = words[i];
    for (uint32_t lane = 0; lane < LANES; lane++) {
      words[i][lane] = emu_bits_of(c[first_row + (lane >> 2) + ((i & 2) != 0 ? 8 : 0)]
                                    [i / 4 * 8 + (lane & 3) * 2 + (i & 1)]);
    }
  }
}

// PTX's a_i of m16n8k16, i = 0 to 7: row = lane / 4 for i of 0, 1, 4, 5, else + 8; column =
// 2 (lane % 4) + i % 2, + 8 for i >= 4. Two of them a register.
static void fill_a(emu_half kind, uint32_t first_row, uint32_t registers, uint32_t of_a[4][LANES],
                   const uint32_t *list[4]) {
  for (uint32_t r = 0; r < registers; r++) {
    list[r] = of_a[r];
    for (uint32_t lane = 0; lane < LANES; lane++) {
      const uint32_t i = 2 * r;
      const uint32_t row = first_row + (lane >> 2) + (i % 4 < 2 ? 0 : 8);
      const uint32_t column = (lane & 3) * 2 + (i >= 4 ? 8 : 0);
      of_a[r][lane] = pair(kind, a[row][column], a[row][column + 1]);
    }
  }
}

static void test_mma(void **unused) {
  uint32_t of_a[4][LANES], of_b[2][LANES];
  (void)unused;
  for (uint32_t round = 0; round < 8; round++) {
    const emu_half kind = round % 2 == 0 ? EMU_BF16 : EMU_F16;
    const uint32_t k = round < 4 ? 16 : 8;
    const uint32_t *as[4], *bs[2] = {of_b[0], of_b[1]};
    uint32_t *d[MOST_REGISTERS];
    draw_matrices(k, 8);
    fill_sums(0, 8, d);
    fill_a(kind, 0, k / 4, of_a, as);
    for (uint32_t lane = 0; lane < LANES;
         lane++) {  // b_i: row 2 (lane % 4) + i % 2 (+ 8), column lane / 4
      for (uint32_t r = 0; r < k / 8; r++) {
        const uint32_t row = (lane & 3) * 2 + r * 8;
        of_b[r][lane] = pair(kind, b[row][lane >> 2], b[row + 1][lane >> 2]);
      }
    }
    if (k == 16) {
      emu_mma_m16n8k16(kind, d, as, bs, (const uint32_t *const *)d);
    } else {
      emu_mma_m16n8k8(kind, d, as, bs, (const uint32_t *const *)d);
    }
    check_sums(0, k, 8, true, 1);
  }
}

// The order that matrix.h fixes: 2^24 + 1 + 1 loses both ones, 1 + 1 + 2^24 none.
static void test_order(void **unused) {
  uint32_t of_a[4][LANES], of_b[2][LANES], of_c[4][LANES] = {{0}};
  uint32_t *d[4];
  const uint32_t *as[4], *bs[2], *cs[4];
  (void)unused;
  for (uint32_t first = 0; first < 2; first++) {
    for (uint32_t i = 0; i < 16; i++) {
      for (uint32_t row = 0; row < 16; row++) {
        a[row][i] = i < 3 ? 1.0F : 0.0F;
      }
    }
    for (uint32_t row = 0; row < 16; row++) {
      a[row][first == 0 ? 0 : 2] = 0x1p24F;
    }
    fill_a(EMU_BF16, 0, 4, of_a, as);
    for (uint32_t r = 0; r < 4; r++) {
      d[r] = words[r];
      cs[r] = of_c[r];
      for (uint32_t lane = 0; lane < LANES; lane++) {
        of_b[r % 2][lane] = pair(EMU_BF16, 1, 1);
      }
    }
    bs[0] = of_b[0];
    bs[1] = of_b[1];
    emu_mma_m16n8k16(EMU_BF16, d, as, bs, cs);
    assert_true(emu_float_of(words[0][5]) == 0x1p24F + (first == 0 ? 0.0F : 2.0F));
  }
}

// PTX: a_i of m16n8k32, i = 0 to 15: row lane / 4 for i of 0 to 3 and 8 to 11, else + 8; column
// 4 (lane % 4) + i % 4, + 16 for i >= 8. b_i: row 4 (lane % 4) + i % 4, + 16 for i >= 4.
static void test_bytes(void **unused) {
  int8_t x[16][32], y[32][8];
  uint32_t of_a[4][LANES] = {{0}}, of_b[2][LANES] = {{0}}, sums[4][LANES], *d[4];
  const uint32_t *as[4], *bs[2], *cs[4];
  (void)unused;
  for (uint32_t i = 0; i < 32; i++) {
    for (uint32_t row = 0; row < 16; row++) {
      x[row][i] = (int8_t)(i == 3 ? -128 : (int)(draw() % 256) - 128);
    }
    for (uint32_t column = 0; column < 8; column++) {
      y[i][column] = (int8_t)((int)(draw() % 256) - 128);
    }
  }
  for (uint32_t lane = 0; lane < LANES; lane++) {
    for (uint32_t i = 0; i < 16; i++) {
      const uint32_t row = (lane >> 2) + (i % 8 < 4 ? 0 : 8);
      const uint32_t column = (lane & 3) * 4 + (i & 3) + (i < 8 ? 0 : 16);
      of_a[i / 4][lane] |= (uint32_t)(uint8_t)x[row][column] << i % 4 * 8;
      if (i < 8) {
        const uint32_t at = (lane & 3) * 4 + (i & 3) + (i < 4 ? 0 : 16);
        of_b[i / 4][lane] |= (uint32_t)(uint8_t)y[at][lane >> 2] << i % 4 * 8;
      }
    }
    for (uint32_t r = 0; r < 4; r++) {
      sums[r][lane] = r == 0 ? 0x7fffffff : draw();
      words[r][lane] = sums[r][lane];
    }
  }
  for (uint32_t r = 0; r < 4; r++) {
    as[r] = of_a[r];
    bs[r % 2] = of_b[r % 2];
    d[r] = words[r];
    cs[r] = sums[r];
  }
  emu_mma_m16n8k32_s8(d, as, bs, cs);
  for (uint32_t lane = 0; lane < LANES; lane++) {
    for (uint32_t r = 0; r < 4; r++) {
      uint32_t sum = sums[r][lane];
      for (uint32_t i = 0; i < 32; i++) {
        sum += (uint32_t)(x[(lane >> 2) + (r < 2 ? 0 : 8)][i] * y[i][(lane & 3) * 2 + r % 2]);
      }
      assert_int_equal(words[r][lane], sum);
    }
  }
}

// --- matrices in shared memory -------------------------------------------------------------------

enum { SHARED_BYTES = 65536 };

// A row of `bytes` with the swizzle of that name: bits 4 and up of the address are exchanged by
// bits 7 and up (PTX ISA, "Strides" and "Swizzling modes").
static uint32_t swizzled(uint32_t at, uint32_t bytes) {
  const uint32_t bits = bytes == 128 ? 7 : bytes == 64 ? 3 : 1;
  return at ^ ((at >> 7 & bits) << 4);
}

// Writes a matrix of rows whose elements of k are contiguous, the 16 of them `skip` bytes into rows of
// `bytes`; 0: no swizzle. Returns its descriptor.
static uint64_t write_matrix(uint8_t *shared, uint32_t start, uint32_t bytes, uint32_t skip,
                             uint32_t rows, bool is_a) {
  const uint32_t leading = 128, stride = bytes == 0 ? 256 : 8 * bytes;
  for (uint32_t row = 0; row < rows; row++) {
    for (uint32_t i = 0; i < 16; i++) {
      const uint16_t half =
          emu_to_half(EMU_BF16, is_a ? a[row][i] : b[i][row], EMU_NEAREST, false, false);
      const uint32_t at =
          bytes == 0 ? start + row / 8 * stride + i / 8 * leading + row % 8 * 16 + i % 8 * 2
                     : swizzled(start + row / 8 * stride + row % 8 * bytes + skip + i * 2, bytes);
      memcpy(shared + at, &half, sizeof half);
    }
  }
  const uint64_t mode = bytes == 128 ? 1 : bytes == 64 ? 2 : bytes == 32 ? 3 : 0;
  return mode << 62 | (uint64_t)(stride >> 4) << 32 | (uint64_t)(leading >> 4) << 16 |
         (start + skip) >> 4;
}

static void check_wgmma(uint8_t *shared, uint32_t bytes, uint32_t n, bool a_in_registers,
                        bool add) {
  char why[256] = "";
  const uint32_t skip = bytes < 64 ? 0 : bytes - 32;
  emu_wgmma what = {.kind = EMU_BF16, .n = n, .add = add, .shared = shared};
  what.shared_bytes = SHARED_BYTES;
  what.negate_b = !add;
  draw_matrices(16, n);
  what.b_descriptor = write_matrix(shared, 16384, bytes, skip, n, false);
  what.a_descriptor = write_matrix(shared, 0, bytes, skip, 64, true);
  for (uint32_t warp = 0; warp < 4; warp++) {
    uint32_t of_a[4][LANES], *d[MOST_REGISTERS];
    const uint32_t *as[4];
    what.warp = warp;
    fill_sums(warp * 16, n, d);
    fill_a(EMU_BF16, warp * 16, 4, of_a, as);
    what.a = a_in_registers ? as : NULL;
    assert_true(emu_wgmma_warp(&what, d, why, sizeof why));
    check_sums(warp * 16, 16, n, add, add ? 1 : -1);
  }
}

static void test_wgmma(void **unused) {
  static const uint32_t row_bytes[] = {0, 32, 64, 128}, columns[] = {8, 32, 96, 256};
  uint8_t *shared = malloc(SHARED_BYTES);
  (void)unused;
  for (uint32_t i = 0; i < 16; i++) {
    memset(shared, 0xff, SHARED_BYTES);  // NaNs
    check_wgmma(shared, row_bytes[i / 4], columns[i % 4], i % 2 == 0, i / 2 % 2 == 0);
  }
  free(shared);
}

static void test_wgmma_out_of_bounds(void **unused) {
  char why[256] = "";
  uint8_t shared[2048] = {0};
  uint32_t of_a[4][LANES] = {{0}}, *d[MOST_REGISTERS];
  const uint32_t *as[4] = {of_a[0], of_a[1], of_a[2], of_a[3]};
  emu_wgmma what = {.kind = EMU_BF16, .n = 16, .a = as, .shared = shared};
  (void)unused;
  for (uint32_t i = 0; i < 8; i++) {
    d[i] = words[i];
  }
  what.b_descriptor = (uint64_t)1 << 62 | (uint64_t)64 << 32;
  what.shared_bytes = sizeof shared;
  assert_true(emu_wgmma_warp(&what, d, why, sizeof why));
  what.shared_bytes = sizeof shared - 16;
  assert_false(emu_wgmma_warp(&what, d, why, sizeof why));
  assert_non_null(strstr(why, "row 15"));
}

// --- moving --------------------------------------------------------------------------------------

static void check_moves(uint32_t count, bool transpose) {
  uint16_t matrices[4][8][8], back[4][8][8];
  const uint8_t *rows[32];
  uint8_t *to[32];
  uint32_t *d[4];
  for (uint32_t i = 0; i < 32; i++) {
    rows[i] = (const uint8_t *)matrices[i / 8][i % 8];
    to[i] = (uint8_t *)back[i / 8][i % 8];
    d[i / 8] = words[i / 8];
    for (uint32_t j = 0; j < 8; j++) {
      matrices[i / 8][i % 8][j] = (uint16_t)draw();
    }
  }
  emu_ldmatrix(count, transpose, d, rows);
  for (uint32_t m = 0; m < count; m++) {
    for (uint32_t lane = 0; lane < LANES; lane++) {
      for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = lane >> 2, column = (lane & 3) * 2 + i;
        const uint16_t half = transpose ? matrices[m][column][row] : matrices[m][row][column];
        assert_int_equal((uint16_t)(words[m][lane] >> 16 * i), half);
      }
    }
  }
  emu_stmatrix(count, transpose, to, (const uint32_t *const *)d);
  assert_memory_equal(back, matrices, count * sizeof matrices[0]);
}

static void test_moves(void **unused) {
  (void)unused;
  for (uint32_t count = 1; count <= 4; count *= 2) {
    check_moves(count, false);
    check_moves(count, true);
  }
  uint32_t from[LANES], once[LANES];
  for (uint32_t lane = 0; lane < LANES; lane++) {
    from[lane] = draw();
  }
  emu_movmatrix(once, from);
  for (uint32_t lane = 0; lane < LANES; lane++) {  // element (row, column) is (column, row) before
    const uint32_t row = lane >> 2, column = (lane & 3) * 2;
    const uint32_t low = from[column * 4 + row / 2] >> row % 2 * 16 & 0xffff;
    const uint32_t high = from[(column + 1) * 4 + row / 2] >> row % 2 * 16 & 0xffff;
    assert_int_equal(once[lane], low | high << 16);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values), cmocka_unit_test(test_halves),
      cmocka_unit_test(test_eights), cmocka_unit_test(test_mma),
      cmocka_unit_test(test_order),  cmocka_unit_test(test_bytes),
      cmocka_unit_test(test_wgmma),  cmocka_unit_test(test_wgmma_out_of_bounds),
      cmocka_unit_test(test_moves)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
