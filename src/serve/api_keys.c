#include "serve/api_keys.h"

#include <sodium.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/file.h"

enum { MAX_FILE_BYTES = 1024 * 1024 };

static void hash(const char *key, size_t bytes, unsigned char out[MGL_API_KEY_HASH_BYTES]) {
  (void)crypto_generichash(out, MGL_API_KEY_HASH_BYTES, (const unsigned char *)key, bytes, NULL, 0);
}

static mgl_status read_lines(const char *path, const char *text, mgl_api_keys *out,
                             mgl_error *err) {
  size_t capacity = 0;
  while (*text != 0) {
    size_t line = strcspn(text, "\n");
    const char *key = text + strspn(text, " \t");
    size_t bytes = (size_t)(text + line - key);
    while (bytes > 0 && strchr(" \t\r", key[bytes - 1]) != NULL) {
      bytes--;
    }
    text += line + (text[line] == '\n');
    if (bytes == 0 || key[0] == '#') {
      continue;
    }
    void *items = out->hashes;
    if (out->count == MGL_MAX_API_KEYS) {
      return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected at most %d keys, found more", path,
                           MGL_MAX_API_KEYS);
    }
    MGL_TRY(mgl_grow(&items, &capacity, out->count + 1, sizeof *out->hashes, err));
    out->hashes = items;
    hash(key, bytes, out->hashes[out->count++]);
  }
  return out->count > 0 ? MGL_OK
                        : mgl_error_set(err, MGL_ERR_FORMAT,
                                        "%s: expected an API key a line, found none", path);
}

mgl_status mgl_api_keys_read(const char *path, mgl_api_keys *out, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  MGL_TRY(mgl_file_read_any(path, MAX_FILE_BYTES, &text, &bytes, err));
  mgl_status status = read_lines(path, text, out, err);
  sodium_memzero(text, bytes);
  mgl_free(text);
  return status;
}

void mgl_api_keys_free(mgl_api_keys *keys) {
  mgl_free(keys->hashes);
  *keys = (mgl_api_keys){0};
}

bool mgl_api_keys_allow(const mgl_api_keys *keys, const char *authorization) {
  static const char scheme[] = "Bearer ";
  unsigned char found[MGL_API_KEY_HASH_BYTES];
  unsigned allowed = 0;
  if (keys->count == 0) {
    return true;
  }
  if (authorization == NULL || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) {
    return false;
  }
  const char *key = authorization + sizeof scheme - 1;
  key += strspn(key, " ");
  hash(key, strlen(key), found);
  for (size_t i = 0; i < keys->count; i++) {
    allowed |= sodium_memcmp(found, keys->hashes[i], sizeof found) == 0 ? 1u : 0u;
  }
  return allowed != 0;
}
