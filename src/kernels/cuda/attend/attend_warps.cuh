// attend of many sequences that decode: a task has several items, which its warps compute together,
// one behind the other. In the pass over K each warp has one of an item's eight tiles; what these
// weigh goes through scratch, and then each warp has 16 elements of the head dim of all tiles'
// values. So nothing is merged over warps but maxima and sums of weights, an item has one barrier,
// and while it is computed the next one's keys are on their way to registers and those behind it to
// the L2: what is waited for is the memory, not each other (docs/log/214, 216, 252).
//
// The bits are those of tasks_attend.cuh, where the tiles of an item are those of eight warps: each
// tile has a softmax of its own, and they are merged in ascending order: a tile's sums of values
// are multiplied by its factor and added as they come. That holds for chunks of eight tiles; longer
// ones have an online softmax along each warp's tiles.
//
// Items and their pages are looked up by all threads at once, before Q is there. Queries of eight
// items are normed and rotated at once, a row by a warp; those of one sequence share them. What
// other workers have to add to is asked for at the end, when all of the task's own partial results
// are left.
#ifndef MGL_KERNELS_CUDA_ATTEND_ATTEND_WARPS_CUH
#define MGL_KERNELS_CUDA_ATTEND_ATTEND_WARPS_CUH

#include "kernels/cuda/attend/tasks_attend.cuh"

enum {
  MGL_LONE_TILES = MGL_CUDA_MIN_CHUNK / MGL_ATTEND_TILE,  // of an item, at most
  MGL_LONE_QUERIES = MGL_CUDA_CONSUMER_WARPS,             // items whose queries scratch has
  // Items that are computed at once, as many as there are warps for all rows of V.
  MGL_LONE_AT_ONCE = MGL_CUDA_CONSUMER_WARPS / MGL_ATTEND_ROWS,
  MGL_LONE_AHEAD = 3,  // of items, which the L2 is asked for before
  // Scratch, in bytes. Of each of these items: Q, bf16 [columns][HD].
  MGL_LONE_WARP = MGL_CUDA_QUERY_COLUMNS * MGL_HEAD_DIM * 2,
  // Then the task's items.
  MGL_LONE_ITEMS = MGL_LONE_QUERIES * MGL_LONE_WARP,
  MGL_LONE_ITEM = 96,
  // Then, twice, of those at once: weights of each tile, as words of B, and of each column maximum
  // and sum.
  MGL_LONE_WEIGHTS = MGL_LONE_ITEMS + MGL_LONE_MOST_ITEMS * MGL_LONE_ITEM,
  MGL_LONE_TILE_WEIGHTS = 32 * 8,
  MGL_LONE_SUMS = MGL_LONE_WEIGHTS + 2 * MGL_LONE_AT_ONCE * MGL_LONE_TILES * MGL_LONE_TILE_WEIGHTS,
  MGL_LONE_TILE_SUMS = MGL_CUDA_QUERY_COLUMNS * 8,
  MGL_LONE_END = MGL_LONE_SUMS + 2 * MGL_LONE_AT_ONCE * MGL_LONE_TILES * MGL_LONE_TILE_SUMS,
};

// An item as scratch has it.
typedef struct mgl_lone_item {
  mgl_cuda_item item;
  uint32_t pages[MGL_LONE_TILES + 1];  // of its tiles; the last, as of those that are not there: of
                                       // its token
  uint32_t kv_head;
  uint32_t queries;  // their place in scratch
  uint32_t padding;
} mgl_lone_item;

static_assert(MGL_LONE_TILES == MGL_CUDA_CONSUMER_WARPS, "a warp has a tile");
static_assert(MGL_LONE_QUERIES % MGL_LONE_AT_ONCE == 0, "steps do not cross queries' borders");
static_assert(sizeof(mgl_lone_item) == MGL_LONE_ITEM && MGL_LONE_ITEM % 16 == 0 &&
                  MGL_LONE_WARP % 16 == 0 && MGL_LONE_END <= MGL_CUDA_SCRATCH_BYTES,
              "scratch");

// --- items ---------------------------------------------------------------------------------------

MGL_DEVICE mgl_lone_item *mgl_lone_at(const mgl_worker *w, uint32_t number) {
  return (mgl_lone_item *)(w->scratch + MGL_LONE_ITEMS) + number;
}

// The first item of a unit's stride; of that behind the last, how many there are. Strides have
// neighbours, so that what a worker has is of as few sequences as can be, which it has queries for
// and whose last chunks it merges.
MGL_DEVICE uint32_t mgl_lone_first(const mgl_first_item *first, uint32_t stride) {
  return stride * first->item_count / first->strides;
}

// Whether the tile at a position lies before what the item's token sees.
MGL_DEVICE bool mgl_lone_is_before(const mgl_cuda_op *op, const mgl_cuda_item *item,
                                   uint32_t position) {
  return MGL_HAS_WINDOWS && position + MGL_ATTEND_TILE <= mgl_window_first(op, item->position);
}

// All consumers: looks up the task's items, 16 threads for each. Returns how many there are.
MGL_DEVICE uint32_t mgl_lone_look_up(const mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_first_item *first = &slot->first;
  const mgl_cuda_run *run = w->run;
  const uint32_t part = w->thread % 16;
  uint32_t total = 0;
#pragma unroll 1
  for (uint32_t unit = slot->begin; unit < slot->end; unit++) {
    const uint32_t kv_head = unit / first->strides, stride = unit - kv_head * first->strides;
    const uint32_t begin = mgl_lone_first(first, stride);
    const uint32_t count = mgl_lone_first(first, stride + 1) - begin;
#pragma unroll 1
    for (uint32_t base = 0; base < count; base += MGL_CUDA_CONSUMERS / 16) {
      const uint32_t i = base + w->thread / 16;
      mgl_lone_item *to = mgl_lone_at(w, total + (i < count ? i : 0));
      if (i < count && part < 12) {
        const mgl_cuda_item *from = &slot->plan->items[begin + i];
        ((uint32_t *)&to->item)[part] = mgl_load_l2_word((const uint32_t *)from + part);
      }
      __syncwarp();
      if (i < count && part <= MGL_LONE_TILES) {
        const mgl_cuda_item *item = &to->item;
        const int32_t *table = run->block_tables + (size_t)item->slot * run->block_table_stride;
        uint32_t position = item->kv_begin + part * MGL_ATTEND_TILE;
        if (mgl_lone_is_before(&slot->op, item, position)) {
          position = item->kv_begin;  // of nobody's tiles one is read, which is finite as all are
        }
        position = part == MGL_LONE_TILES || position > item->position ? item->position : position;
        to->pages[part] = mgl_load_l2_word(table + position / MGL_ATTEND_TILE);
      }
      if (i < count && part == 15) {
        to->kv_head = kv_head;
      }
    }
    total += count;
  }
  mgl_sync_consumers();
  return total;
}

// Whether an item has the queries of the one before it.
MGL_DEVICE bool mgl_lone_shares(const mgl_worker *w, uint32_t number) {
  const mgl_lone_item *item = mgl_lone_at(w, number);
  return number % MGL_LONE_QUERIES != 0 && item->item.row == item[-1].item.row &&
         item->kv_head == item[-1].kv_head;
}

// Finds whose place in scratch each item's queries have.
MGL_DEVICE void mgl_lone_find_queries(const mgl_worker *w, uint32_t total) {
  if (w->thread < total) {
    uint32_t number = w->thread;
    while (mgl_lone_shares(w, number)) {
      number--;
    }
    mgl_lone_at(w, w->thread)->queries = number % MGL_LONE_QUERIES;
  }
  mgl_sync_consumers();
}

MGL_DEVICE void mgl_lone_set(mgl_attend *a, uint32_t number) {
  const mgl_lone_item *from = mgl_lone_at(a->w, number);
  uint32_t item = mgl_shared_address(&from->item);
  uint4 v[3] = {mgl_load_shared(item), mgl_load_shared(item + 16), mgl_load_shared(item + 32)};
  mgl_attend_set_item(a, v);
  a->kv_head = from->kv_head;
  a->own_first = from->pages[MGL_LONE_TILES];
}

// Elements before the item's KV head in the page of a tile.
MGL_DEVICE size_t mgl_lone_offset(const mgl_attend *a, const mgl_lone_item *item, uint32_t tile) {
  return ((size_t)item->pages[tile] * a->kv_heads + item->kv_head) *
         (MGL_ATTEND_TILE * MGL_HEAD_DIM);
}

// Brings this warp's tiles of K and V of an item, where it is there, into the L2, a lane for each.
MGL_DEVICE void mgl_lone_prefetch(const mgl_attend *a, uint32_t number, uint32_t total) {
  if (number >= total) {
    return;
  }
  const mgl_lone_item *item = mgl_lone_at(a->w, number);
  const uint32_t first = item->item.kv_begin + a->w->warp * MGL_ATTEND_TILE;
  if (first >= item->item.position || mgl_lone_is_before(&a->slot->op, &item->item, first)) {
    return;
  }
#if MGL_TARGET_COPIES
  if (a->w->lane < 2) {
    const uint16_t *cache = a->w->lane == 0 ? a->slot->op.k_cache : a->slot->op.v_cache;
    mgl_bulk_to_l2(cache + mgl_lone_offset(a, item, a->w->warp),
                   (uint32_t)(MGL_ATTEND_TILE * MGL_HEAD_DIM * 2));
  }
#else
  for (uint32_t at = mgl_attend_lane(a) * 64; at < MGL_ATTEND_TILE * MGL_HEAD_DIM; at += 32 * 64) {
    const size_t offset = mgl_lone_offset(a, item, a->w->warp);
    mgl_prefetch_l2(a->slot->op.k_cache + offset + at);
    mgl_prefetch_l2(a->slot->op.v_cache + offset + at);
  }
#endif
}

// --- rows of this iteration ----------------------------------------------------------------------

// One of the rows of qkv that an item needs: its queries, where it does not share the ones before
// it, and K and V of its token, where its chunk has that position.
MGL_DEVICE uint32_t mgl_lone_rows(const mgl_attend *a, uint32_t number, uint32_t *first) {
  const mgl_cuda_item *item = &mgl_lone_at(a->w, number)->item;
  *first = mgl_lone_shares(a->w, number) ? MGL_GROUP : 0;
  return (item->fresh < item->kv_end ? MGL_GROUP + 2 : MGL_GROUP) - *first;
}

// Norms and rotates a row of the item that is set, and puts it into scratch or into the cache, from
// which the warps then read it with the rest of its page. In a carrying graph it asks for the row
// until it is there, or the run stops.
MGL_DEVICE void mgl_lone_prepare_row(const mgl_attend *a, uint32_t number, uint32_t row,
                                     const mgl_attend_norms *norms) {
  const bool is_q = row < MGL_GROUP, is_v = row == MGL_GROUP + 1;
  mgl_attend_job job = {};
  job.kind = is_q ? MGL_ATTEND_IS_Q : is_v ? MGL_ATTEND_IS_V : MGL_ATTEND_IS_K;
  job.token = a->item.row;
  job.head =
      is_q ? a->kv_head * MGL_GROUP + row : a->kv_heads * (MGL_GROUP + (is_v ? 1 : 0)) + a->kv_head;
  uint16_t *to;
  if (is_q) {
    to = (uint16_t *)(a->w->scratch + mgl_lone_at(a->w, number)->queries * MGL_LONE_WARP) +
         row * MGL_HEAD_DIM;
  } else {
    const uint32_t in_tile = a->item.position % MGL_ATTEND_TILE;
    to = (is_v ? a->slot->op.v_cache + in_tile : a->slot->op.k_cache + in_tile * MGL_HEAD_DIM) +
         mgl_attend_offset(a, a->own_first);
  }
  const uint32_t stride = is_v ? MGL_ATTEND_TILE : 1;
  mgl_attend_row words = {};
  mgl_attend_load_row(a, &job, &words);
  mgl_attend_await_row(a, &job, &words);
  if (!is_v) {
    mgl_attend_norm_rotate(a, is_q, norms, &words);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    const uint32_t pair = a->w->lane + 32 * i;
    if (pair < MGL_HEAD_DIM / 2) {
      to[pair * stride] = mgl_round_bf16(words.low[i]);
      to[(pair + MGL_HEAD_DIM / 2) * stride] = mgl_round_bf16(words.high[i]);
    }
  }
}

// The rows of items [base, end), dealt out to the warps.
MGL_DEVICE void mgl_lone_prepare(mgl_attend *a, uint32_t base, uint32_t end,
                                 const mgl_attend_norms *norms) {
  uint32_t mine = a->w->warp;  // of the rows of the items from `number` on
#pragma unroll 1
  for (uint32_t number = base; number < end; number++) {
    uint32_t first;
    const uint32_t count = mgl_lone_rows(a, number, &first);
#pragma unroll 1
    for (; mine < count; mine += MGL_CUDA_CONSUMER_WARPS) {
      mgl_lone_set(a, number);
      mgl_lone_prepare_row(a, number, first + mine, norms);
    }
    mine -= count;
  }
}

// --- keys ----------------------------------------------------------------------------------------

// K of this warp's tile of each item at once.
typedef struct mgl_lone_keys {
  mgl_attend_tile of[MGL_LONE_AT_ONCE];
} mgl_lone_keys;

MGL_DEVICE void mgl_lone_load_k(const mgl_attend *a, uint32_t number, mgl_attend_tile *tile) {
  const uint32_t lane = mgl_attend_lane(a);
  const uint16_t *k = a->slot->op.k_cache +
                      mgl_lone_offset(a, mgl_lone_at(a->w, number), a->w->warp) +
                      mgl_attend_position(lane / 4) * MGL_HEAD_DIM + lane % 4 * 8;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PIECES; i++) {
    tile->k[i][0] = mgl_load_l2(k + i * 32);
    tile->k[i][1] = mgl_load_l2(k + i * 32 + 2 * MGL_HEAD_DIM);
  }
}

// Asks for keys of the items from `first` on; a tile or an item that is not there is read in the
// place of one that is, and nobody looks at it. (A condition for each load makes them wait for each
// other: docs/log/168.)
MGL_DEVICE void mgl_lone_ask_k(const mgl_attend *a, uint32_t first, uint32_t total,
                               mgl_lone_keys *keys) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_LONE_AT_ONCE; j++) {
    mgl_lone_load_k(a, first + j < total ? first + j : first, &keys->of[j]);
  }
}

// Asks again for tiles with the position of the item's token, whose keys were asked for before they
// were there.
MGL_DEVICE void mgl_lone_ask_again(const mgl_attend *a, uint32_t first, uint32_t total,
                                   mgl_lone_keys *keys) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_LONE_AT_ONCE; j++) {
    if (first + j < total) {
      const mgl_cuda_item *item = &mgl_lone_at(a->w, first + j)->item;
      if (item->position - item->kv_begin - a->w->warp * MGL_ATTEND_TILE < MGL_ATTEND_TILE) {
        mgl_lone_load_k(a, first + j, &keys->of[j]);
      }
    }
  }
}

// Where tile `tile` of one of the items at once has its part of scratch, in tiles.
MGL_DEVICE uint32_t mgl_lone_place(uint32_t half, uint32_t j, uint32_t tile) {
  return (half * MGL_LONE_AT_ONCE + j) * MGL_LONE_TILES + tile;
}

// This warp's tile of an item, from keys to weights: as mgl_attend_softmax makes them of a warp's
// first tile, with sums as in mgl_attend_publish. to: number of its place in scratch.
MGL_DEVICE void mgl_lone_weigh(const mgl_attend *a, uint32_t number, const mgl_attend_tile *tile,
                               uint32_t to) {
  const mgl_cuda_item *item = &mgl_lone_at(a->w, number)->item;
  const uint32_t first = item->kv_begin + a->w->warp * MGL_ATTEND_TILE, last = item->position;
  uint2 weights = make_uint2(0, 0);
  float max[2] = {mgl_attend_unseen(), mgl_attend_unseen()}, sum[2] = {0, 0};
  if (first < item->kv_end && !mgl_lone_is_before(&a->slot->op, item, first)) {
    const float factor = a->slot->op.scale * 1.44269504f;  // log2 e
    const uint32_t position = first + mgl_attend_position(a->w->lane / 4);
    float scores[4];
    mgl_attend_scores(
        a, (const uint16_t *)(a->w->scratch + mgl_lone_at(a->w, number)->queries * MGL_LONE_WARP),
        tile, scores);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      scores[i] = position + i / 2 * 2 <= last ? scores[i] * factor : mgl_attend_unseen();
      if (MGL_HAS_WINDOWS && position + i / 2 * 2 < mgl_window_first(&a->slot->op, last)) {
        scores[i] = mgl_attend_unseen();
      }
    }
    max[0] = fmaxf(scores[0], scores[2]);
    max[1] = fmaxf(scores[1], scores[3]);
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      max[0] = fmaxf(max[0], __shfl_xor_sync(0xffffffffu, max[0], offset));
      max[1] = fmaxf(max[1], __shfl_xor_sync(0xffffffffu, max[1], offset));
    }
    const float base[2] = {mgl_attend_base(max[0]), mgl_attend_base(max[1])};
    const uint32_t low = mgl_pack_bf16(exp2f(scores[0] - base[0]), exp2f(scores[1] - base[1]));
    const uint32_t high = mgl_pack_bf16(exp2f(scores[2] - base[0]), exp2f(scores[3] - base[1]));
    sum[0] = mgl_widen_bf16(low & 0xffffu) + mgl_widen_bf16(high & 0xffffu);
    sum[1] = mgl_widen_bf16(low >> 16) + mgl_widen_bf16(high >> 16);
    weights = make_uint2(mgl_transpose8(low), mgl_transpose8(high));
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], offset);
      sum[1] += __shfl_xor_sync(0xffffffffu, sum[1], offset);
    }
  }
  ((uint2 *)(a->w->scratch + MGL_LONE_WEIGHTS + to * MGL_LONE_TILE_WEIGHTS))[a->w->lane] = weights;
  if (a->w->lane < 4) {  // columns 2t and 2t + 1
    ((float4 *)(a->w->scratch + MGL_LONE_SUMS + to * MGL_LONE_TILE_SUMS))[a->w->lane] =
        make_float4(max[0], sum[0], max[1], sum[1]);
  }
}

// --- values --------------------------------------------------------------------------------------

// This warp's rows of V of all tiles of an item: rows g and g + 8 of 16 elements of head dim.
typedef struct mgl_lone_values {
  uint2 v[MGL_LONE_TILES][2];
} mgl_lone_values;

MGL_DEVICE void mgl_lone_ask_v(const mgl_attend *a, uint32_t number, uint32_t row,
                               mgl_lone_values *values) {
  const uint32_t lane = mgl_attend_lane(a);
  const mgl_lone_item *item = mgl_lone_at(a->w, number);
  const uint16_t *v = a->slot->op.v_cache + (row * 16 + lane / 4) * MGL_ATTEND_TILE + lane % 4 * 4;
#pragma unroll
  for (uint32_t i = 0; i < MGL_LONE_TILES; i++) {
    const uint16_t *from = v + mgl_lone_offset(a, item, i);
    values->v[i][0] = mgl_load_l2_pair(from);
    values->v[i][1] = mgl_load_l2_pair(from + 8 * MGL_ATTEND_TILE);
  }
}

// What mgl_attend_merge makes of the tiles' maxima and sums: of tile g, in the lanes 4 g + t, what
// its softmax has of columns 2t and 2t + 1.
typedef struct mgl_lone_state {
  float max[2], sum[2], factor[2];  // of all tiles; the tile's factor
} mgl_lone_state;

MGL_DEVICE void mgl_lone_merge_sums(const mgl_attend *a, float4 of_tile, bool sums,
                                    mgl_lone_state *state) {
  const float maxima[2] = {of_tile.x, of_tile.z}, weights[2] = {of_tile.y, of_tile.w};
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float max = maxima[i];
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
    }
    state->factor[i] = exp2f(maxima[i] - mgl_attend_base(max));
    state->max[i] = max;
    state->sum[i] = 0;
    if (sums) {
      const float product = weights[i] * state->factor[i];
#pragma unroll
      for (uint32_t t = 0; t < MGL_LONE_TILES; t++) {
        state->sum[i] += __shfl_sync(0xffffffffu, product, (int)(t * 4 + a->w->lane % 4));
      }
    }
  }
}

// Leaves the partial result of the chunk. Lanes have rows g and g + 8 of each 16 and columns 2t and
// 2t + 1.
MGL_DEVICE void mgl_lone_leave(const mgl_attend *a, const mgl_lone_item *item, uint32_t row,
                               const mgl_lone_state *state, const float (&values)[4]) {
  const uint32_t group = a->w->lane / 4;
  const size_t chunk = (size_t)(item->item.partial + item->item.chunk) * a->kv_heads;
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    const uint32_t column = a->w->lane % 4 * 2 + j;
    if (column < MGL_GROUP) {
      uint64_t *partial =
          a->partials +
          ((chunk + item->kv_head) * MGL_CUDA_QUERY_COLUMNS + column) * MGL_ATTEND_PARTIAL;
#pragma unroll
      for (uint32_t h = 0; h < 2; h++) {
        mgl_store_l2_long(partial + row * 16 + h * 8 + group,
                          (uint64_t)a->tag << 32 | __float_as_uint(values[2 * h + j]));
      }
      if (row == 0 && group == 0) {
        mgl_store_l2_whole(
            partial + MGL_HEAD_DIM,
            make_uint4(__float_as_uint(state->max[j]), __float_as_uint(state->sum[j]), a->tag, 0));
      }
    }
  }
}

// Positions of a tile that nobody sees become 0, since 0 times what may lie there need not be.
MGL_DEVICE void mgl_lone_mask_v(uint32_t position, uint32_t end, uint2 (&v)[2]) {
  const uint32_t seen[2] = {mgl_attend_before(position, end), mgl_attend_before(position + 2, end)};
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    v[h].x &= seen[0];
    v[h].y &= seen[1];
  }
}

// This warp's rows of an item: sums of values of each tile, times its factor, added up. (A tile
// that is not there weighs 0 and has a factor of 0; what is added up never is -0.)
MGL_DEVICE void mgl_lone_add_up(const mgl_attend *a, uint32_t number, uint32_t row, uint32_t from,
                                mgl_lone_values *of) {
  const mgl_lone_item *item = mgl_lone_at(a->w, number);
  const uint32_t lane = a->w->lane;
  const uint32_t begin = item->item.kv_begin, end = item->item.kv_end;
  const uint8_t *weights_at =
      a->w->scratch + MGL_LONE_WEIGHTS + from * MGL_LONE_TILE_WEIGHTS + lane * 8;
  const uint8_t *sums_at = a->w->scratch + MGL_LONE_SUMS + from * MGL_LONE_TILE_SUMS;
  mgl_lone_state state;
  if (end - begin < MGL_CUDA_MIN_CHUNK) {
#pragma unroll
    for (uint32_t i = 0; i < MGL_LONE_TILES; i++) {
      mgl_lone_mask_v(begin + i * MGL_ATTEND_TILE + lane % 4 * 4, end, of->v[i]);
    }
  }
  mgl_lone_merge_sums(a, ((const float4 *)sums_at)[lane], row == 0, &state);
  float values[4] = {0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < MGL_LONE_TILES; i++) {
    const uint2 weights = *(const uint2 *)(weights_at + i * MGL_LONE_TILE_WEIGHTS);
    const uint2 *v = of->v[i];
    const uint32_t rows[4] = {v[0].x, v[1].x, v[0].y, v[1].y};
    float sums[4] = {0, 0, 0, 0}, factor[2];
    mgl_mma(sums, rows, weights.x, weights.y);
    factor[0] = __shfl_sync(0xffffffffu, state.factor[0], (int)(i * 4 + lane % 4));
    factor[1] = __shfl_sync(0xffffffffu, state.factor[1], (int)(i * 4 + lane % 4));
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      values[j] += sums[j] * factor[j % 2];
    }
  }
  mgl_lone_leave(a, item, row, &state, values);
}

// --- the task ------------------------------------------------------------------------------------

// Of the task's items that are their sequences' last chunks: all chunks, whoever left them. (Of a
// single one too: it is multiplied by 1.)
MGL_DEVICE void mgl_lone_merge(mgl_attend *a, uint32_t total) {
#pragma unroll 1
  for (uint32_t number = 0; number < total; number++) {
    mgl_lone_set(a, number);
    if (a->item.chunk + 1 != a->item.chunks) {
      continue;
    }
#pragma unroll 1
    for (uint32_t i = a->w->thread; i < MGL_GROUP * MGL_HEAD_DIM; i += MGL_CUDA_CONSUMERS) {
      float sink = mgl_attend_sink(a, i / MGL_HEAD_DIM);
      mgl_attend_part part = mgl_attend_merge_chunks(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM);
      mgl_attend_write(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM, &part, sink);
    }
  }
}

// The items from `first` on, as many as are computed at once. half: of scratch; the one before is
// still read. next: their keys, and then those of the items behind them.
MGL_DEVICE void mgl_lone_step(const mgl_attend *a, uint32_t first, uint32_t total, uint32_t half,
                              mgl_lone_keys *next) {
  const uint32_t row = a->w->warp % MGL_ATTEND_ROWS, mine = a->w->warp / MGL_ATTEND_ROWS;
  const bool adds = mine < MGL_LONE_AT_ONCE && first + mine < total;
  mgl_lone_values values;
  mgl_lone_ask_v(a, adds ? first + mine : first, row, &values);
  const mgl_lone_keys keys = *next;
  if (first + MGL_LONE_AT_ONCE < total) {
    mgl_lone_ask_k(a, first + MGL_LONE_AT_ONCE, total, next);
  }
#pragma unroll
  for (uint32_t j = 0; j < MGL_LONE_AT_ONCE; j++) {
    if (first + j < total) {
      mgl_lone_prefetch(a, first + MGL_LONE_AHEAD * MGL_LONE_AT_ONCE + j, total);
      mgl_lone_weigh(a, first + j, &keys.of[j], mgl_lone_place(half, j, a->w->warp));
    }
  }
  mgl_sync_consumers();  // scratch has what all tiles weigh
  if (adds) {
    mgl_lone_add_up(a, first + mine, row, mgl_lone_place(half, mine, 0), &values);
  }
}

// All items of the plan are of one token that decodes and of one chunk of the shortest kind, and
// partial results are asked for until they are there. A task has an item at least.
MGL_DEVICE void mgl_task_attend_warps(mgl_worker *w) {
  mgl_attend a;
  mgl_lone_keys keys;
  const uint32_t total = mgl_lone_look_up(w);
  mgl_lone_find_queries(w, total);
  (void)mgl_attend_begin(&a, w);
  a.tag = a.slot->first.tag;
  a.partials = w->run->partials;
  mgl_lone_ask_k(&a, 0, total, &keys);
  mgl_attend_norms norms;
  mgl_attend_load_norms(&a, &norms);
#pragma unroll 1
  for (uint32_t number = 0; number < MGL_LONE_AHEAD * MGL_LONE_AT_ONCE; number++) {
    mgl_lone_prefetch(&a, number, total);
  }
  if (!mgl_task_wait(w)) {
    return;
  }
  uint32_t half = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < total; base += MGL_LONE_QUERIES) {
    const uint32_t end = total - base < MGL_LONE_QUERIES ? total : base + MGL_LONE_QUERIES;
    mgl_lone_prepare(&a, base, end, &norms);
    if (base == 0) {
      mgl_task_began(w);
    }
    mgl_sync_consumers();  // queries are in scratch, and K and V of these items in the cache
    mgl_lone_ask_again(&a, base, total, &keys);
#pragma unroll 1
    for (uint32_t first = base; first < end; first += MGL_LONE_AT_ONCE) {
      mgl_lone_step(&a, first, total, half, &keys);
      half ^= 1;
    }
  }
  mgl_lone_merge(&a, total);
  mgl_attend_open_rest(w);
}

#endif
