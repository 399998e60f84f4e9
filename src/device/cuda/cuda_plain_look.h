// Parts of an iteration by plain kernels, for tests: ops that are left out, activations and KV
// pages by name, as f32 whatever is stored. As device/cpu/cpu_look.h has it of a CPU; op by op
// only, since graphs are of all ops.
#ifndef MGL_DEVICE_CUDA_CUDA_PLAIN_LOOK_H
#define MGL_DEVICE_CUDA_CUDA_PLAIN_LOOK_H

#include "device/cuda/cuda_plain.h"

// From now on only ops [first, last] are launched. All activations become NaN.
mgl_status mgl_cuda_plain_choose(mgl_cuda_plain *plain, uint32_t first, uint32_t last,
                                 mgl_error *err);

// The first `count` elements of an activation. MGL_ERR_ARGUMENT: there is none of that name, or it
// has fewer under the largest plan.
mgl_status mgl_cuda_plain_write(mgl_cuda_plain *plain, const char *name, const float *values,
                                size_t count, mgl_error *err);
mgl_status mgl_cuda_plain_read(const mgl_cuda_plain *plain, const char *name, float *out,
                               size_t count, mgl_error *err);

// A page of a layer's KV cache. k, v: [HKV, P, HD].
mgl_status mgl_cuda_plain_write_kv(mgl_cuda_plain *plain, const char *name, uint32_t page,
                                   const float *k, const float *v, mgl_error *err);
mgl_status mgl_cuda_plain_read_kv(const mgl_cuda_plain *plain, const char *name, uint32_t page,
                                  float *k, float *v, mgl_error *err);

#endif
