#include "request/json_text.h"

#include <math.h>

#include "text/unicode.h"

void mgl_json_append_string(mgl_text *out, const char *text, size_t bytes) {
  mgl_text valid = {0};
  mgl_utf8_append_lossy(&valid, text, bytes);
  out->failed = out->failed || valid.failed;
  mgl_text_append(out, "\"", 1);
  for (size_t i = 0; i < valid.bytes; i++) {
    char c = valid.data[i];
    if (c == '"' || c == '\\') {
      mgl_text_format(out, "\\%c", c);
    } else if ((unsigned char)c < 0x20) {
      mgl_text_format(out, "\\u%04x", (unsigned)c);
    } else {
      mgl_text_append(out, &c, 1);
    }
  }
  mgl_text_append(out, "\"", 1);
  mgl_text_free(&valid);
}

void mgl_json_append_double(mgl_text *out, double value) {
  if (isfinite(value)) {
    mgl_text_format(out, "%.10g", value);
  } else {
    mgl_text_append_string(out, "null");
  }
}
