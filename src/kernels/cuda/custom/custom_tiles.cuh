// The tiles of rows of a custom op, spread over the blocks of a launch. Written in what C and CUDA
// C have in common, so that a test runs it without a GPU (tests/support/fake_cuda_custom.c).
#ifndef MGL_KERNELS_CUDA_CUSTOM_CUSTOM_TILES_CUH
#define MGL_KERNELS_CUDA_CUSTOM_CUSTOM_TILES_CUH

#include "twin/custom_call.h"

#ifdef __CUDACC__
#define MGL_CUSTOM_FN static __device__ __forceinline__
#else
#define MGL_CUSTOM_FN static inline
#endif

// Tile number `tile` of a launch; false: there is none.
MGL_CUSTOM_FN bool mgl_custom_tile(const mgl_custom_launch *launch, uint64_t tile,
                                   megalith_custom_call *out) {
  uint64_t first = tile * launch->tile_rows;
  if (first >= launch->rows) {
    return false;
  }
  uint64_t left = launch->rows - first;
  out->size = sizeof *out;
  out->context = 0;
  out->attributes = launch->attributes;
  out->input_types = launch->input_types;
  out->inputs = launch->inputs;
  out->output_type = &launch->output_type;
  out->output = launch->output;
  out->first_row = (uint32_t)first;
  out->end_row = (uint32_t)(first + (left < launch->tile_rows ? left : launch->tile_rows));
  return true;
}

#endif
