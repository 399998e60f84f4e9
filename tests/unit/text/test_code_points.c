// Every code point: what NFC, the Split patterns and the word test of added tokens make of texts with
// it is what the `tokenizers` library makes of them. tools/make_tokenizer_cases.py wrote hashes of
// the library's results, one for each 8192 code points, from the same texts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/text.h"
#include "slow_build.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

enum { CODES_A_HASH = 0x2000, CODE_LIMIT = 0x110000 };

typedef struct code_text {
  const char *class_marks;
  const mgl_split_pattern *pattern;
} code_text;

// Appends what is hashed for a character, which is UTF-8 with a NUL.
typedef void (*code_result)(const code_text *context, uint32_t code, const char *c, mgl_text *out);

static uint32_t crc32(const char *data, size_t bytes) {
  static uint32_t table[256];
  if (table[1] == 0) {
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; bit++) {
        value = value >> 1 ^ ((value & 1) != 0 ? 0xedb88320u : 0);
      }
      table[i] = value;
    }
  }
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < bytes; i++) {
    crc = crc >> 8 ^ table[(crc ^ (unsigned char)data[i]) & 0xff];
  }
  return crc ^ 0xffffffffu;
}

static json_t *read_hashes(void) {
  char path[512];
  mgl_error err = {0};
  json_t *hashes = NULL;
  (void)snprintf(path, sizeof path, "%s/tokenizer/code_points.json", MGL_TEST_DATA);
  if (mgl_json_read(path, 1 << 20, &hashes, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return hashes;
}

static void check_hashes(const char *what, const json_t *hashes, code_result result,
                         const code_text *context) {
  mgl_text out = {0};
  size_t count = json_array_size(hashes);
  size_t checked = 0;
  assert_true(count >= 16 && count <= CODE_LIMIT / CODES_A_HASH);
  // From U+34000 to plane 13 nothing is assigned.
  bool skip_empty = SLOW_BUILD || (context->pattern != NULL && getenv("MGL_TEST_LONG") == NULL);
  for (size_t group = 0; group < count; group++) {
    if (skip_empty && group * CODES_A_HASH >= 0x34000 && group * CODES_A_HASH < 0xe0000) {
      continue;
    }
    mgl_text_clear(&out);
    for (uint32_t i = 0; i < CODES_A_HASH; i++) {
      uint32_t code = (uint32_t)group * CODES_A_HASH + i;
      if (code < 0xd800 || code >= 0xe000) {
        char c[5] = {0};
        (void)mgl_utf8_encode(code, c);
        result(context, code, c, &out);
        checked++;
      }
    }
    assert_false(out.failed);
    char found[16];
    (void)snprintf(found, sizeof found, "%08x", crc32(out.data, out.bytes));
    const char *expected = json_string_value(json_array_get(hashes, group));
    assert_non_null(expected);
    if (strcmp(found, expected) != 0) {
      fail_msg("%s: U+%04zX to U+%04zX differ from the library", what, group * CODES_A_HASH,
               (group + 1) * CODES_A_HASH - 1);
    }
  }
  print_message("%s: %zu code points as in the library\n", what, checked);
  mgl_text_free(&out);
}

// U+0000 is text like any other, so lengths count, not NULs.
static void append_code(mgl_text *text, uint32_t code, const char *c) {
  mgl_text_append(text, c, code == 0 ? 1 : strlen(c));
}

// Appends the pieces with the character between them.
static void append_around(mgl_text *text, const char *const *pieces, size_t count, uint32_t code,
                          const char *c) {
  for (size_t i = 0; i < count; i++) {
    mgl_text_append_string(text, pieces[i]);
    if (i + 1 < count) {
      append_code(text, code, c);
    }
  }
}

static void append_nfc(const mgl_text *text, mgl_text *out) {
  mgl_error err = {0};
  assert_int_equal(mgl_nfc_append(out, text->data, text->bytes, &err), MGL_OK);
}

static void nfc_result(const code_text *context, uint32_t code, const char *c, mgl_text *out) {
  (void)context;
  static const char *const PIECES[] = {"a", "\u0301\u0345", "\u0334", "", "\u0328\u1161\u11a8"};
  mgl_text text = {0};
  append_around(&text, PIECES, sizeof PIECES / sizeof PIECES[0], code, c);
  append_nfc(&text, out);
  mgl_text_free(&text);
}

static void class_result(const code_text *context, uint32_t code, const char *c, mgl_text *out) {
  mgl_text text = {0};
  mgl_text_append_string(&text, "x");
  mgl_text_append_string(&text, context->class_marks);
  append_code(&text, code, c);
  mgl_text_append_string(&text, context->class_marks);
  append_nfc(&text, out);
  mgl_text_free(&text);
}

static void word_result(const code_text *context, uint32_t code, const char *c, mgl_text *out) {
  (void)context;
  (void)c;
  const char found = mgl_char_is_word(code) ? 0 : 1;  // how many tokens of its own there are
  mgl_text_append(out, &found, 1);
  mgl_text_append(out, &found, 1);
}

static void split_result(const code_text *context, uint32_t code, const char *c, mgl_text *out) {
  static const char *const PIECES[] = {"a", "1", ".",  " ",  "'",      "x'r",
                                       "A", "B", "b/", "\n", "\u0301", ""};
  mgl_text text = {0};
  append_around(&text, PIECES, sizeof PIECES / sizeof PIECES[0], code, c);
  size_t start = 0;
  size_t end = 0;
  while (mgl_split_next(context->pattern, text.data, text.bytes, end, &start, &end)) {
    const size_t places[] = {start, end};
    for (size_t i = 0; i < 2; i++) {
      const char little_endian[] = {(char)places[i], 0, 0, 0};
      assert_true(places[i] < 256);
      mgl_text_append(out, little_endian, sizeof little_endian);
    }
  }
  mgl_text_free(&text);
}

static void test_nfc(void **state) {
  const code_text context = {.class_marks =
                                 json_string_value(json_object_get(*state, "class_marks"))};
  assert_non_null(context.class_marks);
  check_hashes("NFC", json_object_get(*state, "nfc"), nfc_result, &context);
  check_hashes("classes of marks", json_object_get(*state, "classes"), class_result, &context);
}

static void test_words(void **state) {
  check_hashes("word characters", json_object_get(*state, "words"), word_result, &(code_text){0});
}

static void test_splits(void **state) {
  const char *name = NULL;
  json_t *split = NULL;
  size_t count = 0;
  json_object_foreach(json_object_get(*state, "splits"), name, split) {
    mgl_split_pattern pattern;
    const char *regex = json_string_value(json_object_get(split, "regex"));
    assert_non_null(regex);
    assert_true(mgl_split_pattern_find(regex, &pattern));
    const code_text context = {.pattern = &pattern};
    check_hashes(name, json_object_get(split, "hashes"), split_result, &context);
    count++;
  }
  assert_true(count >= 4);
}

static int open_hashes(void **state) {
  *state = read_hashes();
  return 0;
}

static int close_hashes(void **state) {
  json_decref(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nfc),
      cmocka_unit_test(test_words),
      cmocka_unit_test(test_splits),
  };
  return cmocka_run_group_tests(tests, open_hashes, close_hashes);
}
