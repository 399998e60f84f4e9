// The megakernel: one block per SM, all resident, one launch for many iterations.
//
// Blocks [0, workers) are workers; with dedicated schedulers further blocks are those. The warps of
// a worker block have roles, one file per role; what they run is the protocol that the CPU runs.
// Compiled at run time for the present GPU (runtime/cuda_jit.h).
#include "kernels/cuda/device_run.h"
#include "kernels/cuda/role_controller.cuh"
#include "kernels/cuda/role_loader.cuh"
#include "kernels/cuda/role_scheduler.cuh"
#include "kernels/cuda/tasks_dense.cuh"
#include "kernels/cuda/worker.cuh"

static_assert(offsetof(mgl_task, cost) == MGL_HOST_BYTES_TASK_COST, "the host's layout");
static_assert(offsetof(mgl_event, last_task) == MGL_HOST_BYTES_EVENT_LAST, "the host's layout");
static_assert(offsetof(mgl_protocol, info) == MGL_HOST_BYTES_PROTOCOL_INFO, "the host's layout");
static_assert(offsetof(mgl_protocol, fault) == MGL_HOST_BYTES_PROTOCOL_FAULT, "the host's layout");
static_assert(offsetof(mgl_worker_shared, current) == MGL_HOST_BYTES_WORKER_CURRENT,
              "the host's layout");
static_assert(offsetof(mgl_cuda_run, best) == MGL_HOST_BYTES_RUN_BEST, "the host's layout");
static_assert(sizeof(mgl_task) == MGL_HOST_BYTES_TASK, "the host's layout");
static_assert(sizeof(mgl_event) == MGL_HOST_BYTES_EVENT, "the host's layout");
static_assert(sizeof(mgl_queue_slot) == MGL_HOST_BYTES_QUEUE_SLOT, "the host's layout");
static_assert(sizeof(mgl_queue) == MGL_HOST_BYTES_QUEUE, "the host's layout");
static_assert(sizeof(mgl_worker_shared) == MGL_HOST_BYTES_WORKER_SHARED, "the host's layout");
static_assert(sizeof(mgl_protocol) == MGL_HOST_BYTES_PROTOCOL, "the host's layout");
static_assert(sizeof(mgl_cuda_op) == MGL_HOST_BYTES_OP, "the host's layout");
static_assert(sizeof(mgl_cuda_run) == MGL_HOST_BYTES_RUN, "the host's layout");

// The consumer warps of a worker: until the controller hands over no task.
static __device__ void mgl_consumers(mgl_cuda_run *run, mgl_block *block, float *staged) {
  uint32_t thread = threadIdx.x - (MGL_CUDA_WARPS - MGL_CUDA_CONSUMER_WARPS) * 32;
  for (;;) {
    mgl_sync_task();
    if (block->op == nullptr) {
      return;
    }
    mgl_run_task(run, block, staged, thread);
    mgl_sync_done();
  }
}

extern "C" __global__ void __launch_bounds__(MGL_CUDA_THREADS, 1)
    mgl_megakernel(mgl_cuda_run *run) {
  extern __shared__ __align__(128) uint8_t memory[];  // pages of the loader, then the staged row
  __shared__ mgl_block block;
  uint32_t warp = threadIdx.x / 32;
  uint32_t workers = run->protocol.worker_count;
  if (blockIdx.x >= workers) {
    if (warp == 0) {
      mgl_scheduler(run, blockIdx.x - workers);
    }
    return;
  }
  if (threadIdx.x == 0) {
    block.stop = 0;
  }
  __syncthreads();
  if (warp == 0) {
    mgl_controller(run, &block);
  } else if (warp == 1) {
    if (run->scheduler_warps != 0 && blockIdx.x < run->protocol.scheduler_count) {
      mgl_scheduler(run, blockIdx.x);
    }
  } else if (warp == 2) {
    if (run->stream_pages > 0 && threadIdx.x % 32 == 0) {
      mgl_loader(run, &block, memory);
    }
  } else {
    mgl_consumers(run, &block, (float *)(memory + run->stream_pages * MGL_CUDA_STREAM_PAGE_BYTES));
  }
}
