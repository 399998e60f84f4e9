// The linears of an iteration of 2 to 16 tokens, one or two row tiles, in the megakernel: the same
// sums in the same order as tasks_linear.cuh, so the same bits.
//
// Where x waits to be written, each trip to the L2 counts, and where pages stream, what a page
// costs: with 16 rows a worker computes about as long as the memory takes. So
//   - all of a group's x is asked for at once, both tiles, and by those lanes again whose words are
//     not there yet; the norm's weights are in the L1 before;
//   - x of the next group is on its way while a group is computed; of two tiles of f32, for which
//     registers are too few, half of it during each half of the row blocks;
//   - a batch has as many row blocks as partial sums have room for, up to all of the task: each one
//     reads all of x, f32 where there is a norm (docs/log/246);
//   - pages are awaited in pairs, and a page's weights are on their way to registers during the
//     products of the page before;
//   - partial sums lie as the lanes hold them, four of them in one access without conflicts, and a
//     thread finishes one output of each row block (of two of them), so that few row blocks are
//     finished soon.
// Registers: the compiler allocates those of all the kernel's functions together. When two tiles of
// f32 took 190 instead of 172, functions that had not changed became up to 5% slower
// (docs/log/168).
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_ROWS_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_ROWS_CUH

#include "kernels/cuda/linear/coded_rows.cuh"
#include "kernels/cuda/linear/rows_of_x.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"

enum {
  // In scratch: sums of squares, or the residuals asked for early; behind them partial sums, a row
  // block's those of all warps.
  MGL_ROWS_SQUARES_AT = 0,
};

template <int TILES>
struct mgl_rows_shape {
  static constexpr int TOKENS = 8 * TILES;
  static constexpr int BLOCK_FLOATS = TOKENS * MGL_CUDA_BLOCK_ROWS;  // a warp's sums of a row block
  static constexpr int BLOCK_QUADS = BLOCK_FLOATS / 4;
  static constexpr int ALL_FLOATS = MGL_CUDA_CONSUMER_WARPS * BLOCK_FLOATS;  // and those of all
  static constexpr int ROUND = MGL_CUDA_CONSUMERS / BLOCK_FLOATS;  // row blocks finished at once
  // Row blocks of a batch whose residuals are asked for before, by half of the threads.
  static constexpr int EARLY = MGL_CUDA_CONSUMERS / 2 / BLOCK_QUADS;
  static_assert(ROUND >= 1, "outputs of a thread");
  static_assert(EARLY * BLOCK_FLOATS * 4 <= MGL_ROWS_PARTIAL_AT, "residuals");
  static_assert(MGL_LINEAR_SUMS_BYTES <= MGL_ROWS_PARTIAL_AT, "sums of squares");
  static_assert(ALL_FLOATS * 4 == TILES * MGL_ROWS_TILE_BYTES, "partial sums");
};

// --- pages ---------------------------------------------------------------------------------------

// This warp's part of a page; of codes, of a panel.
template <mgl_packing P>
struct mgl_rows_page : mgl_share<P> {};

template <>
struct mgl_rows_page<MGL_PACKING_BF16> {
  uint4 v[MGL_LINEAR_STEPS];
};

MGL_DEVICE uint32_t mgl_rows_second(const mgl_worker *w) {
  return w->page + 1 == w->page_count ? 0 : w->page + 1;
}

// Until the next two pages of the ring are there: a lane waits for one of them.
MGL_DEVICE void mgl_rows_await_pages(const mgl_worker *w) {
  bool second = w->lane % 2 != 0;
  uint32_t page = second ? mgl_rows_second(w) : w->page;
  uint32_t parity = w->page_parity ^ (second && page == 0 ? 1 : 0);
  uint32_t full = mgl_shared_address(&w->block->page_full[page]);
  if (__all_sync(0xffffffffu, mgl_mbarrier_test_at(full, parity))) {
    return;
  }
  uint32_t from = mgl_trace_clock();
  for (uint32_t tries = 0; !__all_sync(0xffffffffu, mgl_mbarrier_try_at(full, parity)); tries++) {
    if (tries == MGL_MBARRIER_TRIES) {
      __trap();
    }
  }
  mgl_note_starved(w->block, w->slot, w->thread, from);
}

// Awaits two pages, and reads the first one.
MGL_DEVICE void mgl_rows_begin_pages(const mgl_worker *w, const mgl_linear *l,
                                     mgl_rows_page<MGL_PACKING_BF16> *first) {
  mgl_rows_await_pages(w);
  mgl_linear_read(l, w->page, first->v);
}

// Where a panel of the page lies.
MGL_DEVICE uint32_t mgl_rows_panel(const mgl_worker *w, const mgl_linear *l, uint32_t panel) {
  return l->page_at + w->page * MGL_PAGE_BYTES + panel * l->panel_bytes;
}

// Awaits a page, and reads its first panel.
template <mgl_packing P>
MGL_DEVICE void mgl_rows_begin_pages(const mgl_worker *w, const mgl_linear *l,
                                     mgl_rows_page<P> *first) {
  mgl_page_wait(w);
  mgl_read_share<P>(&l->share, mgl_rows_panel(w, l, 0), first);
}

MGL_DEVICE void mgl_rows_next_page(mgl_worker *w) {
  const uint32_t after = mgl_rows_second(w);
  w->page_parity ^= after == 0 ? 1 : 0;
  w->page = after;
}

// A page whose last panel is in registers.
template <mgl_packing P>
MGL_DEVICE void mgl_rows_release_page(mgl_worker *w, const mgl_linear *l,
                                      const mgl_rows_page<P> *last) {
  uint32_t released = mgl_shared_address(&w->block->page_free[w->page]);
  released += mgl_share_arrived<P>(last, l->zero);
  __syncwarp();
  if (w->lane == 0) {
    mgl_mbarrier_arrive_at(released);
  }
  mgl_rows_next_page(w);
}

// Two pages that are in registers: the loader may fill them again.
MGL_DEVICE void mgl_rows_release(mgl_worker *w, const mgl_linear *l,
                                 const mgl_rows_page<MGL_PACKING_BF16> *first,
                                 const mgl_rows_page<MGL_PACKING_BF16> *second) {
  uint32_t page = w->lane == 0 ? w->page : mgl_rows_second(w);
  uint32_t released = mgl_shared_address(&w->block->page_free[page]);
  released += mgl_loads_arrived(first->v, l->zero) | mgl_loads_arrived(second->v, l->zero);
  __syncwarp();
  if (w->lane < 2) {
    mgl_mbarrier_arrive_at(released);
  }
  mgl_rows_next_page(w);
  mgl_rows_next_page(w);
}

// --- products ------------------------------------------------------------------------------------

// Returns where partial sums of a row block lie. A lane has 16 bytes of one product, or of two
// tiles' products for one feature: with one tile, features g and g + 8 of tokens 2t and 2t + 1;
// with two, feature f of tokens 2t, 2t + 1, 2t + 8 and 2t + 9. Quads of four neighbouring t are
// permuted, so that lanes with neighbouring features do not meet in a bank when they read theirs.
MGL_DEVICE uint32_t mgl_rows_quad(uint32_t feature, uint32_t t) {
  return feature * 4 + (t ^ feature / 2 % 4);
}

template <int TILES>
MGL_DEVICE uint32_t mgl_rows_place(uint32_t token, uint32_t feature) {
  if (TILES == 1) {
    return mgl_rows_quad(feature % 8, token / 2) * 4 + feature / 8 * 2 + token % 2;
  }
  return mgl_rows_quad(feature, token % 8 / 2) * 4 + token / 8 * 2 + token % 2;
}

// Quad i of a lane's sums, one for each tile.
template <int TILES>
MGL_DEVICE float4 mgl_rows_pack(const float sums[TILES][4], int i) {
  if (TILES == 1) {
    return make_float4(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
  }
  const float *second = sums[TILES - 1];
  return make_float4(sums[0][2 * i], sums[0][2 * i + 1], second[2 * i], second[2 * i + 1]);
}

template <int TILES>
MGL_DEVICE void mgl_rows_unpack(uint4 v, int i, float sums[TILES][4]) {
  int second = TILES == 1 ? 2 : 2 * i;
  sums[0][TILES == 1 ? 0 : 2 * i] = __uint_as_float(v.x);
  sums[0][TILES == 1 ? 1 : 2 * i + 1] = __uint_as_float(v.y);
  sums[TILES - 1][second] = __uint_as_float(v.z);
  sums[TILES - 1][second + 1] = __uint_as_float(v.w);
}

// A row block of codes times a panel; as mgl_rows_block.
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_panel_of_block(mgl_worker *w, const mgl_linear *l,
                                        const mgl_linear_group<TILES> *x,
                                        const mgl_rows_scales<TILES, P> *scales,
                                        mgl_rows_page<P> *a, bool goes_on, uint32_t block,
                                        float sums[TILES][4]) {
  constexpr bool WAITS = MGL_SHARE_SUMS == 1;  // there are registers for sums that wait for pages
  const uint32_t panel = block % mgl_coded<P>::PANELS;
  mgl_rows_made<TILES, P> made;
  if constexpr (!mgl_coded<P>::WHOLE) {
    mgl_rows_multiply_f16<TILES, P>(x, a, &made);
  }
#pragma unroll
  for (int i = 0; i < MGL_SHARE_SUMS; i++) {
    if constexpr (mgl_coded<P>::WHOLE) {
      mgl_rows_multiply_whole<TILES, P>(l, x, a, i, i + 1, &made);
    }
    if (!WAITS) {
      mgl_rows_add_panel<TILES, P>(w, &made, a->scale, a->zero, scales, i, i + 1, sums);
    }
  }
  const float2 scale = a->scale[0], zero = a->zero[0];
  const bool ends = panel + 1 == mgl_coded<P>::PANELS || block + 1 == l->blocks;
  if (ends) {
    mgl_rows_release_page<P>(w, l, a);
  }
  if (ends && goes_on) {
    mgl_rows_begin_pages<P>(w, l, a);
  } else if (!ends) {
    mgl_read_share<P>(&l->share, mgl_rows_panel(w, l, panel + 1), a);
  }
  if (WAITS) {
    mgl_rows_add_panel<TILES, P>(w, &made, &scale, &zero, scales, 0, 1, sums);
  }
}

// A row block times a group, added to what is in scratch at `at`, an address in shared memory. a:
// the first of its pages, or its panel, and then, if `goes_on`, that of what is behind it.
// block: number of the row block in its batch.
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_block(mgl_worker *w, const mgl_linear *l, const mgl_linear_group<TILES> *x,
                               const mgl_rows_scales<TILES, P> *scales, bool adds, uint32_t at,
                               mgl_rows_page<P> *a, bool goes_on, uint32_t block) {
  // (That it is then perhaps -0 and not 0 is the same in a sum of warps, which begins with 0.)
  const bool whole_k = l->known && l->pages == MGL_GROUP_PAGES;
  float sums[TILES][4] = {};
  mgl_rows_page<MGL_PACKING_BF16> b;
  if constexpr (P == MGL_PACKING_BF16) {
    mgl_linear_read(l, mgl_rows_second(w), b.v);
  }
  if (adds) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      mgl_rows_unpack<TILES>(mgl_load_shared(at + i * 512), i, sums);
    }
  }
  if constexpr (P == MGL_PACKING_BF16) {
    mgl_linear_page<TILES>(x, 0, a->v, sums, whole_k);
    mgl_rows_release(w, l, a, &b);
    if (goes_on) {
      mgl_rows_begin_pages(w, l, a);
    }
    mgl_linear_page<TILES>(x, 1, b.v, sums);
  } else {
    mgl_rows_panel_of_block<TILES, P>(w, l, x, scales, a, goes_on, block, sums);
  }
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    mgl_store_shared(at + i * 512, mgl_rows_pack<TILES>(sums, i));
  }
}

// --- outputs -------------------------------------------------------------------------------------

// A thread has outputs of one token and of one feature of a row block: of block `first` of a batch,
// and of every ROUND-th behind it.
struct mgl_rows_output {
  uint32_t token, feature, first;  // token: of this pass
  uint32_t row;                    // of the iteration
};

template <int TILES>
MGL_DEVICE mgl_rows_output mgl_rows_aim(const mgl_worker *w, const mgl_linear *l) {
  using shape = mgl_rows_shape<TILES>;
  mgl_rows_output o;
  o.token = w->thread % shape::BLOCK_FLOATS / MGL_CUDA_BLOCK_ROWS;
  o.row = l->first_row + o.token;
  o.feature = w->thread % MGL_CUDA_BLOCK_ROWS;
  o.first = w->thread / shape::BLOCK_FLOATS;
  return o;
}

// The column of the output in a row block of the batch; n or more: there is none.
MGL_DEVICE uint32_t mgl_rows_column(const mgl_linear *l, const mgl_rows_output *o, uint32_t block) {
  uint32_t columns = mgl_block_columns(l->kind);
  return block < l->blocks && o->feature < columns ? (l->block + block) * columns + o->feature
                                                   : l->op->n;
}

// Where x is plain, sends the residuals of the batch's first row blocks on their way into scratch,
// where a normed x has its sums of squares. (In registers they would be spilled.)
template <int TILES>
MGL_DEVICE void mgl_rows_fetch_residuals(const mgl_worker *w, const mgl_linear *l) {
  using shape = mgl_rows_shape<TILES>;
  uint32_t block = w->thread / shape::BLOCK_QUADS;
  uint32_t token = l->first_row + w->thread % shape::BLOCK_QUADS / 4;
  if (l->kind != MGL_OP_LINEAR_ADD || block >= shape::EARLY || block >= l->blocks ||
      token >= l->rows || l->op->n % MGL_CUDA_BLOCK_ROWS != 0) {
    return;
  }
  size_t element =
      (size_t)token * l->op->n + (l->block + block) * MGL_CUDA_BLOCK_ROWS + w->thread % 4 * 4;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   mgl_shared_address(w->scratch + w->thread * 16)),
               "l"((const uint8_t *)l->op->residual + l->copy_at + element * sizeof(float))
               : "memory");
}

// The residual or the bias of an output that is there.
template <int TILES, bool NORMED>
MGL_DEVICE float mgl_rows_addend(const mgl_worker *w, const mgl_linear *l, size_t element,
                                 uint32_t column, uint32_t block) {
  using shape = mgl_rows_shape<TILES>;
  if (l->kind == MGL_OP_LINEAR_ADD) {
    float addend = __uint_as_float(MGL_CUDA_OPEN);
    if (!NORMED && block < shape::EARLY && l->op->n % MGL_CUDA_BLOCK_ROWS == 0) {
      const float *early = (const float *)w->scratch;
      addend = early[block * shape::BLOCK_FLOATS + w->thread % shape::BLOCK_FLOATS];
    } else {
      addend = mgl_load_l2_float((const uint8_t *)l->op->residual + l->copy_at +
                                 element * sizeof(float));
    }
    return mgl_linear_addend(w, l, element, addend);
  }
  return l->op->bias != nullptr ? __ldg(l->op->bias + column) : 0;
}

// Writes outputs of gate_up, where two neighbouring columns are a word. All lanes of a warp call
// it; value is that of gate or of up, the sum times the norm's factor.
MGL_DEVICE void mgl_rows_write_gated(const mgl_worker *w, const mgl_linear *l,
                                     const mgl_rows_output *o, uint32_t column, float value,
                                     bool mute) {
  const mgl_slot *slot = mgl_task_slot(w);
  float up = __shfl_down_sync(0xffffffffu, value, MGL_CUDA_HALF_ROWS);
  uint32_t bits = mgl_round_bf16(mgl_silu_mul(value, up));
  uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
  uint8_t *at = (uint8_t *)l->op->out + ((size_t)o->row * l->op->n + column) * sizeof(uint16_t);
  if (column >= l->op->n || column % 2 != 0) {
    return;
  }
  bool copies = l->known || mgl_has_copies(l->op);
  if (o->row >= l->rows) {
    if (copies && o->row < l->op->tokens) {
      mgl_open_word(at, slot);
    }
  } else if (!mute) {
    mgl_write_word(at, bits | next << 16, slot, copies);
  }
}

// Writes outputs of the linears other than gate_up.
template <int TILES, bool NORMED>
MGL_DEVICE void mgl_rows_write(const mgl_worker *w, const mgl_linear *l, const mgl_rows_output *o,
                               uint32_t block, float value, bool mute, uint64_t *best) {
  const mgl_slot *slot = mgl_task_slot(w);
  uint32_t column = mgl_rows_column(l, o, block);
  size_t element = (size_t)o->row * l->op->n + column;
  uint8_t *at = (uint8_t *)l->op->out + element * sizeof(float);
  bool copies = (l->known || mgl_has_copies(l->op)) && l->kind != MGL_OP_LOGITS;
  if (column >= l->op->n) {
    return;
  }
  if (mgl_is_exchanged(l->op)) {
    if (o->row < l->rows && !mute) {
      mgl_send_part(slot, element, value);
    }
    return;
  }
  if (o->row >= l->rows) {
    if (copies && o->row < l->op->tokens) {
      mgl_open_word(at, slot);
    }
    return;
  }
  if (MGL_HAS_SUM_BIASES) {
    value = mgl_linear_biased(l, column, value);
  }
  value += mgl_rows_addend<TILES, NORMED>(w, l, element, column, block);
  if (!mute) {
    mgl_write_word(at, __float_as_uint(value), slot, copies);
  }
  if (l->kind == MGL_OP_LOGITS) {
    uint64_t candidate = mgl_ordered_best(value, column);
    *best = candidate > *best ? candidate : *best;
  }
}

// Returns the first row block of the batch, which `rest` row blocks of the task follow.
MGL_DEVICE uint32_t mgl_rows_first_block(const mgl_worker *w, const mgl_linear *l, uint32_t rest) {
  return mgl_task_slot(w)->end - rest - l->blocks;
}

// Looks up again what is needed before and behind the products, and should take no registers
// between.
template <uint32_t K, mgl_makes MAKES>
MGL_DEVICE void mgl_rows_look_again(const mgl_worker *w, uint32_t rest, mgl_linear *l) {
  const mgl_slot *slot = mgl_task_slot(w);
  l->block = mgl_rows_first_block(w, l, rest);
  l->kind = slot->op.kind;
  l->copy_at = slot->copy_at;
  l->inverse_k = __fdividef(1.0f, (float)slot->op.k);
  l->rows = slot->rows;
  l->carried = MGL_CARRIES && (slot->op.flags & MGL_CUDA_CARRIED) != 0;
  mgl_linear_know_all<K, MAKES>(l);
}

// Finishes and writes the outputs of a batch. best: of the thread's token, for logits.
template <int TILES, bool NORMED>
MGL_DEVICE void mgl_rows_finish(const mgl_worker *w, const mgl_linear *l, uint64_t *best) {
  using shape = mgl_rows_shape<TILES>;
  const mgl_rows_output o = mgl_rows_aim<TILES>(w, l);
  const uint8_t *sums =
      w->scratch + MGL_ROWS_PARTIAL_AT + mgl_rows_place<TILES>(o.token, o.feature) * sizeof(float);
  const uint32_t ring_bytes = w->page_count * MGL_PAGE_BYTES;
  bool mute = mgl_task_is_mute(w);
  float factor = mgl_linear_factor<MGL_ROWS_SQUARES_AT>(w, l, o.token);
#pragma unroll 1
  for (uint32_t i = 0; i < l->blocks; i += shape::ROUND) {
    const float *partial =
        (const float *)(sums + mgl_rows_block_at(TILES, o.first + i, ring_bytes));
    const float total = mgl_sum_of_warps<shape::BLOCK_FLOATS>(partial);
    if (l->kind == MGL_OP_GATE_UP) {
      mgl_rows_write_gated(w, l, &o, mgl_rows_column(l, &o, o.first + i), total * factor, mute);
    } else {
      mgl_rows_write<TILES, NORMED>(w, l, &o, o.first + i, total * factor, mute, best);
    }
  }
}

// The largest logit of each row, over all tasks; 16 neighbouring lanes have one row.
template <int TILES>
MGL_DEVICE void mgl_rows_share_best(const mgl_worker *w, const mgl_linear *l, uint64_t best) {
  if (MGL_RANKS > 1 || l->kind != MGL_OP_LOGITS) {
    return;
  }
  for (int offset = MGL_CUDA_BLOCK_ROWS / 2; offset > 0; offset /= 2) {
    uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)best, offset);
    best = other > best ? other : best;
  }
  const mgl_rows_output o = mgl_rows_aim<TILES>(w, l);
  if (o.feature == 0 && o.row < l->rows) {
    atomicMax((unsigned long long *)&w->run->best[o.row], (unsigned long long)best);
  }
}

// --- the task ------------------------------------------------------------------------------------

MGL_DEVICE void mgl_rows_set_batch(mgl_linear *l, uint32_t *rest, uint32_t most) {
  l->blocks = *rest < most ? *rest : most;
  *rest -= l->blocks;
}

// Asks the L2 for what is needed before the products begin: the first group of x, and residuals.
template <int TILES, bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_rows_ask_first(const mgl_worker *w, const mgl_linear *l,
                                   const mgl_rows_places<TILES> *rows,
                                   mgl_rows_raw<TILES, NORMED, MGL_ROWS_PIECES, P> *raw) {
  mgl_rows_ask<true>(rows, true, 0, 0, MGL_ROWS_PIECES, raw);
  if (!NORMED) {
    mgl_rows_fetch_residuals<TILES>(w, l);
  }
}

enum { MGL_ROWS_HALF = MGL_ROWS_PIECES / 2 };

// One half of a group, when it is there.
template <int TILES, mgl_packing P>
MGL_DEVICE void mgl_rows_take_half(const mgl_worker *w, const mgl_linear *l,
                                   const mgl_rows_places<TILES> *rows, uint32_t first_page,
                                   int begin, mgl_rows_raw<TILES, true, MGL_ROWS_HALF, P> *raw,
                                   mgl_linear_group<TILES> *x, float squares[TILES]) {
  mgl_rows_await(w, l, rows, first_page, begin, raw);
  mgl_rows_convert(w, rows, first_page, begin, raw, x, squares);
}

// The row blocks of a batch times a group of x. a: as in mgl_rows_block, which more pages follow or
// not. HALVES: its successor from page `ahead` on, if any, comes meanwhile, one half of it during
// each half of the row blocks, since the registers do not hold the words of a whole group beside it
// (two tiles of f32).
template <int TILES, bool HALVES, mgl_packing P>
MGL_DEVICE void mgl_rows_group(mgl_worker *w, const mgl_linear *l,
                               const mgl_rows_places<TILES> *rows, bool adds, uint32_t ahead,
                               bool follows, mgl_rows_page<P> *a, mgl_linear_group<TILES> *x,
                               mgl_rows_scales<TILES, P> *scales, float squares[TILES]) {
  using shape = mgl_rows_shape<TILES>;
  const uint32_t at = mgl_shared_address(w->scratch) + MGL_ROWS_PARTIAL_AT +
                      w->warp * (shape::BLOCK_FLOATS * (uint32_t)sizeof(float)) +
                      mgl_rows_quad(w->lane / 4, w->lane % 4) * 16;
  mgl_rows_raw<TILES, true, MGL_ROWS_HALF, P> raw;
  mgl_linear_group<TILES> next = *x;
  if (HALVES) {
    mgl_rows_clear(rows, ahead, 0, &raw);
    if (follows) {
      mgl_rows_ask<true>(rows, true, ahead, 0, MGL_ROWS_HALF, &raw);
    }
  }
#pragma unroll 1
  for (uint32_t block = 0; block < l->blocks; block++) {
    if (HALVES && follows && block == l->blocks / 2) {
      mgl_rows_take_half(w, l, rows, ahead, 0, &raw, &next, squares);
      mgl_rows_clear(rows, ahead, MGL_ROWS_HALF, &raw);
      mgl_rows_ask<true>(rows, true, ahead, MGL_ROWS_HALF, MGL_ROWS_HALF, &raw);
    }
    mgl_rows_block<TILES, P>(w, l, x, scales, adds,
                             at + mgl_rows_block_at(TILES, block, w->page_count * MGL_PAGE_BYTES),
                             a, follows || block + 1 < l->blocks, block);
  }
  if (HALVES && follows) {
    mgl_rows_take_half(w, l, rows, ahead, MGL_ROWS_HALF, &raw, &next, squares);
    *x = next;
    mgl_rows_operands<TILES, P>(w, x, scales);
  }
}

// A whole group from page `first` on, when it is there; the next one of the rows, from page `ahead`
// on, is asked for. begins: the task does, with its first group.
template <int TILES, bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_rows_take_group(mgl_worker *w, const mgl_linear *l,
                                    const mgl_rows_places<TILES> *rows, uint32_t first,
                                    uint32_t ahead, bool begins,
                                    mgl_rows_raw<TILES, NORMED, MGL_ROWS_PIECES, P> *raw,
                                    mgl_linear_group<TILES> *x, mgl_rows_scales<TILES, P> *scales,
                                    float squares[TILES]) {
  if (first == 0) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      squares[tile] = 0;
    }
  }
  mgl_rows_await(w, l, rows, first, 0, raw);
  if (begins && first == 0) {
    mgl_task_began(w);
  }
  mgl_rows_convert(w, rows, first, 0, raw, x, squares);
  mgl_rows_operands<TILES, P>(w, x, scales);
  if (first + MGL_GROUP_PAGES < l->pages) {
    mgl_rows_ask<true>(rows, true, ahead, 0, MGL_ROWS_PIECES, raw);
  }
}

// One pass over the weights, for the rows from l.first_row on. Returns false if the run has failed.
template <int TILES, bool NORMED, mgl_packing P, uint32_t K, mgl_makes MAKES>
MGL_DEVICE bool mgl_rows_pass(mgl_worker *w, uint32_t pass) {
  using shape = mgl_rows_shape<TILES>;
  constexpr bool ONCE = MAKES != MGL_MAKES_ANY && K == MGL_GROUP_PAGES * MGL_CUDA_PAGE_K;
  constexpr bool HALVES = NORMED && TILES == 2 && !ONCE;
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, slot->rows, true, &l);
  l.normed = NORMED;
  l.first_row = pass * shape::TOKENS;
  mgl_linear_know_all<K, MAKES>(&l);
  mgl_linear_find_share<P>(w, slot, &l);
  mgl_rows_places<TILES> rows;
  mgl_rows_raw<TILES, NORMED, MGL_ROWS_PIECES, P> raw;
  mgl_linear_group<TILES> x;
  mgl_rows_scales<TILES, P> scales;
  mgl_rows_page<P> a;
  uint64_t best = 0;
  uint32_t rest = slot->end - slot->begin;  // row blocks of batches behind the present one
  const uint32_t most =
      mgl_rows_batch_blocks(TILES, w->block->page_count - w->page_count, MGL_PAGE_BYTES);
  mgl_rows_set_batch(&l, &rest, most);
  l.block = slot->begin;
  mgl_rows_find<P, TILES>(w, &l, &rows);
  mgl_rows_clear(&rows, 0, 0, &raw);
  if (l.carried) {
    mgl_rows_ask_first(w, &l, &rows, &raw);
  }
  if (NORMED) {
    mgl_rows_fetch_norm<P>(w, &l);
  }
  if (pass == 0 && !mgl_task_wait(w)) {
    return false;
  }
  if (!l.carried) {
    mgl_rows_ask_first(w, &l, &rows, &raw);
  }
  mgl_rows_begin_pages(w, &l, &a);
  float squares[TILES] = {};
  if (HALVES || ONCE) {  // a group that is all of x stays what it is for all batches
    mgl_rows_await(w, &l, &rows, 0, 0, &raw);
    if (pass == 0) {
      mgl_task_began(w);
    }
    mgl_rows_convert(w, &rows, 0, 0, &raw, &x, squares);
    mgl_rows_operands<TILES, P>(w, &x, &scales);
  }
  for (bool began = false;; began = true) {
#pragma unroll 1
    for (uint32_t first = 0; first < l.pages; first += MGL_GROUP_PAGES) {
      const bool more = first + MGL_GROUP_PAGES < l.pages;
      const uint32_t ahead = more ? first + MGL_GROUP_PAGES : 0;
      if (!HALVES && !ONCE) {
        mgl_rows_take_group(w, &l, &rows, first, ahead, !began && pass == 0, &raw, &x, &scales,
                            squares);
      } else if (NORMED && !began && !more) {  // of this pass
        mgl_linear_share_squares<TILES, MGL_ROWS_SQUARES_AT>(w, squares);
      }
      mgl_rows_group<TILES, HALVES, P>(w, &l, &rows, first > 0, ahead, more || rest > 0, &a, &x,
                                       &scales, squares);
    }
    if (!HALVES && !ONCE && rest > 0) {  // another batch follows
      mgl_rows_ask<true>(&rows, true, 0, 0, MGL_ROWS_PIECES, &raw);
    }
    if (NORMED && !HALVES && !ONCE) {
      mgl_linear_share_squares<TILES, MGL_ROWS_SQUARES_AT>(w, squares);
    }
    if (!NORMED) {
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    mgl_sync_consumers();
    mgl_rows_look_again<K, MAKES>(w, rest, &l);
    mgl_rows_finish<TILES, NORMED>(w, &l, &best);
    if (rest == 0) {
      break;
    }
    mgl_rows_set_batch(&l, &rest, most);
    mgl_sync_consumers();  // the batch before has been read
    if (!NORMED) {
      l.block = mgl_rows_first_block(w, &l, rest);
      mgl_rows_fetch_residuals<TILES>(w, &l);
    }
  }
  mgl_rows_share_best<TILES>(w, &l, best);
  return true;
}

// Only of codes there are several passes, and none of their activations carry words.
template <int TILES, bool NORMED, mgl_packing P, uint32_t K = 0, mgl_makes MAKES = MGL_MAKES_ANY>
MGL_DEVICE void mgl_task_linear_rows(mgl_worker *w) {
  if constexpr (MAKES != MGL_MAKES_ANY && (K % (2 * MGL_CUDA_PAGE_K) != 0 || K == 0 ||
                                           (NORMED && TILES == 2 && !mgl_knows_two_tiles(K)))) {
    return;  // the model has no such op, or it has the body of any k
  }
  if (P == MGL_PACKING_BF16) {
    (void)mgl_rows_pass<TILES, NORMED, P, K, MAKES>(w, 0);
    return;
  }
  const uint32_t passes = mgl_task_slot(w)->op.passes;
  for (uint32_t pass = 0; pass < passes && mgl_rows_pass<TILES, NORMED, P, K, MAKES>(w, pass);
       pass++) {
    if (pass + 1 < passes) {
      mgl_sync_consumers();  // the last batch has been read
    }
  }
}

#endif
