// The tasks of a mixture's experts for several tokens: each expert that some token has is read
// once, and multiplied with all of them at once.
//
// The loader of each worker finds out who has which (roles/loader_experts.cuh).
//
//   - Of gate and up, the line of all row blocks of all parts (common/experts.cuh) is cut as the
//     task's share of S * F features is, so into equal lengths, whatever tokens choose. The rows of
//     a part are the columns of its products; their x come from the L2 when a part begins.
//   - Of down a task has its row blocks of all experts that a pass of 16 rows hits, one expert
//     after the other. What a row does not have is 0 there.
//
// A row gets the bits that it gets alone (tasks_experts.cuh). There a warp has every eighth slice
// of a row of all slots; so which warp has a slice of an expert depends on the slot. Here a warp
// computes an expert's slice of down once for each such phase that a row of the pass has, with the
// columns of these rows: each of them has its sums by the same warps in the same order, slots
// ascending as their experts do.
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_EXPERTS_ROWS_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_EXPERTS_ROWS_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/linear/tasks_linear_rows.cuh"

enum {
  MGL_HIT_TILES = MGL_EXPERT_PASS_ROWS / 8,
  MGL_HIT_GROUPS = MGL_EXPERT_WIDTH / (MGL_GROUP_PAGES * MGL_CUDA_PAGE_K),
  MGL_HIT_UP_BLOCKS = MGL_EXPERT_FEATURES / MGL_CUDA_HALF_ROWS,  // of an expert
  // Sums of squares of both: as of two tiles.
  MGL_HIT_SQUARES_AT = mgl_linear_shape<2>::SUMS_AT,
};

// Partial sums of a row block with 8 * TILES rows; two buffers in turn.
template <int TILES>
struct mgl_hit_shape {
  static constexpr int FLOATS = TILES * 8 * MGL_CUDA_BLOCK_ROWS;  // of a warp
  static constexpr int BYTES = FLOATS * MGL_CUDA_CONSUMER_WARPS * (int)sizeof(float);
  static constexpr int SECOND_AT = TILES == 1 ? BYTES : (int)MGL_EXPERT_SUMS_AT;
  static_assert(FLOATS <= MGL_CUDA_CONSUMERS, "a thread has one output at most");
  static_assert((TILES == 1 ? 2 : 1) * BYTES <= MGL_EXPERT_ROUTES_AT, "routes lie behind");
  static_assert(!MGL_EXPERTS_BY_HITS || SECOND_AT + BYTES <= MGL_HIT_SQUARES_AT, "squares, too");
};

// --- hits and parts ------------------------------------------------------------------------------

MGL_DEVICE uint32_t mgl_expert_word(const mgl_worker *w, uint32_t at) {
  return mgl_load_shared_word(mgl_shared_address(w->scratch) + at);
}

MGL_DEVICE uint32_t mgl_hit_count(const mgl_worker *w, uint32_t pass) {
  return mgl_expert_word(w, MGL_EXPERT_COUNTS_AT + pass * (uint32_t)sizeof(uint32_t));
}

// The slots of a pass's rows that are hit number `hit`, four bits each.
MGL_DEVICE uint64_t mgl_hit_slots(const mgl_worker *w, uint32_t pass, uint32_t hit) {
  const uint32_t at =
      MGL_EXPERT_HITS_AT + (pass * MGL_EXPERT_MOST_HITS + hit) * MGL_EXPERT_HIT_BYTES;
  return mgl_expert_word(w, at + 8) | (uint64_t)mgl_expert_word(w, at + 12) << 32;
}

MGL_DEVICE uint32_t mgl_hit_slot(uint64_t slots, uint32_t row) {
  return (uint32_t)(slots >> 4 * row) & 15;
}

// A part's column: a row of the iteration and which of its slots the part's expert is.
struct mgl_part_column {
  uint32_t row, slot;
  bool there;
};

MGL_DEVICE mgl_part_column mgl_part_find(const mgl_worker *w, uint32_t part, uint32_t column) {
  const uint32_t at = MGL_EXPERT_PARTS_AT + part * MGL_EXPERT_HIT_BYTES;
  const uint32_t expert = mgl_expert_word(w, at);
  uint64_t rows = mgl_expert_word(w, at + 8) | (uint64_t)mgl_expert_word(w, at + 12) << 32;
  for (uint32_t i = mgl_expert_word(w, at + 4) + column; i > 0; i--) {
    rows &= rows - 1;
  }
  mgl_part_column out = {0, 0, rows != 0};
  out.row = rows != 0 ? (uint32_t)__ffsll((long long)rows) - 1 : 0;
  const uint32_t routes =
      MGL_EXPERT_ROUTES_AT + out.row * (MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES);
#pragma unroll
  for (uint32_t slot = 1; slot < MGL_EXPERT_SLOTS; slot++) {
    out.slot =
        mgl_expert_word(w, routes + slot * MGL_EXPERT_ROUTE_BYTES) == expert ? slot : out.slot;
  }
  return out;
}

// --- a row block ---------------------------------------------------------------------------------

// The sums of this warp, for all to see.
template <int TILES>
MGL_DEVICE void mgl_hit_share_sums(const mgl_worker *w, uint32_t buffer,
                                   const float sums[TILES][4]) {
  using shape = mgl_hit_shape<TILES>;
  const uint32_t at = mgl_shared_address(w->scratch) + (buffer != 0 ? shape::SECOND_AT : 0) +
                      w->warp * (shape::FLOATS * (uint32_t)sizeof(float)) +
                      mgl_rows_quad(w->lane / 4, w->lane % 4) * 16;
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    mgl_store_shared(at + i * 512, mgl_rows_pack<TILES>(sums, i));
  }
}

// This thread's output: of row thread / 16 of the columns and of feature thread % 16.
template <int TILES>
MGL_DEVICE float mgl_hit_total(const mgl_worker *w, uint32_t buffer) {
  using shape = mgl_hit_shape<TILES>;
  const float *partial =
      (const float *)(w->scratch + (buffer != 0 ? shape::SECOND_AT : 0)) +
      mgl_rows_place<TILES>(w->thread / MGL_CUDA_BLOCK_ROWS, w->thread % MGL_CUDA_BLOCK_ROWS);
  return mgl_sum_of_warps<shape::FLOATS>(partial);
}

// A page is in registers: the loader may fill it again.
MGL_DEVICE void mgl_hit_release(mgl_worker *w, uint32_t arrived) {
  const uint32_t released = mgl_shared_address(&w->block->page_free[w->page]) + arrived;
  __syncwarp();
  if (w->lane == 0) {
    mgl_mbarrier_arrive_at(released);
  }
  mgl_rows_next_page(w);
}

// A share of codes times a group's columns, added to sums.
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_hit_add_share(const mgl_worker *w, const mgl_linear *l,
                                  const mgl_linear_group<TILES> *x,
                                  const mgl_rows_scales<TILES, P> *scales,
                                  const mgl_share<P> *share, float sums[TILES][4]) {
  mgl_rows_made<TILES, P> made;
  if constexpr (mgl_coded<P>::WHOLE) {
    mgl_rows_multiply_whole<TILES, P>(l, x, share, 0, MGL_SHARE_SUMS, &made);
  } else {
    mgl_rows_multiply_f16<TILES, P>(x, share, &made);
  }
  mgl_rows_add_panel<TILES, P>(w, &made, share->scale, share->zero, scales, 0, MGL_SHARE_SUMS,
                               sums);
}

// --- gate and up ---------------------------------------------------------------------------------

// All of x of a part's rows, as operands.
template <mgl_packing P>
struct mgl_part_x {
  mgl_linear_group<1> group[MGL_HIT_GROUPS];
  mgl_rows_scales<1, P> scales[MGL_HIT_GROUPS];
};

template <mgl_packing P>
MGL_DEVICE void mgl_part_take_x(const mgl_worker *w, const mgl_linear *l, uint32_t part,
                                mgl_part_x<P> *x) {
  const mgl_part_column column = mgl_part_find(w, part, w->lane / 4);
  const uint32_t first = mgl_rows_first<P>(w, 0);
  mgl_rows_places<1> rows = {};
  float squares[2] = {0, 0};  // of the tile, and of the one that is not there
  rows.left = l->k - first;
  rows.there[0] = column.there;
  rows.at[0] = mgl_linear_x(l, column.row, first);
#pragma unroll
  for (int group = 0; group < MGL_HIT_GROUPS; group++) {
    mgl_rows_raw<1, true, MGL_ROWS_PIECES, P> raw;
    const uint32_t page = (uint32_t)group * MGL_GROUP_PAGES;
    mgl_rows_clear(&rows, page, 0, &raw);
    mgl_rows_ask(&rows, true, page, 0, MGL_ROWS_PIECES, &raw);
    mgl_rows_await(w, l, &rows, page, 0, &raw);
    mgl_rows_convert(w, &rows, page, 0, &raw, &x->group[group], squares);
    mgl_rows_operands<1, P>(w, &x->group[group], &x->scales[group]);
  }
  mgl_linear_share_squares<2>(w, squares);
}

// The products of a row block with all of x.
template <mgl_packing P>
MGL_DEVICE void mgl_part_block(mgl_worker *w, const mgl_linear *l, const mgl_part_x<P> *x,
                               float sums[1][4]) {
#pragma unroll
  for (int group = 0; group < MGL_HIT_GROUPS; group++) {
    if constexpr (P == MGL_PACKING_BF16) {
#pragma unroll
      for (int page = 0; page < MGL_GROUP_PAGES; page++) {
        uint4 weights[MGL_LINEAR_STEPS];
        mgl_linear_weights<true>(w, l, MGL_CUDA_PAGE_BYTES, weights);
        mgl_linear_page<1>(&x->group[group], page, weights, sums);
      }
    } else {
      constexpr int panels = mgl_coded<P>::PANELS;
      const int panel = group % panels;
      mgl_share<P> share;
      if (panel == 0) {
        mgl_page_wait(w);
      }
      mgl_read_share<P>(&l->share, mgl_rows_panel(w, l, panel), &share);
      if (panel + 1 == panels || group + 1 == MGL_HIT_GROUPS) {
        mgl_hit_release(w, mgl_share_arrived<P>(&share, l->zero));
      }
      mgl_hit_add_share<1, P>(w, l, &x->group[group], &x->scales[group], &share, sums);
    }
  }
}

// Asks for the bias of what a row block makes of this thread's column. block: of the expert's.
MGL_DEVICE void mgl_part_ask_bias(const mgl_worker *w, const mgl_linear *l, mgl_part_column column,
                                  uint32_t block, mgl_expert_biases<true> *out) {
  if (MGL_EXPERT_BIASES) {
    const uint32_t at = column.slot * MGL_EXPERT_FEATURES + block * MGL_CUDA_HALF_ROWS +
                        w->thread % MGL_CUDA_HALF_ROWS;
    mgl_expert_ask_biases<true>(w, l, column.row, at,
                                w->thread % MGL_CUDA_BLOCK_ROWS / MGL_CUDA_HALF_ROWS, column.there,
                                out);
  }
}

// Finishes and writes what a row block makes of this thread's column. block: of the expert's.
MGL_DEVICE void mgl_part_finish(const mgl_worker *w, const mgl_linear *l, uint32_t buffer,
                                mgl_part_column column, uint32_t block, float bias) {
  const uint32_t feature = w->thread % MGL_CUDA_BLOCK_ROWS;
  const bool there = column.there && feature < MGL_CUDA_HALF_ROWS;
  const float factor = mgl_linear_factor<MGL_HIT_SQUARES_AT>(w, l, w->thread / MGL_CUDA_BLOCK_ROWS);
  float value = mgl_hit_total<1>(w, buffer) * factor;
  if (MGL_EXPERT_BIASES) {
    value += bias;
  }
  const float up = __shfl_down_sync(0xffffffffu, value, MGL_CUDA_HALF_ROWS);
  const float weight = __uint_as_float(mgl_expert_word(
      w, MGL_EXPERT_ROUTES_AT +
             (column.row * MGL_EXPERT_SLOTS + column.slot) * MGL_EXPERT_ROUTE_BYTES + 4));
  const uint32_t bits = mgl_round_bf16(mgl_expert_activate(value, up, weight));
  const uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
  if (there && feature % 2 == 0 && !mgl_task_is_mute(w)) {
    const uint32_t at = column.slot * MGL_EXPERT_FEATURES + block * MGL_CUDA_HALF_ROWS + feature;
    mgl_write_word((uint8_t *)l->op->out + ((size_t)column.row * l->op->n + at) * sizeof(uint16_t),
                   bits | next << 16, mgl_task_slot(w), mgl_has_copies(l->op));
  }
}

// The task's share of all parts. False: the run has stopped before.
template <mgl_packing P>
MGL_DEVICE bool mgl_parts_run(mgl_worker *w, const mgl_linear *l) {
  const mgl_slot *slot = mgl_task_slot(w);
  constexpr uint32_t outputs = mgl_hit_shape<1>::FLOATS;
  if (!mgl_task_wait(w)) {
    return false;
  }
  mgl_page_wait(w);  // where the first page is, there are the parts
  const uint32_t parts = mgl_expert_word(w, MGL_EXPERT_PARTS_COUNT_AT);
  const uint32_t begin = mgl_part_share(slot->begin, parts);
  const uint32_t end = mgl_part_share(slot->end, parts);
  uint32_t buffer = 0;
#pragma unroll 1
  for (uint32_t i = begin; i < end;) {
    const uint32_t part = i / MGL_HIT_UP_BLOCKS;
    const uint32_t behind = min(end, (part + 1) * MGL_HIT_UP_BLOCKS);
    if (i > begin) {
      mgl_sync_consumers();  // the part before has read its sums of squares
    }
    mgl_part_x<P> x;
    mgl_part_take_x<P>(w, l, part, &x);
    const mgl_part_column column =
        mgl_part_find(w, part, w->thread / MGL_CUDA_BLOCK_ROWS % MGL_EXPERT_PART_ROWS);
    if (i == begin) {
      mgl_task_began(w);
    }
#pragma unroll 1
    for (; i < behind; i++, buffer ^= 1) {
      float sums[1][4] = {};
      mgl_expert_biases<true> bias = {};
      mgl_part_ask_bias(w, l, column, i % MGL_HIT_UP_BLOCKS, &bias);
      mgl_part_block<P>(w, l, &x, sums);
      mgl_hit_share_sums<1>(w, buffer, sums);
      mgl_sync_consumers();
      if (w->thread < outputs) {
        mgl_part_finish(w, l, buffer, column, i % MGL_HIT_UP_BLOCKS, bias.v[0]);
      }
    }
  }
  return true;
}

// --- down ----------------------------------------------------------------------------------------

// Of a row of all slots a warp has every eighth slice, 64 elements or a share of codes. Pages have
// as many slices of one expert as there are warps.
template <mgl_packing P>
struct mgl_hit_down {
  static constexpr uint32_t SLICE_K = P == MGL_PACKING_BF16 ? MGL_LINEAR_WARP_K : MGL_SHARE_K;
  static constexpr uint32_t PAGE_K = SLICE_K * MGL_CUDA_CONSUMER_WARPS;
  static constexpr uint32_t SLICES = MGL_EXPERT_FEATURES / SLICE_K;  // of an expert
  static constexpr uint32_t PAGES = (MGL_EXPERT_FEATURES + PAGE_K - 1) / PAGE_K;
  static constexpr uint32_t CHUNKS = SLICE_K / 32;
  // Pages whose x is asked for at once: a page takes less than the way to the L2, and what is asked
  // for lies in registers.
  static constexpr uint32_t AHEAD = P == MGL_PACKING_BF16 ? 4 : 2;
  // Phases are multiples of this, modulo 8.
  static constexpr uint32_t STEP = SLICES % 8 == 0   ? 8
                                   : SLICES % 4 == 0 ? 4
                                   : SLICES % 2 == 0 ? 2
                                                     : 1;
  // What a lane has of a page: eight elements of each chunk of the slice that is this warp's in its
  // token's slot; none: 8.
  uint4 v[MGL_HIT_TILES][CHUNKS];
  uint32_t phase[MGL_HIT_TILES];
};

static_assert(MGL_CUDA_CONSUMER_WARPS == 8, "phases");

// The slice of page `page` that this warp has where a slot begins in phase `phase`.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_hit_slice(const mgl_worker *w, uint32_t page, uint32_t phase) {
  return page * MGL_CUDA_CONSUMER_WARPS + (w->warp - phase) % MGL_CUDA_CONSUMER_WARPS;
}

// Asks for this lane's elements of page `at` of the line of all hits' pages, by lanes that want
// them. FIRST: for the first time; then what is not wanted is not there.
template <mgl_packing P, bool FIRST>
MGL_DEVICE void mgl_hit_ask(const mgl_worker *w, const mgl_linear *l, uint32_t pass, uint32_t at,
                            bool wanted, mgl_hit_down<P> *x) {
  using down = mgl_hit_down<P>;
  const uint64_t slots = mgl_hit_slots(w, pass, at / down::PAGES);
#pragma unroll
  for (int tile = 0; tile < MGL_HIT_TILES; tile++) {
    const uint32_t token = w->lane / 4 + tile * 8, row = l->first_row + token;
    const uint32_t slot = mgl_hit_slot(slots, token);
    const uint32_t phase = slot * down::SLICES % MGL_CUDA_CONSUMER_WARPS;
    const uint32_t slice = mgl_hit_slice<P>(w, at % down::PAGES, phase);
    const bool there =
        row < l->rows && slot < MGL_EXPERT_SLOTS && slice < down::SLICES && (!FIRST || wanted);
    const uint8_t *from = l->x + ((size_t)row * l->x_stride + slot * MGL_EXPERT_FEATURES +
                                  slice * down::SLICE_K + w->lane % 4 * 8) *
                                     sizeof(uint16_t);
    if (FIRST) {
      const uint32_t word = there ? MGL_CUDA_OPEN : 0;
      x->phase[tile] = there ? phase : (uint32_t)MGL_CUDA_CONSUMER_WARPS;
#pragma unroll
      for (uint32_t i = 0; i < down::CHUNKS; i++) {
        x->v[tile][i] = make_uint4(word, word, word, word);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < down::CHUNKS; i++) {
      mgl_load_l2_if(from + i * 32 * sizeof(uint16_t), wanted && there, &x->v[tile][i]);
    }
  }
}

template <mgl_packing P>
MGL_DEVICE void mgl_hit_await(const mgl_worker *w, const mgl_linear *l, uint32_t pass, uint32_t at,
                              mgl_hit_down<P> *x) {
  while (l->carried) {
    bool open = false;
#pragma unroll
    for (int tile = 0; tile < MGL_HIT_TILES; tile++) {
#pragma unroll
      for (uint32_t i = 0; i < mgl_hit_down<P>::CHUNKS; i++) {
        open = open || mgl_has_open(x->v[tile][i]);
      }
    }
    if (!__any_sync(0xffffffffu, open) || w->block->stop != 0) {
      return;
    }
    mgl_hit_ask<P, false>(w, l, pass, at, open, x);
  }
}

// The columns of those tokens whose slots begin in a phase. False: there are none.
template <mgl_packing P>
MGL_DEVICE bool mgl_hit_columns(const mgl_hit_down<P> *x, uint32_t phase,
                                mgl_linear_group<MGL_HIT_TILES> *out) {
  bool any = false;
#pragma unroll
  for (int tile = 0; tile < MGL_HIT_TILES; tile++) {
    const bool mine = x->phase[tile] == phase;
    any = any || mine;
#pragma unroll
    for (uint32_t i = 0; i < mgl_hit_down<P>::CHUNKS; i++) {
      const uint4 v = x->v[tile][i];
      out->x[tile][i / 2][i % 2] = mine ? v : make_uint4(0, 0, 0, 0);
    }
  }
  return __any_sync(0xffffffffu, any);
}

// A page's products, added to sums.
template <mgl_packing P>
MGL_DEVICE void mgl_hit_down_page(mgl_worker *w, mgl_linear *l, uint32_t at,
                                  const mgl_hit_down<P> *x, float sums[MGL_HIT_TILES][4]) {
  using down = mgl_hit_down<P>;
  const uint32_t from = mgl_shared_address(w->pages) + w->page * MGL_PAGE_BYTES;
  uint32_t arrived = 0;
  mgl_page_wait(w);
#pragma unroll 1
  for (uint32_t phase = 0; phase < MGL_CUDA_CONSUMER_WARPS; phase += down::STEP) {
    mgl_linear_group<MGL_HIT_TILES> columns;
    if (!mgl_hit_columns<P>(x, phase, &columns)) {
      continue;
    }
    const uint32_t slice = mgl_hit_slice<P>(w, 0, phase);  // of those in the page
    if constexpr (P == MGL_PACKING_BF16) {
      uint4 weights[MGL_LINEAR_STEPS];
#pragma unroll
      for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
        weights[step] =
            mgl_load_shared(from + (slice * MGL_LINEAR_STEPS + step) * 512 + w->lane * 16);
      }
      arrived |= mgl_loads_arrived(weights, l->zero);
      mgl_linear_page<MGL_HIT_TILES>(&columns, 0, weights, sums);
    } else {
      mgl_share<P> share;
      mgl_rows_scales<MGL_HIT_TILES, P> scales;
      mgl_share_places places = mgl_find_share_of<P>(slice, w->lane, l->op);
      mgl_read_share<P>(&places, from, &share);
      arrived |= mgl_share_arrived<P>(&share, l->zero);
      mgl_rows_operands<MGL_HIT_TILES, P>(w, &columns, &scales);
      mgl_hit_add_share<MGL_HIT_TILES, P>(w, l, &columns, &scales, &share, sums);
    }
  }
  mgl_hit_release(w, arrived);
}

MGL_DEVICE void mgl_hit_finish_down(const mgl_worker *w, const mgl_linear *l, uint32_t buffer,
                                    uint32_t block, float addend,
                                    const mgl_expert_biases<false> *biases) {
  const uint32_t row = l->first_row + w->thread / MGL_CUDA_BLOCK_ROWS;
  const uint32_t column = block * MGL_CUDA_BLOCK_ROWS + w->thread % MGL_CUDA_BLOCK_ROWS;
  const size_t element = (size_t)row * l->op->n + column;
  if (row >= l->rows) {
    return;
  }
  addend = mgl_expert_add_biases(w, row, mgl_linear_addend(w, l, element, addend), biases);
  const float value = mgl_hit_total<MGL_HIT_TILES>(w, buffer) + addend;
  if (!mgl_task_is_mute(w)) {
    mgl_write_word((uint8_t *)l->op->out + element * sizeof(float), __float_as_uint(value),
                   mgl_task_slot(w), mgl_has_copies(l->op));
  }
}

// Row block `block` for the rows of a pass.
template <mgl_packing P>
MGL_DEVICE void mgl_hit_down_block(mgl_worker *w, mgl_linear *l, uint32_t pass, uint32_t block,
                                   bool begins, uint32_t buffer) {
  constexpr uint32_t ahead = mgl_hit_down<P>::AHEAD;
  mgl_hit_down<P> x[ahead];
  float sums[MGL_HIT_TILES][4] = {};
  const uint32_t row = l->first_row + w->thread / MGL_CUDA_BLOCK_ROWS;
  const uint32_t column = block * MGL_CUDA_BLOCK_ROWS + w->thread % MGL_CUDA_BLOCK_ROWS;
  float addend = 0;
  if (row < l->rows) {
    addend = mgl_load_l2_float((const uint8_t *)l->op->residual + l->copy_at +
                               ((size_t)row * l->op->n + column) * sizeof(float));
  }
  mgl_expert_biases<false> biases;
  mgl_expert_ask_biases<false>(w, l, row < l->rows ? row : 0, column, 0, row < l->rows, &biases);
  const uint32_t pages = mgl_hit_count(w, pass) * mgl_hit_down<P>::PAGES;
#pragma unroll
  for (uint32_t i = 0; i + 1 < ahead; i++) {
    mgl_hit_ask<P, true>(w, l, pass, i, i < pages, &x[i]);
  }
#pragma unroll 1
  for (uint32_t first = 0; first < pages; first += ahead) {
#pragma unroll
    for (uint32_t i = 0; i < ahead; i++) {
      const uint32_t at = first + i, next = at + ahead - 1;
      if (at >= pages) {
        break;
      }
      mgl_hit_ask<P, true>(w, l, pass, next, next < pages, &x[(i + ahead - 1) % ahead]);
      mgl_hit_await<P>(w, l, pass, at, &x[i]);
      if (at == 0 && begins) {
        mgl_task_began(w);
      }
      mgl_hit_down_page<P>(w, l, at, &x[i], sums);
    }
  }
  mgl_hit_share_sums<MGL_HIT_TILES>(w, buffer, sums);
  mgl_sync_consumers();
  mgl_hit_finish_down(w, l, buffer, block, addend, &biases);
}

template <mgl_packing P>
MGL_DEVICE bool mgl_hit_down_pass(mgl_worker *w, mgl_linear *l, uint32_t pass) {
  const mgl_slot *slot = mgl_task_slot(w);
  if (!mgl_task_wait(w)) {
    return false;
  }
  mgl_page_wait(w);  // where the first page is, there are the hits
  uint32_t buffer = 0;
#pragma unroll 1
  for (uint32_t block = slot->begin; block < slot->end; block++, buffer ^= 1) {
    mgl_hit_down_block<P>(w, l, pass, block, pass == 0 && block == slot->begin, buffer);
  }
  return true;
}

// --- the task ------------------------------------------------------------------------------------

// UP: gate and up; else down.
template <bool UP, mgl_packing P>
MGL_DEVICE void mgl_experts_by_hits(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, mgl_linear_rows(slot), true, &l);
  l.normed = UP;
  mgl_linear_find_share<P>(w, slot, &l);
  if (UP) {
    mgl_rows_fetch_norm<P>(w, &l);
  }
  if constexpr (UP) {
    if (l.rows > 0 && !mgl_parts_run<P>(w, &l)) {
      return;
    }
  } else {
#pragma unroll 1
    for (uint32_t pass = 0; pass * MGL_EXPERT_PASS_ROWS < l.rows; pass++) {
      l.first_row = pass * MGL_EXPERT_PASS_ROWS;
      if (pass > 0) {
        mgl_sync_consumers();  // the pass before has read its sums
      }
      if (!mgl_hit_down_pass<P>(w, &l, pass)) {
        return;
      }
    }
  }
  mgl_experts_open_rest<UP>(w, &l);
}

#endif
