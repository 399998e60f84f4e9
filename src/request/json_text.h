// Writing JSON.
#ifndef MGL_REQUEST_JSON_TEXT_H
#define MGL_REQUEST_JSON_TEXT_H

#include <stddef.h>

#include "base/text.h"

// Appends `text` as a JSON string with quotes; bytes that are not UTF-8 become U+FFFD.
void mgl_json_append_string(mgl_text *out, const char *text, size_t bytes);
// Appends a number as JSON; null when it is not finite.
void mgl_json_append_double(mgl_text *out, double value);

#endif
