// A kernel of mode full gets these structs by value: one op of one iteration's chain. Both
// compilers read them; op_kernels.cu says how the kernels work together.
#ifndef MGL_TWIN_OP_LAUNCH_H
#define MGL_TWIN_OP_LAUNCH_H

#include "twin/device_run.h"

enum {
  MGL_OP_LINEAR_THREADS = MGL_CUDA_CONSUMERS + 32,  // consumers and a loader
  MGL_OP_OTHER_THREADS = MGL_CUDA_CONSUMERS,
  MGL_OP_PLAN_THREADS = 32,
  // Scratch of linears, which leaves room for pages (tasks_linear.cuh, tasks_linear_one.cuh).
  MGL_OP_SCRATCH_ONE = 5120,     // of one token, before x
  MGL_OP_SCRATCH_EIGHT = 17408,  // of up to 8 tokens, before the norm's weights
  MGL_OP_SCRATCH_MAX_NORM = 4096,
};

// An mgl_op_first is what attention's blocks begin an item with, found once an iteration, with its
// plan. A layer that looked for it would take two trips to the L2, one behind the other; reading it
// here takes one.
typedef struct mgl_op_first {
  mgl_cuda_item item;
  uint32_t own_first, own_last;             // KV pages of its first and last token
  uint32_t pages[MGL_CUDA_CONSUMER_WARPS];  // of each warp's first tile of cached positions
  uint32_t padding[10];                     // 128 bytes in all: whole sectors
} mgl_op_first;

// Blocks [0, blocks) share units [0, units) of the first op evenly; blocks behind them are the
// second op's, which does not depend on the first one.
typedef struct mgl_cuda_op_launch {
  _Alignas(16) mgl_cuda_op ops[2];  // kind MGL_OP_COUNT: there is no second one
  mgl_cuda_run *run;
  const mgl_cuda_plan *plan;  // of the iteration
  mgl_cuda_plan *next_plan;   // of the one after it
  uint64_t *host_plan;        // pinned, written with next_plan (mgl_host_plan_make)
  mgl_op_first *firsts;       // [2, MGL_CUDA_MAX_ITEMS]: of the items of both plans
  uint32_t graph;
  uint32_t parity;                // of the iteration's number
  uint32_t ordinal, op_launches;  // number of the launch in its iteration, and how many there are
  uint32_t units, blocks;
  uint32_t second_units;
  uint32_t strides;     // attend: of a KV head
  uint32_t page_count;  // smem pages of a block
  uint32_t in_flight;   // as in mgl_cuda_run
  uint32_t in_flight_ahead;
  uint32_t prefetch;     // 1: weights are loaded before the kernels before have ended
  uint32_t early_pages;  // pages behind those that are brought into the L2 meanwhile
  uint32_t l2_clocks;    // at least, from one to the next
  uint32_t scratch_bytes;
} mgl_cuda_op_launch;

// The host learns of a plan in one word, which has the iteration, how many can follow it at most,
// these flags, and the plan's tokens (0: there is no such plan now).
typedef enum mgl_host_plan_flags {
  MGL_HOST_PLAN_CALM = 1,      // no iteration that follows has more tokens (mgl_full_is_calm)
  MGL_HOST_PLAN_TOLD = 2,      // planned between iterations: the host was told of all before it
  MGL_HOST_PLAN_AGAIN = 4,     // without a plan: another turn may find something to do
  MGL_HOST_PLAN_OVER = 8,      // without a plan: none will follow
  MGL_HOST_PLAN_DECODES = 16,  // each of its sequences has one token
} mgl_host_plan_flags;

enum { MGL_HOST_PLAN_MOST_LEFT = (1 << 19) - 1 };

MGL_SHARED_FN uint64_t mgl_host_plan_make(uint64_t iteration, uint32_t left, uint32_t flags,
                                          uint32_t tokens) {
  uint64_t known = left < MGL_HOST_PLAN_MOST_LEFT ? left : (uint32_t)MGL_HOST_PLAN_MOST_LEFT;
  return iteration << 32 | known << 13 | (uint64_t)flags << 8 | tokens;
}

MGL_SHARED_FN uint64_t mgl_host_plan_iteration(uint64_t word) {
  return word >> 32;
}

MGL_SHARED_FN uint32_t mgl_host_plan_left(uint64_t word) {
  return (uint32_t)word >> 13;
}

MGL_SHARED_FN bool mgl_host_plan_has(uint64_t word, mgl_host_plan_flags flag) {
  return (word >> 8 & (uint64_t)flag) != 0;
}

MGL_SHARED_FN uint32_t mgl_host_plan_tokens(uint64_t word) {
  return (uint32_t)word & 0xff;
}

#endif
