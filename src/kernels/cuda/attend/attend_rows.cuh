// This part of attend (tasks_attend.cuh) finds a task's items and KV pages, and norms and rotates
// the rows of this iteration and puts them into scratch and into the cache.
#ifndef MGL_KERNELS_CUDA_ATTEND_ATTEND_ROWS_CUH
#define MGL_KERNELS_CUDA_ATTEND_ATTEND_ROWS_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/common/window.cuh"

enum {
  // As mgl_cuda_head_parts says: what the query heads of a KV head are cut into, at most.
  MGL_HEAD_PARTS = MGL_HAS_EXPERTS && MGL_GROUP == MGL_CUDA_QUERY_COLUMNS ? MGL_CUDA_HEAD_PARTS : 1,
  MGL_ATTEND_TILE = MGL_CUDA_KV_PAGE_TOKENS,                    // positions of a tile: one page
  MGL_ATTEND_STEP = MGL_ATTEND_TILE * MGL_CUDA_CONSUMER_WARPS,  // from a warp's tile to its next
  MGL_ATTEND_PIECES = MGL_HEAD_DIM / 32,  // 16-byte pieces that a lane loads of a row of Q or K
  MGL_ATTEND_ROWS = MGL_HEAD_DIM / 16,    // tiles of 16 rows of V transposed
  MGL_ATTEND_PAIRS = (MGL_HEAD_DIM / 2 + 31) / 32,  // rotated pairs that a lane has of a row
  MGL_ATTEND_BATCH = 2,                             // rows that a warp loads at once
  MGL_ATTEND_PARTIAL = MGL_HEAD_DIM + 2,            // pairs of words of a column's partial result

  // Scratch, in bytes. First K and V of this iteration by position modulo 64, bf16 [64][HD] and
  // [4][HD][16], and Q, bf16 [columns][HD]; then, in their place, what the warps have: sums of
  // values, f32 [warps][columns / 2][HD][2], and their maxima and sums of weights.
  MGL_ATTEND_V = MGL_CUDA_MAX_TOKENS * MGL_HEAD_DIM * 2,
  MGL_ATTEND_Q = MGL_CUDA_CONSUMER_WARPS * MGL_CUDA_QUERY_COLUMNS * MGL_HEAD_DIM * 4,
  MGL_ATTEND_SOFTMAX = MGL_ATTEND_Q,
};

static_assert(MGL_HEAD_DIM % 32 == 0 && MGL_HEAD_DIM <= 128, "what the layouts below are made for");
static_assert(MGL_GROUP >= 1 && MGL_GROUP <= MGL_CUDA_QUERY_COLUMNS,
              "heads of a token are columns");
static_assert(MGL_HEAD_PARTS == 1 || MGL_GROUP == MGL_CUDA_QUERY_COLUMNS,
              "where heads are cut, an item has one token");
static_assert(MGL_CUDA_MIN_CHUNK % MGL_ATTEND_STEP == 0 && MGL_WINDOW_STEP == MGL_ATTEND_STEP,
              "chunks, and what windows leave of them, begin with a tile of warp 0");
static_assert(2 * MGL_ATTEND_V <= MGL_ATTEND_Q, "rows of this iteration lie before the queries");
static_assert(MGL_ATTEND_Q + MGL_CUDA_QUERY_COLUMNS * MGL_HEAD_DIM * 2 <= MGL_CUDA_SCRATCH_BYTES &&
                  MGL_ATTEND_SOFTMAX + MGL_CUDA_CONSUMER_WARPS * MGL_CUDA_QUERY_COLUMNS * 8 <=
                      MGL_CUDA_SCRATCH_BYTES,
              "scratch");
static_assert(sizeof(mgl_cuda_item) == 48 && offsetof(mgl_cuda_plan, items) % 16 == 0 &&
                  sizeof(mgl_cuda_plan) % 16 == 0,
              "items are read in pieces of 16 bytes");

// --- state ---------------------------------------------------------------------------------------

// A consumer thread's place in the task.
typedef struct mgl_attend {
  const mgl_worker *w;
  const mgl_slot *slot;
  uint32_t kv_heads;
  uint32_t strides;
  uint32_t item_count;
  uint32_t unit, index;  // the item, and the unit that it is computed for
  uint32_t kv_head;
  uint32_t columns;              // of the item that hold queries
  uint32_t cached_end;           // positions from there on are not taken from the cache
  uint32_t pages;                // of tile 32 n + lane of this warp
  uint32_t own_first, own_last;  // pages of the item's first and last token
  uint64_t *partials;            // of run, as is `merges`: at hand when the output needs them
  uint32_t tag;
  uint32_t *merges;
  bool known;  // to the compiler: outputs have copies, and partial results are asked for
  mgl_cuda_item item;
} mgl_attend;

// The lane, as something that the compiler does not know to be constant: what is computed from it
// is computed where it is used, and not kept in registers around the loop over tiles.
MGL_DEVICE uint32_t mgl_attend_lane(const mgl_attend *a) {
  uint32_t lane = a->w->lane;
  asm volatile("" : "+r"(lane));
  return lane;
}

// A tile's operands, as loaded. Lane 4 g + t. k: of the rows of positions mgl_attend_position(g)
// and that + 2, elements 8t .. 8t + 7 of each 32, which are the k pairs of two products (words 0
// and 1, words 2 and 3; Q is read alike). v: rows g and g + 8 of each 16 elements of head dim,
// positions 4t .. 4t + 3.
typedef struct mgl_attend_tile {
  uint4 k[MGL_ATTEND_PIECES][2];
  uint2 v[MGL_ATTEND_ROWS][2];
} mgl_attend_tile;

// Online softmax of columns 2t and 2t + 1. Every lane has its own part of `sum`.
typedef struct mgl_attend_state {
  float max[2];
  float sum[2];
  float values[MGL_ATTEND_ROWS][4];
} mgl_attend_state;

// An mgl_attend_part is what was computed of an element of the output: the sum of weighted values,
// and its column's maximum score (times log2 e) and sum of weights, relative to that maximum.
typedef struct mgl_attend_part {
  float value, max, sum;
} mgl_attend_part;

// Position in a tile of row `row` < 8 of the scores; row + 8 has that + 2. So the pairs of rows
// that mgl_transpose8 brings together, with those of row + 8, are four consecutive positions.
MGL_DEVICE uint32_t mgl_attend_position(uint32_t row) {
  return row / 2 * 4 + row % 2;
}

// Minus infinity: the score of what is not seen, and the maximum where nothing is. (No INFINITY
// with the runtime compiler.)
MGL_DEVICE float mgl_attend_unseen(void) {
  return __uint_as_float(0xff800000u);
}

// Weights are relative to this maximum, which is finite also where nothing is seen, so that weights
// are 0 there, not NaN.
MGL_DEVICE float mgl_attend_base(float max) {
  return max == mgl_attend_unseen() ? 0.0f : max;
}

// --- items and pages -----------------------------------------------------------------------------

// Moves on to the next unit until the index is one of an item. False: the task has no more.
MGL_DEVICE bool mgl_attend_seek(mgl_attend *a) {
  while (a->index >= a->item_count) {
    if (++a->unit >= a->slot->end) {
      return false;
    }
    a->index = a->unit % a->strides;
  }
  a->kv_head = a->unit / a->strides;
  return true;
}

// The query heads of a KV head that the item is for: how many, and the first one.
MGL_DEVICE uint32_t mgl_attend_heads(const mgl_attend *a) {
  return MGL_HEAD_PARTS == 1 ? (uint32_t)MGL_GROUP : a->item.heads & 255;
}

MGL_DEVICE uint32_t mgl_attend_first_head(const mgl_attend *a) {
  return MGL_HEAD_PARTS == 1 ? 0 : a->item.heads >> 8;
}

MGL_DEVICE void mgl_attend_set_item(mgl_attend *a, const uint4 v[3]) {
  a->item = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y,
             v[1].z, v[1].w, v[2].x, v[2].y, v[2].z, v[2].w};
  a->item.kv_begin = mgl_window_begin(&a->slot->op, a->item.kv_begin, a->item.position);
  a->columns = a->item.count * mgl_attend_heads(a);
  a->cached_end = a->item.fresh < a->item.kv_end ? a->item.fresh : a->item.kv_end;
}

MGL_DEVICE void mgl_attend_read_item(mgl_attend *a) {
  const uint8_t *from = (const uint8_t *)&a->slot->plan->items[a->index];
  uint4 v[3] = {mgl_load_l2(from), mgl_load_l2(from + 16), mgl_load_l2(from + 32)};
  mgl_attend_set_item(a, v);
}

// Leaves a later item in the place of the first, for mgl_attend_read_again; barriers come before
// and after.
MGL_DEVICE void mgl_attend_note_item(const mgl_attend *a) {
  if (a->w->thread == 0) {
    const_cast<mgl_slot *>(a->slot)->first.item = a->item;
  }
}

// Before the output: what the tiles did not need registers for.
MGL_DEVICE void mgl_attend_read_again(mgl_attend *a) {
  uint32_t item = mgl_shared_address(&a->slot->first.item);
  uint4 v[3] = {mgl_load_shared(item), mgl_load_shared(item + 16), mgl_load_shared(item + 32)};
  mgl_attend_set_item(a, v);
  a->strides = a->slot->first.strides;
  a->item_count = a->slot->first.item_count;
  a->tag = a->slot->first.tag;
  a->partials = a->w->run->partials;
  a->merges = a->w->run->merges;
}

// The task's first item. False: it has none.
MGL_DEVICE bool mgl_attend_begin(mgl_attend *a, const mgl_worker *w) {
  a->w = w;
  a->known = false;
  a->slot = mgl_task_slot(w);
  const mgl_first_item *first = &a->slot->first;
  uint32_t item = mgl_shared_address(&first->item);
  uint4 v[3] = {mgl_load_shared(item), mgl_load_shared(item + 16), mgl_load_shared(item + 32)};
  a->kv_heads = first->kv_heads;
  a->strides = first->strides;
  a->item_count = first->item_count;
  a->unit = first->unit;
  a->kv_head = first->kv_head;
  a->index = a->unit - a->kv_head * a->strides;
  a->pages = 0;
  mgl_attend_set_item(a, v);
  return a->unit < a->slot->end;
}

MGL_DEVICE bool mgl_attend_next(mgl_attend *a) {
  a->index += a->strides;
  if (!mgl_attend_seek(a)) {
    return false;
  }
  mgl_attend_read_item(a);
  return true;
}

MGL_DEVICE uint32_t mgl_attend_first(const mgl_attend *a, uint32_t step) {
  return a->item.kv_begin + step * MGL_ATTEND_STEP + a->w->warp * MGL_ATTEND_TILE;
}

// From the L2: others of its entries are written while a launch runs.
MGL_DEVICE uint32_t mgl_attend_lookup(const mgl_attend *a, uint32_t position) {
  const mgl_cuda_run *run = a->w->run;
  const int32_t *table = run->block_tables + (size_t)a->item.slot * run->block_table_stride;
  return mgl_load_l2_word(table + position / MGL_ATTEND_TILE);
}

// The page of this warp's tile `step`; asked for in order, from 0. The lanes look up 32 at a time.
MGL_DEVICE uint32_t mgl_attend_page(mgl_attend *a, uint32_t step) {
  if (step % 32 == 0) {
    uint32_t position = mgl_attend_first(a, step + a->w->lane);
    a->pages = position < a->cached_end ? mgl_attend_lookup(a, position) : 0;
  }
  return __shfl_sync(0xffffffffu, a->pages, (int)(step % 32));
}

// Elements before the item's KV head in that page, of K and of V.
MGL_DEVICE size_t mgl_attend_offset(const mgl_attend *a, uint32_t page) {
  return ((size_t)page * a->kv_heads + a->kv_head) * (MGL_ATTEND_TILE * MGL_HEAD_DIM);
}

// --- rows of this iteration ----------------------------------------------------------------------

// A row of qkv in a warp: pairs lane + 32 i and HD / 2 after.
typedef struct mgl_attend_row {
  float low[MGL_ATTEND_PAIRS], high[MGL_ATTEND_PAIRS];
  float cosine[MGL_ATTEND_PAIRS], sine[MGL_ATTEND_PAIRS];
} mgl_attend_row;

// Weights of the norms of Q and K, as a row lies in a warp.
typedef struct mgl_attend_norms {
  float low[2][MGL_ATTEND_PAIRS], high[2][MGL_ATTEND_PAIRS];
} mgl_attend_norms;

typedef enum mgl_attend_kind { MGL_ATTEND_IS_Q, MGL_ATTEND_IS_K, MGL_ATTEND_IS_V } mgl_attend_kind;

// One of the rows that an item needs: its queries, then K, then V of positions that are not cached.
typedef struct mgl_attend_job {
  uint32_t kind;      // mgl_attend_kind
  uint32_t position;  // Q: the column
  uint32_t token;     // row of qkv
  uint32_t head;      // in a row of qkv
  bool owned;         // K and V: this item writes it into the cache
} mgl_attend_job;

MGL_DEVICE uint32_t mgl_attend_fresh_begin(const mgl_attend *a) {
  return a->item.fresh > a->item.kv_begin ? a->item.fresh : a->item.kv_begin;
}

MGL_DEVICE uint32_t mgl_attend_fresh_count(const mgl_attend *a) {
  uint32_t begin = mgl_attend_fresh_begin(a);
  return a->item.kv_end > begin ? a->item.kv_end - begin : 0;
}

MGL_DEVICE mgl_attend_job mgl_attend_find_job(const mgl_attend *a, uint32_t number) {
  const mgl_cuda_item *item = &a->item;
  mgl_attend_job job;
  if (number < a->columns) {
    job.kind = MGL_ATTEND_IS_Q;
    job.position = number;
    job.token = item->row + number / MGL_GROUP;
    job.head = a->kv_head * MGL_GROUP + mgl_attend_first_head(a) + number % MGL_GROUP;
    job.owned = false;
    return job;
  }
  uint32_t count = mgl_attend_fresh_count(a);
  number -= a->columns;
  job.kind = number < count ? MGL_ATTEND_IS_K : MGL_ATTEND_IS_V;
  job.position = mgl_attend_fresh_begin(a) + (number < count ? number : number - count);
  job.token = item->fresh_row + (job.position - item->fresh);
  job.head = a->kv_heads * (MGL_GROUP + (number < count ? 0 : 1)) + a->kv_head;
  job.owned = job.position >= item->position && job.position - item->position < item->count &&
              mgl_attend_first_head(a) == 0;
  return job;
}

MGL_DEVICE void mgl_attend_load_norms(const mgl_attend *a, mgl_attend_norms *norms) {
  const float *from[2] = {a->slot->op.q_norm, a->slot->op.k_norm};
#pragma unroll
  for (uint32_t i = 0; i < 2 * MGL_ATTEND_PAIRS; i++) {
    const float *norm = from[i % 2];
    uint32_t pair = a->w->lane + i / 2 * 32;
    bool present = norm != nullptr && pair < MGL_HEAD_DIM / 2;
    norms->low[i % 2][i / 2] = present ? __ldg(norm + pair) : 0;
    norms->high[i % 2][i / 2] = present ? __ldg(norm + pair + MGL_HEAD_DIM / 2) : 0;
  }
}

// All that a row takes, without using any of it; what is not there stays 0.
MGL_DEVICE void mgl_attend_load_row(const mgl_attend *a, const mgl_attend_job *job,
                                    mgl_attend_row *row) {
  const mgl_cuda_op *op = &a->slot->op;
  const float *x = (const float *)((const uint8_t *)op->x + a->slot->copy_at) +
                   (size_t)job->token * op->x_stride + job->head * MGL_HEAD_DIM;
  const float *angles = (const float *)((const uint8_t *)op->angles + a->slot->copy_at) +
                        (size_t)job->token * MGL_HEAD_DIM;
  bool is_v = job->kind == MGL_ATTEND_IS_V;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    uint32_t pair = a->w->lane + 32 * i;
    if (pair < MGL_HEAD_DIM / 2) {
      row->low[i] = __uint_as_float(mgl_load_l2_word(x + pair));
      row->high[i] = __uint_as_float(mgl_load_l2_word(x + pair + MGL_HEAD_DIM / 2));
      if (!is_v) {
        uint2 angle = mgl_load_l2_pair(angles + 2 * pair);
        row->cosine[i] = __uint_as_float(angle.x);
        row->sine[i] = __uint_as_float(angle.y);
      }
    }
  }
}

MGL_DEVICE bool mgl_attend_is_open(const mgl_attend_row *row) {
  bool open = false;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    open = open || mgl_is_open(__float_as_uint(row->low[i])) ||
           mgl_is_open(__float_as_uint(row->high[i])) ||
           mgl_is_open(__float_as_uint(row->cosine[i])) ||
           mgl_is_open(__float_as_uint(row->sine[i]));
  }
  return open;
}

// Asks again until all of a row is there. When the run stops it gives up, and the task is mute.
MGL_DEVICE void mgl_attend_await_row(const mgl_attend *a, const mgl_attend_job *job,
                                     mgl_attend_row *row) {
  if (!MGL_CARRIES || (a->slot->op.flags & MGL_CUDA_CARRIED) == 0) {
    return;
  }
  while (__any_sync(0xffffffffu, mgl_attend_is_open(row)) && a->w->block->stop == 0) {
    mgl_attend_load_row(a, job, row);
  }
}

// x / sqrt(mean(x^2) + eps) * norm where there is a norm, then (low, high) rotated by the angle.
MGL_DEVICE void mgl_attend_norm_rotate(const mgl_attend *a, bool is_q,
                                       const mgl_attend_norms *norms, mgl_attend_row *row) {
  const mgl_cuda_op *op = &a->slot->op;
  if ((is_q ? op->q_norm : op->k_norm) != nullptr) {
    float squares = 0;
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
      squares += row->low[i] * row->low[i] + row->high[i] * row->high[i];
    }
    // Within 2 units in the last place.
    float inverse = rsqrtf(__fmaf_rn(mgl_warp_sum(squares), 1.0f / MGL_HEAD_DIM, op->eps));
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
      row->low[i] = row->low[i] * inverse * (is_q ? norms->low[0][i] : norms->low[1][i]);
      row->high[i] = row->high[i] * inverse * (is_q ? norms->high[0][i] : norms->high[1][i]);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    float low = row->low[i];
    float high = row->high[i];
    row->low[i] = low * row->cosine[i] - high * row->sine[i];
    row->high[i] = high * row->cosine[i] + low * row->sine[i];
  }
}

// Element of V in a scratch tile [HD][16]: groups of 4 positions are permuted, so that lanes with
// consecutive rows write to 16 banks, not to 4. Row 16 has the permutation of row 0.
MGL_DEVICE uint32_t mgl_attend_v_index(uint32_t row, uint32_t position) {
  return row * MGL_ATTEND_TILE + ((position / 4 ^ row / 4 % 4) * 4 + position % 4);
}

MGL_DEVICE void mgl_attend_store(const mgl_attend *a, const mgl_attend_job *job, uint32_t row,
                                 uint16_t value) {
  uint8_t *scratch = a->w->scratch;
  bool in_first = job->position / MGL_ATTEND_TILE == a->item.position / MGL_ATTEND_TILE;
  uint32_t page = in_first ? a->own_first : a->own_last;
  uint32_t in_tile = job->position % MGL_ATTEND_TILE;
  if (job->kind == MGL_ATTEND_IS_Q) {
    ((uint16_t *)(scratch + MGL_ATTEND_Q))[job->position * MGL_HEAD_DIM + row] = value;
    return;
  }
  uint32_t slot = job->position % MGL_CUDA_MAX_TOKENS;
  if (job->kind == MGL_ATTEND_IS_K) {
    ((uint16_t *)scratch)[slot * MGL_HEAD_DIM + row] = value;
    if (job->owned) {
      a->slot->op.k_cache[mgl_attend_offset(a, page) + in_tile * MGL_HEAD_DIM + row] = value;
    }
    return;
  }
  uint16_t *v = (uint16_t *)(scratch + MGL_ATTEND_V);
  v += slot / MGL_ATTEND_TILE * (MGL_ATTEND_TILE * MGL_HEAD_DIM);
  v[mgl_attend_v_index(row, in_tile)] = value;
  if (job->owned) {
    a->slot->op.v_cache[mgl_attend_offset(a, page) + row * MGL_ATTEND_TILE + in_tile] = value;
  }
}

MGL_DEVICE void mgl_attend_finish_row(const mgl_attend *a, const mgl_attend_job *job,
                                      const mgl_attend_norms *norms, mgl_attend_row *row) {
  if (job->kind != MGL_ATTEND_IS_V) {
    mgl_attend_norm_rotate(a, job->kind == MGL_ATTEND_IS_Q, norms, row);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    uint32_t pair = a->w->lane + 32 * i;
    if (pair < MGL_HEAD_DIM / 2) {
      mgl_attend_store(a, job, pair, mgl_round_bf16(row->low[i]));
      mgl_attend_store(a, job, pair + MGL_HEAD_DIM / 2, mgl_round_bf16(row->high[i]));
    }
  }
}

MGL_DEVICE uint32_t mgl_attend_jobs(const mgl_attend *a) {
  return a->columns + 2 * mgl_attend_fresh_count(a);
}

// Asks for the rows of jobs `first`, and those a round of warps later.
MGL_DEVICE void mgl_attend_ask(const mgl_attend *a, uint32_t first,
                               mgl_attend_row rows[MGL_ATTEND_BATCH]) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_BATCH; i++) {
    rows[i] = {};
    if (first + i * MGL_CUDA_CONSUMER_WARPS < mgl_attend_jobs(a)) {
      mgl_attend_job job = mgl_attend_find_job(a, first + i * MGL_CUDA_CONSUMER_WARPS);
      mgl_attend_load_row(a, &job, &rows[i]);
    }
  }
}

// Puts the item's queries and the K and V that are not cached into scratch, a warp per row, and its
// own tokens' into the cache, where nobody reads them in this iteration. rows: what this warp has
// asked for, the first of its jobs.
MGL_DEVICE void mgl_attend_prepare(const mgl_attend *a, const mgl_attend_norms *norms,
                                   mgl_attend_row rows[MGL_ATTEND_BATCH]) {
  uint32_t count = mgl_attend_jobs(a);
#pragma unroll 1
  for (uint32_t first = a->w->warp; first < count;) {
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_BATCH; i++) {
      if (first + i * MGL_CUDA_CONSUMER_WARPS < count) {
        mgl_attend_job job = mgl_attend_find_job(a, first + i * MGL_CUDA_CONSUMER_WARPS);
        mgl_attend_await_row(a, &job, &rows[i]);
        mgl_attend_finish_row(a, &job, norms, &rows[i]);
      }
    }
    first += MGL_ATTEND_BATCH * MGL_CUDA_CONSUMER_WARPS;
    if (first < count) {
      mgl_attend_ask(a, first, rows);
    }
  }
}

#endif
