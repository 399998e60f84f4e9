// The megakernel: one block per SM, all resident, one launch for many iterations.
//
// Blocks [0, workers) are workers; behind them come those of dedicated schedulers, up to four each.
// The warps of a worker block have roles, one file per role; what they run is the protocol that the
// CPU runs. Compiled at run time for the present GPU and model (device/cuda/cuda_jit.h).
#include "kernels/cuda/attend/attend_decode.cuh"
#include "kernels/cuda/attend/attend_warps.cuh"
#include "kernels/cuda/attend/tasks_attend.cuh"
#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/common/layout.h"
#include "kernels/cuda/common/trace.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/custom/tasks_custom.cuh"
#include "kernels/cuda/linear/tasks_experts.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"
#include "kernels/cuda/linear/tasks_linear_coded.cuh"
#include "kernels/cuda/linear/tasks_linear_one.cuh"
#include "kernels/cuda/linear/tasks_linear_paged.cuh"
#include "kernels/cuda/linear/tasks_linear_rows.cuh"
#include "kernels/cuda/roles/call_task.cuh"
#include "kernels/cuda/roles/role_controller.cuh"
#include "kernels/cuda/roles/role_loader.cuh"
#include "kernels/cuda/roles/role_planner.cuh"
#include "kernels/cuda/roles/role_scheduler.cuh"
#include "kernels/cuda/roles/role_storer.cuh"
#include "kernels/cuda/small/tasks_iteration.cuh"
#include "kernels/cuda/small/tasks_ranks.cuh"
#include "kernels/cuda/small/tasks_sample.cuh"
#include "twin/device_run.h"

#define MGL_LAYOUT_RUN MGL_SAME_LAYOUT
#include "twin/layout.def"

// A task without work (mgl_cuda_program_choose, or a measurement): it waits, and takes the pages
// that the loader streams for it.
MGL_DEVICE void mgl_task_nothing(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  if (!mgl_task_begin(w) || slot->op.kind != MGL_CUDA_OP_STREAMED) {
    return;
  }
  uint32_t pages = (slot->end - slot->begin) * mgl_pages_of_block(slot->op.k_padded);
  for (uint32_t i = 0; i < pages * slot->op.passes; i++) {
    mgl_mbarrier_wait(&w->block->page_full[w->page], w->page_parity);
    __syncwarp();
    if (w->lane == 0) {
      mgl_mbarrier_arrive(&w->block->page_free[w->page]);
    }
    mgl_next_page(w);
  }
}

// The state with its place in a ring as long as the task wants it. Here and not in mgl_call, where
// a task that takes no pages would have to keep the place apart from the rest of the state.
MGL_DEVICE uint32_t mgl_enter_ring(const mgl_slot *slot, uint32_t state) {
  if (MGL_LOADER_LANES > 1) {
    return state;  // rings have one length there (mgl_cuda_ring_pages)
  }
  uint32_t page = state >> 8, parity = state >> 2 & 1;
  mgl_page_ring_enter(slot->ring_pages, &page, &parity);
  return page << 8 | parity << 2 | (state & 3);
}

MGL_DEVICE uint32_t mgl_run_task(mgl_cuda_run *run, mgl_block *block, uint32_t state) {
  const uint32_t function = block->slots[state & 1].function;
  state = mgl_enter_ring(&block->slots[state & 1], state);
  if (MGL_HAS_CODES && function >= MGL_CALL_CODED) {
    return mgl_find_coded<1>(run, block, state, function - MGL_CALL_CODED);
  }
#define MGL_IF_FIRST(ENUM, ...)                      \
  if (function == MGL_CALL_##ENUM) {                 \
    return mgl_call<__VA_ARGS__>(run, block, state); \
  }
#define MGL_IF_THEN(...)
#define MGL_TASK(ENUM, name, KIND, order, ...) MGL_IF_##order(ENUM, __VA_ARGS__)
#define MGL_TASK_ATTEND(ENUM, name, order, ...) MGL_IF_##order(ENUM, __VA_ARGS__)
#define MGL_TASK_LINEAR(ENUM, name, order, from, ...) MGL_IF_##order(ENUM, __VA_ARGS__)
#include "twin/variant.def"
#define MGL_CASE_FIRST(...)
#define MGL_CASE_THEN(ENUM, ...) \
  case MGL_CALL_##ENUM:          \
    return mgl_call<__VA_ARGS__>(run, block, state);
#define MGL_TASK(ENUM, name, KIND, order, ...) MGL_CASE_##order(ENUM, __VA_ARGS__)
#define MGL_TASK_ATTEND(ENUM, name, order, ...) MGL_CASE_##order(ENUM, __VA_ARGS__)
#define MGL_TASK_LINEAR(ENUM, name, order, from, ...) \
  MGL_TARGET_IF_##from(MGL_CASE_##order(ENUM, __VA_ARGS__))
  switch (function) {
#include "twin/variant.def"
    default: return mgl_call<mgl_task_nothing>(run, block, state);
  }
}

// The consumer warps: the block's tasks in the order of its slots.
static __device__ void mgl_consumers_run(mgl_cuda_run *run, mgl_block *block) {
  uint32_t state = 0;
  for (;;) {
    uint32_t slot = state & 1;
    uint32_t parity = state >> 1 & 1;
    if (!mgl_mbarrier_wait_or_stop(block, &block->announced[slot], parity)) {
      return;
    }
    mgl_sync_consumers();  // all have read what the task before left in scratch
    state = mgl_run_task(run, block, state);
#if MGL_RANKS > 1
    if (mgl_is_exchanged(&block->slots[slot].op)) {
      state = mgl_call<mgl_task_sum_parts>(run, block, state);
    }
#endif
    if (block->stop != 0 && !mgl_mbarrier_test(&block->go[slot], parity)) {
      return;  // it was never let go
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      mgl_mbarrier_arrive(&block->done[slot]);
    }
    state ^= slot == 0 ? 1 : 3;  // slots 0 and 1 in turn, then their other phase
  }
}

static __device__ void mgl_block_init(const mgl_cuda_run *run, mgl_block *block) {
  const uint32_t pages = run->page_count;
  for (uint32_t i = 0; i < MGL_CUDA_SLOTS; i++) {
    mgl_mbarrier_init(&block->announced[i], 1);
    mgl_mbarrier_init(&block->go[i], 1);
    mgl_mbarrier_init(&block->began[i], 1);
    mgl_mbarrier_init(&block->done[i], MGL_CUDA_CONSUMER_WARPS);
    mgl_mbarrier_init(&block->stored[i], 1);
  }
  mgl_init_pages(block, pages);
  block->page_count = (uint16_t)pages;
  block->debug = run->delay != 0 || run->injection != MGL_INJECT_NONE ? 1 : 0;
  block->activated = 0;
  block->arrived = 0;
  block->ended = 0;
  for (uint32_t i = 0; i < MGL_CUDA_SLOTS; i++) {
    block->slots[i].told = 0;
  }
  block->heard = 0;
  block->stop = 0;
  mgl_mbarriers_made();
}

enum {
  // Threads start with 168 registers each, and hand them round: 256 threads * 208 + 128 * 88 are as
  // many, and so are 256 * 200 + 128 * 104. These the loader of experts of codes needs, which
  // otherwise keeps in local memory what it knows of its next tasks (docs/log/296).
  MGL_CONSUMER_REGISTERS = MGL_HAS_EXPERTS && MGL_HAS_CODES ? 200 : 208,
  MGL_ROLE_REGISTERS = MGL_HAS_EXPERTS && MGL_HAS_CODES ? 104 : 88,
};

extern "C" __global__ void __launch_bounds__(MGL_CUDA_THREADS, 1)
    mgl_megakernel(mgl_cuda_run *run) {
  extern __shared__ __align__(128) uint8_t memory[];
  mgl_block *block = (mgl_block *)memory;
  uint32_t warp = threadIdx.x / 32;
  uint32_t workers = run->protocol.worker_count;
  if (blockIdx.x >= workers) {
    uint32_t scheduler = (blockIdx.x - workers) * MGL_CUDA_BLOCK_SCHEDULERS + warp;
    if (warp < MGL_CUDA_BLOCK_SCHEDULERS && scheduler < run->protocol.scheduler_count) {
      mgl_scheduler(run, scheduler);
    }
    return;
  }
  if (threadIdx.x == 0) {
    mgl_block_init(run, block);
  }
  __syncthreads();
  if (warp < MGL_CUDA_CONSUMER_WARPS) {
    mgl_set_registers<MGL_CONSUMER_REGISTERS, true>();
    mgl_consumers_run(run, block);
  } else {
    mgl_set_registers<MGL_ROLE_REGISTERS, false>();
    if (warp == MGL_CUDA_CONSUMER_WARPS) {
      mgl_controller_run(run, block);
    } else if (warp == MGL_CUDA_CONSUMER_WARPS + 1) {
      mgl_loader_run(run, block, memory + MGL_CUDA_BLOCK_BYTES + MGL_CUDA_SCRATCH_BYTES);
    } else if (warp == MGL_CUDA_CONSUMER_WARPS + 2) {
      if (threadIdx.x % 32 == 0) {
        mgl_storer_run(run, block);
      }
    } else if (run->scheduler_warps != 0 && blockIdx.x < run->protocol.scheduler_count) {
      mgl_scheduler(run, blockIdx.x);
    } else if (run->planner != nullptr && blockIdx.x == workers - 1) {
      mgl_planner_run(run);
    } else {
      mgl_trace_clocks(run, block);
    }
  }
}
