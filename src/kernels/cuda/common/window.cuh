// Sliding windows of attention, in the kernels of models that have some layers with one
// (MGL_HAS_WINDOWS): which positions a token sees, and where an item begins. Items are of the plan,
// which all layers share, so each layer leaves out what lies before its own window.
#ifndef MGL_KERNELS_CUDA_COMMON_WINDOW_CUH
#define MGL_KERNELS_CUDA_COMMON_WINDOW_CUH

#include "kernels/cuda/common/worker.cuh"

enum {
  // Windows are cut off in rounds of all warps, so that a tile is the same warp's whatever is left
  // out before it.
  MGL_WINDOW_STEP = MGL_CUDA_CONSUMER_WARPS * MGL_CUDA_KV_PAGE_TOKENS,
};

// The first position that the token of a position sees.
MGL_DEVICE uint32_t mgl_window_first(const mgl_cuda_op *op, uint32_t position) {
  if (!MGL_HAS_WINDOWS) {
    return 0;
  }
  const uint32_t window = mgl_op_window(op);
  return window != 0 && position >= window ? position + 1 - window : 0;
}

// The position that an item begins with in this layer: what none of its tokens sees is left out. It
// is behind the item's end where they see nothing of it.
MGL_DEVICE uint32_t mgl_window_begin(const mgl_cuda_op *op, uint32_t kv_begin, uint32_t position) {
  const uint32_t first = mgl_window_first(op, position) / MGL_WINDOW_STEP * MGL_WINDOW_STEP;
  return first > kv_begin ? first : kv_begin;
}

#endif
