// Short rows: a matrix of bf16 in about 12 bits a weight, from which the very same bf16 come back.
//
// A token reads every weight once, and memory is what it waits for; so fewer bytes are a faster
// token, if no bit is lost. The exponents of 128 weights side by side nearly all are among 16: such
// a block has the least of these, its base, and 4 bits a weight beside sign and mantissa. The few
// weights below are patches, whole; where a group of rows has more of them than it has room for, it
// is read from the plain rows, which stay beside the short ones for many tokens.
//
// 16 rows are a group, and a group is one ascending stream, block after block of all its rows: one
// stream is what prefetchers follow best, and 16 sums hide each other's latency (docs/log/305).
// A group, aligned to 64 bytes:
//   bases    uint16 [blocks][16]: base << 7 (where bf16 has its exponent) and below the number of
//            patches of this row's block; the first is MGL_SHORT_PLAIN: the group is not here
//   patches  uint32 [blocks], those that there are: block after block, row after row, ascending;
//            element in the block << 16 | bf16
//   blocks   [blocks][16] of 192 bytes
// A block of weights w[0..127], as 16-bit words, i from 0 to 31:
//   word i       sign and mantissa of w[i] where bf16 has them, between them those of w[32 + i],
//                which come to these places when the two bytes are swapped
//   word 32 + i  the same of w[64 + i] and w[96 + i]
//   word 64 + i  exponents less the base of w[i], w[32 + i], w[64 + i], w[96 + i], from bit 0 on
// So a vector of any width is consecutive weights in their order. Behind K and behind the last row
// stands a base's power of two, which is finite, and is multiplied by zeros or not at all.
#ifndef MGL_KERNELS_CPU_SHORT_ROWS_H
#define MGL_KERNELS_CPU_SHORT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum {
  MGL_SHORT_ROWS = 16,
  MGL_SHORT_BLOCK = 128,
  MGL_SHORT_BLOCK_BYTES = 192,
  MGL_SHORT_PLAIN = 0xffff,
  MGL_SHORT_MOST_BASE = 240,  // its 16 exponents end with the largest that there is
  MGL_SHORT_COUNT = 0x7f,     // patches of a block: bits of its base
};

// Where a group has its parts, from its first byte on.
typedef struct mgl_short_layout {
  uint32_t blocks;  // of a row
  size_t patches, elements, bytes;
} mgl_short_layout;

static inline mgl_short_layout mgl_short_layout_of(uint32_t k) {
  mgl_short_layout layout = {.blocks = k / MGL_SHORT_BLOCK + (k % MGL_SHORT_BLOCK != 0 ? 1 : 0)};
  layout.patches = (size_t)layout.blocks * MGL_SHORT_ROWS * sizeof(uint16_t);
  layout.elements = (layout.patches + layout.blocks * sizeof(uint32_t) + 63) / 64 * 64;
  layout.bytes = layout.elements + (size_t)layout.blocks * MGL_SHORT_ROWS * MGL_SHORT_BLOCK_BYTES;
  return layout;
}

static inline size_t mgl_short_groups(uint32_t rows) {
  return rows / MGL_SHORT_ROWS + (rows % MGL_SHORT_ROWS != 0 ? 1 : 0);
}

// Bytes of a matrix [rows, k]. At most MGL_SHORT_WORTH of the plain ones, or it is not worth it:
// so it is where rows are short or end in a part of a block.
static inline size_t mgl_short_bytes(uint32_t rows, uint32_t k) {
  return mgl_short_groups(rows) * mgl_short_layout_of(k).bytes;
}
#define MGL_SHORT_WORTH 0.8

// Packs groups [begin, end) of w [rows, k] into `out`, where group 0 begins. Returns how many of
// them stay plain.
size_t mgl_short_pack(const mgl_bf16 *w, uint32_t rows, uint32_t k, size_t begin, size_t end,
                      void *out);

// Block `block` of row `row` of a group that is not plain: MGL_SHORT_BLOCK elements. *patches are
// those that no block before this one had; what this block has is taken from them.
void mgl_short_unpack(const void *group, const mgl_short_layout *layout, uint32_t block,
                      uint32_t row, const uint32_t **patches, mgl_bf16 *out);

static inline uint16_t mgl_short_base(const void *group, uint32_t block, uint32_t row) {
  return ((const uint16_t *)group)[block * MGL_SHORT_ROWS + row];
}

// The first patch of a group.
static inline const uint32_t *mgl_short_patches(const void *group, const mgl_short_layout *layout) {
  return (const uint32_t *)(const void *)((const unsigned char *)group + layout->patches);
}

#endif
