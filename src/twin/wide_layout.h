// This file says where elements of the wide class's activations lie, for both compilers. The wide
// class is the megakernel for large iterations (wide_kernel.cu).
//
// Three forms, all of a graph's `tokens` rows (a multiple of 8), each made for the tensor cores:
//
// x, bf16, what a linear multiplies (k elements a row, padded to k_padded, a multiple of 64): for
//   every 64 elements a column [tokens][128 bytes], so that the rows of any tile of tokens are
//   contiguous and one bulk copy brings them into the form that wgmma reads through a descriptor:
//   K-major, 16-byte chunks of a row swizzled by its number (the 128-byte swizzle). Elements stand
//   in the order in which packed weights have them (mgl_cuda_op.weights): chunk c of a group of 32
//   holds elements 8 t + 2 c + i of the group (t: 0 to 3, i: 0 or 1), in this order. A thread that
//   has the result of an m16n8k16 product with tokens as rows holds whole chunks: of its row,
//   columns 8 j + 2 t + i of four neighbouring j are chunk t of the group. Padding is zeros.
// qkv, the result of qkv_proj: plain rows [tokens][n], heads of Q, K and V one after the other; Q
// and
//   K, which are rounded to bf16 once they are rotated, as f16, V as the bf16 that the cache gets.
// residual, f32: as the sums of a product with features as rows lie in a warp: for every 16
//   features a column of [tokens / 8][32 lanes] of 16 bytes; lane 4 g + t holds feature g of tokens
//   2 t and 2 t + 1, then feature g + 8 of the same.
#ifndef MGL_TWIN_WIDE_LAYOUT_H
#define MGL_TWIN_WIDE_LAYOUT_H

#include <stdint.h>

#include "twin/atomics.h"

enum {
  MGL_WIDE_K = 64,           // elements of a column of x, and of a stage of a product
  MGL_WIDE_ROW_BYTES = 128,  // of a token in it
  MGL_WIDE_ROWS = 8,         // tokens over which the swizzle runs
};

// Bytes of x.
MGL_SHARED_FN uint64_t mgl_wide_x_bytes(uint32_t tokens, uint32_t k_padded) {
  return (uint64_t)(k_padded / MGL_WIDE_K) * tokens * MGL_WIDE_ROW_BYTES;
}

// Byte at which chunk `chunk` of a token's row of x begins; the row's chunk 4 n + c is chunk c of
// its n-th group of 32 elements.
MGL_SHARED_FN uint64_t mgl_wide_x_chunk(uint32_t tokens, uint32_t token, uint32_t chunk) {
  return ((uint64_t)(chunk / 8) * tokens + token) * MGL_WIDE_ROW_BYTES + ((chunk ^ token) % 8) * 16;
}

// Byte of element `element` of a token's row of x. Elements of even number have the next one behind
// them.
MGL_SHARED_FN uint64_t mgl_wide_x_offset(uint32_t tokens, uint32_t token, uint32_t element) {
  uint32_t chunk = element / 32 * 4 + element % 8 / 2;
  return mgl_wide_x_chunk(tokens, token, chunk) + element % 32 / 8 * 4 + element % 2 * 2;
}

// Byte of a feature of a token in the residual stream.
MGL_SHARED_FN uint64_t mgl_wide_residual_offset(uint32_t tokens, uint32_t token, uint32_t feature) {
  uint32_t lane = feature % 8 * 4 + token % 8 / 2;
  return (((uint64_t)(feature / 16) * (tokens / 8) + token / 8) * 32 + lane) * 16 +
         feature % 16 / 8 * 8 + token % 2 * 4;
}

#endif
