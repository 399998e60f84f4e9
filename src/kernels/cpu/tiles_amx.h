// Tile registers of AMX, and what linear_tiles.inc.h needs besides. tests/unit/kernels has the same
// operations without AMX (tiles_emulated.h).
//
// Not the compiler's intrinsics: gcc 12's load does not say that it reads memory, so that what was
// stored just before may be missing.
#ifndef MGL_KERNELS_CPU_TILES_AMX_H
#define MGL_KERNELS_CPU_TILES_AMX_H

#include <immintrin.h>
#include <stddef.h>

#include "kernels/cpu/vector_words.h"

// The operand of LDTILECFG.
typedef struct tile_config {
  unsigned char palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  unsigned char rows[16];
} tile_config;

#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)) : "memory")
#define TILE_RELEASE() __asm__ volatile("tilerelease" : : : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : : : "memory")
#define TILE_LOAD(tile, from, stride)                       \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile       \
                   :                                        \
                   : "r"((const void *)(from)), "r"(stride) \
                   : "memory")
#define TILE_STORE(tile, to, stride)                      \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" \
                   :                                      \
                   : "r"((void *)(to)), "r"(stride)       \
                   : "memory")
// sums += rows x columns
#define TILE_DOT(sums, rows, columns) \
  __asm__ volatile("tdpbf16ps %%tmm" #columns ", %%tmm" #rows ", %%tmm" #sums : : : "memory")

// to[j][i] = from[i][j] of `rows` rows of `columns` words of 4 bytes, at most 16 of each; strides
// in bytes.
static void tile_turn(const void *from, size_t from_stride, size_t rows, size_t columns, void *to,
                      size_t to_stride) {
  __m512i r[16], t[16], u[16];
  __mmask16 loads = (__mmask16)((1u << columns) - 1u), stores = (__mmask16)((1u << rows) - 1u);
  UNROLL for (size_t i = 0; i < 16; i++) {
    r[i] = i < rows ? _mm512_maskz_loadu_epi32(loads, (const char *)from + i * from_stride)
                    : _mm512_setzero_si512();
  }
  UNROLL for (size_t i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  UNROLL for (size_t i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Lane l (of four) of u[4 g + j] has column 4 l + j of rows 4 g to 4 g + 3.
  UNROLL for (size_t j = 0; j < 4; j++) {
    __m512i even01 = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x88);
    __m512i odd01 = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xdd);
    __m512i even23 = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x88);
    __m512i odd23 = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xdd);
    r[j] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    r[4 + j] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    r[12 + j] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
  UNROLL for (size_t j = 0; j < 16; j++) {
    if (j < columns) {
      _mm512_mask_storeu_epi32((char *)to + j * to_stride, stores, r[j]);
    }
  }
}

#endif
