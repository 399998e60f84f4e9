// Attention of the wide class alone, as kernels: one block a worker. For tests and measurements;
// the megakernel of the wide class calls the same functions.
#include "kernels/cuda/attend/wide_attend.cuh"

// No iterations run here, but protocol.h, which comes with device_run.h, wants its planner defined.
static __device__ int mgl_ask_next_plan(mgl_protocol *, uint64_t) {
  return -1;
}

static_assert(sizeof(mgl_wide_attention) == 144 && offsetof(mgl_wide_attention, scale) == 136,
              "as the host lays it out");

// With about as few registers a thread as consumers have in the megakernel.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define MGL_WIDE_LIKE_CONSUMERS __maxnreg__(216)
#else
#define MGL_WIDE_LIKE_CONSUMERS __launch_bounds__(MGL_CUDA_CONSUMERS, 1)
#endif

// The first `rows` rows of the iteration, in equal shares.
extern "C" __global__ void __launch_bounds__(MGL_CUDA_CONSUMERS, 1)
    mgl_wide_rope_kv_run(mgl_wide_attention attention, uint32_t rows) {
  const uint32_t begin = (uint32_t)((uint64_t)rows * blockIdx.x / gridDim.x);
  const uint32_t end = (uint32_t)((uint64_t)rows * (blockIdx.x + 1) / gridDim.x);
  mgl_wide_rope_kv(&attention, begin, end, threadIdx.x);
}

extern "C" __global__ void MGL_WIDE_LIKE_CONSUMERS
mgl_wide_attend_run(mgl_wide_attention attention) {
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ mgl_wide_attention own;  // as in the megakernel
  if (threadIdx.x == 0) {
    own = attention;
  }
  __syncthreads();
  const mgl_attend_gate open = {};
  mgl_wide_attend(&own, smem, blockIdx.x, threadIdx.x, &open);
}

// The work list of an iteration, by one warp.
extern "C" __global__ void __launch_bounds__(32)
    mgl_wide_build_run(mgl_wide_shape shape, const mgl_plan_entry *entries, uint32_t entry_count,
                       mgl_wide_work *work) {
  mgl_lanes lanes = {threadIdx.x, 32};
  mgl_wide_build(lanes, &shape, entries, entry_count, work);
}
