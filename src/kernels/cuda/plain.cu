// Plain kernels: one for each op of the tensor program that is not fused, for models that no fused
// task covers yet (twin/plain.def lists them; device/cuda/cuda_plain.c launches them).
#include "kernels/cuda/common/layout.h"
#include "kernels/cuda/plain/plain_attention.cuh"
#include "kernels/cuda/plain/plain_linear.cuh"
#include "kernels/cuda/plain/plain_ordered_experts.cuh"
#include "kernels/cuda/plain/plain_rows.cuh"

#define MGL_LAYOUT_PLAIN MGL_SAME_LAYOUT
#include "twin/layout.def"

// Two blocks on a multiprocessor at least: nothing said, the compiler spills for three.
#define MGL_PLAIN(enum_name, name)                                                            \
  extern "C" __global__ __launch_bounds__(MGL_PLAIN_THREADS, 2) void mgl_plain_kernel_##name( \
      const __grid_constant__ mgl_plain_op op) {                                              \
    mgl_plain_place at = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};                    \
    mgl_plain_##name(&op, at);                                                                \
  }
#include "twin/plain.def"
