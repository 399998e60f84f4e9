// attend of the wide class: streams (sequences that decode) and tiles (chunks of prompts) of the
// work list (twin/wide_items.h), all keys and values from the paged cache, into which rope_kv has
// put the iteration's own.
#ifndef MGL_KERNELS_CUDA_ATTEND_WIDE_ATTEND_CUH
#define MGL_KERNELS_CUDA_ATTEND_WIDE_ATTEND_CUH

#include "kernels/cuda/attend/wide_streams.cuh"
#include "kernels/cuda/attend/wide_tiles.cuh"

// The share of one worker in the iteration's attention of a layer. All consumers call it. smem:
// MGL_WIDE_ATTEND_BYTES, aligned to 1024 bytes, into which nothing is on its way; all accesses end
// before the return, but a bulk copy into it needs a proxy fence and a barrier first. gate: what it
// waits for before it reads queries, or pages that the iteration writes; pages that were there
// before are asked for at once.
MGL_DEVICE void mgl_wide_attend(const mgl_wide_attention *a, uint8_t *smem, uint32_t worker,
                                uint32_t thread, const mgl_attend_gate *gate) {
  // The compiler must find what follows from the thread's number here, task by task. It would find
  // it before the first task, and fetch it from local memory wherever it is used (docs/log/139).
  asm volatile("" : "+r"(thread));
  mgl_wide_streams(a, smem, worker, thread, gate);
  mgl_wide_tiles(a, smem, worker, thread);
}

#endif
