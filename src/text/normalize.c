// The normaliser of a tokenizer: NFC, Prepend and Replace, one after the other.
//
// Each step reads the text and writes the other of two buffers. A hostile tokenizer.json could ask
// for replacements that multiply the text again and again, so the growth is limited.
#include <string.h>

#include "text/nfc.h"
#include "text/tokenizer_parts.h"

size_t mgl_rewrite_limit(size_t bytes) {
  enum { SHORT_TEXT_BYTES = 64 * 1024 };
  size_t limit = SIZE_MAX - SHORT_TEXT_BYTES;
  return bytes > limit / MGL_NORMALIZED_MAX_GROWTH
             ? limit
             : bytes * MGL_NORMALIZED_MAX_GROWTH + SHORT_TEXT_BYTES;
}

mgl_status mgl_rewrite_append(const mgl_rewrite *rewrite, const char *text, size_t bytes,
                              size_t limit, mgl_text *out, mgl_error *err) {
  size_t at = 0;
  while (at < bytes) {
    const char *found = memmem(text + at, bytes - at, rewrite->pattern, rewrite->pattern_bytes);
    size_t plain = found == NULL ? bytes - at : (size_t)(found - text) - at;
    mgl_text_append(out, text + at, plain);
    at += plain;
    if (found != NULL) {
      mgl_text_append(out, rewrite->content, rewrite->content_bytes);
      at += rewrite->pattern_bytes;
    }
    if (out->bytes > limit) {
      return mgl_error_set(err, MGL_ERR_LIMIT,
                           "the tokenizer's Replace makes a text more than %d times as long",
                           MGL_NORMALIZED_MAX_GROWTH);
    }
  }
  return mgl_text_check(out, err);
}

static mgl_status apply_step(const mgl_normal_step *step, const char *text, size_t bytes,
                             size_t limit, mgl_text *out, mgl_error *err) {
  mgl_text_clear(out);
  switch (step->kind) {
    case MGL_NORMAL_NFC: return mgl_nfc_append(out, text, bytes, err);
    case MGL_NORMAL_PREPEND:
      mgl_text_append(out, step->rewrite.content, step->rewrite.content_bytes);
      mgl_text_append(out, text, bytes);
      return mgl_text_check(out, err);
    case MGL_NORMAL_REPLACE:
      return mgl_rewrite_append(&step->rewrite, text, bytes, limit, out, err);
  }
  return MGL_OK;
}

mgl_status mgl_normalizer_apply(const mgl_normalizer *normalizer, const char *text, size_t bytes,
                                mgl_text buffers[2], const char **out, size_t *out_bytes,
                                mgl_error *err) {
  size_t limit = mgl_rewrite_limit(bytes);
  for (size_t i = 0; i < normalizer->step_count && bytes > 0; i++) {
    mgl_text *buffer = &buffers[i % 2];
    MGL_TRY(apply_step(&normalizer->steps[i], text, bytes, limit, buffer, err));
    text = buffer->data;
    bytes = buffer->bytes;
  }
  *out = text;
  *out_bytes = bytes;
  return MGL_OK;
}
