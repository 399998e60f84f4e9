// Tests of NFC: compositions, exclusions, Hangul, long runs of marks.
#include "text/nfc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"

typedef struct nfc_case {
  const char *text;
  const char *normal;
} nfc_case;

static const nfc_case CASES[] = {
    {"", ""},
    {"plain", "plain"},
    {"caf\u00e9 \u00fc", "caf\u00e9 \u00fc"},
    {"xe\u0301y", "x\u00e9y"},
    {"e\u0301e\u0301", "\u00e9\u00e9"},
    {"\u0301e", "\u0301e"},                  // a mark without a base
    {"a\u0301\u0323", "\u1ea1\u0301"},       // ordered first, then composed
    {"\u00e9\u0323", "\u1eb9\u0301"},        // taken apart, ordered, composed
    {"\u212b\u2126", "\u00c5\u03a9"},        // singletons
    {"\u0958", "\u0915\u093c"},              // excluded from composition
    {"\u1100\u1161\u11a8", "\uac01"},        // Hangul
    {"\uac00\u11a8z", "\uac01z"},            // Hangul syllable and final consonant
    {"\u1100\u1161\u11a7", "\uac00\u11a7"},  // utf8proc 2.8 loses the last one
    {"\uac00\u11a7\u11a8", "\uac00\u11a7\u11a8"},
    {"\U0001d15e", "\U0001d157\U0001d165"},
    {"e\u0334\u0301", "\u00e9\u0334"},  // a mark of a lower class does not block
    {"e\u0308\u0301", "\u00eb\u0301"},  // one of the same class does
    {"\u304b\u3099", "\u304c"},
    // Later than Unicode 9: marks that are not ordered, a pair that does not compose.
    {"a\u09fe\u0334", "a\u09fe\u0334"},
    {"e\u09fe\u0301", "e\u09fe\u0301"},
    {"\U00011935\U00011930", "\U00011935\U00011930"},
    {"\U00011938\u0334", "\U00011938\u0334"},
};

static void test_cases(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    mgl_error err = {0};
    mgl_text out = {0};
    mgl_text_append_string(&out, "<");
    assert_int_equal(mgl_nfc_append(&out, CASES[i].text, strlen(CASES[i].text), &err), MGL_OK);
    if (strcmp(out.data + 1, CASES[i].normal) != 0) {
      fail_msg("case %zu: found \"%s\", expected \"%s\"", i, out.data + 1, CASES[i].normal);
    }
    mgl_text_free(&out);
  }
}

static void test_long_runs_are_ordered(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_text text = {0};
  mgl_text expected = {0};
  mgl_text out = {0};
  mgl_text_append_string(&text, "o");
  mgl_text_append_string(&expected, "o");
  for (int i = 0; i < 1000; i++) {  // classes 234 and 1
    mgl_text_append_string(&text, "\u0360\u0334");
    mgl_text_append_string(&expected, "\u0334");
  }
  for (int i = 0; i < 1000; i++) {
    mgl_text_append_string(&expected, "\u0360");
  }
  assert_int_equal(mgl_nfc_append(&out, text.data, text.bytes, &err), MGL_OK);
  assert_string_equal(out.data, expected.data);
  mgl_text_free(&out);

  int64_t live = mgl_alloc_live();
  for (uint64_t n = 1;; n++) {
    mgl_alloc_fail_nth(n);
    mgl_status status = mgl_nfc_append(&out, text.data, text.bytes, &err);
    mgl_alloc_fail_nth(0);
    mgl_text_free(&out);
    assert_int_equal(mgl_alloc_live(), live);
    if (status == MGL_OK) {
      assert_true(n > 3);
      break;
    }
    assert_int_equal(status, MGL_ERR_MEMORY);
  }
  mgl_text_free(&text);
  mgl_text_free(&expected);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases),
      cmocka_unit_test(test_long_runs_are_ordered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
