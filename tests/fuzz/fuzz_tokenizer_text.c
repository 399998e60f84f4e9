// Fuzzes encoding and decoding of arbitrary text with small fixed tokenizers of both kinds.
//
// Checked: a byte-level tokenizer gives the text back (with invalid UTF-8 replaced); streaming
// equals decoding at once and never emits part of a character; NFC of an NFC text is that text; the
// matches of each Split pattern are whole characters, in order, and the same when the text is cut
// off where one starts; those of the patterns that match everything leave nothing out.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SPLIT_REGEX                                                                     \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|" \
  " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const char BYTE_LEVEL_HEAD[] =
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
    "{\"Regex\":\"" SPLIT_REGEX
    "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
    "false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"added_tokens\":[{\"id\":260,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":261,\"content\":\"<s>>\",\"special\":false,\"normalized\":true}],"
    "\"model\":{\"type\":\"BPE\",\"merges\":[\"a b\",\"ab ab\",\"\xc3\xa3 \xc4\xa3\",\"b "
    "a\"],\"vocab\":{"
    "\"ab\":256,\"abab\":257,\"\xc3\xa3\xc4\xa3\":258,\"ba\":259";

static const char FALLBACK_HEAD[] =
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
    "\"Prepend\","
    "\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
    "\"},\"content\":"
    "\"\xe2\x96\x81\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
    "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"lstrip\":true,\"rstrip\":"
    "true,"
    "\"normalized\":false}],"
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<s>\","
    "\"merges\":[\"a b\",\"ab ab\",\"\xe2\x96\x81 "
    "a\"],\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"ab\":3,"
    "\"abab\":4,\"\xe2\x96\x81\":5,\"\xe2\x96\x81"
    "a\":6,\"\xc3\xa9\":7";

static void require(int condition) {
  if (!condition) {
    abort();
  }
}

static void append_byte_level_vocab(mgl_text *json) {
  for (unsigned byte = 0; byte < 256; byte++) {
    char encoded[4];
    size_t bytes = mgl_utf8_encode(mgl_byte_to_char((uint8_t)byte), encoded);
    const char *escape = byte == '"' || byte == '\\' ? "\\" : "";
    mgl_text_format(json, ",\"%s%.*s\":%u", escape, (int)bytes, encoded, byte);
  }
}

static void append_fallback_vocab(mgl_text *json) {
  for (unsigned byte = 0; byte < 256; byte++) {
    mgl_text_format(json, ",\"<0x%02X>\":%u", byte, byte + 8);
  }
}

static mgl_tokenizer *make_tokenizer(const char *head, void (*append_vocab)(mgl_text *)) {
  mgl_error err;
  mgl_text json = {0};
  mgl_tokenizer *tokenizer = NULL;
  mgl_text_append_string(&json, head);
  append_vocab(&json);
  mgl_text_append_string(&json, "}}}");
  require(!json.failed);
  require(mgl_tokenizer_parse(json.data, json.bytes, "fixed", &tokenizer, &err) == MGL_OK);
  mgl_text_free(&json);
  return tokenizer;
}

static void require_equal(const mgl_text *a, const mgl_text *b) {
  require(a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0));
}

static void check_streaming(const mgl_tokenizer *tokenizer, const mgl_token_list *list, bool skip,
                            const mgl_text *whole) {
  mgl_error err;
  mgl_detokenizer *detokenizer = NULL;
  mgl_text streamed = {0};
  require(mgl_detokenizer_create(tokenizer, skip, &detokenizer, &err) == MGL_OK);
  for (size_t i = 0; i < list->count; i++) {
    size_t before = streamed.bytes;
    require(mgl_detokenizer_push(detokenizer, list->ids[i], &streamed, &err) == MGL_OK);
    size_t added = streamed.bytes - before;
    require(added == 0 || mgl_utf8_valid_prefix(streamed.data + before, added) == added);
  }
  require(mgl_detokenizer_finish(detokenizer, &streamed, &err) == MGL_OK);
  require_equal(&streamed, whole);
  mgl_detokenizer_destroy(detokenizer);
  mgl_text_free(&streamed);
}

static void check_text(const mgl_tokenizer *tokenizer, const char *text, size_t bytes, bool plain,
                       const mgl_text *expected) {
  mgl_error err;
  mgl_token_list list = {0};
  mgl_text whole = {0};
  mgl_encode_options options = {.plain_special = plain};
  require(mgl_tokenizer_encode(tokenizer, text, bytes, options, &list, &err) == MGL_OK);
  require(mgl_tokenizer_decode(tokenizer, list.ids, list.count, false, &whole, &err) == MGL_OK);
  if (expected != NULL) {
    require_equal(&whole, expected);
  }
  check_streaming(tokenizer, &list, false, &whole);
  // The bytes as ids: sequences that no encoder makes.
  list.count = 0;
  for (size_t i = 0; i < bytes; i++) {
    require(mgl_token_list_append(&list, (unsigned char)text[i], &err) == MGL_OK);
  }
  mgl_text_clear(&whole);
  require(mgl_tokenizer_decode(tokenizer, list.ids, list.count, plain, &whole, &err) == MGL_OK);
  check_streaming(tokenizer, &list, plain, &whole);
  mgl_token_list_free(&list);
  mgl_text_free(&whole);
}

#define WHITESPACE "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAPITALS "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PUNCTUATION "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"

static const struct {
  const char *regex;
  bool everything;  // matches cover the text
} SPLITS[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", true},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WHITESPACE,
     true},
    {CAPITALS "*" SMALL "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" CAPITALS "+" SMALL
              "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}" PUNCTUATION WHITESPACE,
     true},
    {CAPITALS "*" SMALL "+|" CAPITALS "+" SMALL "*|\\p{N}" PUNCTUATION WHITESPACE, true},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" WHITESPACE,
     false},
    {"\\s+$", false},
    {"[\\r\\n]", false},
    {"\\p{N}{1,3}", false},
    {"\\s?[A-Za-z\xc2\xb5\xc3\x80-\xc3\x96]+", false},
    {"[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80]+", false},
};

// `text` is valid UTF-8.
static void check_splits(const char *text, size_t bytes) {
  for (size_t i = 0; i < sizeof SPLITS / sizeof SPLITS[0]; i++) {
    mgl_split_pattern pattern;
    require(mgl_split_pattern_find(SPLITS[i].regex, &pattern));
    size_t start = 0;
    size_t end = 0;
    for (size_t at = 0; mgl_split_next(&pattern, text, bytes, at, &start, &end); at = end) {
      require(start >= at && end > start && end <= bytes);
      require(mgl_utf8_valid_prefix(text + start, end - start) == end - start);
      require(start == at || !SPLITS[i].everything);
      // What is in front of a match does not count.
      size_t same_start = 0;
      size_t same_end = 0;
      require(mgl_split_next(&pattern, text + start, bytes - start, 0, &same_start, &same_end));
      require(same_start == 0 && same_end == end - start);
    }
    require(end == bytes || !SPLITS[i].everything);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static mgl_tokenizer *byte_level;
  static mgl_tokenizer *fallback;
  if (byte_level == NULL) {
    byte_level = make_tokenizer(BYTE_LEVEL_HEAD, append_byte_level_vocab);
    fallback = make_tokenizer(FALLBACK_HEAD, append_fallback_vocab);
  }
  const char *text = (const char *)data;
  mgl_error err;
  mgl_text clean = {0};
  mgl_text once = {0};
  mgl_text twice = {0};
  mgl_utf8_append_lossy(&clean, text, size);
  check_text(byte_level, text, size, size % 2 == 0, &clean);
  check_text(fallback, text, size, size % 2 == 0, NULL);
  if (clean.bytes != 0) {
    check_splits(clean.data, clean.bytes);
    require(mgl_nfc_append(&once, clean.data, clean.bytes, &err) == MGL_OK);
    require(mgl_nfc_append(&twice, once.data, once.bytes, &err) == MGL_OK);
    require_equal(&once, &twice);
  }
  mgl_text_free(&clean);
  mgl_text_free(&once);
  mgl_text_free(&twice);
  return 0;
}
