// Tests of the pre-tokeniser scanners: the matches of each pattern, joined by '|'. The comparison
// with the real regular expressions is in tools/make_tokenizer_cases.py.
#include "text/pretokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"

typedef struct split_case {
  const char *text;
  const char *gpt2;
  const char *qwen;
  const char *llama3;
} split_case;

static const split_case CASES[] = {
    {"Hello world", "Hello| world", "Hello| world", "Hello| world"},
    {"it's I'LL", "it|'s| I|'|LL", "it|'s| I|'LL", "it|'s| I|'LL"},
    {"'sx'\u017fx", "'s|x|'|\u017fx", "'s|x|'\u017f|x", "'s|x|'\u017f|x"},
    {"'r 'x", "'|r| '|x", "'r| '|x", "'r| '|x"},
    {"a12345", "a|12345", "a|1|2|3|4|5", "a|123|45"},
    {" 12", " 12", " |1|2", " |12"},
    {"x  y", "x| | y", "x| | y", "x| | y"},
    {"x \t\n\n  y", "x| \t\n\n | y", "x| \t\n\n| | y", "x| \t\n\n| | y"},
    {"x  ", "x|  ", "x|  ", "x|  "},
    {"x\n", "x|\n", "x|\n", "x|\n"},
    {"\ty\n-", "\t|y|\n|-", "\ty|\n|-", "\ty|\n|-"},
    {"\ny", "\n|y", "\n|y", "\n|y"},
    {" !?\r\n\r\n.", " !?|\r\n\r|\n|.", " !?\r\n\r\n|.", " !?\r\n\r\n|."},
    {"(word)", "(|word|)", "(word|)", "(word|)"},
    {"\u00a0w\u3000\u3000w", "\u00a0|w|\u3000|\u3000|w", "\u00a0w|\u3000|\u3000w",
     "\u00a0w|\u3000|\u3000w"},
    {"\x1c\x1f \u200b", "\x1c\x1f| \u200b", "\x1c\x1f| \u200b", "\x1c\x1f| \u200b"},
};

static void check(mgl_split_pattern pattern, const char *text, const char *expected) {
  mgl_text joined = {0};
  size_t bytes = strlen(text);
  for (size_t at = 0; at < bytes;) {
    size_t end = mgl_split_next(pattern, text, bytes, at);
    assert_true(end > at && end <= bytes);
    mgl_text_append_string(&joined, at == 0 ? "" : "|");
    mgl_text_append(&joined, text + at, end - at);
    at = end;
  }
  if (strcmp(joined.data, expected) != 0) {
    fail_msg("pattern %d: found \"%s\", expected \"%s\"", (int)pattern, joined.data, expected);
  }
  mgl_text_free(&joined);
}

static void test_matches(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    check(MGL_SPLIT_GPT2, CASES[i].text, CASES[i].gpt2);
    check(MGL_SPLIT_QWEN, CASES[i].text, CASES[i].qwen);
    check(MGL_SPLIT_LLAMA3, CASES[i].text, CASES[i].llama3);
  }
}

static void test_patterns_are_found_by_their_text(void **state) {
  (void)state;
  mgl_split_pattern pattern = MGL_SPLIT_GPT2;
  assert_true(mgl_split_pattern_find(
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      &pattern));
  assert_int_equal(pattern, MGL_SPLIT_LLAMA3);
  assert_false(mgl_split_pattern_find("\\s+", &pattern));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_matches),
      cmocka_unit_test(test_patterns_are_found_by_their_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
