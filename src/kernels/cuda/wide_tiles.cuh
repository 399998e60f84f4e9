// Tiles of the wide class's attention: chunks of prompts.
//
// All consumers compute a tile of queries together, 16 rows a warp, over steps of 64 positions that
// they copy into a ring of stages. Loads run two steps ahead, over the borders of units too. On
// sm_90a the products are wgmma's: a step's softmax runs beside the products of the step before
// with its values, and beside those of the other warpgroup (FlashAttention-3, Shah et al. 2024).
// Else they are mma.sync's, with a barrier a step.
//
// Rejected: queries in the stage of a unit's first step, which costs the fourth stage; bulk copies,
// for which K would have to lie swizzled in its pages.
#ifndef MGL_KERNELS_CUDA_WIDE_TILES_CUH
#define MGL_KERNELS_CUDA_WIDE_TILES_CUH

#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wide_rows.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MGL_TILE_WGMMA 1
#else
#define MGL_TILE_WGMMA 0
#endif

enum {
  MGL_TILE_PAGES = MGL_WIDE_TILE_STEP / MGL_WIDE_STREAM_STEP,
  MGL_TILE_COLUMNS = MGL_WIDE_TILE_STEP / 8,
  MGL_TILE_V = MGL_TILE_PAGES * MGL_PAGE_BYTES_K,  // in a stage, behind K
  MGL_TILE_STAGE = 2 * MGL_TILE_V,
  MGL_TILE_STAGES = 4,
  MGL_TILE_AHEAD = 2,  // steps asked for before they are needed; V of the step before is still read
  MGL_TILE_Q = MGL_TILE_STAGES * MGL_TILE_STAGE,  // queries of this unit and of the next one
  MGL_TILE_Q_BYTES = MGL_WIDE_TILE_ROWS * MGL_HEAD_DIM * 2,
  MGL_TILE_PARTIAL = MGL_WIDE_TILE_ROWS * (MGL_HEAD_DIM + 8),  // floats
};

static_assert(MGL_TILE_Q + 2 * MGL_TILE_Q_BYTES <= MGL_WIDE_ATTEND_BYTES, "shared memory");
static_assert(MGL_TILE_STAGES >= MGL_TILE_AHEAD + 2, "who is a step behind still reads");

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
  uint32_t count;      // steps asked for
  uint32_t queries;    // which of their two places is filled next
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

// Asks for the next step. False: there is none.
static __device__ __forceinline__ bool mgl_tile_feed_next(mgl_tile_feed *f) {
  if (!mgl_wide_before(&f->at, &f->end)) {
    return false;
  }
  mgl_tile_copy(f, f->smem + f->count % MGL_TILE_STAGES * MGL_TILE_STAGE);
  if (f->begins) {
    mgl_tile_copy_q(f, f->smem + MGL_TILE_Q + f->queries * MGL_TILE_Q_BYTES);
    f->queries ^= 1;
  }
  f->begins = false;
  f->count++;
  if (++f->at.step < f->stop) {
    mgl_tile_look_up(f);
  } else {
    f->at.step--;  // take moves on from inside the part
    (void)mgl_wide_take(&f->at, &f->end, f->stop, f->a->kv_heads);
    mgl_tile_open(f);
  }
  return true;
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

// --- a part of a unit ----------------------------------------------------------------------------

// A warp's place in a part.
typedef struct mgl_tile {
  mgl_tile_feed *feed;
  uint32_t count;    // steps computed
  uint32_t queries;  // place of the part's queries
  uint32_t low;      // positions that the first of this warp's rows sees: the least
  uint32_t end;      // steps from there on are not seen by this warp (of a warpgroup: by none)
  bool is_short;     // the part has no more steps than are asked for ahead
} mgl_tile;

static __device__ __forceinline__ uint32_t mgl_tile_stage(const mgl_tile *t, uint32_t count) {
  return t->feed->smem + count % MGL_TILE_STAGES * MGL_TILE_STAGE;
}

static __device__ __forceinline__ void mgl_tile_take_q(mgl_tile *t, uint32_t q[MGL_HEAD_STEPS][4]) {
  mgl_tile_load_q(t->feed->smem + MGL_TILE_Q + t->queries * MGL_TILE_Q_BYTES, t->feed->thread / 32,
                  t->feed->thread % 32, q);
  t->queries ^= 1;
}

#if MGL_TILE_WGMMA

// Stages between the two warpgroups, which so may be a step apart: one multiplies while the other
// one's weights are made. Phase n of a stage's is of its n-th step.
static __shared__ struct mgl_tile_barriers {
  uint64_t full[MGL_TILE_STAGES];   // by every thread's copies
  uint64_t empty[MGL_TILE_STAGES];  // by every warp: it has read the stage
} mgl_tile_barriers;

static __device__ __forceinline__ void mgl_tile_open_barriers(uint32_t thread) {
  if (thread < MGL_TILE_STAGES) {
    mgl_mbarrier_init(&mgl_tile_barriers.full[thread], MGL_CUDA_CONSUMERS);
    mgl_mbarrier_init(&mgl_tile_barriers.empty[thread], MGL_WIDE_WARPS);
  }
  mgl_sync_consumers();
}

static __device__ __forceinline__ void mgl_tile_close_barriers(uint32_t thread) {
  mgl_sync_consumers();
  if (thread < MGL_TILE_STAGES) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(
                     mgl_shared_address(&mgl_tile_barriers.full[thread]))
                 : "memory");
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(
                     mgl_shared_address(&mgl_tile_barriers.empty[thread]))
                 : "memory");
  }
}

// Asks for the next step, whose stage is free; arrives at its barrier when the copies have.
static __device__ __forceinline__ void mgl_tile_feed_one(mgl_tile_feed *f) {
  uint64_t *full = &mgl_tile_barriers.full[f->count % MGL_TILE_STAGES];
  if (mgl_tile_feed_next(f)) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(mgl_shared_address(full))
                 : "memory");
  }
}

// Whether the stage of the next step is free: that of the step before in it was read.
static __device__ __forceinline__ bool mgl_tile_is_free(const mgl_tile_feed *f) {
  return f->count < MGL_TILE_STAGES ||
         mgl_mbarrier_test(&mgl_tile_barriers.empty[f->count % MGL_TILE_STAGES],
                           (f->count / MGL_TILE_STAGES - 1) % 2);
}

// The same, but waits for it; and where a unit's queries would go where others may not be read yet,
// for all consumers: the queries of the unit before the last one of few steps.
static __device__ __forceinline__ void mgl_tile_feed_late(mgl_tile *t) {
  mgl_tile_feed *f = t->feed;
  if (!mgl_wide_before(&f->at, &f->end)) {
    return;
  }
  if (f->begins && t->is_short) {
    mgl_sync_consumers();
  }
  if (f->count >= MGL_TILE_STAGES) {
    mgl_mbarrier_wait(&mgl_tile_barriers.empty[f->count % MGL_TILE_STAGES],
                      (f->count / MGL_TILE_STAGES - 1) % 2);
  }
  mgl_tile_feed_one(f);
}

// Until step number t->count is there.
static __device__ __forceinline__ void mgl_tile_wait(const mgl_tile *t) {
  mgl_mbarrier_wait(&mgl_tile_barriers.full[t->count % MGL_TILE_STAGES],
                    t->count / MGL_TILE_STAGES % 2);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// This warp has read all of step number `count`.
static __device__ __forceinline__ void mgl_tile_leave(const mgl_tile *t, uint32_t count) {
  if (t->feed->thread % 32 == 0) {
    mgl_mbarrier_arrive(&mgl_tile_barriers.empty[count % MGL_TILE_STAGES]);
  }
}

static __device__ __forceinline__ void mgl_tile_issue_scores(const uint32_t (&q)[MGL_HEAD_STEPS][4],
                                                             uint32_t k,
                                                             float (&scores)[MGL_TILE_COLUMNS][4]) {
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    constexpr uint32_t steps = MGL_SLAB / 16;
    const uint64_t b =
        mgl_wgmma_rows<MGL_SLAB_BYTES>(k + s / steps * (MGL_WIDE_TILE_STEP * MGL_SLAB_BYTES));
    mgl_wgmma_columns(scores, q[s], b + s % steps * 2, s != 0);
  }
  mgl_wgmma_commit();
}

static __device__ __forceinline__ void mgl_tile_issue_values(
    const uint32_t (&weights)[MGL_TILE_PAGES][4], uint32_t v,
    float (&values)[MGL_HEAD_COLUMNS][4]) {
#pragma unroll
  for (uint32_t p = 0; p < MGL_TILE_PAGES; p++) {
    mgl_wgmma_columns(values, weights[p], mgl_wgmma_rows<32>(v + p * MGL_PAGE_BYTES_K), 1);
  }
  mgl_wgmma_commit();
}

// Scores of step `step`, whose products are done, become weights (mgl_wide_weigh).
static __device__ __forceinline__ bool mgl_tile_weigh(const mgl_tile *t, uint32_t step,
                                                      float (&scores)[MGL_TILE_COLUMNS][4],
                                                      mgl_wide_rows *rows, float decay[2]) {
  const uint32_t first = step * MGL_WIDE_TILE_STEP;
  mgl_wgmma_arrived(scores);
  if (first + MGL_WIDE_TILE_STEP > t->low) {
    mgl_wide_mask<MGL_TILE_COLUMNS>(rows, first, t->feed->thread % 32, scores);
  }
  return mgl_wide_weigh(scores, rows, decay);
}

static __device__ __forceinline__ void mgl_tile_pack(const float (&scores)[MGL_TILE_COLUMNS][4],
                                                     uint32_t (&weights)[MGL_TILE_PAGES][4]) {
#pragma unroll
  for (uint32_t p = 0; p < MGL_TILE_PAGES; p++) {
    mgl_wide_pack(scores[2 * p], scores[2 * p + 1], weights[p]);
  }
}

// Steps [begin, end) of a unit, by wgmma: while a step's weights are made from its scores, the
// products of the step before with its values run.
static __device__ __forceinline__ void mgl_tile_steps(mgl_tile *t, uint32_t begin, uint32_t end,
                                                      mgl_wide_rows *rows) {
  const uint32_t own_end = t->end < end ? t->end : end;
  uint32_t q[MGL_HEAD_STEPS][4];
  uint32_t weights[MGL_TILE_PAGES][4];
  float scores[MGL_TILE_COLUMNS][4];
  float decay[2];
  uint32_t step = begin;
  mgl_tile_wait(t);
  mgl_tile_take_q(t, q);
  if (begin < own_end) {
    mgl_wgmma_fence();
    mgl_tile_issue_scores(q, mgl_tile_stage(t, t->count), scores);
    mgl_wgmma_wait<0>();
    (void)mgl_tile_weigh(t, begin, scores, rows, decay);  // there are no values yet
    mgl_tile_pack(scores, weights);
    mgl_tile_feed_late(t);
#pragma unroll 1
    for (step = begin + 1; step < own_end; step++) {
      t->count++;
      mgl_tile_wait(t);
      mgl_wgmma_fence();
      mgl_tile_issue_scores(q, mgl_tile_stage(t, t->count), scores);
      mgl_tile_issue_values(weights, mgl_tile_stage(t, t->count - 1) + MGL_TILE_V, rows->values);
      const bool early = !t->feed->begins && mgl_tile_is_free(t->feed);
      if (early) {
        mgl_tile_feed_one(t->feed);
      }
      mgl_wgmma_wait<1>();
      bool grown = mgl_tile_weigh(t, step, scores, rows, decay);
      mgl_wgmma_wait<0>();
      mgl_wgmma_arrived(rows->values);
      mgl_tile_leave(t, t->count - 1);
      if (grown) {
        mgl_wide_decay(rows, decay);
      }
      mgl_tile_pack(scores, weights);
      if (!early) {
        mgl_tile_feed_late(t);
      }
    }
    mgl_wgmma_fence();
    mgl_tile_issue_values(weights, mgl_tile_stage(t, t->count) + MGL_TILE_V, rows->values);
    mgl_wgmma_wait<0>();
    mgl_wgmma_arrived(rows->values);
    mgl_tile_leave(t, t->count);
    t->count++;
  }
#pragma unroll 1
  for (; step < end; step++) {  // what only the other warpgroup sees
    mgl_tile_leave(t, t->count);
    mgl_tile_feed_late(t);
    t->count++;
  }
}

#else

static __device__ __forceinline__ void mgl_tile_open_barriers(uint32_t) {
  mgl_sync_consumers();
}

static __device__ __forceinline__ void mgl_tile_close_barriers(uint32_t) {
  mgl_copy_wait<0>();
}

// Asks for the next step, if there is one. A group in any case.
static __device__ __forceinline__ void mgl_tile_feed_one(mgl_tile_feed *f) {
  (void)mgl_tile_feed_next(f);
  mgl_copy_commit();
}

// Until the step is there; then asks for the one after the next. first: of its part; then takes
// this warp's queries too.
static __device__ __forceinline__ void mgl_tile_wait(mgl_tile *t, bool first,
                                                     uint32_t q[MGL_HEAD_STEPS][4]) {
  mgl_copy_wait<MGL_TILE_AHEAD - 1>();
  mgl_sync_consumers();  // the step is there, and the stage that is filled next is read
  if (first) {
    mgl_tile_take_q(t, q);
    if (t->feed->begins) {
      mgl_sync_consumers();  // a unit of one step: the next one's queries go where these were
    }
  }
  mgl_tile_feed_one(t->feed);
}

// Steps [begin, end) of a unit.
static __device__ __forceinline__ void mgl_tile_steps(mgl_tile *t, uint32_t begin, uint32_t end,
                                                      mgl_wide_rows *rows) {
  const uint32_t lane = t->feed->thread % 32;
  const mgl_wide_lanes lanes = mgl_wide_lanes_of(lane);
  uint32_t q[MGL_HEAD_STEPS][4];
#pragma unroll 1
  for (uint32_t step = begin; step < end; step++, t->count++) {
    const uint32_t first = step * MGL_WIDE_TILE_STEP;
    mgl_tile_wait(t, step == begin, q);
    if (step < t->end) {
      const uint32_t at = mgl_tile_stage(t, t->count);
      float scores[MGL_TILE_COLUMNS][4], decay[2];
      mgl_wide_scores<MGL_TILE_PAGES, MGL_WIDE_TILE_STEP>(q, at, &lanes, scores);
      if (first + MGL_WIDE_TILE_STEP > t->low) {
        mgl_wide_mask<MGL_TILE_COLUMNS>(rows, first, lane, scores);
      }
      if (mgl_wide_weigh(scores, rows, decay)) {
        mgl_wide_decay(rows, decay);
      }
      mgl_wide_values<MGL_TILE_PAGES>(scores, at + MGL_TILE_V, &lanes, rows);
    }
  }
}

#endif

// The part of a unit that this worker has.
static __device__ __forceinline__ void mgl_tile_part(const mgl_wide_attention *a,
                                                     const mgl_wide_part *part, mgl_tile *t,
                                                     uint32_t worker) {
  const uint32_t warp = t->feed->thread / 32, lane = t->feed->thread % 32;
  const mgl_wide_item item = a->work->items[part->item];
  const uint32_t count = item.count * MGL_GROUP;
  const uint32_t top = warp * 16;
  // The rows that take part in a product together: of a warp, or of a warpgroup.
  const uint32_t rows_top = MGL_TILE_WGMMA ? warp / 4 * 64 : top;
  const uint32_t rows_last = rows_top + (MGL_TILE_WGMMA ? 63 : 15);
  const uint32_t last = rows_last < count ? rows_last : count - 1;
  mgl_wide_rows rows;
  mgl_wide_clear(&rows);
  t->low = item.position + top / MGL_GROUP + 1;
  t->end = rows_top < count ? (item.position + last / MGL_GROUP) / MGL_WIDE_TILE_STEP + 1 : 0;
  rows.limit[0] = item.position + (top + lane / 4) / MGL_GROUP + 1;
  rows.limit[1] = item.position + (top + lane / 4 + 8) / MGL_GROUP + 1;
  t->is_short = part->end - part->begin <= MGL_TILE_AHEAD;
  mgl_tile_steps(t, part->begin, part->end, &rows);
  mgl_tile_finish(a, &item, part, worker, t->feed->thread, &rows);
}

static __device__ __forceinline__ void mgl_wide_tiles(const mgl_wide_attention *a, uint8_t *smem,
                                                      uint32_t worker, uint32_t thread) {
  mgl_wide_cut at = a->work->tile_cuts[worker];
  const mgl_wide_cut end = a->work->tile_cuts[worker + 1];
  mgl_tile_feed feed = {};
  mgl_tile t = {};
  if (!mgl_wide_before(&at, &end)) {
    return;
  }
  feed.a = a;
  feed.at = at;
  feed.end = end;
  feed.smem = mgl_shared_address(smem);
  feed.thread = thread;
  mgl_tile_open(&feed);
  mgl_tile_open_barriers(thread);  // and nobody reads streams any more
  t.feed = &feed;
  for (uint32_t i = 0; i < MGL_TILE_AHEAD; i++) {
    mgl_tile_feed_one(&feed);
  }
#pragma unroll 1
  while (mgl_wide_before(&at, &end)) {
    const mgl_wide_part part = mgl_wide_take(&at, &end, a->work->items[at.item].steps, a->kv_heads);
    mgl_tile_part(a, &part, &t, worker);
  }
  mgl_tile_close_barriers(thread);
}

#endif
