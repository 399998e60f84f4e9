// A worker of the wide class without service warps: the portable kernel's. Its eight warps walk the
// block's list together, each thread with up to 255 registers: it has no way to move registers from
// service warps to consumers, and a quarter less would not hold a tile's sums and attention's rows.
//
// Weights of a tile's first stages are asked for before the event is waited for. What is lost
// against service warps: nothing is on its way while a task's results are written.
//
// Memory order: an event's acquire by one thread and the barrier behind it; the barrier behind a
// task's results, and one thread's release.
#ifndef MGL_KERNELS_CUDA_ROLES_WIDE_WORKER_MMA_CUH
#define MGL_KERNELS_CUDA_ROLES_WIDE_WORKER_MMA_CUH

#include "kernels/cuda/linear/wide_gemm_mma.cuh"
#include "kernels/cuda/roles/wide_factors.cuh"
#include "kernels/cuda/roles/wide_producer.cuh"
#include "kernels/cuda/roles/wide_ranks.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

#if !MGL_TARGET_WGMMA

static __device__ void mgl_wide_block_init(mgl_wide_block *block) {
  for (uint32_t i = 0; i < MGL_WIDE_SLOTS; i++) {
    mgl_mbarrier_init(&block->factored[i], MGL_WIDE_CONSUMERS);
    mgl_mbarrier_init(&block->stored[i], 1);
  }
  block->stop = 0;
}

// Fills the slot with step `at`. All threads get it.
MGL_DEVICE const mgl_wide_slot *mgl_wide_take_step(mgl_wide_worker *w, uint32_t at) {
  if (w->warp == 0) {
    mgl_wide_known known = {{0, 0, 0, 0}, UINT32_MAX, MGL_NO_EVENT};
    (void)mgl_wide_fill_slot(w, at, at, at + 1, &known);
  }
  mgl_sync_wide_consumers();
  return &w->block->slots[w->slot];
}

// Until the step's event is activated. False: the launch was ended.
MGL_DEVICE bool mgl_wide_await_step(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  if (w->warp == 0 && !mgl_wide_wait_event(w, &slot->step)) {
    w->block->stop = 1;
  }
  if (w->warp == 0) {
    mgl_wide_note_stage(w, &slot->step);
  }
  mgl_sync_wide_consumers();
  return w->block->stop == 0;
}

// The factors of the tile's tokens, four a thread, if the step has a norm before it.
MGL_DEVICE void mgl_wide_leave_factors(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                       const mgl_wide_tile *tile) {
  const uint32_t token = (w->warp * 32 + w->lane) * 4;
  if (slot->op.norm != nullptr && token < MGL_WIDE_TILE_TOKENS) {
    *(float4 *)&w->block->factors[w->slot][token] =
        mgl_wide_factors(&slot->op, tile->token + token);
  }
}

// Waits for the step, and for a linear asks for its first stages. False: the launch was ended.
MGL_DEVICE bool mgl_wide_begin_step(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  bool ok = true;
  if (!mgl_op_kind_is_linear(slot->op.kind)) {
    ok = mgl_wide_await_step(w, slot);
  } else {
    const mgl_wide_tile tile = mgl_wide_tile_of(w, slot);
    mgl_wide_set_source(w, slot, &tile);
    w->source.stages = tile.tokens == 0 ? 0 : w->source.stages;
#pragma unroll
    for (uint32_t i = 0; i < MGL_MMA_AHEAD; i++) {
      mgl_wide_ask_weights(w, i);
    }
    ok = mgl_wide_await_step(w, slot);
#pragma unroll
    for (uint32_t i = 0; i < MGL_MMA_AHEAD && ok; i++) {
      mgl_wide_ask_x(w, i);
    }
    if (ok && tile.tokens > 0) {
      mgl_wide_leave_factors(w, slot, &tile);
    }
  }
  mgl_mbarrier_arrive(&w->block->factored[w->slot]);
  return ok;
}

// Stores what gate_up staged, a tile of a column of x.
MGL_DEVICE void mgl_wide_store_tile(const mgl_wide_worker *w, const mgl_wide_slot *slot) {
  const mgl_wide_tile tile = mgl_wide_tile_of(w, slot);
  const uint64_t column = tile.first_block / MGL_WIDE_FEATURE_BLOCKS;
  uint4 *to = (uint4 *)((uint8_t *)slot->op.out +
                        (column * slot->op.tokens + tile.token) * MGL_WIDE_ROW_BYTES);
  const uint32_t thread = w->warp * 32 + w->lane;
  if (tile.tokens == 0 || w->block->writes[w->slot] == 0) {
    return;
  }
#pragma unroll
  for (uint32_t i = thread; i < MGL_WIDE_X_BYTES / 16; i += MGL_WIDE_CONSUMERS) {
    to[i] = mgl_load_shared(w->stages + i * 16);
  }
}

// Behind the task: its results go to memory, and its event is triggered.
MGL_DEVICE void mgl_wide_end_step(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  mgl_sync_wide_consumers();
  if (slot->op.kind == MGL_OP_GATE_UP) {
    mgl_wide_store_tile(w, slot);
    mgl_sync_wide_consumers();
  }
  if (MGL_RANKS > 1 && slot->step.trigger_kind != MGL_NO_EVENT) {
    mgl_wide_send_step(w, &slot->op, slot->step.begin, slot->step.end, w->warp * 32 + w->lane,
                       MGL_WIDE_CONSUMERS, nullptr);
    mgl_sync_wide_consumers();
    if (w->warp == 0 && w->lane == 0) {
      mgl_wide_trigger_others(w, slot->step.trigger_kind);
    }
  }
  if (w->warp == 0 && w->lane == 0) {
    if (slot->step.trigger_event != MGL_NO_EVENT) {
      mgl_add_release(&w->block->counters[slot->step.trigger_event], 1);
    }
    mgl_mbarrier_arrive(&w->block->stored[w->slot]);
  }
  mgl_wide_next_slot(w);
}

#endif

#endif
