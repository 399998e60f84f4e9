// The scheduler role: turns activated events into queued JIT tasks. One lane of one warp, in a
// block of its own or beside a worker's warps; with neither, whoever activates an event schedules
// it.
#ifndef MGL_KERNELS_CUDA_ROLE_SCHEDULER_CUH
#define MGL_KERNELS_CUDA_ROLE_SCHEDULER_CUH

#include "kernels/cuda/role_controller.cuh"

static __device__ void mgl_scheduler(mgl_cuda_run *run, uint32_t index) {
  if (threadIdx.x % 32 != 0) {
    return;
  }
  mgl_scheduler_state scheduler;
  mgl_scheduler_init(&scheduler, index);
  while (mgl_scheduler_poll(&run->protocol, &scheduler) != MGL_POLL_STOP) {
  }
}

#endif
