// Text of tokens with stop texts: against a search in the whole text, however it was cut.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/text_output.h"
#include "base/alloc.h"

static mgl_tokenizer *tokenizer;

static int open_tokenizer(void **state) {
  mgl_error err = {0};
  (void)state;
  return mgl_tokenizer_open(MGL_DEMO_FOLDER "/tokenizer.json", &tokenizer, &err) == MGL_OK ? 0 : 1;
}

static int close_tokenizer(void **state) {
  (void)state;
  mgl_tokenizer_close(tokenizer);
  return 0;
}

static mgl_status create(const mgl_tokenizer *of, const char *const *stops, uint32_t count,
                         mgl_text_output **out, mgl_error *err) {
  const mgl_text_output_options options = {.stops = stops, .stop_count = count};
  return mgl_text_output_create(of, &options, out, err);
}

// Pushes every byte of `text` as a token of its own (or what the tokenizer makes of it), checks
// that text is held no longer than necessary, and returns all of it.
static bool run(const char *text, bool whole, const char *const *stops, uint32_t count,
                mgl_text *out) {
  mgl_text_output *output = NULL;
  mgl_token_list tokens = {0};
  mgl_error err = {0};
  bool stopped = false;
  size_t bytes = strlen(text);
  for (size_t i = 0; i < bytes && !whole; i++) {
    assert_int_equal(
        mgl_tokenizer_encode(tokenizer, text + i, 1, (mgl_encode_options){0}, &tokens, &err),
        MGL_OK);
  }
  if (whole) {
    assert_int_equal(
        mgl_tokenizer_encode(tokenizer, text, bytes, (mgl_encode_options){0}, &tokens, &err),
        MGL_OK);
  }
  assert_int_equal(create(tokenizer, stops, count, &output, &err), MGL_OK);
  for (size_t i = 0; i < tokens.count && !stopped; i++) {
    assert_int_equal(mgl_text_output_push(output, tokens.ids[i], out, &stopped, &err), MGL_OK);
  }
  if (!stopped) {
    assert_int_equal(mgl_text_output_finish(output, out, &stopped, &err), MGL_OK);
  }
  mgl_text_output_destroy(output);
  mgl_token_list_free(&tokens);
  return stopped;
}

static void the_stop_text_that_is_complete_first_counts(void **state) {
  static const struct {
    const char *text;
    const char *stops[3];
    const char *expected;
    bool stopped;
  } cases[] = {
      {"one two three", {"two"}, "one ", true},
      {"one two three", {"tow"}, "one two three", false},
      {"one two three", {"three four", "e f"}, "one two three", false},
      {"aaab", {"aab"}, "a", true},
      {"abcabd", {"abd"}, "abc", true},
      {"xabc", {"abc", "b"}, "xa", true},       // "b" is complete before "abc"
      {"xabc", {"c", "abc", "bc"}, "x", true},  // the longest of those that end together
      {"stop", {"stop"}, "", true},
      {"sto", {"stop"}, "sto", false},  // what was held comes in the end
      {"\n\n\n", {"\n\n"}, "", true},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t count = 0;
    while (count < 3 && cases[i].stops[count] != NULL) {
      count++;
    }
    for (int whole = 0; whole < 2; whole++) {
      mgl_text out = {0};
      bool stopped = run(cases[i].text, whole, cases[i].stops, count, &out);
      assert_string_equal(out.data == NULL ? "" : out.data, cases[i].expected);
      assert_int_equal(stopped, cases[i].stopped);
      mgl_text_free(&out);
    }
  }
}

// Random texts over two letters, so that overlaps are frequent.
static void random_texts_agree_with_a_search(void **state) {
  uint64_t random = 1;
  (void)state;
  for (int round = 0; round < 3000; round++) {
    char text[24];
    char stops[2][5];
    const char *const pointers[] = {stops[0], stops[1]};
    size_t bytes = 0;
    random = random * 6364136223846793005u + 1442695040888963407u;
    for (; bytes < 3 + (random >> 33) % 20; bytes++) {
      text[bytes] = (random >> (bytes + 5) & 1) != 0 ? 'a' : 'b';
    }
    text[bytes] = 0;
    for (int i = 0; i < 2; i++) {
      size_t length = 1 + (random >> (40 + 3 * i)) % 4;
      for (size_t j = 0; j < length; j++) {
        stops[i][j] = (random >> (50 + 4 * i + (int)j) & 1) != 0 ? 'a' : 'b';
      }
      stops[i][length] = 0;
    }
    size_t end = bytes + 1;
    size_t begin = bytes;
    for (int i = 0; i < 2; i++) {
      const char *found = strstr(text, stops[i]);
      size_t found_end = found == NULL ? SIZE_MAX : (size_t)(found - text) + strlen(stops[i]);
      if (found != NULL &&
          (found_end < end || (found_end == end && (size_t)(found - text) < begin))) {
        end = found_end;
        begin = (size_t)(found - text);
      }
    }
    mgl_text out = {0};
    bool stopped = run(text, round % 2 == 0, pointers, 2, &out);
    assert_int_equal(stopped, end <= bytes);
    assert_int_equal(out.bytes, begin);
    assert_memory_equal(out.data == NULL ? "" : out.data, text, begin);
    mgl_text_free(&out);
  }
}

static void text_is_held_no_longer_than_it_must(void **state) {
  static const char *const stops[] = {"END"};
  mgl_text_output *output = NULL;
  mgl_text out = {0};
  mgl_error err = {0};
  bool stopped = false;
  (void)state;
  assert_int_equal(create(tokenizer, stops, 1, &output, &err), MGL_OK);
  const char *pieces[] = {"E", "N", "x"};
  const char *expected[] = {"", "", "ENx"};
  for (size_t i = 0; i < 3; i++) {
    int32_t id = mgl_tokenizer_find(tokenizer, pieces[i]);
    assert_true(id >= 0);
    assert_int_equal(mgl_text_output_push(output, id, &out, &stopped, &err), MGL_OK);
    assert_string_equal(out.data == NULL ? "" : out.data, expected[i]);
  }
  mgl_text_free(&out);
  mgl_text_output_destroy(output);
}

static void limits_are_checked(void **state) {
  char long_stop[MGL_MAX_STOP_TEXT_BYTES + 2];
  const char *many[MGL_MAX_STOP_TEXTS + 1];
  mgl_text_output *output = NULL;
  mgl_error err = {0};
  (void)state;
  memset(long_stop, 'x', sizeof long_stop - 1);
  long_stop[sizeof long_stop - 1] = 0;
  for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
    many[i] = "x";
  }
  const char *const too_long[] = {long_stop};
  const char *const empty[] = {""};
  const char *const null[] = {NULL};
  assert_int_equal(create(tokenizer, too_long, 1, &output, &err), MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "stop text 0: expected 1 to 256 bytes, found 257"));
  assert_int_equal(create(tokenizer, empty, 1, &output, &err), MGL_ERR_LIMIT);
  assert_int_equal(create(tokenizer, null, 1, &output, &err), MGL_ERR_LIMIT);
  assert_int_equal(create(tokenizer, many, 17, &output, &err), MGL_ERR_LIMIT);
  assert_int_equal(create(tokenizer, many, 16, &output, &err), MGL_OK);
  mgl_text_output_destroy(output);
  assert_int_equal(create(NULL, many, 1, &output, &err), MGL_ERR_UNSUPPORTED);
  assert_int_equal(create(NULL, NULL, 0, &output, &err), MGL_OK);
  mgl_text out = {0};
  bool stopped = true;
  assert_int_equal(mgl_text_output_push(output, 5, &out, &stopped, &err), MGL_OK);
  assert_int_equal(mgl_text_output_finish(output, &out, &stopped, &err), MGL_OK);
  assert_int_equal(out.bytes, 0);
  assert_false(stopped);
  mgl_text_output_destroy(output);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_stop_text_that_is_complete_first_counts),
      cmocka_unit_test(random_texts_agree_with_a_search),
      cmocka_unit_test(text_is_held_no_longer_than_it_must),
      cmocka_unit_test(limits_are_checked),
  };
  return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
