// Weights of codes as operands of the tensor cores: panels (twin/packing.h) from shared memory into
// registers, and codes in registers to pairs of bf16, which hold every code's value exactly.
//
// Each 64 columns of a row block, a warp's share of half a panel (a slice), are four products
// (k-steps), one onto the other; in a model with groups of 32, two times two. Scales go onto these
// f32 sums: each times its scale onto the sum of those before. Every shape of a linear does it in
// this order, so all give the same bits.
//
// A warp waits 33 clocks for a product, and its scheduler has one other warp. So all products of a
// panel are on their way before the first one's sum is asked for.
#ifndef MGL_KERNELS_CUDA_LINEAR_CODES_CUH
#define MGL_KERNELS_CUDA_LINEAR_CODES_CUH

#include "kernels/cuda/common/page_stream.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "twin/packing.h"

#ifndef MGL_GROUPS_OF_32
#define MGL_GROUPS_OF_32 0  // 1: the model has some
#endif

enum {
  MGL_SLICE_K = 512,  // columns of a panel that the warps share at once, 64 each
  MGL_SLICE_SUMS = MGL_GROUPS_OF_32 ? 2 : 1,
  MGL_SLICES = MGL_PANEL_K / MGL_SLICE_K,
};

template <mgl_packing P>
struct mgl_coded {
  static constexpr bool NIBBLES = P >= MGL_PACKING_I4;
  static constexpr bool ZEROS = P == MGL_PACKING_Z4;
  static constexpr int QUADS = NIBBLES ? 1 : 2;  // 16 bytes each that a lane has
  static constexpr int SLICE_BYTES = QUADS * 512 * MGL_CUDA_CONSUMER_WARPS;
  static constexpr int PANELS = NIBBLES ? 2 : 1;  // of a page
  static constexpr int GROUP_BYTES = (ZEROS ? 2 : 1) * MGL_PANEL_SCALE_BYTES;
  static constexpr int CODES_BYTES = MGL_SLICES * SLICE_BYTES;
};

// What a lane has of a slice: codes, and the scales of rows g and g + 8, of each sum, and their
// zero points (mgl_panel_zero), as bf16, that of row g + 8 above the other: the pairs that
// products need would take twice the registers.
template <mgl_packing P>
struct mgl_slice {
  uint4 v[mgl_coded<P>::QUADS];
  float2 scale[MGL_SLICE_SUMS];
  uint32_t zero[mgl_coded<P>::ZEROS ? (int)MGL_SLICE_SUMS : 1];
};

// Sums of a slice's products.
struct mgl_slice_sums {
  float v[MGL_SLICE_SUMS][4];
};

// Where a lane finds that in a panel.
struct mgl_slice_places {
  uint32_t codes;         // of slice 0 (these are kept in registers: they cost much to make anew)
  uint32_t scales;        // of slice 0, first columns
  uint32_t scales_step;   // to the next slice
  uint32_t scales_other;  // to the other columns
  uint32_t magic;         // two bf16 of 128, which the compiler does not know: an instruction has
                          // room for one constant, and the mask is another
};

template <mgl_packing P>
static __device__ __forceinline__ mgl_slice_places mgl_find_slices(const mgl_worker *w,
                                                                   const mgl_cuda_op *op) {
  const uint32_t group_shift = mgl_op_group_shift(op), zero = op->zero;
  mgl_slice_places at;
  at.codes = mgl_kept(w->warp * (mgl_coded<P>::QUADS * 512) + w->lane * 16);
  at.scales = mgl_kept(mgl_coded<P>::CODES_BYTES +
                       (w->warp * MGL_PANEL_COLUMNS >> group_shift) * mgl_coded<P>::GROUP_BYTES +
                       w->lane / 4 * 8);
  at.scales_step = mgl_kept((MGL_SLICE_K >> group_shift) * mgl_coded<P>::GROUP_BYTES);
  at.scales_other = group_shift == 5 ? mgl_coded<P>::GROUP_BYTES : 0;
  at.magic = 0x43004300u | zero;
  return at;
}

static __device__ __forceinline__ float2 mgl_load_shared_pair(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// Of rows g and g + 8, each twice in its word, for mgl_slice.
static __device__ __forceinline__ uint32_t mgl_pack_zeros(float2 zero) {
  return __byte_perm(__float_as_uint(zero.x), __float_as_uint(zero.y), 0x5410);
}

// panel: address in shared memory.
template <mgl_packing P>
static __device__ __forceinline__ void mgl_read_slice(const mgl_slice_places *at, uint32_t panel,
                                                      int slice, mgl_slice<P> *out) {
#pragma unroll
  for (int i = 0; i < mgl_coded<P>::QUADS; i++) {
    out->v[i] = mgl_load_shared(panel + at->codes + slice * mgl_coded<P>::SLICE_BYTES + i * 512);
  }
  uint32_t scales = panel + at->scales + slice * at->scales_step;
#pragma unroll
  for (int i = 0; i < MGL_SLICE_SUMS; i++) {
    const uint32_t from = scales + i * at->scales_other;
    out->scale[i] = mgl_load_shared_pair(from);
    if (mgl_coded<P>::ZEROS) {
      const float2 zero = mgl_load_shared_pair(from + MGL_PANEL_SCALE_BYTES);
      out->zero[i] = mgl_pack_zeros(zero);
    }
  }
}

// 0 once the loads have arrived (mgl_loads_arrived). (Or, not exclusive or: where there is one sum,
// the first scale and the last are the same one, and would not be waited for.)
template <mgl_packing P>
static __device__ __forceinline__ uint32_t mgl_slice_arrived(const mgl_slice<P> *s, uint32_t zero) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < MGL_SLICE_SUMS; i++) {
    bits |= __float_as_uint(s->scale[i].x);
    if (mgl_coded<P>::ZEROS) {
      bits |= s->zero[mgl_coded<P>::ZEROS ? i : 0];
    }
  }
#pragma unroll
  for (int i = 0; i < mgl_coded<P>::QUADS; i++) {
    bits |= s->v[i].x;
  }
  return bits & zero;
}

static __device__ __forceinline__ uint32_t mgl_bf16_pair_fma(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Operand a of k-step `step` (0 to 3). Every result is exact.
// zero: the zero points of rows g and g + 8, each twice (mgl_panel_zero); of packings without them,
// anything.
template <mgl_packing P>
static __device__ __forceinline__ void mgl_decode(const uint4 (&codes)[mgl_coded<P>::QUADS],
                                                  uint2 zero, uint32_t magic, int step,
                                                  uint32_t a[4]) {
  if constexpr (mgl_coded<P>::NIBBLES) {
    const uint4 v = codes[0];
    const uint32_t word = step == 0 ? v.x : step == 1 ? v.y : step == 2 ? v.z : v.w;
#pragma unroll
    for (int i = 0; i < 4; i++) {  // 128 + code, less 136, or 136 + zero
      uint32_t less = 0xc308c308u;
      if (mgl_coded<P>::ZEROS) {
        less = i % 2 == 0 ? zero.x : zero.y;
      }
      a[i] = mgl_bf16_pair_fma((word >> 4 * i & 0x000f000fu) | magic, 0x3f803f80u, less);
    }
  } else {
    const uint4 v = codes[step / 2];
    const uint32_t words[2] = {step % 2 == 0 ? v.x : v.z, step % 2 == 0 ? v.y : v.w};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t w = words[h];
      if constexpr (P == MGL_PACKING_E4M3) {
        // Sign and magnitude where bf16 has them are 2^-120 of the value, subnormal ones too.
        const uint32_t first = (w >> 4 & 0x07000700u) | (w << 4 & 0x80f080f0u);
        a[2 * h] = mgl_bf16_pair_fma(first, 0x7b807b80u, 0x80008000u);
        a[2 * h + 1] = mgl_bf16_pair_fma(w & 0x87f087f0u, 0x7b807b80u, 0x80008000u);
      } else {
        // 128 + the lower seven bits, less 128, or less 256 where the sign is set.
#pragma unroll
        for (int u = 0; u < 2; u++) {
          const uint32_t pair = w >> 8 * u;
          a[2 * h + u] = mgl_bf16_pair_fma((pair & 0x00800080u) | magic, 0xbf80bf80u,
                                           (pair & 0x007f007fu) | magic);
        }
      }
    }
  }
}

// d = a b (mgl_mma).
static __device__ __forceinline__ void mgl_mma_first(float d[4], const uint32_t a[4], uint32_t b0,
                                                     uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// A slice's products. x: this lane's eight elements of the first 32 columns and of the others.
template <mgl_packing P, int TILES>
static __device__ __forceinline__ void mgl_slice_products(const mgl_slice<P> *s, uint32_t magic,
                                                          const uint4 (&x)[TILES][2],
                                                          mgl_slice_sums (&out)[TILES]) {
#pragma unroll
  for (int step = 0; step < 4; step++) {
    uint32_t a[4];
    uint2 zero = {};
    if constexpr (mgl_coded<P>::ZEROS) {
      const uint32_t both = s->zero[MGL_SLICE_SUMS == 2 ? step / 2 : 0];
      zero = {__byte_perm(both, both, 0x1010), __byte_perm(both, both, 0x3232)};
    }
    mgl_decode<P>(s->v, zero, magic, step, a);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const uint4 b = x[tile][step / 2];
      const uint32_t low = step % 2 == 0 ? b.x : b.z, high = step % 2 == 0 ? b.y : b.w;
      float *d = out[tile].v[MGL_SLICE_SUMS == 2 ? step / 2 : 0];
      if (step == 0 || (MGL_SLICE_SUMS == 2 && step == 2)) {
        mgl_mma_first(d, a, low, high);
      } else {
        mgl_mma(d, a, low, high);
      }
    }
  }
}

#endif
