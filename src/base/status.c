#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void make_printable(char *text) {
  for (unsigned char *p = (unsigned char *)text; *p != 0; p++) {
    if (*p < 0x20 || *p == 0x7f) {
      *p = '?';
    }
  }
}

mgl_status mgl_error_set(mgl_error *err, mgl_status status, const char *format, ...) {
  if (err != NULL) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    err->status = status;
    make_printable(err->text);
  }
  return status;
}

void mgl_error_prefix(mgl_error *err, const char *format, ...) {
  if (err == NULL) {
    return;
  }
  char prefix[512];
  char joined[MGL_ERROR_TEXT_BYTES + sizeof prefix + 2];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(prefix, sizeof prefix, format, args);
  va_end(args);
  (void)snprintf(joined, sizeof joined, "%s: %s", prefix, err->text);
  memcpy(err->text, joined, sizeof err->text - 1);
  err->text[sizeof err->text - 1] = 0;
  make_printable(err->text);
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
