// Error texts: one printable line, whatever is in them and however long it is.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static void test_printable(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"plain text", "plain text"},
      {"a\x1b[31mb\n\t\x7f", "a?[31mb???"},
      {"Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
       "Gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\xc2\x9b"
       "31m",
       "??31m"},  // CSI of C1, which some terminals obey
      {"\x9b"
       "31m",
       "?31m"},                           // the same as a single byte
      {"\xc2\xa0", "\xc2\xa0"},           // the first behind C1
      {"\xff\xc3(\xe2\x82", "?\?(\?\?"},  // no UTF-8, and a character that is cut
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_error err = {0};
    (void)mgl_error_set(&err, MGL_ERR_IO, "%s", cases[i][0]);
    assert_string_equal(err.text, cases[i][1]);
    assert_int_equal(err.status, MGL_ERR_IO);
  }
}

static void test_long_texts_lose_their_middle(void **state) {
  (void)state;
  char path[5000];
  mgl_error err = {0};
  memset(path, 'x', sizeof path - 1);
  path[0] = '/';
  path[sizeof path - 1] = 0;
  (void)mgl_error_set(&err, MGL_ERR_IO, "cannot open %s: File name too long", path);
  assert_int_equal(strlen(err.text), sizeof err.text - 1);
  assert_non_null(strstr(err.text, "cannot open /xxx"));
  assert_non_null(strstr(err.text, "xxx...xxx"));
  assert_non_null(strstr(err.text, "xxx: File name too long"));
  mgl_error_prefix(&err, "%s", path);
  assert_int_equal(strlen(err.text), sizeof err.text - 1);
  assert_non_null(strstr(err.text, "/xxx"));
  assert_non_null(strstr(err.text, "xxx: File name too long"));
  // Exactly the most, and one more.
  for (size_t bytes = sizeof err.text - 1; bytes <= sizeof err.text; bytes++) {
    path[bytes] = 0;
    (void)mgl_error_set(&err, MGL_ERR_IO, "%s", path);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(strstr(err.text, "...") != NULL, bytes == sizeof err.text);
    path[bytes] = 'x';
  }
}

static void test_prefix(void **state) {
  (void)state;
  mgl_error err = {0};
  (void)mgl_error_set(&err, MGL_ERR_FORMAT, "expected %d", 5);
  mgl_error_prefix(&err, "file\n%d", 7);
  assert_string_equal(err.text, "file?7: expected 5");
  assert_int_equal(err.status, MGL_ERR_FORMAT);
  mgl_error_prefix(NULL, "x");
  assert_int_equal(mgl_error_set(NULL, MGL_ERR_LIMIT, "x"), MGL_ERR_LIMIT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_printable),
      cmocka_unit_test(test_long_texts_lose_their_middle),
      cmocka_unit_test(test_prefix),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
