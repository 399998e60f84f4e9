// Host and device share this of attention in the wide class, besides its work list
// (twin/wide_items.h): the bound op, and how large its buffers are.
//
// Letters: T rows of the graph, H heads, HKV KV heads, HD head dim, P tokens of a KV page.
#ifndef MGL_TWIN_WIDE_ATTENTION_H
#define MGL_TWIN_WIDE_ATTENTION_H

#include <stdint.h>

#include "twin/atomics.h"
#include "twin/wide_items.h"

enum {
  // Shared memory of mgl_wide_attend, aligned to 1024 bytes: what a worker has in flight.
  MGL_WIDE_ATTEND_BYTES = 196608,
  MGL_WIDE_ATTEND_PORTABLE_BYTES = 98304,  // where wgmma is missing, or not to be used
  // Pages of each share that are asked for before attend may run, with wgmma.
  MGL_WIDE_ATTEND_AHEAD = 3,
};

typedef struct mgl_wide_attention {
  const uint16_t *qkv;          // [T][(H + 2 HKV) HD]: heads of Q, of K (f16), of V (bf16)
  uint16_t *q;                  // bf16 [T][H][HD], written by rope_kv: rotated and scaled
  uint8_t *out;                 // x of the next linear (wide_layout.h), H HD elements a row
  const float *angles;          // [T, HD / 2, 2] cos and sin
  const float *q_norm;          // [HD] or NULL
  const float *k_norm;          // [HD] or NULL
  uint16_t *k_cache;            // bf16 [pages, HKV, P, HD]
  uint16_t *v_cache;            // bf16 [pages, HKV, HD, P]
  const int32_t *block_tables;  // [slots, block_table_stride] page numbers
  const uint32_t *positions;    // [T]
  const uint32_t *slots;        // [T] rows of the block tables; no two sequences have the same
  const mgl_wide_work *work;    // of the iteration
  float *stream_partials;       // mgl_wide_stream_partial_bytes; all ones between layers
  float *tile_partials;         // mgl_wide_tile_partial_bytes
  uint32_t *merges;             // [MGL_WIDE_MAX_ITEMS, HKV] steps done of tiles; 0 between layers
  uint32_t block_table_stride;
  uint32_t kv_heads;
  uint32_t tokens;  // T
  float eps;        // of the norms
  float scale;      // of the scores
} mgl_wide_attention;

// Floats of a partial result: sums of values, and of each row the maximum and the sum of weights.
// A warp has one, of a unit that others began; a worker two: of one that others end, too. Each has
// them for each of two phases (mgl_wide_shape.border).
MGL_SHARED_FN uint32_t mgl_wide_partial_floats(uint32_t rows, uint32_t head_dim) {
  return rows * (head_dim + 8);
}

MGL_SHARED_FN uint64_t mgl_wide_stream_partial_bytes(uint32_t workers, uint32_t head_dim) {
  return (uint64_t)(2 * workers + MGL_WIDE_IDLE_PARTIES) * MGL_WIDE_WARPS * 4 *
         mgl_wide_partial_floats(MGL_WIDE_STREAM_ROWS, head_dim);
}

MGL_SHARED_FN uint64_t mgl_wide_tile_partial_bytes(uint32_t workers, uint32_t head_dim) {
  return (uint64_t)(2 * workers + MGL_WIDE_IDLE_PARTIES) * 2 * 4 *
         mgl_wide_partial_floats(MGL_WIDE_TILE_ROWS, head_dim);
}

#endif
