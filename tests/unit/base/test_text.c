// The growing text buffer and the error text.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/text.h"

// Under AddressSanitizer an impossible size must return NULL, as the C library's allocator does.
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}

static void test_append(void **state) {
  (void)state;
  mgl_text text = {0};
  int64_t live = mgl_alloc_live();
  mgl_text_append(&text, "", 0);
  assert_string_equal(text.data, "");
  mgl_text_append_string(&text, "one");
  mgl_text_append(&text, " two\0three", 10);
  mgl_text_format(&text, " %d%s", 4, "!");
  assert_int_equal(text.bytes, 16);
  assert_memory_equal(text.data, "one two\0three 4!", 17);
  assert_int_equal(mgl_text_check(&text, NULL), MGL_OK);
  size_t capacity = text.capacity;
  mgl_text_clear(&text);
  assert_string_equal(text.data, "");
  assert_int_equal(text.bytes, 0);
  assert_int_equal(text.capacity, capacity);
  mgl_text_free(&text);
  assert_null(text.data);
  assert_int_equal(mgl_alloc_live(), live);
}

static void test_grows(void **state) {
  (void)state;
  mgl_text text = {0};
  for (int i = 0; i < 20000; i++) {
    mgl_text_format(&text, "%05d", i);
    assert_true(text.bytes < text.capacity);
    assert_int_equal(text.data[text.bytes], 0);
  }
  assert_int_equal(text.bytes, 100000);
  for (int i = 0; i < 20000; i++) {
    char number[6] = {0};
    memcpy(number, text.data + 5 * i, 5);
    assert_int_equal(strtol(number, NULL, 10), i);
  }
  mgl_text_free(&text);
}

// A failed append leaves the text as it was and stays failed, until it is cleared.
static void test_failure_is_sticky(void **state) {
  (void)state;
  mgl_text text = {0};
  mgl_error err = {0};
  char large[1000];
  memset(large, 'x', sizeof large);
  mgl_text_append_string(&text, "kept");
  mgl_alloc_fail_nth(1);
  mgl_text_append(&text, large, sizeof large);
  mgl_alloc_fail_nth(0);
  mgl_text_append_string(&text, "!");
  assert_string_equal(text.data, "kept");
  assert_int_equal(mgl_text_check(&text, &err), MGL_ERR_MEMORY);
  assert_int_equal(err.status, MGL_ERR_MEMORY);
  mgl_text_append(&text, large, SIZE_MAX - 2);  // no overflow, no read
  mgl_text_clear(&text);
  assert_int_equal(mgl_text_check(&text, &err), MGL_OK);
  mgl_text_append(&text, large, SIZE_MAX - 2);
  assert_int_equal(mgl_text_check(&text, &err), MGL_ERR_MEMORY);
  mgl_text_free(&text);
}

static void test_error_is_one_printable_line(void **state) {
  (void)state;
  mgl_error err = {0};
  assert_int_equal(mgl_error_set(&err, MGL_ERR_FORMAT, "bad \"%s\" %d", "a\n\x1b[31m\x7f", 3),
                   MGL_ERR_FORMAT);
  assert_int_equal(err.status, MGL_ERR_FORMAT);
  assert_string_equal(err.text, "bad \"a??[31m?\" 3");
  mgl_error_prefix(&err, "file\t%d", 7);
  assert_string_equal(err.text, "file?7: bad \"a??[31m?\" 3");
  assert_int_equal(err.status, MGL_ERR_FORMAT);
  assert_int_equal(mgl_error_set(NULL, MGL_ERR_IO, "nobody listens"), MGL_ERR_IO);
  mgl_error_prefix(NULL, "nobody");
}

static void test_error_is_cut(void **state) {
  (void)state;
  mgl_error err = {0};
  char large[3000];
  memset(large, 'x', sizeof large);
  large[sizeof large - 1] = 0;
  (void)mgl_error_set(&err, MGL_ERR_LIMIT, "%s", large);
  assert_int_equal(strlen(err.text), MGL_ERROR_TEXT_BYTES - 1);
  mgl_error_prefix(&err, "%s", large);
  assert_int_equal(strlen(err.text), MGL_ERROR_TEXT_BYTES - 1);
}

static void test_status_names_differ(void **state) {
  (void)state;
  for (int i = MGL_OK; i <= MGL_ERR_INTERNAL; i++) {
    for (int j = MGL_OK; j < i; j++) {
      assert_string_not_equal(mgl_status_name((mgl_status)i), mgl_status_name((mgl_status)j));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_append),
      cmocka_unit_test(test_grows),
      cmocka_unit_test(test_failure_is_sticky),
      cmocka_unit_test(test_error_is_one_printable_line),
      cmocka_unit_test(test_error_is_cut),
      cmocka_unit_test(test_status_names_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
