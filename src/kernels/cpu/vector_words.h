// What the vector operations of every level and the kernels above them are written with.
#ifndef MGL_KERNELS_CPU_VECTOR_WORDS_H
#define MGL_KERNELS_CPU_VECTOR_WORDS_H

#define INLINE static inline __attribute__((always_inline))

// Loops over the registers of a tile: bounds are constant after inlining.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif
