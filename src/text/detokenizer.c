// Decoding: token ids to text, all at once or one by one. Both are the same code, so they agree.
//
// What a token adds to the text can depend on what follows: the bytes of one character may come in
// several tokens, and a run of <0x..> byte tokens is either valid UTF-8 as a whole or, in the
// library's decoder, U+FFFD for each byte. Such bytes wait in `waiting`. For byte-level tokenizers
// these are at most three; a byte-fallback run waits until another token ends it, because nothing
// less gives the library's result.
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd";  // U+FFFD

struct mgl_detokenizer {
  const mgl_tokenizer *tokenizer;
  bool skip_special;
  bool started;         // a token came
  uint64_t strip_left;  // characters that may still be stripped from the start
  mgl_text waiting;     // bytes of characters that are not finished
  mgl_text rewritten[2];
};

static void reset(mgl_detokenizer *d) {
  d->started = false;
  d->strip_left = d->tokenizer->decoder.strip;
  mgl_text_clear(&d->waiting);
}

static void release(mgl_detokenizer *d) {
  mgl_text_free(&d->waiting);
  mgl_text_free(&d->rewritten[0]);
  mgl_text_free(&d->rewritten[1]);
}

// --- byte-level ----------------------------------------------------------------------------------

// Moves what is decided of the waiting bytes to *out; at the end, everything.
static void flush_byte_level(mgl_detokenizer *d, bool at_end, mgl_text *out) {
  mgl_text *waiting = &d->waiting;
  size_t at = 0;
  while (at < waiting->bytes) {
    size_t valid = mgl_utf8_valid_prefix(waiting->data + at, waiting->bytes - at);
    mgl_text_append(out, waiting->data + at, valid);
    at += valid;
    size_t length = 0;
    if (at == waiting->bytes) {
      break;
    }
    mgl_utf8_kind kind = mgl_utf8_scan(waiting->data + at, waiting->bytes - at, &length);
    if (kind == MGL_UTF8_INCOMPLETE && !at_end) {
      break;
    }
    mgl_text_append_string(out, REPLACEMENT);
    at += length;
  }
  if (at > 0) {
    memmove(waiting->data, waiting->data + at, waiting->bytes - at);
    waiting->bytes -= at;
    waiting->data[waiting->bytes] = 0;
  }
}

// A token of the byte-level alphabet stands for bytes, any other one for its text.
static void append_mapped(const char *text, size_t bytes, mgl_text *out) {
  bool mapped = true;
  for (size_t at = 0; at < bytes && mapped;) {
    mapped = mgl_char_to_byte(mgl_utf8_next(text, &at)) >= 0;
  }
  if (!mapped) {
    mgl_text_append(out, text, bytes);
  }
  for (size_t at = 0; at < bytes && mapped;) {
    char byte = (char)mgl_char_to_byte(mgl_utf8_next(text, &at));
    mgl_text_append(out, &byte, 1);
  }
}

static void push_byte_level(mgl_detokenizer *d, const char *text, size_t bytes, mgl_text *out) {
  append_mapped(text, bytes, &d->waiting);
  flush_byte_level(d, false, out);
}

// --- metaspace -----------------------------------------------------------------------------------

static void push_metaspace(const mgl_decoder *decoder, bool first, const char *text, size_t bytes,
                           mgl_text *out) {
  for (size_t at = 0; at < bytes;) {
    size_t next = at;
    if (mgl_utf8_next(text, &next) != decoder->character) {
      mgl_text_append(out, text + at, next - at);
    } else if (!first || !decoder->drop_first) {
      mgl_text_append(out, " ", 1);
    }
    at = next;
  }
}

// --- replace, byte fallback, strip ---------------------------------------------------------------

static void append_stripped(mgl_detokenizer *d, const char *text, size_t bytes, mgl_text *out) {
  size_t at = 0;
  while (d->strip_left > 0 && at < bytes) {
    size_t next = at;
    if (mgl_utf8_next(text, &next) != d->tokenizer->decoder.character) {
      d->strip_left = 0;
      break;
    }
    d->strip_left--;
    at = next;
  }
  mgl_text_append(out, text + at, bytes - at);
}

static void flush_fallback(mgl_detokenizer *d, mgl_text *out) {
  mgl_text *waiting = &d->waiting;
  if (waiting->bytes == 0) {
    return;
  }
  if (mgl_utf8_valid_prefix(waiting->data, waiting->bytes) == waiting->bytes) {
    append_stripped(d, waiting->data, waiting->bytes, out);
  } else {
    for (size_t i = 0; i < waiting->bytes; i++) {
      append_stripped(d, REPLACEMENT, strlen(REPLACEMENT), out);
    }
  }
  mgl_text_clear(waiting);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  char lower = (char)(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The byte of a token <0xNN>, -1 for any other. The library's parser also takes <0x+N>.
static int fallback_byte(const char *text, size_t bytes) {
  if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
    return -1;
  }
  int high = text[3] == '+' ? 0 : hex_digit(text[3]);
  int low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// A token's text with all replacements made, in one of the buffers or where it was.
static mgl_status rewrite(const mgl_decoder *decoder, mgl_text buffers[2], const char **text,
                          size_t *bytes, mgl_error *err) {
  size_t limit = mgl_rewrite_limit(*bytes);
  for (size_t i = 0; i<decoder->replace_count && * bytes> 0; i++) {
    mgl_text *buffer = &buffers[i % 2];
    mgl_text_clear(buffer);
    MGL_TRY(mgl_rewrite_append(&decoder->replace[i], *text, *bytes, limit, buffer, err));
    *text = buffer->data;
    *bytes = buffer->bytes;
  }
  return MGL_OK;
}

static mgl_status push_steps(mgl_detokenizer *d, const char *text, size_t bytes, mgl_text *out,
                             mgl_error *err) {
  const mgl_decoder *decoder = &d->tokenizer->decoder;
  MGL_TRY(rewrite(decoder, d->rewritten, &text, &bytes, err));
  int byte = decoder->byte_fallback ? fallback_byte(text, bytes) : -1;
  if (byte >= 0) {
    char value = (char)byte;
    mgl_text_append(&d->waiting, &value, 1);
  } else {
    flush_fallback(d, out);
    append_stripped(d, text, bytes, out);
  }
  return MGL_OK;
}

// --- any decoder ---------------------------------------------------------------------------------

// The text that stands for an id in decoding, NULL if the id is no token.
static const char *token_text(const mgl_tokenizer *t, int32_t id, size_t *bytes) {
  int32_t index = (uint32_t)id < t->vocab_size ? t->added_index[id] : -1;
  if (index < 0) {
    return mgl_token_table_text(&t->bpe.vocab, id, bytes);
  }
  const char *form = mgl_token_table_text(&t->added.normal_forms, index, bytes);
  return form != NULL ? form : mgl_token_table_text(&t->added.contents, index, bytes);
}

void mgl_detokenizer_continue(mgl_detokenizer *d, const int32_t *ids, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count && !d->started; i++) {
    d->started = ids[i] >= 0 && token_text(d->tokenizer, ids[i], &bytes) != NULL &&
                 !(d->skip_special && d->tokenizer->skippable[ids[i]]);
  }
  d->strip_left = d->started ? 0 : d->strip_left;
}

mgl_status mgl_detokenizer_push(mgl_detokenizer *detokenizer, int32_t id, mgl_text *out,
                                mgl_error *err) {
  mgl_detokenizer *d = detokenizer;
  const mgl_tokenizer *t = d->tokenizer;
  if (id < 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "token id %d: expected 0 or more", (int)id);
  }
  size_t bytes = 0;
  const char *text = token_text(t, id, &bytes);
  if (text == NULL || (d->skip_special && t->skippable[id])) {
    return MGL_OK;
  }
  bool first = !d->started;
  d->started = true;
  switch (t->decoder.kind) {
    case MGL_DECODER_JOIN:
      mgl_text_append(out, " ", first ? 0 : 1);
      mgl_text_append(out, text, bytes);
      break;
    case MGL_DECODER_BYTE_LEVEL: push_byte_level(d, text, bytes, out); break;
    case MGL_DECODER_METASPACE: push_metaspace(&t->decoder, first, text, bytes, out); break;
    case MGL_DECODER_STEPS: MGL_TRY(push_steps(d, text, bytes, out, err)); break;
  }
  MGL_TRY(mgl_text_check(&d->waiting, err));
  return mgl_text_check(out, err);
}

mgl_status mgl_detokenizer_finish(mgl_detokenizer *detokenizer, mgl_text *out, mgl_error *err) {
  mgl_detokenizer *d = detokenizer;
  if (d->tokenizer->decoder.kind == MGL_DECODER_BYTE_LEVEL) {
    flush_byte_level(d, true, out);
  } else {
    flush_fallback(d, out);
  }
  reset(d);
  return mgl_text_check(out, err);
}

mgl_status mgl_detokenizer_create(const mgl_tokenizer *tokenizer, bool skip_special,
                                  mgl_detokenizer **out, mgl_error *err) {
  mgl_detokenizer *d = mgl_alloc_zeroed(1, sizeof *d);
  *out = d;
  if (d == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a detokenizer");
  }
  d->tokenizer = tokenizer;
  d->skip_special = skip_special;
  reset(d);
  return MGL_OK;
}

void mgl_detokenizer_destroy(mgl_detokenizer *detokenizer) {
  if (detokenizer != NULL) {
    release(detokenizer);
    mgl_free(detokenizer);
  }
}

mgl_status mgl_tokenizer_decode(const mgl_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                bool skip_special, mgl_text *out, mgl_error *err) {
  mgl_detokenizer d = {.tokenizer = tokenizer, .skip_special = skip_special};
  reset(&d);
  mgl_status status = MGL_OK;
  for (size_t i = 0; i < count && status == MGL_OK; i++) {
    status = mgl_detokenizer_push(&d, ids[i], out, err);
  }
  if (status == MGL_OK) {
    status = mgl_detokenizer_finish(&d, out, err);
  }
  release(&d);
  return status;
}

// --- tokens on their own -------------------------------------------------------------------------

static mgl_status append_token(const mgl_decoder *decoder, const char *text, size_t bytes,
                               mgl_text *out, mgl_error *err) {
  mgl_text buffers[2] = {{0}};
  mgl_status status = MGL_OK;
  int byte = -1;
  switch (decoder->kind) {
    case MGL_DECODER_JOIN:
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "this tokenizer puts spaces between tokens: a token has no text of its "
                           "own");
    case MGL_DECODER_BYTE_LEVEL: append_mapped(text, bytes, out); break;
    case MGL_DECODER_METASPACE: push_metaspace(decoder, false, text, bytes, out); break;
    case MGL_DECODER_STEPS:
      status = rewrite(decoder, buffers, &text, &bytes, err);
      byte = status == MGL_OK && decoder->byte_fallback ? fallback_byte(text, bytes) : -1;
      if (byte >= 0) {
        char value = (char)byte;
        mgl_text_append(out, &value, 1);
      } else if (status == MGL_OK) {
        mgl_text_append(out, text, bytes);
      }
      break;
  }
  mgl_text_free(&buffers[0]);
  mgl_text_free(&buffers[1]);
  return status;
}

mgl_status mgl_tokenizer_token_bytes(const mgl_tokenizer *t, int32_t id, mgl_text *out,
                                     bool *is_token, bool *is_special, mgl_error *err) {
  size_t bytes = 0;
  const char *text = id >= 0 ? token_text(t, id, &bytes) : NULL;
  *is_token = text != NULL;
  *is_special = text != NULL && t->skippable[id];
  if (text != NULL && !*is_special) {
    MGL_TRY(append_token(&t->decoder, text, bytes, out, err));
  }
  return mgl_text_check(out, err);
}

bool mgl_tokenizer_drops_first_blank(const mgl_tokenizer *t) {
  const mgl_decoder *decoder = &t->decoder;
  return (decoder->kind == MGL_DECODER_METASPACE && decoder->drop_first) ||
         (decoder->kind == MGL_DECODER_STEPS && decoder->strip > 0 && decoder->character == ' ');
}
