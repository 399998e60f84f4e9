// Whoever hands an attend task over finds here what the task begins with, so that its consumers
// have no trips to the L2 before they ask for keys.
#ifndef MGL_KERNELS_CUDA_ROLES_FIRST_ITEM_CUH
#define MGL_KERNELS_CUDA_ROLES_FIRST_ITEM_CUH

#include "kernels/cuda/common/window.cuh"

// A whole warp: of an attend task in a slot that is filled, its first item and the KV pages with
// which its warps begin. strides: of its graph's attention; tag: of its partial results. Two trips
// to the L2: how many items there are is asked for together with the item that is the first one if
// there are enough. Returns the plan's kind (mgl_plan_kind).
static __device__ __noinline__ uint32_t mgl_find_first_item(const mgl_cuda_run *run, mgl_slot *slot,
                                                            uint32_t strides, uint32_t tag) {
  static_assert(sizeof(mgl_cuda_item) == 48, "a word a lane, and one more");
  mgl_first_item *first = &slot->first;
  const mgl_cuda_plan *plan = slot->plan;
  const uint32_t lane = threadIdx.x % 32;
  const int32_t *tables = run->block_tables;
  const uint32_t table_stride = run->block_table_stride;
  const uint32_t kv_heads = run->kv_heads;
  uint32_t unit = slot->begin;
  uint32_t guess = unit % strides < MGL_CUDA_MAX_ITEMS ? unit % strides : 0;
  const uint32_t *word = (const uint32_t *)&plan->items[guess] + lane;
  const uint32_t *of_plan = lane == 12 ? &plan->item_count : &plan->kind;
  uint32_t found = lane <= 13 ? mgl_load_l2_word(lane < 12 ? word : of_plan) : 0;
  const uint32_t item_count = __shfl_sync(0xffffffffu, found, 12);
  const uint32_t kind = __shfl_sync(0xffffffffu, found, 13);
  while (unit < slot->end && unit % strides >= item_count) {
    unit++;
  }
  if (unit < slot->end && unit % strides != guess && lane < 12) {
    found = mgl_load_l2_word((const uint32_t *)&plan->items[unit % strides] + lane);
  }
  if (lane < 12) {
    ((uint32_t *)&first->item)[lane] = found;
  }
  __syncwarp();
  // Lanes 0 to 7: the warps' first tiles; then the item's own tokens.
  const mgl_cuda_item *i = &first->item;
  uint32_t position =
      mgl_window_begin(&slot->op, i->kv_begin, i->position) + lane * MGL_CUDA_KV_PAGE_TOKENS;
  bool wanted = lane < MGL_CUDA_CONSUMER_WARPS && position < i->kv_end && position < i->fresh;
  if (lane >= MGL_CUDA_CONSUMER_WARPS) {
    position = i->position + (lane == MGL_CUDA_CONSUMER_WARPS ? 0 : i->count - 1);
    wanted = lane < MGL_CUDA_CONSUMER_WARPS + 2;
  }
  uint32_t page = 0;
  if (wanted && unit < slot->end) {
    page = mgl_load_l2_word(tables + (size_t)i->slot * table_stride +
                            position / MGL_CUDA_KV_PAGE_TOKENS);
  }
#if MGL_TARGET_COPIES
  // Of one sequence keys and values come into the L2 while the linear before runs (docs/log/314).
  if (MGL_HEAD_PARTS == 1 && slot->op.tokens == 1 && wanted && unit < slot->end &&
      lane < MGL_CUDA_CONSUMER_WARPS) {
    constexpr uint32_t elements = MGL_CUDA_KV_PAGE_TOKENS * MGL_HEAD_DIM;
    const size_t at = ((size_t)page * kv_heads + unit / strides) * elements;
    mgl_bulk_to_l2(slot->op.k_cache + at, elements * (uint32_t)sizeof(uint16_t));
    mgl_bulk_to_l2(slot->op.v_cache + at, elements * (uint32_t)sizeof(uint16_t));
  }
#endif
  if (lane < MGL_CUDA_CONSUMER_WARPS) {
    first->pages[lane] = page;
  } else if (lane == MGL_CUDA_CONSUMER_WARPS) {
    first->own_first = page;
  } else if (lane == MGL_CUDA_CONSUMER_WARPS + 1) {
    first->own_last = page;
  } else if (lane == 31) {
    first->item_count = item_count;
    first->tag = tag;
    first->unit = unit;
    first->kv_head = unit / strides;
    first->strides = strides;
    first->kv_heads = kv_heads;
  }
  return kind;
}

#endif
