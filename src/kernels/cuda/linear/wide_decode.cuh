// Codes of the wide class as pairs of bf16, every value exact, in the order in which tensor cores
// want them: a lane's codes of 64 columns become its operands of four products (twin/packing.h).
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_DECODE_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_DECODE_CUH

#include "kernels/cuda/linear/codes.cuh"

MGL_DEVICE uint32_t mgl_bf16_pair_fma(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two codes of a word, number i and 2 + i, each as 16 bits with its sign in front.
template <int i>
MGL_DEVICE uint32_t mgl_extended_pair(uint32_t word) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(out) : "r"(word), "n"(i == 0 ? 0xa280 : 0xb391));
  return out;
}

// Operand a of k-step `step` (0 to 3) of 64 columns. Every result is exact.
// zero: the zero points of rows g and g + 8, each twice (mgl_panel_zero); of packings without them,
// anything. magic: two bf16 of 128, which the compiler does not know: an instruction has room for
// one constant, and the mask is another.
template <mgl_packing P>
MGL_DEVICE void mgl_decode(const uint4 (&codes)[mgl_coded<P>::QUADS], uint2 zero, uint32_t magic,
                           int step, uint32_t a[4]) {
  if constexpr (mgl_coded<P>::NIBBLES) {
    const uint32_t word = mgl_word_of(codes[0], step);
#pragma unroll
    for (int i = 0; i < 4; i++) {  // 128 + code, less 136, or 136 + zero
      uint32_t less = 0xc308c308u;
      if (mgl_coded<P>::ZEROS) {
        less = i % 2 == 0 ? zero.x : zero.y;
      }
      a[i] = mgl_bf16_pair_fma((word >> 4 * i & 0x000f000fu) | magic, 0x3f803f80u, less);
    }
    return;
  }
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const uint32_t w = mgl_word_of(codes[step / 2 % mgl_coded<P>::QUADS], step % 2 * 2 + u);
    if constexpr (!mgl_coded<P>::WHOLE) {
      // Sign and magnitude where bf16 has them are 2^-120 of the value, subnormal ones too.
      a[u] =
          mgl_bf16_pair_fma(mgl_extended_pair<0>(w) << 4 & 0x87f087f0u, 0x7b807b80u, 0x80008000u);
      a[2 + u] =
          mgl_bf16_pair_fma(mgl_extended_pair<1>(w) << 4 & 0x87f087f0u, 0x7b807b80u, 0x80008000u);
    } else {
      // 128 + the lower seven bits, less 128, or less 256 where the sign is set.
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t pair = w >> 8 * h;
        a[2 * h + u] = mgl_bf16_pair_fma((pair & 0x00800080u) | magic, 0xbf80bf80u,
                                         (pair & 0x007f007fu) | magic);
      }
    }
  }
}

#endif
