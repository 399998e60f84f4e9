// This file has what streams and tiles of the wide class's attention share: rows of queries in a
// warp, their online softmax and products, their output, and the parts of units that are cut.
//
// FlashAttention (Dao et al. 2022) with query rows, tokens times heads of a KV group, as rows of
// the products: 16 a warp. In shared memory, rows of K lie in slabs of 64 elements (32, where HD is
// no multiple of 64), V as in its pages, both with 16-byte chunks swizzled so that ldmatrix meets
// no bank twice and wgmma reads them as they are.
#ifndef MGL_KERNELS_CUDA_SMALL_WIDE_ROWS_CUH
#define MGL_KERNELS_CUDA_SMALL_WIDE_ROWS_CUH

#include "kernels/cuda/small/wide_rope_kv.cuh"
#include "twin/wide_layout.h"

enum {
  MGL_SLAB = MGL_HEAD_DIM % 64 == 0 ? 64 : 32,  // elements of a row of a slab
  MGL_SLAB_BYTES = MGL_SLAB * 2,
  MGL_ROW_CHUNKS = MGL_HEAD_DIM / 8,                           // 16-byte chunks of a row of Q or K
  MGL_PAGE_BYTES_K = MGL_WIDE_STREAM_STEP * MGL_HEAD_DIM * 2,  // of a KV head of a page; and of V
  MGL_HEAD_STEPS = MGL_HEAD_DIM / 16,  // k steps of the scores; pairs of columns of the output
  MGL_HEAD_COLUMNS = MGL_HEAD_DIM / 8,
  MGL_ATTEND_BYTES =  // of shared memory
  MGL_TARGET_WGMMA ? (int)MGL_WIDE_ATTEND_BYTES : (int)MGL_WIDE_ATTEND_PORTABLE_BYTES,
};

static_assert(MGL_WIDE_WARPS * 32 == MGL_CUDA_CONSUMERS &&
                  MGL_WIDE_WARPS * 16 == MGL_WIDE_TILE_ROWS,
              "a warp has 16 rows of a tile");
static_assert(sizeof(mgl_wide_item) == 32 && sizeof(mgl_wide_cut) == 16, "as the host has them");

// --- instructions --------------------------------------------------------------------------------

// Copies the first `bytes` of 16 and fills the rest with zeros; with 0 nothing is read.
MGL_DEVICE void mgl_copy_async(uint32_t to, const void *from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// 16 bytes that nobody reads again before many others have been read: they leave the L2 first, so
// that what is written and read again by the next stages stays there.
MGL_DEVICE void mgl_copy_async_once(uint32_t to, const void *from) {
  uint64_t evict_first;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(evict_first)
               : "memory");
}

MGL_DEVICE void mgl_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the latest `left` groups of this thread have arrived.
template <int left>
MGL_DEVICE void mgl_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

MGL_DEVICE void mgl_load_matrices(uint32_t address, uint32_t out[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

MGL_DEVICE float mgl_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Among consumers: whether one of them says so; a barrier too.
MGL_DEVICE bool mgl_consumers_any(bool mine) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "bar.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(mine ? 1u : 0u), "n"((int)MGL_BARRIER_CONSUMERS), "n"((int)MGL_CUDA_CONSUMERS)
      : "memory");
  return any != 0;
}

MGL_DEVICE float mgl_wide_unseen() {
  return __uint_as_float(0xff800000u);  // minus infinity
}

// --- shared memory -------------------------------------------------------------------------------

// Byte of a chunk of a row of K or Q, of `rows` rows.
template <int rows>
MGL_DEVICE uint32_t mgl_slab_offset(uint32_t row, uint32_t chunk) {
  constexpr uint32_t chunks = MGL_SLAB / 8;
  uint32_t swizzle = chunks == 8 ? row % 8 : row / 2 % 4;
  return (chunk / chunks * rows + row) * MGL_SLAB_BYTES + ((chunk % chunks) ^ swizzle) * 16;
}

// Byte of the half of a row of V (8 positions) of a page.
MGL_DEVICE uint32_t mgl_v_offset(uint32_t row, uint32_t half) {
  return row * 32 + (half ^ (row / 4 % 2)) * 16;
}

// A lane's addresses for ldmatrix, relative to a tile.
typedef struct mgl_wide_lanes {
  uint32_t row, chunk;  // K and Q: of row and chunk 0; the chunk is joined by exclusive or
  uint32_t v;
} mgl_wide_lanes;

// K: matrices are positions 0 to 7 of chunks 0 and 1, then 8 to 15. V alike, halves for chunks.
MGL_DEVICE mgl_wide_lanes mgl_wide_lanes_of(uint32_t lane) {
  uint32_t row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
  mgl_wide_lanes l;
  l.row = row * MGL_SLAB_BYTES;
  l.chunk = (chunk ^ (MGL_SLAB == 64 ? row % 8 : row / 2 % 4)) * 16;
  l.v = mgl_v_offset(row, chunk);
  return l;
}

// --- softmax and products ------------------------------------------------------------------------

// A warp's 16 rows. Lane 4 g + t has rows g and g + 8: columns 8 j + 2 t and the next of each.
typedef struct mgl_wide_rows {
  float values[MGL_HEAD_COLUMNS][4];
  float max[2];
  float sum[2];       // of this lane's columns
  uint32_t limit[2];  // positions that the row sees
} mgl_wide_rows;

MGL_DEVICE void mgl_wide_clear(mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      rows->values[j][i] = 0;
    }
  }
  rows->max[0] = rows->max[1] = mgl_wide_unseen();
  rows->sum[0] = rows->sum[1] = 0;
}

// Scores of 16 * pairs positions of K, `tile_rows` rows at `k`.
template <int pairs, int tile_rows>
MGL_DEVICE void mgl_wide_scores(const uint32_t q[MGL_HEAD_STEPS][4], uint32_t k,
                                const mgl_wide_lanes *lanes, float scores[2 * pairs][4]) {
#pragma unroll
  for (uint32_t j = 0; j < 2 * pairs; j++) {
    scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0;
  }
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    constexpr uint32_t steps = MGL_SLAB / 16;
    uint32_t at = k + s / steps * (tile_rows * MGL_SLAB_BYTES) + lanes->row +
                  (lanes->chunk ^ (s % steps * 32));
#pragma unroll
    for (uint32_t j = 0; j < pairs; j++) {
      uint32_t b[4];
      mgl_load_matrices(at + j * (16 * MGL_SLAB_BYTES), b);
      mgl_mma(scores[2 * j], q[s], b[0], b[1]);
      mgl_mma(scores[2 * j + 1], q[s], b[2], b[3]);
    }
  }
}

// Scores that a row does not see become minus infinity. first: position of the tile.
template <int columns>
MGL_DEVICE void mgl_wide_mask(const mgl_wide_rows *rows, uint32_t first, uint32_t lane,
                              float scores[columns][4]) {
#pragma unroll
  for (uint32_t j = 0; j < columns; j++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      uint32_t position = first + j * 8 + lane % 4 * 2 + i % 2;
      if (position >= rows->limit[i / 2]) {
        scores[j][i] = mgl_wide_unseen();
      }
    }
  }
}

// Scores become weights relative to the rows' new maxima. True where maxima have grown, of any row
// of the warp: what the rows have of values is then to be multiplied by `decay`.
template <int columns>
MGL_DEVICE bool mgl_wide_weigh(float (&scores)[columns][4], mgl_wide_rows *rows, float decay[2]) {
  float max[2] = {rows->max[0], rows->max[1]};
#pragma unroll
  for (uint32_t j = 0; j < columns; j++) {
    max[0] = fmaxf(max[0], fmaxf(scores[j][0], scores[j][1]));
    max[1] = fmaxf(max[1], fmaxf(scores[j][2], scores[j][3]));
  }
  float base[2];
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], 1));
    max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], 2));
    base[r] = max[r] == mgl_wide_unseen() ? 0.0f : max[r];
  }
  const bool grown = __any_sync(0xffffffffu, max[0] != rows->max[0] || max[1] != rows->max[1]) != 0;
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    decay[r] = mgl_exp2(rows->max[r] - base[r]);
    rows->sum[r] *= decay[r];
    rows->max[r] = max[r];
  }
#pragma unroll
  for (uint32_t j = 0; j < columns; j++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      scores[j][i] = mgl_exp2(scores[j][i] - base[i / 2]);
    }
    rows->sum[0] += scores[j][0] + scores[j][1];
    rows->sum[1] += scores[j][2] + scores[j][3];
  }
  return grown;
}

MGL_DEVICE void mgl_wide_decay(mgl_wide_rows *rows, const float decay[2]) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
    rows->values[j][0] *= decay[0];
    rows->values[j][1] *= decay[0];
    rows->values[j][2] *= decay[1];
    rows->values[j][3] *= decay[1];
  }
}

// Weights of 16 positions, as the left operand of a product.
MGL_DEVICE void mgl_wide_pack(const float low[4], const float high[4], uint32_t a[4]) {
  a[0] = mgl_pack_bf16(low[0], low[1]);
  a[1] = mgl_pack_bf16(low[2], low[3]);
  a[2] = mgl_pack_bf16(high[0], high[1]);
  a[3] = mgl_pack_bf16(high[2], high[3]);
}

// Adds the values of 16 * pages positions, whose weights are `weights`.
template <int pages>
MGL_DEVICE void mgl_wide_values(const float weights[2 * pages][4], uint32_t v,
                                const mgl_wide_lanes *lanes, mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t p = 0; p < pages; p++) {
    uint32_t a[4];
    mgl_wide_pack(weights[2 * p], weights[2 * p + 1], a);
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
      uint32_t b[4];
      mgl_load_matrices(v + lanes->v + p * MGL_PAGE_BYTES_K + j * (16 * 32), b);
      mgl_mma(rows->values[2 * j], a, b[0], b[1]);
      mgl_mma(rows->values[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// --- output --------------------------------------------------------------------------------------

// A row of an item: which token it is of, and which head.
MGL_DEVICE void mgl_wide_row_of(const mgl_wide_attention *a, const mgl_wide_item *item,
                                uint32_t kv_head, uint32_t row, uint32_t *out_token,
                                uint32_t *out_head) {
  *out_token = item->row + row / MGL_GROUP;
  *out_head = kv_head * MGL_GROUP + row % MGL_GROUP;
}

// The rows' sums of weights, from those of lanes.
MGL_DEVICE void mgl_wide_sum_rows(mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    rows->sum[r] += __shfl_xor_sync(0xffffffffu, rows->sum[r], 1);
    rows->sum[r] += __shfl_xor_sync(0xffffffffu, rows->sum[r], 2);
  }
}

// Rows first + g and first + g + 8 of an item with `count` rows, whose sums are the rows'.
MGL_DEVICE void mgl_wide_write(const mgl_wide_attention *a, const mgl_wide_item *item,
                               uint32_t kv_head, uint32_t first, uint32_t lane,
                               const mgl_wide_rows *rows) {
  const uint32_t count = item->count * MGL_GROUP;
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint32_t row = first + lane / 4 + r * 8;
    const float factor = 1.0f / rows->sum[r];
    uint32_t token, head;
    mgl_wide_row_of(a, item, kv_head, row, &token, &head);
    if (row >= count) {
      continue;
    }
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_DIM / 32; j++) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t c = 0; c < 4; c++) {
        const float *v = &rows->values[4 * j + c][2 * r];
        words[c] = mgl_pack_bf16(v[0] * factor, v[1] * factor);
      }
      uint32_t chunk = (head * (MGL_HEAD_DIM / 32) + j) * 4 + lane % 4;
      *(uint4 *)(a->out + mgl_wide_x_chunk(a->tokens, token, chunk)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// --- merging -------------------------------------------------------------------------------------

// The parts of a unit are of parties [first, last]: the warps or workers between whose cuts it
// lies.
typedef struct mgl_wide_parties {
  const mgl_wide_cut *cuts;
  uint32_t first, last;
  mgl_wide_cut begin;  // of the unit
} mgl_wide_parties;

// Finds the parties of the unit of which `part`, done by party `own`, is a part.
MGL_DEVICE mgl_wide_parties mgl_wide_find_parties(const mgl_wide_cut *cuts,
                                                  const mgl_wide_part *part, uint32_t steps,
                                                  uint32_t own, uint32_t lane) {
  mgl_wide_parties p = {cuts, own, own, {part->item, part->head, 0, 0}};
  const mgl_wide_cut end = {part->item, part->head, steps - 1, 0};
  for (uint32_t back = 0;; back += 32) {  // the last that begins at or before the unit
    bool found = own < back + lane || !mgl_wide_before(&p.begin, &cuts[own - back - lane]);
    uint32_t mask = __ballot_sync(0xffffffffu, found);
    if (mask != 0) {
      p.first = own - back - ((uint32_t)__ffs((int)mask) - 1);
      break;
    }
  }
  for (uint32_t ahead = 1;; ahead += 32) {  // the first that ends behind the unit's last step
    const mgl_wide_cut *next = &cuts[own + ahead + lane];
    // Behind the last cut nobody looks: that one ends every line.
    uint32_t mask = __ballot_sync(0xffffffffu, mgl_wide_before(&end, next));
    if (mask != 0) {
      p.last = own + ahead + ((uint32_t)__ffs((int)mask) - 1) - 1;
      break;
    }
  }
  return p;
}

// Which of its two partial results a party has of the unit: 0 if others began it.
MGL_DEVICE uint32_t mgl_wide_record(const mgl_wide_parties *p, uint32_t party) {
  return party * 2 + (mgl_wide_before(&p->begin, &p->cuts[party]) ? 0 : 1);
}

MGL_DEVICE bool mgl_wide_has_part(const mgl_wide_parties *p, uint32_t party) {
  return mgl_wide_before(&p->cuts[party], &p->cuts[party + 1]);
}

// Row r of mgl_wide_rows or of mgl_stream_rows joins a part's maximum and sum of weights; its
// values are then to be multiplied by out[0], and the part's by out[1].
template <typename Rows>
MGL_DEVICE void mgl_wide_join(Rows *rows, uint32_t r, float max, float sum, float out[2]) {
  const float both = fmaxf(rows->max[r], max);
  const float base = both == mgl_wide_unseen() ? 0.0f : both;
  out[0] = mgl_exp2(rows->max[r] - base);
  out[1] = mgl_exp2(max - base);
  rows->sum[r] = fmaf(out[1], sum, rows->sum[r] * out[0]);
  rows->max[r] = both;
}

#endif
