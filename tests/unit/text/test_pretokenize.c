// Tests of the pre-tokeniser scanners: the matches of each pattern, joined by '|', and what stands
// between matches in <>. The comparison with the real regular expressions is in
// tools/make_tokenizer_cases.py and test_code_points.c.
#include "text/pretokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/text.h"
#include "slow_build.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define WHITESPACE "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAPITALS "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PUNCTUATION "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define GPT2 CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits)                                                \
  "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits \
  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WHITESPACE
#define O200K                                                                           \
  CAPITALS "*" SMALL "+(?i:" CONTRACTIONS ")?|" CAPITALS "+" SMALL "*(?i:" CONTRACTIONS \
           ")?|"                                                                        \
           "\\p{N}{1,3}" PUNCTUATION WHITESPACE
#define O200K_ASCII                                                                     \
  CAPITALS "*" SMALL "+(" JS_CONTRACTIONS ")?|" CAPITALS "+" SMALL "*(" JS_CONTRACTIONS \
           ")?|"                                                                        \
           "\\p{N}{1,3}" PUNCTUATION WHITESPACE
#define JS_CONTRACTIONS "'s|'S|'t|'T|'re|'rE|'Re|'RE|'ve|'vE|'Ve|'VE|'m|'M|'ll|'lL|'Ll|'LL|'d|'D"
#define TEKKEN CAPITALS "*" SMALL "+|" CAPITALS "+" SMALL "*|\\p{N}" PUNCTUATION WHITESPACE
#define DEEPSEEK3                                                                    \
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?" \
  "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"

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

// The other patterns.
static const struct {
  const char *regex;
  const char *text;
  const char *expected;
} MORE_CASES[] = {
    {O200K, "helloWorld ABCdef NASA's", "hello|World| ABCdef| NASA's"},
    {O200K, "It'LLx we\u2019re x'\u017f", "It'LL|x| we|\u2019re| x'\u017f"},
    {O200K_ASCII, "It'LLx x'\u017f", "It'LL|x| x|'\u017f"},
    {O200K, "\u65e5AB\u65e5AB c", "\u65e5AB\u65e5|AB| c"},
    {O200K, "\u0301AB", "\u0301|AB"},  // a mark is a small letter before capitals
    {O200K, "\u0301\u0301AB", "\u0301\u0301|AB"},
    {O200K, "!\u0301a!!\u0301a", "!\u0301a|!!\u0301|a"},
    {O200K, "A\u01c5\u02b0b", "A\u01c5\u02b0b"},  // titlecase and modifier letters
    {O200K, "12345 6", "123|45| |6"},
    {O200K, "a //\r\n/\n/x", "a| //\r\n/\n/|x"},
    {O200K, " \t\n  x", " \t\n| | x"},
    {TEKKEN, "It's 12AB/", "It|'s| |1|2|AB|/"},
    {TEKKEN, "_snake_caseB", "_snake|_case|B"},
    {DEEPSEEK3, "it's (x) 1a 12 b\u0301", "it|'s| (|x|)| |1a| |<12> b\u0301"},
    {DEEPSEEK3, "12a", "<1>2a"},
    {DEEPSEEK3, "a\x01\x02 b\x03", "a|<\x01\x02> b|<\x03>"},
    {DEEPSEEK3, "x  !?\n\ny \n z", "x| | !?\n\n|y| \n| z"},
    {DEEPSEEK3, "_abc\u00e9 $$a\n", "_abc|\u00e9| $$|a|\n"},
    {"\\p{N}{1,3}", "a12345b", "<a>123|45|<b>"},
    {"[\r\n]", "a\r\nb\n", "<a>\r|\n|<b>\n"},
    {"[\\r\\n]+", "a\r\nb\n", "<a>\r\n|<b>\n"},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "a\u65e5\u672c\u306e\u9fa6\u4e00",
     "<a>\u65e5\u672c\u306e|<\u9fa6>\u4e00"},
    {"\\s?[!-/:-~\uff01-\uff0f\u2018-\u201f\u3000-\u3002]+", "a !b  ?\u3000\u3002 \u3000c",
     "a| !b|< > ?\u3000\u3002| \u3000c"},
    {"\\s?\\p{L}+", "ab  cd1", "ab|< > cd|<1>"},
    {"[\\p{S}\\-\\]a-c]", "ad-]+", "a|<d>-|]|+"},
    {"\\s+$", "a  b \t", "<a  b> \t"},
    {"\\s+$", " \n \n  x", " \n |<\n  x>"},
    {"\\s+$", "\n", "\n"},
};

static void check(const char *regex, const char *text, const char *expected) {
  mgl_text joined = {0};
  size_t bytes = strlen(text);
  mgl_split_pattern pattern;
  assert_true(mgl_split_pattern_find(regex, &pattern));
  size_t start = 0;
  size_t end = 0;
  bool open = false;
  while (end < bytes) {
    size_t at = end;
    bool found = mgl_split_next(&pattern, text, bytes, at, &start, &end);
    assert_true(!found || (start >= at && end > start && end <= bytes));
    start = found ? start : bytes;
    end = found ? end : bytes;
    mgl_text_append_string(&joined, open ? "|" : "");
    if (start > at) {
      mgl_text_format(&joined, "<%.*s>", (int)(start - at), text + at);
    }
    mgl_text_append(&joined, text + start, end - start);
    open = true;
  }
  if (strcmp(joined.data, expected) != 0) {
    fail_msg("pattern %s: found \"%s\", expected \"%s\"", regex, joined.data, expected);
  }
  mgl_text_free(&joined);
}

static void test_matches(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    check(GPT2, CASES[i].text, CASES[i].gpt2);
    check(LLAMA3(""), CASES[i].text, CASES[i].qwen);
    check(LLAMA3("{1,3}"), CASES[i].text, CASES[i].llama3);
  }
  for (size_t i = 0; i < sizeof MORE_CASES / sizeof MORE_CASES[0]; i++) {
    check(MORE_CASES[i].regex, MORE_CASES[i].text, MORE_CASES[i].expected);
  }
}

static void test_patterns_are_found_by_their_text(void **state) {
  (void)state;
  static const char *const UNKNOWN[] = {
      "",         "[",        "[]",          "[a",        "[^a]",   "[a-]", "[-a]",     "[a&&b]",
      "[[a]]",    "[b-a]",    "[\\w]",       "[\\",       "[a\\",   "\\s?", "\\p{X}",   "\\p{L}*",
      "\\p{L}|a", "[a]{1,2}", "\\s?\\s?[a]", "[\\u4e00]", "[\\d]+", "a",    "\\p{L}+x", "\\d",
  };
  mgl_split_pattern pattern;
  assert_true(mgl_split_pattern_find(LLAMA3("{1,3}"), &pattern));
  assert_int_equal(pattern.kind, MGL_SPLIT_LLAMA3);
  assert_true(mgl_split_pattern_find("[c-ea-cz\\n]+", &pattern));
  assert_int_equal(pattern.kind, MGL_SPLIT_RUN);
  assert_int_equal(pattern.range_count, 3);  // \n, a-e, z
  for (size_t i = 0; i < sizeof UNKNOWN / sizeof UNKNOWN[0]; i++) {
    if (mgl_split_pattern_find(UNKNOWN[i], &pattern)) {
      fail_msg("\"%s\" was taken for a pattern of ours", UNKNOWN[i]);
    }
  }
  char many[4 * MGL_SPLIT_MAX_RANGES + 8] = "[";
  for (size_t i = 0; i <= MGL_SPLIT_MAX_RANGES; i++) {
    many[1 + i] = 'a';
  }
  strcat(many, "]");
  assert_false(mgl_split_pattern_find(many, &pattern));
  many[MGL_SPLIT_MAX_RANGES + 1] = ']';
  many[MGL_SPLIT_MAX_RANGES + 2] = 0;
  assert_true(mgl_split_pattern_find(many, &pattern));
}

// One character a megabyte long, and what two kinds of characters do side by side.
static void test_time_is_linear(void **state) {
  (void)state;
  static const char *const REGEXES[] = {
      GPT2,          LLAMA3("{1,3}"),    O200K,         TEKKEN, DEEPSEEK3, "\\s+$",
      "\\s?\\p{L}+", "[\u4e00-\u9fa5]+", "\\p{N}{1,3}",
  };
  static const char *const UNITS[] = {
      "a", "A",    " ",       "\n",  "1",       "\u0301", "\u65e5", "'",
      "!", "\x01", "\u65e5A", " \n", "\u0301A", "! ",     "1 ",     "'s",
  };
  enum { TEXT_BYTES = 1 << 20 };
  char *text = mgl_alloc(TEXT_BYTES);
  assert_non_null(text);
  double slowest = 0;
  for (size_t u = 0; u < sizeof UNITS / sizeof UNITS[0]; u++) {
    size_t unit_bytes = strlen(UNITS[u]);
    size_t bytes = TEXT_BYTES / unit_bytes * unit_bytes;
    for (size_t i = 0; i < bytes; i++) {
      text[i] = UNITS[u][i % unit_bytes];
    }
    for (size_t r = 0; r < sizeof REGEXES / sizeof REGEXES[0]; r++) {
      mgl_split_pattern pattern;
      assert_true(mgl_split_pattern_find(REGEXES[r], &pattern));
      clock_t before = clock();
      size_t start = 0;
      for (size_t end = 0; mgl_split_next(&pattern, text, bytes, end, &start, &end);) {
        assert_true(end <= bytes);
      }
      double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
      slowest = seconds > slowest ? seconds : slowest;
      if (seconds > LINEAR_SECONDS) {
        fail_msg("1 MiB of \"%s\" took %.2f s to cut by %s", UNITS[u], seconds, REGEXES[r]);
      }
    }
  }
  mgl_free(text);
  print_message("1 MiB of one or two characters takes at most %.3f s to cut\n", slowest);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_matches),
      cmocka_unit_test(test_patterns_are_found_by_their_text),
      cmocka_unit_test(test_time_is_linear),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
