// The scheduler role: turns activated events into queued JIT tasks. A block of its own, or a warp
// beside a worker's; with neither, whoever activates an event schedules it.
//
// One lane takes events, and all lanes share each one's tasks: a task takes four trips to the L2, one
// behind the other (a look at its worker, and the queue's tail, slot and lock), so what counts is
// how many of them are on their way.
//
// Memory order: the lane that took an event acquired what the tasks before have written; the others
// see it behind the barrier, and the release of each push passes it on.
#ifndef MGL_KERNELS_CUDA_ROLES_ROLE_SCHEDULER_CUH
#define MGL_KERNELS_CUDA_ROLES_ROLE_SCHEDULER_CUH

#include "kernels/cuda/common/trace.cuh"
#include "kernels/cuda/roles/role_controller.cuh"

// One lane: until there is an event, or the run ends.
static __device__ __forceinline__ mgl_poll_result mgl_await_event(mgl_cuda_run *run,
                                                                  mgl_scheduler_state *scheduler,
                                                                  mgl_marker *marker) {
  // No other warp of a worker's block can write marks.
  const bool marks = MGL_TRACE && blockIdx.x < run->protocol.worker_count;
  mgl_poll_result result;
  while ((result = mgl_scheduler_take(&run->protocol, scheduler)) == MGL_POLL_NONE) {
    if (marks) {
      mgl_trace_mark_if_due(run, marker);
    }
  }
  return result;
}

// A lane's share of a list. Where queues are full it goes on as workers drain them.
static __device__ __forceinline__ void mgl_launch_share(mgl_protocol *p,
                                                        const mgl_launch_list *list, uint32_t lane,
                                                        uint32_t lanes) {
  mgl_launch_list mine = mgl_launch_part(list, lane, lanes);
  while (!mgl_launch_tasks(p, &mine) && mgl_load_relaxed(&p->fault) == MGL_FAULT_NONE) {
  }
}

// What lane 0 has taken, for all lanes of a warp.
static __device__ __forceinline__ void mgl_tell_warp(mgl_launch_list *list, uint32_t *result) {
  list->iteration = __shfl_sync(0xffffffffu, (unsigned long long)list->iteration, 0);
  list->graph = __shfl_sync(0xffffffffu, list->graph, 0);
  list->next = __shfl_sync(0xffffffffu, list->next, 0);
  list->last = __shfl_sync(0xffffffffu, list->last, 0);
  list->dependent = __shfl_sync(0xffffffffu, list->dependent, 0);
  *result = __shfl_sync(0xffffffffu, *result, 0);
}

// Scheduler `index`, by all lanes of a warp.
static __device__ __noinline__ void mgl_scheduler_warp(mgl_cuda_run *run, uint32_t index) {
  const uint32_t lane = threadIdx.x % 32;
  mgl_scheduler_state scheduler;
  mgl_marker marker = {};
  uint32_t result = MGL_POLL_NONE;
  mgl_scheduler_init(&scheduler, index);
  for (;;) {
    if (lane == 0) {
      result = (uint32_t)mgl_await_event(run, &scheduler, &marker);
    }
    mgl_tell_warp(&scheduler.list, &result);
    if (result == (uint32_t)MGL_POLL_STOP) {
      return;
    }
    mgl_launch_share(&run->protocol, &scheduler.list, lane, 32);
    __syncwarp();
  }
}

// Scheduler `index`, by all threads of a block, which has nothing else in its shared memory.
static __device__ __noinline__ void mgl_scheduler_block(mgl_cuda_run *run, uint32_t index,
                                                        uint8_t *memory) {
  struct told {
    mgl_launch_list list;
    uint32_t result;
  };
  told *const shared = (told *)memory;
  mgl_scheduler_state scheduler;
  mgl_marker marker = {};
  mgl_scheduler_init(&scheduler, index);
  for (;;) {
    if (threadIdx.x == 0) {
      shared->result = (uint32_t)mgl_await_event(run, &scheduler, &marker);
      shared->list = scheduler.list;
    }
    __syncthreads();
    if (shared->result == (uint32_t)MGL_POLL_STOP) {
      return;
    }
    mgl_launch_share(&run->protocol, &shared->list, threadIdx.x, MGL_CUDA_THREADS);
    __syncthreads();
  }
}

#endif
