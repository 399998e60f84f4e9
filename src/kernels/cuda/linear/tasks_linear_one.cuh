// The linears of an iteration of one token, where latency is everything: the same sums in the same
// order as tasks_linear.cuh, so the same bits.
//
// As there, a warp has a slice of 64 elements of every page. Its share of x comes from the L2 at
// once and by all of its lanes: a group is 8 elements, lane 4 i + t holds groups t of pieces i, i +
// 8, i + 16 ... (a piece is 32 elements, half of a page's share). As such they are operands
// already: a product has 8 columns and there is one token, so each column is a piece of x of its
// own. A page is multiplied by 8 pieces, and the sums of the columns of its own two are what is
// wanted. So x goes from the L2 into registers, and from there nowhere.
//
// What happens between the arrival of x and the outputs is short: the first MGL_ONE_AHEAD pages are
// in registers by then, where they wait for x, and the loader has their places in shared memory.
// Pages are multiplied in pairs, and what has time is done while the first pair is (docs/log/235).
//   Rejected: the general shape (four of a warp's lanes load x, a trip to the L2 for every two
//   pages); a page for each warp (half as many waits, but two more barriers); x staged in shared
//   memory, read again for every page (docs/log/054, 056, 084).
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_ONE_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_ONE_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"

enum {
  MGL_ONE_PIECES = 8,         // of a warp's share of x, in a round of loads
  MGL_ONE_ROUNDS = 6,         // of a plain x
  MGL_ONE_NORMED_ROUNDS = 2,  // of an x that is normed
  MGL_ONE_POLL_ROUNDS = 2,    // an x of so many rounds is polled as a whole
  MGL_ONE_AHEAD = 4,          // pages in registers
  MGL_ONE_SUMS_AT = 4096,     // in scratch, behind the partial sums of two batches: of squares
  MGL_ONE_BLOCKS = 4,         // row blocks of a batch
  MGL_ONE_WARP_FLOATS = MGL_ONE_BLOCKS * MGL_CUDA_BLOCK_ROWS,  // partial sums of a batch
  MGL_ONE_BATCH_FLOATS = MGL_ONE_WARP_FLOATS * MGL_CUDA_CONSUMER_WARPS,
  MGL_ONE_OUTPUTS = MGL_ONE_BLOCKS * MGL_CUDA_BLOCK_ROWS,  // of a batch: a thread has one at most
};

static_assert(MGL_ONE_ROUNDS * MGL_ONE_PIECES / 2 * MGL_CUDA_PAGE_K >= MGL_ONE_MAX_K &&
                  MGL_ONE_NORMED_ROUNDS * MGL_ONE_PIECES / 2 * MGL_CUDA_PAGE_K >=
                      MGL_ONE_NORMED_MAX_K,
              "all of x");
static_assert(2 * MGL_ONE_BATCH_FLOATS * 4 <= MGL_ONE_SUMS_AT, "two batches' partial sums");

// --- x -------------------------------------------------------------------------------------------

// Element of x with which group t of piece `piece` of this warp begins. Of codes a warp has four
// pieces of a panel.
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_one_element(const mgl_worker *w, uint32_t piece) {
  if (P != MGL_PACKING_BF16) {
    return piece / MGL_SHARE_CHUNKS * MGL_PANEL_K + w->warp * MGL_SHARE_K +
           piece % MGL_SHARE_CHUNKS * MGL_CHUNK_K + w->lane % 4 * 8;
  }
  return piece / 2 * MGL_CUDA_PAGE_K + w->warp * MGL_LINEAR_WARP_K + piece % 2 * 32 +
         w->lane % 4 * 8;
}

// The piece of x that this lane has in a round. Of codes, a column is half a share: two pieces that
// follow each other, in two rounds. Of E2M1 a round is a page of two panels, in turn
// (tasks_experts_mx4.cuh).
template <mgl_packing P>
MGL_DEVICE uint32_t mgl_one_piece(const mgl_worker *w, uint32_t round) {
  if constexpr (P == MGL_PACKING_MX4) {
    return (2 * round + w->lane / 4 % 2) * MGL_SHARE_CHUNKS + w->lane / 8;
  }
  return P == MGL_PACKING_BF16 ? round * MGL_ONE_PIECES + w->lane / 4
                               : (round / 2 * MGL_ONE_PIECES + w->lane / 4) * 2 + round % 2;
}

// Whether pieces of the last page, or panel, may lie behind the row's end. (Where not, nobody asks,
// so that the machine code is what it was without such models.)
template <mgl_packing P>
constexpr bool mgl_one_cuts() {
  return P == MGL_PACKING_BF16 ? MGL_HAS_CUT_ROWS != 0 : MGL_HAS_EXPERTS && MGL_EXPERTS_CUT;
}

// This lane's groups of x, as they lie in memory; bf16 fills only [][0].
template <bool NORMED>
struct mgl_one_x {
  static constexpr int ROUNDS = NORMED ? MGL_ONE_NORMED_ROUNDS : MGL_ONE_ROUNDS;
  uint4 v[ROUNDS][NORMED ? 2 : 1];
};

// Asks for the groups of rounds [0, rounds).
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_one_ask(const mgl_worker *w, const mgl_linear *l, const uint8_t *x,
                            uint32_t rounds, mgl_one_x<NORMED> *out) {
  constexpr uint32_t bytes = NORMED ? sizeof(float) : sizeof(uint16_t);
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    uint32_t piece = mgl_one_piece<P>(w, round);
    if (round < rounds && piece < 2 * l->pages) {
      if constexpr (mgl_one_cuts<P>()) {
        if (mgl_one_element<P>(w, piece) >= l->k) {
          continue;
        }
      }
      const uint8_t *from = x + (size_t)mgl_one_element<P>(w, piece) * bytes;
      out->v[round][0] = mgl_load_l2(from);
      if (NORMED) {
        out->v[round][NORMED ? 1 : 0] = mgl_load_l2(from + 16);
      }
    }
  }
}

// (The open word is the largest of all. One comparison at the end: branches cost more than loads.)
template <bool NORMED>
MGL_DEVICE bool mgl_one_is_open(const mgl_one_x<NORMED> *x) {
  uint32_t largest = 0;
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
#pragma unroll
    for (int i = 0; i < (NORMED ? 2 : 1); i++) {
      uint4 v = x->v[round][i];
      largest = max(max(largest, max(v.x, v.y)), max(v.z, v.w));
    }
  }
  return largest == MGL_CUDA_OPEN;
}

// True if so long an x is polled as a whole; else only its first round is, as long as that is not
// there, since a long x asked for by all SMs again and again fills the L2's queues.
MGL_DEVICE bool mgl_one_polls_all(const mgl_linear *l) {
  return !l->carried || 2 * l->pages <= MGL_ONE_POLL_ROUNDS * MGL_ONE_PIECES;
}

template <mgl_packing P>
MGL_DEVICE uint32_t mgl_one_rounds(const mgl_linear *l) {
  return P == MGL_PACKING_BF16 ? (2 * l->pages + MGL_ONE_PIECES - 1) / MGL_ONE_PIECES
                               : (l->pages + MGL_ONE_PIECES - 1) / MGL_ONE_PIECES * 2;
}

// All of this warp's share: asks again until it is there. Where x does not carry its readiness it
// is there now, and was not asked for before.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_one_await(const mgl_worker *w, const mgl_linear *l, mgl_one_x<NORMED> *out) {
  bool all = mgl_one_polls_all(l);
  bool open = l->carried && __any_sync(0xffffffffu, mgl_one_is_open<NORMED>(out)) != 0;
  bool asks = open || !all || !l->carried;
  while (asks && w->block->stop == 0) {
    all = all || !open;
    mgl_one_ask<NORMED, P>(w, l, l->x, all ? mgl_one_rounds<P>(l) : 1, out);
    open = l->carried && __any_sync(0xffffffffu, mgl_one_is_open<NORMED>(out)) != 0;
    asks = open || !all;
  }
}

// The norm's weights of this lane's groups, before anybody waits.
struct mgl_one_norm {
  float4 v[MGL_ONE_NORMED_ROUNDS][2];
};

template <mgl_packing P>
MGL_DEVICE void mgl_one_load_norm(const mgl_worker *w, const mgl_linear *l, mgl_one_norm *norm) {
#pragma unroll
  for (uint32_t round = 0; round < MGL_ONE_NORMED_ROUNDS; round++) {
    uint32_t piece = mgl_one_piece<P>(w, round);
    norm->v[round][0] = norm->v[round][1] = {};
    if (piece < 2 * l->pages) {
      if constexpr (mgl_one_cuts<P>()) {
        if (mgl_one_element<P>(w, piece) >= l->k) {
          continue;
        }
      }
      const float4 *from = (const float4 *)(l->norm + mgl_one_element<P>(w, piece));
      norm->v[round][0] = __ldg(from);
      norm->v[round][1] = __ldg(from + 1);
    }
  }
}

// This lane's groups of x as operands: of round r, column i of a product is piece 8 r + i.
template <bool NORMED>
struct mgl_one_columns {
  static constexpr int ROUNDS = mgl_one_x<NORMED>::ROUNDS;
  uint4 v[ROUNDS];
};

// Sums of squares of this lane's groups.
template <bool NORMED>
struct mgl_one_squares {
  float v[NORMED ? MGL_ONE_NORMED_ROUNDS : 1];
};

// Norms and rounds x.
template <bool NORMED, mgl_packing P>
MGL_DEVICE void mgl_one_round(const mgl_linear *l, const mgl_one_x<NORMED> *x,
                              const mgl_one_norm *norm, mgl_one_columns<NORMED> *columns,
                              mgl_one_squares<NORMED> *squares) {
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    columns->v[round] = x->v[round][0];
    if (NORMED) {
      const uint4 raw[2] = {x->v[round][0], x->v[round][NORMED ? 1 : 0]};
      squares->v[NORMED ? round : 0] = 0;
      if (P != MGL_PACKING_BF16 || round * MGL_ONE_PIECES < 2 * l->pages) {
        columns->v[round] = mgl_linear_normed(raw, norm->v[round], &squares->v[NORMED ? round : 0]);
      }
    }
  }
}

// This warp's sum of squares, added up as the general shape does: of the groups t of all pieces in
// their order, then over t. Nobody needs it before the products are made.
template <bool NORMED, mgl_packing P, int SUMS_AT = MGL_ONE_SUMS_AT>
MGL_DEVICE void mgl_one_share_squares(const mgl_worker *w, const mgl_linear *l,
                                      const mgl_one_squares<NORMED> *squares) {
  if (!NORMED) {
    return;
  }
  float sum = 0;
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    if (P != MGL_PACKING_BF16 || round * MGL_ONE_PIECES >= 2 * l->pages) {
      break;
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_ONE_PIECES; i++) {  // pieces that are not there add 0
      sum += __shfl_sync(0xffffffffu, squares->v[NORMED ? round : 0], (int)(4 * i + w->lane % 4));
    }
  }
  if (P != MGL_PACKING_BF16) {
    static_assert(MGL_ONE_NORMED_ROUNDS == 2, "one round of slices");
#pragma unroll
    for (uint32_t i = 0; i < 2 * MGL_ONE_PIECES; i++) {
      const uint32_t round = P == MGL_PACKING_MX4 ? i / MGL_ONE_PIECES : i % 2;
      const uint32_t holder =
          P == MGL_PACKING_MX4 ? i % MGL_SHARE_CHUNKS * 2 + i / MGL_SHARE_CHUNKS % 2 : i / 2;
      sum +=
          __shfl_sync(0xffffffffu, squares->v[NORMED ? round : 0], (int)(4 * holder + w->lane % 4));
    }
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (w->lane == 0) {
    ((float *)(w->scratch + SUMS_AT))[w->warp * 32] = sum;
  }
}

// --- pages ---------------------------------------------------------------------------------------

// A warp's part of a page.
template <mgl_packing P>
struct mgl_one_page;

template <>
struct mgl_one_page<MGL_PACKING_BF16> {
  static constexpr int AHEAD = MGL_ONE_AHEAD;
  uint4 v[MGL_LINEAR_STEPS];
};

// The task's pages as a warp goes through them.
struct mgl_one_ring {
  uint32_t page, parity;  // of the next one to load
  uint32_t left;          // pages of the task that are not loaded yet
};

enum { MGL_ONE_FREE = (int)(offsetof(mgl_block, page_free) - offsetof(mgl_block, page_full)) };

// The address of a page's mbarrier in page_full; that in page_free is MGL_ONE_FREE behind it.
MGL_DEVICE uint32_t mgl_one_barrier(const mgl_worker *w, uint32_t page) {
  return mgl_shared_address(w->scratch) - MGL_CUDA_BLOCK_BYTES +
         (uint32_t)offsetof(mgl_block, page_full) + page * (uint32_t)sizeof(uint64_t);
}

// The task's first pages, into registers, as soon as they are there and the task may run (of fewer
// pages than MGL_ONE_AHEAD the last ones are whatever lies in the ring). Each lane waits for one
// mbarrier, and each lane releases one page. False: the run has stopped before.
MGL_DEVICE bool mgl_one_load_first(const mgl_worker *w, const mgl_linear *l, mgl_one_ring *ring,
                                   mgl_one_page<MGL_PACKING_BF16> *pages) {
  const uint32_t go = mgl_shared_address(&w->block->go[w->slot]);
  const bool mine = w->lane < MGL_ONE_AHEAD && w->lane < ring->left;
  uint32_t page = ring->page + w->lane;
  bool wraps = page >= w->page_count;
  uint32_t full = mgl_one_barrier(w, wraps ? page - w->page_count : page);
  uint32_t awaited = mine ? full : go;
  uint32_t parity = mine ? ring->parity ^ (wraps ? 1 : 0) : w->slot_parity;
  for (uint32_t tries = 0; !__all_sync(0xffffffffu, mgl_mbarrier_try_at(awaited, parity));
       tries++) {
    if (w->block->stop != 0 && !mgl_mbarrier_test_at(go, w->slot_parity)) {
      return false;
    }
    if (tries == MGL_MBARRIER_TRIES) {
      __trap();
    }
  }
  uint32_t loaded = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_ONE_AHEAD; i++) {
    uint32_t at = ring->page + i;
    mgl_linear_read(l, at >= w->page_count ? at - w->page_count : at, pages[i].v);
  }
#pragma unroll
  for (uint32_t i = 0; i < MGL_ONE_AHEAD; i++) {
    loaded |= mgl_loads_arrived(pages[i].v, l->zero);
  }
  __syncwarp();
  if (mine) {
    mgl_mbarrier_arrive_at(full + MGL_ONE_FREE + loaded);
  }
  uint32_t count = ring->left < MGL_ONE_AHEAD ? ring->left : MGL_ONE_AHEAD;
  ring->left -= count;
  ring->page += count;
  ring->parity ^= ring->page >= w->page_count ? 1 : 0;
  ring->page -= ring->page >= w->page_count ? w->page_count : 0;
  return true;
}

// The next two pages, into registers.
MGL_DEVICE void mgl_one_load_pair(const mgl_worker *w, const mgl_linear *l, mgl_one_ring *ring,
                                  mgl_one_page<MGL_PACKING_BF16> *pages) {
  const uint32_t first = ring->page;
  const uint32_t second = first + 1 == w->page_count ? 0 : first + 1;
  const uint32_t parity = ring->parity ^ (second == 0 ? 1 : 0);
  const uint32_t full[2] = {mgl_one_barrier(w, first), mgl_one_barrier(w, second)};
  mgl_page_wait_at(w, full[0], ring->parity);
  mgl_linear_read(l, first, pages[0].v);
  mgl_page_wait_at(w, full[1], parity);
  mgl_linear_read(l, second, pages[1].v);
  ring->page = second + 1 == w->page_count ? 0 : second + 1;
  ring->parity = parity ^ (ring->page == 0 ? 1 : 0);
  ring->left -= 2;
  const uint32_t arrived =
      mgl_loads_arrived(pages[0].v, l->zero) | mgl_loads_arrived(pages[1].v, l->zero);
  __syncwarp();
  if (w->lane < 2) {
    mgl_mbarrier_arrive_at((w->lane == 0 ? full[0] : full[1]) + MGL_ONE_FREE + arrived);
  }
}

// --- products ------------------------------------------------------------------------------------

// This warp's sums of a row block: of features g and g + 8.
struct mgl_one_sums {
  float low, high;
};

// A page's products, of which nobody waits for another; x: the columns of its round.
MGL_DEVICE void mgl_one_multiply(const mgl_one_page<MGL_PACKING_BF16> *page, uint4 x,
                                 float products[MGL_LINEAR_STEPS][4]) {
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    const uint32_t a[4] = {page->v[step].x, page->v[step].y, page->v[step].z, page->v[step].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      products[step][i] = 0;
    }
    mgl_mma(products[step], a, step % 2 == 0 ? x.x : x.z, step % 2 == 0 ? x.y : x.w);
  }
}

// The sums of the page whose pieces begin with `piece`. Only the lane that holds their columns has
// them, and gives them to the others.
MGL_DEVICE mgl_one_sums mgl_one_gather(const mgl_worker *w,
                                       const float products[MGL_LINEAR_STEPS][4], uint32_t piece) {
  const float low = (products[0][0] + products[1][0]) + (products[2][1] + products[3][1]);
  const float high = (products[0][2] + products[1][2]) + (products[2][3] + products[3][3]);
  const int holder = (int)((w->lane & ~3u) + piece % MGL_ONE_PIECES / 2);
  return {__shfl_sync(0xffffffffu, low, holder), __shfl_sync(0xffffffffu, high, holder)};
}

// The columns of a round.
template <bool NORMED>
MGL_DEVICE uint4 mgl_one_column(const mgl_one_columns<NORMED> *x, uint32_t round) {
  uint4 v = x->v[0];
#pragma unroll
  for (uint32_t i = 1; i < mgl_one_columns<NORMED>::ROUNDS; i++) {
    v = i == round ? x->v[i] : v;
  }
  return v;
}

// An mgl_one_place says where a warp is in a batch.
struct mgl_one_place {
  uint32_t piece;  // of the next page, in a row of x
  uint4 x;         // the columns of its round
  mgl_one_sums sums;
  float *to;  // where the sums of its row block go
};

// What a warp does while the tensor cores make the first products of a task: nobody waits for it
// before these are added up.
template <bool NORMED>
struct mgl_one_aside {
  bool waits;                              // it is still to be done
  bool begins;                             // to say that the task has inputs, too
  const mgl_one_squares<NORMED> *squares;  // to share
};

template <bool NORMED>
MGL_DEVICE void mgl_one_do_aside(mgl_worker *w, const mgl_linear *l, mgl_one_aside<NORMED> *aside) {
  if (aside->waits) {
    aside->waits = false;
    if (aside->begins) {
      mgl_task_began(w);
    }
    mgl_one_share_squares<NORMED, MGL_PACKING_BF16>(w, l, aside->squares);
  }
}

// The products of the next two pages, then two later ones are loaded into their registers. Nothing
// waits between the products of both pages, whose sums are added in their order. FIRST: they may be
// the task's first ones.
template <bool NORMED, bool FIRST>
MGL_DEVICE void mgl_one_pair(mgl_worker *w, const mgl_linear *l,
                             const mgl_one_columns<NORMED> *columns,
                             mgl_one_page<MGL_PACKING_BF16> *pages, mgl_one_ring *ring,
                             mgl_one_place *at, mgl_one_aside<NORMED> *aside) {
  float even[MGL_LINEAR_STEPS][4], odd[MGL_LINEAR_STEPS][4];
  mgl_one_sums first;
  if (FIRST && !MGL_TARGET_COPIES) {  // there are no registers for both pages' products
    mgl_one_do_aside<NORMED>(w, l, aside);
  }
  mgl_one_multiply(&pages[0], at->x, even);
  if (!MGL_TARGET_COPIES) {
    first = mgl_one_gather(w, even, at->piece);
  }
  mgl_one_multiply(&pages[1], at->x, odd);
  if (FIRST && MGL_TARGET_COPIES) {
    mgl_one_do_aside<NORMED>(w, l, aside);
  }
  if (MGL_TARGET_COPIES) {
    first = mgl_one_gather(w, even, at->piece);
  }
  mgl_one_sums second = mgl_one_gather(w, odd, at->piece + 2);
  if constexpr (mgl_one_cuts<MGL_PACKING_BF16>()) {
    if ((at->piece / 2 + 1) * MGL_CUDA_PAGE_K + w->warp * MGL_LINEAR_WARP_K >= l->k) {
      second = {0, 0};  // of what lies in the ring behind the row's end
    }
  }
  if (ring->left > 0) {
    mgl_one_load_pair(w, l, ring, pages);
  }
  at->sums.low = (at->sums.low + first.low) + second.low;
  at->sums.high = (at->sums.high + first.high) + second.high;
  at->piece += 4;
  if (at->piece == 2 * l->pages || at->piece % MGL_ONE_PIECES == 0) {
    bool ends = at->piece == 2 * l->pages;
    if (ends && w->lane % 4 == 0) {
      at->to[w->lane / 4] = at->sums.low;
      at->to[w->lane / 4 + MGL_CUDA_HALF_ROWS] = at->sums.high;
    }
    at->to += ends ? (uint32_t)MGL_CUDA_BLOCK_ROWS : 0;
    at->sums.low = ends ? 0 : at->sums.low;
    at->sums.high = ends ? 0 : at->sums.high;
    at->piece = ends ? 0 : at->piece;
    at->x = mgl_one_column<NORMED>(columns, at->piece / MGL_ONE_PIECES);
  }
}

// This warp's part of a batch: its sums of row block after row block. `pages` holds the next ones.
// A row block has an even number of pages, so a batch that another one follows has a multiple of
// MGL_ONE_AHEAD.
template <bool NORMED>
MGL_DEVICE void mgl_one_batch(mgl_worker *w, const mgl_linear *l,
                              const mgl_one_columns<NORMED> *columns, float *partial,
                              mgl_one_page<MGL_PACKING_BF16> *pages, mgl_one_ring *ring,
                              mgl_one_aside<NORMED> *aside) {
  static_assert(MGL_ONE_AHEAD == 4, "pairs below");
  mgl_one_place at = {0, columns->v[0], {0, 0}, partial + w->warp * MGL_ONE_WARP_FLOATS};
#pragma unroll 1
  for (uint32_t left = l->blocks * l->pages;;) {
    mgl_one_pair<NORMED, true>(w, l, columns, &pages[0], ring, &at, aside);
    left -= 2;
    if (left == 0) {
      break;
    }
    mgl_one_pair<NORMED, false>(w, l, columns, &pages[2], ring, &at, aside);
    left -= 2;
    if (left == 0) {
      break;
    }
  }
}

// --- outputs -------------------------------------------------------------------------------------

// An output of this thread, one of the first 64: row thread % 16 of row block thread / 16 of the
// batch. Known before its value.
struct mgl_one_output {
  uint32_t column;
  bool there;
  float addend;        // the residual or the bias
  uint8_t *at, *open;  // where it is written, and where its other copy becomes open (NULL: nowhere)
};

MGL_DEVICE void mgl_one_aim(const mgl_worker *w, const mgl_linear *l, mgl_one_output *o) {
  const mgl_slot *slot = mgl_task_slot(w);
  uint32_t block = w->thread / MGL_CUDA_BLOCK_ROWS;
  uint32_t row = w->thread % MGL_CUDA_BLOCK_ROWS;
  const uint32_t columns = mgl_block_columns(l->kind);
  o->column = (l->block + block) * columns + row;
  o->there = block < l->blocks && row < columns && o->column < l->op->n && l->rows > 0;
  o->at = (uint8_t *)l->op->out +
          o->column * (l->kind == MGL_OP_GATE_UP ? sizeof(uint16_t) : sizeof(float));
  o->open = nullptr;
  if ((l->known || mgl_has_copies(l->op)) && l->kind != MGL_OP_LOGITS) {
    o->open = o->at + slot->open_at;
    o->at += slot->copy_at;
  }
  const uint8_t *addends = l->kind == MGL_OP_LINEAR_ADD
                               ? (const uint8_t *)l->op->residual + l->copy_at
                               : (const uint8_t *)l->op->bias;
  o->addend = 0;
  if (o->there && addends != nullptr) {
    o->addend = mgl_load_l2_float(addends + o->column * sizeof(float));
  }
}

MGL_DEVICE void mgl_one_write(const mgl_one_output *o, uint32_t word, bool known = false) {
  mgl_store_l2_word(o->at, mgl_is_open(word) ? 0x7fffffffu : word);  // a NaN, but not that one
  if (known || o->open != nullptr) {
    mgl_store_l2_word(o->open, MGL_CUDA_OPEN);
  }
}

// Finishes and writes an output, whose sum is `total`. All lanes of a warp call it. EXPERTS: gated
// ones are of experts.
template <bool NORMED, int SUMS_AT, bool EXPERTS = false>
MGL_DEVICE void mgl_one_put(const mgl_worker *w, const mgl_linear *l, const mgl_one_output *o,
                            float total, uint64_t *best) {
  bool mute = mgl_task_is_mute(w);
  float value = total * (NORMED ? mgl_linear_factor<SUMS_AT>(w, l, 0) : 1);
  if (l->kind == MGL_OP_GATE_UP) {
    float up = __shfl_down_sync(0xffffffffu, value, MGL_CUDA_HALF_ROWS);
    const float gated =
        EXPERTS ? mgl_expert_activate(value, up, o->there ? mgl_expert_weight(w, 0, o->column) : 0)
                : mgl_silu_mul(value, up);
    uint32_t bits = mgl_round_bf16(gated);
    uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
    if (o->there && o->column % 2 == 0 && !mute) {
      mgl_one_write(o, bits | next << 16, l->known);
    }
    return;
  }
  if (!o->there) {
    return;
  }
  if (mgl_is_exchanged(l->op)) {
    if (!mute) {
      mgl_send_part(mgl_task_slot(w), o->column, value);
    }
    return;
  }
  if (MGL_HAS_SUM_BIASES) {
    value = mgl_linear_biased(l, o->column, value);
  }
  value += mgl_linear_addend(w, l, o->column, o->addend);
  if (!mute) {
    mgl_one_write(o, __float_as_uint(value), l->known);
  }
  if (l->kind == MGL_OP_LOGITS) {
    uint64_t candidate = mgl_ordered_best(value, o->column);
    *best = candidate > *best ? candidate : *best;
  }
}

template <bool NORMED>
MGL_DEVICE void mgl_one_finish(const mgl_worker *w, const mgl_linear *l, const mgl_one_output *o,
                               const float *partial, uint64_t *best) {
  mgl_one_put<NORMED, MGL_ONE_SUMS_AT>(
      w, l, o, mgl_sum_of_warps<MGL_ONE_WARP_FLOATS>(partial + w->thread), best);
}

// The largest logit, over all tasks; best: of this thread's outputs.
template <uint32_t OUTPUTS = MGL_ONE_OUTPUTS>
MGL_DEVICE void mgl_one_share_best(const mgl_worker *w, const mgl_linear *l, uint64_t best) {
  if (MGL_RANKS == 1 && l->kind == MGL_OP_LOGITS && l->rows > 0 && w->thread < OUTPUTS) {
    best = mgl_warp_max(best);
    if (w->lane == 0) {
      atomicMax((unsigned long long *)&w->run->best[0], (unsigned long long)best);
    }
  }
}

// The batch that begins with row block `block`.
MGL_DEVICE void mgl_one_batch_of(mgl_linear *l, uint32_t block, uint32_t end) {
  l->block = block;
  l->blocks = end - block < MGL_ONE_BLOCKS ? end - block : MGL_ONE_BLOCKS;
}

// --- the task ------------------------------------------------------------------------------------

// What becomes of the sums of an op of any kind; MGL_MAKES_ANY: no body knows it.
MGL_DEVICE mgl_makes mgl_one_makes_of(const mgl_cuda_op *op) {
  if (op->kind == MGL_OP_LINEAR_ADD) {
    return MGL_MAKES_ADDED;
  }
  const bool normed = mgl_op_kind_is_linear(op->kind) && mgl_normed(op);
  if (normed && op->kind == MGL_OP_GATE_UP) {
    return MGL_MAKES_GATED;
  }
  return normed && op->kind != MGL_OP_LOGITS ? MGL_MAKES_ROWS : MGL_MAKES_ANY;
}

template <bool NORMED, mgl_packing P, uint32_t K = 0, mgl_makes MAKES = MGL_MAKES_ANY>
MGL_DEVICE void mgl_task_linear_one(mgl_worker *w) {
  if constexpr (K == 0 && MAKES != MGL_MAKES_ANY) {
    return;  // the model has no such op
  }
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, slot->rows, true, &l);  // (docs/log/237)
  l.normed = NORMED;
  mgl_linear_know_all<K, MAKES>(&l);
  l.rows = MAKES == MGL_MAKES_ANY ? l.rows : 1;
  const uint32_t begin = slot->begin;
  const uint32_t end = slot->end;
  mgl_one_norm norm;
  mgl_one_x<NORMED> mine;
  mgl_one_columns<NORMED> columns = {};
  mgl_one_squares<NORMED> squares = {};
  // All loads from the L2 are on their way before anything is waited for. (The x of one token is
  // the first row, also for logits.)
  mine = {};
  if (l.carried) {
    mgl_one_ask<NORMED, P>(w, &l, l.x, mgl_one_polls_all(&l) ? mgl_one_rounds<P>(&l) : 1, &mine);
  }
  if (NORMED) {
    mgl_one_load_norm<P>(w, &l, &norm);
  }
  mgl_one_output output;
  mgl_one_batch_of(&l, begin, end);
  mgl_one_aim(w, &l, &output);
  mgl_one_ring ring = {w->page, w->page_parity, (end - begin) * l.pages};
  mgl_one_page<P> pages[mgl_one_page<P>::AHEAD];
  if (!mgl_one_load_first(w, &l, &ring, pages)) {
    return;
  }
  if (!l.carried) {  // now there is a residual
    mgl_one_aim(w, &l, &output);
  }
  mgl_one_await<NORMED, P>(w, &l, &mine);
  mgl_one_round<NORMED, P>(&l, &mine, &norm, &columns, &squares);
  mgl_one_aside<NORMED> aside = {true, true, &squares};
  uint64_t best = 0;
  uint32_t buffer = 0;
#pragma unroll 1
  for (;;) {
    // Two batches' partial sums in turn: who writes those of one has met at a barrier all that have
    // read those of the one before the last.
    float *partial = (float *)w->scratch + buffer * MGL_ONE_BATCH_FLOATS;
    mgl_one_batch(w, &l, &columns, partial, pages, &ring, &aside);
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
