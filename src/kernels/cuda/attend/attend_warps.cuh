// attend of many sequences that decode: a warp computes an item by itself. So the warps of a worker
// have eight items under way, which wait for memory beside each other, and meet at no barrier; with
// eight warps at one item each wait is everybody's (docs/log/214, 216).
//
// The bits are those of tasks_attend.cuh, where the tiles of an item are those of eight warps: each
// tile has a softmax of its own, and they are merged in ascending order. Here a warp computes the
// scores of all tiles, then all weights and maxima, so that a tile's sums of values need not be
// kept: they are multiplied by the tile's factor and added as they come. That holds for chunks of
// eight tiles; longer ones have an online softmax along each warp's tiles.
//
// Items and their pages are looked up by all threads at once, before Q is there. A warp takes the
// next item when it has ended one, since items differ in length. What other workers have to add to
// is asked for at the end, when all of the task's own partial results are left.
#ifndef MGL_KERNELS_CUDA_ATTEND_ATTEND_WARPS_CUH
#define MGL_KERNELS_CUDA_ATTEND_ATTEND_WARPS_CUH

#include "kernels/cuda/attend/tasks_attend.cuh"

enum {
  MGL_LONE_TILES = MGL_CUDA_MIN_CHUNK / MGL_ATTEND_TILE,  // of an item, at most
  MGL_LONE_STEP = 4,                                      // of them, with one softmax
  MGL_LONE_ROWS = 4,                                      // of Q that a warp loads at once
  // Scratch, in bytes. Of each warp: Q, bf16 [columns][HD].
  MGL_LONE_WARP = MGL_CUDA_QUERY_COLUMNS * MGL_HEAD_DIM * 2,
  // Then the items, and the next one that no warp has taken.
  MGL_LONE_ITEMS = MGL_CUDA_CONSUMER_WARPS * MGL_LONE_WARP,
  MGL_LONE_ITEM = 96,
  MGL_LONE_NEXT = MGL_LONE_ITEMS + MGL_LONE_MOST_ITEMS * MGL_LONE_ITEM,
};

// An item as scratch has it.
typedef struct mgl_lone_item {
  mgl_cuda_item item;
  uint32_t pages[MGL_LONE_TILES + 1];  // of its tiles; the last, as of those that are not there: of
                                       // its token
  uint32_t kv_head;
  uint32_t padding[2];
} mgl_lone_item;

static_assert(MGL_LONE_TILES == MGL_CUDA_CONSUMER_WARPS, "a tile is what a warp has elsewhere");
static_assert(sizeof(mgl_lone_item) == MGL_LONE_ITEM && MGL_LONE_ITEM % 16 == 0 &&
                  MGL_LONE_WARP % 16 == 0 && MGL_LONE_NEXT + 4 <= MGL_CUDA_SCRATCH_BYTES,
              "scratch");

// What a warp keeps of its item between the passes over K and V: weights, as words of B; and of
// tile g, in the lanes 4 g + t, what its softmax has of columns 2t and 2t + 1: maximum and sum of
// weights, later the factor by which merging multiplies.
typedef struct mgl_lone_state {
  uint32_t weights[MGL_LONE_TILES][2];
  float max[2], sum[2], factor[2];
} mgl_lone_state;

// --- items ---------------------------------------------------------------------------------------

static __device__ __forceinline__ mgl_lone_item *mgl_lone_at(const mgl_worker *w, uint32_t number) {
  return (mgl_lone_item *)(w->scratch + MGL_LONE_ITEMS) + number;
}

// Items of a unit: every strides-th of the plan.
static __device__ __forceinline__ uint32_t mgl_lone_count(const mgl_first_item *first,
                                                          uint32_t unit) {
  uint32_t stride = unit % first->strides;
  return (first->item_count + first->strides - 1 - stride) / first->strides;
}

// All consumers: looks up the task's items, 16 threads for each. Returns how many there are.
static __device__ __forceinline__ uint32_t mgl_lone_look_up(const mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  const mgl_first_item *first = &slot->first;
  const mgl_cuda_run *run = w->run;
  const uint32_t part = w->thread % 16;
  uint32_t total = 0;
#pragma unroll 1
  for (uint32_t unit = slot->begin; unit < slot->end; unit++) {
    const uint32_t count = mgl_lone_count(first, unit);
#pragma unroll 1
    for (uint32_t base = 0; base < count; base += MGL_CUDA_CONSUMERS / 16) {
      const uint32_t i = base + w->thread / 16;
      mgl_lone_item *to = mgl_lone_at(w, total + (i < count ? i : 0));
      if (i < count && part < 12) {
        const mgl_cuda_item *from = &slot->plan->items[unit % first->strides + i * first->strides];
        ((uint32_t *)&to->item)[part] = mgl_load_l2_word((const uint32_t *)from + part);
      }
      __syncwarp();
      if (i < count && part <= MGL_LONE_TILES) {
        const mgl_cuda_item *item = &to->item;
        const int32_t *table = run->block_tables + (size_t)item->slot * run->block_table_stride;
        uint32_t position = item->kv_begin + part * MGL_ATTEND_TILE;
        position = part == MGL_LONE_TILES || position > item->position ? item->position : position;
        to->pages[part] = mgl_load_l2_word(table + position / MGL_ATTEND_TILE);
      }
      if (i < count && part == 15) {
        to->kv_head = unit / first->strides;
      }
    }
    total += count;
  }
  if (w->thread == 0) {
    *(uint32_t *)(w->scratch + MGL_LONE_NEXT) = MGL_CUDA_CONSUMER_WARPS;
  }
  mgl_sync_consumers();
  return total;
}

static __device__ __forceinline__ void mgl_lone_set(mgl_attend *a, uint32_t number) {
  const mgl_lone_item *from = mgl_lone_at(a->w, number);
  uint32_t item = mgl_shared_address(&from->item);
  uint4 v[3] = {mgl_load_shared(item), mgl_load_shared(item + 16), mgl_load_shared(item + 32)};
  mgl_attend_set_item(a, v);
  a->kv_head = from->kv_head;
  a->own_first = from->pages[MGL_LONE_TILES];
}

// Brings the tiles of K or V into the L2, a lane for each.
static __device__ __forceinline__ void mgl_lone_prefetch(const mgl_attend *a, const uint16_t *cache,
                                                         const mgl_lone_item *item) {
#if MGL_TARGET_COPIES
  const uint32_t lane = a->w->lane;
  if (lane < MGL_LONE_TILES && a->item.kv_begin + lane * MGL_ATTEND_TILE < a->cached_end) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                     cache + mgl_attend_offset(a, item->pages[lane])),
                 "r"((uint32_t)(MGL_ATTEND_TILE * MGL_HEAD_DIM * 2))
                 : "memory");
  }
#else
#pragma unroll 1
  for (uint32_t i = 0; i < MGL_LONE_TILES; i++) {
    mgl_attend_prefetch(a, cache, item->pages[i]);
  }
#endif
}

// --- rows of this iteration ----------------------------------------------------------------------

// Asks for rows of qkv from head `head` on, `step` heads apart, and for the token's angles.
template <int count>
static __device__ __forceinline__ void mgl_lone_ask(const mgl_attend *a, uint32_t head,
                                                    uint32_t step, uint32_t there,
                                                    mgl_attend_row (&rows)[count]) {
  const mgl_cuda_op *op = &a->slot->op;
  const float *x = (const float *)((const uint8_t *)op->x + a->slot->copy_at) +
                   (size_t)a->item.row * op->x_stride + a->w->lane;
  const float *angles = (const float *)((const uint8_t *)op->angles + a->slot->copy_at) +
                        (size_t)a->item.row * MGL_HEAD_DIM + 2 * a->w->lane;
#pragma unroll
  for (uint32_t r = 0; r < count; r++) {
    const float *from = x + (head + (r < there ? r : 0) * step) * MGL_HEAD_DIM;
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
      rows[r].low[i] = rows[r].high[i] = rows[r].cosine[i] = rows[r].sine[i] = 0;
      if (a->w->lane + 32 * i < MGL_HEAD_DIM / 2) {
        rows[r].low[i] = mgl_load_l2_float(from + 32 * i);
        rows[r].high[i] = mgl_load_l2_float(from + 32 * i + MGL_HEAD_DIM / 2);
        if (r == 0) {
          uint2 angle = mgl_load_l2_pair(angles + 64 * i);
          rows[r].cosine[i] = __uint_as_float(angle.x);
          rows[r].sine[i] = __uint_as_float(angle.y);
        }
      }
    }
  }
#pragma unroll
  for (uint32_t r = 1; r < count; r++) {
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
      rows[r].cosine[i] = rows[0].cosine[i];
      rows[r].sine[i] = rows[0].sine[i];
    }
  }
}

// Rows that are there. In a carrying graph it asks until they are, or the run stops.
template <int count>
static __device__ __forceinline__ void mgl_lone_take(const mgl_attend *a, uint32_t head,
                                                     uint32_t step, uint32_t there,
                                                     mgl_attend_row (&rows)[count]) {
  bool open;
  do {
    mgl_lone_ask(a, head, step, there, rows);
    open = false;
#pragma unroll
    for (uint32_t r = 0; r < count; r++) {
      open = open || mgl_attend_is_open(&rows[r]);
    }
  } while (MGL_CARRIES && (a->slot->op.flags & MGL_CUDA_CARRIED) != 0 &&
           __any_sync(0xffffffffu, open) && a->w->block->stop == 0);
}

// Puts a row into the warp's scratch or into the cache, elements `stride` apart.
static __device__ __forceinline__ void mgl_lone_put(const mgl_attend *a, const mgl_attend_row *row,
                                                    uint16_t *to, uint32_t stride) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    const uint32_t pair = a->w->lane + 32 * i;
    if (pair < MGL_HEAD_DIM / 2) {
      to[pair * stride] = mgl_round_bf16(row->low[i]);
      to[(pair + MGL_HEAD_DIM / 2) * stride] = mgl_round_bf16(row->high[i]);
    }
  }
}

// Puts the item's queries into the warp's scratch; and K and V of its token, where its chunk has
// that position, into the cache, from which the warp then reads them with the rest of their page.
static __device__ __forceinline__ void mgl_lone_prepare(const mgl_attend *a, uint8_t *scratch) {
  mgl_attend_norms norms;
  mgl_attend_load_norms(a, &norms);
#pragma unroll 1
  for (uint32_t first = 0; first < MGL_GROUP; first += MGL_LONE_ROWS) {
    mgl_attend_row rows[MGL_GROUP < MGL_LONE_ROWS ? MGL_GROUP : MGL_LONE_ROWS];
    constexpr uint32_t most = sizeof rows / sizeof *rows;
    mgl_lone_take(a, a->kv_head * MGL_GROUP + first, 1, MGL_GROUP - first, rows);
#pragma unroll
    for (uint32_t r = 0; r < most; r++) {
      if (first + r < MGL_GROUP) {
        mgl_attend_norm_rotate(a, true, &norms, &rows[r]);
        mgl_lone_put(a, &rows[r], (uint16_t *)scratch + (first + r) * MGL_HEAD_DIM, 1);
      }
    }
  }
  if (a->cached_end < a->item.kv_end) {
    mgl_attend_row rows[2];
    mgl_lone_take(a, a->kv_heads * MGL_GROUP + a->kv_head, a->kv_heads, 2, rows);
    mgl_attend_norm_rotate(a, false, &norms, &rows[0]);
    const size_t cached = mgl_attend_offset(a, a->own_first);
    const uint32_t in_tile = a->item.position % MGL_ATTEND_TILE;
    mgl_lone_put(a, &rows[0], a->slot->op.k_cache + cached + in_tile * MGL_HEAD_DIM, 1);
    mgl_lone_put(a, &rows[1], a->slot->op.v_cache + cached + in_tile, MGL_ATTEND_TILE);
  }
  __syncwarp();
}

// --- tiles ---------------------------------------------------------------------------------------

// Of the pass over K: scores of tiles from `first` on, and loads of those two after each. (What
// lies behind the item is loaded from a page that is there, and nobody looks at it.)
static __device__ __forceinline__ void mgl_lone_scores(const mgl_attend *a,
                                                       const mgl_lone_item *item, uint32_t first,
                                                       const uint8_t *scratch,
                                                       mgl_attend_tile (&tiles)[2],
                                                       float (&scores)[MGL_LONE_STEP][4]) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_LONE_STEP; i++) {
    scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0;
    mgl_attend_scores(a, (const uint16_t *)scratch, &tiles[i % 2], scores[i]);
    const uint32_t next = first + i + 2;
    if (a->item.kv_begin + next * MGL_ATTEND_TILE < a->item.kv_end) {
      mgl_attend_load_k(a, item->pages[next], &tiles[i % 2]);
    }
  }
}

// From their scores to weights: of each tile as mgl_attend_softmax makes them of a warp's first
// one, with sums as in mgl_attend_publish. Step by step for all, so that none waits for another.
static __device__ __forceinline__ void mgl_lone_softmax(const mgl_attend *a, uint32_t first,
                                                        float (&scores)[MGL_LONE_STEP][4],
                                                        mgl_lone_state *state) {
  const float factor = a->slot->op.scale * 1.44269504f;  // log2 e
  const uint32_t group = a->w->lane / 4;
  float maxima[MGL_LONE_STEP][2], sums[MGL_LONE_STEP][2];
#pragma unroll
  for (uint32_t t = 0; t < MGL_LONE_STEP; t++) {
    const uint32_t position =
        a->item.kv_begin + (first + t) * MGL_ATTEND_TILE + mgl_attend_position(group);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      scores[t][i] =
          position + i / 2 * 2 <= a->item.position ? scores[t][i] * factor : mgl_attend_unseen();
    }
    maxima[t][0] = fmaxf(scores[t][0], scores[t][2]);
    maxima[t][1] = fmaxf(scores[t][1], scores[t][3]);
  }
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
#pragma unroll
    for (uint32_t i = 0; i < 2 * MGL_LONE_STEP; i++) {
      float *max = &maxima[i / 2][i % 2];
      *max = fmaxf(*max, __shfl_xor_sync(0xffffffffu, *max, offset));
    }
  }
#pragma unroll
  for (uint32_t t = 0; t < MGL_LONE_STEP; t++) {
    const float base[2] = {mgl_attend_base(maxima[t][0]), mgl_attend_base(maxima[t][1])};
    const uint32_t words[2] = {
        mgl_pack_bf16(exp2f(scores[t][0] - base[0]), exp2f(scores[t][1] - base[1])),
        mgl_pack_bf16(exp2f(scores[t][2] - base[0]), exp2f(scores[t][3] - base[1]))};
    sums[t][0] = mgl_widen_bf16(words[0] & 0xffffu) + mgl_widen_bf16(words[1] & 0xffffu);
    sums[t][1] = mgl_widen_bf16(words[0] >> 16) + mgl_widen_bf16(words[1] >> 16);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t word = mgl_transpose8(words[i]);
#pragma unroll
      for (uint32_t j = t; j < MGL_LONE_TILES; j += MGL_LONE_STEP) {  // no index but constants
        state->weights[j][i] = j == first + t ? word : state->weights[j][i];
      }
    }
  }
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
#pragma unroll
    for (uint32_t i = 0; i < 2 * MGL_LONE_STEP; i++) {
      sums[i / 2][i % 2] += __shfl_xor_sync(0xffffffffu, sums[i / 2][i % 2], offset);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 2 * MGL_LONE_STEP; i++) {
    const bool mine = group == first + i / 2;
    state->max[i % 2] = mine ? maxima[i / 2][i % 2] : state->max[i % 2];
    state->sum[i % 2] = mine ? sums[i / 2][i % 2] : state->sum[i % 2];
  }
}

// What mgl_attend_merge makes of the tiles' maxima and sums: in max and sum, of all tiles.
static __device__ __forceinline__ void mgl_lone_merge_sums(const mgl_attend *a,
                                                           mgl_lone_state *state) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float max = state->max[i];
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
    }
    state->factor[i] = exp2f(state->max[i] - mgl_attend_base(max));
    const float product = state->sum[i] * state->factor[i];
    state->max[i] = max;
    state->sum[i] = 0;
#pragma unroll
    for (uint32_t t = 0; t < MGL_LONE_TILES; t++) {
      state->sum[i] += __shfl_sync(0xffffffffu, product, (int)(t * 4 + a->w->lane % 4));
    }
  }
}

// Positions that nobody sees become 0, since 0 times what may lie there need not be.
static __device__ __forceinline__ void mgl_lone_mask_v(const mgl_attend *a, uint32_t first,
                                                       mgl_attend_tile *tile) {
  const uint32_t position = first + a->w->lane % 4 * 4;
  const uint32_t seen[2] = {mgl_attend_before(position, a->item.kv_end),
                            mgl_attend_before(position + 2, a->item.kv_end)};
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      tile->v[i][h].x &= seen[0];
      tile->v[i][h].y &= seen[1];
    }
  }
}

// A tile of the pass over V: its sums of values are added to those of the tiles before it.
static __device__ __forceinline__ void mgl_lone_add(const mgl_attend *a, const mgl_lone_item *item,
                                                    uint32_t number, mgl_attend_tile *tile,
                                                    const mgl_lone_state *state,
                                                    float (&values)[MGL_ATTEND_ROWS][4]) {
  const uint32_t first = a->item.kv_begin + number * MGL_ATTEND_TILE;
  if (first >= a->item.kv_end) {
    return;
  }
  uint32_t weights[2] = {0, 0};
  float factor[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
    for (uint32_t t = 0; t < MGL_LONE_TILES; t++) {
      weights[i] = t == number ? state->weights[t][i] : weights[i];
    }
    factor[i] = __shfl_sync(0xffffffffu, state->factor[i], (int)(number * 4 + a->w->lane % 4));
  }
  if (first + MGL_ATTEND_TILE > a->item.kv_end) {
    mgl_lone_mask_v(a, first, tile);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
    const uint2 *v = tile->v[i];
    const uint32_t rows[4] = {v[0].x, v[1].x, v[0].y, v[1].y};
    float sums[4] = {0, 0, 0, 0};
    mgl_mma(sums, rows, weights[0], weights[1]);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      values[i][j] += sums[j] * factor[j % 2];
    }
  }
  if (first + 2 * MGL_ATTEND_TILE < a->item.kv_end) {
    mgl_attend_load_v(a, item->pages[number + 2], tile);
  }
}

// --- results -------------------------------------------------------------------------------------

// From the lanes, which have rows g and g + 8 of each 16 and columns 2t and 2t + 1, to the partial
// result of the chunk.
static __device__ __forceinline__ void mgl_lone_leave(const mgl_attend *a,
                                                      const mgl_lone_state *state,
                                                      const float (&values)[MGL_ATTEND_ROWS][4]) {
  const uint32_t group = a->w->lane / 4;
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    const uint32_t column = a->w->lane % 4 * 2 + j;
    if (column < MGL_GROUP) {
      uint64_t *partial = mgl_attend_partial(a, a->item.chunk, column) + group;
#pragma unroll
      for (uint32_t i = 0; i < MGL_ATTEND_ROWS; i++) {
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
          mgl_store_l2_long(partial + i * 16 + h * 8,
                            (uint64_t)a->tag << 32 | __float_as_uint(values[i][2 * h + j]));
        }
      }
      if (group == 0) {
        mgl_store_l2_whole(
            partial + MGL_HEAD_DIM,
            make_uint4(__float_as_uint(state->max[j]), __float_as_uint(state->sum[j]), a->tag, 0));
      }
    }
  }
}

// --- the task ------------------------------------------------------------------------------------

// Brings an item's K into the L2.
static __device__ __forceinline__ void mgl_lone_start(mgl_attend *a, uint32_t number) {
  mgl_lone_set(a, number);
  mgl_lone_prefetch(a, a->slot->op.k_cache, mgl_lone_at(a->w, number));
}

static __device__ __forceinline__ void mgl_lone_finish(const mgl_attend *a, uint32_t number,
                                                       const uint8_t *scratch) {
  const mgl_lone_item *item = mgl_lone_at(a->w, number);
  mgl_lone_state state = {};
  mgl_attend_tile tiles[2];
  state.max[0] = state.max[1] = mgl_attend_unseen();
  mgl_attend_load_k(a, item->pages[0], &tiles[0]);
  mgl_attend_load_k(a, item->pages[1], &tiles[1]);
  mgl_lone_prefetch(a, a->slot->op.v_cache, item);
#pragma unroll 1
  for (uint32_t i = 0;
       i < MGL_LONE_TILES && a->item.kv_begin + i * MGL_ATTEND_TILE < a->item.kv_end;
       i += MGL_LONE_STEP) {
    float scores[MGL_LONE_STEP][4];
    mgl_lone_scores(a, item, i, scratch, tiles, scores);
    mgl_lone_softmax(a, i, scores, &state);
  }
  mgl_attend_load_v(a, item->pages[0], &tiles[0]);
  mgl_attend_load_v(a, item->pages[1], &tiles[1]);
  mgl_lone_merge_sums(a, &state);
  float values[MGL_ATTEND_ROWS][4] = {};
#pragma unroll 1
  for (uint32_t i = 0; i < MGL_LONE_TILES; i += 2) {
    mgl_lone_add(a, item, i, &tiles[0], &state, values);
    mgl_lone_add(a, item, i + 1, &tiles[1], &state, values);
  }
  mgl_lone_leave(a, &state, values);
}

// The next item that no warp has.
static __device__ __forceinline__ uint32_t mgl_lone_next(const mgl_worker *w) {
  uint32_t number = 0;
  if (w->lane == 0) {
    number = atomicAdd((uint32_t *)(w->scratch + MGL_LONE_NEXT), 1u);
  }
  return __shfl_sync(0xffffffffu, number, 0);  // behind it scratch of the last item is free
}

// Of the task's items that are their sequences' last chunks: all chunks, whoever left them. (Of a
// single one too: it is multiplied by 1.)
static __device__ __forceinline__ void mgl_lone_merge(mgl_attend *a, uint32_t total) {
#pragma unroll 1
  for (uint32_t number = 0; number < total; number++) {
    mgl_lone_set(a, number);
    if (a->item.chunk + 1 != a->item.chunks) {
      continue;
    }
#pragma unroll 1
    for (uint32_t i = a->w->thread; i < MGL_GROUP * MGL_HEAD_DIM; i += MGL_CUDA_CONSUMERS) {
      mgl_attend_part part = mgl_attend_merge_chunks(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM);
      mgl_attend_write(a, i / MGL_HEAD_DIM, i % MGL_HEAD_DIM, &part);
    }
  }
}

// All items of the plan are of one token that decodes and of one chunk of the shortest kind, and
// partial results are asked for until they are there.
static __device__ __forceinline__ void mgl_task_attend_warps(mgl_worker *w) {
  mgl_attend a;
  const uint32_t total = mgl_lone_look_up(w);
  (void)mgl_attend_begin(&a, w);
  a.tag = a.slot->first.tag;
  a.partials = w->run->partials;
  uint8_t *scratch = w->scratch + w->warp * MGL_LONE_WARP;
  uint32_t number = w->warp;
  if (number < total) {
    mgl_lone_start(&a, number);
  }
  if (!mgl_task_wait(w)) {
    return;
  }
#pragma unroll 1
  for (bool began = false; number < total; began = true) {
    mgl_lone_prepare(&a, scratch);
    if (!began) {
      mgl_task_began(w);
    }
    mgl_lone_finish(&a, number, scratch);
    number = mgl_lone_next(w);
    if (number < total) {
      mgl_lone_start(&a, number);
    }
  }
  mgl_lone_merge(&a, total);
  mgl_attend_open_rest(w);
}

#endif
