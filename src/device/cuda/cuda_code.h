// Device code for a GPU: from the cache on disk, else from the device's compiler. The one place
// that decides which.
//
// Of several processes that want the same code at once one compiles, behind a lock beside the
// cache's file, and the others wait for what it leaves. One that is killed meanwhile is replaced by
// the next; one that hangs is waited for as long as its compiler's table says. Without a lock (a
// folder that is read-only, or none) each compiles for itself.
#ifndef MGL_DEVICE_CUDA_CUDA_CODE_H
#define MGL_DEVICE_CUDA_CUDA_CODE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_jit.h"

enum { MGL_CUDA_NOTE_BYTES = 512 };

typedef struct mgl_cuda_code {
  void *cubin;  // freed with mgl_free
  size_t bytes;
  mgl_cuda_usage usage;            // of the kernel that was asked for; zeros where it is not known
  bool cached;                     // it was on disk
  char note[MGL_CUDA_NOTE_BYTES];  // what went wrong with the cache; "": nothing
} mgl_cuda_code;

// The cubin of the embedded source `name` for this GPU and shape. Without a compiler, cached code
// of any toolkit will do; MGL_ERR_UNSUPPORTED where there is none. *out is zeroed on failure.
typedef mgl_status mgl_cuda_code_function(const mgl_cuda_device *device, const char *name,
                                          const mgl_cuda_shape *shape, const char *kernel,
                                          mgl_cuda_code *out, mgl_error *err);

mgl_cuda_code_function mgl_cuda_code_get;

enum { MGL_CUDA_MAX_CODES = 8 };  // that are asked for at once

typedef struct mgl_cuda_code_wish {
  const char *name;  // of the source
  const char *kernel;
  mgl_cuda_code code;
} mgl_cuda_code_wish;

// All of them, each by `get` on a thread of its own: the compiler takes half a minute for the
// largest, and the others are done meanwhile. On failure there is no code.
mgl_status mgl_cuda_code_get_all(const mgl_cuda_device *device, const mgl_cuda_shape *shape,
                                 mgl_cuda_code_function *get, mgl_cuda_code_wish *wishes,
                                 size_t count, mgl_error *err);

#endif
