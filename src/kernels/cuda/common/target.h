// Which instructions beyond those of compute capability 8.0 device code uses: the one place where
// sources look at the architecture that they are compiled for.
//
// Only names that end in "a" have more than the portable kernels (cp.async, mma.sync), since what
// those bring was written for and measured on them; sm_90 and sm_120 get the portable ones. So the
// architecture's name, which is part of the code cache's key, says it all: mgl_cuda_architecture
// chooses it, and MEGALITH_KERNELS=portable chooses sm_90 where it would be sm_90a.
#ifndef MGL_KERNELS_CUDA_COMMON_TARGET_H
#define MGL_KERNELS_CUDA_COMMON_TARGET_H

// Bulk copies and mbarriers that count their bytes; threads that sleep at an mbarrier; registers
// that move between warpgroups; kernels that start while those before them run.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define MGL_TARGET_COPIES 1
#else
#define MGL_TARGET_COPIES 0
#endif

// Products of a warpgroup, and stmatrix.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MGL_TARGET_WGMMA 1
#else
#define MGL_TARGET_WGMMA 0
#endif

// 10 times the compute capability, for variant.def. Linears of 2 to 16 tokens have functions of
// their own (tasks_linear_rows.cuh), which spill before 9.0: portable kernels have them from there
// on. (A pass of the compiler that makes no device code sees all.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MGL_TARGET_CAPABILITY (__CUDA_ARCH__ / 10)
#define MGL_TARGET_IF_SM_90(...)
#else
#define MGL_TARGET_CAPABILITY 90
#define MGL_TARGET_IF_SM_90(...) __VA_ARGS__
#endif
#define MGL_TARGET_IF_ANY(...) __VA_ARGS__

// What nearly every function of device code is: structures behind its pointers live in registers
// only if it is inlined (worker.cuh).
#define MGL_DEVICE static __device__ __forceinline__

#endif
