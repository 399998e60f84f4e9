// The tasks of a mixture's experts: linears of one token (tasks_linear_one.cuh, of codes
// tasks_linear_coded.cuh). To them gate and up are a gate_up of S * F features, and down is a
// linear_add of S * F inputs; which experts' weights the pages have, the loader knows
// (roles/loader_experts.cuh). What is theirs is the weight of a slot, which goes into the outputs
// of gate and up, so that down adds the slots up as it adds anything: in the order of their
// experts. And the first token's x of gate and up, which the router has read, is there before any
// of their pages can be. It is taken before these are waited for: asked for behind them, it would
// wait for all that all workers have asked for (docs/log/255).
//
// One token has bodies that know that it is alone (mgl_one_function); of codes they are those of
// tasks_linear_paged.cuh, where rows are whole panels.
//
// Several tokens have bodies of their own (tasks_experts_rows.cuh); where these have no room, one
// token is computed after the other, which costs a trip to the L2 for its x and its own reading of
// weights.
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_EXPERTS_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_EXPERTS_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/linear/tasks_experts_mx4.cuh"
#include "kernels/cuda/linear/tasks_linear_coded.cuh"
#include "kernels/cuda/linear/tasks_linear_paged.cuh"
#include "kernels/cuda/linear/tasks_linear_rows.cuh"

static_assert(MGL_ONE_SUMS_AT + MGL_LINEAR_SUMS_BYTES <= MGL_EXPERT_ROUTES_AT,
              "routes lie behind what a linear of one token uses");

// The output of this thread in the batch at hand, of token `row`.
template <bool UP>
MGL_DEVICE void mgl_experts_aim(const mgl_worker *w, const mgl_linear *l, uint32_t row,
                                mgl_one_output *o) {
  const mgl_slot *slot = mgl_task_slot(w);
  constexpr uint32_t columns = UP ? MGL_CUDA_HALF_ROWS : MGL_CUDA_BLOCK_ROWS;
  uint32_t block = w->thread / MGL_CUDA_BLOCK_ROWS;
  uint32_t in_block = w->thread % MGL_CUDA_BLOCK_ROWS;
  o->column = (l->block + block) * columns + in_block;
  o->there = block < l->blocks && in_block < columns && o->column < l->op->n;
  size_t element = (size_t)row * l->op->n + o->column;
  o->at = (uint8_t *)l->op->out + element * (UP ? sizeof(uint16_t) : sizeof(float));
  o->open = nullptr;
  if (l->known || mgl_has_copies(l->op)) {
    o->open = o->at + slot->open_at;
    o->at += slot->copy_at;
  }
  o->addend = 0;
  if (!UP && o->there) {
    const uint8_t *residual = (const uint8_t *)l->op->residual + l->copy_at;
    o->addend = mgl_load_l2_float(residual + element * sizeof(float));
  }
}

// Biases of an output: of gate or up one, of down one for each slot, times its weight.
template <bool UP>
struct mgl_expert_biases {
  float v[UP ? 1 : MGL_EXPERT_SLOTS];
};

// Asks for the biases of an output, once the routes are there. half: of gate and up, which.
template <bool UP>
MGL_DEVICE void mgl_expert_ask_biases(const mgl_worker *w, const mgl_linear *l, uint32_t row,
                                      uint32_t column, uint32_t half, bool there,
                                      mgl_expert_biases<UP> *out) {
  if (!MGL_EXPERT_BIASES) {
    return;
  }
  const uint32_t *routes = mgl_expert_routes(w, row);
  if (UP) {
    const uint32_t expert = there ? routes[column / MGL_EXPERT_FEATURES * 2] : 0;
    const float *from = (half == 0 ? l->op->bias : mgl_op_up_bias(l->op)) +
                        (size_t)expert * MGL_EXPERT_FEATURES + column % MGL_EXPERT_FEATURES;
    out->v[0] = there ? mgl_load_l2_float((const uint8_t *)from) : 0.0f;
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < (UP ? 1 : MGL_EXPERT_SLOTS); i++) {
    const float *from = l->op->bias + (size_t)routes[2 * i] * l->op->n + column;
    out->v[i] = there ? mgl_load_l2_float((const uint8_t *)from) : 0.0f;
  }
}

// The residual of an output of down, and the biases of its slots.
MGL_DEVICE float mgl_expert_add_biases(const mgl_worker *w, uint32_t row, float addend,
                                       const mgl_expert_biases<false> *biases) {
#pragma unroll
  for (uint32_t i = 0; i < (MGL_EXPERT_BIASES ? MGL_EXPERT_SLOTS : 0); i++) {
    addend += __uint_as_float(mgl_expert_routes(w, row)[2 * i + 1]) * biases->v[i];
  }
  return addend;
}

// The biases of this thread's output of the batch at hand, as mgl_experts_aim has found it.
template <bool UP>
MGL_DEVICE void mgl_experts_ask_biases(const mgl_worker *w, const mgl_linear *l, uint32_t row,
                                       const mgl_one_output *o, mgl_expert_biases<UP> *out) {
  if (MGL_EXPERT_BIASES) {
    const uint32_t half = UP ? w->thread % MGL_CUDA_BLOCK_ROWS / MGL_CUDA_HALF_ROWS : 0;
    const uint32_t column = o->column - half * MGL_CUDA_HALF_ROWS;
    const bool there = w->thread / MGL_CUDA_BLOCK_ROWS < l->blocks && column < l->op->n;
    mgl_expert_ask_biases<UP>(w, l, row, column, half, there, out);
  }
}

// Finishes and writes an output of token `row`.
template <bool UP>
MGL_DEVICE void mgl_experts_finish(const mgl_worker *w, const mgl_linear *l, uint32_t row,
                                   const mgl_one_output *o, const mgl_expert_biases<UP> *biases,
                                   const float *partial) {
  bool mute = mgl_task_is_mute(w);
  float value = mgl_sum_of_warps<MGL_ONE_WARP_FLOATS>(partial + w->thread);
  if constexpr (UP) {
    value *= mgl_linear_factor<MGL_ONE_SUMS_AT>(w, l, 0);
    if (MGL_EXPERT_BIASES) {
      value += biases->v[0];
    }
    float up = __shfl_down_sync(0xffffffffu, value, MGL_CUDA_HALF_ROWS);
    float weight = o->there ? mgl_expert_weight(w, row, o->column) : 0;
    uint32_t bits = mgl_round_bf16(mgl_expert_activate(value, up, weight));
    uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
    if (o->there && o->column % 2 == 0 && !mute) {
      mgl_one_write(o, bits | next << 16, l->known);
    }
  } else if (o->there) {
    size_t element = (size_t)row * l->op->n + o->column;
    value += mgl_expert_add_biases(w, row, mgl_linear_addend(w, l, element, o->addend), biases);
    if (!mute) {
      mgl_one_write(o, __float_as_uint(value), l->known);
    }
  }
}

// Rows of the graph that the iteration does not have: their words of the other copy become open.
template <bool UP>
MGL_DEVICE void mgl_experts_open_rest(const mgl_worker *w, const mgl_linear *l) {
  const mgl_slot *slot = mgl_task_slot(w);
  if (!mgl_has_copies(l->op)) {
    return;
  }
  constexpr uint32_t words = UP ? MGL_CUDA_HALF_ROWS / 2 : MGL_CUDA_BLOCK_ROWS;  // of a row block
  const uint32_t row_words = UP ? l->op->n / 2 : l->op->n;
  uint32_t end = slot->end * words < row_words ? slot->end * words : row_words;
  for (uint32_t row = l->rows; row < l->op->tokens; row++) {
    uint8_t *at = (uint8_t *)l->op->out + (size_t)row * row_words * sizeof(uint32_t);
    for (uint32_t i = slot->begin * words + w->thread; i < end; i += MGL_CUDA_CONSUMERS) {
      mgl_open_word(at + i * sizeof(uint32_t), slot);
    }
  }
}

#include "kernels/cuda/linear/tasks_experts_rows.cuh"  // by the function above

// Whether token `row`'s x is there before the task's first page.
template <bool UP>
MGL_DEVICE bool mgl_experts_x_is_early(const mgl_linear *l, uint32_t row) {
  return UP && l->carried && row == 0;
}

// Row blocks [begin, end) of the slot for token `row`. False: the run has stopped before.
template <bool UP>
MGL_DEVICE bool mgl_experts_row(mgl_worker *w, mgl_linear *l, const mgl_one_norm *norm,
                                uint32_t row) {
  constexpr mgl_packing P = MGL_PACKING_BF16;
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_one_x<UP> mine = {};
  mgl_one_columns<UP> columns = {};
  mgl_one_squares<UP> squares = {};
  if (l->carried) {
    mgl_one_ask<UP, P>(w, l, l->x, mgl_one_polls_all(l) ? mgl_one_rounds<P>(l) : 1, &mine);
  }
  mgl_one_output output;
  mgl_one_batch_of(l, slot->begin, slot->end);
  mgl_experts_aim<UP>(w, l, row, &output);
  mgl_one_ring ring = {w->page, w->page_parity, (slot->end - slot->begin) * l->pages};
  mgl_one_page<P> pages[mgl_one_page<P>::AHEAD];
  const bool early = mgl_experts_x_is_early<UP>(l, row);
  if (early) {
    mgl_one_await<UP, P>(w, l, &mine);
    mgl_one_round<UP, P>(l, &mine, norm, &columns, &squares);
  }
  if (!mgl_one_load_first(w, l, &ring, pages)) {
    return false;
  }
  if (!l->carried) {  // now there is a residual
    mgl_experts_aim<UP>(w, l, row, &output);
  }
  mgl_expert_biases<UP> biases;
  mgl_experts_ask_biases<UP>(w, l, row, &output, &biases);
  if (!early) {
    mgl_one_await<UP, P>(w, l, &mine);
    mgl_one_round<UP, P>(l, &mine, norm, &columns, &squares);
  }
  mgl_one_aside<UP> aside = {true, row == 0, &squares};
  uint32_t buffer = 0;
#pragma unroll 1
  for (;;) {
    float *partial = (float *)w->scratch + buffer * MGL_ONE_BATCH_FLOATS;
    mgl_one_batch(w, l, &columns, partial, pages, &ring, &aside);
    mgl_sync_consumers();
    if (w->thread < MGL_ONE_OUTPUTS) {
      mgl_experts_finish<UP>(w, l, row, &output, &biases, partial);
    }
    if (l->block + l->blocks == slot->end) {
      break;
    }
    mgl_one_batch_of(l, l->block + l->blocks, slot->end);
    mgl_experts_aim<UP>(w, l, row, &output);
    mgl_experts_ask_biases<UP>(w, l, row, &output, &biases);
    buffer ^= 1;
  }
  w->page = ring.page;
  w->page_parity = ring.parity;
  return true;
}

// A token's x as operands for codes, and a warp's part of a page.
template <bool UP, mgl_packing P>
struct mgl_experts_columns {
  mgl_coded_columns<UP, P> v;
  typedef mgl_coded_page<P> page;
};

template <bool UP>
struct mgl_experts_columns<UP, MGL_PACKING_MX4> {
  mgl_mx4_x v;
  typedef mgl_mx4_page page;
};

template <bool UP, mgl_packing P>
using mgl_experts_page = typename mgl_experts_columns<UP, P>::page;

// Takes a token's x, once it is there, as such. begins: says that the task has inputs.
template <bool UP, mgl_packing P>
MGL_DEVICE void mgl_experts_coded_x(mgl_worker *w, const mgl_linear *l, const mgl_one_norm *norm,
                                    bool begins, mgl_one_x<UP> *mine,
                                    mgl_experts_columns<UP, P> *columns) {
  mgl_one_columns<UP> x = {};
  mgl_one_squares<UP> squares = {};
  mgl_one_await<UP, P>(w, l, mine);
  mgl_one_round<UP, P>(l, mine, norm, &x, &squares);
  if (begins) {
    mgl_task_began(w);
  }
  if constexpr (P == MGL_PACKING_MX4) {
    columns->v = mgl_mx4_find_x(w);
    mgl_mx4_take_x<UP>(w, &x, &columns->v);
  } else {
    mgl_coded_take_x<UP, P>(w, l, &x, &columns->v);
  }
  mgl_one_share_squares<UP, P>(w, l, &squares);
}

// The first page of a task, and a batch of row blocks, whose first page *page is.
template <bool UP, mgl_packing P>
MGL_DEVICE void mgl_experts_coded_read(const mgl_worker *w, const mgl_linear *l,
                                       mgl_coded_ring *ring, mgl_experts_page<UP, P> *page) {
  if constexpr (P == MGL_PACKING_MX4) {
    *page = {};
    mgl_mx4_read(w, ring, mgl_mx4<UP>::PANELS, page);
    mgl_mx4_release(w, l, ring, page);
  } else {
    mgl_coded_read<P>(w, l, ring, page);
    mgl_coded_release<P>(w, l, ring, page);
  }
}

template <bool UP, mgl_packing P>
MGL_DEVICE void mgl_experts_coded_batch(const mgl_worker *w, const mgl_linear *l,
                                        const mgl_experts_columns<UP, P> *columns, float *partial,
                                        mgl_experts_page<UP, P> *page, mgl_coded_ring *ring) {
  if constexpr (P == MGL_PACKING_MX4) {
    mgl_mx4_batch<UP>(w, l, &columns->v, partial, page, ring);
  } else {
    mgl_coded_batch<UP, P>(w, l, &columns->v, partial, page, ring);
  }
}

// The same, of codes.
template <bool UP, mgl_packing P>
MGL_DEVICE bool mgl_experts_coded_row(mgl_worker *w, mgl_linear *l, const mgl_one_norm *norm,
                                      uint32_t row) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_one_x<UP> mine = {};
  mgl_experts_columns<UP, P> columns = {};
  if (l->carried) {
    mgl_one_ask<UP, P>(w, l, l->x, mgl_one_polls_all(l) ? mgl_one_rounds<P>(l) : 1, &mine);
  }
  mgl_one_output output;
  mgl_one_batch_of(l, slot->begin, slot->end);
  mgl_experts_aim<UP>(w, l, row, &output);
  mgl_coded_ring ring = {w->page, w->page_parity, 0, 0, 0, 0, false};
  ring.left = (slot->end - slot->begin) *
              ((mgl_coded_panels(l) + (mgl_coded<P>::PANELS - 1)) / mgl_coded<P>::PANELS);
  mgl_coded_aim(w, l, &ring);
  mgl_experts_page<UP, P> page;
  const bool early = mgl_experts_x_is_early<UP>(l, row);
  if (early) {
    mgl_experts_coded_x<UP, P>(w, l, norm, false, &mine, &columns);
  }
  if (!mgl_mbarrier_wait_or_stop(w->block, &w->block->go[w->slot], w->slot_parity)) {
    return false;
  }
  mgl_experts_coded_read<UP, P>(w, l, &ring, &page);
  if (!l->carried) {  // now there is a residual
    mgl_experts_aim<UP>(w, l, row, &output);
  }
  mgl_expert_biases<UP> biases;
  mgl_experts_ask_biases<UP>(w, l, row, &output, &biases);
  if (early) {
    mgl_task_began(w);
  } else {
    mgl_experts_coded_x<UP, P>(w, l, norm, row == 0, &mine, &columns);
  }
  uint32_t buffer = 0;
#pragma unroll 1
  for (;;) {
    float *partial = (float *)w->scratch + buffer * MGL_ONE_BATCH_FLOATS;
    mgl_experts_coded_batch<UP, P>(w, l, &columns, partial, &page, &ring);
    mgl_sync_consumers();
    if (w->thread < MGL_ONE_OUTPUTS) {
      mgl_experts_finish<UP>(w, l, row, &output, &biases, partial);
    }
    if (l->block + l->blocks == slot->end) {
      break;
    }
    mgl_one_batch_of(l, l->block + l->blocks, slot->end);
    mgl_experts_aim<UP>(w, l, row, &output);
    mgl_experts_ask_biases<UP>(w, l, row, &output, &biases);
    buffer ^= 1;
  }
  w->page = ring.page;
  w->page_parity = ring.parity;
  return true;
}

// UP: gate and up; else down. ONE: of one token, where activations carry their readiness and
// outputs have copies (mgl_one_function).
template <bool UP, mgl_packing P, bool ONE = false>
MGL_DEVICE void mgl_task_experts(mgl_worker *w) {
  if constexpr (ONE && !MGL_CARRIES) {
    return;  // not chosen
  } else if constexpr (ONE && P != MGL_PACKING_BF16 && P != MGL_PACKING_MX4 &&
                       mgl_experts_are_paged()) {
    mgl_task_linear_paged<UP, P, UP ? MGL_EXPERT_WIDTH : 0, MGL_MAKES_EXPERTS>(w);
    return;
  }
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_one_norm norm;
  mgl_linear_init(w, slot, ONE ? 1 : mgl_linear_rows(slot), true, &l);
  mgl_linear_find_share<P>(w, slot, &l);
  constexpr uint32_t K = UP ? MGL_EXPERT_WIDTH : MGL_EXPERT_SLOTS * MGL_EXPERT_FEATURES;
  if (K % (2 * MGL_CUDA_PAGE_K) == 0 || (ONE && P != MGL_PACKING_BF16)) {
    mgl_linear_know<K>(&l);
  } else {
    l.pages = P != MGL_PACKING_BF16 ? mgl_kept(l.pages) : l.pages;
  }
  if (ONE) {
    l.normed = UP;
    l.carried = true;
    l.known = true;
  }
  if (UP) {
    mgl_one_load_norm<P>(w, &l, &norm);
  }
  if constexpr (ONE && P == MGL_PACKING_BF16) {
    (void)mgl_experts_row<UP>(w, &l, &norm, 0);
    return;
  } else if constexpr (ONE) {
    (void)mgl_experts_coded_row<UP, P>(w, &l, &norm, 0);
    return;
  }
  const uint32_t x_bytes = l.x_stride * (UP ? sizeof(float) : sizeof(uint16_t));
#pragma unroll 1
  for (uint32_t row = 0; row < l.rows; row++) {
    if (row > 0) {
      mgl_sync_consumers();  // the row before has read its sums
    }
    bool goes_on;
    if constexpr (P == MGL_PACKING_BF16) {
      goes_on = mgl_experts_row<UP>(w, &l, &norm, row);
    } else {
      goes_on = mgl_experts_coded_row<UP, P>(w, &l, &norm, row);
    }
    if (!goes_on) {
      return;
    }
    l.x += x_bytes;
  }
  mgl_experts_open_rest<UP>(w, &l);
}

// Of codes, slices of a row of all slots must not go over the end of an expert's.
template <bool UP, mgl_packing P>
MGL_DEVICE void mgl_task_experts_rows(mgl_worker *w) {
  if constexpr (MGL_EXPERTS_BY_HITS &&
                (P == MGL_PACKING_BF16 || MGL_EXPERT_FEATURES % MGL_SHARE_K == 0)) {
    mgl_experts_by_hits<UP, P>(w);
  } else {
    mgl_task_experts<UP, P>(w);
  }
}

#endif
