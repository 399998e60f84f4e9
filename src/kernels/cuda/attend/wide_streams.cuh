// Streams of the wide class's attention: sequences that decode.
//
// A stream is one warp's: it reads page after page through a ring of its own, which runs ahead over
// the borders of units, so that memory is asked without a pause. What a step executes counts, since
// warps that come last read alone: then a page takes as long as its instructions.
//
// Of a unit that is cut, whoever has its begin adds up all parts, in order (FlashDecoding's merge):
// it lies at the end of that share, all others have left theirs for it in memory, and none of them
// has to wait. Words carry their own readiness: what is not written yet is MGL_CUDA_OPEN, a NaN
// that no computation makes, and becomes that again for the next layer.
//
// Rejected: bulk copies, which are not in sm_80 and leave K's rows unswizzled; a merge of the whole
// block, which needs barriers; whoever ends last merges, which takes a counter's trips to the L2
// behind the last page (docs/log/138).
#ifndef MGL_KERNELS_CUDA_ATTEND_WIDE_STREAMS_CUH
#define MGL_KERNELS_CUDA_ATTEND_WIDE_STREAMS_CUH

#include "kernels/cuda/small/wide_rows.cuh"

enum {
  MGL_STREAM_STAGE = 2 * MGL_PAGE_BYTES_K,
  // Warps that read: all, or each of half of them two shares, where not all can have a ring.
  MGL_STREAM_WARPS = MGL_ATTEND_BYTES / MGL_WIDE_WARPS / MGL_STREAM_STAGE >= 3 ? MGL_WIDE_WARPS
                                                                               : MGL_WIDE_WARPS / 2,
  MGL_STREAM_SHARES = MGL_WIDE_WARPS / MGL_STREAM_WARPS,  // of a warp: what the work list calls so
  MGL_STREAM_STAGES = MGL_ATTEND_BYTES / MGL_STREAM_WARPS / MGL_STREAM_STAGE > 8
                          ? 8
                          : MGL_ATTEND_BYTES / MGL_STREAM_WARPS / MGL_STREAM_STAGE,
  MGL_STREAM_PARTIAL = MGL_WIDE_STREAM_ROWS * (MGL_HEAD_DIM + 8),  // floats
};

static_assert(MGL_STREAM_STAGES >= MGL_WIDE_ATTEND_AHEAD, "pages in flight");

// Attention waits at this gate, a phase of an mbarrier, before it reads what the iteration itself
// writes. Without a barrier all is there.
typedef struct mgl_attend_gate {
  uint64_t *barrier;
  uint32_t parity;
  const mgl_word *fault;  // not 0: the launch was ended, and nobody waits any more; or NULL
} mgl_attend_gate;

MGL_DEVICE void mgl_wide_pass(const mgl_attend_gate *gate) {
  if (gate->barrier != nullptr) {
    mgl_mbarrier_wait(gate->barrier, gate->parity);
  }
}

// Warps of all workers have consecutive shares of the line.
MGL_DEVICE const mgl_wide_cut *mgl_stream_cut(const mgl_wide_attention *a, uint32_t party) {
  return &a->work->stream_cuts[(size_t)party * MGL_STREAM_SHARES];
}

// --- loads ---------------------------------------------------------------------------------------

// A warp's ring of pages, and what it asks for next.
typedef struct mgl_stream_feed {
  const mgl_wide_attention *a;
  mgl_wide_cut at, end;
  uint32_t stop;   // step behind the part at `at`; 0: nothing is left
  uint32_t seen;   // positions of the unit
  uint32_t fresh;  // steps from there on have rows of this iteration
  uint32_t slot;
  uint32_t pages;       // of steps first_step + lane
  uint32_t first_step;  // UINT32_MAX: the unit is new
  uint32_t ring;        // shared address
  uint32_t stage;
  uint32_t lane;
  uint32_t k_to, v_to;  // where the lane's first chunks go in a stage
} mgl_stream_feed;

MGL_DEVICE void mgl_stream_open(mgl_stream_feed *f) {
  const mgl_wide_item *item = &f->a->work->items[f->at.item];
  f->seen = item->position + item->count;
  f->fresh = item->position / MGL_WIDE_STREAM_STEP;
  f->slot = item->slot;
  f->stop = f->at.item == f->end.item && f->at.head == f->end.head ? f->end.step : item->steps;
}

// A page of which only the first `left` positions are seen; the rest becomes zeros.
MGL_DEVICE void mgl_stream_copy_some(const uint16_t *k, const uint16_t *v, uint32_t to,
                                     uint32_t lane, uint32_t left) {
#pragma unroll 1
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 16; i++) {
    const uint32_t chunk = lane + 32 * i;
    const uint32_t row = chunk / MGL_ROW_CHUNKS;
    const uint32_t before = chunk % 2 * 8;
    const uint32_t count = left <= before ? 0 : left - before < 8 ? left - before : 8;
    mgl_copy_async(to + mgl_slab_offset<MGL_WIDE_STREAM_STEP>(row, chunk % MGL_ROW_CHUNKS),
                   k + i * 256, row < left ? 16 : 0);
    mgl_copy_async(to + MGL_PAGE_BYTES_K + mgl_v_offset(chunk / 2, chunk % 2), v + i * 256,
                   count * 2);
  }
}

// Asks for a page's K and V of one KV head. Chunks of a lane are 32 apart: whole rows of K, where
// rows have a power of two of them, so that only swizzles differ, and 16 rows of V.
MGL_DEVICE void mgl_stream_copy(const mgl_stream_feed *f, uint32_t page) {
  constexpr bool whole_rows = 32 % MGL_ROW_CHUNKS == 0;
  const size_t offset = mgl_wide_page_offset(f->a, page, f->at.head) + f->lane * 8;
  const uint16_t *k = f->a->k_cache + offset, *v = f->a->v_cache + offset;
  const uint32_t to = f->ring + f->stage * MGL_STREAM_STAGE;
  const uint32_t left = f->seen - f->at.step * MGL_WIDE_STREAM_STEP;  // positions from here on
  if (left < MGL_WIDE_STREAM_STEP) {
    mgl_stream_copy_some(k, v, to, f->lane, left);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 16; i++) {
    constexpr uint32_t rows = 32 / MGL_ROW_CHUNKS;  // whose numbers have no bits in common with
    const uint32_t more = mgl_slab_offset<MGL_WIDE_STREAM_STEP>(i * rows, 0);  // those of i * rows
    const uint32_t chunk = f->lane + 32 * i;
    const uint32_t at = whole_rows ? ((to + f->k_to) ^ more % MGL_SLAB_BYTES) +
                                         more / MGL_SLAB_BYTES * MGL_SLAB_BYTES
                                   : to + mgl_slab_offset<MGL_WIDE_STREAM_STEP>(
                                              chunk / MGL_ROW_CHUNKS, chunk % MGL_ROW_CHUNKS);
    mgl_copy_async_once(at, k + i * 256);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_HEAD_DIM / 16; i++) {
    mgl_copy_async_once(to + f->v_to + i * 512, v + i * 256);
  }
}

// The unit behind the one at `at`, if the share has one.
MGL_DEVICE void mgl_stream_next(mgl_stream_feed *f) {
  f->at.step--;  // take moves on from inside the part
  (void)mgl_wide_take(&f->at, &f->end, f->stop, f->a->kv_heads);
  f->stop = 0;
  if (mgl_wide_before(&f->at, &f->end)) {
    mgl_stream_open(f);
    f->first_step = UINT32_MAX;
  }
}

// Asks for the next page, if there is one. A group in any case.
MGL_DEVICE void mgl_stream_feed_one(mgl_stream_feed *f) {
  if (f->at.step < f->stop) {
    if (f->first_step == UINT32_MAX || f->at.step - f->first_step >= 32) {
      f->first_step = f->at.step;
      uint32_t position = (f->at.step + f->lane) * MGL_WIDE_STREAM_STEP;
      f->pages = position < f->seen ? mgl_wide_page(f->a, f->slot, position) : 0;
    }
    mgl_stream_copy(f, __shfl_sync(0xffffffffu, f->pages, (int)(f->at.step - f->first_step)));
    if (++f->at.step == f->stop) {
      mgl_stream_next(f);
    }
  }
  mgl_copy_commit();
  f->stage = f->stage + 1 == MGL_STREAM_STAGES ? 0 : f->stage + 1;
}

// Fills the ring with a share's first pages: those that were there before the iteration at once,
// the others once the gate is open, and so it is afterwards.
MGL_DEVICE void mgl_stream_fill(mgl_stream_feed *f, const mgl_attend_gate *gate) {
  bool open = false;
#pragma unroll 1
  for (uint32_t i = 0; i < MGL_STREAM_STAGES; i++) {
    if (!open && f->at.step < f->stop && f->at.step >= f->fresh) {
      mgl_wide_pass(gate);
      open = true;
    }
    mgl_stream_feed_one(f);
  }
  if (!open) {
    mgl_wide_pass(gate);
  }
}

// --- parts of units ------------------------------------------------------------------------------

// A warp's rows of queries, up to eight: the columns of its products, since then positions and
// dims are their rows, of which there are 16, and nothing is computed twice. Lane 4 g + t has rows
// 2 t and 2 t + 1.
typedef struct mgl_stream_rows {
  float values[MGL_HEAD_STEPS][4];  // of each 16 dims: (g, row 2 t), (g, 2 t + 1), then of g + 8
  float max[2];
  float sum[2];       // of this lane's positions
  uint32_t limit[2];  // positions that the row sees
} mgl_stream_rows;

MGL_DEVICE void mgl_stream_clear(const mgl_wide_item *item, uint32_t lane, mgl_stream_rows *rows) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
    rows->values[j][0] = rows->values[j][1] = rows->values[j][2] = rows->values[j][3] = 0;
  }
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    rows->max[r] = mgl_wide_unseen();
    rows->sum[r] = 0;
    rows->limit[r] = item->position + (lane % 4 * 2 + r) / MGL_GROUP + 1;
  }
}

// The queries of a unit: the B operands of the scores, of row g.
MGL_DEVICE void mgl_stream_load_q(const mgl_wide_attention *a, const mgl_wide_item *item,
                                  uint32_t kv_head, uint32_t lane, uint32_t q[MGL_HEAD_STEPS][2]) {
  const uint32_t heads = a->kv_heads * MGL_GROUP;
  uint32_t token, head;
  mgl_wide_row_of(a, item, kv_head, lane / 4, &token, &head);
  const bool present = lane / 4 < item->count * MGL_GROUP;
  const uint16_t *from = a->q + ((size_t)token * heads + head) * MGL_HEAD_DIM + lane % 4 * 2;
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    q[s][0] = present ? mgl_load_l2_word(from + s * 16) : 0;
    q[s][1] = present ? mgl_load_l2_word(from + s * 16 + 8) : 0;
  }
}

// A lane's addresses for ldmatrix, relative to a page: rows 0 to 15 of the first half, then of the
// second one, so that four matrices are the A operand of a product.
MGL_DEVICE mgl_wide_lanes mgl_stream_lanes_of(uint32_t lane) {
  const uint32_t row = lane % 16, chunk = lane / 16;
  mgl_wide_lanes l;
  l.row = mgl_slab_offset<MGL_WIDE_STREAM_STEP>(row, chunk) / MGL_SLAB_BYTES * MGL_SLAB_BYTES;
  l.chunk = mgl_slab_offset<MGL_WIDE_STREAM_STEP>(row, chunk) % MGL_SLAB_BYTES;
  l.v = mgl_v_offset(row, chunk);
  return l;
}

// K of a page: 16 positions, by 16 dims a product; all of it before the first product.
MGL_DEVICE void mgl_stream_load_k(uint32_t k, const mgl_wide_lanes *lanes,
                                  uint32_t a[MGL_HEAD_STEPS][4]) {
  constexpr uint32_t steps = MGL_SLAB / 16;
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    mgl_load_matrices(k + s / steps * (MGL_WIDE_STREAM_STEP * MGL_SLAB_BYTES) + lanes->row +
                          (lanes->chunk ^ (s % steps * 32)),
                      a[s]);
  }
}

// V of a page: 16 dims a product, at 16 positions.
MGL_DEVICE void mgl_stream_load_v(uint32_t v, const mgl_wide_lanes *lanes,
                                  uint32_t a[MGL_HEAD_STEPS][4]) {
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
    mgl_load_matrices(v + lanes->v + j * (16 * 32), a[j]);
  }
}

// Scores of a page: (position g, row 2 t), (g, 2 t + 1), then of position g + 8. Two chains of
// products, since one waits for itself.
MGL_DEVICE void mgl_stream_scores(const uint32_t k[MGL_HEAD_STEPS][4],
                                  const uint32_t q[MGL_HEAD_STEPS][2], float scores[4]) {
  float odd[4] = {0, 0, 0, 0};
  scores[0] = scores[1] = scores[2] = scores[3] = 0;
#pragma unroll
  for (uint32_t s = 0; s < MGL_HEAD_STEPS; s++) {
    mgl_mma(s % 2 == 0 ? scores : odd, k[s], q[s][0], q[s][1]);
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    scores[i] += odd[i];
  }
}

// Scores that a row does not see become minus infinity. first: position of the page.
MGL_DEVICE void mgl_stream_mask(const mgl_stream_rows *rows, uint32_t first, uint32_t lane,
                                float scores[4]) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    if (first + i / 2 * 8 + lane / 4 >= rows->limit[i % 2]) {
      scores[i] = mgl_wide_unseen();
    }
  }
}

// Over all positions of a row.
MGL_DEVICE float mgl_stream_max(float x) {
#pragma unroll
  for (uint32_t offset = 4; offset < 32; offset *= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

// Scores become weights relative to the rows' new maxima, and what the rows have of values follows
// where a maximum has grown.
MGL_DEVICE void mgl_stream_weigh(float scores[4], mgl_stream_rows *rows) {
  float base[2], decay[2];
  bool grown = false;
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const float max = fmaxf(rows->max[r], mgl_stream_max(fmaxf(scores[r], scores[r + 2])));
    grown = grown || max != rows->max[r];
    base[r] = max == mgl_wide_unseen() ? 0.0f : max;
    decay[r] = mgl_exp2(rows->max[r] - base[r]);
    rows->max[r] = max;
    scores[r] = mgl_exp2(scores[r] - base[r]);
    scores[r + 2] = mgl_exp2(scores[r + 2] - base[r]);
    rows->sum[r] = rows->sum[r] * decay[r] + (scores[r] + scores[r + 2]);
  }
  if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        rows->values[j][i] *= decay[i % 2];
      }
    }
  }
}

// Eight positions of two rows each become two positions of a row each: a transposed matrix.
MGL_DEVICE uint32_t mgl_stream_turn(float first, float second) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(out)
               : "r"(mgl_pack_bf16(first, second)));
  return out;
}

// Adds the values of a page, whose weights are `weights`.
MGL_DEVICE void mgl_stream_values(const uint32_t v[MGL_HEAD_STEPS][4], const float weights[4],
                                  mgl_stream_rows *rows) {
  const uint32_t low = mgl_stream_turn(weights[0], weights[1]);
  const uint32_t high = mgl_stream_turn(weights[2], weights[3]);
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
    mgl_mma(rows->values[j], v[j], low, high);
  }
}

// The rows' sums of weights, from those of lanes.
MGL_DEVICE void mgl_stream_sum(mgl_stream_rows *rows) {
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
    for (uint32_t offset = 4; offset < 32; offset *= 2) {
      rows->sum[r] += __shfl_xor_sync(0xffffffffu, rows->sum[r], offset);
    }
  }
}

// The output of a unit, whose sums are the rows'. Lanes of even g take the first of their rows,
// those of odd g the second: of every 32 dims the 16 bytes that lie together (wide_layout.h).
MGL_DEVICE void mgl_stream_write(const mgl_wide_attention *a, const mgl_wide_item *item,
                                 uint32_t kv_head, uint32_t lane, const mgl_stream_rows *rows) {
  const bool odd = lane / 4 % 2 != 0;
  const uint32_t row = lane % 4 * 2 + (odd ? 1 : 0);
  const float factors[2] = {1.0f / rows->sum[0], 1.0f / rows->sum[1]};
  uint32_t token, head;
  mgl_wide_row_of(a, item, kv_head, row, &token, &head);
#pragma unroll
  for (uint32_t j = 0; j < MGL_HEAD_DIM / 32; j++) {
    float keep[4], give[4];  // dims g, g + 8, g + 16, g + 24
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
      const float *v = &rows->values[2 * j + c / 2][c % 2 * 2];
      keep[c] = odd ? v[1] * factors[1] : v[0] * factors[0];
      give[c] = odd ? v[0] * factors[0] : v[1] * factors[1];
    }
    uint32_t words[4];
#pragma unroll
    for (uint32_t c = 0; c < 4; c += 2) {
      const uint32_t own = mgl_pack_bf16(keep[c], keep[c + 1]);
      const uint32_t got = __shfl_xor_sync(0xffffffffu, mgl_pack_bf16(give[c], give[c + 1]), 4);
      const uint32_t even_g = odd ? got : own, odd_g = odd ? own : got;
      words[c] = __byte_perm(even_g, odd_g, 0x5410);
      words[c + 1] = __byte_perm(even_g, odd_g, 0x7632);
    }
    if (row < item->count * MGL_GROUP) {
      const uint32_t chunk = (head * (MGL_HEAD_DIM / 32) + j) * 4 + lane / 8;
      *(uint4 *)(a->out + mgl_wide_x_chunk(a->tokens, token, chunk)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// --- merging -------------------------------------------------------------------------------------

// The partial result of a warp, of a unit that others began, in pieces of four: values [steps]
// [lanes], then [t] maxima and sums of weights. Lanes whose rows there are not have none.
MGL_DEVICE uint4 *mgl_stream_partial(const mgl_wide_attention *a, uint32_t party) {
  return (uint4 *)(a->stream_partials + (size_t)party * MGL_STREAM_PARTIAL);
}

MGL_DEVICE void mgl_stream_leave(uint4 *to, float x, float y, float z, float w) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x), "f"(y),
               "f"(z), "f"(w)
               : "memory");
}

MGL_DEVICE void mgl_stream_store(uint4 *partial, bool present, uint32_t lane,
                                 const mgl_stream_rows *rows) {
  if (present) {
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
      const float *v = rows->values[j];
      mgl_stream_leave(partial + j * 32 + lane, v[0], v[1], v[2], v[3]);
    }
    if (lane < 4) {
      mgl_stream_leave(partial + MGL_HEAD_STEPS * 32 + lane, rows->max[0], rows->max[1],
                       rows->sum[0], rows->sum[1]);
    }
  }
}

// A lane's share of what another warp has left, as far as it is there.
typedef struct mgl_stream_left {
  uint4 values[MGL_HEAD_STEPS];
  uint4 softmax;
} mgl_stream_left;

// Until all of it is there, or the launch is ended. Between two looks at all of it only maxima and
// sums are asked for: many warps wait while others still read. Lanes without rows look too, since
// branches around these loads cost registers everywhere else.
MGL_DEVICE void mgl_stream_await(const uint4 *partial, bool present, uint32_t lane,
                                 const mgl_attend_gate *gate, mgl_stream_left *left) {
  const uint4 *softmax = partial + MGL_HEAD_STEPS * 32 + lane % 4;
  for (;;) {
    left->softmax = mgl_load_l2(softmax);
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
      left->values[j] = mgl_load_l2(partial + j * 32 + lane);
    }
    uint32_t most =
        max(max(left->softmax.x, left->softmax.y), max(left->softmax.z, left->softmax.w));
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
      const uint4 v = left->values[j];
      most = max(most, max(max(v.x, v.y), max(v.z, v.w)));
    }
    if (!__any_sync(0xffffffffu, present && most == MGL_CUDA_OPEN)) {
      return;
    }
    while (__any_sync(0xffffffffu, present && mgl_has_open(mgl_load_l2(softmax)))) {
      if (gate->fault != nullptr && mgl_load_relaxed(gate->fault) != 0) {
        return;
      }
    }
  }
}

// Adds what a warp has left, and opens its place again.
MGL_DEVICE void mgl_stream_add(uint4 *partial, bool present, uint32_t lane,
                               const mgl_attend_gate *gate, mgl_stream_rows *rows) {
  const float open = __uint_as_float(MGL_CUDA_OPEN);
  mgl_stream_left left;
  mgl_stream_await(partial, present, lane, gate, &left);
  if (present) {
    float first[2], second[2];
    mgl_wide_join(rows, 0, __uint_as_float(left.softmax.x), __uint_as_float(left.softmax.z), first);
    mgl_wide_join(rows, 1, __uint_as_float(left.softmax.y), __uint_as_float(left.softmax.w),
                  second);
#pragma unroll
    for (uint32_t j = 0; j < MGL_HEAD_STEPS; j++) {
      float *v = rows->values[j];
      const uint4 l = left.values[j];
      v[0] = fmaf(first[1], __uint_as_float(l.x), v[0] * first[0]);
      v[1] = fmaf(second[1], __uint_as_float(l.y), v[1] * second[0]);
      v[2] = fmaf(first[1], __uint_as_float(l.z), v[2] * first[0]);
      v[3] = fmaf(second[1], __uint_as_float(l.w), v[3] * second[0]);
      mgl_stream_leave(partial + j * 32 + lane, open, open, open, open);
    }
  }
  __syncwarp();  // eight lanes look at the same maxima
  if (present && lane < 4) {
    mgl_stream_leave(partial + MGL_HEAD_STEPS * 32 + lane, open, open, open, open);
  }
}

// Returns which of the 32 parties from `first` on have parts of the unit that party first - 1 or
// one before it began. *more says that there may be others behind them.
MGL_DEVICE uint32_t mgl_stream_others(const mgl_wide_attention *a, const mgl_wide_part *part,
                                      uint32_t first, uint32_t lane, bool *more) {
  // Behind the line's last cut nobody looks: that one is in no unit.
  const mgl_wide_cut *cut = mgl_stream_cut(a, first + lane);
  const mgl_wide_cut *next = mgl_stream_cut(a, first + lane + 1);
  const bool inside = cut->item == part->item && cut->head == part->head && cut->step != 0;
  const uint32_t outside = ~__ballot_sync(0xffffffffu, inside);
  const uint32_t has_part = __ballot_sync(0xffffffffu, mgl_wide_before(cut, next));
  *more = outside == 0;
  return outside == 0 ? has_part : has_part & ((outside & (0u - outside)) - 1);
}

// Adds the parts of the parties behind `party`, which began the unit. others: of the first 32.
MGL_DEVICE void mgl_stream_merge(const mgl_wide_attention *a, const mgl_wide_part *part,
                                 bool present, uint32_t party, uint32_t lane,
                                 const mgl_attend_gate *gate, uint32_t others, bool more,
                                 mgl_stream_rows *rows) {
  uint32_t first = party + 1;
#pragma unroll 1
  while (others != 0 || more) {
    if (others == 0) {
      first += 32;
      others = mgl_stream_others(a, part, first, lane, &more);
      continue;
    }
    const uint32_t other = first + ((uint32_t)__ffs((int)others) - 1);
    mgl_stream_add(mgl_stream_partial(a, other), present, lane, gate, rows);
    others &= others - 1;
  }
}

// The part of a unit that this warp has: to the output, with all others' parts if this is the
// first, or to memory.
MGL_DEVICE void mgl_stream_part(const mgl_wide_attention *a, const mgl_wide_part *part,
                                const mgl_wide_lanes *lanes, const mgl_attend_gate *gate,
                                mgl_stream_feed *feed, uint32_t party) {
  const uint32_t lane = feed->lane;
  const mgl_wide_item item = a->work->items[part->item];
  const bool present = lane % 4 * 2 < item.count * MGL_GROUP;
  const bool merges = part->begin == 0 && part->end != item.steps;
  bool more = false;
  uint32_t q[MGL_HEAD_STEPS][2];
  mgl_stream_rows rows;
  mgl_stream_load_q(a, &item, part->head, lane, q);
  const uint32_t others = merges ? mgl_stream_others(a, part, party + 1, lane, &more) : 0;
  mgl_stream_clear(&item, lane, &rows);
#pragma unroll 1
  for (uint32_t step = part->begin; step < part->end; step++) {
    mgl_copy_wait<MGL_STREAM_STAGES - 1>();
    __syncwarp();
    const uint32_t at = feed->ring + feed->stage * MGL_STREAM_STAGE;  // the next to be filled
    const uint32_t first = step * MGL_WIDE_STREAM_STEP;
    uint32_t k[MGL_HEAD_STEPS][4], v[MGL_HEAD_STEPS][4];
    float scores[4];
    mgl_stream_load_k(at, lanes, k);
    mgl_stream_scores(k, q, scores);
    mgl_stream_load_v(at + MGL_PAGE_BYTES_K, lanes, v);
    if (first + MGL_WIDE_STREAM_STEP > item.position + 1) {
      mgl_stream_mask(&rows, first, lane, scores);
    }
    mgl_stream_weigh(scores, &rows);
    mgl_stream_values(v, scores, &rows);
    __syncwarp();  // the stage may be filled again
    mgl_stream_feed_one(feed);
  }
  mgl_stream_sum(&rows);
  if (part->begin != 0) {
    mgl_stream_store(mgl_stream_partial(a, party), present, lane, &rows);
    return;
  }
  mgl_stream_merge(a, part, present, party, lane, gate, others, more, &rows);
  mgl_stream_write(a, &item, part->head, lane, &rows);
}

// The share of one warp, `party` among all workers'; ring: shared address.
MGL_DEVICE void mgl_stream_share(const mgl_wide_attention *a, uint32_t ring, uint32_t party,
                                 uint32_t lane, const mgl_attend_gate *gate) {
  const mgl_wide_lanes lanes = mgl_stream_lanes_of(lane);
  mgl_wide_cut at = *mgl_stream_cut(a, party);
  mgl_stream_feed feed = {};
  feed.a = a;
  feed.at = at;
  feed.end = *mgl_stream_cut(a, party + 1);
  feed.ring = ring;
  asm volatile("" : "+r"(feed.ring));  // a register, not to be found again for each page
  feed.lane = lane;
  feed.slot = at.slot;
  feed.first_step = at.step;
  feed.k_to = mgl_slab_offset<MGL_WIDE_STREAM_STEP>(lane / MGL_ROW_CHUNKS, lane % MGL_ROW_CHUNKS);
  feed.v_to = MGL_PAGE_BYTES_K + mgl_v_offset(lane / 2, lane % 2);
  if (mgl_wide_before(&at, &feed.end)) {  // pages of the first unit, before its item is there
    const uint32_t index = at.step + lane;
    feed.pages =
        index < a->block_table_stride ? mgl_wide_page(a, at.slot, index * MGL_WIDE_STREAM_STEP) : 0;
    mgl_stream_open(&feed);
  }
  mgl_stream_fill(&feed, gate);
#pragma unroll 1
  while (mgl_wide_before(&at, &feed.end)) {
    const mgl_wide_part part =
        mgl_wide_take(&at, &feed.end, a->work->items[at.item].steps, a->kv_heads);
    mgl_stream_part(a, &part, &lanes, gate, &feed, party);
  }
  mgl_copy_wait<0>();
}

// Behind it the gate is open.
MGL_DEVICE void mgl_wide_streams(const mgl_wide_attention *a, uint8_t *smem, uint32_t worker,
                                 uint32_t thread, const mgl_attend_gate *gate) {
  const uint32_t warp = thread / 32, lane = thread % 32;
  const uint32_t ring = mgl_shared_address(smem) + warp * (MGL_STREAM_STAGES * MGL_STREAM_STAGE);
  if (warp < MGL_STREAM_WARPS) {
    mgl_stream_share(a, ring, worker * MGL_STREAM_WARPS + warp, lane, gate);
  } else {
    mgl_wide_pass(gate);
  }
}

#endif
