// How a consumer thread calls the body of a task: in the megakernel, and in mode full's kernel for
// what has no kernel of its own there (op_kernels.cu).
#ifndef MGL_KERNELS_CUDA_ROLES_CALL_TASK_CUH
#define MGL_KERNELS_CUDA_ROLES_CALL_TASK_CUH

#include "kernels/cuda/linear/tasks_experts.cuh"
#include "kernels/cuda/linear/tasks_linear_coded.cuh"
#include "kernels/cuda/linear/tasks_linear_paged.cuh"
#include "kernels/cuda/linear/tasks_linear_rows.cuh"
#include "kernels/cuda/roles/role_loader.cuh"
#include "twin/variant.h"

// A task's code as a function of its own, so that its registers do not spill for others. What a
// consumer keeps between tasks goes in and out as numbers: a structure behind a pointer would live
// in memory.
template <void (*task)(mgl_worker *)>
static __device__ __noinline__ uint32_t mgl_call(mgl_cuda_run *run, mgl_block *block,
                                                 uint32_t state) {
  mgl_worker w;
  mgl_worker_enter(&w, run, block, MGL_CUDA_SCRATCH_BYTES);
  w.slot = state & 1;
  w.slot_parity = state >> 1 & 1;
  w.page = state >> 8;
  w.page_parity = state >> 2 & 1;
  w.page_count = MGL_LOADER_LANES > 1 ? block->page_count : block->slots[state & 1].ring_pages;
  task(&w);
  return w.page << 8 | w.page_parity << 2 | w.slot_parity << 1 | w.slot;
}

static_assert(MGL_CUDA_SLOTS == 2, "a slot is one bit of the state");

// The linears of one packing of codes. Only experts have E2M1.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_run_coded(mgl_cuda_run *run, mgl_block *block, uint32_t state,
                                  uint32_t function) {
  switch (function) {
#define MGL_CASE_CODED(ENUM, name, ...) \
  case MGL_CODED_##ENUM:                \
    return mgl_call<__VA_ARGS__>(run, block, state);
#define MGL_TASK_CODED(ENUM, name, ...)                \
  case MGL_CODED_##ENUM:                               \
    if constexpr (P != MGL_PACKING_MX4) {              \
      return mgl_call<__VA_ARGS__>(run, block, state); \
    } else {                                           \
      __builtin_unreachable();                         \
    }
#define MGL_TASK_CODED_EXPERTS(...) MGL_TARGET_IF_EXPERTS(MGL_CASE_CODED(__VA_ARGS__))
#include "twin/variant.def"
    default: __builtin_unreachable();
  }
}

// Of those packings that the model has; others are not compiled.
template <int P>
MGL_DEVICE uint32_t mgl_find_coded(mgl_cuda_run *run, mgl_block *block, uint32_t state,
                                   uint32_t function) {
  if constexpr (P < MGL_PACKING_COUNT) {
    if constexpr ((MGL_PACKINGS >> P & 1) != 0) {
      if (function < MGL_CODED_FUNCTIONS) {
        return mgl_run_coded<(mgl_packing)P>(run, block, state, function);
      }
    }
    return mgl_find_coded<P + 1>(run, block, state, function - MGL_CODED_FUNCTIONS);
  }
  return state;
}

#endif
