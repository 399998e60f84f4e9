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
#ifndef MGL_KERNELS_CUDA_ATTEND_TASKS_ATTEND_CUH
#define MGL_KERNELS_CUDA_ATTEND_TASKS_ATTEND_CUH

#include "kernels/cuda/attend/attend_rows.cuh"

// --- instructions --------------------------------------------------------------------------------

MGL_DEVICE void mgl_prefetch_l2(const void *address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// An 8 x 8 matrix of 16-bit elements, transposed: lane 4 g + t gives elements 2t and 2t + 1 of row
// g and gets those of column g.
MGL_DEVICE uint32_t mgl_transpose8(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

// --- a tile's operands ---------------------------------------------------------------------------

MGL_DEVICE void mgl_attend_load_k(const mgl_attend *a, uint32_t page, mgl_attend_tile *tile) {
  uint32_t lane = mgl_attend_lane(a);
  const uint16_t *k = a->slot->op.k_cache + mgl_attend_offset(a, page) +
                      mgl_attend_position(lane / 4) * MGL_HEAD_DIM + lane % 4 * 8;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PIECES; i++) {
    tile->k[i][0] = mgl_load_l2(k + i * 32);
    tile->k[i][1] = mgl_load_l2(k + i * 32 + 2 * MGL_HEAD_DIM);
  }
}

MGL_DEVICE void mgl_attend_load_v(const mgl_attend *a, uint32_t page, mgl_attend_tile *tile) {
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
MGL_DEVICE void mgl_attend_prefetch(const mgl_attend *a, const uint16_t *cache, uint32_t page) {
  cache += mgl_attend_offset(a, page);
  for (uint32_t at = mgl_attend_lane(a) * 64; at < MGL_ATTEND_TILE * MGL_HEAD_DIM; at += 32 * 64) {
    mgl_prefetch_l2(cache + at);
  }
}

// Returns a mask of those of the positions `first` (low half) and `first` + 1 that are before
// `end`.
MGL_DEVICE uint32_t mgl_attend_before(uint32_t first, uint32_t end) {
  return (first < end ? 0xffffu : 0) | (first + 1 < end ? 0xffff0000u : 0);
}

// Replaces rows of K that are not in the cache by what mgl_attend_prepare made, for the tile that
// begins at `first`.
MGL_DEVICE void mgl_attend_patch_k(const mgl_attend *a, uint32_t first, mgl_attend_tile *tile) {
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

// Patches V, where positions that nobody sees become 0, since 0 times what may lie there need not
// be.
MGL_DEVICE void mgl_attend_patch_v(const mgl_attend *a, uint32_t first, mgl_attend_tile *tile) {
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

// K Q^T of a tile. Two chains of products halve the latency of one; Q, bf16 [columns][HD], stays in
// scratch, which saves registers.
MGL_DEVICE void mgl_attend_scores(const mgl_attend *a, const uint16_t *queries,
                                  const mgl_attend_tile *tile, float scores[4]) {
  uint32_t lane = mgl_attend_lane(a);
  const uint16_t *from = queries + lane / 4 * MGL_HEAD_DIM + lane % 4 * 8;
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
// FIRST: of a state in which nothing is yet.
template <bool FIRST = false>
MGL_DEVICE void mgl_attend_softmax(const mgl_attend *a, uint32_t first, const float scores[4],
                                   mgl_attend_state *state, uint32_t weights[2]) {
  uint32_t position = first + mgl_attend_position(mgl_attend_lane(a) / 4);
  float factor = a->slot->op.scale * 1.44269504f;  // log2 e
  float low[2], high[2], decay[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t last = a->item.position + (mgl_attend_lane(a) % 4 * 2 + i) / MGL_GROUP;
    low[i] = position <= last ? scores[i] * factor : mgl_attend_unseen();
    high[i] = position + 2 <= last ? scores[2 + i] * factor : mgl_attend_unseen();
    if (MGL_HAS_WINDOWS) {
      const uint32_t from = mgl_window_first(&a->slot->op, last);
      low[i] = position >= from ? low[i] : mgl_attend_unseen();
      high[i] = position + 2 >= from ? high[i] : mgl_attend_unseen();
    }
    float max = fmaxf(low[i], high[i]);
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
    }
    max = FIRST ? max : fmaxf(max, state->max[i]);
    float base = mgl_attend_base(max);
    decay[i] = FIRST ? 0 : exp2f(state->max[i] - base);
    low[i] = exp2f(low[i] - base);
    high[i] = exp2f(high[i] - base);
    state->max[i] = max;
  }
  weights[0] = mgl_pack_bf16(low[0], low[1]);
  weights[1] = mgl_pack_bf16(high[0], high[1]);
  float first_sum = mgl_widen_bf16(weights[0] & 0xffffu) + mgl_widen_bf16(weights[1] & 0xffffu);
  float second_sum = mgl_widen_bf16(weights[0] >> 16) + mgl_widen_bf16(weights[1] >> 16);
  state->sum[0] = FIRST ? first_sum : state->sum[0] * decay[0] + first_sum;
  state->sum[1] = FIRST ? second_sum : state->sum[1] * decay[1] + second_sum;
#pragma unroll
  for (uint32_t i = 0; !FIRST && i < MGL_ATTEND_ROWS; i++) {
    state->values[i][0] *= decay[0];
    state->values[i][1] *= decay[1];
    state->values[i][2] *= decay[0];
    state->values[i][3] *= decay[1];
  }
  weights[0] = mgl_transpose8(weights[0]);
  weights[1] = mgl_transpose8(weights[1]);
}

MGL_DEVICE void mgl_attend_values(const mgl_attend_tile *tile, const uint32_t weights[2],
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
MGL_DEVICE void mgl_attend_start(mgl_attend *a, bool first, mgl_attend_tile *tile,
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
MGL_DEVICE void mgl_attend_start_v(const mgl_attend *a, uint32_t page, mgl_attend_tile *tile) {
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
// So the registers of one tile hold halves of two. PATCHES_EARLY: V while scores are made, where
// registers suffice for both (docs/log/235).
template <bool PATCHES_EARLY>
MGL_DEVICE void mgl_attend_tile_step(const mgl_attend *a, uint32_t first,
                                     const mgl_attend_cursor *cursor, mgl_attend_tile *tile,
                                     mgl_attend_state *state) {
  bool whole = first + MGL_ATTEND_TILE <= a->cached_end;
  bool next = first + MGL_ATTEND_STEP < a->cached_end;
  if (!whole) {
    mgl_attend_patch_k(a, first, tile);
  }
  float scores[4];
  mgl_attend_scores(a, (const uint16_t *)(a->w->scratch + MGL_ATTEND_Q), tile, scores);
  if (next) {
    mgl_attend_load_k(a, cursor->page, tile);
  }
  if (!whole && PATCHES_EARLY) {
    mgl_attend_patch_v(a, first, tile);
  }
  uint32_t weights[2];
  mgl_attend_softmax(a, first, scores, state, weights);
  if (!whole && !PATCHES_EARLY) {
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

template <bool PATCHES_EARLY>
MGL_DEVICE void mgl_attend_tiles(mgl_attend *a, mgl_attend_tile *tile, mgl_attend_cursor *cursor,
                                 mgl_attend_state *state) {
  *state = {};
  state->max[0] = state->max[1] = mgl_attend_unseen();
#pragma unroll 1
  for (uint32_t step = 0; mgl_attend_first(a, step) < a->item.kv_end; step++) {
    cursor->page = cursor->ahead;
    cursor->ahead = mgl_attend_page(a, step + 2);
    mgl_attend_tile_step<PATCHES_EARLY>(a, mgl_attend_first(a, step), cursor, tile, state);
  }
}

// --- merging -------------------------------------------------------------------------------------

// Returns where a warp's sum of values of a column and head dim element lies, in floats: pairs of
// columns lie together, permuted so that lanes of different columns meet in no bank; row 16 is as
// row 0.
MGL_DEVICE uint32_t mgl_attend_value_index(uint32_t warp, uint32_t column, uint32_t row) {
  uint32_t pair = column / 2;
  return ((warp * (MGL_CUDA_QUERY_COLUMNS / 2) + pair) * MGL_HEAD_DIM + (row ^ pair * 4)) * 2 +
         column % 2;
}

// Puts what this warp has into scratch.
MGL_DEVICE void mgl_attend_publish(const mgl_attend *a, mgl_attend_state *state) {
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
MGL_DEVICE mgl_attend_part mgl_attend_merge(const mgl_attend_part (&parts)[most], uint32_t count) {
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

MGL_DEVICE mgl_attend_part mgl_attend_merge_warps(const mgl_attend *a, uint32_t column,
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
MGL_DEVICE uint64_t *mgl_attend_partial(const mgl_attend *a, uint32_t chunk, uint32_t column) {
  size_t index = (size_t)(a->item.partial + chunk) * a->kv_heads + a->kv_head;
  return a->partials + (index * MGL_CUDA_QUERY_COLUMNS + column) * MGL_ATTEND_PARTIAL;
}

// Whether partial results are asked for until they are there.
MGL_DEVICE bool mgl_attend_is_polled(const mgl_attend *a) {
  return a->known || (MGL_CARRIES && (a->slot->op.flags & MGL_CUDA_UNITS_APART) != 0);
}

MGL_DEVICE void mgl_attend_leave(const mgl_attend *a, uint32_t column, uint32_t row,
                                 const mgl_attend_part *part) {
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
MGL_DEVICE mgl_attend_part mgl_attend_merge_chunks(const mgl_attend *a, uint32_t column,
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

// The query head of a column.
MGL_DEVICE uint32_t mgl_attend_head(const mgl_attend *a, uint32_t column) {
  return a->kv_head * MGL_GROUP + mgl_attend_first_head(a) + column % MGL_GROUP;
}

// The sink of a column's head, times log2 e; minus infinity: it has none.
MGL_DEVICE float mgl_attend_sink(const mgl_attend *a, uint32_t column) {
  const float *sinks = MGL_HAS_SINKS ? mgl_op_sinks(&a->slot->op) : nullptr;
  return sinks == nullptr ? mgl_attend_unseen()
                          : __ldg(sinks + mgl_attend_head(a, column)) * 1.44269504f;
}

// All lanes of a warp, for consecutive rows; two of them are a word. sink: of the column. (Of one
// far above all scores the sum is infinite, and the result 0.)
MGL_DEVICE void mgl_attend_write(const mgl_attend *a, uint32_t column, uint32_t row,
                                 const mgl_attend_part *part, float sink) {
  uint32_t token = a->item.row + column / MGL_GROUP;
  uint32_t head = mgl_attend_head(a, column);
  float sum = MGL_HAS_SINKS ? part->sum + exp2f(sink - part->max) : part->sum;
  size_t at = ((size_t)token * a->kv_heads * MGL_GROUP + head) * MGL_HEAD_DIM + row;
  uint32_t bits = mgl_round_bf16(part->value / sum);
  uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
  if (row % 2 == 0 && !mgl_task_is_mute(a->w)) {
    mgl_write_word((uint8_t *)a->slot->op.out + at * sizeof(uint16_t), bits | next << 16, a->slot,
                   a->known || mgl_has_copies(&a->slot->op));
  }
}

// Rows that the graph has and this iteration has not: their words of the other copy become open. A
// KV head's heads are opened by the task of its first stride.
MGL_DEVICE void mgl_attend_open_rest(const mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  if (!mgl_has_copies(&slot->op) || slot->op.tokens == 1) {
    return;
  }
  const uint32_t strides = w->run->graphs[slot->graph].attention_strides;
  const uint32_t words = MGL_GROUP * MGL_HEAD_DIM / 2;  // of a KV head in a row
  uint32_t row_words = w->run->kv_heads * words;
#pragma unroll 1
  for (uint32_t row = mgl_load_l2_word(&slot->plan->token_count); row < slot->op.tokens; row++) {
#pragma unroll 1
    for (uint32_t unit = (slot->begin + strides - 1) / strides; unit * strides < slot->end;
         unit++) {
      uint32_t *out = (uint32_t *)slot->op.out + (size_t)row * row_words + unit * words;
#pragma unroll 1
      for (uint32_t i = w->thread; i < words; i += MGL_CUDA_CONSUMERS) {
        mgl_open_word((uint8_t *)(out + i), slot);
      }
    }
  }
}

// Counts this chunk as done. True for the task that ends last: it has seen all the others' partial
// results. Ends in a state where scratch still holds the answer.
MGL_DEVICE bool mgl_attend_is_last(const mgl_attend *a) {
  volatile uint32_t *answer = (volatile uint32_t *)a->w->scratch;
  mgl_sync_consumers();  // all wrote their part of the partial result, and read scratch
  if (a->w->thread == 0) {
    uint32_t *counter = a->merges + (size_t)a->item.partial * a->kv_heads + a->kv_head;
    // The last one leaves the counter at 0, for the next layer.
    *answer = mgl_count_up_acq_rel(counter, a->item.chunks - 1) + 1 == a->item.chunks ? 1 : 0;
  }
  mgl_sync_consumers();
  return *answer != 0;
}

// Whether this task merges the chunks of its item: that of the last chunk where it may wait for the
// others, else whoever ends last.
MGL_DEVICE bool mgl_attend_merges(const mgl_attend *a) {
  return mgl_attend_is_polled(a) ? a->item.chunk + 1 == a->item.chunks : mgl_attend_is_last(a);
}

// From the warps' sums in scratch to the output, or to the partial result of the chunk and, by one
// of the tasks, from all chunks' to the output. A warp's threads have one column.
MGL_DEVICE void mgl_attend_output(const mgl_attend *a) {
  uint32_t elements = a->columns * MGL_HEAD_DIM;
  bool whole = a->item.chunks == 1;
#pragma unroll 1
  for (uint32_t i = a->w->thread; i < elements; i += MGL_CUDA_CONSUMERS) {
    uint32_t column = i / MGL_HEAD_DIM;
    uint32_t row = i % MGL_HEAD_DIM;
    float sink = whole ? mgl_attend_sink(a, column) : 0;
    mgl_attend_part part = mgl_attend_merge_warps(a, column, row);
    if (whole) {
      mgl_attend_write(a, column, row, &part, sink);
    } else {
      mgl_attend_leave(a, column, row, &part);
    }
  }
  if (whole || !mgl_attend_merges(a)) {
    return;
  }
#pragma unroll 1
  for (uint32_t i = a->w->thread; i < elements; i += MGL_CUDA_CONSUMERS) {
    float sink = mgl_attend_sink(a, i / MGL_HEAD_DIM);
    mgl_attend_part part = mgl_attend_merge_chunks(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM);
    mgl_attend_write(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM, &part, sink);
  }
}

// All consumers finish an item here, once its rows are on their way into scratch.
template <bool PATCHES_EARLY = false>
MGL_DEVICE void mgl_attend_finish_item(mgl_attend *a, mgl_attend_tile *tile,
                                       mgl_attend_cursor *cursor) {
  mgl_sync_consumers();  // scratch has the rows of this iteration
  mgl_attend_state state;
  mgl_attend_tiles<PATCHES_EARLY>(a, tile, cursor, &state);
  mgl_attend_read_again(a);
  mgl_sync_consumers();  // nobody reads the rows any more
  mgl_attend_publish(a, &state);
  mgl_sync_consumers();  // scratch has what the warps made
  mgl_attend_output(a);
}

// --- the task ------------------------------------------------------------------------------------

// Units [begin, end): unit = KV head * strides + stride, which is every strides-th item of the plan
// from `stride` on, for that KV head.
MGL_DEVICE void mgl_task_attend(mgl_worker *w) {
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
    mgl_attend_finish_item(&a, &tile, &cursor);
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
