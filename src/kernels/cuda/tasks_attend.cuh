// attend: norms and rotates Q and K, writes the iteration's K and V into the paged cache, attends.
//
// FlashAttention (Dao et al. 2022) on tensor cores, turned round: 16 positions of K, and 16 rows of
// V transposed, are the A operand of a product, and the few query columns of an item (tokens times
// heads of a group) are the 8 columns of B, so that a decoding sequence wastes columns, which cost
// nothing, and not rows. A warp takes every eighth tile of 16 positions with an online softmax of
// its own; then the warps are merged in order, and then the chunks of a long context
// (FlashDecoding's split) by the last chunk's task or by whichever ends last. What does not depend
// on the iteration's earlier tasks, which is all of the cache, is asked for before the task waits.
//
// Numerics. The arithmetic of a column depends on its own query and on the absolute positions that
// it sees, and on nothing else: rows of this iteration enter as the bf16 that later iterations find
// in the cache; positions out of sight weigh exactly 0 and meet zeros or finite values; merging
// something that a column does not see multiplies by 1 and adds 0.
//
// Rejected: query rows as the A operand, which needs 16 of them; a first pass that puts K and V of
// the iteration into the cache, which costs a dependency on the critical path.
#ifndef MGL_KERNELS_CUDA_TASKS_ATTEND_CUH
#define MGL_KERNELS_CUDA_TASKS_ATTEND_CUH

#include "kernels/cuda/worker.cuh"

enum {
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
static_assert(MGL_CUDA_MIN_CHUNK % MGL_ATTEND_STEP == 0, "chunks begin with a tile of warp 0");
static_assert(2 * MGL_ATTEND_V <= MGL_ATTEND_Q, "rows of this iteration lie before the queries");
static_assert(MGL_ATTEND_Q + MGL_CUDA_QUERY_COLUMNS * MGL_HEAD_DIM * 2 <= MGL_CUDA_SCRATCH_BYTES &&
                  MGL_ATTEND_SOFTMAX + MGL_CUDA_CONSUMER_WARPS * MGL_CUDA_QUERY_COLUMNS * 8 <=
                      MGL_CUDA_SCRATCH_BYTES,
              "scratch");
static_assert(sizeof(mgl_cuda_item) == 48 && offsetof(mgl_cuda_plan, items) % 16 == 0 &&
                  sizeof(mgl_cuda_plan) % 16 == 0,
              "items are read in pieces of 16 bytes");

// --- instructions --------------------------------------------------------------------------------

static __device__ __forceinline__ void mgl_prefetch_l2(const void *address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// An 8 x 8 matrix of 16-bit elements, transposed: lane 4 g + t gives elements 2t and 2t + 1 of row
// g and gets those of column g.
static __device__ __forceinline__ uint32_t mgl_transpose8(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

// Adds 1, or goes back to 0 from `most`, and returns the value before; releases what this thread's
// block wrote before the last barrier, and acquires what was released by the additions before.
static __device__ __forceinline__ uint32_t mgl_count_acq_rel(uint32_t *counter, uint32_t most) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(most)
               : "memory");
  return before;
}

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
  mgl_cuda_item item;
} mgl_attend;

// The lane, as something that the compiler does not know to be constant: what is computed from it
// is computed where it is used, and not kept in registers around the loop over tiles.
static __device__ __forceinline__ uint32_t mgl_attend_lane(const mgl_attend *a) {
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

// What was computed of an element of the output: the sum of weighted values, and of its column the
// maximum score (times log2 e) and the sum of weights, both weights relative to that maximum.
typedef struct mgl_attend_part {
  float value, max, sum;
} mgl_attend_part;

// Position in a tile of row `row` < 8 of the scores; row + 8 has that + 2. So the pairs of rows
// that mgl_transpose8 brings together, with those of row + 8, are four consecutive positions.
static __device__ __forceinline__ uint32_t mgl_attend_position(uint32_t row) {
  return row / 2 * 4 + row % 2;
}

// Minus infinity: the score of what is not seen, and the maximum where nothing is. (No INFINITY
// with the runtime compiler.)
static __device__ __forceinline__ float mgl_attend_unseen(void) {
  return __uint_as_float(0xff800000u);
}

// What weights are relative to: finite also where nothing is seen, so that weights are 0, not NaN.
static __device__ __forceinline__ float mgl_attend_base(float max) {
  return max == mgl_attend_unseen() ? 0.0f : max;
}

// --- items and pages -----------------------------------------------------------------------------

// Moves on to the next unit until the index is one of an item. False: the task has no more.
static __device__ __forceinline__ bool mgl_attend_seek(mgl_attend *a) {
  while (a->index >= a->item_count) {
    if (++a->unit >= a->slot->end) {
      return false;
    }
    a->index = a->unit % a->strides;
  }
  a->kv_head = a->unit / a->strides;
  return true;
}

static __device__ __forceinline__ void mgl_attend_set_item(mgl_attend *a, const uint4 v[3]) {
  a->item = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y,
             v[1].z, v[1].w, v[2].x, v[2].y, v[2].z, v[2].w};
  a->columns = a->item.count * MGL_GROUP;
  a->cached_end = a->item.fresh < a->item.kv_end ? a->item.fresh : a->item.kv_end;
}

static __device__ __forceinline__ void mgl_attend_read_item(mgl_attend *a) {
  const uint8_t *from = (const uint8_t *)&a->slot->plan->items[a->index];
  uint4 v[3] = {mgl_load_l2(from), mgl_load_l2(from + 16), mgl_load_l2(from + 32)};
  mgl_attend_set_item(a, v);
}

// Leaves a later item in the place of the first, for mgl_attend_read_again; barriers come before
// and after.
static __device__ __forceinline__ void mgl_attend_note_item(const mgl_attend *a) {
  if (a->w->thread == 0) {
    const_cast<mgl_slot *>(a->slot)->first.item = a->item;
  }
}

// Before the output: what the tiles did not need registers for.
static __device__ __forceinline__ void mgl_attend_read_again(mgl_attend *a) {
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
static __device__ __forceinline__ bool mgl_attend_begin(mgl_attend *a, const mgl_worker *w) {
  a->w = w;
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

static __device__ __forceinline__ bool mgl_attend_next(mgl_attend *a) {
  a->index += a->strides;
  if (!mgl_attend_seek(a)) {
    return false;
  }
  mgl_attend_read_item(a);
  return true;
}

static __device__ __forceinline__ uint32_t mgl_attend_first(const mgl_attend *a, uint32_t step) {
  return a->item.kv_begin + step * MGL_ATTEND_STEP + a->w->warp * MGL_ATTEND_TILE;
}

// From the L2: others of its entries are written while a launch runs.
static __device__ __forceinline__ uint32_t mgl_attend_lookup(const mgl_attend *a,
                                                             uint32_t position) {
  const mgl_cuda_run *run = a->w->run;
  const int32_t *table = run->block_tables + (size_t)a->item.slot * run->block_table_stride;
  return mgl_load_l2_word(table + position / MGL_ATTEND_TILE);
}

// The page of this warp's tile `step`; asked for in order, from 0. The lanes look up 32 at a time.
static __device__ __forceinline__ uint32_t mgl_attend_page(mgl_attend *a, uint32_t step) {
  if (step % 32 == 0) {
    uint32_t position = mgl_attend_first(a, step + a->w->lane);
    a->pages = position < a->cached_end ? mgl_attend_lookup(a, position) : 0;
  }
  return __shfl_sync(0xffffffffu, a->pages, (int)(step % 32));
}

// Elements before the item's KV head in that page, of K and of V.
static __device__ __forceinline__ size_t mgl_attend_offset(const mgl_attend *a, uint32_t page) {
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

static __device__ __forceinline__ uint32_t mgl_attend_fresh_begin(const mgl_attend *a) {
  return a->item.fresh > a->item.kv_begin ? a->item.fresh : a->item.kv_begin;
}

static __device__ __forceinline__ uint32_t mgl_attend_fresh_count(const mgl_attend *a) {
  uint32_t begin = mgl_attend_fresh_begin(a);
  return a->item.kv_end > begin ? a->item.kv_end - begin : 0;
}

static __device__ __forceinline__ mgl_attend_job mgl_attend_find_job(const mgl_attend *a,
                                                                     uint32_t number) {
  const mgl_cuda_item *item = &a->item;
  mgl_attend_job job;
  if (number < a->columns) {
    job.kind = MGL_ATTEND_IS_Q;
    job.position = number;
    job.token = item->row + number / MGL_GROUP;
    job.head = a->kv_head * MGL_GROUP + number % MGL_GROUP;
    job.owned = false;
    return job;
  }
  uint32_t count = mgl_attend_fresh_count(a);
  number -= a->columns;
  job.kind = number < count ? MGL_ATTEND_IS_K : MGL_ATTEND_IS_V;
  job.position = mgl_attend_fresh_begin(a) + (number < count ? number : number - count);
  job.token = item->fresh_row + (job.position - item->fresh);
  job.head = a->kv_heads * (MGL_GROUP + (number < count ? 0 : 1)) + a->kv_head;
  job.owned = job.position >= item->position && job.position - item->position < item->count;
  return job;
}

static __device__ __forceinline__ void mgl_attend_load_norms(const mgl_attend *a,
                                                             mgl_attend_norms *norms) {
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
static __device__ __forceinline__ void mgl_attend_load_row(const mgl_attend *a,
                                                           const mgl_attend_job *job,
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

static __device__ __forceinline__ bool mgl_attend_is_open(const mgl_attend_row *row) {
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
static __device__ __forceinline__ void mgl_attend_await_row(const mgl_attend *a,
                                                            const mgl_attend_job *job,
                                                            mgl_attend_row *row) {
  if (!MGL_CARRIES || (a->slot->op.flags & MGL_CUDA_CARRIED) == 0) {
    return;
  }
  while (__any_sync(0xffffffffu, mgl_attend_is_open(row)) && a->w->block->stop == 0) {
    mgl_attend_load_row(a, job, row);
  }
}

// x / sqrt(mean(x^2) + eps) * norm where there is a norm, then (low, high) rotated by the angle.
static __device__ __forceinline__ void mgl_attend_norm_rotate(const mgl_attend *a, bool is_q,
                                                              const mgl_attend_norms *norms,
                                                              mgl_attend_row *row) {
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
static __device__ __forceinline__ uint32_t mgl_attend_v_index(uint32_t row, uint32_t position) {
  return row * MGL_ATTEND_TILE + ((position / 4 ^ row / 4 % 4) * 4 + position % 4);
}

static __device__ __forceinline__ void mgl_attend_store(const mgl_attend *a,
                                                        const mgl_attend_job *job, uint32_t row,
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

static __device__ __forceinline__ void mgl_attend_finish_row(const mgl_attend *a,
                                                             const mgl_attend_job *job,
                                                             const mgl_attend_norms *norms,
                                                             mgl_attend_row *row) {
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

static __device__ __forceinline__ uint32_t mgl_attend_jobs(const mgl_attend *a) {
  return a->columns + 2 * mgl_attend_fresh_count(a);
}

// Asks for the rows of jobs `first`, and those a round of warps later.
static __device__ __forceinline__ void mgl_attend_ask(const mgl_attend *a, uint32_t first,
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
static __device__ __forceinline__ void mgl_attend_prepare(const mgl_attend *a,
                                                          const mgl_attend_norms *norms,
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

// --- a tile's operands ---------------------------------------------------------------------------

static __device__ __forceinline__ void mgl_attend_load_k(const mgl_attend *a, uint32_t page,
                                                         mgl_attend_tile *tile) {
  uint32_t lane = mgl_attend_lane(a);
  const uint16_t *k = a->slot->op.k_cache + mgl_attend_offset(a, page) +
                      mgl_attend_position(lane / 4) * MGL_HEAD_DIM + lane % 4 * 8;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PIECES; i++) {
    tile->k[i][0] = mgl_load_l2(k + i * 32);
    tile->k[i][1] = mgl_load_l2(k + i * 32 + 2 * MGL_HEAD_DIM);
  }
}

static __device__ __forceinline__ void mgl_attend_load_v(const mgl_attend *a, uint32_t page,
                                                         mgl_attend_tile *tile) {
  uint32_t lane = mgl_attend_lane(a);
  const uint16_t *v =
      a->slot->op.v_cache + mgl_attend_offset(a, page) + lane / 4 * MGL_ATTEND_TILE + lane % 4 * 4;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
    tile->v[i][0] = mgl_load_l2_pair(v + i * 16 * MGL_ATTEND_TILE);
    tile->v[i][1] = mgl_load_l2_pair(v + (i * 16 + 8) * MGL_ATTEND_TILE);
  }
}

// Brings a tile of K or V into the L2.
static __device__ __forceinline__ void mgl_attend_prefetch(const mgl_attend *a,
                                                           const uint16_t *cache, uint32_t page) {
  cache += mgl_attend_offset(a, page);
  for (uint32_t at = mgl_attend_lane(a) * 64; at < MGL_ATTEND_TILE * MGL_HEAD_DIM; at += 32 * 64) {
    mgl_prefetch_l2(cache + at);
  }
}

// Of the positions `first` (low half) and the next one: a mask of those before `end`.
static __device__ __forceinline__ uint32_t mgl_attend_before(uint32_t first, uint32_t end) {
  return (first < end ? 0xffffu : 0) | (first + 1 < end ? 0xffff0000u : 0);
}

// Replaces rows of K that are not in the cache by what mgl_attend_prepare made, for the tile that
// begins at `first`.
static __device__ __forceinline__ void mgl_attend_patch_k(const mgl_attend *a, uint32_t first,
                                                          mgl_attend_tile *tile) {
  uint32_t lane = mgl_attend_lane(a);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t position = first + mgl_attend_position(lane / 4) + 2 * h;
    const uint16_t *k = (const uint16_t *)a->w->scratch +
                        position % MGL_CUDA_MAX_TOKENS * MGL_HEAD_DIM + lane % 4 * 8;
    if (position >= a->cached_end) {
#pragma unroll
      for (uint32_t i = 0; i < MGL_ATTEND_PIECES; i++) {
        tile->k[i][h] = *(const uint4 *)(k + i * 32);
      }
    }
  }
}

// The same for V. Positions that nobody sees become 0, as 0 times what may lie there need not be.
static __device__ __forceinline__ void mgl_attend_patch_v(const mgl_attend *a, uint32_t first,
                                                          mgl_attend_tile *tile) {
  uint32_t group = mgl_attend_lane(a) / 4;
  uint32_t t = mgl_attend_lane(a) % 4;
  uint32_t position = first + 4 * t;
  uint32_t old[2] = {mgl_attend_before(position, a->cached_end),
                     mgl_attend_before(position + 2, a->cached_end)};
  uint32_t fresh[2] = {mgl_attend_before(position, a->item.kv_end) & ~old[0],
                       mgl_attend_before(position + 2, a->item.kv_end) & ~old[1]};
  const uint16_t *v = (const uint16_t *)(a->w->scratch + MGL_ATTEND_V);
  v += first % MGL_CUDA_MAX_TOKENS * MGL_HEAD_DIM;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    const uint16_t *from_h = v + mgl_attend_v_index(h * 8 + group, 4 * t);
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
      uint2 from = *(const uint2 *)(from_h + i * 16 * MGL_ATTEND_TILE);
      tile->v[i][h].x = (tile->v[i][h].x & old[0]) | (from.x & fresh[0]);
      tile->v[i][h].y = (tile->v[i][h].y & old[1]) | (from.y & fresh[1]);
    }
  }
}

// --- products and softmax ------------------------------------------------------------------------

// K Q^T of a tile. Two chains of products halve the latency of one; Q stays in scratch, which saves
// registers.
static __device__ __forceinline__ void mgl_attend_scores(const mgl_attend *a,
                                                         const mgl_attend_tile *tile,
                                                         float scores[4]) {
  uint32_t lane = mgl_attend_lane(a);
  const uint16_t *from = (const uint16_t *)(a->w->scratch + MGL_ATTEND_Q);
  from += lane / 4 * MGL_HEAD_DIM + lane % 4 * 8;
  float even[4] = {0, 0, 0, 0};
  float odd[4] = {0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PIECES; i++) {
    const uint4 *k = tile->k[i];
    uint4 q = *(const uint4 *)(from + i * 32);
    uint32_t low[4] = {k[0].x, k[1].x, k[0].y, k[1].y};
    uint32_t high[4] = {k[0].z, k[1].z, k[0].w, k[1].w};
    mgl_mma(even, low, q.x, q.y);
    mgl_mma(odd, high, q.z, q.w);
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    scores[i] = even[i] + odd[i];
  }
}

// One step of the online softmax (FlashAttention, algorithm 1): the scores of the tile at `first`
// become weights, as two words of B for the product with V. Weights are summed as rounded, so that
// those that multiply V add up to 1.
static __device__ __forceinline__ void mgl_attend_softmax(const mgl_attend *a, uint32_t first,
                                                          const float scores[4],
                                                          mgl_attend_state *state,
                                                          uint32_t weights[2]) {
  uint32_t position = first + mgl_attend_position(mgl_attend_lane(a) / 4);
  float factor = a->slot->op.scale * 1.44269504f;  // log2 e
  float low[2], high[2], decay[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t last = a->item.position + (mgl_attend_lane(a) % 4 * 2 + i) / MGL_GROUP;
    low[i] = position <= last ? scores[i] * factor : mgl_attend_unseen();
    high[i] = position + 2 <= last ? scores[2 + i] * factor : mgl_attend_unseen();
    float max = fmaxf(low[i], high[i]);
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
    }
    max = fmaxf(max, state->max[i]);
    float base = mgl_attend_base(max);
    decay[i] = exp2f(state->max[i] - base);
    low[i] = exp2f(low[i] - base);
    high[i] = exp2f(high[i] - base);
    state->max[i] = max;
  }
  weights[0] = mgl_pack_bf16(low[0], low[1]);
  weights[1] = mgl_pack_bf16(high[0], high[1]);
  float first_sum = mgl_widen_bf16(weights[0] & 0xffffu) + mgl_widen_bf16(weights[1] & 0xffffu);
  float second_sum = mgl_widen_bf16(weights[0] >> 16) + mgl_widen_bf16(weights[1] >> 16);
  state->sum[0] = state->sum[0] * decay[0] + first_sum;
  state->sum[1] = state->sum[1] * decay[1] + second_sum;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
    state->values[i][0] *= decay[0];
    state->values[i][1] *= decay[1];
    state->values[i][2] *= decay[0];
    state->values[i][3] *= decay[1];
  }
  weights[0] = mgl_transpose8(weights[0]);
  weights[1] = mgl_transpose8(weights[1]);
}

static __device__ __forceinline__ void mgl_attend_values(const mgl_attend_tile *tile,
                                                         const uint32_t weights[2],
                                                         mgl_attend_state *state) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
    const uint2 *v = tile->v[i];
    uint32_t rows[4] = {v[0].x, v[1].x, v[0].y, v[1].y};
    mgl_mma(state->values[i], rows, weights[0], weights[1]);
  }
}

// The tiles of one warp: pages of the tile that is loaded next and of the one after it.
typedef struct mgl_attend_cursor {
  uint32_t page, ahead;
} mgl_attend_cursor;

// Asks for the warp's first tile: K into registers, V and the next tile into the L2. V in registers
// too would take those that mgl_attend_prepare needs, and there is time for it during the scores.
static __device__ __forceinline__ void mgl_attend_start(mgl_attend *a, bool first,
                                                        mgl_attend_tile *tile,
                                                        mgl_attend_cursor *cursor) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PIECES; i++) {
    tile->k[i][0] = tile->k[i][1] = {};
  }
  if (first) {  // whose pages the controller has looked up
    a->own_first = a->slot->first.own_first;
    a->own_last = a->slot->first.own_last;
    cursor->page = a->slot->first.pages[a->w->warp];
  } else {
    a->own_first = mgl_attend_lookup(a, a->item.position);
    a->own_last = mgl_attend_lookup(a, a->item.position + a->item.count - 1);
    cursor->page = mgl_attend_page(a, 0);
  }
  if (mgl_attend_first(a, 0) < a->cached_end) {
    mgl_attend_load_k(a, cursor->page, tile);
    mgl_attend_prefetch(a, a->slot->op.v_cache, cursor->page);
  }
  cursor->ahead = 0;
  if (a->item.kv_begin + MGL_ATTEND_STEP < a->cached_end) {  // some warp has another tile
    (void)mgl_attend_page(a, 0);
    cursor->ahead = mgl_attend_page(a, 1);
    if (mgl_attend_first(a, 1) < a->cached_end) {
      mgl_attend_prefetch(a, a->slot->op.k_cache, cursor->ahead);
      mgl_attend_prefetch(a, a->slot->op.v_cache, cursor->ahead);
    }
  }
}

// V of that tile, when registers are free.
static __device__ __forceinline__ void mgl_attend_start_v(const mgl_attend *a, uint32_t page,
                                                          mgl_attend_tile *tile) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
    tile->v[i][0] = tile->v[i][1] = {};
  }
  if (mgl_attend_first(a, 0) < a->cached_end) {
    mgl_attend_load_v(a, page, tile);
  }
}

// Makes the tile at `first` part of the state, and asks for this warp's next one, of which
// `cursor` has the page: for K as soon as the scores are made, for V when the values are added up.
// So the registers of one tile hold halves of two.
static __device__ __forceinline__ void mgl_attend_tile_step(const mgl_attend *a, uint32_t first,
                                                            const mgl_attend_cursor *cursor,
                                                            mgl_attend_tile *tile,
                                                            mgl_attend_state *state) {
  bool whole = first + MGL_ATTEND_TILE <= a->cached_end;
  bool next = first + MGL_ATTEND_STEP < a->cached_end;
  if (!whole) {
    mgl_attend_patch_k(a, first, tile);
  }
  float scores[4];
  mgl_attend_scores(a, tile, scores);
  if (next) {
    mgl_attend_load_k(a, cursor->page, tile);
  }
  uint32_t weights[2];
  mgl_attend_softmax(a, first, scores, state, weights);
  if (!whole) {
    mgl_attend_patch_v(a, first, tile);
  }
  mgl_attend_values(tile, weights, state);
  if (next) {
    mgl_attend_load_v(a, cursor->page, tile);
  }
  if (first + 2 * MGL_ATTEND_STEP < a->cached_end) {
    mgl_attend_prefetch(a, a->slot->op.k_cache, cursor->ahead);
    mgl_attend_prefetch(a, a->slot->op.v_cache, cursor->ahead);
  }
}

static __device__ __forceinline__ void mgl_attend_tiles(mgl_attend *a, mgl_attend_tile *tile,
                                                        mgl_attend_cursor *cursor,
                                                        mgl_attend_state *state) {
  *state = {};
  state->max[0] = state->max[1] = mgl_attend_unseen();
#pragma unroll 1
  for (uint32_t step = 0; mgl_attend_first(a, step) < a->item.kv_end; step++) {
    cursor->page = cursor->ahead;
    cursor->ahead = mgl_attend_page(a, step + 2);
    mgl_attend_tile_step(a, mgl_attend_first(a, step), cursor, tile, state);
  }
}

// --- merging -------------------------------------------------------------------------------------

// Where a warp's sum of values of a column and head dim element lies, in floats: pairs of columns
// together, and permuted so that lanes of different columns meet in no bank; row 16 as row 0.
static __device__ __forceinline__ uint32_t mgl_attend_value_index(uint32_t warp, uint32_t column,
                                                                  uint32_t row) {
  uint32_t pair = column / 2;
  return ((warp * (MGL_CUDA_QUERY_COLUMNS / 2) + pair) * MGL_HEAD_DIM + (row ^ pair * 4)) * 2 +
         column % 2;
}

// What this warp has, into scratch.
static __device__ __forceinline__ void mgl_attend_publish(const mgl_attend *a,
                                                          mgl_attend_state *state) {
  uint32_t group = a->w->lane / 4;
  uint32_t column = a->w->lane % 4 * 2;
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
    state->sum[0] += __shfl_xor_sync(0xffffffffu, state->sum[0], offset);
    state->sum[1] += __shfl_xor_sync(0xffffffffu, state->sum[1], offset);
  }
  if (column >= a->columns) {
    return;
  }
  float *values = (float *)a->w->scratch;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t at = mgl_attend_value_index(a->w->warp, column, h * 8 + group);
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
      *(float2 *)(values + at + i * 32) =
          make_float2(state->values[i][2 * h], state->values[i][2 * h + 1]);
    }
  }
  if (group < 2) {
    float2 *softmax = (float2 *)(a->w->scratch + MGL_ATTEND_SOFTMAX);
    softmax[a->w->warp * MGL_CUDA_QUERY_COLUMNS + column + group] =
        group == 0 ? make_float2(state->max[0], state->sum[0])
                   : make_float2(state->max[1], state->sum[1]);
  }
}

// The parts of a whole, added up in ascending order (FlashDecoding): weights become relative to the
// largest maximum. A part in which nothing is seen has -infinity, 0, 0 and adds exactly nothing.
template <int most>
static __device__ __forceinline__ mgl_attend_part
mgl_attend_merge(const mgl_attend_part (&parts)[most], uint32_t count) {
  mgl_attend_part whole = {0, mgl_attend_unseen(), 0};
#pragma unroll
  for (uint32_t i = 0; i < most; i++) {
    if (i >= count) {
      break;
    }
    whole.max = fmaxf(whole.max, parts[i].max);
  }
  float base = mgl_attend_base(whole.max);
#pragma unroll
  for (uint32_t i = 0; i < most; i++) {
    if (i >= count) {
      break;
    }
    float factor = exp2f(parts[i].max - base);
    whole.value += parts[i].value * factor;
    whole.sum += parts[i].sum * factor;
  }
  return whole;
}

static __device__ __forceinline__ mgl_attend_part mgl_attend_merge_warps(const mgl_attend *a,
                                                                         uint32_t column,
                                                                         uint32_t row) {
  const float *values = (const float *)a->w->scratch;
  const float2 *softmax = (const float2 *)(a->w->scratch + MGL_ATTEND_SOFTMAX);
  mgl_attend_part parts[MGL_CUDA_CONSUMER_WARPS];
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    float2 max_sum = softmax[i * MGL_CUDA_QUERY_COLUMNS + column];
    parts[i] = {values[mgl_attend_value_index(i, column, row)], max_sum.x, max_sum.y};
  }
  return mgl_attend_merge(parts, MGL_CUDA_CONSUMER_WARPS);
}

// A column's partial result of one chunk (mgl_cuda_run.partials).
static __device__ __forceinline__ uint64_t *mgl_attend_partial(const mgl_attend *a, uint32_t chunk,
                                                               uint32_t column) {
  size_t index = (size_t)(a->item.partial + chunk) * a->kv_heads + a->kv_head;
  return a->partials + (index * MGL_CUDA_QUERY_COLUMNS + column) * MGL_ATTEND_PARTIAL;
}

// Whether partial results are asked for until they are there.
static __device__ __forceinline__ bool mgl_attend_is_polled(const mgl_attend *a) {
  return MGL_CARRIES && (a->slot->op.flags & MGL_CUDA_UNITS_APART) != 0;
}

static __device__ __forceinline__ void mgl_attend_leave(const mgl_attend *a, uint32_t column,
                                                        uint32_t row, const mgl_attend_part *part) {
  uint64_t *partial = mgl_attend_partial(a, a->item.chunk, column);
  const uint32_t tag = a->tag;
  uint64_t value = (uint64_t)tag << 32 | __float_as_uint(part->value);
  uint4 softmax = make_uint4(__float_as_uint(part->max), __float_as_uint(part->sum), tag, 0);
  if (mgl_attend_is_polled(a)) {
    mgl_store_l2_long(partial + row, value);
  } else {
    partial[row] = value;
  }
  if (row == 0) {
    mgl_store_l2_whole(partial + MGL_HEAD_DIM, softmax);
  }
}

// The chunks' parts of an element, added up as in mgl_attend_merge. All lanes of a warp, which have
// one column: lane i asks for chunk i's maximum and sum of weights, and all for their values. In a
// carrying graph, until all of them are there or the run stops.
static __device__ __forceinline__ mgl_attend_part mgl_attend_merge_chunks(const mgl_attend *a,
                                                                          uint32_t column,
                                                                          uint32_t row) {
  static_assert(MGL_CUDA_MAX_CHUNKS <= 32, "a lane for each");
  const uint64_t *partial = mgl_attend_partial(a, 0, column);
  const size_t stride = (size_t)a->kv_heads * (MGL_CUDA_QUERY_COLUMNS * MGL_ATTEND_PARTIAL);
  const uint32_t lane = a->w->lane;
  uint64_t values[MGL_CUDA_MAX_CHUNKS];
  mgl_attend_part part = {0, mgl_attend_unseen(), 0};  // of chunk `lane`, without its value
  bool there;
  do {
    there = true;
    if (lane < a->item.chunks) {
      uint4 softmax = mgl_load_l2_whole(partial + lane * stride + MGL_HEAD_DIM);
      part.max = __uint_as_float(softmax.x);
      part.sum = __uint_as_float(softmax.y);
      there = softmax.z == a->tag;
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_CUDA_MAX_CHUNKS; i++) {
      values[i] = 0;
      if (i < a->item.chunks) {
        values[i] = mgl_load_l2_long(partial + i * stride + row);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_CUDA_MAX_CHUNKS; i++) {
      there = there && (i >= a->item.chunks || (uint32_t)(values[i] >> 32) == a->tag);
    }
  } while (MGL_CARRIES && !__all_sync(0xffffffffu, there || a->w->block->stop != 0));
  mgl_attend_part whole = {0, part.max, 0};
#pragma unroll
  for (int offset = 1; offset < MGL_CUDA_MAX_CHUNKS; offset *= 2) {
    whole.max = fmaxf(whole.max, __shfl_xor_sync(0xffffffffu, whole.max, offset));
  }
  whole.max = __shfl_sync(0xffffffffu, whole.max, 0);
  float factor = exp2f(part.max - mgl_attend_base(whole.max));
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_MAX_CHUNKS; i++) {
    if (i >= a->item.chunks) {
      break;
    }
    float chunk_factor = __shfl_sync(0xffffffffu, factor, (int)i);
    whole.value += __uint_as_float((uint32_t)values[i]) * chunk_factor;
    whole.sum += __shfl_sync(0xffffffffu, part.sum, (int)i) * chunk_factor;
  }
  return whole;
}

// All lanes of a warp, for consecutive rows; two of them are a word.
static __device__ __forceinline__ void mgl_attend_write(const mgl_attend *a, uint32_t column,
                                                        uint32_t row, const mgl_attend_part *part) {
  uint32_t token = a->item.row + column / MGL_GROUP;
  uint32_t head = a->kv_head * MGL_GROUP + column % MGL_GROUP;
  size_t at = ((size_t)token * a->kv_heads * MGL_GROUP + head) * MGL_HEAD_DIM + row;
  uint32_t bits = mgl_round_bf16(part->value / part->sum);
  uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
  if (row % 2 == 0 && !mgl_task_is_mute(a->w)) {
    mgl_write_word((uint8_t *)a->slot->op.out + at * sizeof(uint16_t), bits | next << 16, a->slot,
                   mgl_has_copies(&a->slot->op));
  }
}

// Rows that the graph has and this iteration has not: their words of the other copy become open. A
// KV head's heads are opened by the task of its first stride.
static __device__ __forceinline__ void mgl_attend_open_rest(const mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  const uint32_t strides = w->run->graphs[slot->graph].attention_strides;
  const uint32_t words = MGL_GROUP * MGL_HEAD_DIM / 2;  // of a KV head in a row
  if (!mgl_has_copies(&slot->op) || slot->op.tokens == 1) {
    return;
  }
  uint32_t row_words = w->run->kv_heads * words;
  for (uint32_t row = mgl_load_l2_word(&slot->plan->token_count); row < slot->op.tokens; row++) {
    for (uint32_t unit = (slot->begin + strides - 1) / strides; unit * strides < slot->end;
         unit++) {
      uint32_t *out = (uint32_t *)slot->op.out + (size_t)row * row_words + unit * words;
      for (uint32_t i = w->thread; i < words; i += MGL_CUDA_CONSUMERS) {
        mgl_open_word((uint8_t *)(out + i), slot);
      }
    }
  }
}

// Counts this chunk as done. True for the task that ends last: it has seen all the others' partial
// results. Ends in a state where scratch still holds the answer.
static __device__ __forceinline__ bool mgl_attend_is_last(const mgl_attend *a) {
  volatile uint32_t *answer = (volatile uint32_t *)a->w->scratch;
  mgl_sync_consumers();  // all wrote their part of the partial result, and read scratch
  if (a->w->thread == 0) {
    uint32_t *counter = a->merges + (size_t)a->item.merge * a->kv_heads + a->kv_head;
    // The last one leaves the counter at 0, for the next layer.
    *answer = mgl_count_acq_rel(counter, a->item.chunks - 1) + 1 == a->item.chunks ? 1 : 0;
  }
  mgl_sync_consumers();
  return *answer != 0;
}

// Whether this task merges the chunks of its item: that of the last chunk where it may wait for the
// others, else whoever ends last.
static __device__ __forceinline__ bool mgl_attend_merges(const mgl_attend *a) {
  return mgl_attend_is_polled(a) ? a->item.chunk + 1 == a->item.chunks : mgl_attend_is_last(a);
}

// From the warps' sums in scratch to the output, or to the partial result of the chunk and, by one
// of the tasks, from all chunks' to the output. A warp's threads have one column.
static __device__ __forceinline__ void mgl_attend_output(const mgl_attend *a) {
  uint32_t elements = a->columns * MGL_HEAD_DIM;
  bool whole = a->item.chunks == 1;
#pragma unroll 1
  for (uint32_t i = a->w->thread; i < elements; i += MGL_CUDA_CONSUMERS) {
    uint32_t column = i / MGL_HEAD_DIM;
    uint32_t row = i % MGL_HEAD_DIM;
    mgl_attend_part part = mgl_attend_merge_warps(a, column, row);
    if (whole) {
      mgl_attend_write(a, column, row, &part);
    } else {
      mgl_attend_leave(a, column, row, &part);
    }
  }
  if (whole || !mgl_attend_merges(a)) {
    return;
  }
#pragma unroll 1
  for (uint32_t i = a->w->thread; i < elements; i += MGL_CUDA_CONSUMERS) {
    mgl_attend_part part = mgl_attend_merge_chunks(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM);
    mgl_attend_write(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM, &part);
  }
}

// --- the task ------------------------------------------------------------------------------------

// Units [begin, end): unit = KV head * strides + stride, which is every strides-th item of the plan
// from `stride` on, for that KV head.
static __device__ __forceinline__ void mgl_task_attend(mgl_worker *w) {
  mgl_attend a;
  mgl_attend_tile tile;
  mgl_attend_cursor cursor;
  mgl_attend_norms norms;
  mgl_attend_row rows[MGL_ATTEND_BATCH] = {};
  if (!mgl_attend_begin(&a, w)) {
    if (mgl_task_begin(w)) {
      mgl_attend_open_rest(w);
    }
    return;
  }
  const bool carried = (a.slot->op.flags & MGL_CUDA_CARRIED) != 0;
  if (carried) {  // before the keys and values, which take longer to come
    mgl_attend_ask(&a, w->warp, rows);
  }
  mgl_attend_start(&a, true, &tile, &cursor);
  mgl_attend_load_norms(&a, &norms);
  if (!mgl_task_wait(w)) {
    return;
  }
  if (!carried) {
    mgl_attend_ask(&a, w->warp, rows);
  }
  for (bool began = false;; began = true) {
    mgl_attend_start_v(&a, cursor.page, &tile);
    mgl_attend_prepare(&a, &norms, rows);
    if (!began) {
      mgl_task_began(w);
    }
    mgl_sync_consumers();  // scratch has the rows of this iteration
    mgl_attend_state state;
    mgl_attend_tiles(&a, &tile, &cursor, &state);
    mgl_attend_read_again(&a);
    mgl_sync_consumers();  // nobody reads the rows any more
    mgl_attend_publish(&a, &state);
    mgl_sync_consumers();  // scratch has what the warps made
    mgl_attend_output(&a);
    if (!mgl_attend_next(&a)) {
      mgl_attend_open_rest(w);
      return;
    }
    mgl_attend_note_item(&a);
    mgl_attend_ask(&a, w->warp, rows);
    mgl_attend_start(&a, false, &tile, &cursor);
    mgl_attend_load_norms(&a, &norms);
    mgl_sync_consumers();  // scratch is free
  }
}

#endif
