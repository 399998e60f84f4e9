// Answers that are made of the body alone: /tokenize and /detokenize.
#ifndef MGL_SERVE_READING_H
#define MGL_SERVE_READING_H

#include <megalith.h>

#include "base/status.h"
#include "base/text.h"
#include "request/ask.h"

// The text of a chat, to be freed with mgl_free, also after a failure.
mgl_status mgl_reading_render(const megalith_model *model, const mgl_ask *ask, char **out,
                              size_t *bytes, mgl_error *err);
// Appends the answer as JSON. From any thread; takes as long as the tokenizer does.
mgl_status mgl_reading_answer(const megalith_model *model, const megalith_engine *engine,
                              const mgl_ask *ask, mgl_text *out, mgl_error *err);

#endif
