// What makes device code of the embedded sources: a table of functions a compiler, so that another
// one plugs in. NVRTC is the usual one, nvcc a second where it is installed, tests have a fake one.
//
// cuda_code.h calls them in the order in which they stand. Device code depends neither on the
// number of a rank nor on a prefix of the model's ops: what it depends on (sources, options, how
// many ranks there are) is hashed, so all ranks share an entry.
#ifndef MGL_DEVICE_CUDA_CUDA_COMPILER_H
#define MGL_DEVICE_CUDA_CUDA_COMPILER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "device/compilation.h"
#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_code.h"
#include "device/cuda/cuda_jit.h"

// What shall be compiled. Borrowed.
typedef struct mgl_cuda_job {
  const char *name;  // of the embedded source
  const char *architecture;
  const mgl_cuda_shape *shape;
  const char *kernel;  // whose resources are wanted
} mgl_cuda_job;

typedef struct mgl_cuda_compiler {
  const char *name;
  uint32_t wait_ms;  // for another process that compiles the same, before one does it oneself
  // Finds the compiler: its version goes into the key. MGL_ERR_UNSUPPORTED: it is not here, and
  // what any version of it left in the cache will do.
  mgl_status (*initialise_cache)(const char *folder, mgl_cuda_cache_key *key, mgl_error *err);
  // Of all that `compile` is given, into the key.
  mgl_status (*compute_hash)(const mgl_cuda_job *job, mgl_hash *out, mgl_error *err);
  // Sets out->cubin, bytes and usage.
  mgl_status (*compile)(const mgl_cuda_job *job, mgl_cuda_code *out, mgl_error *err);
  // From the folder: true, and out->cubin, bytes and usage are set. False: it has none.
  bool (*load)(const char *folder, const mgl_cuda_cache_key *key, mgl_cuda_code *out);
} mgl_cuda_compiler;

extern const mgl_cuda_compiler mgl_cuda_compiler_nvrtc;
extern const mgl_cuda_compiler mgl_cuda_compiler_nvcc;

const mgl_cuda_compiler *mgl_cuda_compiler_of(mgl_device_compiler compiler);

// `load` of compilers whose entries cuda_cache.h keeps.
bool mgl_cuda_compiler_load(const char *folder, const mgl_cuda_cache_key *key, mgl_cuda_code *out);

#endif
