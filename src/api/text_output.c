#include "api/text_output.h"

#include <string.h>

#include "base/alloc.h"

struct mgl_text_output {
  mgl_detokenizer *detokenizer;  // NULL: no text
  mgl_stop_matcher *stops;       // NULL: no stop texts
  bool keep_stop;
  mgl_text piece;  // of one token, while it is looked at
};

static mgl_status check_stops(const char *const *stops, uint32_t count, mgl_error *err) {
  for (uint32_t i = 0; i < count; i++) {
    size_t bytes = stops[i] == NULL ? 0 : strlen(stops[i]);
    if (bytes < 1 || bytes > MGL_MAX_STOP_TEXT_BYTES) {
      return mgl_error_set(err, MGL_ERR_LIMIT, "stop text %u: expected 1 to %d bytes, found %zu", i,
                           MGL_MAX_STOP_TEXT_BYTES, bytes);
    }
  }
  return MGL_OK;
}

mgl_status mgl_text_output_create(const mgl_tokenizer *tokenizer,
                                  const mgl_text_output_options *options, mgl_text_output **out,
                                  mgl_error *err) {
  uint32_t count = options->stop_count;
  *out = NULL;
  if (count > MGL_MAX_STOP_TEXTS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop texts: expected at most %d, found %u",
                         MGL_MAX_STOP_TEXTS, count);
  }
  if (count > 0 && tokenizer == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "stop texts need a tokenizer.json in the model's folder");
  }
  MGL_TRY(check_stops(options->stops, count, err));
  mgl_text_output *output = mgl_alloc_zeroed(1, sizeof *output);
  if (output == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the text of a request");
  }
  output->keep_stop = options->keep_stop;
  mgl_status status = MGL_OK;
  if (tokenizer != NULL) {
    status = mgl_detokenizer_create(tokenizer, !options->keep_special, &output->detokenizer, err);
  }
  if (status == MGL_OK && tokenizer != NULL) {
    mgl_detokenizer_continue(output->detokenizer, options->behind, options->behind_count);
  }
  if (status == MGL_OK && count > 0) {
    status = mgl_stop_matcher_create(options->stops, count, &output->stops, err);
  }
  if (status != MGL_OK) {
    mgl_text_output_destroy(output);
    return status;
  }
  *out = output;
  return MGL_OK;
}

void mgl_text_output_destroy(mgl_text_output *output) {
  if (output == NULL) {
    return;
  }
  mgl_detokenizer_destroy(output->detokenizer);
  mgl_stop_matcher_destroy(output->stops);
  mgl_text_free(&output->piece);
  mgl_free(output);
}

// Moves what is certain of the piece to *text.
static mgl_status release_piece(mgl_text_output *output, bool at_end, mgl_text *text, bool *stopped,
                                mgl_error *err) {
  mgl_text *piece = &output->piece;
  MGL_TRY(mgl_text_check(piece, err));
  if (output->stops == NULL) {
    mgl_text_append(text, piece->data, piece->bytes);
  } else {
    *stopped = mgl_stop_matcher_push(output->stops, piece->data, piece->bytes, text);
    if (*stopped ? output->keep_stop : at_end) {
      mgl_stop_matcher_finish(output->stops, text);
    }
  }
  mgl_text_clear(piece);
  return mgl_text_check(text, err);
}

mgl_status mgl_text_output_push(mgl_text_output *output, int32_t token, mgl_text *text,
                                bool *stopped, mgl_error *err) {
  *stopped = false;
  if (output->detokenizer == NULL) {
    return MGL_OK;
  }
  MGL_TRY(mgl_detokenizer_push(output->detokenizer, token, &output->piece, err));
  return release_piece(output, false, text, stopped, err);
}

mgl_status mgl_text_output_finish(mgl_text_output *output, mgl_text *text, bool *stopped,
                                  mgl_error *err) {
  *stopped = false;
  if (output->detokenizer == NULL) {
    return MGL_OK;
  }
  MGL_TRY(mgl_detokenizer_finish(output->detokenizer, &output->piece, err));
  return release_piece(output, true, text, stopped, err);
}
