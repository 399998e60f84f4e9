// Stop strings: what is held back and what comes out, against a search of the whole text, for every
// way to cut the text into pieces.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "engine/stop_strings.h"

enum { MAX_STRINGS = 4, MAX_TEXT = 64 };

static mgl_stop_matcher *make(const char *const *strings, uint32_t count) {
  mgl_stop_matcher *matcher = NULL;
  mgl_error err = {0};
  if (mgl_stop_matcher_create(strings, count, &matcher, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return matcher;
}

static uint32_t count_of(const char *const *strings) {
  uint32_t count = 0;
  while (count < MAX_STRINGS && strings[count] != NULL) {
    count++;
  }
  return count;
}

// Where the text ends: before the longest of the stop strings that end first; its length if none.
// *stop_bytes: of the stop string; 0 if none.
static size_t end_of(const char *text, const char *const *strings, size_t *stop_bytes) {
  for (size_t end = 1; end <= strlen(text); end++) {
    size_t longest = 0;
    for (uint32_t i = 0; i < count_of(strings); i++) {
      size_t bytes = strlen(strings[i]);
      if (bytes <= end && bytes > longest && memcmp(text + end - bytes, strings[i], bytes) == 0) {
        longest = bytes;
      }
    }
    if (longest > 0) {
      *stop_bytes = longest;
      return end - longest;
    }
  }
  *stop_bytes = 0;
  return strlen(text);
}

// Bytes at the end of text[0 .. bytes) that a stop string can begin with.
static size_t held_of(const char *text, size_t bytes, const char *const *strings) {
  for (size_t held = bytes; held > 0; held--) {
    for (uint32_t i = 0; i < count_of(strings); i++) {
      if (held < strlen(strings[i]) && memcmp(text + bytes - held, strings[i], held) == 0) {
        return held;
      }
    }
  }
  return 0;
}

// Feeds the text with a cut behind byte i where bit i of `cuts` is set.
static void check(const char *text, const char *const *strings, uint64_t cuts) {
  mgl_stop_matcher *matcher = make(strings, count_of(strings));
  mgl_text out = {0};
  size_t stop_bytes = 0;
  bool stopped = false;
  size_t end = end_of(text, strings, &stop_bytes);
  size_t bytes = strlen(text);
  for (size_t at = 0; at < bytes && !stopped;) {
    size_t piece = 1;
    while (at + piece < bytes && (cuts >> (at + piece - 1) & 1) == 0) {
      piece++;
    }
    stopped = mgl_stop_matcher_push(matcher, text + at, piece, &out);
    at += piece;
    if (!stopped) {
      assert_int_equal(out.bytes, at - held_of(text, at, strings));  // no less, and no more
    }
  }
  if (!stopped) {
    mgl_stop_matcher_finish(matcher, &out);
  }
  if (stopped != (stop_bytes > 0) || out.bytes != end || memcmp(out.data, text, end) != 0) {
    fail_msg("\"%s\", cuts %llx: found \"%.*s\", expected %zu bytes", text,
             (unsigned long long)cuts, (int)out.bytes, out.data == NULL ? "" : out.data, end);
  }
  if (stopped) {  // which appends the stop string itself
    mgl_stop_matcher_finish(matcher, &out);
    assert_int_equal(end + stop_bytes, out.bytes);
    assert_memory_equal(text, out.data, out.bytes);
  }
  mgl_text_free(&out);
  mgl_stop_matcher_destroy(matcher);
}

static void every_cut_gives_the_same_text(void **state) {
  (void)state;
  static const struct {
    const char *text;
    const char *strings[MAX_STRINGS];
  } cases[] = {
      {"one two three", {"two"}},
      {"one two three", {"four", "thr"}},
      {"one two three", {"e"}},
      {"nothing here", {"there"}},
      {"ends in a half\nUs", {"\nUser:"}},
      {"aaaaaab", {"aab"}},
      {"abababac", {"ababac"}},
      {"aabaaabaaac", {"aabaaac", "baaab"}},
      {"xabcdy", {"abcd", "bc", "c"}},   // the one that is complete first
      {"xabcdy", {"d", "abcd", "bcd"}},  // the longest of those
      {"abcabcabd", {"abcabd", "cabca"}},
      {"stop", {"stop"}},
      {"caf\xc3\xa9 \xe2\x82\xac", {"\xe2\x82\xac"}},           // characters of two and three bytes
      {"caf\xc3\xa9 \xe2\x82\xac", {"\xc3\xa8", "f\xc3\xa9"}},  // half of it is in the text
      {"caf\xc3\xa9", {"\xc3"}},                                // bytes that are no character
      {"abc", {NULL}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    for (uint64_t cuts = 0; cuts < UINT64_C(1) << (strlen(cases[i].text) - 1); cuts++) {
      check(cases[i].text, cases[i].strings, cuts);
    }
  }
}

static uint32_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

// Random texts of two letters, in which beginnings of stop strings abound.
static void random_texts_are_searched(void **state) {
  (void)state;
  uint64_t random = 5;
  for (int round = 0; round < 20000; round++) {
    char text[MAX_TEXT];
    char strings[MAX_STRINGS][8];
    const char *pointers[MAX_STRINGS] = {NULL};
    size_t bytes = 1 + next_random(&random) % (MAX_TEXT - 2);
    uint32_t count = 1 + next_random(&random) % MAX_STRINGS;
    for (size_t i = 0; i < bytes; i++) {
      text[i] = (char)('a' + next_random(&random) % 2);
    }
    text[bytes] = 0;
    for (uint32_t i = 0; i < count; i++) {
      size_t length = 1 + next_random(&random) % 7;
      for (size_t j = 0; j < length; j++) {
        strings[i][j] = (char)('a' + next_random(&random) % 2);
      }
      strings[i][length] = 0;
      pointers[i] = strings[i];
    }
    check(text, pointers, (uint64_t)next_random(&random) << 32 | next_random(&random));
  }
}

static void limits_are_checked(void **state) {
  (void)state;
  static char long_text[MGL_MAX_STOP_BYTES + 2];
  const char *many[MGL_MAX_STOP_STRINGS + 1];
  const char *one = "";
  mgl_stop_matcher *matcher = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_stop_matcher_create(&one, 1, &matcher, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "1 to 256 bytes, found 0"));
  memset(long_text, 'x', MGL_MAX_STOP_BYTES + 1);
  one = long_text;
  assert_int_equal(mgl_stop_matcher_create(&one, 1, &matcher, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "found 257"));
  for (uint32_t i = 0; i <= MGL_MAX_STOP_STRINGS; i++) {
    many[i] = "x";
  }
  assert_int_equal(mgl_stop_matcher_create(many, MGL_MAX_STOP_STRINGS + 1, &matcher, &err),
                   MGL_ERR_LIMIT);
  assert_null(matcher);
  // The longest is found, behind its own beginning.
  mgl_text out = {0};
  long_text[MGL_MAX_STOP_BYTES] = 0;
  matcher = make(&one, 1);
  assert_false(mgl_stop_matcher_push(matcher, "xxxy", 4, &out));
  assert_int_equal(out.bytes, 4);
  assert_true(mgl_stop_matcher_push(matcher, long_text, MGL_MAX_STOP_BYTES, &out));
  assert_int_equal(out.bytes, 4);
  mgl_text_free(&out);
  mgl_stop_matcher_destroy(matcher);
  int64_t live = mgl_alloc_live();
  for (uint64_t nth = 1; nth <= 2; nth++) {
    mgl_alloc_fail_nth(nth);
    assert_int_equal(mgl_stop_matcher_create(many, 3, &matcher, &err), MGL_ERR_MEMORY);
    mgl_alloc_fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_cut_gives_the_same_text),
      cmocka_unit_test(random_texts_are_searched),
      cmocka_unit_test(limits_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
