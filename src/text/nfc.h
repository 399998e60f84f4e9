// Unicode normalisation form C in linear time.
#ifndef MGL_TEXT_NFC_H
#define MGL_TEXT_NFC_H

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

// Appends the NFC of `text`, which must be valid UTF-8.
mgl_status mgl_nfc_append(mgl_text *out, const char *text, size_t bytes, mgl_error *err);

#endif
