// Workers of the wide class where a model runs on several ranks (wide_run.h): what of a step goes
// to the others. A service warp copies parts of sums while the consumers multiply the next tile,
// and triggers the others' events; the portable kernel's threads do both behind each step.
#ifndef MGL_KERNELS_CUDA_ROLES_WIDE_RANKS_CUH
#define MGL_KERNELS_CUDA_ROLES_WIDE_RANKS_CUH

#include "kernels/cuda/common/ranks.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

static __device__ __forceinline__ bool mgl_wide_is_over(const mgl_cuda_op *op) {
  return MGL_RANKS > 1 && (op->flags & MGL_WIDE_OVER) != 0;
}

// Whether the end of such a step is one for all ranks. (Else its consumers have sent and waited.)
static __device__ __forceinline__ bool mgl_wide_ends_for_all(const mgl_cuda_op *op) {
  return mgl_wide_is_over(op) && (op->flags & MGL_WIDE_WEIGHS) == 0;
}

// Of these ops, linear_add: it alone has no norm.
static __device__ __forceinline__ bool mgl_wide_leaves_parts(const mgl_cuda_op *op) {
  return op->norm == nullptr;
}

// The rank that adds up a token's row, of MGL_WIDE_SCATTERS.
static __device__ __forceinline__ uint32_t mgl_wide_owner(uint32_t token) {
  return token / MGL_WIDE_TILE_TOKENS % MGL_RANKS;
}

// Thread `thread` of `threads`: its share of what a step of a linear_add has left, to all others
// that add it up. Pieces of 512 bytes are eight tokens of 16 features.
static __device__ __forceinline__ void mgl_wide_send_part(const mgl_wide_worker *w,
                                                          const mgl_wide_slot *slot,
                                                          uint32_t thread, uint32_t threads) {
  constexpr int batch = 8;
  const mgl_wide_tile tile = mgl_wide_tile_of(w, slot);
  const uint32_t pieces = (tile.tokens + 7) / 8 * 32;  // of a row block
  const bool scatters = (slot->op.flags & MGL_WIDE_SCATTERS) != 0;
  const uint32_t owner = mgl_wide_owner(tile.token);
  if (scatters && owner == w->block->rank) {
    return;
  }
  for (uint32_t block = 0; block < tile.blocks && tile.tokens > 0; block++) {
    const uint64_t at =
        (uint64_t)(tile.first_block + block) * (slot->op.tokens / 8) + tile.token / 8;
    float4 *own = (float4 *)((uint8_t *)slot->op.out + tile.split * slot->op.copy_bytes) + at * 32;
#pragma unroll 1
    for (uint32_t first = thread; first < pieces; first += batch * threads) {
      float4 v[batch];
#pragma unroll
      for (int i = 0; i < batch; i++) {
        v[i] = first + i * threads < pieces ? __ldcg(own + first + i * threads)
                                            : make_float4(0, 0, 0, 0);
      }
#pragma unroll 1
      for (uint32_t to = 0; to < MGL_RANKS; to++) {
        float4 *there = mgl_at_peer(own, w->block->peers[to]);
#pragma unroll
        for (int i = 0; i < batch; i++) {
          if (to != w->block->rank && (!scatters || to == owner) && first + i * threads < pieces) {
            there[first + i * threads] = v[i];
          }
        }
      }
    }
  }
}

// One thread, behind a barrier of those that have sent: the step has ended, for the other ranks.
static __device__ __forceinline__ void mgl_wide_trigger_others(const mgl_wide_worker *w,
                                                               const mgl_wide_slot *slot) {
  mgl_word *counter = &w->block->counters[slot->step.trigger_event];
  for (uint32_t to = 0; to < MGL_RANKS; to++) {
    if (to != w->block->rank) {
      // Release, paired with the acquire in mgl_wide_look.
      mgl_add_release_system(mgl_at_peer(counter, w->block->peers[to]), 1);
    }
  }
}

// One warp.
static __device__ __forceinline__ void mgl_wide_send(mgl_wide_worker *w) {
  while (mgl_wide_wait(w, &w->block->go[w->slot], w->parity)) {
    const mgl_wide_slot *slot = &w->block->slots[w->slot];
    mgl_mbarrier_wait(&w->block->done[w->slot], w->parity);
    if (mgl_wide_ends_for_all(&slot->op)) {
      if (mgl_wide_leaves_parts(&slot->op)) {
        mgl_wide_send_part(w, slot, w->lane, 32);
      }
      __syncwarp();
      if (w->lane == 0) {
        mgl_wide_trigger_others(w, slot);
      }
    }
    __syncwarp();
    if (w->lane == 0) {
      mgl_mbarrier_arrive(&w->block->stored[w->slot]);
    }
    mgl_wide_next_slot(w);
  }
}

#endif
