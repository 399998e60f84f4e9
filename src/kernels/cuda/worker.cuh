// A worker block as its warps see it: shared memory, named barriers, and small warp tools.
//
// Warp 0 is the controller, 1 a scheduler (or idle), 2 the loader, the rest consumers. The
// controller and the consumers meet at two barriers per task; consumers have one among themselves.
// Barrier 0 is left to __syncthreads, which only the start uses.
#ifndef MGL_KERNELS_CUDA_WORKER_CUH
#define MGL_KERNELS_CUDA_WORKER_CUH

#include "kernels/cuda/device_run.h"

enum {
  MGL_BARRIER_TASK = 1,       // the controller has a task
  MGL_BARRIER_DONE = 2,       // the consumers have done it
  MGL_BARRIER_CONSUMERS = 3,  // among consumers
};

// One per block, in static shared memory.
struct mgl_block {
  const mgl_cuda_op *op;  // the present task's; NULL: leave
  uint32_t begin, end;    // its tile
  float sums[MGL_CUDA_CONSUMER_WARPS];
  uint64_t best[MGL_CUDA_CONSUMER_WARPS];
  volatile uint32_t stop;                         // the loader ends
  uint64_t page_full[MGL_CUDA_MAX_STREAM_PAGES];  // mbarriers
};

template <int barrier, int threads>
static __device__ inline void mgl_block_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(barrier), "n"(threads) : "memory");
}

static __device__ inline void mgl_sync_task() {
  mgl_block_sync<MGL_BARRIER_TASK, MGL_CUDA_CONSUMERS + 32>();
}

static __device__ inline void mgl_sync_done() {
  mgl_block_sync<MGL_BARRIER_DONE, MGL_CUDA_CONSUMERS + 32>();
}

static __device__ inline void mgl_sync_consumers() {
  mgl_block_sync<MGL_BARRIER_CONSUMERS, MGL_CUDA_CONSUMERS>();
}

static __device__ inline uint64_t mgl_global_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

static __device__ inline float mgl_warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

static __device__ inline uint64_t mgl_warp_max(uint64_t value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// bf16 as the host has it: round to nearest even, a NaN stays one.
static __device__ inline float mgl_widen_bf16(uint32_t bits) {
  return __uint_as_float(bits << 16);
}

static __device__ inline uint16_t mgl_round_bf16(float value) {
  uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (uint16_t)(bits >> 16 | 0x40u);
  }
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
