// Weights of codes in the narrow class: panels (twin/packing.h) from shared memory into registers,
// and their products with x by tensor cores.
//
// A warp has 128 columns of every panel of a row block, its share. Codes become operands with
// hardly any instruction, and x, which every row block meets again, is made to fit them, once:
//   - Codes of integers are multiplied as such. The elements of x that belong to a share are whole
//     numbers of 15 bits, relative to the largest of them, in two pieces of 8 bits; a sum of
//     products is exact in 32 bits. A code of 8 bits is an operand as it lies in the page. Of 4
//     bits it takes the upper half of a byte, whose sign is one bit to flip; zero points multiply
//     the sum of the share's x, which is known before.
//   - E4M3 becomes f16, a pair by one instruction. x is f16 too, times a power of two that brings
//     the largest of the share to 2^14: bf16 has fewer bits than f16, and what is lost is 2^-40 of
//     the largest.
// Where elements of x differ by more than 2^6, the smaller ones lose bits as whole numbers; with
// 128 of them, the error is at most a half of that which bf16 has made of the largest.
//
// Scales go onto sums as f32: of groups of 128 and more onto that of a share, of others onto those
// of its halves or quarters, each times its scale onto the sum of those before. Every shape of a
// linear does it in this order, so all give the same bits.
//   Rejected: pairs of bf16 for tensor cores and x as it is, which takes three instructions a pair
//   (docs/log/188, 191); a scale of x for a whole row, which warps would have to agree about.
#ifndef MGL_KERNELS_CUDA_LINEAR_CODES_CUH
#define MGL_KERNELS_CUDA_LINEAR_CODES_CUH

#include "kernels/cuda/common/page_stream.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "twin/packing.h"

#ifndef MGL_GROUPS_OF_32
#define MGL_GROUPS_OF_32 0  // 1: the model has some
#endif
#ifndef MGL_GROUPS_OF_64
#define MGL_GROUPS_OF_64 0  // 1: the model has some
#endif

enum {
  MGL_PANEL_PAGES = MGL_PANEL_K / MGL_CUDA_PAGE_K,      // pages of bf16 that have its columns
  MGL_SHARE_K = MGL_PANEL_K / MGL_CUDA_CONSUMER_WARPS,  // columns of a panel that a warp has
  MGL_CHUNK_K = 32,                                     // of which a lane has eight
  MGL_SHARE_CHUNKS = MGL_SHARE_K / MGL_CHUNK_K,
  MGL_SHARE_SUMS = MGL_GROUPS_OF_32   ? 4
                   : MGL_GROUPS_OF_64 ? 2
                                      : 1,
};

// Whether codes are whole numbers.
MGL_DEVICE constexpr bool mgl_packing_is_whole(uint32_t packing) {
  return packing != MGL_PACKING_E4M3;
}

template <mgl_packing P>
struct mgl_coded {
  static constexpr bool NIBBLES = P >= MGL_PACKING_I4;
  static constexpr bool ZEROS = P == MGL_PACKING_Z4;
  static constexpr bool WHOLE = mgl_packing_is_whole(P);
  static constexpr int QUADS = NIBBLES ? 1 : 2;  // 16 bytes each of a lane, of 64 columns
  static constexpr int SHARE_QUADS = MGL_SHARE_K / MGL_PANEL_COLUMNS * QUADS;
  static constexpr int PANELS = NIBBLES ? 2 : 1;  // of a page
  static constexpr int GROUP_BYTES = (ZEROS ? 2 : 1) * MGL_PANEL_SCALE_BYTES;
  static constexpr int CODES_BYTES = SHARE_QUADS * 512 * MGL_CUDA_CONSUMER_WARPS;
  static constexpr bool MIXED =
      P == MGL_PACKING_MX4;  // scales stand behind the codes of 64 columns
  // Sums of products: those of f16 are of half a share at most, since for one token the halves are
  // multiplied by different columns.
  static constexpr int CHAINS = WHOLE || MGL_SHARE_SUMS > 2 ? (int)MGL_SHARE_SUMS : 2;
  static constexpr int X_SHIFT = WHOLE ? 13 : 14;      // the logarithm of the largest x
  static constexpr bool TABLE = P == MGL_PACKING_MX4;  // codes choose their operands from one
  // And of what a code of 1 is in its operand.
  static constexpr int CODE_SHIFT = P == MGL_PACKING_MX4 ? 1 : NIBBLES ? 4 : 0;
};

// --- codes ---------------------------------------------------------------------------------------

// What a lane has of a share: codes, and the scales of rows g and g + 8, of each sum, and their
// zero points, as words of mgl_panel_zero.
template <mgl_packing P>
struct mgl_share {
  uint4 v[mgl_coded<P>::SHARE_QUADS];
  float2 scale[MGL_SHARE_SUMS];
  float2 zero[mgl_coded<P>::ZEROS ? (int)MGL_SHARE_SUMS : 1];
};

// Where a lane finds that in a panel. (These are kept in registers: they cost much to make anew.)
struct mgl_share_places {
  uint32_t codes;
  uint32_t scales;   // of the first sum
  uint32_t step[2];  // to that of the next chunk, and of the next half
  uint32_t signs;    // 0x80 in each byte, which the compiler does not know: an instruction has room
                     // for one constant, and the mask is another
};

template <mgl_packing P>
MGL_DEVICE mgl_share_places mgl_find_share_of(uint32_t share, uint32_t lane,
                                              const mgl_cuda_op *op) {
  const uint32_t group_shift = mgl_op_group_shift(op), zero = op->zero;
  mgl_share_places at;
  if constexpr (mgl_coded<P>::MIXED) {
    at.codes = mgl_kept(share * (MGL_SHARE_K / MGL_PANEL_COLUMNS * MGL_MX4_BYTES) + lane * 16);
    at.scales = at.codes - lane * 16 + MGL_MX4_CODES_BYTES + lane / 4 * 4;
    at.step[0] = at.step[1] = 0;
    at.signs = 0x80808080u + zero;
    return at;
  }
  at.codes = mgl_kept(share * (mgl_coded<P>::SHARE_QUADS * 512) + lane * 16);
  at.scales =
      mgl_kept(mgl_coded<P>::CODES_BYTES +
               (share * MGL_SHARE_K >> group_shift) * mgl_coded<P>::GROUP_BYTES + lane / 4 * 8);
  at.step[0] = (MGL_CHUNK_K >> group_shift) * mgl_coded<P>::GROUP_BYTES;
  at.step[1] = (MGL_SHARE_K / 2 >> group_shift) * mgl_coded<P>::GROUP_BYTES;
  at.signs = 0x80808080u + zero;
  return at;
}

// A warp's own.
template <mgl_packing P>
MGL_DEVICE mgl_share_places mgl_find_share(const mgl_worker *w, const mgl_cuda_op *op) {
  return mgl_find_share_of<P>(w->warp, w->lane, op);
}

MGL_DEVICE float2 mgl_load_shared_pair(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// panel: address in shared memory.
template <mgl_packing P>
MGL_DEVICE void mgl_read_share(const mgl_share_places *at, uint32_t panel, mgl_share<P> *out) {
  if constexpr (mgl_coded<P>::MIXED) {
    static_assert(!mgl_coded<P>::MIXED || MGL_SHARE_SUMS == MGL_SHARE_CHUNKS, "groups of 32");
#pragma unroll
    for (int i = 0; i < mgl_coded<P>::SHARE_QUADS; i++) {
      out->v[i] = mgl_load_shared(panel + at->codes + i * MGL_MX4_BYTES);
    }
#pragma unroll
    for (int i = 0; i < MGL_SHARE_SUMS; i++) {
      const uint32_t pair = mgl_load_shared_word(panel + at->scales + i / 2 * MGL_MX4_BYTES +
                                                 i % 2 * MGL_MX4_SCALE_BYTES);
      out->scale[i] = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < mgl_coded<P>::SHARE_QUADS; i++) {
    out->v[i] = mgl_load_shared(panel + at->codes + i * 512);
  }
#pragma unroll
  for (int i = 0; i < MGL_SHARE_SUMS; i++) {
    uint32_t from = panel + at->scales;
    if (MGL_SHARE_SUMS == 4) {
      from += (i % 2 != 0 ? at->step[0] : 0) + (i / 2 != 0 ? at->step[1] : 0);
    } else if (i != 0) {
      from += at->step[1];
    }
    out->scale[i] = mgl_load_shared_pair(from);
    if (mgl_coded<P>::ZEROS) {
      out->zero[mgl_coded<P>::ZEROS ? i : 0] = mgl_load_shared_pair(from + MGL_PANEL_SCALE_BYTES);
    }
  }
}

// 0 once the loads have arrived (mgl_loads_arrived). (Or, not exclusive or: where two loads are of
// the same place, the compiler would know that they cancel out, and not wait for them.)
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_share_arrived(const mgl_share<P> *s, uint32_t zero) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < MGL_SHARE_SUMS; i++) {
    bits |= __float_as_uint(s->scale[i].x);
    if (mgl_coded<P>::ZEROS) {
      bits |= __float_as_uint(s->zero[mgl_coded<P>::ZEROS ? i : 0].x);
    }
  }
#pragma unroll
  for (int i = 0; i < mgl_coded<P>::SHARE_QUADS; i++) {
    bits |= s->v[i].x;
  }
  return bits & zero;
}

MGL_DEVICE uint32_t mgl_word_of(uint4 v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Twice the values of four codes of E2M1, in the lower half of `codes`, as bytes. prmt makes of a
// code a byte of the table, or, of one with a sign, the table's sign bits: so of tables without and
// with them sizes and signs. There is no -0, of which a carry would go to the next byte.
MGL_DEVICE uint32_t mgl_e2m1_four(uint32_t codes) {
  uint32_t sizes, signs;  // signs: 0x80, or 0xff
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(sizes)
      : "r"(0x03020100u), "r"(0x0c080604u), "r"(codes & 0x7777u));
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(signs) : "r"(0x80808080u), "r"(codes));
  return (sizes ^ signs ^ 0x80808080u) + (signs & 0x01010101u) * 0x81u;
}

// Operand a of a chunk, of whole numbers.
template <mgl_packing P>
MGL_DEVICE void mgl_decode_whole(const mgl_share<P> *s, uint32_t signs, int chunk, uint32_t a[4]) {
  if constexpr (mgl_coded<P>::TABLE) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t word = mgl_word_of(s->v[chunk / 2], chunk % 2 * 2 + i);
      a[2 * i] = mgl_e2m1_four(word);
      a[2 * i + 1] = mgl_e2m1_four(word >> 16);
    }
  } else if constexpr (mgl_coded<P>::NIBBLES) {
#pragma unroll
    for (int i = 0; i < 2; i++) {  // 16 times the code less 8
      const uint32_t word = mgl_word_of(s->v[chunk / 2], chunk % 2 * 2 + i);
      a[2 * i] = (word << 4 & 0xf0f0f0f0u) ^ signs;
      a[2 * i + 1] = (word & 0xf0f0f0f0u) ^ signs;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      a[i] = mgl_word_of(s->v[chunk], i);
    }
  }
}

// Two codes of E4M3, the lower or the upper half of a word, as f16.
template <bool UPPER>
MGL_DEVICE uint32_t mgl_e4m3_pair(uint32_t word) {
  uint32_t out;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (UPPER) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.rn.f16x2.e4m3x2 %0, h;\n}"
        : "=r"(out)
        : "r"(word));
  } else {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.rn.f16x2.e4m3x2 %0, l;\n}"
        : "=r"(out)
        : "r"(word));
  }
#else
  // Each with its sign in front; sign and magnitude where f16 has them are 2^-8 of the value.
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(out) : "r"(word), "n"(UPPER ? 0xb3a2 : 0x9180));
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(out << 7 & 0xbf80bf80u), "r"(0x5c005c00u));
#endif
  return out;
}

// Operand a of one of a chunk's two products, of f16.
template <mgl_packing P>
MGL_DEVICE void mgl_decode_f16(const mgl_share<P> *s, int chunk, int step, uint32_t a[4]) {
  const uint32_t low = mgl_word_of(s->v[chunk % mgl_coded<P>::SHARE_QUADS], 2 * step);
  const uint32_t high = mgl_word_of(s->v[chunk % mgl_coded<P>::SHARE_QUADS], 2 * step + 1);
  a[0] = mgl_e4m3_pair<false>(low);
  a[1] = mgl_e4m3_pair<false>(high);
  a[2] = mgl_e4m3_pair<true>(low);
  a[3] = mgl_e4m3_pair<true>(high);
}

// --- x -------------------------------------------------------------------------------------------

// The larger magnitude of each half, bf16; a NaN is larger than all.
MGL_DEVICE uint32_t mgl_larger_bf16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("{\n.reg .b32 x, y;\nabs.bf16x2 x, %1;\nabs.bf16x2 y, %2;\nmax.NaN.bf16x2 %0, x, y;\n}"
      : "=r"(out)
      : "r"(a), "r"(b));
  return out;
}

// The largest magnitude of eight elements, beside others.
MGL_DEVICE uint32_t mgl_largest_bf16(uint4 v, uint32_t other) {
  return mgl_larger_bf16(mgl_larger_bf16(v.x, v.y),
                         mgl_larger_bf16(mgl_larger_bf16(v.z, v.w), other));
}

// Over the lanes that differ in the bits of BITS.
template <int BITS>
MGL_DEVICE uint32_t mgl_largest_of_lanes(uint32_t largest) {
  largest = max(largest & 0xffffu, largest >> 16);
#pragma unroll
  for (int bit = 1; bit <= BITS; bit *= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, bit));
  }
  return largest;
}

// What x is multiplied by, and what the products of a share are.
struct mgl_x_scale {
  float up, down;
};

// largest: the share's largest magnitude. What is not finite makes all its products NaN.
template <mgl_packing P>
MGL_DEVICE mgl_x_scale mgl_x_scale_of(uint32_t largest) {
  constexpr uint32_t down = mgl_coded<P>::X_SHIFT + mgl_coded<P>::CODE_SHIFT;
  const uint32_t exponent = max(largest >> 7, down + 1);
  mgl_x_scale out;
  out.up = __uint_as_float((254 + (uint32_t)mgl_coded<P>::X_SHIFT - exponent) << 23);
  out.down = __uint_as_float(exponent == 255 ? 0x7fc00000u : (exponent - down) << 23);
  return out;
}

// Eight elements, which are bf16, as operands: four of them in the order 0, 2, 1, 3, that of codes
// in a word, then the other four.
MGL_DEVICE uint4 mgl_x_of_f16(uint4 v, float up) {
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t a = mgl_word_of(v, i), b = mgl_word_of(v, i + 1);
    const float even[2] = {__uint_as_float(a << 16) * up, __uint_as_float(b << 16) * up};
    const float odd[2] = {__uint_as_float(a & 0xffff0000u) * up,
                          __uint_as_float(b & 0xffff0000u) * up};
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out[i]) : "f"(even[1]), "f"(even[0]));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out[i + 1]) : "f"(odd[1]), "f"(odd[0]));
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

// The same as whole numbers, 256 times one piece and another: words x and y have the eight upper
// pieces, z and w the lower ones.
MGL_DEVICE uint4 mgl_x_of_whole(uint4 v, float up) {
  uint32_t upper[2], lower[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {  // the number and 128 in the lower 16 bits
      const uint32_t pair = mgl_word_of(v, 2 * i + j / 2);
      const float x = __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      bits[j] = __float_as_uint(__fmaf_rn(x, up, 12582912.0f + 128.0f));
    }
    const uint32_t even = __byte_perm(bits[0], bits[2], 0x5140);
    const uint32_t odd = __byte_perm(bits[1], bits[3], 0x5140);
    upper[i] = __byte_perm(even, odd, 0x7632);
    lower[i] = __byte_perm(even, odd, 0x5410) ^ 0x80808080u;
  }
  return make_uint4(upper[0], upper[1], lower[0], lower[1]);
}

// The sum of two words of pieces, on `sum`.
MGL_DEVICE int mgl_sum_pieces(uint32_t a, uint32_t b, int sum) {
  return __dp4a((int)a, 0x01010101, __dp4a((int)b, 0x01010101, sum));
}

// --- products ------------------------------------------------------------------------------------

// A sum of whole products, from its two pieces.
MGL_DEVICE float mgl_whole_sum(int upper, int lower) {
  return (float)(upper * 256 + lower);
}

// The same with a zero point: `zero` as a panel has it, `x` the sum of the whole numbers of x.
MGL_DEVICE float mgl_less_zero(float sum, float zero, float x) {
  const float added = (__uint_as_float(__float_as_uint(zero) & 0xffff0000u) + 136.0f) * 16.0f;
  return __fmaf_rn(added, x, sum);
}

// A sum of products times its scale, on the sum of those before. Where a share has one such sum the
// product is rounded, as who makes it need not know what is before (tasks_linear_paged.cuh).
MGL_DEVICE void mgl_add_scaled(float value, float scale, float *sum) {
  *sum = MGL_SHARE_SUMS == 1 ? *sum + value * scale : __fmaf_rn(value, scale, *sum);
}

#endif
