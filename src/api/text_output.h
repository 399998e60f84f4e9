// A request's generated tokens as text, piece by piece, until a stop text.
//
// Text goes out as soon as it is certain: whole characters only (text/tokenizer.h), and no byte
// that may turn out to be the beginning of a stop text (engine/stop_strings.h). One thread at a
// time.
#ifndef MGL_API_TEXT_OUTPUT_H
#define MGL_API_TEXT_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

enum {
  MGL_MAX_STOP_TEXTS = MGL_MAX_STOP_STRINGS,
  MGL_MAX_STOP_TEXT_BYTES = MGL_MAX_STOP_BYTES,  // of each
};

typedef struct mgl_text_output mgl_text_output;

typedef struct mgl_text_output_options {
  const char *const *stops;  // [stop_count] of 1 to MGL_MAX_STOP_TEXT_BYTES bytes; copied
  uint32_t stop_count;
  bool keep_special;      // special tokens have text
  bool keep_stop;         // the stop text that ends the text is part of it
  const int32_t *behind;  // [behind_count] tokens whose text this one goes on from; 0: it begins
  size_t behind_count;
} mgl_text_output_options;

// tokenizer: borrowed; NULL gives no text ever, and then there must be no stop texts.
mgl_status mgl_text_output_create(const mgl_tokenizer *tokenizer,
                                  const mgl_text_output_options *options, mgl_text_output **out,
                                  mgl_error *err);
void mgl_text_output_destroy(mgl_text_output *output);  // NULL is fine

// Appends what this token makes certain to *text. *stopped: a stop text is complete; all before it
// is in *text, and nothing may be pushed any more.
mgl_status mgl_text_output_push(mgl_text_output *output, int32_t token, mgl_text *text,
                                bool *stopped, mgl_error *err);
// No more tokens: appends what still waits. *stopped as above.
mgl_status mgl_text_output_finish(mgl_text_output *output, mgl_text *text, bool *stopped,
                                  mgl_error *err);

#endif
