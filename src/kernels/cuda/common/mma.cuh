// Products of a warp by tensor cores (mma.sync): d += a b, a with 16 rows, b with 8 columns.
//
// Lane 4 g + t holds of a: rows g and g + 8, in the order (g, low k), (g + 8, low), (g, high),
// (g + 8, high); of b: column g, the same k; of d: rows g (0, 1) and g + 8 (2, 3), columns 2t and
// 2t + 1. (PTX ISA, mma.m16n8k16 and m16n8k32.)
#ifndef MGL_KERNELS_CUDA_COMMON_MMA_CUH
#define MGL_KERNELS_CUDA_COMMON_MMA_CUH

#include <stdint.h>

#include "kernels/cuda/common/target.h"

#define MGL_MMA(kind, type, d, a, b0, b1)                                                        \
  asm volatile("mma.sync.aligned." kind " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+" type((d)[0]), "+" type((d)[1]), "+" type((d)[2]), "+" type((d)[3])          \
               : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))

// bf16 with f32 sums; k pairs (2t, 2t + 1) and (2t + 8, 2t + 9).
MGL_DEVICE void mgl_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  MGL_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f", d, a, b0, b1);
}

// The same of f16; FIRST: d begins with 0.
template <bool FIRST>
MGL_DEVICE void mgl_mma_f16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  if (FIRST) {
    d[0] = d[1] = d[2] = d[3] = 0;
  }
  MGL_MMA("m16n8k16.row.col.f32.f16.f16.f32", "f", d, a, b0, b1);
}

// Of bytes; k 4t to 4t + 3 and 4t + 16 to 4t + 19.
MGL_DEVICE void mgl_mma_s8(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  MGL_MMA("m16n8k32.row.col.s32.s8.s8.s32", "r", d, a, b0, b1);
}

#endif
