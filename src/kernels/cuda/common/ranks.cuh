// What a worker sends to the other ranks of its model: words of partial sums into every inbox, and
// triggers of events that all ranks' tasks count for. Why nothing is written over before it was
// read, device_run.h says. Code for one rank has nothing of this (MGL_RANKS).
#ifndef MGL_KERNELS_CUDA_COMMON_RANKS_CUH
#define MGL_KERNELS_CUDA_COMMON_RANKS_CUH

#include "kernels/cuda/common/worker.cuh"

// Whether an op's results are parts of sums over the ranks: those of a linear_add, which alone
// has a residual.
MGL_DEVICE bool mgl_is_exchanged(const mgl_cuda_op *op) {
  return MGL_RANKS > 1 && op->residual != nullptr && op->exchange != 0;
}

// The same byte of another rank's block.
template <typename type>
MGL_DEVICE type *mgl_at_peer(type *own, int64_t bytes) {
  return (type *)((uint8_t *)own + bytes);
}

// A warp of the controller: what the task's consumers need to send and to find parts.
MGL_DEVICE void mgl_find_exchange(const mgl_cuda_run *run, mgl_slot *slot, uint32_t lane) {
  const uint64_t number = slot->iteration * run->exchange_count + slot->op.exchange - 1;
  if (lane < MGL_RANKS) {
    slot->exchange.peers[lane] = run->peers[lane];
  }
  if (lane == 31) {
    slot->exchange.inbox =
        run->inbox + (number & 1) * run->protocol.rank_count * (uint64_t)run->inbox_stride;
    slot->exchange.stride = run->inbox_stride;
    slot->exchange.rank = run->protocol.rank;
    slot->exchange.tag = (uint32_t)number + 1;  // 0: a word that nobody wrote in this launch
  }
}

// Sends this rank's part of an element to all ranks, itself last.
MGL_DEVICE void mgl_send_part(const mgl_slot *slot, size_t element, float value) {
  const mgl_exchange *e = &slot->exchange;
  uint64_t *own = e->inbox + (size_t)e->rank * e->stride + element;
  const uint64_t word = (uint64_t)e->tag << 32 | __float_as_uint(value);
#pragma unroll
  for (uint32_t i = 1; i <= MGL_RANKS; i++) {
    uint32_t to = e->rank + i;
    to = to < MGL_RANKS ? to : to - MGL_RANKS;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(mgl_at_peer(own, e->peers[to])),
                 "l"((unsigned long long)word)
                 : "memory");
  }
}

MGL_DEVICE uint64_t mgl_load_part(const uint64_t *at) {
  unsigned long long word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}

// One thread: a trigger of an event that all ranks wait for. Each waits for a counter of its own.
MGL_DEVICE void mgl_trigger_ranks(const mgl_cuda_run *run, mgl_word *counter) {
  for (uint32_t i = 1; i <= MGL_RANKS; i++) {
    uint32_t to = run->protocol.rank + i;
    to = to < MGL_RANKS ? to : to - MGL_RANKS;
    // Release, paired with the acquire in mgl_step_ready: what the task wrote is visible there.
    mgl_add_release_system(mgl_at_peer(counter, run->peers[to]), 1);
  }
}

#endif
