// Tests of the tokeniser: the committed sample of the `tokenizers` library's results
// (tools/make_tokenizer_cases.py), streaming, hostile texts, broken files, failing allocations.
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/json.h"
#include "slow_build.h"
#include "support/failing_allocations.h"
#include "text/unicode.h"

enum { HOSTILE_BYTES = SLOW_BUILD ? 1 << 17 : 1 << 20 };  // what is linear shows in either

static const char *const FAMILIES[] = {"qwen",      "llama3", "gpt2",     "llama2", "mistral",
                                       "metaspace", "added",  "o200k",    "tekken", "deepseek",
                                       "deepseek3", "gemma",  "behaviors"};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof FAMILIES[0] };

static mgl_tokenizer *open_family(const char *family) {
  char path[512];
  mgl_error err = {0};
  mgl_tokenizer *tokenizer = NULL;
  (void)snprintf(path, sizeof path, "%s/tokenizer/%s.json", MGL_TEST_DATA, family);
  if (mgl_tokenizer_open(path, &tokenizer, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return tokenizer;
}

static json_t *read_cases(const char *family) {
  char path[512];
  mgl_error err = {0};
  json_t *cases = NULL;
  (void)snprintf(path, sizeof path, "%s/tokenizer/%s.cases.json", MGL_TEST_DATA, family);
  if (mgl_json_read(path, 1 << 24, &cases, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return cases;
}

static mgl_token_list encode(const mgl_tokenizer *tokenizer, const char *text, size_t bytes,
                             bool add_special, bool plain_special) {
  mgl_error err = {0};
  mgl_token_list list = {0};
  mgl_encode_options options = {.add_special = add_special, .plain_special = plain_special};
  if (mgl_tokenizer_encode(tokenizer, text, bytes, options, &list, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return list;
}

// --- the committed sample ------------------------------------------------------------------------

static void assert_ids(const mgl_token_list *list, const json_t *expected, const char *where,
                       size_t index) {
  bool same = list->count == json_array_size(expected);
  for (size_t i = 0; i < list->count && same; i++) {
    same = list->ids[i] == json_integer_value(json_array_get(expected, i));
  }
  if (!same) {
    fail_msg("%s: encode case %zu differs", where, index);
  }
}

// Decodes whole and token by token, where each part must be whole characters.
static void assert_decoded(const mgl_tokenizer *tokenizer, const json_t *ids, bool skip,
                           const json_t *expected, const char *where, size_t index) {
  mgl_error err = {0};
  mgl_token_list list = {0};
  mgl_text whole = {0};
  mgl_text streamed = {0};
  mgl_detokenizer *detokenizer = NULL;
  size_t count = json_array_size(ids);
  list.ids = mgl_alloc(count * sizeof *list.ids);
  assert_non_null(list.ids);
  assert_int_equal(mgl_detokenizer_create(tokenizer, skip, &detokenizer, &err), MGL_OK);
  for (size_t i = 0; i < count; i++) {
    list.ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    size_t before = streamed.bytes;
    assert_int_equal(mgl_detokenizer_push(detokenizer, list.ids[i], &streamed, &err), MGL_OK);
    size_t added = streamed.bytes - before;
    assert_true(added == 0 || mgl_utf8_valid_prefix(streamed.data + before, added) == added);
  }
  assert_int_equal(mgl_detokenizer_finish(detokenizer, &streamed, &err), MGL_OK);
  assert_int_equal(mgl_tokenizer_decode(tokenizer, list.ids, count, skip, &whole, &err), MGL_OK);
  size_t bytes = json_string_length(expected);
  if (whole.bytes != bytes || streamed.bytes != bytes ||
      (bytes != 0 && (memcmp(whole.data, json_string_value(expected), bytes) != 0 ||
                      memcmp(streamed.data, json_string_value(expected), bytes) != 0))) {
    fail_msg("%s: decode case %zu (skip_special %d) differs", where, index, skip);
  }
  mgl_detokenizer_destroy(detokenizer);
  mgl_token_list_free(&list);
  mgl_text_free(&whole);
  mgl_text_free(&streamed);
}

static size_t read_hex(const char *hex, char *out, size_t capacity) {
  size_t bytes = strlen(hex) / 2;
  assert_true(bytes <= capacity);
  for (size_t i = 0; i < bytes; i++) {
    unsigned value = 0;
    assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
    out[i] = (char)value;
  }
  return bytes;
}

static void check_family_sample(const char *family) {
  mgl_tokenizer *tokenizer = open_family(family);
  json_t *cases = read_cases(family);
  const json_t *encodings = json_object_get(cases, "encode");
  assert_true(json_array_size(encodings) > 100);
  for (size_t i = 0; i < json_array_size(encodings); i++) {
    const json_t *one = json_array_get(encodings, i);
    const json_t *text = json_array_get(one, 0);
    char damaged[512];
    const char *data = json_string_value(text);
    size_t bytes = json_string_length(text);
    if (json_is_object(text)) {
      bytes = read_hex(json_string_value(json_object_get(text, "hex")), damaged, sizeof damaged);
      data = damaged;
    }
    mgl_token_list list = encode(tokenizer, data, bytes, json_is_true(json_array_get(one, 1)),
                                 json_is_true(json_array_get(one, 2)));
    const json_t *ids = json_array_get(one, 3);
    assert_ids(&list, ids, family, i);
    mgl_token_list_free(&list);
    assert_decoded(tokenizer, ids, true, json_array_get(one, 4), family, i);
    assert_decoded(tokenizer, ids, false, json_array_get(one, 5), family, i);
  }
  const json_t *decodings = json_object_get(cases, "decode");
  assert_true(json_array_size(decodings) > 10);
  for (size_t i = 0; i < json_array_size(decodings); i++) {
    const json_t *one = json_array_get(decodings, i);
    const json_t *ids = json_array_get(one, 0);
    assert_decoded(tokenizer, ids, true, json_array_get(one, 1), family, i);
    assert_decoded(tokenizer, ids, false, json_array_get(one, 2), family, i);
  }
  json_decref(cases);
  mgl_tokenizer_close(tokenizer);
}

static void test_sample(void **state) {
  (void)state;
  for (size_t i = 0; i < FAMILY_COUNT; i++) {
    check_family_sample(FAMILIES[i]);
  }
}

// --- streaming, special tokens, small things -----------------------------------------------------

static void test_streaming_waits_for_whole_characters(void **state) {
  (void)state;
  static const char TEXT[] = "日本語 🙂";
  static const char *const BOTH[] = {"qwen", "llama2"};
  for (size_t f = 0; f < 2; f++) {
    mgl_error err = {0};
    mgl_tokenizer *tokenizer = open_family(BOTH[f]);
    mgl_token_list list = encode(tokenizer, TEXT, strlen(TEXT), false, false);
    assert_true(list.count > 8);  // the characters are cut into tokens
    mgl_detokenizer *detokenizer = NULL;
    mgl_text out = {0};
    assert_int_equal(mgl_detokenizer_create(tokenizer, true, &detokenizer, &err), MGL_OK);
    for (int round = 0; round < 2; round++) {  // finish resets
      mgl_text_clear(&out);
      size_t silent = 0;
      for (size_t i = 0; i < list.count; i++) {
        size_t before = out.bytes;
        assert_int_equal(mgl_detokenizer_push(detokenizer, list.ids[i], &out, &err), MGL_OK);
        assert_int_equal(mgl_utf8_valid_prefix(out.data == NULL ? "" : out.data, out.bytes),
                         out.bytes);
        silent += out.bytes == before;
      }
      assert_true(silent > 0);
      assert_int_equal(mgl_detokenizer_finish(detokenizer, &out, &err), MGL_OK);
      assert_string_equal(out.data, TEXT);
    }
    // Half a character at the end becomes U+FFFD.
    mgl_token_list half = encode(tokenizer, "\xf0\x9f\x99\x82", 4, false, false);
    size_t at = f == 0 ? 0 : half.count - 4;  // byte fallback: behind the metaspace
    mgl_text_clear(&out);
    assert_int_equal(mgl_detokenizer_push(detokenizer, half.ids[at], &out, &err), MGL_OK);
    assert_int_equal(out.bytes, 0);
    assert_int_equal(mgl_detokenizer_finish(detokenizer, &out, &err), MGL_OK);
    assert_string_equal(out.data, "\xef\xbf\xbd");
    mgl_token_list_free(&half);
    mgl_detokenizer_destroy(detokenizer);
    mgl_text_free(&out);
    mgl_token_list_free(&list);
    mgl_tokenizer_close(tokenizer);
  }
}

static void test_special_tokens(void **state) {
  (void)state;
  static const char TEXT[] = "<|im_start|>a<think>";
  mgl_tokenizer *tokenizer = open_family("qwen");
  int32_t start = mgl_tokenizer_find(tokenizer, "<|im_start|>");
  int32_t think = mgl_tokenizer_find(tokenizer, "<think>");
  assert_true(start >= 0 && think >= 0);
  assert_int_equal(mgl_tokenizer_find(tokenizer, "no such token"), -1);
  assert_int_equal(mgl_tokenizer_find(tokenizer, ""), -1);
  assert_int_equal(mgl_tokenizer_vocab_size(tokenizer),
                   mgl_tokenizer_find(tokenizer, "</think>") + 1);

  mgl_token_list list = encode(tokenizer, TEXT, strlen(TEXT), false, false);
  assert_int_equal(list.count, 3);
  assert_int_equal(list.ids[0], start);
  assert_int_equal(list.ids[2], think);
  mgl_token_list_free(&list);

  // plain_special: the special token is text; <think> is an added token, but not a special one.
  list = encode(tokenizer, TEXT, strlen(TEXT), false, true);
  assert_true(list.count > 3);
  for (size_t i = 0; i < list.count; i++) {
    assert_int_not_equal(list.ids[i], start);
  }
  assert_int_equal(list.ids[list.count - 1], think);
  mgl_token_list_free(&list);
  mgl_tokenizer_close(tokenizer);
}

// A token that strips to the left and lies in whitespace that the token before it took is no token
// any more; one that does not strip to the left counts twice, as in the library.
static void test_tokens_in_stripped_space(void **state) {
  (void)state;
  static const char JSON[] =
      "{\"added_tokens\":[{\"id\":1,\"content\":\"<a>\",\"rstrip\":true,\"special\":true},"
      "{\"id\":2,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true,\"special\":true},"
      "{\"id\":3,\"content\":\"\\t\",\"special\":true}],"
      "\"model\":{\"vocab\":{\"x\":0},\"merges\":[]}}";
  static const struct {
    const char *text;
    int32_t ids[4];
    size_t count;
  } CASES[] = {
      {"x<a> \n x", {0, 1, 0}, 3},
      {"x<a> \n\n x", {0, 1, 0}, 3},
      {"x \n \n x", {0, 2, 0}, 3},
      {"x<a>\tx", {0, 1, 3, 0}, 4},
  };
  mgl_error err = {0};
  mgl_tokenizer *tokenizer = NULL;
  if (mgl_tokenizer_parse(JSON, strlen(JSON), "stripped", &tokenizer, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    mgl_token_list list = encode(tokenizer, CASES[i].text, strlen(CASES[i].text), false, false);
    if (list.count != CASES[i].count ||
        memcmp(list.ids, CASES[i].ids, list.count * sizeof *list.ids) != 0) {
      fail_msg("case %zu: %zu tokens, or others than expected", i, list.count);
    }
    mgl_token_list_free(&list);
  }
  mgl_tokenizer_close(tokenizer);
}

static void test_encode_appends(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_tokenizer *tokenizer = open_family("llama3");
  mgl_token_list list = encode(tokenizer, "a", 1, true, false);
  assert_int_equal(list.count, 2);
  assert_int_equal(list.ids[0], mgl_tokenizer_find(tokenizer, "<|begin_of_text|>"));
  mgl_encode_options none = {0};
  assert_int_equal(mgl_tokenizer_encode(tokenizer, "", 0, none, &list, &err), MGL_OK);
  assert_int_equal(mgl_tokenizer_encode(tokenizer, NULL, 0, none, &list, &err), MGL_OK);
  assert_int_equal(list.count, 2);
  assert_int_equal(mgl_tokenizer_encode(tokenizer, "a", 1, none, &list, &err), MGL_OK);
  assert_int_equal(list.count, 3);
  assert_int_equal(list.ids[2], list.ids[1]);
  mgl_token_list_free(&list);

  mgl_text out = {0};
  int32_t negative = -1;
  assert_int_equal(mgl_tokenizer_decode(tokenizer, &negative, 1, false, &out, &err),
                   MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "token id -1"));
  int32_t huge = INT32_MAX;  // as in the library, ids beyond the vocabulary decode to nothing
  assert_int_equal(mgl_tokenizer_decode(tokenizer, &huge, 1, false, &out, &err), MGL_OK);
  assert_int_equal(out.bytes, 0);
  mgl_text_free(&out);
  mgl_tokenizer_close(tokenizer);
}

// --- hostile texts -------------------------------------------------------------------------------

static double cpu_seconds(void) {
  struct timespec now;
  assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now), 0);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_hostile_texts(void **state) {
  (void)state;
  static const char *const UNITS[] = {
      "a",
      " ",
      "\n",
      "\xcd\xa0\xcc\xb4",  // U+0360 U+0334: marks in descending order of class
      "\xf0\x9f\x99\x82",
      "'",
      "1",
      "\xff",
      " \n",
      "<|im_start|",
      "\xe3\x80\x80",  // U+3000, which strips to the right in the family `added`
      "<left> ",
      "\xe2\x96\x81",
      "\xe1\x84\x80\xe1\x85\xa1",  // Hangul jamo
  };
  // What other families have that these lack is in test_pretokenize.c.
  static const char *const HOSTILE_FAMILIES[] = {"qwen",  "llama2",   "mistral", "metaspace",
                                                 "added", "deepseek", "gemma",   "behaviors"};
  char *text = mgl_alloc(HOSTILE_BYTES);
  assert_non_null(text);
  for (size_t f = 0; f < sizeof HOSTILE_FAMILIES / sizeof HOSTILE_FAMILIES[0]; f++) {
    mgl_tokenizer *tokenizer = open_family(HOSTILE_FAMILIES[f]);
    for (size_t u = 0; u < sizeof UNITS / sizeof UNITS[0]; u++) {
      size_t unit_bytes = strlen(UNITS[u]);
      for (size_t i = 0; i < HOSTILE_BYTES; i++) {
        text[i] = UNITS[u][i % unit_bytes];
      }
      mgl_error err = {0};
      mgl_text out = {0};
      double start = cpu_seconds();
      mgl_token_list list = encode(tokenizer, text, HOSTILE_BYTES, true, false);
      double encoded = cpu_seconds();
      assert_int_equal(mgl_tokenizer_decode(tokenizer, list.ids, list.count, false, &out, &err),
                       MGL_OK);
      double decoded = cpu_seconds();
      if (encoded - start > LINEAR_SECONDS || decoded - encoded > LINEAR_SECONDS) {
        fail_msg("%s: %d bytes of text %zu took %.2f s to encode and %.2f s to decode",
                 HOSTILE_FAMILIES[f], HOSTILE_BYTES, u, encoded - start, decoded - encoded);
      }
      mgl_text_free(&out);
      mgl_token_list_free(&list);
    }
    mgl_tokenizer_close(tokenizer);
  }
  mgl_free(text);
}

// --- broken files --------------------------------------------------------------------------------

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"
#define WITH_MODEL(member) "{" MODEL "," member "}"
#define ADDED(fields) WITH_MODEL("\"added_tokens\":[{" fields "}]")

typedef struct broken_file {
  const char *json;
  mgl_status status;
  const char *message;  // a part of it
} broken_file;

static const broken_file BROKEN[] = {
    {"", MGL_ERR_FORMAT, "expected JSON"},
    {"{\"model\":", MGL_ERR_FORMAT, "expected JSON"},
    {"[]", MGL_ERR_FORMAT, "expected a JSON object"},
    {"{}", MGL_ERR_FORMAT, "\"model\" is missing"},
    {"{\"model\":3}", MGL_ERR_FORMAT, "\"model\": expected an object"},
    {"{\"model\":{\"type\":\"Unigram\"}}", MGL_ERR_UNSUPPORTED, "\"Unigram\""},
    {"{\"model\":{\"type\":\"BPE\"}}", MGL_ERR_FORMAT, "\"vocab\": expected 1 to 1048576 tokens"},
    {"{\"model\":{\"vocab\":[]}}", MGL_ERR_FORMAT, "\"vocab\": expected an object"},
    {"{\"model\":{\"vocab\":{\"a\":0}}}", MGL_ERR_FORMAT, "\"merges\": expected an array"},
    {"{\"model\":{\"vocab\":{\"a\":\"0\"}}}", MGL_ERR_FORMAT, "\"a\": expected an integer id"},
    {"{\"model\":{\"vocab\":{\"a\":1.5}}}", MGL_ERR_FORMAT, "\"a\": expected an integer id"},
    {"{\"model\":{\"vocab\":{\"a\":-1}}}", MGL_ERR_FORMAT, "out of range"},
    {"{\"model\":{\"vocab\":{\"a\":1048576}}}", MGL_ERR_FORMAT, "out of range"},
    {"{\"model\":{\"vocab\":{\"a\":99999999999999999999}}}", MGL_ERR_FORMAT, "too big integer"},
    {"{\"model\":{\"vocab\":{\"a\":7,\"b\":7}}}", MGL_ERR_FORMAT, "\"a\" and \"b\" both have id 7"},
    {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1}}}", MGL_ERR_FORMAT, "duplicate"},
    {"{\"model\":{" VOCAB ",\"merges\":[\"a c\"]}}", MGL_ERR_FORMAT, "merge 0 names \"c\""},
    {"{\"model\":{" VOCAB ",\"merges\":[[\"b\",\"a\"]]}}", MGL_ERR_FORMAT, "merge 0 names \"ba\""},
    {"{\"model\":{" VOCAB ",\"merges\":[\"a b\",\"ab\"]}}", MGL_ERR_FORMAT, "merge 1: expected"},
    {"{\"model\":{" VOCAB ",\"merges\":[\"a b c\"]}}", MGL_ERR_FORMAT, "merge 0: expected"},
    {"{\"model\":{" VOCAB ",\"merges\":[[\"a\"]]}}", MGL_ERR_FORMAT, "merge 0: expected"},
    {"{\"model\":{" VOCAB ",\"merges\":[[\"a\",1]]}}", MGL_ERR_FORMAT, "merge 0: expected"},
    {"{\"model\":{" VOCAB ",\"merges\":[null]}}", MGL_ERR_FORMAT, "merge 0: expected"},
    {"{\"model\":{\"dropout\":0.1}}", MGL_ERR_UNSUPPORTED, "\"dropout\" 0.1"},
    {"{\"model\":{\"end_of_word_suffix\":\"</w>\"}}", MGL_ERR_UNSUPPORTED, "end_of_word_suffix"},
    {"{\"model\":{\"continuing_subword_prefix\":\"##\"}}", MGL_ERR_UNSUPPORTED, "\"##\""},
    {"{\"model\":{\"byte_fallback\":1}}", MGL_ERR_FORMAT, "\"byte_fallback\": expected true"},
    {"{\"version\":\"2.0\"}", MGL_ERR_UNSUPPORTED, "version \"2.0\""},
    {WITH_MODEL("\"normalizer\":{\"type\":\"NFKC\"}"), MGL_ERR_UNSUPPORTED, "\"NFKC\""},
    {WITH_MODEL("\"normalizer\":{}"), MGL_ERR_FORMAT, "normalizer: \"type\" is missing"},
    {WITH_MODEL("\"normalizer\":\"NFC\""), MGL_ERR_FORMAT, "\"normalizer\": expected an object"},
    {WITH_MODEL("\"normalizer\":{\"type\":\"Sequence\"}"), MGL_ERR_FORMAT, "\"normalizers\""},
    {WITH_MODEL("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[1]}"), MGL_ERR_FORMAT,
     "expected objects"},
    {WITH_MODEL("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},"
                "\"content\":\"x\"}"),
     MGL_ERR_UNSUPPORTED, "\" +\""},
    {WITH_MODEL("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},"
                "\"content\":\"x\"}"),
     MGL_ERR_FORMAT, "empty pattern"},
    {WITH_MODEL("\"normalizer\":{\"type\":\"Replace\",\"content\":\"x\"}"), MGL_ERR_FORMAT,
     "\"pattern\""},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]*\"},"
                "\"behavior\":\"Isolated\",\"invert\":false}"),
     MGL_ERR_UNSUPPORTED, "\"[a-z]*\""},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}"), MGL_ERR_UNSUPPORTED,
     "\"BertPreTokenizer\""},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"),
     MGL_ERR_FORMAT, "expected one character"},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\","
                "\"prepend_scheme\":\"last\"}"),
     MGL_ERR_UNSUPPORTED, "\"last\""},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                "\"behavior\":\"Merged\"}"),
     MGL_ERR_UNSUPPORTED, "the behavior \"Merged\""},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},"
                "\"behavior\":\"Isolated\"}"),
     MGL_ERR_FORMAT, "an empty string"},
    {"{\"model\":{\"type\":\"WordPiece\"}}", MGL_ERR_UNSUPPORTED, "\"WordPiece\""},
    {WITH_MODEL("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                "{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}"),
     MGL_ERR_UNSUPPORTED, "behind ByteLevel"},
    {WITH_MODEL("\"decoder\":{\"type\":\"WordPiece\"}"), MGL_ERR_UNSUPPORTED, "\"WordPiece\""},
    {WITH_MODEL("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"),
     MGL_ERR_UNSUPPORTED, "\"Strip\""},
    {WITH_MODEL("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
                "{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}]}"),
     MGL_ERR_UNSUPPORTED, "Strip at the end"},
    {WITH_MODEL("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
                "{\"type\":\"ByteFallback\"}]}"),
     MGL_ERR_UNSUPPORTED, "\"ByteFallback\""},
    {WITH_MODEL("\"post_processor\":{\"type\":\"BertProcessing\"}"), MGL_ERR_UNSUPPORTED,
     "\"BertProcessing\""},
    {WITH_MODEL("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"),
     MGL_ERR_UNSUPPORTED, "lacks the sequence A"},
    {WITH_MODEL("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                "{\"SpecialToken\":{\"id\":\"s\"}}]}"),
     MGL_ERR_FORMAT, "no array \"ids\" for \"s\""},
    {WITH_MODEL("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                "{\"SpecialToken\":{\"id\":\"s\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                "\"special_tokens\":{\"s\":{\"ids\":[9]}}}"),
     MGL_ERR_FORMAT, "id 9 is no token"},
    {WITH_MODEL("\"added_tokens\":{}"), MGL_ERR_FORMAT, "added_tokens: expected an array"},
    {WITH_MODEL("\"added_tokens\":[3]"), MGL_ERR_FORMAT, "added_tokens: expected objects"},
    {ADDED("\"id\":3"), MGL_ERR_FORMAT, "\"content\" is missing"},
    {ADDED("\"content\":\"x\""), MGL_ERR_FORMAT, "\"id\" is missing"},
    {ADDED("\"content\":\"x\",\"id\":4000000000"), MGL_ERR_FORMAT, "\"id\": expected 0 to"},
    {ADDED("\"content\":\"x\",\"id\":9"), MGL_ERR_FORMAT, "has id 9, expected 3"},
    {ADDED("\"content\":\"ab\",\"id\":3"), MGL_ERR_FORMAT, "has id 3, expected 2"},
    {ADDED("\"content\":\"x\",\"id\":3,\"special\":\"yes\""), MGL_ERR_FORMAT, "\"special\""},
    {ADDED("\"content\":\"x\",\"id\":3},{\"content\":\"x\",\"id\":3"), MGL_ERR_FORMAT,
     "listed twice"},
};

static void test_broken_files(void **state) {
  (void)state;
  int64_t live = mgl_alloc_live();
  for (size_t i = 0; i < sizeof BROKEN / sizeof BROKEN[0]; i++) {
    mgl_error err = {0};
    mgl_tokenizer *tokenizer = NULL;
    mgl_status status = mgl_tokenizer_parse(BROKEN[i].json, strlen(BROKEN[i].json),
                                            "tokenizer.json", &tokenizer, &err);
    assert_null(tokenizer);
    if (status != BROKEN[i].status || strstr(err.text, BROKEN[i].message) == NULL ||
        strstr(err.text, "tokenizer.json") != err.text) {
      fail_msg("case %zu: %s\nstatus %s, message: %s", i, BROKEN[i].json, mgl_status_name(status),
               err.text);
    }
  }
  assert_int_equal(mgl_alloc_live(), live);
}

static void test_limits(void **state) {
  (void)state;
  mgl_error err = {0};
  mgl_tokenizer *tokenizer = NULL;
  mgl_text json = {0};
  for (int i = 0; i < 100000; i++) {
    mgl_text_append_string(&json, "{\"normalizer\":[");
  }
  assert_int_equal(mgl_tokenizer_parse(json.data, json.bytes, "deep", &tokenizer, &err),
                   MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "nested deeper"));

  mgl_text_clear(&json);
  mgl_text_append_string(&json, "{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"");
  for (int i = 0; i < 257; i++) {
    mgl_text_append_string(&json, "x");
  }
  mgl_text_append_string(&json, "\"}]}");
  assert_int_equal(mgl_tokenizer_parse(json.data, json.bytes, "long", &tokenizer, &err),
                   MGL_ERR_LIMIT);
  assert_non_null(strstr(err.text, "257 bytes"));

  // Replacements that multiply: refused when they happen, not when they are read.
  mgl_text_clear(&json);
  mgl_text_append_string(&json,
                         "{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
  for (int i = 0; i < 6; i++) {
    mgl_text_append_string(&json, i == 0 ? "" : ",");
    mgl_text_append_string(&json,
                           "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                           "\"content\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}");
  }
  mgl_text_append_string(&json, "]}}");
  assert_int_equal(mgl_tokenizer_parse(json.data, json.bytes, "growth", &tokenizer, &err), MGL_OK);
  mgl_token_list list = {0};
  mgl_encode_options options = {0};
  assert_int_equal(mgl_tokenizer_encode(tokenizer, "aaaa", 4, options, &list, &err), MGL_ERR_LIMIT);
  assert_int_equal(list.count, 0);
  mgl_token_list_free(&list);
  mgl_tokenizer_close(tokenizer);
  mgl_text_free(&json);
}

// --- failing allocations -------------------------------------------------------------------------

// The long first string lets jansson's string buffer grow early: jansson 2.14 loses the character
// at which that buffer fails to grow, and runs off its end when that is the closing quote of a
// string.
static const char SMALL[] =
    "{\"comment\":\"..............................................................................."
    ".\","
    "\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":8,\"content\":\"b b\",\"normalized\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"c\"},\"content\":\"\xc3\xa9\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
    "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[0]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<s>\",\"vocab\":{\"<s>\":0,"
    "\"<0xC3>\":1,\"<0xA9>\":2,\"_\":3,\"a\":4,\"b\":5,\"_a\":6,\"ab\":7},"
    "\"merges\":[\"_ a\",[\"a\",\"b\"]]}}";

// Everything once; the first failure is returned.
static mgl_status use_all(void *context, mgl_error *err) {
  (void)context;
  static const char TEXT[] = "ab e\xcc\x81\xff c b b <s>ab";
  mgl_tokenizer *tokenizer = NULL;
  mgl_detokenizer *detokenizer = NULL;
  mgl_token_list list = {0};
  mgl_text out = {0};
  mgl_encode_options options = {.add_special = true};
  mgl_status status = mgl_tokenizer_parse(SMALL, strlen(SMALL), "tokenizer.json", &tokenizer, err);
  if (status == MGL_OK) {
    status = mgl_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), options, &list, err);
    assert_true(status == MGL_OK || list.count == 0);
  }
  if (status == MGL_OK) {
    status = mgl_tokenizer_decode(tokenizer, list.ids, list.count, true, &out, err);
  }
  if (status == MGL_OK) {
    status = mgl_detokenizer_create(tokenizer, false, &detokenizer, err);
  }
  for (size_t i = 0; i < list.count && status == MGL_OK; i++) {
    status = mgl_detokenizer_push(detokenizer, list.ids[i], &out, err);
  }
  if (status == MGL_OK) {
    status = mgl_detokenizer_finish(detokenizer, &out, err);
  }
  mgl_detokenizer_destroy(detokenizer);
  mgl_token_list_free(&list);
  mgl_text_free(&out);
  mgl_tokenizer_close(tokenizer);
  return status;
}

static void test_failing_allocations(void **state) {
  (void)state;
  assert_true(fail_each_allocation(use_all, NULL) > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sample),
      cmocka_unit_test(test_streaming_waits_for_whole_characters),
      cmocka_unit_test(test_special_tokens),
      cmocka_unit_test(test_tokens_in_stripped_space),
      cmocka_unit_test(test_encode_appends),
      cmocka_unit_test(test_hostile_texts),
      cmocka_unit_test(test_broken_files),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_failing_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
