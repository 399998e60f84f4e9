// The layouts of the wide class: every element has a place of its own, in the order of the packed
// weights.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "twin/packing.h"
#include "twin/wide_layout.h"

enum { TOKENS = 24, K = 192 };

static void x_is_a_bijection(void **state) {
  (void)state;
  static uint8_t seen[TOKENS * K * 2];
  memset(seen, 0, sizeof seen);
  assert_int_equal(mgl_wide_x_bytes(TOKENS, K), sizeof seen);
  for (uint32_t token = 0; token < TOKENS; token++) {
    for (uint32_t e = 0; e < K; e++) {
      uint64_t at = mgl_wide_x_offset(TOKENS, token, e);
      assert_true(at % 2 == 0 && at < sizeof seen);
      assert_int_equal(seen[at], 0);
      seen[at] = 1;
      if (e % 2 == 0) {
        assert_int_equal(mgl_wide_x_offset(TOKENS, token, e + 1), at + 2);
      }
    }
  }
}

// A tile of tokens of one column is contiguous, each row 128 bytes, and the k-th element of a
// k-step of 16 stands where the k-th of a lane's packed weights does.
static void x_has_the_order_of_packed_weights(void **state) {
  (void)state;
  for (uint32_t token = 0; token < TOKENS; token++) {
    for (uint32_t e = 0; e < K; e++) {
      uint64_t at = mgl_wide_x_offset(TOKENS, token, e);
      assert_int_equal(at / MGL_WIDE_ROW_BYTES, e / MGL_WIDE_K * TOKENS + token);
      uint32_t in_row = (uint32_t)(at % MGL_WIDE_ROW_BYTES) ^ token % 8 * 16;  // unswizzled
      uint32_t k = in_row / 2;  // of the column, as the tensor cores count
      // Row 0 of a packed half: 512 bytes a k-step, lane t, word 2 h + u, half i of a mma operand.
      uint64_t packed = mgl_packed_offset(K, 0, 0, e);
      uint32_t step = (uint32_t)(packed / 512);
      uint32_t t = (uint32_t)(packed % 512 / 16);
      uint32_t h = (uint32_t)(packed % 16 / 8);
      assert_int_equal(e / MGL_WIDE_K * 4 + k / 16, step);
      assert_int_equal(k % 16, 8 * h + 2 * t + packed % 4 / 2);
    }
  }
}

static void residual_is_a_bijection(void **state) {
  (void)state;
  enum { N = 48 };
  static uint8_t seen[TOKENS * N * 4];
  memset(seen, 0, sizeof seen);
  for (uint32_t token = 0; token < TOKENS; token++) {
    for (uint32_t feature = 0; feature < N; feature++) {
      uint64_t at = mgl_wide_residual_offset(TOKENS, token, feature);
      assert_true(at % 4 == 0 && at < sizeof seen);
      assert_int_equal(seen[at], 0);
      seen[at] = 1;
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(x_is_a_bijection),
      cmocka_unit_test(x_has_the_order_of_packed_weights),
      cmocka_unit_test(residual_is_a_bijection),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
