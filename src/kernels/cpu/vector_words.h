// What the vector operations of every level and the kernels above them are written with.
#ifndef MGL_KERNELS_CPU_VECTOR_WORDS_H
#define MGL_KERNELS_CPU_VECTOR_WORDS_H

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// Loops over the registers of a tile: bounds are constant after inlining.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

// A value is what it is here: the compiler must not make a tree of additions of integers around it,
// which are exact in any order, for that tree has more values than there are registers.
#define KEEP_ORDER(constraint, value) __asm__("" : constraint(value))

// Fetches the cache line at `from`, which need not be memory of this process.
#define FETCH_L1(from) __builtin_prefetch((from), 0, 3)
#define FETCH_L2(from) __builtin_prefetch((from), 0, 2)

// Four f32, on every architecture: what vec_sum4 gives.
typedef float vec4 __attribute__((vector_size(16)));

INLINE vec4 vec4_load(const float *from) {
  vec4 a;
  memcpy(&a, from, sizeof a);
  return a;
}

INLINE void vec4_store(float *to, vec4 a) {
  memcpy(to, &a, sizeof a);
}

#endif
