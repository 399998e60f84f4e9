// The megakernel of the wide class: iterations of up to 2048 tokens, one a launch, one block per
// SM, all resident (wide_run.h).
#include "kernels/cuda/attend/wide_attend.cuh"
#include "kernels/cuda/common/layout.h"
#include "kernels/cuda/linear/wide_linear.cuh"
#include "kernels/cuda/linear/wide_widen.cuh"
#include "kernels/cuda/roles/wide_factors.cuh"
#include "kernels/cuda/roles/wide_producer.cuh"
#include "kernels/cuda/roles/wide_ranks.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"
#include "kernels/cuda/roles/wide_worker_mma.cuh"
#include "kernels/cuda/small/wide_experts.cuh"
#include "kernels/cuda/small/wide_rope_kv.cuh"
#include "kernels/cuda/small/wide_tasks.cuh"
#include "twin/wide_run.h"

#define MGL_LAYOUT_WIDE MGL_SAME_LAYOUT
#include "twin/layout.def"

enum {
  // Threads start with 168 registers each, and hand them round: 256 threads * 224 + 128 * 56 are as
  // many.
  MGL_WIDE_CONSUMER_REGISTERS = 224,
  MGL_WIDE_SERVICE_REGISTERS = 56,
};

// The protocol's, which this kernel does not run: a launch is one iteration.
static __device__ int mgl_ask_next_plan(mgl_protocol *, uint64_t) {
  return -1;
}

// Whose body an op has: linears of mixtures have that of others, since of two loops of products the
// compiler lets all products wait (C7512).
MGL_DEVICE uint32_t mgl_wide_body_of(const mgl_cuda_op *op) {
  return MGL_WIDE_EXPERTS && mgl_wide_is_of_mixture(op->kind) ? (uint32_t)MGL_OP_LOGITS : op->kind;
}

// A task. All of them in one function: one with an ABI gets no more registers than service warps
// have.
MGL_DEVICE void mgl_wide_run_task(mgl_wide_worker *w, const mgl_wide_slot *slot) {
  if constexpr (MGL_WIDE_EXPERTS) {
    if (mgl_wide_is_around_experts(slot->op.kind)) {
      mgl_wide_task_experts(w, slot);
      return;
    }
  }
  switch (mgl_wide_body_of(&slot->op)) {
    case MGL_OP_QKV_PROJ:
    case MGL_OP_LINEAR_ADD:
    case MGL_OP_GATE_UP:
    case MGL_OP_LOGITS: mgl_wide_task_linear(w, slot); break;
    case MGL_OP_KV_WRITE:
      if constexpr (MGL_RANKS > 1) {
        const uint32_t by = mgl_wide_turned_by(w, &slot->op, slot->step.begin);
        mgl_wide_rope_kv(&slot->with.attention, slot->step.begin + by,
                         mgl_wide_least(slot->step.end + by, w->block->token_count), threadIdx.x);
      } else {  // with an addend that is 0 the kernel of codes spills more
        mgl_wide_rope_kv(&slot->with.attention, slot->step.begin,
                         mgl_wide_least(slot->step.end, w->block->token_count), threadIdx.x);
      }
      break;
    case MGL_OP_ATTEND: {
      const bool early = mgl_wide_begins_early(slot->op.kind);
      const mgl_attend_gate gate = {early ? &w->block->factored[w->slot] : nullptr, w->parity,
                                    &w->run->fault};
      mgl_wide_attend(&slot->with.attention, w->memory, slot->step.begin, threadIdx.x, &gate);
      break;
    }
    case MGL_OP_EMBED: mgl_wide_task_embed(w, slot); break;
    case MGL_OP_ROPE_ANGLES: mgl_wide_task_angles(w, slot); break;
    case MGL_OP_RMSNORM: mgl_wide_task_norm(w, slot); break;
    case MGL_WIDE_WIDEN: mgl_wide_task_widen(w, slot); break;
    default: break;
  }
}

#if MGL_TARGET_WGMMA

// Tasks in the order of the list.
MGL_DEVICE void mgl_wide_consume(mgl_wide_worker *w) {
  while (mgl_wide_wait(w, &w->block->go[w->slot], w->parity)) {
    const mgl_wide_slot *slot = &w->block->slots[w->slot];
    mgl_widen_rest(w, slot->op.kind == MGL_OP_ATTEND);
    mgl_wide_run_task(w, slot);
    mgl_widen_rest(w, false);
    mgl_proxy_fence();
    __syncwarp();
    if (w->lane == 0) {
      mgl_mbarrier_arrive(&w->block->done[w->slot]);
    }
    mgl_wide_next_slot(w);
  }
}

static __device__ void mgl_wide_block_init(mgl_wide_block *block) {
  for (uint32_t i = 0; i < MGL_WIDE_SLOTS; i++) {
    mgl_mbarrier_init(&block->go[i], 1);
    mgl_mbarrier_init(&block->done[i], MGL_WIDE_CONSUMER_WARPS);
    mgl_mbarrier_init(&block->factored[i], 1);
    mgl_mbarrier_init(&block->stored[i], 1);
  }
  for (uint32_t i = 0; i < MGL_WIDE_STAGES; i++) {
    mgl_mbarrier_init(&block->full[i], 1);
    mgl_mbarrier_init(&block->empty[i], MGL_WIDE_CONSUMER_WARPS);
  }
  block->stop = 0;
  block->rests = 0;
  block->given = 0;
  block->finished = 0;
  for (uint32_t i = 0; i < MGL_WIDE_BOUNCES; i++) {
    mgl_mbarrier_init(&block->bounced[i], 1);
  }
  mgl_mbarriers_made();
}

// A warp's part in the block's list.
MGL_DEVICE void mgl_wide_walk(mgl_wide_worker *w) {
  if (w->warp < MGL_WIDE_CONSUMER_WARPS) {
    mgl_set_registers<MGL_WIDE_CONSUMER_REGISTERS, true>();
    mgl_wide_consume(w);
  } else {
    mgl_set_registers<MGL_WIDE_SERVICE_REGISTERS, false>();
    if (w->warp == MGL_WIDE_CONSUMER_WARPS) {
      mgl_wide_produce(w);
    } else if (w->warp == MGL_WIDE_CONSUMER_WARPS + 1) {
      if (w->lane == 0) {
        mgl_wide_store(w);
      }
    } else if (w->warp == MGL_WIDE_CONSUMER_WARPS + 2) {
      mgl_wide_find_factors(w);
    } else if (MGL_RANKS > 1) {
      mgl_wide_send(w);
    } else {
      mgl_wide_widen_beside(w);
    }
  }
}

#else

MGL_DEVICE void mgl_wide_walk(mgl_wide_worker *w) {
  const uint32_t end = w->run->step_start[blockIdx.x + 1];
#pragma unroll 1
  for (uint32_t at = w->run->step_start[blockIdx.x]; at < end; at++) {
    const mgl_wide_slot *slot = mgl_wide_take_step(w, at);
    if (!mgl_wide_begin_step(w, slot)) {
      break;
    }
    mgl_wide_run_task(w, slot);
    mgl_wide_end_step(w, slot);
  }
  mgl_copy_wait<0>();  // no block ends with copies on their way
}

#endif

extern "C" __global__ void __launch_bounds__(MGL_TARGET_WGMMA ? (int)MGL_WIDE_THREADS
                                                              : (int)MGL_WIDE_MMA_THREADS,
                                             1) mgl_wide_kernel(mgl_wide_run *run) {
  extern __shared__ __align__(1024) uint8_t memory[];
  if (run->steps == nullptr || run->tile_tokens != MGL_WIDE_TILE_TOKENS) {
    return;  // queued behind the last iteration of a chain, or beside the kernel that has the tiles
  }
  mgl_wide_worker w = mgl_wide_worker_of(run, memory);
  if (threadIdx.x == 0) {
    mgl_wide_block_init(w.block);
    w.block->counters = run->counters;
    w.block->token_count = run->plan->token_count;
    w.block->logit_rows = run->plan->logit_row_count;
    w.block->takes_rows = run->plan->takes_rows;
    w.block->wanted_count = 0;
    w.block->wanted_bits = UINT32_MAX;
    w.block->rank = run->rank;
    w.block->sent = run->step_start[blockIdx.x];
    for (uint32_t i = 0; i < MGL_RANKS; i++) {
      w.block->peers[i] = run->peers[i];
    }
  }
  __syncthreads();
  if (MGL_WIDE_WANTED_FIRST || (MGL_RANKS > 1 && w.block->token_count > MGL_WIDE_TILE_TOKENS)) {
    if (w.warp == 0) {
      mgl_wide_find_wanted_once(&w);
    }
    __syncthreads();
  }
  mgl_wide_walk(&w);
}
