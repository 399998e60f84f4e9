// What loader and consumers share of a mixture of experts: its sizes, which the compiler knows, and
// the routes of an iteration's tokens in shared memory.
#ifndef MGL_KERNELS_CUDA_COMMON_EXPERTS_CUH
#define MGL_KERNELS_CUDA_COMMON_EXPERTS_CUH

#include "kernels/cuda/common/worker.cuh"

#ifndef MGL_EXPERTS  // E, of every layer that has experts; 0: none has
#define MGL_EXPERTS 0
#define MGL_EXPERT_SLOTS 1      // S, of a token
#define MGL_EXPERT_FEATURES 64  // F, of an expert
#define MGL_EXPERT_WIDTH 1024   // D
#define MGL_EXPERT_SOFTMAX_OF_ALL 1
#define MGL_EXPERT_RENORMALISE 0
#define MGL_EXPERT_SCALE 1.0f
#endif

#if MGL_EXPERTS
#define MGL_TARGET_IF_EXPERTS(...) __VA_ARGS__
#else
#define MGL_TARGET_IF_EXPERTS(...)
#endif

enum {
  MGL_HAS_EXPERTS = MGL_EXPERTS != 0,
  // In scratch, of each slot of each token: the number of its expert and its weight. Before that
  // lies what linears of one token use.
  MGL_EXPERT_ROUTES_AT = 8192,
  MGL_EXPERT_ROUTE_BYTES = 8,
};

static_assert(MGL_EXPERT_ROUTES_AT +
                      MGL_CUDA_MAX_TOKENS * MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES <=
                  MGL_CUDA_SCRATCH_BYTES,
              "the routes of an iteration");

static __device__ __forceinline__ void mgl_expert_put(uint32_t address, uint32_t expert,
                                                      float weight) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(expert),
               "r"(__float_as_uint(weight))
               : "memory");
}

#endif
