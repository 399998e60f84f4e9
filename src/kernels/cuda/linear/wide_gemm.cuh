// The main loop of the wide class's linears on sm_90a: wgmma with the weights as the M operand,
// from registers, and tokens as N, from shared memory.
//
// Packed weights are the operands of m16n8k16 products, lane by lane (device_run.h), and those of
// the four warps of a warpgroup are together the operand of m64nNk16: so a warp takes its row block
// from the stage with plain 16-byte loads, and weights exist once for both classes. Sums run over k
// by ascending steps of 16, whatever the tile.
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_GEMM_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_GEMM_CUH

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/roles/wide_worker.cuh"

enum {
  MGL_WIDE_SUMS = MGL_WIDE_TILE_TOKENS / 2,  // of a thread: of two features
  // Products of experts' tiles, many of which are far from full, are of so many tokens each, and
  // those whose tokens are not there are left out (docs/log/300).
  MGL_WIDE_PART_TOKENS = MGL_WIDE_LEAST_TILE,
  MGL_WIDE_PARTS = MGL_WIDE_EXPERTS ? MGL_WIDE_TILE_TOKENS / MGL_WIDE_PART_TOKENS : 1,
};

#if MGL_TARGET_WGMMA

// d = a b (add: + d) for the 64 rows of a warpgroup and two columns for each of the sums; a: this
// lane's four words, b: the descriptor of [N][16] elements. Asynchronous.
template <int sums>
MGL_DEVICE void mgl_wgmma(float (&d)[sums], const uint32_t *a, uint64_t b, uint32_t add) {
  mgl_wgmma_columns(reinterpret_cast<float(&)[sums / 4][4]>(d),
                    *reinterpret_cast<const uint32_t(*)[4]>(a), b, add);
}

// Takes this warp's weights of a column of stage `at`, for the first of which it waits.
MGL_DEVICE void mgl_wide_take_weights(mgl_wide_worker *w, uint32_t at, uint32_t column,
                                      uint32_t (&a)[16]) {
  uint32_t stage = at % MGL_WIDE_STAGES;
  if (column == 0) {
    mgl_mbarrier_wait(&w->block->full[stage], at / MGL_WIDE_STAGES % 2);
  }
  uint32_t from = w->stages + stage * MGL_WIDE_STAGE_BYTES +
                  (w->warp * MGL_WIDE_COLUMNS + column) * MGL_WIDE_BLOCK_STAGE_BYTES + w->lane * 16;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    mgl_load_shared_words(from + i * 512, a + 4 * i);
  }
}

// The products of a column with a part of the tile's tokens.
template <uint32_t part>
MGL_DEVICE void mgl_wide_issue_part(float (&d)[MGL_WIDE_SUMS], const uint32_t (&a)[16], uint64_t b,
                                    uint32_t add) {
  constexpr uint32_t sums = MGL_WIDE_SUMS / MGL_WIDE_PARTS;
  float(&own)[sums] = reinterpret_cast<float(&)[sums]>(d[part * sums]);
  b += part * (MGL_WIDE_PART_TOKENS * MGL_WIDE_ROW_BYTES >> 4);
  mgl_wgmma(own, a, b, add);
  mgl_wgmma(own, a + 4, b + 2, 1);
  mgl_wgmma(own, a + 8, b + 4, 1);
  mgl_wgmma(own, a + 12, b + 6, 1);
}

MGL_DEVICE void mgl_wide_issue(const mgl_wide_worker *w, uint32_t at, uint32_t column,
                               float (&d)[MGL_WIDE_SUMS], const uint32_t (&a)[16], uint32_t add) {
  uint32_t x = w->stages + at % MGL_WIDE_STAGES * MGL_WIDE_STAGE_BYTES + MGL_WIDE_WEIGHT_BYTES +
               column * MGL_WIDE_COLUMN_BYTES;
  uint64_t b = mgl_wgmma_descriptor(x);
  mgl_wgmma_fence();
  mgl_wide_issue_part<0>(d, a, b, add);
  if constexpr (MGL_WIDE_PARTS > 1) {
    if (w->parts > 1) {
      mgl_wide_issue_part<1>(d, a, b, add);
    }
  }
  if constexpr (MGL_WIDE_PARTS > 2) {
    if (w->parts > 2) {
      mgl_wide_issue_part<2>(d, a, b, add);
    }
  }
  mgl_wgmma_commit();
}

MGL_DEVICE void mgl_wide_release(const mgl_wide_worker *w, uint32_t at) {
  if (w->lane == 0) {
    mgl_mbarrier_arrive(&w->block->empty[at % MGL_WIDE_STAGES]);
  }
}

// The products of a tile over `count` columns of k, at least one: while a group of products runs,
// the weights of the next column are taken. add: 1: d has the sums of the columns before.
MGL_DEVICE void mgl_wide_multiply(mgl_wide_worker *w, uint32_t count, uint32_t add,
                                  float (&d)[MGL_WIDE_SUMS]) {
  constexpr uint32_t columns = MGL_WIDE_COLUMNS, last = columns - 1;
  static_assert(columns == 1 || columns == 2, "columns of odd number are the last of their stages");
  uint32_t even[16];
  uint32_t odd[16];
  uint32_t at = 1;
  const uint32_t first = w->stage;
  w->stage += (count + last) / columns;
  mgl_wide_take_weights(w, first, 0, even);
  mgl_wide_issue(w, first, 0, d, even, add);
  for (; at + 1 < count; at += 2) {
    const uint32_t stage = first + at / columns, next = first + (at + 1) / columns;
    mgl_wide_take_weights(w, stage, last, odd);
    mgl_wide_issue(w, stage, last, d, odd, 1);
    mgl_wgmma_wait<1>();
    if (columns == 1) {
      mgl_wide_release(w, stage - 1);
    }
    mgl_wide_take_weights(w, next, 0, even);
    mgl_wide_issue(w, next, 0, d, even, 1);
    mgl_wgmma_wait<1>();
    mgl_wide_release(w, stage);
  }
  if (at < count) {
    const uint32_t stage = first + at / columns;
    mgl_wide_take_weights(w, stage, last, odd);
    mgl_wide_issue(w, stage, last, d, odd, 1);
    mgl_wgmma_wait<1>();
    if (columns == 1) {
      mgl_wide_release(w, stage - 1);
    }
  }
  mgl_wgmma_wait<0>();
  mgl_wide_release(w, w->stage - 1);
}

#endif

#endif
