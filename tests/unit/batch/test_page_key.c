// Keys of prompt pages: equal where and only where page, tokens before it and salt are.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "batch/page_key.h"

enum { COUNT = 50, P = 16 };

static bool equal(const mgl_page_key *a, const mgl_page_key *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

static void a_key_stands_for_all_tokens_up_to_the_pages_end(void **state) {
  (void)state;
  int32_t tokens[COUNT];
  mgl_page_key keys[4] = {0}, same[4] = {0}, other[4] = {0};
  const mgl_page_key untouched = {0};
  for (int i = 0; i < COUNT; i++) {
    tokens[i] = i * 7;
  }
  mgl_page_keys_compute(tokens, COUNT, P, NULL, 0, keys);
  assert_true(equal(&keys[3], &untouched));  // the last page is not full
  mgl_page_keys_compute(tokens, 48, P, NULL, 0, same);
  assert_memory_equal(keys, same, 3 * sizeof *keys);
  for (int i = 0; i < 48; i++) {  // every token counts, in its page and in all after it
    tokens[i] ^= 1;
    mgl_page_keys_compute(tokens, COUNT, P, NULL, 0, other);
    for (int page = 0; page < 3; page++) {
      assert_int_equal(equal(&other[page], &keys[page]), page < i / P);
    }
    tokens[i] ^= 1;
  }
}

static void equal_pages_behind_different_ones_differ(void **state) {
  (void)state;
  const int32_t tokens[64] = {0};
  mgl_page_key keys[4];
  mgl_page_keys_compute(tokens, 64, P, NULL, 0, keys);
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < i; k++) {
      assert_false(equal(&keys[i], &keys[k]));
    }
  }
}

static void a_salt_keeps_tenants_apart(void **state) {
  (void)state;
  const int32_t tokens[32] = {1, 2, 3};
  mgl_page_key keys[2], salted[2], again[2], other[2];
  mgl_page_keys_compute(tokens, 32, P, NULL, 0, keys);
  mgl_page_keys_compute(tokens, 32, P, "tenant a", 8, salted);
  mgl_page_keys_compute(tokens, 32, P, "tenant a", 8, again);
  mgl_page_keys_compute(tokens, 32, P, "tenant b", 8, other);
  assert_memory_equal(salted, again, sizeof salted);
  for (int i = 0; i < 2; i++) {
    assert_false(equal(&keys[i], &salted[i]));
    assert_false(equal(&other[i], &salted[i]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_key_stands_for_all_tokens_up_to_the_pages_end),
      cmocka_unit_test(equal_pages_behind_different_ones_differ),
      cmocka_unit_test(a_salt_keeps_tenants_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
