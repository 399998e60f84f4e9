// The linears of an iteration of one token, of weights of codes, where tasks_linear_paged.cuh has
// none: x and outputs as in tasks_linear_one.cuh, products as in codes.cuh; the same sums as in
// tasks_linear_rows.cuh, so the same bits.
//
// A product has 8 columns and there is one token, so the columns are parts of x that meet different
// panels: column 2 i + j is piece j of the share of panel i of four (of whole numbers), or its half
// j (of f16). What is wanted of a panel's products is in the lanes that hold its two columns; these
// give it to the others.
//
// What a page costs a warp decides how fast weights stream (docs/log/188, 191, 202): while a page's
// loads are on their way, the products of the page before the last are added up; only then is the
// page released, and whether the next one is there is asked long before it is needed.
//   Rejected: two pages at once, which halves that, but waits for both (docs/log/203).
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_CODED_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_CODED_CUH

#include "kernels/cuda/linear/codes.cuh"
#include "kernels/cuda/linear/tasks_linear_one.cuh"

enum {
  MGL_CODED_ROUND = 4,  // panels whose x are the columns of a product
};

static_assert(2 * MGL_CODED_ROUND == MGL_ONE_PIECES, "a lane has two pieces of a share");
static_assert(MGL_SHARE_CHUNKS == 4, "of four");

// --- x -------------------------------------------------------------------------------------------

// This lane's column of x in each round, as operands of the four chunks of a share; of f16, of the
// two of its half. Of the panel whose columns this lane holds in sums: what its products are, and
// the sums of its whole numbers.
template <bool NORMED, mgl_packing P>
struct mgl_coded_columns {
  static constexpr int ROUNDS = mgl_one_x<NORMED>::ROUNDS / 2;
  static constexpr int SUMS = mgl_coded<P>::ZEROS ? (int)MGL_SHARE_SUMS : 1;
  uint4 v[ROUNDS][2];
  float down[ROUNDS];
  float sum[ROUNDS][SUMS];
};

// Of two chunks as whole numbers, this lane's piece of all four; the lane beside has the others.
MGL_DEVICE void mgl_coded_pieces(const mgl_worker *w, uint4 a, uint4 b, uint4 out[2]) {
  const bool lower = w->lane / 4 % 2 != 0;
  const uint32_t upper_words[4] = {a.x, a.y, b.x, b.y}, lower_words[4] = {a.z, a.w, b.z, b.w};
  uint32_t own[4], other[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    own[i] = lower ? lower_words[i] : upper_words[i];
    other[i] = __shfl_xor_sync(0xffffffffu, lower ? upper_words[i] : lower_words[i], 4);
  }
  const uint4 mine = make_uint4(own[0], own[1], own[2], own[3]);
  const uint4 theirs = make_uint4(other[0], other[1], other[2], other[3]);
  out[0] = lower ? theirs : mine;
  out[1] = lower ? mine : theirs;
}

// The sums of a round's whole numbers, of the panel whose columns this lane holds.
template <int SUMS>
MGL_DEVICE void mgl_coded_sum_x(const mgl_worker *w, const uint4 v[2], float (&out)[SUMS]) {
  const int chunks[4] = {mgl_sum_pieces(v[0].x, v[0].y, 0), mgl_sum_pieces(v[0].z, v[0].w, 0),
                         mgl_sum_pieces(v[1].x, v[1].y, 0), mgl_sum_pieces(v[1].z, v[1].w, 0)};
#pragma unroll
  for (int i = 0; i < SUMS; i++) {
    int sum = 0;
#pragma unroll
    for (int j = i * 4 / SUMS; j < (i + 1) * 4 / SUMS; j++) {
      sum += chunks[j];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum = w->lane / 4 % 2 != 0 ? sum : sum * 256;
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    out[i] = (float)__shfl_sync(0xffffffffu, sum, (int)(w->lane % 4 * 8));
  }
}

template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_coded_take_x(const mgl_worker *w, const mgl_linear *l,
                                 const mgl_one_columns<NORMED> *x,
                                 mgl_coded_columns<NORMED, P> *out) {
#pragma unroll
  for (uint32_t round = 0; round < mgl_coded_columns<NORMED, P>::ROUNDS; round++) {
    if (round > 0 && 2 * round * MGL_CODED_ROUND >= l->pages) {
      break;
    }
    const uint4 a = x->v[2 * round], b = x->v[2 * round + 1];
    const uint32_t largest = mgl_largest_of_lanes<4>(mgl_largest_bf16(a, mgl_largest_bf16(b, 0)));
    const mgl_x_scale scale = mgl_x_scale_of<P>(largest);
    if constexpr (mgl_coded<P>::WHOLE) {
      mgl_coded_pieces(w, mgl_x_of_whole(a, scale.up), mgl_x_of_whole(b, scale.up), out->v[round]);
    } else {
      out->v[round][0] = mgl_x_of_f16(a, scale.up);
      out->v[round][1] = mgl_x_of_f16(b, scale.up);
    }
    out->down[round] = __shfl_sync(0xffffffffu, scale.down, (int)(w->lane % 4 * 8));
    if constexpr (mgl_coded<P>::ZEROS) {
      mgl_coded_sum_x(w, out->v[round], out->sum[round]);
    }
  }
}

// --- pages ---------------------------------------------------------------------------------------

// A warp's part of a page. A row block's last page may have one panel where others have two: then
// the second one is the first again, of scale 0.
template <mgl_packing P>
struct mgl_coded_page {
  mgl_share<P> share[mgl_coded<P>::PANELS];
  bool whole;
};

// The task's pages as a warp goes through them.
struct mgl_coded_ring {
  uint32_t page, parity;  // of the next one to read
  uint32_t full, from;    // addresses of its mbarrier in page_full, and of the page
  uint32_t left;          // pages of the task that are not read yet
  uint32_t panel;         // of its row block, with which the next page begins
  bool ready;             // the next one is known to be there
};

MGL_DEVICE void mgl_coded_aim(const mgl_worker *w, const mgl_linear *l, mgl_coded_ring *ring) {
  ring->full = mgl_kept(mgl_one_barrier(w, ring->page));
  ring->from = mgl_kept(l->page_at + ring->page * MGL_PAGE_BYTES);
}

// Panels of a row block.
MGL_DEVICE uint32_t mgl_coded_panels(const mgl_linear *l) {
  return l->pages / MGL_PANEL_PAGES;
}

// Sends the next page on its way to registers.
template <mgl_packing P>
MGL_DEVICE void mgl_coded_read(const mgl_worker *w, const mgl_linear *l, mgl_coded_ring *ring,
                               mgl_coded_page<P> *out) {
  constexpr uint32_t panels = mgl_coded<P>::PANELS;
  out->whole = panels == 1 || ring->panel + panels <= mgl_coded_panels(l);
  if (!ring->ready) {
    mgl_page_wait_at(w, ring->full, ring->parity);
  }
#pragma unroll
  for (uint32_t i = 0; i < panels; i++) {
    mgl_read_share<P>(&l->share, ring->from + (out->whole ? i * l->panel_bytes : 0),
                      &out->share[i]);
  }
  ring->left--;
  ring->panel = ring->panel + panels >= mgl_coded_panels(l) ? 0 : ring->panel + panels;
}

// The loader may fill the place of the page that was read last. released: the address of its
// mbarrier in page_free, known once the page is in registers.
MGL_DEVICE void mgl_coded_leave(const mgl_worker *w, const mgl_linear *l, mgl_coded_ring *ring,
                                uint32_t released) {
  __syncwarp();
  if (w->lane == 0) {
    mgl_mbarrier_arrive_at(released);
  }
  const bool wraps = ring->page + 1 == w->page_count;
  ring->page = wraps ? 0 : ring->page + 1;
  ring->parity ^= wraps ? 1 : 0;
  ring->full = wraps ? mgl_one_barrier(w, 0) : ring->full + (uint32_t)sizeof(uint64_t);
  ring->from = wraps ? l->page_at : ring->from + MGL_PAGE_BYTES;
  ring->ready = mgl_mbarrier_test_at(ring->full, ring->parity);
}

// Once a page is in registers the loader may fill its place again.
template <mgl_packing P>
MGL_DEVICE void mgl_coded_release(const mgl_worker *w, const mgl_linear *l, mgl_coded_ring *ring,
                                  const mgl_coded_page<P> *page) {
  uint32_t released = ring->full + MGL_ONE_FREE;
#pragma unroll
  for (uint32_t i = 0; i < mgl_coded<P>::PANELS; i++) {
    released += mgl_share_arrived<P>(&page->share[i], l->zero);
  }
  mgl_coded_leave(w, l, ring, released);
}

// --- products ------------------------------------------------------------------------------------

// The products of a page, and what they are multiplied by.
template <mgl_packing P>
struct mgl_coded_made {
  static constexpr int PANELS = mgl_coded<P>::PANELS, CHAINS = mgl_coded<P>::CHAINS;
  static constexpr int ZEROS = mgl_coded<P>::ZEROS ? (int)MGL_SHARE_SUMS : 1;
  int whole[mgl_coded<P>::WHOLE ? PANELS : 1][CHAINS][4];
  float f16[mgl_coded<P>::WHOLE ? 1 : PANELS][CHAINS][4];
  float2 scale[PANELS][MGL_SHARE_SUMS];
  float2 zero[mgl_coded<P>::ZEROS ? PANELS : 1][ZEROS];
  float x_down, x_sum[ZEROS];
};

// Where a warp is in a batch: it adds up the products of one page while those of the next one are
// made.
template <bool NORMED, mgl_packing P>
struct mgl_coded_place {
  uint32_t panel;  // of its row block, with which the next page begins
  uint4 x[2];      // the columns of its round
  float x_down, x_sum[mgl_coded_columns<NORMED, P>::SUMS];
  uint32_t added;  // panels of its row block that are added up
  mgl_one_sums sums;
  float *to;  // where the sums of that row block go
};

template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_coded_begin_round(const mgl_coded_columns<NORMED, P> *columns,
                                      mgl_coded_place<NORMED, P> *at) {
#pragma unroll
  for (uint32_t i = 0; i < mgl_coded_columns<NORMED, P>::ROUNDS; i++) {
    if (i == 0 || i == at->panel / MGL_CODED_ROUND) {
      at->x[0] = columns->v[i][0];
      at->x[1] = columns->v[i][1];
      at->x_down = columns->down[i];
#pragma unroll
      for (int j = 0; j < mgl_coded_columns<NORMED, P>::SUMS; j++) {
        at->x_sum[j] = columns->sum[i][j];
      }
    }
  }
}

// A share times a round of x.
template <mgl_packing P>
MGL_DEVICE void mgl_coded_multiply(const mgl_share<P> *s, uint32_t signs, const uint4 x[2],
                                   int (&d)[mgl_coded<P>::CHAINS][4]) {
#pragma unroll
  for (int chunk = 0; chunk < MGL_SHARE_CHUNKS; chunk++) {
    uint32_t a[4];
    mgl_decode_whole<P>(s, signs, chunk, a);
    int *sums = d[chunk * mgl_coded<P>::CHAINS / MGL_SHARE_CHUNKS];
    if (chunk % (MGL_SHARE_CHUNKS / mgl_coded<P>::CHAINS) == 0) {
      sums[0] = sums[1] = sums[2] = sums[3] = 0;
    }
    mgl_mma_s8(sums, a, mgl_word_of(x[chunk / 2], chunk % 2 * 2),
               mgl_word_of(x[chunk / 2], chunk % 2 * 2 + 1));
  }
}

template <mgl_packing P>
MGL_DEVICE void mgl_coded_multiply(const mgl_share<P> *s, uint32_t, const uint4 x[2],
                                   float (&d)[mgl_coded<P>::CHAINS][4]) {
#pragma unroll
  for (int i = 0; i < 2 * MGL_SHARE_CHUNKS; i++) {  // halves in turn: their sums are two chains
    const int step = i / 2 % 2, chunk = i % 2 * 2 + i / 4;
    uint32_t a[4];
    mgl_decode_f16<P>(s, chunk, step, a);
    float *sums = d[chunk * mgl_coded<P>::CHAINS / MGL_SHARE_CHUNKS];
    const uint32_t low = mgl_word_of(x[chunk % 2], 2 * step);
    const uint32_t high = mgl_word_of(x[chunk % 2], 2 * step + 1);
    if (step == 0 && chunk % (MGL_SHARE_CHUNKS / mgl_coded<P>::CHAINS) == 0) {
      mgl_mma_f16<true>(sums, a, low, high);
    } else {
      mgl_mma_f16<false>(sums, a, low, high);
    }
  }
}

// Makes the products of a page, and goes on behind it.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_coded_make(const mgl_linear *l, const mgl_coded_columns<NORMED, P> *columns,
                               const mgl_coded_page<P> *page, mgl_coded_place<NORMED, P> *at,
                               mgl_coded_made<P> *made) {
  constexpr uint32_t panels = mgl_coded<P>::PANELS;
  static_assert(MGL_CODED_ROUND % panels == 0, "at->x has the columns of all of them");
#pragma unroll
  for (uint32_t i = 0; i < panels; i++) {
    if constexpr (mgl_coded<P>::WHOLE) {
      mgl_coded_multiply<P>(&page->share[i], l->share.signs, at->x, made->whole[i]);
    } else {
      mgl_coded_multiply<P>(&page->share[i], l->share.signs, at->x, made->f16[i]);
    }
#pragma unroll
    for (int j = 0; j < MGL_SHARE_SUMS; j++) {
      made->scale[i][j] = i == 0 || page->whole ? page->share[i].scale[j] : float2{0, 0};
      if constexpr (mgl_coded<P>::ZEROS) {
        made->zero[i][j] = page->share[i].zero[j];
      }
    }
  }
  made->x_down = at->x_down;
#pragma unroll
  for (int j = 0; j < mgl_coded_made<P>::ZEROS; j++) {
    made->x_sum[j] = at->x_sum[j];
  }
  at->panel += panels;
  const bool ends = at->panel >= mgl_coded_panels(l);
  at->panel = ends ? 0 : at->panel;
  if (mgl_coded_columns<NORMED, P>::ROUNDS > 1 && at->panel % MGL_CODED_ROUND == 0) {
    mgl_coded_begin_round<NORMED, P>(columns, at);
  }
}

// Sum `sum` of the products with rows g (half 0) or g + 8 of a panel of a page, in the lanes that
// hold its columns.
template <mgl_packing P>
MGL_DEVICE float mgl_coded_sum(const mgl_coded_made<P> *made, int panel, int sum, int half) {
  if constexpr (mgl_coded<P>::WHOLE) {
    const int *p = made->whole[panel][sum] + 2 * half;
    float value = mgl_whole_sum(p[0], p[1]);
    if constexpr (mgl_coded<P>::ZEROS) {
      const float2 zero = made->zero[panel][sum];
      value = mgl_less_zero(value, half == 0 ? zero.x : zero.y, made->x_sum[sum]);
    }
    return value * made->x_down;
  }
  const float(*p)[4] = made->f16[mgl_coded<P>::WHOLE ? 0 : panel];
  if (MGL_SHARE_SUMS == 1) {
    return (p[0][2 * half] + p[mgl_coded<P>::CHAINS - 1][2 * half + 1]) * made->x_down;
  }
  return p[sum][2 * half + sum * 2 / MGL_SHARE_SUMS] * made->x_down;
}

// Adds up the products of a page.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_coded_add(const mgl_worker *w, const mgl_linear *l,
                              const mgl_coded_made<P> *made, mgl_coded_place<NORMED, P> *at) {
  constexpr uint32_t panels = mgl_coded<P>::PANELS;
  const uint32_t holder = (w->lane & ~3u) + at->added % MGL_CODED_ROUND;
#pragma unroll
  for (uint32_t i = 0; i < panels; i++) {
#pragma unroll
    for (int j = 0; j < MGL_SHARE_SUMS; j++) {
      const float low = mgl_coded_sum<P>(made, (int)i, j, 0);
      const float high = mgl_coded_sum<P>(made, (int)i, j, 1);
      const float2 scale = made->scale[i][j];
      mgl_add_scaled(__shfl_sync(0xffffffffu, low, (int)(holder + i)), scale.x, &at->sums.low);
      mgl_add_scaled(__shfl_sync(0xffffffffu, high, (int)(holder + i)), scale.y, &at->sums.high);
    }
  }
  at->added += panels;
  if (at->added >= mgl_coded_panels(l)) {
    if (w->lane % 4 == 0) {
      at->to[w->lane / 4] = at->sums.low;
      at->to[w->lane / 4 + MGL_CUDA_HALF_ROWS] = at->sums.high;
    }
    at->to += MGL_CUDA_BLOCK_ROWS;
    at->sums = {0, 0};
    at->added = 0;
  }
}

// One page further: products of `page`, which then is the next one if there is any; meanwhile
// `before` is added up.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_coded_step(const mgl_worker *w, const mgl_linear *l,
                               const mgl_coded_columns<NORMED, P> *columns, mgl_coded_page<P> *page,
                               mgl_coded_ring *ring, mgl_coded_place<NORMED, P> *at,
                               mgl_coded_made<P> *now, const mgl_coded_made<P> *before) {
  // Where sums are of 32 columns, there are no registers for them and the next page.
  constexpr bool waits = MGL_SHARE_SUMS <= 2;
  mgl_coded_make<NORMED, P>(l, columns, page, at, now);
  const bool more = ring->left > 0;
  if (!waits) {
    mgl_coded_add<NORMED, P>(w, l, before, at);
  }
  if (more) {
    mgl_coded_read<P>(w, l, ring, page);
  }
  if (waits && before != nullptr) {
    mgl_coded_add<NORMED, P>(w, l, before, at);
  }
  if (more) {
    mgl_coded_release<P>(w, l, ring, page);
  }
}

// This warp's part of a batch; *page is the first one.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_coded_batch(const mgl_worker *w, const mgl_linear *l,
                                const mgl_coded_columns<NORMED, P> *columns, float *partial,
                                mgl_coded_page<P> *page, mgl_coded_ring *ring) {
  mgl_coded_place<NORMED, P> at = {};
  at.to = partial + w->warp * MGL_ONE_WARP_FLOATS;
  mgl_coded_begin_round<NORMED, P>(columns, &at);
  uint32_t left =
      l->blocks * ((mgl_coded_panels(l) + (mgl_coded<P>::PANELS - 1)) / mgl_coded<P>::PANELS);
  if constexpr (mgl_coded<P>::ZEROS || MGL_SHARE_SUMS > 2) {
    // There are no registers for the products of two pages.
#pragma unroll 1
    for (; left > 0; left--) {
      mgl_coded_made<P> made;
      mgl_coded_step<NORMED, P>(w, l, columns, page, ring, &at, &made, &made);
    }
    return;
  }
  // Two in turn: a copy of products would wait for them.
  mgl_coded_made<P> even, odd;
  mgl_coded_step<NORMED, P>(w, l, columns, page, ring, &at, &even, nullptr);
#pragma unroll 1
  for (;;) {
    if (--left == 0) {
      mgl_coded_add<NORMED, P>(w, l, &even, &at);
      return;
    }
    mgl_coded_step<NORMED, P>(w, l, columns, page, ring, &at, &odd, &even);
    if (--left == 0) {
      mgl_coded_add<NORMED, P>(w, l, &odd, &at);
      return;
    }
    mgl_coded_step<NORMED, P>(w, l, columns, page, ring, &at, &even, &odd);
  }
}

// --- the task ------------------------------------------------------------------------------------

template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_task_linear_coded(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, slot->rows, true, &l);
  const uint32_t begin = slot->begin;
  const uint32_t end = slot->end;
  mgl_one_norm norm;
  mgl_one_x<NORMED> mine = {};
  mgl_coded_columns<NORMED, P> columns = {};
  // All loads from the L2 are on their way before anything is waited for.
  if (l.carried) {
    mgl_one_ask<NORMED, P>(w, &l, l.x, mgl_one_polls_all(&l) ? mgl_one_rounds<P>(&l) : 1, &mine);
  }
  if (NORMED) {
    mgl_one_load_norm<P>(w, &l, &norm);
  }
  mgl_one_output output;
  mgl_one_batch_of(&l, begin, end);
  mgl_one_aim(w, &l, &output);
  mgl_linear_find_share<P>(w, slot, &l);
  l.pages = mgl_kept(l.pages);
  mgl_coded_ring ring = {w->page, w->page_parity, 0, 0, 0, 0, false};
  ring.left =
      (end - begin) * ((mgl_coded_panels(&l) + (mgl_coded<P>::PANELS - 1)) / mgl_coded<P>::PANELS);
  mgl_coded_aim(w, &l, &ring);
  mgl_coded_page<P> page;
  if (!mgl_mbarrier_wait_or_stop(w->block, &w->block->go[w->slot], w->slot_parity)) {
    return;  // the run has stopped before
  }
  mgl_coded_read<P>(w, &l, &ring, &page);
  mgl_coded_release<P>(w, &l, &ring, &page);
  if (!l.carried) {  // now there is a residual
    mgl_one_aim(w, &l, &output);
  }
  mgl_one_await<NORMED, P>(w, &l, &mine);
  {
    mgl_one_columns<NORMED> x = {};
    mgl_one_squares<NORMED> squares = {};
    mgl_one_round<NORMED, P>(&l, &mine, &norm, &x, &squares);
    mgl_task_began(w);
    mgl_coded_take_x<NORMED, P>(w, &l, &x, &columns);
    mgl_one_share_squares<NORMED, P>(w, &l, &squares);
  }
  uint64_t best = 0;
  uint32_t buffer = 0;
#pragma unroll 1
  for (;;) {
    // Partial sums of two batches in turn, as in mgl_task_linear_one.
    float *partial = (float *)w->scratch + buffer * MGL_ONE_BATCH_FLOATS;
    mgl_coded_batch<NORMED, P>(w, &l, &columns, partial, &page, &ring);
    mgl_sync_consumers();
    if (w->thread < MGL_ONE_OUTPUTS) {
      mgl_one_finish<NORMED>(w, &l, &output, partial, &best);
    }
    if (l.block + l.blocks == end) {
      break;
    }
    mgl_one_batch_of(&l, l.block + l.blocks, end);
    mgl_one_aim(w, &l, &output);
    buffer ^= 1;
  }
  w->page = ring.page;
  w->page_parity = ring.parity;
  mgl_one_share_best(w, &l, best);
}

#endif
