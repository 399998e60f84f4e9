// Streams of the wide class's attention: sequences that decode.
//
// A stream is one warp's: it reads page after page through a ring of its own, which runs ahead over
// the borders of units, so that memory is asked without a pause and no warp waits for another.
// Parts of units that are cut go to memory, and who ends last adds them up, in order
// (FlashDecoding's merge).
//
// Rejected: bulk copies, which are not in sm_80 and leave K's rows unswizzled; a merge of the whole
// block, which needs barriers.
#ifndef MGL_KERNELS_CUDA_WIDE_STREAMS_CUH
#define MGL_KERNELS_CUDA_WIDE_STREAMS_CUH

#include "kernels/cuda/wide_rows.cuh"

enum {
  MGL_STREAM_STAGE = 2 * MGL_PAGE_BYTES_K,
  MGL_STREAM_STAGES = MGL_WIDE_ATTEND_BYTES / MGL_WIDE_WARPS / MGL_STREAM_STAGE > 8
                          ? 8
                          : MGL_WIDE_ATTEND_BYTES / MGL_WIDE_WARPS / MGL_STREAM_STAGE,
  MGL_STREAM_PARTIAL = MGL_WIDE_STREAM_ROWS * (MGL_HEAD_DIM + 8),  // floats
};

static_assert(MGL_STREAM_STAGES >= 3, "pages in flight");

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
  const mgl_wide_item *item = &f->a->work->items[f->at.item];
  f->seen = item->position + item->count;
  f->slot = item->slot;
  f->stop = f->at.item == f->end.item && f->at.head == f->end.head ? f->end.step : item->steps;
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
      if (mgl_wide_before(&f->at, &f->end)) {
        mgl_stream_open(f);
        f->first_step = UINT32_MAX;
      }
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

// Adds a party's partial result.
static __device__ __forceinline__ void mgl_stream_add(const float *partial, uint32_t count,
                                                      uint32_t lane, mgl_wide_rows *rows) {
  const float *softmax = partial + MGL_WIDE_STREAM_ROWS * MGL_HEAD_DIM;
  uint2 v[MGL_HEAD_COLUMNS][2], max_sum[2];
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint32_t row = lane / 4 + r * 8;
    max_sum[r] = make_uint2(__float_as_uint(mgl_wide_unseen()), 0);
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
      v[j][r] = make_uint2(0, 0);
    }
    if (row < count) {
      max_sum[r] = mgl_load_l2_pair(softmax + row * 2);
#pragma unroll
      for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
        v[j][r] = mgl_load_l2_pair(partial + (j * MGL_WIDE_STREAM_ROWS + row) * 8 + lane % 4 * 2);
      }
    }
  }
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    float factors[2];
    mgl_wide_join(rows, r, __uint_as_float(max_sum[r].x), __uint_as_float(max_sum[r].y), factors);
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
      float *values = &rows->values[j][2 * r];
      values[0] = fmaf(factors[1], __uint_as_float(v[j][r].x), values[0] * factors[0]);
      values[1] = fmaf(factors[1], __uint_as_float(v[j][r].y), values[1] * factors[0]);
    }
  }
}

// All parts of a unit, in order.
static __device__ __forceinline__ void mgl_stream_merge(const mgl_wide_attention *a,
                                                        const mgl_wide_parties *p, uint32_t count,
                                                        uint32_t lane, mgl_wide_rows *rows) {
  mgl_wide_clear(rows);
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
    float decay[2];
    if (mgl_wide_weigh(scores, &rows, decay)) {
      mgl_wide_decay(&rows, decay);
    }
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
  feed.slot = at.slot;
  feed.first_step = at.step;
  if (mgl_wide_before(&at, &end)) {  // pages of the first unit, before its item is there
    const uint32_t index = at.step + lane;
    feed.pages =
        index < a->block_table_stride ? mgl_wide_page(a, at.slot, index * MGL_WIDE_STREAM_STEP) : 0;
    mgl_stream_open(&feed);
  }
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

#endif
