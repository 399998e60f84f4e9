// Tiles of the wide class's attention: chunks of prompts.
//
// All consumers compute a tile of queries together, 16 rows a warp, over steps of 64 positions that
// they copy into a ring of stages, with a barrier a step. Loads run ahead, over the borders of
// units too. On sm_90a they are K three steps, V two; the products are wgmma's, and a step's
// softmax runs beside the products of the step before with its values (FlashAttention-3, Shah et
// al. 2024). Else both run a step ahead, in half the memory, and products are mma.sync's.
//
// Rejected: warpgroups that may be a step apart (mbarriers for each stage), which gained nothing
// (docs/log/073); bulk copies, for which K would have to lie swizzled in its pages.
#ifndef MGL_KERNELS_CUDA_ATTEND_WIDE_TILES_CUH
#define MGL_KERNELS_CUDA_ATTEND_WIDE_TILES_CUH

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/small/wide_rows.cuh"

enum {
  MGL_TILE_PAGES = MGL_WIDE_TILE_STEP / MGL_WIDE_STREAM_STEP,
  MGL_TILE_COLUMNS = MGL_WIDE_TILE_STEP / 8,
  MGL_TILE_V = MGL_TILE_PAGES * MGL_PAGE_BYTES_K,  // in a stage, behind K
  MGL_TILE_STAGE = 2 * MGL_TILE_V,
  MGL_TILE_STAGES = MGL_TARGET_WGMMA ? 4 : 2,
  // Steps whose K is asked for before they are computed; of V one less with wgmma, else as many.
  MGL_TILE_AHEAD = MGL_TILE_STAGES - 1,
  MGL_TILE_Q = MGL_TILE_STAGES * MGL_TILE_STAGE,  // queries of this unit,
  MGL_TILE_QUERIES = MGL_TARGET_WGMMA ? 2 : 1,    // and with wgmma of the next one
  MGL_TILE_Q_BYTES = MGL_WIDE_TILE_ROWS * MGL_HEAD_DIM * 2,
  MGL_TILE_PARTIAL = MGL_WIDE_TILE_ROWS * (MGL_HEAD_DIM + 8),  // floats
};

static_assert(MGL_TILE_Q + MGL_TILE_QUERIES * MGL_TILE_Q_BYTES <= MGL_ATTEND_BYTES,
              "shared memory");

// An mgl_tile_feed is what the worker asks for next; every thread asks for its share. K runs a step
// ahead of V, since it is needed earlier.
typedef struct mgl_tile_feed {
  const mgl_wide_attention *a;
  mgl_wide_cut at, end;
  uint32_t stop;     // step behind the part at `at`
  uint32_t seen;     // positions of the item
  uint32_t slot;     // of the item
  uint32_t page;     // of this thread's share of the step at `at`
  uint32_t count;    // steps whose K was asked for
  uint32_t v_index;  // page * HKV + KV head of the V that is asked for next
  uint32_t v_left;   // and its positions that are seen
  bool has_v;        // there is one
  uint32_t smem;     // shared address
  uint32_t thread;
} mgl_tile_feed;

enum { MGL_TILE_PAGE_THREADS = MGL_CUDA_CONSUMERS / MGL_TILE_PAGES };  // that copy a page

MGL_DEVICE uint32_t mgl_tile_position(const mgl_tile_feed *f) {
  return (f->at.step * MGL_TILE_PAGES + f->thread / MGL_TILE_PAGE_THREADS) * MGL_WIDE_STREAM_STEP;
}

MGL_DEVICE void mgl_tile_look_up(mgl_tile_feed *f) {
  uint32_t position = mgl_tile_position(f);
  f->page = position < f->seen ? mgl_wide_page(f->a, f->slot, position) : 0;
}

MGL_DEVICE void mgl_tile_open(mgl_tile_feed *f) {
  if (!mgl_wide_before(&f->at, &f->end)) {
    return;
  }
  const mgl_wide_item *item = &f->a->work->items[f->at.item];
  f->seen = item->position + item->count;
  f->slot = item->slot;
  f->stop = f->at.item == f->end.item && f->at.head == f->end.head ? f->end.step : item->steps;
  mgl_tile_look_up(f);
}

// The queries of the unit at `unit`, into `to`, with the next group.
MGL_DEVICE void mgl_tile_copy_q(const mgl_wide_attention *a, const mgl_wide_cut *unit, uint32_t to,
                                uint32_t thread) {
  const mgl_wide_item *item = &a->work->items[unit->item];
  const uint32_t heads = a->kv_heads * MGL_GROUP;
  const uint32_t rows = item->count * MGL_GROUP;
  const uint16_t *q = a->q + ((size_t)item->row * heads + unit->head * MGL_GROUP) * MGL_HEAD_DIM;
#pragma unroll
  for (uint32_t i = 0; i < MGL_WIDE_TILE_ROWS * MGL_ROW_CHUNKS / MGL_CUDA_CONSUMERS; i++) {
    uint32_t number = thread + i * MGL_CUDA_CONSUMERS;
    uint32_t row = number / MGL_ROW_CHUNKS, chunk = number % MGL_ROW_CHUNKS;
    uint32_t head = row / MGL_GROUP * heads + row % MGL_GROUP;
    bool present = row < rows;
    mgl_copy_async(to + mgl_slab_offset<MGL_WIDE_TILE_ROWS>(row, chunk),
                   q + (present ? (size_t)head * MGL_HEAD_DIM + chunk * 8 : 0), present ? 16 : 0);
  }
}

// This thread's share of a step's K, of page * HKV + KV head `index`, of which `left` positions are
// seen.
MGL_DEVICE void mgl_tile_copy_k(const mgl_tile_feed *f, uint32_t to, uint32_t index,
                                uint32_t left) {
  const uint32_t page = f->thread / MGL_TILE_PAGE_THREADS;
  const uint16_t *k = f->a->k_cache + (size_t)index * (MGL_WIDE_STREAM_STEP * MGL_HEAD_DIM);
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 32; i++) {
    uint32_t chunk = f->thread % MGL_TILE_PAGE_THREADS + i * MGL_TILE_PAGE_THREADS;
    uint32_t row = chunk / MGL_ROW_CHUNKS;
    mgl_copy_async(to + mgl_slab_offset<MGL_WIDE_TILE_STEP>(page * MGL_WIDE_STREAM_STEP + row,
                                                            chunk % MGL_ROW_CHUNKS),
                   k + chunk * 8, row < left ? 16 : 0);
  }
}

MGL_DEVICE void mgl_tile_copy_v(const mgl_tile_feed *f, uint32_t to, uint32_t index,
                                uint32_t left) {
  const uint32_t page = f->thread / MGL_TILE_PAGE_THREADS;
  const uint16_t *v = f->a->v_cache + (size_t)index * (MGL_WIDE_STREAM_STEP * MGL_HEAD_DIM);
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 32; i++) {
    uint32_t chunk = f->thread % MGL_TILE_PAGE_THREADS + i * MGL_TILE_PAGE_THREADS;
    uint32_t before = chunk % 2 * 8;
    uint32_t count = left <= before ? 0 : left - before < 8 ? left - before : 8;
    mgl_copy_async(to + page * MGL_PAGE_BYTES_K + mgl_v_offset(chunk / 2, chunk % 2), v + chunk * 8,
                   count * 2);
  }
}

// V of the latest step whose K was asked for, if there is one.
MGL_DEVICE void mgl_tile_feed_v(mgl_tile_feed *f) {
  if (f->has_v) {
    const uint32_t stage = (f->count - 1) % MGL_TILE_STAGES * MGL_TILE_STAGE;
    mgl_tile_copy_v(f, f->smem + stage + MGL_TILE_V, f->v_index, f->v_left);
    f->has_v = false;
  }
}

// Asks for K of the next step and for V of that or, with wgmma, of the step before, as far as there
// are such. A group in any case.
MGL_DEVICE void mgl_tile_feed_one(mgl_tile_feed *f) {
  if (MGL_TARGET_WGMMA) {
    mgl_tile_feed_v(f);
  }
  if (mgl_wide_before(&f->at, &f->end)) {
    const uint32_t position = mgl_tile_position(f);
    f->v_index = f->page * f->a->kv_heads + f->at.head;
    f->v_left = f->seen > position ? f->seen - position : 0;
    f->has_v = true;
    mgl_tile_copy_k(f, f->smem + f->count % MGL_TILE_STAGES * MGL_TILE_STAGE, f->v_index,
                    f->v_left);
    f->count++;
    if (++f->at.step < f->stop) {
      mgl_tile_look_up(f);
    } else {
      f->at.step--;  // take moves on from inside the part
      (void)mgl_wide_take(&f->at, &f->end, f->stop, f->a->kv_heads);
      mgl_tile_open(f);
    }
  }
  if (!MGL_TARGET_WGMMA) {
    mgl_tile_feed_v(f);
  }
  mgl_copy_commit();
}

// This warp's 16 rows of the queries.
MGL_DEVICE void mgl_tile_load_q(uint32_t from, uint32_t warp, uint32_t lane,
                                uint32_t q[MGL_HEAD_STEPS][4]) {
  const uint32_t row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    mgl_load_matrices(from + mgl_slab_offset<MGL_WIDE_TILE_ROWS>(row, 2 * s + lane / 16), q[s]);
  }
}

// A worker's partial results: sums [columns][threads][4], then maxima and sums of weights
// [threads][4], every thread's own.
MGL_DEVICE float *mgl_tile_partial(const mgl_wide_attention *a, uint32_t record, uint32_t thread) {
  return a->tile_partials + (size_t)record * MGL_TILE_PARTIAL + thread * 4;
}

MGL_DEVICE void mgl_tile_store(float *partial, const mgl_wide_rows *rows) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
    *(float4 *)(partial + j * (MGL_CUDA_CONSUMERS * 4)) =
        make_float4(rows->values[j][0], rows->values[j][1], rows->values[j][2], rows->values[j][3]);
  }
  *(float4 *)(partial + MGL_HEAD_COLUMNS * (MGL_CUDA_CONSUMERS * 4)) =
      make_float4(rows->max[0], rows->max[1], rows->sum[0], rows->sum[1]);
}

// Adds a party's partial result.
MGL_DEVICE void mgl_tile_add(const float *partial, mgl_wide_rows *rows) {
  uint4 v[MGL_HEAD_COLUMNS];
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
    v[j] = mgl_load_l2(partial + j * (MGL_CUDA_CONSUMERS * 4));
  }
  const uint4 softmax = mgl_load_l2(partial + MGL_HEAD_COLUMNS * (MGL_CUDA_CONSUMERS * 4));
  float f[2][2];
  mgl_wide_join(rows, 0, __uint_as_float(softmax.x), __uint_as_float(softmax.z), f[0]);
  mgl_wide_join(rows, 1, __uint_as_float(softmax.y), __uint_as_float(softmax.w), f[1]);
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_COLUMNS; j++) {
    float *values = rows->values[j];
    values[0] = fmaf(f[0][1], __uint_as_float(v[j].x), values[0] * f[0][0]);
    values[1] = fmaf(f[0][1], __uint_as_float(v[j].y), values[1] * f[0][0]);
    values[2] = fmaf(f[1][1], __uint_as_float(v[j].z), values[2] * f[1][0]);
    values[3] = fmaf(f[1][1], __uint_as_float(v[j].w), values[3] * f[1][0]);
  }
}

// All parts of a unit, in order.
MGL_DEVICE void mgl_tile_merge(const mgl_wide_attention *a, const mgl_wide_parties *p,
                               uint32_t thread, mgl_wide_rows *rows) {
  mgl_wide_clear(rows);
#pragma unroll 1
  for (uint32_t party = p->first; party <= p->last; party++) {
    if (mgl_wide_has_part(p, party)) {
      mgl_tile_add(mgl_tile_partial(a, mgl_wide_record(p, party), thread), rows);
    }
  }
}

// All consumers finish an item here: its cut parts are added in order, and its rows are written.
MGL_DEVICE void mgl_tile_finish(const mgl_wide_attention *a, const mgl_wide_item *item,
                                const mgl_wide_part *part, uint32_t worker, uint32_t thread,
                                mgl_wide_rows *rows) {
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
      done = mgl_count_add_acq_rel(counter, part->end - part->begin) + (part->end - part->begin);
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

// A warp's place in its worker's line.
typedef struct mgl_tile {
  mgl_tile_feed *feed;
  uint32_t count;      // steps computed
  uint32_t queries;    // which of their two places has the part's
  uint32_t low;        // positions that the first of this warp's rows sees: the least
  uint32_t end;        // steps from there on are not seen by this warp (of a warpgroup: by none)
  bool is_late;        // the part's queries are in one of the latest groups
  mgl_wide_cut *next;  // the part behind this one, if it is before the line's end
} mgl_tile;

MGL_DEVICE uint32_t mgl_tile_stage(const mgl_tile *t, uint32_t count) {
  return t->feed->smem + count % MGL_TILE_STAGES * MGL_TILE_STAGE;
}

MGL_DEVICE uint32_t mgl_tile_queries(const mgl_tile *t, uint32_t place) {
  return t->feed->smem + MGL_TILE_Q + place % MGL_TILE_QUERIES * MGL_TILE_Q_BYTES;
}

// Asks for the queries of the next part, with the next group.
MGL_DEVICE void mgl_tile_ask_q(const mgl_tile *t) {
  const mgl_tile_feed *f = t->feed;
  if (mgl_wide_before(t->next, &f->end)) {
    mgl_tile_copy_q(f->a, t->next, mgl_tile_queries(t, t->queries ^ 1), f->thread);
  }
}

// Until K and V of step number t->count are there, and what mgl_tile_feed_one fills next is read.
// first: of its part; then the part's queries are there too.
MGL_DEVICE void mgl_tile_enter(const mgl_tile *t, bool first) {
#if MGL_TARGET_WGMMA
  if (first && t->is_late) {
    mgl_copy_wait<0>();
  } else {
    mgl_copy_wait<MGL_TILE_AHEAD - 2>();
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  mgl_copy_wait<0>();
#endif
  mgl_sync_consumers();  // all threads' copies; and nobody reads what was left a step ago
}

#if MGL_TARGET_WGMMA

// Asks for the scores of the step.
MGL_DEVICE void mgl_tile_issue_scores(const mgl_tile *t, const uint32_t (&q)[MGL_HEAD_STEPS][4],
                                      float (&scores)[MGL_TILE_COLUMNS][4]) {
  const uint32_t k = mgl_tile_stage(t, t->count);
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    constexpr uint32_t steps = MGL_SLAB / 16;
    const uint64_t b =
        mgl_wgmma_rows<MGL_SLAB_BYTES>(k + s / steps * (MGL_WIDE_TILE_STEP * MGL_SLAB_BYTES));
    mgl_wgmma_columns(scores, q[s], b + s % steps * 2, s != 0);
  }
  mgl_wgmma_commit();
}

// Issues the products of weights and values of step number `count`.
MGL_DEVICE void mgl_tile_issue_values(const mgl_tile *t, uint32_t count,
                                      const uint32_t (&weights)[MGL_TILE_PAGES][4],
                                      float (&values)[MGL_HEAD_COLUMNS][4]) {
  const uint32_t v = mgl_tile_stage(t, count) + MGL_TILE_V;
#pragma unroll
  for (uint32_t p = 0; p < MGL_TILE_PAGES; p++) {
    mgl_wgmma_columns(values, weights[p], mgl_wgmma_rows<32>(v + p * MGL_PAGE_BYTES_K), 1);
  }
  mgl_wgmma_commit();
}

// Step `step`: its scores and, beside its softmax, the values of the step before, whose weights are
// in `weights`. Leaves its own there.
template <bool is_first>
MGL_DEVICE void mgl_tile_one(mgl_tile *t, uint32_t step, const uint32_t (&q)[MGL_HEAD_STEPS][4],
                             uint32_t (&weights)[MGL_TILE_PAGES][4], mgl_wide_rows *rows) {
  const uint32_t first = step * MGL_WIDE_TILE_STEP;
  float scores[MGL_TILE_COLUMNS][4], decay[2];
  mgl_wgmma_fence();
  mgl_tile_issue_scores(t, q, scores);
  if (!is_first) {
    mgl_tile_issue_values(t, t->count - 1, weights, rows->values);
  }
  mgl_tile_feed_one(t->feed);
  mgl_wgmma_wait<is_first ? 0 : 1>();
  mgl_wgmma_arrived(scores);
  if (first + MGL_WIDE_TILE_STEP > t->low) {
    mgl_wide_mask<MGL_TILE_COLUMNS>(rows, first, t->feed->thread % 32, scores);
  }
  const bool grown = mgl_wide_weigh(scores, rows, decay);
  if (!is_first) {
    mgl_wgmma_wait<0>();
    mgl_wgmma_arrived(rows->values);
    if (grown) {
      mgl_wide_decay(rows, decay);
    }
  }
#pragma unroll
  for (uint32_t p = 0; p < MGL_TILE_PAGES; p++) {
    mgl_wide_pack(scores[2 * p], scores[2 * p + 1], weights[p]);
  }
  t->count++;
}

// Steps [begin, end) of a unit.
MGL_DEVICE void mgl_tile_steps(mgl_tile *t, uint32_t begin, uint32_t end, mgl_wide_rows *rows) {
  const uint32_t own_end = t->end < end ? t->end : end;
  uint32_t q[MGL_HEAD_STEPS][4], weights[MGL_TILE_PAGES][4];
  uint32_t step = begin;
  mgl_tile_enter(t, true);
  mgl_tile_ask_q(t);
  mgl_tile_load_q(mgl_tile_queries(t, t->queries), t->feed->thread / 32, t->feed->thread % 32, q);
  if (begin < own_end) {
    mgl_tile_one<true>(t, step++, q, weights, rows);
#pragma unroll 1
    for (; step < own_end; step++) {
      mgl_tile_enter(t, false);
      mgl_tile_one<false>(t, step, q, weights, rows);
    }
    mgl_wgmma_fence();
    mgl_tile_issue_values(t, t->count - 1, weights, rows->values);
    mgl_wgmma_wait<0>();
    mgl_wgmma_arrived(rows->values);
  } else {
    mgl_tile_feed_one(t->feed);
    step++;
    t->count++;
  }
#pragma unroll 1
  for (; step < end; step++) {  // what only the other warpgroup sees
    mgl_tile_enter(t, false);
    mgl_tile_feed_one(t->feed);
    t->count++;
  }
}

#else

// Steps [begin, end) of a unit.
MGL_DEVICE void mgl_tile_steps(mgl_tile *t, uint32_t begin, uint32_t end, mgl_wide_rows *rows) {
  const uint32_t warp = t->feed->thread / 32, lane = t->feed->thread % 32;
  const mgl_wide_lanes lanes = mgl_wide_lanes_of(lane);
  uint32_t q[MGL_HEAD_STEPS][4];
#pragma unroll 1
  for (uint32_t step = begin; step < end; step++, t->count++) {
    const uint32_t first = step * MGL_WIDE_TILE_STEP;
    mgl_tile_enter(t, step == begin);
    if (step == begin) {
      mgl_tile_load_q(mgl_tile_queries(t, t->queries), warp, lane, q);
      mgl_sync_consumers();  // the next part's queries take the place of these
      mgl_tile_ask_q(t);
    }
    mgl_tile_feed_one(t->feed);
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
MGL_DEVICE void mgl_tile_part(const mgl_wide_attention *a, const mgl_wide_part *part, mgl_tile *t,
                              uint32_t worker) {
  const uint32_t warp = t->feed->thread / 32, lane = t->feed->thread % 32;
  const mgl_wide_item item = a->work->items[part->item];
  const uint32_t count = item.count * MGL_GROUP;
  const uint32_t top = warp * 16;
  // The rows that take part in a product together: of a warp, or of a warpgroup.
  const uint32_t rows_top = MGL_TARGET_WGMMA ? warp / 4 * 64 : top;
  const uint32_t rows_last = rows_top + (MGL_TARGET_WGMMA ? 63 : 15);
  const uint32_t last = rows_last < count ? rows_last : count - 1;
  mgl_wide_rows rows;
  mgl_wide_clear(&rows);
  t->low = item.position + top / MGL_GROUP + 1;
  t->end = rows_top < count ? (item.position + last / MGL_GROUP) / MGL_WIDE_TILE_STEP + 1 : 0;
  rows.limit[0] = item.position + (top + lane / 4) / MGL_GROUP + 1;
  rows.limit[1] = item.position + (top + lane / 4 + 8) / MGL_GROUP + 1;
  mgl_tile_steps(t, part->begin, part->end, &rows);
  t->queries ^= 1;
  t->is_late = part->end - part->begin < MGL_TILE_AHEAD;
  mgl_tile_finish(a, &item, part, worker, t->feed->thread, &rows);
}

MGL_DEVICE void mgl_wide_tiles(const mgl_wide_attention *a, uint8_t *smem, uint32_t worker,
                               uint32_t thread) {
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
  t.feed = &feed;
  t.next = &at;
  mgl_tile_open(&feed);
  mgl_sync_consumers();  // nobody reads streams any more
  mgl_tile_copy_q(a, &at, mgl_tile_queries(&t, 0), thread);
  for (uint32_t i = 0; i < MGL_TILE_AHEAD; i++) {
    mgl_tile_feed_one(&feed);
  }
#pragma unroll 1
  while (mgl_wide_before(&at, &end)) {
    const mgl_wide_part part = mgl_wide_take(&at, &end, a->work->items[at.item].steps, a->kv_heads);
    mgl_tile_part(a, &part, &t, worker);
  }
  mgl_copy_wait<0>();
}

#endif
