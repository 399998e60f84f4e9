// Compiled device code on disk, so that only the first start on a machine waits for the compiler.
//
// A file has the name "KEY-COMPILER.cubin": KEY is a hash of everything that the compiler was given
// (sources, options, architecture), COMPILER its name and version. Files are written by
// base/new_file.h, so that any number of processes may read and write at once: each sees a whole
// file or none. A file begins with a header that holds its key again and a checksum of the rest;
// one that does not match is removed and counts as absent.
//
// Reading and writing need no lock: of two processes that write the same file the later rename
// wins. That only one compiles is cuda_code.h's.
#ifndef MGL_DEVICE_CUDA_CUDA_CACHE_H
#define MGL_DEVICE_CUDA_CUDA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "device/cuda/cuda_jit.h"

typedef struct mgl_cuda_cache_key {
  mgl_hash source;       // of what is compiled
  const char *compiler;  // its name
  int major, minor;      // its version; 0 and 0: any will do
} mgl_cuda_cache_key;

enum { MGL_CUDA_CACHE_MAX_BYTES = 64 << 20 };

// The code and its resources: true, and *out_cubin is freed with mgl_free. Damaged files, and those
// of another key under this name, are removed on the way, as is what killed writers left.
bool mgl_cuda_cache_read(const char *folder, const mgl_cuda_cache_key *key, void **out_cubin,
                         size_t *out_bytes, mgl_cuda_usage *usage);

// The name of the file of that key.
enum { MGL_CUDA_CACHE_NAME_BYTES = 96 };
void mgl_cuda_cache_name(const mgl_cuda_cache_key *key, char out[MGL_CUDA_CACHE_NAME_BYTES]);

// Makes the folder (base/cache_folder.h) if it is missing.
mgl_status mgl_cuda_cache_write(const char *folder, const mgl_cuda_cache_key *key,
                                const void *cubin, size_t bytes, const mgl_cuda_usage *usage,
                                mgl_error *err);

#endif
