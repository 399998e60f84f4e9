// How fast all multiprocessors of a GPU read memory: the ceiling of a decode step.
#ifndef MGL_DEVICE_CUDA_CUDA_CEILING_H
#define MGL_DEVICE_CUDA_CUDA_CEILING_H

#include <stdint.h>

#include "base/status.h"
#include "device/cuda/cuda_driver.h"

// What is read, and by what.
typedef struct mgl_cuda_ceiling {
  const mgl_cuda_device *device;
  void *module;  // of kernels/cuda/weights.cu
  void *stream;
  mgl_cu_ptr memory;
  uint64_t bytes;
  mgl_cu_ptr out;  // some memory that the kernel may write to
} mgl_cuda_ceiling;

// Best of `passes` readings, in bytes per second.
mgl_status mgl_cuda_ceiling_measure(const mgl_cuda_ceiling *ceiling, uint32_t passes,
                                    double *out_bytes_per_s, mgl_error *err);

#endif
