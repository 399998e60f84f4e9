// Runs our tokeniser for tools/make_tokenizer_cases.py, which compares it with the `tokenizers`
// library: binary requests on stdin, binary replies on stdout.
//
// A request is an operation, a number, a length and that many bytes of payload; a reply a length
// and payload. Numbers are 32-bit little-endian, as on every machine that we run on.
//   'e'  payload: text; number: bit 0 add_special, bit 1 plain_special; reply: ids
//   'd'  payload: ids; number: bit 0 skip_special; reply: text (streaming must equal the whole)
//   's'  payload: a regular expression, NUL and valid UTF-8; reply: start and end of each match
//   'n'  payload: valid UTF-8; reply: its NFC
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

static void die(const char *what) {
  (void)fprintf(stderr, "tokenizer_dump: %s\n", what);
  exit(1);
}

static void check(mgl_status status, const mgl_error *err) {
  if (status != MGL_OK) {
    die(err->text);
  }
}

static void reply(const void *data, size_t bytes) {
  uint32_t length = (uint32_t)bytes;
  if (fwrite(&length, sizeof length, 1, stdout) != 1 ||
      (bytes != 0 && fwrite(data, 1, bytes, stdout) != bytes)) {
    die("could not write");
  }
}

static void encode(const mgl_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags) {
  mgl_error err;
  mgl_token_list list = {0};
  mgl_encode_options options = {.add_special = (flags & 1) != 0, .plain_special = (flags & 2) != 0};
  check(mgl_tokenizer_encode(tokenizer, text, bytes, options, &list, &err), &err);
  reply(list.ids, list.count * sizeof *list.ids);
  mgl_token_list_free(&list);
}

static void decode(const mgl_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip) {
  mgl_error err;
  mgl_text whole = {0};
  mgl_text streamed = {0};
  mgl_detokenizer *detokenizer = NULL;
  check(mgl_tokenizer_decode(tokenizer, ids, count, skip, &whole, &err), &err);
  check(mgl_detokenizer_create(tokenizer, skip, &detokenizer, &err), &err);
  for (size_t i = 0; i < count; i++) {
    check(mgl_detokenizer_push(detokenizer, ids[i], &streamed, &err), &err);
  }
  check(mgl_detokenizer_finish(detokenizer, &streamed, &err), &err);
  if (whole.bytes != streamed.bytes ||
      (whole.bytes != 0 && memcmp(whole.data, streamed.data, whole.bytes) != 0)) {
    die("streaming differs from the whole");
  }
  reply(whole.data, whole.bytes);
  mgl_detokenizer_destroy(detokenizer);
  mgl_text_free(&whole);
  mgl_text_free(&streamed);
}

static void split(const char *payload, size_t bytes) {
  const char *text = memchr(payload, 0, bytes);
  if (text == NULL) {
    die("a split request without a NUL");
  }
  text++;
  bytes -= (size_t)(text - payload);
  mgl_split_pattern pattern;
  if (!mgl_split_pattern_find(payload, &pattern)) {
    die("an unknown pattern");
  }
  uint32_t *places = mgl_alloc((bytes + 1) * 2 * sizeof *places);
  size_t count = 0;
  if (places == NULL) {
    die("out of memory");
  }
  size_t start = 0;
  for (size_t end = 0; mgl_split_next(&pattern, text, bytes, end, &start, &end);) {
    places[count++] = (uint32_t)start;
    places[count++] = (uint32_t)end;
  }
  reply(places, count * sizeof *places);
  mgl_free(places);
}

static void normalize(const char *text, size_t bytes) {
  mgl_error err;
  mgl_text out = {0};
  check(mgl_nfc_append(&out, text, bytes, &err), &err);
  reply(out.data, out.bytes);
  mgl_text_free(&out);
}

int main(int argc, char **argv) {
  mgl_error err;
  mgl_tokenizer *tokenizer = NULL;
  if (argc != 2) {
    die("usage: tokenizer_dump TOKENIZER.JSON < requests > replies");
  }
  check(mgl_tokenizer_open(argv[1], &tokenizer, &err), &err);
  uint32_t head[3];
  while (fread(head, sizeof head, 1, stdin) == 1) {
    char *payload = mgl_alloc(head[2]);
    if (payload == NULL || fread(payload, 1, head[2], stdin) != head[2]) {
      die("could not read a request");
    }
    switch (head[0]) {
      case 'e': encode(tokenizer, payload, head[2], head[1]); break;
      case 'd':
        decode(tokenizer, (const int32_t *)(const void *)payload, head[2] / sizeof(int32_t),
               (head[1] & 1) != 0);
        break;
      case 's': split(payload, head[2]); break;
      case 'n': normalize(payload, head[2]); break;
      default: die("unknown operation");
    }
    mgl_free(payload);
  }
  mgl_tokenizer_close(tokenizer);
  return 0;
}
