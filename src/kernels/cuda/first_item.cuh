// What an attend task begins with: found by whoever hands the task over, so that its consumers have
// no trips to the L2 before they ask for keys.
#ifndef MGL_KERNELS_CUDA_FIRST_ITEM_CUH
#define MGL_KERNELS_CUDA_FIRST_ITEM_CUH

#include "kernels/cuda/worker.cuh"

// A whole warp: of an attend task in a slot that is filled, its first item and the KV pages with
// which its warps begin.
static __device__ __noinline__ void mgl_find_first_item(const mgl_cuda_run *run, mgl_slot *slot) {
  mgl_first_item *first = &slot->first;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t item_count = mgl_load_l2_word(&slot->plan->item_count);
  const uint32_t strides = run->graphs[slot->graph].attention_strides;
  uint32_t unit = slot->begin;
  while (unit < slot->end && unit % strides >= item_count) {
    unit++;
  }
  uint32_t index = unit < slot->end ? unit % strides : 0;
  static_assert(sizeof(mgl_cuda_item) == 48, "a word a lane");
  const uint32_t *item = (const uint32_t *)&slot->plan->items[index];
  uint32_t word = lane < 12 ? mgl_load_l2_word(item + lane) : 0;
  if (lane < 12) {
    ((uint32_t *)&first->item)[lane] = word;
  }
  __syncwarp();
  // Lanes 0 to 7: the warps' first tiles; then the item's own tokens.
  const mgl_cuda_item *i = &first->item;
  uint32_t position = i->kv_begin + lane * MGL_CUDA_KV_PAGE_TOKENS;
  bool wanted = lane < MGL_CUDA_CONSUMER_WARPS && position < i->kv_end && position < i->fresh;
  if (lane >= MGL_CUDA_CONSUMER_WARPS) {
    position = i->position + (lane == MGL_CUDA_CONSUMER_WARPS ? 0 : i->count - 1);
    wanted = lane < MGL_CUDA_CONSUMER_WARPS + 2;
  }
  uint32_t page = 0;
  if (wanted && unit < slot->end) {
    page = mgl_load_l2_word(run->block_tables + (size_t)i->slot * run->block_table_stride +
                            position / MGL_CUDA_KV_PAGE_TOKENS);
  }
  if (lane < MGL_CUDA_CONSUMER_WARPS) {
    first->pages[lane] = page;
  } else if (lane == MGL_CUDA_CONSUMER_WARPS) {
    first->own_first = page;
  } else if (lane == MGL_CUDA_CONSUMER_WARPS + 1) {
    first->own_last = page;
  } else if (lane == 31) {
    first->item_count = item_count;
    first->unit = unit;
    first->kv_head = unit / strides;
    first->strides = strides;
    first->kv_heads = run->kv_heads;
  }
}

#endif
