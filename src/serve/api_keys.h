// API keys: who may use the server.
#ifndef MGL_SERVE_API_KEYS_H
#define MGL_SERVE_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { MGL_MAX_API_KEYS = 4096, MGL_API_KEY_HASH_BYTES = 32 };

// Zero-initialise; free with mgl_api_keys_free.
typedef struct mgl_api_keys {
  unsigned char (*hashes)[MGL_API_KEY_HASH_BYTES];  // [count]
  size_t count;
} mgl_api_keys;

// Reads a file with a key a line; empty lines and lines that begin with # do not count. One key at
// least.
mgl_status mgl_api_keys_read(const char *path, mgl_api_keys *out, mgl_error *err);
void mgl_api_keys_free(mgl_api_keys *keys);

// Whether an Authorization header ("Bearer KEY", NULL: none) has one of the keys. Takes the same
// time whichever key it is and however much of one is right: what is compared are hashes, all of
// them, whole.
bool mgl_api_keys_allow(const mgl_api_keys *keys, const char *authorization);

#endif
