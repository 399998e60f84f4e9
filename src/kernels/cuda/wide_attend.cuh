// attend of the wide class: streams (sequences that decode) and tiles (chunks of prompts) of the
// work list (batch/wide_items.h), all keys and values from the paged cache, into which rope_kv has
// put the iteration's own.
//
// FlashAttention (Dao et al. 2022) with query rows, tokens times heads of a KV group, as rows of
// the products: 16 a warp. A stream is one warp's: it reads page after page through a ring of its
// own, which runs ahead over the borders of units, so that memory is asked without a pause and no
// warp waits for another. A tile is computed by all warps, which share stages of 64 positions; its
// queries come with its first stage. Parts of units that are cut go to memory, and who ends last
// adds them up, in order (FlashDecoding's merge): the same bits in every run.
//
// In shared memory, rows of K lie in slabs of 64 elements (32, where HD is no multiple of 64), V as
// in its pages, both with 16-byte chunks swizzled so that ldmatrix meets no bank twice.
//
// Rejected: bulk copies, which are not in sm_80 and leave K's rows unswizzled (the copies are not
// what limits here: SPEED.md); a block-wide merge for streams, which needs barriers.
#ifndef MGL_KERNELS_CUDA_WIDE_ATTEND_CUH
#define MGL_KERNELS_CUDA_WIDE_ATTEND_CUH

#include "kernels/cuda/wide_layout.h"
#include "kernels/cuda/wide_rope_kv.cuh"

enum {
  MGL_SLAB = MGL_HEAD_DIM % 64 == 0 ? 64 : 32,  // elements of a row of a slab
  MGL_SLAB_BYTES = MGL_SLAB * 2,
  MGL_ROW_CHUNKS = MGL_HEAD_DIM / 8,                           // 16-byte chunks of a row of Q or K
  MGL_PAGE_BYTES_K = MGL_WIDE_STREAM_STEP * MGL_HEAD_DIM * 2,  // of a KV head of a page; and of V
  MGL_HEAD_STEPS = MGL_HEAD_DIM / 16,  // k steps of the scores; pairs of columns of the output
  MGL_HEAD_COLUMNS = MGL_HEAD_DIM / 8,

  MGL_STREAM_STAGE = 2 * MGL_PAGE_BYTES_K,
  MGL_STREAM_STAGES = MGL_WIDE_ATTEND_BYTES / MGL_WIDE_WARPS / MGL_STREAM_STAGE > 8
                          ? 8
                          : MGL_WIDE_ATTEND_BYTES / MGL_WIDE_WARPS / MGL_STREAM_STAGE,

  // A stage of a tile: K, V and, of the first, the queries.
  MGL_TILE_PAGES = MGL_WIDE_TILE_STEP / MGL_WIDE_STREAM_STEP,
  MGL_TILE_V = MGL_TILE_PAGES * MGL_PAGE_BYTES_K,
  MGL_TILE_Q = 2 * MGL_TILE_V,
  MGL_TILE_STAGE = MGL_TILE_Q + MGL_WIDE_TILE_ROWS * MGL_HEAD_DIM * 2,
  MGL_TILE_STAGES = 3,

  MGL_STREAM_PARTIAL = MGL_WIDE_STREAM_ROWS * (MGL_HEAD_DIM + 8),  // floats
  MGL_TILE_PARTIAL = MGL_WIDE_TILE_ROWS * (MGL_HEAD_DIM + 8),
};

static_assert(MGL_TILE_STAGE * MGL_TILE_STAGES <= MGL_WIDE_ATTEND_BYTES, "shared memory");
static_assert(MGL_STREAM_STAGES >= 3, "pages in flight");
static_assert(MGL_WIDE_WARPS * 32 == MGL_CUDA_CONSUMERS &&
                  MGL_WIDE_WARPS * 16 == MGL_WIDE_TILE_ROWS,
              "a warp has 16 rows of a tile");
static_assert(sizeof(mgl_wide_item) == 32 && sizeof(mgl_wide_cut) == 16, "as the host has them");

// --- instructions --------------------------------------------------------------------------------

// Copies the first `bytes` of 16 and fills the rest with zeros; with 0 nothing is read.
static __device__ __forceinline__ void mgl_copy_async(uint32_t to, const void *from,
                                                      uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

static __device__ __forceinline__ void mgl_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the latest `left` groups of this thread have arrived.
template <int left>
static __device__ __forceinline__ void mgl_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

static __device__ __forceinline__ void mgl_load_matrices(uint32_t address, uint32_t out[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

static __device__ __forceinline__ float mgl_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Among consumers: whether one of them says so; a barrier too.
static __device__ __forceinline__ bool mgl_consumers_any(bool mine) {
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

// Adds, and returns the value before; releases what the barrier before has gathered, and acquires
// what the additions before have released.
static __device__ __forceinline__ uint32_t mgl_merge_add(uint32_t *counter, uint32_t steps) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(steps)
               : "memory");
  return before;
}

static __device__ __forceinline__ float mgl_wide_unseen() {
  return __uint_as_float(0xff800000u);  // minus infinity
}

// --- shared memory -------------------------------------------------------------------------------

// Byte of a chunk of a row of K or Q, of `rows` rows.
template <int rows>
static __device__ __forceinline__ uint32_t mgl_slab_offset(uint32_t row, uint32_t chunk) {
  constexpr uint32_t chunks = MGL_SLAB / 8;
  uint32_t swizzle = chunks == 8 ? row % 8 : row / 2 % 4;
  return (chunk / chunks * rows + row) * MGL_SLAB_BYTES + ((chunk % chunks) ^ swizzle) * 16;
}

// Byte of the half of a row of V (8 positions) of a page.
static __device__ __forceinline__ uint32_t mgl_v_offset(uint32_t row, uint32_t half) {
  return row * 32 + (half ^ (row / 4 % 2)) * 16;
}

// A lane's addresses for ldmatrix, relative to a tile.
typedef struct mgl_wide_lanes {
  uint32_t row, chunk;  // K and Q: of row and chunk 0; the chunk is joined by exclusive or
  uint32_t v;
} mgl_wide_lanes;

// K: matrices are positions 0 to 7 of chunks 0 and 1, then 8 to 15. V alike, halves for chunks.
static __device__ __forceinline__ mgl_wide_lanes mgl_wide_lanes_of(uint32_t lane) {
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

static __device__ __forceinline__ void mgl_wide_clear(mgl_wide_rows *rows) {
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
static __device__ __forceinline__ void mgl_wide_scores(const uint32_t q[MGL_HEAD_STEPS][4],
                                                       uint32_t k, const mgl_wide_lanes *lanes,
                                                       float scores[2 * pairs][4]) {
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
static __device__ __forceinline__ void mgl_wide_mask(const mgl_wide_rows *rows, uint32_t first,
                                                     uint32_t lane, float scores[columns][4]) {
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

// Scores become weights; what the rows have so far becomes relative to the new maximum.
template <int columns>
static __device__ __forceinline__ void mgl_wide_softmax(float scores[columns][4],
                                                        mgl_wide_rows *rows) {
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
  if (__any_sync(0xffffffffu, max[0] != rows->max[0] || max[1] != rows->max[1])) {
    float decay[2] = {mgl_exp2(rows->max[0] - base[0]), mgl_exp2(rows->max[1] - base[1])};
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
      rows->values[j][0] *= decay[0];
      rows->values[j][1] *= decay[0];
      rows->values[j][2] *= decay[1];
      rows->values[j][3] *= decay[1];
    }
    rows->sum[0] *= decay[0];
    rows->sum[1] *= decay[1];
    rows->max[0] = max[0];
    rows->max[1] = max[1];
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
}

// Adds the values of 16 * pages positions, whose weights are `weights`.
template <int pages>
static __device__ __forceinline__ void mgl_wide_values(const float weights[2 * pages][4],
                                                       uint32_t v, const mgl_wide_lanes *lanes,
                                                       mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t p = 0; p < pages; p++) {
    const uint32_t a[4] = {mgl_pack_bf16(weights[2 * p][0], weights[2 * p][1]),
                           mgl_pack_bf16(weights[2 * p][2], weights[2 * p][3]),
                           mgl_pack_bf16(weights[2 * p + 1][0], weights[2 * p + 1][1]),
                           mgl_pack_bf16(weights[2 * p + 1][2], weights[2 * p + 1][3])};
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
static __device__ __forceinline__ void mgl_wide_row_of(const mgl_wide_attention *a,
                                                       const mgl_wide_item *item, uint32_t kv_head,
                                                       uint32_t row, uint32_t *out_token,
                                                       uint32_t *out_head) {
  *out_token = item->row + row / MGL_GROUP;
  *out_head = kv_head * MGL_GROUP + row % MGL_GROUP;
}

// The rows' sums of weights, from those of lanes.
static __device__ __forceinline__ void mgl_wide_sum_rows(mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    rows->sum[r] += __shfl_xor_sync(0xffffffffu, rows->sum[r], 1);
    rows->sum[r] += __shfl_xor_sync(0xffffffffu, rows->sum[r], 2);
  }
}

// Rows first + g and first + g + 8 of an item with `count` rows, whose sums are the rows'.
static __device__ __forceinline__ void mgl_wide_write(const mgl_wide_attention *a,
                                                      const mgl_wide_item *item, uint32_t kv_head,
                                                      uint32_t first, uint32_t lane,
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

// Of the unit of which `part`, done by party `own`, is a part.
static __device__ __forceinline__ mgl_wide_parties mgl_wide_find_parties(const mgl_wide_cut *cuts,
                                                                         const mgl_wide_part *part,
                                                                         uint32_t steps,
                                                                         uint32_t own,
                                                                         uint32_t lane) {
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
static __device__ __forceinline__ uint32_t mgl_wide_record(const mgl_wide_parties *p,
                                                           uint32_t party) {
  return party * 2 + (mgl_wide_before(&p->begin, &p->cuts[party]) ? 0 : 1);
}

static __device__ __forceinline__ bool mgl_wide_has_part(const mgl_wide_parties *p,
                                                         uint32_t party) {
  return mgl_wide_before(&p->cuts[party], &p->cuts[party + 1]);
}

// --- streams -------------------------------------------------------------------------------------

// A warp's ring of pages, and what it asks for next.
typedef struct mgl_stream_feed {
  const mgl_wide_attention *a;
  mgl_wide_cut at, end;
  uint32_t stop;  // step behind the part at `at`
  uint32_t seen;  // positions of the unit
  uint32_t slot;
  uint32_t pages;       // of steps first_step + lane
  uint32_t first_step;  // UINT32_MAX: the unit is new
  uint32_t ring;        // shared address
  uint32_t stage;
  uint32_t lane;
} mgl_stream_feed;

static __device__ __forceinline__ void mgl_stream_open(mgl_stream_feed *f) {
  if (!mgl_wide_before(&f->at, &f->end)) {
    return;
  }
  const mgl_wide_item *item = &f->a->work->items[f->at.item];
  f->seen = item->position + item->count;
  f->slot = item->slot;
  f->stop = f->at.item == f->end.item && f->at.head == f->end.head ? f->end.step : item->steps;
  f->first_step = UINT32_MAX;
}

// Asks for a page's K and V of one KV head.
static __device__ __forceinline__ void mgl_stream_copy(const mgl_stream_feed *f, uint32_t page) {
  const size_t offset = mgl_wide_page_offset(f->a, page, f->at.head);
  const uint16_t *k = f->a->k_cache + offset, *v = f->a->v_cache + offset;
  const uint32_t to = f->ring + f->stage * MGL_STREAM_STAGE;
  const uint32_t left = f->seen - f->at.step * MGL_WIDE_STREAM_STEP;  // positions from here on
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 16; i++) {
    uint32_t chunk = f->lane + 32 * i;
    uint32_t row = chunk / MGL_ROW_CHUNKS;
    mgl_copy_async(to + mgl_slab_offset<MGL_WIDE_STREAM_STEP>(row, chunk % MGL_ROW_CHUNKS),
                   k + chunk * 8, row < left ? 16 : 0);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 16; i++) {
    uint32_t chunk = f->lane + 32 * i;
    uint32_t before = chunk % 2 * 8;
    uint32_t count = left <= before ? 0 : left - before < 8 ? left - before : 8;
    mgl_copy_async(to + MGL_PAGE_BYTES_K + mgl_v_offset(chunk / 2, chunk % 2), v + chunk * 8,
                   count * 2);
  }
}

// Asks for the next page, if there is one. A group in any case.
static __device__ __forceinline__ void mgl_stream_feed_one(mgl_stream_feed *f) {
  if (mgl_wide_before(&f->at, &f->end)) {
    if (f->first_step == UINT32_MAX || f->at.step - f->first_step >= 32) {
      f->first_step = f->at.step;
      uint32_t position = (f->at.step + f->lane) * MGL_WIDE_STREAM_STEP;
      f->pages = position < f->seen ? mgl_wide_page(f->a, f->slot, position) : 0;
    }
    mgl_stream_copy(f, __shfl_sync(0xffffffffu, f->pages, (int)(f->at.step - f->first_step)));
    if (++f->at.step == f->stop) {
      f->at.step--;  // take moves on from inside the part
      (void)mgl_wide_take(&f->at, &f->end, f->stop, f->a->kv_heads);
      mgl_stream_open(f);
    }
  }
  mgl_copy_commit();
  f->stage = f->stage + 1 == MGL_STREAM_STAGES ? 0 : f->stage + 1;
}

// The queries of a unit: rows of the A operand.
static __device__ __forceinline__ void mgl_stream_load_q(const mgl_wide_attention *a,
                                                         const mgl_wide_item *item,
                                                         uint32_t kv_head, uint32_t lane,
                                                         uint32_t q[MGL_HEAD_STEPS][4]) {
  const uint32_t heads = a->kv_heads * MGL_GROUP;
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint32_t row = lane / 4 + r * 8;
    uint32_t token, head;
    mgl_wide_row_of(a, item, kv_head, row, &token, &head);
    const bool present = row < item->count * MGL_GROUP;
    const uint16_t *from = a->q + ((size_t)token * heads + head) * MGL_HEAD_DIM + lane % 4 * 2;
#pragma unroll
    for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
      q[s][r] = present ? mgl_load_l2_word(from + s * 16) : 0;
      q[s][r + 2] = present ? mgl_load_l2_word(from + s * 16 + 8) : 0;
    }
  }
}

// A warp's partial results: sums [columns][rows][8], then (maximum, sum of weights) [rows].
static __device__ __forceinline__ float *mgl_stream_partial(const mgl_wide_attention *a,
                                                            uint32_t record) {
  return a->stream_partials + (size_t)record * MGL_STREAM_PARTIAL;
}

static __device__ __forceinline__ void mgl_stream_store(float *partial, uint32_t count,
                                                        uint32_t lane, const mgl_wide_rows *rows) {
  float2 *softmax = (float2 *)(partial + MGL_WIDE_STREAM_ROWS * MGL_HEAD_DIM);
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint32_t row = lane / 4 + r * 8;
    if (row < count) {
#pragma unroll
      for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
        *(float2 *)(partial + (j * MGL_WIDE_STREAM_ROWS + row) * 8 + lane % 4 * 2) =
            make_float2(rows->values[j][2 * r], rows->values[j][2 * r + 1]);
      }
      if (lane % 4 == 0) {
        softmax[row] = make_float2(rows->max[r], rows->sum[r]);
      }
    }
  }
}

// Adds a party's partial result, relative to the maxima in rows->max.
static __device__ __forceinline__ void mgl_stream_add(const float *partial, uint32_t count,
                                                      uint32_t lane, mgl_wide_rows *rows) {
  const float *softmax = partial + MGL_WIDE_STREAM_ROWS * MGL_HEAD_DIM;
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint32_t row = lane / 4 + r * 8;
    if (row < count) {
      const uint2 bits = mgl_load_l2_pair(softmax + row * 2);
      const float base = rows->max[r] == mgl_wide_unseen() ? 0.0f : rows->max[r];
      const float factor = mgl_exp2(__uint_as_float(bits.x) - base);
      rows->sum[r] = fmaf(factor, __uint_as_float(bits.y), rows->sum[r]);
#pragma unroll
      for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
        const uint2 v =
            mgl_load_l2_pair(partial + (j * MGL_WIDE_STREAM_ROWS + row) * 8 + lane % 4 * 2);
        rows->values[j][2 * r] = fmaf(factor, __uint_as_float(v.x), rows->values[j][2 * r]);
        rows->values[j][2 * r + 1] = fmaf(factor, __uint_as_float(v.y), rows->values[j][2 * r + 1]);
      }
    }
  }
}

// All parts of a unit, in order.
static __device__ __forceinline__ void mgl_stream_merge(const mgl_wide_attention *a,
                                                        const mgl_wide_parties *p, uint32_t count,
                                                        uint32_t lane, mgl_wide_rows *rows) {
  mgl_wide_clear(rows);
  for (uint32_t party = p->first; party <= p->last; party++) {
    if (mgl_wide_has_part(p, party)) {
      const float *softmax =
          mgl_stream_partial(a, mgl_wide_record(p, party)) + MGL_WIDE_STREAM_ROWS * MGL_HEAD_DIM;
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = lane / 4 + r * 8;
        if (row < count) {
          rows->max[r] = fmaxf(rows->max[r], __uint_as_float(mgl_load_l2_word(softmax + row * 2)));
        }
      }
    }
  }
#pragma unroll 1
  for (uint32_t party = p->first; party <= p->last; party++) {
    if (mgl_wide_has_part(p, party)) {
      mgl_stream_add(mgl_stream_partial(a, mgl_wide_record(p, party)), count, lane, rows);
    }
  }
}

// What a warp has of a unit: to the output, or to memory; and then, if it is the last, all of it.
static __device__ __forceinline__ void mgl_stream_finish(const mgl_wide_attention *a,
                                                         const mgl_wide_item *item,
                                                         const mgl_wide_part *part, uint32_t warp,
                                                         uint32_t lane, mgl_wide_rows *rows) {
  const uint32_t count = item->count * MGL_GROUP;
  mgl_wide_sum_rows(rows);
  if (part->begin != 0 || part->end != item->steps) {
    const mgl_wide_parties p =
        mgl_wide_find_parties(a->work->stream_cuts, part, item->steps, warp, lane);
    uint32_t *counter = &a->merges[(size_t)part->item * a->kv_heads + part->head];
    uint32_t done = 0;
    mgl_stream_store(mgl_stream_partial(a, mgl_wide_record(&p, warp)), count, lane, rows);
    __syncwarp();
    if (lane == 0) {
      done = mgl_merge_add(counter, part->end - part->begin) + (part->end - part->begin);
    }
    if (__shfl_sync(0xffffffffu, done, 0) != item->steps) {
      return;
    }
    if (lane == 0) {
      *counter = 0;  // for the next layer
    }
    mgl_stream_merge(a, &p, count, lane, rows);
  }
  mgl_wide_write(a, item, part->head, 0, lane, rows);
}

// The part of a unit that this warp has.
static __device__ __forceinline__ void mgl_stream_part(const mgl_wide_attention *a,
                                                       const mgl_wide_part *part,
                                                       const mgl_wide_lanes *lanes,
                                                       mgl_stream_feed *feed, uint32_t *stage,
                                                       uint32_t warp) {
  const uint32_t lane = feed->lane;
  const mgl_wide_item item = a->work->items[part->item];
  uint32_t q[MGL_HEAD_STEPS][4];
  mgl_wide_rows rows;
  mgl_stream_load_q(a, &item, part->head, lane, q);
  mgl_wide_clear(&rows);
  rows.limit[0] = item.position + lane / 4 / MGL_GROUP + 1;
  rows.limit[1] = item.position + (lane / 4 + 8) / MGL_GROUP + 1;
#pragma unroll 1
  for (uint32_t step = part->begin; step < part->end; step++) {
    mgl_stream_feed_one(feed);
    mgl_copy_wait<MGL_STREAM_STAGES - 1>();
    __syncwarp();
    const uint32_t at = feed->ring + *stage * MGL_STREAM_STAGE;
    const uint32_t first = step * MGL_WIDE_STREAM_STEP;
    float scores[2][4];
    mgl_wide_scores<1, MGL_WIDE_STREAM_STEP>(q, at, lanes, scores);
    if (first + MGL_WIDE_STREAM_STEP > item.position + 1) {
      mgl_wide_mask<2>(&rows, first, lane, scores);
    }
    mgl_wide_softmax<2>(scores, &rows);
    mgl_wide_values<1>(scores, at + MGL_PAGE_BYTES_K, lanes, &rows);
    __syncwarp();  // the stage may be filled again
    *stage = *stage + 1 == MGL_STREAM_STAGES ? 0 : *stage + 1;
  }
  mgl_stream_finish(a, &item, part, warp, lane, &rows);
}

static __device__ __forceinline__ void mgl_wide_streams(const mgl_wide_attention *a, uint8_t *smem,
                                                        uint32_t worker, uint32_t thread) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  const uint32_t party = worker * MGL_WIDE_WARPS + warp;
  const mgl_wide_lanes lanes = mgl_wide_lanes_of(lane);
  mgl_wide_cut at = a->work->stream_cuts[party];
  const mgl_wide_cut end = a->work->stream_cuts[party + 1];
  uint32_t stage = 0;
  mgl_stream_feed feed = {};
  feed.a = a;
  feed.at = at;
  feed.end = end;
  feed.ring = mgl_shared_address(smem) + warp * (MGL_STREAM_STAGES * MGL_STREAM_STAGE);
  feed.lane = lane;
  mgl_stream_open(&feed);
  for (uint32_t i = 0; i + 1 < MGL_STREAM_STAGES; i++) {
    mgl_stream_feed_one(&feed);
  }
#pragma unroll 1
  while (mgl_wide_before(&at, &end)) {
    const mgl_wide_part part = mgl_wide_take(&at, &end, a->work->items[at.item].steps, a->kv_heads);
    mgl_stream_part(a, &part, &lanes, &feed, &stage, party);
  }
  mgl_copy_wait<0>();
}

// --- tiles ---------------------------------------------------------------------------------------

// What the worker asks for next; every thread asks for its share.
typedef struct mgl_tile_feed {
  const mgl_wide_attention *a;
  mgl_wide_cut at, end;
  uint32_t stop;  // step behind the part at `at`
  uint32_t seen;
  uint32_t slot;
  uint32_t row, rows;  // of the item: first token, rows
  uint32_t page;       // of this thread's share of the step at `at`
  bool begins;         // that step is the first of its part
  uint32_t smem;       // shared address
  uint32_t stage;
  uint32_t thread;
} mgl_tile_feed;

enum { MGL_TILE_PAGE_THREADS = MGL_CUDA_CONSUMERS / MGL_TILE_PAGES };  // that copy a page

static __device__ __forceinline__ uint32_t mgl_tile_position(const mgl_tile_feed *f) {
  return (f->at.step * MGL_TILE_PAGES + f->thread / MGL_TILE_PAGE_THREADS) * MGL_WIDE_STREAM_STEP;
}

static __device__ __forceinline__ void mgl_tile_look_up(mgl_tile_feed *f) {
  uint32_t position = mgl_tile_position(f);
  f->page = position < f->seen ? mgl_wide_page(f->a, f->slot, position) : 0;
}

static __device__ __forceinline__ void mgl_tile_open(mgl_tile_feed *f) {
  if (!mgl_wide_before(&f->at, &f->end)) {
    return;
  }
  const mgl_wide_item *item = &f->a->work->items[f->at.item];
  f->seen = item->position + item->count;
  f->slot = item->slot;
  f->row = item->row;
  f->rows = item->count * MGL_GROUP;
  f->stop = f->at.item == f->end.item && f->at.head == f->end.head ? f->end.step : item->steps;
  f->begins = true;
  mgl_tile_look_up(f);
}

static __device__ __forceinline__ void mgl_tile_copy_q(const mgl_tile_feed *f, uint32_t to) {
  const uint32_t heads = f->a->kv_heads * MGL_GROUP;
#pragma unroll
  for (uint32_t i = 0; i < MGL_WIDE_TILE_ROWS * MGL_ROW_CHUNKS / MGL_CUDA_CONSUMERS; i++) {
    uint32_t number = f->thread + i * MGL_CUDA_CONSUMERS;
    uint32_t row = number / MGL_ROW_CHUNKS, chunk = number % MGL_ROW_CHUNKS;
    size_t head =
        (size_t)(f->row + row / MGL_GROUP) * heads + f->at.head * MGL_GROUP + row % MGL_GROUP;
    bool present = row < f->rows;
    mgl_copy_async(to + mgl_slab_offset<MGL_WIDE_TILE_ROWS>(row, chunk),
                   f->a->q + (present ? head * MGL_HEAD_DIM + chunk * 8 : 0), present ? 16 : 0);
  }
}

// This thread's share of K and V of a step.
static __device__ __forceinline__ void mgl_tile_copy(const mgl_tile_feed *f, uint32_t to) {
  const uint32_t page = f->thread / MGL_TILE_PAGE_THREADS;
  const size_t offset = mgl_wide_page_offset(f->a, f->page, f->at.head);
  const uint16_t *k = f->a->k_cache + offset, *v = f->a->v_cache + offset;
  const uint32_t position = mgl_tile_position(f);
  const uint32_t left = f->seen > position ? f->seen - position : 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 32; i++) {
    uint32_t chunk = f->thread % MGL_TILE_PAGE_THREADS + i * MGL_TILE_PAGE_THREADS;
    uint32_t row = chunk / MGL_ROW_CHUNKS;
    mgl_copy_async(to + mgl_slab_offset<MGL_WIDE_TILE_STEP>(page * MGL_WIDE_STREAM_STEP + row,
                                                            chunk % MGL_ROW_CHUNKS),
                   k + chunk * 8, row < left ? 16 : 0);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 32; i++) {
    uint32_t chunk = f->thread % MGL_TILE_PAGE_THREADS + i * MGL_TILE_PAGE_THREADS;
    uint32_t before = chunk % 2 * 8;
    uint32_t count = left <= before ? 0 : left - before < 8 ? left - before : 8;
    mgl_copy_async(to + MGL_TILE_V + page * MGL_PAGE_BYTES_K + mgl_v_offset(chunk / 2, chunk % 2),
                   v + chunk * 8, count * 2);
  }
}

// Asks for the next step, if there is one. A group in any case.
static __device__ __forceinline__ void mgl_tile_feed_one(mgl_tile_feed *f) {
  if (mgl_wide_before(&f->at, &f->end)) {
    const uint32_t to = f->smem + f->stage * MGL_TILE_STAGE;
    mgl_tile_copy(f, to);
    if (f->begins) {
      mgl_tile_copy_q(f, to + MGL_TILE_Q);
    }
    f->begins = false;
    if (++f->at.step < f->stop) {
      mgl_tile_look_up(f);
    } else {
      f->at.step--;  // take moves on from inside the part
      (void)mgl_wide_take(&f->at, &f->end, f->stop, f->a->kv_heads);
      mgl_tile_open(f);
    }
  }
  mgl_copy_commit();
  f->stage = f->stage + 1 == MGL_TILE_STAGES ? 0 : f->stage + 1;
}

// This warp's 16 rows of the queries.
static __device__ __forceinline__ void mgl_tile_load_q(uint32_t from, uint32_t warp, uint32_t lane,
                                                       uint32_t q[MGL_HEAD_STEPS][4]) {
  const uint32_t row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    mgl_load_matrices(from + mgl_slab_offset<MGL_WIDE_TILE_ROWS>(row, 2 * s + lane / 16), q[s]);
  }
}

// A worker's partial results: sums [columns][threads][4], then maxima and sums of weights
// [threads][4], every thread's own.
static __device__ __forceinline__ float *mgl_tile_partial(const mgl_wide_attention *a,
                                                          uint32_t record, uint32_t thread) {
  return a->tile_partials + (size_t)record * MGL_TILE_PARTIAL + thread * 4;
}

static __device__ __forceinline__ void mgl_tile_store(float *partial, const mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
    *(float4 *)(partial + j * (MGL_CUDA_CONSUMERS * 4)) =
        make_float4(rows->values[j][0], rows->values[j][1], rows->values[j][2], rows->values[j][3]);
  }
  *(float4 *)(partial + MGL_HEAD_COLUMNS * (MGL_CUDA_CONSUMERS * 4)) =
      make_float4(rows->max[0], rows->max[1], rows->sum[0], rows->sum[1]);
}

static __device__ __forceinline__ uint4 mgl_tile_softmax_of(const float *partial) {
  return mgl_load_l2(partial + MGL_HEAD_COLUMNS * (MGL_CUDA_CONSUMERS * 4));
}

// Adds a party's partial result, relative to the maxima in rows->max.
static __device__ __forceinline__ void mgl_tile_add(const float *partial, mgl_wide_rows *rows) {
  const uint4 softmax = mgl_tile_softmax_of(partial);
  const float max[2] = {__uint_as_float(softmax.x), __uint_as_float(softmax.y)};
  const float sum[2] = {__uint_as_float(softmax.z), __uint_as_float(softmax.w)};
  float factor[2];
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    factor[r] = mgl_exp2(max[r] - (rows->max[r] == mgl_wide_unseen() ? 0.0f : rows->max[r]));
    rows->sum[r] = fmaf(factor[r], sum[r], rows->sum[r]);
  }
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
    const uint4 v = mgl_load_l2(partial + j * (MGL_CUDA_CONSUMERS * 4));
    rows->values[j][0] = fmaf(factor[0], __uint_as_float(v.x), rows->values[j][0]);
    rows->values[j][1] = fmaf(factor[0], __uint_as_float(v.y), rows->values[j][1]);
    rows->values[j][2] = fmaf(factor[1], __uint_as_float(v.z), rows->values[j][2]);
    rows->values[j][3] = fmaf(factor[1], __uint_as_float(v.w), rows->values[j][3]);
  }
}

// All parts of a unit, in order.
static __device__ __forceinline__ void mgl_tile_merge(const mgl_wide_attention *a,
                                                      const mgl_wide_parties *p, uint32_t thread,
                                                      mgl_wide_rows *rows) {
  mgl_wide_clear(rows);
  for (uint32_t party = p->first; party <= p->last; party++) {
    if (mgl_wide_has_part(p, party)) {
      const uint4 softmax =
          mgl_tile_softmax_of(mgl_tile_partial(a, mgl_wide_record(p, party), thread));
      rows->max[0] = fmaxf(rows->max[0], __uint_as_float(softmax.x));
      rows->max[1] = fmaxf(rows->max[1], __uint_as_float(softmax.y));
    }
  }
#pragma unroll 1
  for (uint32_t party = p->first; party <= p->last; party++) {
    if (mgl_wide_has_part(p, party)) {
      mgl_tile_add(mgl_tile_partial(a, mgl_wide_record(p, party), thread), rows);
    }
  }
}

// As mgl_stream_finish, by all consumers.
static __device__ __forceinline__ void mgl_tile_finish(const mgl_wide_attention *a,
                                                       const mgl_wide_item *item,
                                                       const mgl_wide_part *part, uint32_t worker,
                                                       uint32_t thread, mgl_wide_rows *rows) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  const bool present = warp * 16 < item->count * MGL_GROUP;
  if (part->begin != 0 || part->end != item->steps) {
    const mgl_wide_parties p =
        mgl_wide_find_parties(a->work->tile_cuts, part, item->steps, worker, lane);
    uint32_t *counter = &a->merges[(size_t)part->item * a->kv_heads + part->head];
    uint32_t done = 0;
    if (present) {
      mgl_tile_store(mgl_tile_partial(a, mgl_wide_record(&p, worker), thread), rows);
    }
    mgl_sync_consumers();
    if (thread == 0) {
      done = mgl_merge_add(counter, part->end - part->begin) + (part->end - part->begin);
      if (done == item->steps) {
        *counter = 0;  // for the next layer
      }
    }
    if (!mgl_consumers_any(thread == 0 && done == item->steps)) {
      return;
    }
    if (present) {
      mgl_tile_merge(a, &p, thread, rows);
    }
  }
  if (present) {
    mgl_wide_sum_rows(rows);
    mgl_wide_write(a, item, part->head, warp * 16, lane, rows);
  }
}

// The part of a unit that this worker has.
static __device__ __forceinline__ void mgl_tile_part(const mgl_wide_attention *a,
                                                     const mgl_wide_part *part,
                                                     const mgl_wide_lanes *lanes,
                                                     mgl_tile_feed *feed, uint32_t *stage,
                                                     uint32_t worker) {
  const uint32_t warp = feed->thread / 32, lane = feed->thread % 32;
  const mgl_wide_item item = a->work->items[part->item];
  const uint32_t count = item.count * MGL_GROUP;
  const uint32_t top = warp * 16, bottom = top + 15 < count ? top + 15 : count - 1;
  // Positions that this warp's first row sees, and its last one; none without rows.
  const uint32_t low = item.position + top / MGL_GROUP + 1;
  const uint32_t high = top < count ? item.position + bottom / MGL_GROUP + 1 : 0;
  uint32_t q[MGL_HEAD_STEPS][4];
  mgl_wide_rows rows;
  mgl_wide_clear(&rows);
  rows.limit[0] = item.position + (top + lane / 4) / MGL_GROUP + 1;
  rows.limit[1] = item.position + (top + lane / 4 + 8) / MGL_GROUP + 1;
#pragma unroll 1
  for (uint32_t step = part->begin; step < part->end; step++) {
    mgl_copy_wait<MGL_TILE_STAGES - 2>();
    mgl_sync_consumers();  // the step is there, and the stage before is read
    mgl_tile_feed_one(feed);
    const uint32_t at = feed->smem + *stage * MGL_TILE_STAGE;
    const uint32_t first = step * MGL_WIDE_TILE_STEP;
    if (step == part->begin) {
      mgl_tile_load_q(at + MGL_TILE_Q, warp, lane, q);
    }
    if (first < high) {
      float scores[2 * MGL_TILE_PAGES][4];
      mgl_wide_scores<MGL_TILE_PAGES, MGL_WIDE_TILE_STEP>(q, at, lanes, scores);
      if (first + MGL_WIDE_TILE_STEP > low) {
        mgl_wide_mask<2 * MGL_TILE_PAGES>(&rows, first, lane, scores);
      }
      mgl_wide_softmax<2 * MGL_TILE_PAGES>(scores, &rows);
      mgl_wide_values<MGL_TILE_PAGES>(scores, at + MGL_TILE_V, lanes, &rows);
    }
    *stage = *stage + 1 == MGL_TILE_STAGES ? 0 : *stage + 1;
  }
  mgl_tile_finish(a, &item, part, worker, feed->thread, &rows);
}

static __device__ __forceinline__ void mgl_wide_tiles(const mgl_wide_attention *a, uint8_t *smem,
                                                      uint32_t worker, uint32_t thread) {
  const mgl_wide_lanes lanes = mgl_wide_lanes_of(thread % 32);
  mgl_wide_cut at = a->work->tile_cuts[worker];
  const mgl_wide_cut end = a->work->tile_cuts[worker + 1];
  uint32_t stage = 0;
  mgl_tile_feed feed = {};
  if (!mgl_wide_before(&at, &end)) {
    return;
  }
  feed.a = a;
  feed.at = at;
  feed.end = end;
  feed.smem = mgl_shared_address(smem);
  feed.thread = thread;
  mgl_tile_open(&feed);
  mgl_sync_consumers();  // nobody reads streams any more
  for (uint32_t i = 0; i + 1 < MGL_TILE_STAGES; i++) {
    mgl_tile_feed_one(&feed);
  }
#pragma unroll 1
  while (mgl_wide_before(&at, &end)) {
    const mgl_wide_part part = mgl_wide_take(&at, &end, a->work->items[at.item].steps, a->kv_heads);
    mgl_tile_part(a, &part, &lanes, &feed, &stage, worker);
  }
  mgl_copy_wait<0>();
}

// The share of one worker in the iteration's attention of a layer. All consumers call it. smem:
// MGL_WIDE_ATTEND_BYTES, aligned to 128 bytes, into which nothing is on its way; accessed by
// ordinary instructions and cp.async only, the last of them before the return (a bulk copy into it
// needs a proxy fence and a barrier first).
static __device__ __forceinline__ void mgl_wide_attend(const mgl_wide_attention *a, uint8_t *smem,
                                                       uint32_t worker, uint32_t thread) {
  mgl_wide_streams(a, smem, worker, thread);
  mgl_wide_tiles(a, smem, worker, thread);
}

#endif
