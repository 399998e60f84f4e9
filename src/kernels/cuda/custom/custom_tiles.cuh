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

// The tile that begins with row `first` and ends before row `end`; false: there is none.
MGL_CUSTOM_FN bool mgl_custom_rows(const mgl_custom_launch *launch, uint64_t first, uint64_t end,
                                   megalith_custom_call *out) {
  end = end < launch->rows ? end : launch->rows;
  if (first >= end) {
    return false;
  }
  uint64_t left = end - first;
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

// Tile number `tile` of a launch; false: there is none.
MGL_CUSTOM_FN bool mgl_custom_tile(const mgl_custom_launch *launch, uint64_t tile,
                                   megalith_custom_call *out) {
  return mgl_custom_rows(launch, tile * launch->tile_rows, launch->rows, out);
}

MGL_CUSTOM_FN void mgl_custom_set_rows(megalith_tensor_type *type, uint32_t tokens,
                                       uint32_t logit_rows) {
  if (type->rows != MEGALITH_ROWS_FIXED) {
    type->dims[0] = type->rows == MEGALITH_ROWS_TOKENS ? tokens : logit_rows;
  }
}

// A launch as a plan has it that was made on the device: how many rows there are, and where those
// of its inputs lie that are the plan's.
MGL_CUSTOM_FN void mgl_custom_set_plan(mgl_custom_launch *launch, uint32_t tokens,
                                       uint32_t logit_rows, const int32_t *token_ids,
                                       const uint32_t *positions) {
  for (uint32_t i = 0; i < MEGALITH_MAX_CUSTOM_INPUTS; i++) {
    mgl_custom_set_rows(&launch->input_types[i], tokens, logit_rows);
    if (launch->of_plan[i] == MGL_CUSTOM_OF_TOKENS) {
      launch->inputs[i] = token_ids;
    } else if (launch->of_plan[i] == MGL_CUSTOM_OF_POSITIONS) {
      launch->inputs[i] = positions;
    }
  }
  mgl_custom_set_rows(&launch->output_type, tokens, logit_rows);
  launch->rows = launch->output_type.dims[0];
}

#endif
