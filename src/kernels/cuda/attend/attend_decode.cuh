// attend of tokens that decode: an item has one token, and of this iteration it sees no other. So
// all that does not depend on earlier tasks is found before Q is there: which row of qkv a warp
// norms and rotates, the norm's weights, and where the row goes in scratch and in the cache; keys
// and values of the warp's first tile are in registers. What counts is how few instructions are
// left then (docs/log/157). The arithmetic, and its order, is that of tasks_attend.cuh.
#ifndef MGL_KERNELS_CUDA_ATTEND_ATTEND_DECODE_CUH
#define MGL_KERNELS_CUDA_ATTEND_ATTEND_DECODE_CUH

#include "kernels/cuda/attend/tasks_attend.cuh"

// A row of qkv that a warp puts into scratch, at its lane's first element. Elements lane + 32 i and
// HD / 2 after lie `stride` apart, for each element between them, in scratch and in the cache.
typedef struct mgl_decode_row {
  const float *x, *angles;
  uint32_t to;      // bytes, in shared memory
  uint16_t *cache;  // NULL: it stays out of the cache
  uint32_t stride;
  bool rotates;  // V is put down as it is
  bool normed;
  float low[MGL_ATTEND_PAIRS], high[MGL_ATTEND_PAIRS];  // the norm's weights
} mgl_decode_row;

// Rows of an item: its queries, and K and V where its chunk has its position.
MGL_DEVICE uint32_t mgl_decode_rows(const mgl_attend *a) {
  return mgl_attend_heads(a) + (a->cached_end < a->item.kv_end ? 2 : 0);
}

MGL_DEVICE void mgl_decode_aim_norm(const mgl_attend *a, const float *norm, mgl_decode_row *row) {
  row->normed = norm != nullptr;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    uint32_t pair = a->w->lane + 32 * i;
    bool present = norm != nullptr && pair < MGL_HEAD_DIM / 2;
    row->low[i] = present ? __ldg(norm + pair) : 0;
    row->high[i] = present ? __ldg(norm + pair + MGL_HEAD_DIM / 2) : 0;
  }
}

// Row `number` of an item.
MGL_DEVICE void mgl_decode_aim(const mgl_attend *a, uint32_t number, mgl_decode_row *row) {
  const mgl_cuda_op *op = &a->slot->op;
  const uint32_t lane = mgl_attend_lane(a);
  const uint32_t first = mgl_attend_first_head(a);
  const bool is_q = number < mgl_attend_heads(a);
  const bool is_v = number > mgl_attend_heads(a);
  const uint32_t position = a->item.position;
  const uint32_t in_tile = position % MGL_ATTEND_TILE;
  uint32_t head = is_q ? a->kv_head * MGL_GROUP + first + number
                       : a->kv_heads * (MGL_GROUP + (is_v ? 1 : 0)) + a->kv_head;
  uint32_t to = position % MGL_CUDA_MAX_TOKENS * MGL_HEAD_DIM + lane;
  size_t cached = mgl_attend_offset(a, a->own_first);
  row->x = (const float *)((const uint8_t *)op->x + a->slot->copy_at) +
           (size_t)a->item.row * op->x_stride + head * MGL_HEAD_DIM + lane;
  row->angles = (const float *)((const uint8_t *)op->angles + a->slot->copy_at) +
                (size_t)a->item.row * MGL_HEAD_DIM + 2 * lane;
  row->rotates = !is_v;
  row->stride = is_v ? MGL_ATTEND_TILE : 1;
  row->cache = op->k_cache + cached + in_tile * MGL_HEAD_DIM + lane;
  if (is_q) {
    to = MGL_ATTEND_Q / 2 + number * MGL_HEAD_DIM + lane;
    row->cache = nullptr;
  } else if (is_v) {
    to = MGL_ATTEND_V / 2 +
         position % MGL_CUDA_MAX_TOKENS / MGL_ATTEND_TILE * (MGL_ATTEND_TILE * MGL_HEAD_DIM) +
         mgl_attend_v_index(lane, in_tile);
    row->cache = op->v_cache + cached + lane * MGL_ATTEND_TILE + in_tile;
  }
  if (first != 0) {  // the item with the first heads writes it
    row->cache = nullptr;
  }
  row->to = mgl_shared_address(a->w->scratch) + 2 * to;
  mgl_decode_aim_norm(a, is_q ? op->q_norm : is_v ? nullptr : op->k_norm, row);
}

MGL_DEVICE void mgl_decode_put(const mgl_decode_row *row, uint32_t element, float value) {
  static_assert(MGL_HEAD_DIM / 2 % 16 == 0, "rows of V have one permutation");
  uint16_t bits = mgl_round_bf16(value);
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(row->to + 2 * element * row->stride), "h"(bits)
               : "memory");
  if (row->cache != nullptr) {
    row->cache[element * row->stride] = bits;
  }
}

// Asks for a row's words and angles, without using any.
MGL_DEVICE void mgl_decode_ask(const mgl_attend *a, const mgl_decode_row *row,
                               mgl_attend_row *words) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    words->low[i] = words->high[i] = words->cosine[i] = words->sine[i] = 0;
    if (a->w->lane + 32 * i < MGL_HEAD_DIM / 2) {
      words->low[i] = __uint_as_float(mgl_load_l2_word(row->x + 32 * i));
      words->high[i] = __uint_as_float(mgl_load_l2_word(row->x + 32 * i + MGL_HEAD_DIM / 2));
      if (row->rotates) {
        uint2 angle = mgl_load_l2_pair(row->angles + 64 * i);
        words->cosine[i] = __uint_as_float(angle.x);
        words->sine[i] = __uint_as_float(angle.y);
      }
    }
  }
}

// In a carrying graph: asks again until all of the row is there, or the run stops.
MGL_DEVICE void mgl_decode_await(const mgl_attend *a, const mgl_decode_row *row,
                                 mgl_attend_row *words) {
  if (!MGL_CARRIES || (a->slot->op.flags & MGL_CUDA_CARRIED) == 0) {
    return;
  }
  while (__any_sync(0xffffffffu, mgl_attend_is_open(words)) && a->w->block->stop == 0) {
    mgl_decode_ask(a, row, words);
  }
}

// Norms and rotates a row, which is there now: the arithmetic of mgl_attend_norm_rotate.
MGL_DEVICE void mgl_decode_finish(const mgl_attend *a, const mgl_decode_row *row,
                                  const mgl_attend_row *words) {
  float low[MGL_ATTEND_PAIRS], high[MGL_ATTEND_PAIRS];
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    low[i] = words->low[i];
    high[i] = words->high[i];
  }
  if (row->normed) {
    float squares = 0;
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
      squares += low[i] * low[i] + high[i] * high[i];
    }
    float inverse = rsqrtf(__fmaf_rn(mgl_warp_sum(squares), 1.0f / MGL_HEAD_DIM, a->slot->op.eps));
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
      low[i] = low[i] * inverse * row->low[i];
      high[i] = high[i] * inverse * row->high[i];
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ATTEND_PAIRS; i++) {
    float rotated_low = low[i] * words->cosine[i] - high[i] * words->sine[i];
    float rotated_high = high[i] * words->cosine[i] + low[i] * words->sine[i];
    if (a->w->lane + 32 * i < MGL_HEAD_DIM / 2) {
      mgl_decode_put(row, 32 * i, row->rotates ? rotated_low : low[i]);
      mgl_decode_put(row, 32 * i + MGL_HEAD_DIM / 2, row->rotates ? rotated_high : high[i]);
    }
  }
}

// The rows of an item; row: this warp's first one, of which it has asked for the words.
MGL_DEVICE void mgl_decode_prepare(const mgl_attend *a, mgl_decode_row *row,
                                   mgl_attend_row *words) {
  const uint32_t count = mgl_decode_rows(a);
  if (a->w->warp < count) {
    mgl_decode_await(a, row, words);
    mgl_decode_finish(a, row, words);
  }
  if (MGL_GROUP + 2 > MGL_CUDA_CONSUMER_WARPS) {
#pragma unroll 1
    for (uint32_t number = a->w->warp + MGL_CUDA_CONSUMER_WARPS; number < count;
         number += MGL_CUDA_CONSUMER_WARPS) {
      mgl_decode_aim(a, number, row);
      mgl_decode_ask(a, row, words);
      mgl_decode_await(a, row, words);
      mgl_decode_finish(a, row, words);
    }
  }
}

// The megakernel's task of a plan in which all sequences decode: mgl_task_attend's, with the rows
// as above.
MGL_DEVICE void mgl_task_attend_decode(mgl_worker *w) {
  mgl_attend a;
  mgl_attend_tile tile;
  mgl_attend_cursor cursor;
  mgl_decode_row row;
  mgl_attend_row words = {};
  if (!mgl_attend_begin(&a, w)) {
    if (mgl_task_begin(w)) {
      mgl_attend_open_rest(w);
    }
    return;
  }
  const bool carried = (a.slot->op.flags & MGL_CUDA_CARRIED) != 0;
  mgl_attend_start(&a, true, &tile, &cursor);
  for (bool began = false;; began = true) {
    mgl_decode_aim(&a, w->warp, &row);
    if (began || carried) {
      mgl_decode_ask(&a, &row, &words);
    }
    if (MGL_TARGET_COPIES) {
      mgl_attend_start_v(&a, cursor.page, &tile);
    }
    if (began) {
      mgl_sync_consumers();  // scratch is free
    } else if (!mgl_task_wait(w)) {
      return;
    }
    if (!carried && !began) {
      mgl_decode_ask(&a, &row, &words);
    }
    mgl_decode_prepare(&a, &row, &words);
    if (!MGL_TARGET_COPIES) {  // beside a row there are no registers for V
      mgl_attend_start_v(&a, cursor.page, &tile);
    }
    if (!began) {
      mgl_task_began(w);
    }
    mgl_attend_finish_item<MGL_TARGET_COPIES>(&a, &tile, &cursor);
    if (!mgl_attend_next(&a)) {
      mgl_attend_open_rest(w);
      return;
    }
    mgl_attend_note_item(&a);
    mgl_attend_start(&a, false, &tile, &cursor);
  }
}

// --- outputs by pairs ----------------------------------------------------------------------------

// What was computed of two elements of the output that follow each other (mgl_attend_part).
typedef struct mgl_attend_pair {
  float low, high, max, sum;
} mgl_attend_pair;

// Adds a part, whose weights become relative to the largest maximum.
MGL_DEVICE void mgl_attend_add_pair(mgl_attend_pair *whole, float low, float high, float sum,
                                    float factor) {
  whole->low += low * factor;
  whole->high += high * factor;
  whole->sum += sum * factor;
}

// mgl_attend_merge_warps of rows `row` and `row` + 1.
MGL_DEVICE mgl_attend_pair mgl_attend_pair_of_warps(const mgl_attend *a, uint32_t column,
                                                    uint32_t row) {
  const float *values = (const float *)a->w->scratch;
  const float2 *softmax = (const float2 *)(a->w->scratch + MGL_ATTEND_SOFTMAX) + column;
  float low[MGL_CUDA_CONSUMER_WARPS], high[MGL_CUDA_CONSUMER_WARPS];
  float2 of[MGL_CUDA_CONSUMER_WARPS];
  mgl_attend_pair whole = {0, 0, mgl_attend_unseen(), 0};
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    const float *at = values + mgl_attend_value_index(i, column, row);
    of[i] = softmax[i * MGL_CUDA_QUERY_COLUMNS];
    low[i] = at[0];
    high[i] = at[2];
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    whole.max = fmaxf(whole.max, of[i].x);
  }
  const float base = mgl_attend_base(whole.max);
#pragma unroll
  for (uint32_t i = 0; i < MGL_CUDA_CONSUMER_WARPS; i++) {
    mgl_attend_add_pair(&whole, low[i], high[i], of[i].y, exp2f(of[i].x - base));
  }
  return whole;
}

// Chunks whose values are asked for at once.
enum { MGL_ATTEND_PAIR_CHUNKS = 8 };

// mgl_attend_merge_chunks of rows `row` and `row` + 1.
MGL_DEVICE mgl_attend_pair mgl_attend_pair_of_chunks(const mgl_attend *a, uint32_t column,
                                                     uint32_t row) {
  const uint64_t *partial = mgl_attend_partial(a, 0, column);
  const size_t stride = (size_t)a->kv_heads * (MGL_CUDA_QUERY_COLUMNS * MGL_ATTEND_PARTIAL);
  const uint32_t lane = a->w->lane, chunks = a->item.chunks;
  float sum = 0, factor = 0;  // of chunk `lane`
  mgl_attend_pair whole = {0, 0, mgl_attend_unseen(), 0};
#pragma unroll 1
  for (uint32_t first = 0; first < chunks; first += MGL_ATTEND_PAIR_CHUNKS) {
    uint4 values[MGL_ATTEND_PAIR_CHUNKS], softmax = make_uint4(0, 0, a->tag, 0);
    bool there;
    do {
      if (first == 0 && lane < chunks) {
        softmax = mgl_load_l2_whole(partial + lane * stride + MGL_HEAD_DIM);
      }
#pragma unroll
      for (uint32_t i = 0; i < MGL_ATTEND_PAIR_CHUNKS; i++) {
        values[i] = make_uint4(0, a->tag, 0, a->tag);
        if (first + i < chunks) {
          values[i] = mgl_load_l2_whole(partial + (first + i) * stride + row);
        }
      }
      there = softmax.z == a->tag;
#pragma unroll
      for (uint32_t i = 0; i < MGL_ATTEND_PAIR_CHUNKS; i++) {
        there = there && values[i].y == a->tag && values[i].w == a->tag;
      }
    } while (!__all_sync(0xffffffffu, there || a->w->block->stop != 0));
    if (first == 0) {
      const float max = lane < chunks ? __uint_as_float(softmax.x) : mgl_attend_unseen();
      sum = __uint_as_float(softmax.y);
      whole.max = max;
#pragma unroll
      for (int offset = 1; offset < MGL_CUDA_MAX_CHUNKS; offset *= 2) {
        whole.max = fmaxf(whole.max, __shfl_xor_sync(0xffffffffu, whole.max, offset));
      }
      whole.max = __shfl_sync(0xffffffffu, whole.max, 0);
      factor = exp2f(max - mgl_attend_base(whole.max));
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_ATTEND_PAIR_CHUNKS; i++) {
      if (first + i >= chunks) {
        break;
      }
      mgl_attend_add_pair(&whole, __uint_as_float(values[i].x), __uint_as_float(values[i].z),
                          __shfl_sync(0xffffffffu, sum, (int)(first + i)),
                          __shfl_sync(0xffffffffu, factor, (int)(first + i)));
    }
  }
  return whole;
}

// sink: of the column (mgl_attend_sink).
MGL_DEVICE void mgl_attend_write_pair(const mgl_attend *a, uint32_t column, uint32_t row,
                                      const mgl_attend_pair *pair, float sink) {
  const uint32_t token = a->item.row + column / MGL_GROUP, head = mgl_attend_head(a, column);
  const size_t at = ((size_t)token * a->kv_heads * MGL_GROUP + head) * MGL_HEAD_DIM + row;
  const float sum = MGL_HAS_SINKS ? pair->sum + exp2f(sink - pair->max) : pair->sum;
  const uint32_t low = mgl_round_bf16(pair->low / sum), high = mgl_round_bf16(pair->high / sum);
  if (!mgl_task_is_mute(a->w)) {
    mgl_write_word((uint8_t *)a->slot->op.out + at * sizeof(uint16_t), low | high << 16, a->slot,
                   true);
  }
}

// mgl_attend_output where partial results are polled and activations carry words. A thread has two
// rows, so that one group of four heads of 128 elements is one turn of all threads: each turn is a
// trip to the L2 (docs/log/314). A warp has one column: head dims are multiples of 64.
MGL_DEVICE void mgl_attend_output_pairs(const mgl_attend *a) {
  const uint32_t pairs = a->columns * (MGL_HEAD_DIM / 2);
  const bool whole = a->item.chunks == 1;
#pragma unroll 1
  for (uint32_t i = a->w->thread; i < pairs; i += MGL_CUDA_CONSUMERS) {
    const uint32_t column = i / (MGL_HEAD_DIM / 2), row = i % (MGL_HEAD_DIM / 2) * 2;
    const float sink = whole ? mgl_attend_sink(a, column) : 0;
    const mgl_attend_pair pair = mgl_attend_pair_of_warps(a, column, row);
    if (whole) {
      mgl_attend_write_pair(a, column, row, &pair, sink);
      continue;
    }
    uint64_t *partial = mgl_attend_partial(a, a->item.chunk, column);
    mgl_store_l2_whole(partial + row, make_uint4(__float_as_uint(pair.low), a->tag,
                                                 __float_as_uint(pair.high), a->tag));
    if (row == 0) {
      mgl_store_l2_whole(partial + MGL_HEAD_DIM, make_uint4(__float_as_uint(pair.max),
                                                            __float_as_uint(pair.sum), a->tag, 0));
    }
  }
  if (whole || !mgl_attend_merges(a)) {
    return;
  }
#pragma unroll 1
  for (uint32_t i = a->w->thread; i < pairs; i += MGL_CUDA_CONSUMERS) {
    const uint32_t column = i / (MGL_HEAD_DIM / 2), row = i % (MGL_HEAD_DIM / 2) * 2;
    const float sink = mgl_attend_sink(a, column);  // asked for before the chunks are awaited
    const mgl_attend_pair pair = mgl_attend_pair_of_chunks(a, column, row);
    mgl_attend_write_pair(a, column, row, &pair, sink);
  }
}

// Where a task has one item at most, and an item one tile a warp, and activations and partial
// results carry their readiness: the same arithmetic without what else there may be. The controller
// chooses it (mgl_attend_one_function). SEVERAL: tokens that the graph is for.
template <bool SEVERAL>
MGL_DEVICE void mgl_task_attend_one(mgl_worker *w) {
  mgl_attend a;
  if (!mgl_attend_begin(&a, w)) {
    if (mgl_task_begin(w) && SEVERAL) {
      mgl_attend_open_rest(w);
    }
    return;
  }
  a.known = true;
  a.item.count = 1;
  a.columns = mgl_attend_heads(&a);
  const uint32_t first = mgl_attend_first(&a, 0);
  const uint32_t page = a.slot->first.pages[w->warp];
  mgl_attend_tile tile = {};
  a.own_first = a.slot->first.own_first;
  if (first < a.cached_end) {
    mgl_attend_load_k(&a, page, &tile);
    mgl_attend_prefetch(&a, a.slot->op.v_cache, page);
  }
  mgl_decode_row row;
  mgl_attend_row words = {};
  mgl_decode_aim(&a, w->warp, &row);
  mgl_decode_ask(&a, &row, &words);
  if (first < a.cached_end) {
    mgl_attend_load_v(&a, page, &tile);
  }
  if (!mgl_task_wait(w)) {
    return;
  }
  mgl_decode_prepare(&a, &row, &words);
  mgl_task_began(w);
  mgl_sync_consumers();  // scratch has the rows of this iteration
  mgl_attend_state state = {};
  state.max[0] = state.max[1] = mgl_attend_unseen();
  if (first < a.item.kv_end) {
    const bool whole = first + MGL_ATTEND_TILE <= a.cached_end;
    float scores[4];
    uint32_t weights[2];
    if (!whole) {
      mgl_attend_patch_k(&a, first, &tile);
    }
    mgl_attend_scores(&a, (const uint16_t *)(w->scratch + MGL_ATTEND_Q), &tile, scores);
    if (!whole) {
      mgl_attend_patch_v(&a, first, &tile);
    }
    mgl_attend_softmax<true>(&a, first, scores, &state, weights);
    mgl_attend_values(&tile, weights, &state);
  }
  a.tag = a.slot->first.tag;
  a.partials = w->run->partials;
  mgl_sync_consumers();  // nobody reads the rows any more
  mgl_attend_publish(&a, &state);
  mgl_sync_consumers();  // scratch has what the warps made
  if constexpr (MGL_HEAD_DIM % 64 == 0 && MGL_HEAD_PARTS == 1) {
    mgl_attend_output_pairs(&a);
  } else {
    mgl_attend_output(&a);
  }
  if (SEVERAL) {
    mgl_attend_open_rest(w);
  }
}

#endif
