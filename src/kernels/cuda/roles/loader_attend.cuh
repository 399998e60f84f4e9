// The loader's part in attention: it brings keys and values of an attend task into the L2 while the
// worker still computes the linear before it, when the memory has little to do.
//
// Only into the L2, which everybody's writes have gone to: so it waits for nothing, and whether the
// task before has ended does not matter. (Into the ring of pages would take a proof that what was
// written there in the iteration before can be seen.) A part of the task's bytes, since all workers
// ask for theirs at once, and the L2 has to hold what they have together.
#ifndef MGL_KERNELS_CUDA_ROLES_LOADER_ATTEND_CUH
#define MGL_KERNELS_CUDA_ROLES_LOADER_ATTEND_CUH

#include "kernels/cuda/common/worker.cuh"

#if MGL_TARGET_COPIES

enum {
  MGL_AHEAD_BYTES = MGL_CUDA_KV_PAGE_TOKENS * MGL_HEAD_DIM * 2,  // of a page's K or V of a KV head
  MGL_AHEAD_TILES = 196608 / (2 * MGL_AHEAD_BYTES),              // of a task: 192 KiB of K and V
};

static __device__ __forceinline__ void mgl_ahead_ask(const uint16_t *from) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
               "r"((uint32_t)MGL_AHEAD_BYTES)
               : "memory");
}

// A whole warp: of the attend task [begin, end) of op `op`. Tasks of one short item ask for it
// themselves, long before its queries are there.
static __device__ __noinline__ void mgl_ask_attend_ahead(const mgl_cuda_run *run,
                                                         const mgl_cuda_graph *graph,
                                                         uint64_t iteration, uint32_t op,
                                                         uint32_t begin, uint32_t end) {
  const mgl_cuda_plan *plan = &run->plans[iteration & 1];
  const uint32_t strides = graph->attention_strides;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t item_count = mgl_load_l2_word(&plan->item_count);
  if (item_count <= strides) {
    return;
  }
  const uint16_t *k_cache = graph->ops[op].k_cache;
  const uint16_t *v_cache = graph->ops[op].v_cache;
  uint32_t left = MGL_AHEAD_TILES;
  for (uint32_t unit = begin; unit < end; unit++) {
    for (uint32_t i = unit % strides; i < item_count && left > 0; i += strides) {
      const uint8_t *from = (const uint8_t *)&plan->items[i];
      const uint4 first = mgl_load_l2(from), second = mgl_load_l2(from + 16);
      const uint32_t fresh = second.y, kv_begin = second.z, kv_end = second.w;
      const uint32_t cached = fresh < kv_end ? fresh : kv_end;
      uint32_t tiles = cached > kv_begin ? (cached - kv_begin + MGL_CUDA_KV_PAGE_TOKENS - 1) /
                                               MGL_CUDA_KV_PAGE_TOKENS
                                         : 0;
      tiles = tiles < left ? tiles : left;
      tiles = tiles < 32 ? tiles : 32;
      if (lane < tiles) {
        const int32_t *table = run->block_tables + (size_t)first.x * run->block_table_stride;
        const uint32_t page = mgl_load_l2_word(table + kv_begin / MGL_CUDA_KV_PAGE_TOKENS + lane);
        const size_t at = ((size_t)page * run->kv_heads + unit / strides) * (MGL_AHEAD_BYTES / 2);
        mgl_ahead_ask(k_cache + at);
        mgl_ahead_ask(v_cache + at);
      }
      left -= tiles;
    }
  }
}

#endif
#endif
