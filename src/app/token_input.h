// Token ids as text: a JSON array, or numbers with spaces or commas between them.
#ifndef MGL_APP_TOKEN_INPUT_H
#define MGL_APP_TOKEN_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mgl_ids {
  int32_t *ids;  // [count], freed with mgl_free
  size_t count, capacity;
} mgl_ids;

// Appends the ids of `text` to *out. Each must be in [0, vocab_size). `where` names the source in
// messages ("--tokens").
mgl_status mgl_tokens_parse(const char *text, size_t bytes, const char *where, uint32_t vocab_size,
                            mgl_ids *out, mgl_error *err);

#endif
