// The device's trace: spans of time per worker and role, compiled in with MGL_TRACE. Each role of a
// block is one thread's, so nothing is shared.
#ifndef MGL_KERNELS_CUDA_TRACE_CUH
#define MGL_KERNELS_CUDA_TRACE_CUH

#include "kernels/cuda/worker.cuh"

#if MGL_TRACE

#define MGL_TRACE_BEGIN(name) uint64_t name = mgl_global_ns()
#define MGL_TRACE_END(run, block, name, role, iteration, task) \
  mgl_trace_record((run), (block), (name), (role), (iteration), (task))

// Keeps the latest span_count spans. Only stores, which nobody waits for.
static __device__ __forceinline__ void mgl_trace_record(mgl_cuda_run *run, mgl_block *block,
                                                        uint64_t begin_ns, mgl_cuda_trace_role role,
                                                        uint64_t iteration, uint32_t task) {
  if (run->spans == nullptr) {
    return;
  }
  uint32_t track = blockIdx.x * MGL_CUDA_TRACE_ROLES + role;
  uint32_t at = block->spans[role]++;
  run->span_counts[track] = at + 1;
  mgl_cuda_span *span = &run->spans[(size_t)track * run->span_count + at % run->span_count];
  span->begin_ns = begin_ns;
  span->end_ns = mgl_global_ns();
  span->iteration = (uint32_t)iteration;
  span->task = task;
}

#else

#define MGL_TRACE_BEGIN(name)
#define MGL_TRACE_END(run, block, name, role, iteration, task)

#endif

#endif
