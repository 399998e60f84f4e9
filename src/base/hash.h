// A 128-bit hash of bytes, for names and checksums: XXH3, of the library xxHash.
//
// Two inputs of this program meet by accident with a probability of 2^-64 or less. It is no guard
// against somebody who looks for collisions.
#ifndef MGL_BASE_HASH_H
#define MGL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct mgl_hash {
  uint64_t low, high;
} mgl_hash;

// Hashes bytes, to the same value on every machine.
mgl_hash mgl_hash_bytes(const void *data, size_t bytes);

// 32 hexadecimal digits and a NUL.
enum { MGL_HASH_TEXT_BYTES = 33 };
void mgl_hash_text(mgl_hash hash, char out[MGL_HASH_TEXT_BYTES]);

#endif
