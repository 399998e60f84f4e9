// These kernels run before and behind an iteration of the wide class where the device plans: one
// warp takes a turn of the planner, its block cuts attention's work, and each row of logits gets
// its token. They are kernels of their own, queued one behind the other, since a wide iteration
// takes milliseconds.
#include "kernels/cuda/small/tasks_sample.cuh"
#include "twin/wide_chain.h"

// Only the narrow class asks for plans.
static __device__ int mgl_ask_next_plan(mgl_protocol *, uint64_t) {
  return -1;
}

extern "C" __global__ void __launch_bounds__(MGL_CUDA_CONSUMERS)
    mgl_wide_plan_run(mgl_cuda_run *run, mgl_wide_chain chain) {
  uint64_t begin = mgl_global_ns();
  if (threadIdx.x < 32) {
    const mgl_lanes warp = {threadIdx.x, 32};
    mgl_wide_chain_turn(warp, run, &chain, begin);
  }
  __syncthreads();
  const mgl_lanes block = {threadIdx.x, blockDim.x};
  mgl_wide_chain_cut(block, &chain);
  __syncthreads();
  if (threadIdx.x == 0) {
    run->planning.planning_ns += mgl_global_ns() - begin;
  }
}

// Rows in turn to the blocks. Dynamic shared memory: as a worker's block begins.
extern "C" __global__ void __launch_bounds__(MGL_CUDA_CONSUMERS)
    mgl_wide_sample_run(mgl_cuda_run *run, const mgl_wide_plan *plan, uint64_t *best,
                        const float *logits) {
  extern __shared__ __align__(128) uint8_t memory[];
  mgl_block *block = (mgl_block *)memory;
  mgl_worker w = {};
  mgl_worker_enter(&w, run, block, 0);
  if (w.thread == 0) {
    block->slots[0].op.x = logits;
    block->slots[0].op.x_stride = run->vocab;
    block->slots[0].op.n = run->vocab;
    block->stop = 0;
  }
  __syncthreads();
  // Tokens of the next plan are read from the sequences.
  mgl_cuda_plan *no_plan = nullptr;
  for (uint32_t row = blockIdx.x; row < plan->logit_row_count; row += gridDim.x) {
    uint32_t slot = plan->logit_slots[row];
    if (mgl_takes_row(run, slot)) {
      mgl_sample_row(&w, row, slot, &best[row], no_plan);
    } else if (w.thread == 0) {
      mgl_sampled sampled;
      mgl_read_sequence(run, slot, &sampled);
      mgl_read_sampled(&best[row], &sampled);
      mgl_append_token(no_plan, &sampled, mgl_key_index(sampled.best));
      best[row] = 0;
    }
    __syncthreads();
  }
}
