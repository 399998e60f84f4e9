// Elements in device memory, read and written as f32 whatever is stored, for those who look at
// parts of an iteration (cuda_look.c, cuda_plain_look.c). On the thread of the context.
#ifndef MGL_DEVICE_CUDA_CUDA_ELEMENTS_H
#define MGL_DEVICE_CUDA_CUDA_ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"
#include "device/cuda/cuda_driver.h"

// They are stored one behind the other: f32, bf16 or f16.
typedef struct mgl_cuda_elements {
  mgl_cu_ptr at;
  mgl_dtype dtype;
  size_t count;
} mgl_cuda_elements;

mgl_status mgl_cuda_elements_read(const mgl_cuda_driver *driver, mgl_cuda_elements from, float *out,
                                  mgl_error *err);
mgl_status mgl_cuda_elements_write(const mgl_cuda_driver *driver, mgl_cuda_elements to,
                                   const float *values, mgl_error *err);

// A page of K or V of a layer.
typedef struct mgl_cuda_kv_half {
  mgl_cuda_elements stored;
  size_t tokens, dims;  // P, HD
  bool is_turned;       // stored [HKV, HD, P]; else as it is read and written, [HKV, P, HD]
} mgl_cuda_kv_half;

// halves: K, and V.
mgl_status mgl_cuda_kv_read(const mgl_cuda_driver *driver, const mgl_cuda_kv_half halves[2],
                            float *k, float *v, mgl_error *err);
mgl_status mgl_cuda_kv_write(const mgl_cuda_driver *driver, const mgl_cuda_kv_half halves[2],
                             const float *k, const float *v, mgl_error *err);

#endif
