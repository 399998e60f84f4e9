// A growing byte buffer for building text. Memory errors are sticky: append freely, check once.
#ifndef MGL_BASE_TEXT_H
#define MGL_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// Zero-initialise; free with mgl_text_free. `data` is NUL-terminated whenever it is not NULL.
typedef struct mgl_text {
  char *data;
  size_t bytes;
  size_t capacity;
  bool failed;  // an allocation failed since the last mgl_text_check; content is incomplete
} mgl_text;

void mgl_text_append(mgl_text *text, const char *data, size_t bytes);
void mgl_text_append_string(mgl_text *text, const char *string);
void mgl_text_format(mgl_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Empties the buffer, keeps its memory.
void mgl_text_clear(mgl_text *text);
void mgl_text_free(mgl_text *text);
// MGL_ERR_MEMORY if any append failed.
mgl_status mgl_text_check(const mgl_text *text, mgl_error *err);

#endif
