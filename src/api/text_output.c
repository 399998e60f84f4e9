#include "api/text_output.h"

#include <string.h>

#include "base/alloc.h"

typedef struct stop_text {
  char *bytes;
  size_t count;
} stop_text;

struct mgl_text_output {
  mgl_detokenizer *detokenizer;  // NULL: no text
  stop_text stops[MGL_MAX_STOP_TEXTS];
  uint32_t stop_count;
  mgl_text held;  // decoded, but perhaps the beginning of a stop text
};

static mgl_status copy_stop(mgl_text_output *output, const char *stop, mgl_error *err) {
  size_t bytes = stop == NULL ? 0 : strlen(stop);
  if (bytes < 1 || bytes > MGL_MAX_STOP_TEXT_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop text %u: expected 1 to %d bytes, found %zu",
                         output->stop_count, MGL_MAX_STOP_TEXT_BYTES, bytes);
  }
  stop_text *copy = &output->stops[output->stop_count];
  *copy = (stop_text){.bytes = mgl_strndup(stop, bytes), .count = bytes};
  if (copy->bytes == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a stop text");
  }
  output->stop_count++;
  return MGL_OK;
}

mgl_status mgl_text_output_create(const mgl_tokenizer *tokenizer, const char *const *stops,
                                  uint32_t count, mgl_text_output **out, mgl_error *err) {
  *out = NULL;
  if (count > MGL_MAX_STOP_TEXTS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop texts: expected at most %d, found %u",
                         MGL_MAX_STOP_TEXTS, count);
  }
  if (count > 0 && tokenizer == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "stop texts need a tokenizer.json in the model's folder");
  }
  mgl_text_output *output = mgl_alloc_zeroed(1, sizeof *output);
  if (output == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the text of a request");
  }
  mgl_status status = MGL_OK;
  if (tokenizer != NULL) {
    status = mgl_detokenizer_create(tokenizer, true, &output->detokenizer, err);
  }
  for (uint32_t i = 0; status == MGL_OK && i < count; i++) {
    status = copy_stop(output, stops[i], err);
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
  for (uint32_t i = 0; i < output->stop_count; i++) {
    mgl_free(output->stops[i].bytes);
  }
  mgl_text_free(&output->held);
  mgl_free(output);
}

// The first byte of the longest stop text that ends at held[end), or `end` if none does.
static size_t start_of_stop(const mgl_text_output *output, size_t end) {
  size_t start = end;
  for (uint32_t i = 0; i < output->stop_count; i++) {
    const stop_text *stop = &output->stops[i];
    if (stop->count <= end && end - stop->count < start &&
        memcmp(output->held.data + end - stop->count, stop->bytes, stop->count) == 0) {
      start = end - stop->count;
    }
  }
  return start;
}

// The first byte of held[] from which on everything is the beginning of some stop text.
static size_t start_of_beginning(const mgl_text_output *output) {
  size_t bytes = output->held.bytes;
  size_t first = bytes > MGL_MAX_STOP_TEXT_BYTES ? bytes - MGL_MAX_STOP_TEXT_BYTES : 0;
  for (size_t at = first; at < bytes; at++) {
    for (uint32_t i = 0; i < output->stop_count; i++) {
      const stop_text *stop = &output->stops[i];
      if (bytes - at < stop->count &&
          memcmp(output->held.data + at, stop->bytes, bytes - at) == 0) {
        return at;
      }
    }
  }
  return bytes;
}

// Moves what is certain of the held text to *text. Before the latest addition, which begins at
// `added`, no stop text was complete.
static mgl_status release_held(mgl_text_output *output, size_t added, bool at_end, mgl_text *text,
                               bool *stopped, mgl_error *err) {
  mgl_text *held = &output->held;
  MGL_TRY(mgl_text_check(held, err));
  size_t certain = 0;
  for (size_t end = added + 1; !*stopped && end <= held->bytes; end++) {
    certain = start_of_stop(output, end);
    *stopped = certain < end;
  }
  if (!*stopped) {
    certain = at_end ? held->bytes : start_of_beginning(output);
  }
  if (certain > 0) {
    mgl_text_append(text, held->data, certain);
    memmove(held->data, held->data + certain, held->bytes - certain);
    held->bytes -= certain;
    held->data[held->bytes] = 0;
  }
  return mgl_text_check(text, err);
}

mgl_status mgl_text_output_push(mgl_text_output *output, int32_t token, mgl_text *text,
                                bool *stopped, mgl_error *err) {
  *stopped = false;
  if (output->detokenizer == NULL) {
    return MGL_OK;
  }
  size_t added = output->held.bytes;
  MGL_TRY(mgl_detokenizer_push(output->detokenizer, token, &output->held, err));
  return release_held(output, added, false, text, stopped, err);
}

mgl_status mgl_text_output_finish(mgl_text_output *output, mgl_text *text, bool *stopped,
                                  mgl_error *err) {
  *stopped = false;
  if (output->detokenizer == NULL) {
    return MGL_OK;
  }
  size_t added = output->held.bytes;
  MGL_TRY(mgl_detokenizer_finish(output->detokenizer, &output->held, err));
  return release_held(output, added, true, text, stopped, err);
}
