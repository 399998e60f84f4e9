#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Bytes of the printable character at `s`; 0: it is a control character or no UTF-8.
static size_t printable_bytes(const unsigned char *s) {
  if (s[0] < 0x80) {
    return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
  }
  size_t bytes = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 4;
  if (s[0] < 0xc2 || s[0] > 0xf4) {
    return 0;
  }
  for (size_t i = 1; i < bytes; i++) {
    if ((s[i] & 0xc0) != 0x80) {  // the terminator included
      return 0;
    }
  }
  return s[0] == 0xc2 && s[1] < 0xa0 ? 0 : bytes;
}

void mgl_string_make_printable(char *text) {
  for (unsigned char *s = (unsigned char *)text; *s != 0;) {
    size_t bytes = printable_bytes(s);
    if (bytes == 0) {
      *s = '?';
    }
    s += bytes == 0 ? 1 : bytes;
  }
}

enum { LONGEST_TEXT = 8192 };  // of a message before its middle goes; longer ones lose their end

// Copies a text that may be too long; then "..." stands for its middle.
static void set_text(mgl_error *err, const char *text) {
  static const char gap[] = "...";
  size_t bytes = strlen(text);
  size_t most = sizeof err->text - 1;
  if (bytes <= most) {
    memcpy(err->text, text, bytes + 1);
  } else {
    size_t head = (most - (sizeof gap - 1)) / 2;
    size_t tail = most - (sizeof gap - 1) - head;
    memcpy(err->text, text, head);
    memcpy(err->text + head, gap, sizeof gap - 1);
    memcpy(err->text + head + sizeof gap - 1, text + bytes - tail, tail + 1);
  }
  mgl_string_make_printable(err->text);
}

mgl_status mgl_error_set(mgl_error *err, mgl_status status, const char *format, ...) {
  if (err != NULL) {
    char text[LONGEST_TEXT];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err->status = status;
    set_text(err, text);
  }
  return status;
}

void mgl_error_prefix(mgl_error *err, const char *format, ...) {
  if (err == NULL) {
    return;
  }
  char text[LONGEST_TEXT];
  char own[MGL_ERROR_TEXT_BYTES];
  va_list args;
  memcpy(own, err->text, sizeof own);
  va_start(args, format);
  int bytes = vsnprintf(text, sizeof text - sizeof own - 2, format, args);
  va_end(args);
  if (bytes < 0) {
    text[0] = 0;
  }
  size_t used = strlen(text);
  (void)snprintf(text + used, sizeof text - used, ": %s", own);
  set_text(err, text);
}

const char *mgl_status_name(mgl_status status) {
  switch (status) {
    case MGL_OK: return "ok";
    case MGL_ERR_ARGUMENT: return "invalid argument";
    case MGL_ERR_FORMAT: return "malformed input";
    case MGL_ERR_UNSUPPORTED: return "not supported";
    case MGL_ERR_IO: return "input/output error";
    case MGL_ERR_MEMORY: return "out of memory";
    case MGL_ERR_LIMIT: return "limit exceeded";
    case MGL_ERR_INTERNAL: return "internal error";
  }
  return "unknown status";
}
