#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>

#define XXH_INLINE_ALL  // compiled in: nothing to link, nothing to find at run time
#include <xxhash.h>

mgl_hash mgl_hash_bytes(const void *data, size_t bytes) {
  XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return (mgl_hash){.low = hash.low64, .high = hash.high64};
}

void mgl_hash_text(mgl_hash hash, char out[MGL_HASH_TEXT_BYTES]) {
  (void)snprintf(out, MGL_HASH_TEXT_BYTES, "%016" PRIx64 "%016" PRIx64, hash.high, hash.low);
}
