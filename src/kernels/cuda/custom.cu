// A custom op as a kernel of its own, compiled with its source: all threads of a block call its
// function for each of the block's tiles of rows (device/cuda/cuda_custom.c launches it).
#include "kernels/cuda/common/layout.h"
#include "kernels/cuda/custom/custom_tiles.cuh"

#include "kernels/cuda/custom/custom_source.cuh"

#define MGL_LAYOUT_CUSTOM MGL_SAME_LAYOUT
#include "twin/layout.def"

extern "C" __global__ __launch_bounds__(MGL_CUSTOM_THREADS) void mgl_custom_kernel(
    const __grid_constant__ mgl_custom_launch launch) {
  megalith_custom_call call;
  for (uint64_t tile = blockIdx.x; mgl_custom_tile(&launch, tile, &call); tile += gridDim.x) {
    MGL_CUSTOM_OP(&call);
    __syncthreads();  // what it has in shared memory is the next tile's from here on
  }
}
