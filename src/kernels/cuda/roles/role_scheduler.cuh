// The scheduler role: begins the next iteration when one has ended. One lane of one warp, in a
// block of schedulers or beside a worker's warps; with neither, whoever activates the end does it.
#ifndef MGL_KERNELS_CUDA_ROLES_ROLE_SCHEDULER_CUH
#define MGL_KERNELS_CUDA_ROLES_ROLE_SCHEDULER_CUH

#include "kernels/cuda/common/trace.cuh"
#include "kernels/cuda/roles/role_controller.cuh"

static __device__ __noinline__ void mgl_scheduler(mgl_cuda_run *run, uint32_t index) {
  if (threadIdx.x % 32 != 0) {
    return;
  }
  mgl_scheduler_state scheduler;
  mgl_marker marker = {};
  bool marks = blockIdx.x < run->protocol.worker_count;  // no other warp of this block can
  mgl_poll_result result;
  mgl_scheduler_init(&scheduler, index);
  do {
    result = mgl_scheduler_poll(&run->protocol, &scheduler);
    if (MGL_TRACE && marks && result != MGL_POLL_TASK) {
      mgl_trace_mark_if_due(run, &marker);
    }
  } while (result != MGL_POLL_STOP);
}

#endif
