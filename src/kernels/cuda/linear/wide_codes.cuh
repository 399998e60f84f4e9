// The main loop of the wide class's linears for weights of codes, on sm_90a.
//
// A panel's codes (twin/packing.h) of 64 columns are a stage's column of their row block, of half
// or a quarter of the bytes that bf16 has. A warp makes pairs of bf16 of them in registers, where
// wgmma wants its left operand anyway (codes.cuh: every value exact). Scales go onto f32 sums: the
// products of a group of 128 elements are made into sums of their own, which then are added to the
// tile's, each times its scale. That takes as many registers again as the tile's sums, so tiles of
// codes have at most 128 tokens. Stages begin where groups of 128 do.
//   Groups of 64 or 32, if the model has any, are parts of a stage that are added up likewise.
//   Rejected: scaled weights, which bf16 does not hold; the tile's sums in units of the present
//   scale, times the ratio of two scales at each border, which needs no second sums: a scale may be
//   0, and ratios overflow.
//
// Nothing is overlapped within a warpgroup but the second column's decoding with the products of
// the first: the other warpgroup multiplies meanwhile. A stage of 128 tokens is 512 cycles of
// products for each of the two, and some 300 of decoding, scaling and waiting.
#ifndef MGL_KERNELS_CUDA_LINEAR_WIDE_CODES_CUH
#define MGL_KERNELS_CUDA_LINEAR_WIDE_CODES_CUH

#include "kernels/cuda/linear/wide_decode.cuh"
#include "kernels/cuda/linear/wide_gemm.cuh"

#if MGL_TARGET_WGMMA && MGL_PACKINGS > 1 && defined(MGL_WIDE_TILE)

static_assert(MGL_WIDE_FEW, "sums of a group besides the tile's have registers");
static_assert(MGL_WIDE_COLUMNS == 2, "a stage is a group of 128 elements");

enum {
  MGL_FOLD_STEPS = MGL_GROUPS_OF_32   ? 2
                   : MGL_GROUPS_OF_64 ? 4
                                      : 8,            // of 16 elements, in one sum
  MGL_FOLDS = 4 * MGL_WIDE_COLUMNS / MGL_FOLD_STEPS,  // of a stage
};

// The scales of a stage: of rows g and g + 8, of each of its sums; and their zero points.
template <mgl_packing P>
struct mgl_wide_scales {
  float2 v[MGL_FOLDS];
  float2 zero[mgl_coded<P>::ZEROS ? (int)MGL_FOLDS : 1];
};

// Where a lane finds the scales of a tile.
struct mgl_wide_scales_source {
  const uint8_t *from;  // of its row block, the first panel's
  uint32_t panel_bytes;
  uint32_t group_shift;
  uint32_t end;  // columns of a row from here on have none that are wanted
};

template <mgl_packing P>
MGL_DEVICE mgl_wide_scales_source mgl_wide_find_scales(const mgl_wide_worker *w,
                                                       const mgl_wide_slot *slot,
                                                       const mgl_wide_tile *tile) {
  mgl_wide_scales_source s;
  s.panel_bytes = mgl_op_panel_bytes(&slot->op);
  s.group_shift = mgl_op_group_shift(&slot->op);
  const uint32_t block = tile->first_block + mgl_wide_least(w->warp, tile->blocks - 1);
  s.from = slot->op.weights + (uint64_t)block * (mgl_panels_of(slot->op.k) * s.panel_bytes) +
           mgl_coded<P>::CODES_BYTES + w->lane / 4 * 8;
  s.end = tile->first_stage + tile->stages;
  return s;
}

// Asks for the scales of the stage that has column `column` of the row, if the tile has it. What
// follows in the panel is sent to the L2 as well.
template <mgl_packing P>
MGL_DEVICE void mgl_wide_ask_scales(const mgl_wide_scales_source *s, uint32_t column,
                                    mgl_wide_scales<P> *out) {
  column = column / MGL_WIDE_COLUMNS * MGL_WIDE_COLUMNS;
  if (column >= s->end) {
    return;
  }
  const uint8_t *panel = s->from + (uint64_t)(column / MGL_WIDE_PANEL_COLUMNS) * s->panel_bytes;
#pragma unroll
  for (uint32_t i = 0; i < MGL_FOLDS; i++) {
    const uint32_t element =
        column % MGL_WIDE_PANEL_COLUMNS * MGL_WIDE_K + i * (MGL_FOLD_STEPS * 16);
    const uint8_t *at = panel + (element >> s->group_shift) * mgl_coded<P>::GROUP_BYTES;
    asm volatile("ld.global.nc.L2::256B.v2.f32 {%0,%1}, [%2];"
                 : "=f"(out->v[i].x), "=f"(out->v[i].y)
                 : "l"(at));
    if (mgl_coded<P>::ZEROS) {
      asm volatile("ld.global.nc.v2.f32 {%0,%1}, [%2];"
                   : "=f"(out->zero[i].x), "=f"(out->zero[i].y)
                   : "l"(at + MGL_PANEL_SCALE_BYTES));
    }
  }
}

// This warp's weights of a column in a stage, as operands of four products; in_group: that column's
// number in its group of 128 elements.
template <mgl_packing P>
MGL_DEVICE void mgl_wide_decode_column(const mgl_wide_worker *w, uint32_t stage, uint32_t column,
                                       uint32_t magic, int in_group,
                                       const mgl_wide_scales<P> *scales, uint32_t (&a)[16]) {
  const uint32_t from = w->stages + stage * MGL_WIDE_STAGE_BYTES +
                        w->warp * (MGL_WIDE_COLUMNS * MGL_WIDE_BLOCK_STAGE_BYTES) +
                        column * (mgl_coded<P>::QUADS * 512) + w->lane * 16;
  uint4 codes[mgl_coded<P>::QUADS];
#pragma unroll
  for (int i = 0; i < mgl_coded<P>::QUADS; i++) {
    codes[i] = mgl_load_shared(from + i * 512);
  }
#pragma unroll
  for (int step = 0; step < 4; step++) {
    uint2 pair = {};
    if constexpr (mgl_coded<P>::ZEROS) {
      const float2 zero = scales->zero[(4 * in_group + step) / MGL_FOLD_STEPS];
      pair = {__float_as_uint(zero.x), __float_as_uint(zero.y)};
    }
    mgl_decode<P>(codes, pair, magic, step, a + 4 * step);
  }
}

// d += part times the scales of its rows.
MGL_DEVICE void mgl_wide_fold(float (&d)[MGL_WIDE_SUMS], const float (&part)[MGL_WIDE_SUMS],
                              float2 scale) {
#pragma unroll
  for (int i = 0; i < MGL_WIDE_SUMS; i += 4) {
    d[i] = __fmaf_rn(part[i], scale.x, d[i]);
    d[i + 1] = __fmaf_rn(part[i + 1], scale.x, d[i + 1]);
    d[i + 2] = __fmaf_rn(part[i + 2], scale.y, d[i + 2]);
    d[i + 3] = __fmaf_rn(part[i + 3], scale.y, d[i + 3]);
  }
}

// The products of a stage of the ring that has the columns [BEGIN, END) of its group of 128
// elements (the first of them is the stage's first).
template <mgl_packing P, int BEGIN, int END>
MGL_DEVICE void mgl_wide_coded_stage(mgl_wide_worker *w, uint32_t magic,
                                     const mgl_wide_scales<P> *scales, float (&d)[MGL_WIDE_SUMS]) {
  const uint32_t at = w->stage++, stage = at % MGL_WIDE_STAGES;
  const uint32_t x = w->stages + stage * MGL_WIDE_STAGE_BYTES + MGL_WIDE_WEIGHT_BYTES;
  float part[MGL_WIDE_SUMS];
  uint32_t a[MGL_WIDE_COLUMNS][16];
  mgl_mbarrier_wait(&w->block->full[stage], at / MGL_WIDE_STAGES % 2);
  mgl_wide_decode_column<P>(w, stage, 0, magic, BEGIN, scales, a[0]);
#pragma unroll
  for (int step = 4 * BEGIN; step < 4 * END; step++) {
    const int column = step / 4 - BEGIN;
    const bool begins = step % MGL_FOLD_STEPS == 0 || step == 4 * BEGIN;
    const bool ends = (step + 1) % MGL_FOLD_STEPS == 0 || step + 1 == 4 * END;
    const uint64_t b = mgl_wgmma_descriptor(x + column * MGL_WIDE_COLUMN_BYTES) + step % 4 * 2;
    if (begins || step % 4 == 0) {
      mgl_wgmma_fence();
    }
    mgl_wgmma(part, a[column] + step % 4 * 4, b, begins ? 0 : 1);
    if (ends || step % 4 == 3) {
      mgl_wgmma_commit();
    }
    if (step % 4 == 3 && step + 1 < 4 * END) {  // while they are made
      mgl_wide_decode_column<P>(w, stage, column + 1, magic, BEGIN + column + 1, scales,
                                a[(column + 1) % MGL_WIDE_COLUMNS]);
    }
    if (ends) {
      mgl_wgmma_wait<0>();
      mgl_wgmma_arrived(reinterpret_cast<float(&)[MGL_WIDE_SUMS / 4][4]>(part));
      if (step + 1 == 4 * END) {
        mgl_wide_release(w, at);
      }
      mgl_wide_fold(d, part, scales->v[step / MGL_FOLD_STEPS]);
    }
  }
}

// The products of a tile of codes; d: zeros. Scales are asked for two stages ahead, since they come
// from the L2 and, the first of a panel, from memory.
template <mgl_packing P>
MGL_DEVICE void mgl_wide_multiply_codes(mgl_wide_worker *w, const mgl_wide_slot *slot,
                                        const mgl_wide_tile *tile, float (&d)[MGL_WIDE_SUMS]) {
  const mgl_wide_scales_source source = mgl_wide_find_scales<P>(w, slot, tile);
  const uint32_t magic = 0x43004300u | slot->op.zero;  // codes.cuh
  uint32_t column = tile->first_stage;
  mgl_wide_scales<P> now = {}, next = {}, later = {};
  mgl_wide_ask_scales<P>(&source, column, &now);
  mgl_wide_ask_scales<P>(&source, column + MGL_WIDE_COLUMNS, &next);
  if (column % MGL_WIDE_COLUMNS != 0) {
    mgl_wide_coded_stage<P, 1, 2>(w, magic, &now, d);
    column++;
    now = next;
    mgl_wide_ask_scales<P>(&source, column + MGL_WIDE_COLUMNS, &next);
  }
#pragma unroll 1
  for (; column + MGL_WIDE_COLUMNS <= source.end; column += MGL_WIDE_COLUMNS) {
    mgl_wide_ask_scales<P>(&source, column + 2 * MGL_WIDE_COLUMNS, &later);
    mgl_wide_coded_stage<P, 0, 2>(w, magic, &now, d);
    now = next;
    next = later;
  }
  if (column < source.end) {
    mgl_wide_coded_stage<P, 0, 1>(w, magic, &now, d);
  }
}

#endif

#endif
