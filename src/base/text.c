#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

// Room for `extra` more bytes and a NUL; false (and sticky) when memory is out.
static bool reserve(mgl_text *text, size_t extra) {
  if (text->failed) {
    return false;
  }
  void *data = text->data;
  if (extra >= SIZE_MAX - text->bytes ||
      mgl_grow(&data, &text->capacity, text->bytes + extra + 1, 1, NULL) != MGL_OK) {
    text->failed = true;
    return false;
  }
  text->data = data;
  return true;
}

void mgl_text_append(mgl_text *text, const char *data, size_t bytes) {
  if (reserve(text, bytes)) {
    if (bytes != 0) {
      memcpy(text->data + text->bytes, data, bytes);
    }
    text->bytes += bytes;
    text->data[text->bytes] = 0;
  }
}

void mgl_text_append_string(mgl_text *text, const char *string) {
  mgl_text_append(text, string, strlen(string));
}

void mgl_text_format(mgl_text *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int bytes = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (bytes >= 0 && reserve(text, (size_t)bytes)) {
    va_start(args, format);
    (void)vsnprintf(text->data + text->bytes, (size_t)bytes + 1, format, args);
    va_end(args);
    text->bytes += (size_t)bytes;
  }
}

void mgl_text_clear(mgl_text *text) {
  text->bytes = 0;
  text->failed = false;
  if (text->data != NULL) {
    text->data[0] = 0;
  }
}

void mgl_text_free(mgl_text *text) {
  mgl_free(text->data);
  *text = (mgl_text){0};
}

mgl_status mgl_text_check(const mgl_text *text, mgl_error *err) {
  return text->failed ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory while building a text")
                      : MGL_OK;
}
