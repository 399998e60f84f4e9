// The linears of an iteration of one token, where latency is everything: the same sums in the same
// order as tasks_linear.cuh, so the same bits.
//
// As there, a warp has a slice of 64 elements of every page. Its share of x comes from the L2 at
// once and by all of its lanes: a group is 8 elements, lane 4 i + t holds groups t of pieces i, i +
// 8, i + 16 ... (a piece is 32 elements, half of a page's share). It is normed and rounded there
// and staged in the warp's own part of scratch, from which an operand of two k-steps is one load.
// All 8 columns of the products are that one token, and one of them is looked at.
//
// What happens between the arrival of x and the outputs is short: pages are waited for before, and
// a page's weights are asked for before the products of the page before are made.
//   Rejected: the general shape (four of a warp's lanes load x, a trip to the L2 for every two
//   pages); a page for each warp (half as many waits, but two more barriers). SPEED.md has both.
#ifndef MGL_KERNELS_CUDA_TASKS_LINEAR_ONE_CUH
#define MGL_KERNELS_CUDA_TASKS_LINEAR_ONE_CUH

#include "kernels/cuda/tasks_linear.cuh"

enum {
  MGL_ONE_PIECES = 8,         // of a warp's share of x, in a round of loads
  MGL_ONE_ROUNDS = 6,         // of a plain x
  MGL_ONE_NORMED_ROUNDS = 4,  // of an x that is normed
  MGL_ONE_POLL_ROUNDS = 2,    // an x of so many rounds is polled as a whole
  MGL_ONE_PIECE_BYTES = 64,   // staged: 32 elements as bf16
  MGL_ONE_SUMS_AT = 4096,     // in scratch, behind the partial sums of two batches: of squares
  MGL_ONE_X_AT = MGL_ONE_SUMS_AT + MGL_LINEAR_SUMS_BYTES,      // then x
  MGL_ONE_BLOCKS = 4,                                          // row blocks of a batch
  MGL_ONE_WARP_FLOATS = MGL_ONE_BLOCKS * MGL_CUDA_BLOCK_ROWS,  // partial sums of a batch
  MGL_ONE_BATCH_FLOATS = MGL_ONE_WARP_FLOATS * MGL_CUDA_CONSUMER_WARPS,
  MGL_ONE_OUTPUTS = MGL_ONE_BLOCKS * MGL_CUDA_BLOCK_ROWS,  // of a batch: a thread has one at most
};

static_assert(MGL_ONE_ROUNDS * MGL_ONE_PIECES / 2 * MGL_CUDA_PAGE_K >= MGL_ONE_MAX_K &&
                  MGL_ONE_NORMED_ROUNDS * MGL_ONE_PIECES / 2 * MGL_CUDA_PAGE_K >=
                      MGL_ONE_NORMED_MAX_K,
              "all of x");
static_assert(2 * MGL_ONE_BATCH_FLOATS * 4 <= MGL_ONE_SUMS_AT, "two batches' partial sums");
static_assert(MGL_ONE_X_AT + MGL_ONE_ROUNDS * MGL_ONE_PIECES * MGL_ONE_PIECE_BYTES *
                                 MGL_CUDA_CONSUMER_WARPS <=
                  MGL_CUDA_SCRATCH_BYTES,
              "scratch");

// --- x -------------------------------------------------------------------------------------------

// Element of x with which group t of piece `piece` of this warp begins.
static __device__ __forceinline__ uint32_t mgl_one_element(const mgl_worker *w, uint32_t piece) {
  return piece / 2 * MGL_CUDA_PAGE_K + w->warp * MGL_LINEAR_WARP_K + piece % 2 * 32 +
         w->lane % 4 * 8;
}

// This lane's groups of x, as they lie in memory; bf16 fills only [][0].
template <bool NORMED>
struct mgl_one_x {
  static constexpr int ROUNDS = NORMED ? MGL_ONE_NORMED_ROUNDS : MGL_ONE_ROUNDS;
  uint4 v[ROUNDS][NORMED ? 2 : 1];
};

// Asks for the groups of rounds [0, rounds).
template <bool NORMED>
static __device__ __forceinline__ void mgl_one_ask(const mgl_worker *w, const mgl_linear *l,
                                                   const uint8_t *x, uint32_t rounds,
                                                   mgl_one_x<NORMED> *out) {
  constexpr uint32_t bytes = NORMED ? sizeof(float) : sizeof(uint16_t);
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    uint32_t piece = round * MGL_ONE_PIECES + w->lane / 4;
    if (round < rounds && piece < 2 * l->pages) {
      const uint8_t *from = x + (size_t)mgl_one_element(w, piece) * bytes;
      out->v[round][0] = mgl_load_l2(from);
      if (NORMED) {
        out->v[round][NORMED ? 1 : 0] = mgl_load_l2(from + 16);
      }
    }
  }
}

template <bool NORMED>
static __device__ __forceinline__ bool mgl_one_is_open(const mgl_one_x<NORMED> *x) {
  bool open = false;
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    open = open || mgl_has_open(x->v[round][0]) ||
           (NORMED && mgl_has_open(x->v[round][NORMED ? 1 : 0]));
  }
  return open;
}

// True if so long an x is polled as a whole; else only its first round is, as long as that is not
// there, since a long x asked for by all SMs again and again fills the L2's queues.
static __device__ __forceinline__ bool mgl_one_polls_all(const mgl_linear *l) {
  return !l->carried || 2 * l->pages <= MGL_ONE_POLL_ROUNDS * MGL_ONE_PIECES;
}

static __device__ __forceinline__ uint32_t mgl_one_rounds(const mgl_linear *l) {
  return (2 * l->pages + MGL_ONE_PIECES - 1) / MGL_ONE_PIECES;
}

// All of this warp's share. Where it carries its readiness, asks until it is there.
template <bool NORMED>
static __device__ __forceinline__ void mgl_one_await(const mgl_worker *w, const mgl_linear *l,
                                                     const uint8_t *x, mgl_one_x<NORMED> *out) {
  bool all = mgl_one_polls_all(l);
  *out = {};
  for (;;) {
    mgl_one_ask<NORMED>(w, l, x, all ? mgl_one_rounds(l) : 1, out);
    bool open = l->carried && __any_sync(0xffffffffu, mgl_one_is_open<NORMED>(out)) != 0;
    if ((!open && all) || w->block->stop != 0) {
      return;
    }
    all = all || !open;
  }
}

// The norm's weights of this lane's groups, before anybody waits.
struct mgl_one_norm {
  float4 v[MGL_ONE_NORMED_ROUNDS][2];
};

static __device__ __forceinline__ void mgl_one_load_norm(const mgl_worker *w, const mgl_linear *l,
                                                         mgl_one_norm *norm) {
#pragma unroll
  for (uint32_t round = 0; round < MGL_ONE_NORMED_ROUNDS; round++) {
    uint32_t piece = round * MGL_ONE_PIECES + w->lane / 4;
    norm->v[round][0] = norm->v[round][1] = {};
    if (piece < 2 * l->pages) {
      const float4 *from = (const float4 *)(l->norm + mgl_one_element(w, piece));
      norm->v[round][0] = __ldg(from);
      norm->v[round][1] = __ldg(from + 1);
    }
  }
}

// Where this lane's group t of piece 0 is staged.
static __device__ __forceinline__ uint32_t mgl_one_stage_at(const mgl_worker *w,
                                                            const mgl_linear *l) {
  return mgl_shared_address(w->scratch) + MGL_ONE_X_AT +
         w->warp * (2 * l->pages * MGL_ONE_PIECE_BYTES) + w->lane % 4 * 16;
}

static __device__ __forceinline__ void mgl_store_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// Sums of squares of this lane's groups.
template <bool NORMED>
struct mgl_one_squares {
  float v[NORMED ? MGL_ONE_NORMED_ROUNDS : 1];
};

// Norms, rounds and stages x.
template <bool NORMED>
static __device__ __forceinline__ void mgl_one_stage(const mgl_worker *w, const mgl_linear *l,
                                                     const mgl_one_x<NORMED> *x,
                                                     const mgl_one_norm *norm,
                                                     mgl_one_squares<NORMED> *squares) {
  uint32_t at = mgl_one_stage_at(w, l) + w->lane / 4 * MGL_ONE_PIECE_BYTES;
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    uint4 group = x->v[round][0];
    if (NORMED) {
      const uint4 raw[2] = {x->v[round][0], x->v[round][NORMED ? 1 : 0]};
      squares->v[NORMED ? round : 0] = 0;
      if (round * MGL_ONE_PIECES < 2 * l->pages) {
        group = mgl_linear_normed(raw, norm->v[round], &squares->v[NORMED ? round : 0]);
      }
    }
    if (round * MGL_ONE_PIECES + w->lane / 4 < 2 * l->pages) {
      mgl_store_shared(at + round * (MGL_ONE_PIECES * MGL_ONE_PIECE_BYTES), group);
    }
  }
  __syncwarp();
}

// This warp's sum of squares, added up as the general shape does: of the groups t of all pieces in
// their order, then over t. Nobody needs it before the products are made.
template <bool NORMED>
static __device__ __forceinline__ void mgl_one_share_squares(
    const mgl_worker *w, const mgl_linear *l, const mgl_one_squares<NORMED> *squares) {
  if (!NORMED) {
    return;
  }
  float sum = 0;
#pragma unroll
  for (uint32_t round = 0; round < mgl_one_x<NORMED>::ROUNDS; round++) {
    if (round * MGL_ONE_PIECES >= 2 * l->pages) {
      break;
    }
#pragma unroll
    for (uint32_t i = 0; i < MGL_ONE_PIECES; i++) {  // pieces that are not there add 0
      sum += __shfl_sync(0xffffffffu, squares->v[NORMED ? round : 0], (int)(4 * i + w->lane % 4));
    }
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (w->lane == 0) {
    ((float *)(w->scratch + MGL_ONE_SUMS_AT))[w->warp * 32] = sum;
  }
}

// --- pages ---------------------------------------------------------------------------------------

// The task's pages as a warp goes through them.
struct mgl_one_ring {
  uint32_t page, parity;  // of the next one to load
  uint32_t ready;         // from there on that are known to be there
  uint32_t release;       // the one that is released next
};

static __device__ __forceinline__ uint32_t mgl_one_next(const mgl_worker *w, uint32_t page) {
  return page + 1 == w->page_count ? 0 : page + 1;
}

// The address of a page's mbarrier: of page_full, or of the array that lies `behind` it.
static __device__ __forceinline__ uint32_t mgl_one_barrier(const mgl_worker *w, uint32_t page,
                                                           uint32_t behind) {
  return mgl_shared_address(w->scratch) - MGL_CUDA_BLOCK_BYTES +
         (uint32_t)offsetof(mgl_block, page_full) + behind + page * (uint32_t)sizeof(uint64_t);
}

// Counts pages that are there, up to `most`, without waiting. (A test takes a hundred cycles; here
// they pass while x is not there anyway.)
static __device__ __forceinline__ void mgl_one_look(const mgl_worker *w, mgl_one_ring *ring,
                                                    uint32_t most) {
  uint32_t page = ring->page;
  uint32_t parity = ring->parity;
  for (ring->ready = 0; ring->ready < most; ring->ready++) {
    if (!mgl_mbarrier_test_at(mgl_one_barrier(w, page, 0), parity)) {
      return;
    }
    page = mgl_one_next(w, page);
    parity ^= page == 0 ? 1 : 0;
  }
}

// Loads this warp's weights of the next page, and waits for it if it is not known to be there.
static __device__ __forceinline__ void mgl_one_load(const mgl_worker *w, const mgl_linear *l,
                                                    mgl_one_ring *ring,
                                                    uint4 weights[MGL_LINEAR_STEPS]) {
  if (ring->ready == 0) {
    mgl_page_wait_at(w, mgl_one_barrier(w, ring->page, 0), ring->parity);
    ring->ready = 1;
  }
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    weights[step] = mgl_load_shared(l->page_at + ring->page * MGL_CUDA_PAGE_BYTES + step * 512);
  }
  ring->ready--;
  ring->page = mgl_one_next(w, ring->page);
  ring->parity ^= ring->page == 0 ? 1 : 0;
}

// Lets the loader have the next page again. (Products came before, so all lanes have loaded.)
static __device__ __forceinline__ void mgl_one_release(const mgl_worker *w, const mgl_linear *l,
                                                       mgl_one_ring *ring,
                                                       const uint4 weights[MGL_LINEAR_STEPS]) {
  constexpr uint32_t behind =
      (uint32_t)(offsetof(mgl_block, page_free) - offsetof(mgl_block, page_full));
  if (w->lane == 0) {
    mgl_mbarrier_arrive_at(mgl_one_barrier(w, ring->release, behind) +
                           mgl_loads_arrived(weights, l->zero));
  }
  ring->release = mgl_one_next(w, ring->release);
}

// --- products ------------------------------------------------------------------------------------

// This warp's sums of a row block: column 0 of features g and g + 8.
struct mgl_one_sums {
  float low, high;
};

// A page's products; x: where this lane's operand of it is staged.
static __device__ __forceinline__ void mgl_one_products(const mgl_worker *w, const mgl_linear *l,
                                                        uint32_t x,
                                                        const uint4 weights[MGL_LINEAR_STEPS],
                                                        mgl_one_ring *ring, mgl_one_sums *sums) {
  const uint4 b[2] = {mgl_load_shared(x), mgl_load_shared(x + MGL_ONE_PIECE_BYTES)};
  float products[MGL_LINEAR_STEPS][4] = {};
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    const uint32_t a[4] = {weights[step].x, weights[step].y, weights[step].z, weights[step].w};
    mgl_mma(products[step], a, step % 2 == 0 ? b[step / 2].x : b[step / 2].z,
            step % 2 == 0 ? b[step / 2].y : b[step / 2].w);
  }
  mgl_one_release(w, l, ring, weights);
  sums->low += (products[0][0] + products[1][0]) + (products[2][0] + products[3][0]);
  sums->high += (products[0][2] + products[1][2]) + (products[2][2] + products[3][2]);
}

// This warp's part of a batch: its sums of row block after row block. A page's weights are asked
// for before the products of the page before are made. shares: the squares are shared on the way.
template <bool NORMED>
static __device__ __forceinline__ void mgl_one_batch(const mgl_worker *w, const mgl_linear *l,
                                                     const mgl_one_squares<NORMED> *squares,
                                                     bool shares, float *partial,
                                                     mgl_one_ring *ring) {
  uint4 even[MGL_LINEAR_STEPS];
  uint4 odd[MGL_LINEAR_STEPS];
  mgl_one_load(w, l, ring, even);
  if (shares) {
    mgl_one_share_squares<NORMED>(w, l, squares);
  }
#pragma unroll 1
  for (uint32_t block = 0; block < l->blocks; block++) {
    mgl_one_sums sums = {0, 0};
    uint32_t x = mgl_one_stage_at(w, l);
#pragma unroll 1
    for (uint32_t left = l->pages; left > 0; left -= 2) {
      mgl_one_load(w, l, ring, odd);
      mgl_one_products(w, l, x, even, ring, &sums);
      if (left > 2 || block + 1 < l->blocks) {
        mgl_one_load(w, l, ring, even);
      }
      mgl_one_products(w, l, x + 2 * MGL_ONE_PIECE_BYTES, odd, ring, &sums);
      x += 4 * MGL_ONE_PIECE_BYTES;
    }
    if (w->lane % 4 == 0) {
      float *to = partial + w->warp * MGL_ONE_WARP_FLOATS + block * MGL_CUDA_BLOCK_ROWS;
      to[w->lane / 4] = sums.low;
      to[w->lane / 4 + MGL_CUDA_HALF_ROWS] = sums.high;
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

static __device__ __forceinline__ void mgl_one_aim(const mgl_worker *w, const mgl_linear *l,
                                                   mgl_one_output *o) {
  const mgl_slot *slot = mgl_task_slot(w);
  uint32_t block = w->thread / MGL_CUDA_BLOCK_ROWS;
  uint32_t row = w->thread % MGL_CUDA_BLOCK_ROWS;
  uint32_t columns = mgl_block_columns(l->kind);
  o->column = (l->block + block) * columns + row;
  o->there = block < l->blocks && row < columns && o->column < l->op->n && l->rows > 0;
  o->at = (uint8_t *)l->op->out +
          o->column * (l->kind == MGL_OP_GATE_UP ? sizeof(uint16_t) : sizeof(float));
  o->open = nullptr;
  if (mgl_has_copies(l->op) && l->kind != MGL_OP_LOGITS) {
    o->open = o->at + slot->open_at;
    o->at += slot->copy_at;
  }
  o->addend = 0;
  if (o->there && l->kind == MGL_OP_LINEAR_ADD) {
    o->addend = mgl_load_l2_float((const uint8_t *)l->op->residual + l->copy_at +
                                  o->column * sizeof(float));
  } else if (o->there && l->op->bias != nullptr) {
    o->addend = __ldg(l->op->bias + o->column);
  }
}

static __device__ __forceinline__ void mgl_one_write(const mgl_one_output *o, uint32_t word) {
  mgl_store_l2_word(o->at, mgl_is_open(word) ? 0x7fffffffu : word);  // a NaN, but not that one
  if (o->open != nullptr) {
    mgl_store_l2_word(o->open, MGL_CUDA_OPEN);
  }
}

// The warps' sums in their order; `at`: warp 0's.
static __device__ __forceinline__ float mgl_one_total(const float *at) {
  float total = 0;
#pragma unroll
  for (uint32_t warp = 0; warp < MGL_CUDA_CONSUMER_WARPS; warp++) {
    total += at[warp * MGL_ONE_WARP_FLOATS];
  }
  return total;
}

// Finishes and writes an output.
template <bool NORMED>
static __device__ __forceinline__ void mgl_one_finish(const mgl_worker *w, const mgl_linear *l,
                                                      const mgl_one_output *o, const float *partial,
                                                      uint64_t *best) {
  bool mute = mgl_task_is_mute(w);
  float value = mgl_one_total(partial + w->thread) *
                (NORMED ? mgl_linear_factor<MGL_ONE_SUMS_AT>(w, l, 0) : 1);
  if (l->kind == MGL_OP_GATE_UP) {
    float up = __shfl_down_sync(0xffffffffu, value, MGL_CUDA_HALF_ROWS);
    uint32_t bits = mgl_round_bf16(mgl_silu_mul(value, up));
    uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
    if (o->there && o->column % 2 == 0 && !mute) {
      mgl_one_write(o, bits | next << 16);
    }
    return;
  }
  if (!o->there) {
    return;
  }
  value += mgl_linear_addend(w, l, o->column, o->addend);
  if (!mute) {
    mgl_one_write(o, __float_as_uint(value));
  }
  if (l->kind == MGL_OP_LOGITS) {
    uint64_t candidate = mgl_ordered_best(value, o->column);
    *best = candidate > *best ? candidate : *best;
  }
}

// --- the task ------------------------------------------------------------------------------------

template <bool NORMED>
static __device__ __forceinline__ void mgl_task_linear_one(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, true, &l);
  const uint32_t begin = slot->begin;
  const uint32_t end = slot->end;
  mgl_one_norm norm;
  mgl_one_x<NORMED> mine;
  mgl_one_squares<NORMED> squares = {};
  if (NORMED) {
    mgl_one_load_norm(w, &l, &norm);
  }
  const uint8_t *x = l.rows > 0 ? mgl_linear_x(&l, 0, 0) : nullptr;
  mgl_one_ring ring = {w->page, w->page_parity, 0, w->page};
  if (MGL_KERNEL_PER_OP) {  // behind the wait x is there
    mgl_one_look(w, &ring, (end - begin) * l.pages);
  }
  if (!mgl_task_wait(w)) {
    return;
  }
  if (!MGL_KERNEL_PER_OP) {
    mgl_one_look(w, &ring, (end - begin) * l.pages);
  }
  if (x !=
      nullptr) {  // else there is no row: what is computed from whatever is there is not written
    mgl_one_await<NORMED>(w, &l, x, &mine);
    mgl_one_stage<NORMED>(w, &l, &mine, &norm, &squares);
  }
  mgl_task_began(w);
  uint64_t best = 0;
  uint32_t buffer = 0;
#pragma unroll 1
  for (l.block = begin; l.block < end; l.block += MGL_ONE_BLOCKS) {
    bool follows = end - l.block > MGL_ONE_BLOCKS;
    l.blocks = follows ? MGL_ONE_BLOCKS : end - l.block;
    mgl_one_output output;
    mgl_one_aim(w, &l, &output);
    // Two batches' partial sums in turn: who writes those of one has met at a barrier all that have
    // read those of the one before the last.
    float *partial = (float *)w->scratch + buffer * MGL_ONE_BATCH_FLOATS;
    mgl_one_batch<NORMED>(w, &l, &squares, l.block == begin, partial, &ring);
    mgl_sync_consumers();
    if (w->thread < MGL_ONE_OUTPUTS) {
      mgl_one_finish<NORMED>(w, &l, &output, partial, &best);
    }
    buffer ^= 1;
  }
  w->page = ring.page;
  w->page_parity = ring.parity;
  if (l.kind == MGL_OP_LOGITS && l.rows > 0 && w->thread < MGL_ONE_OUTPUTS) {
    best = mgl_warp_max(best);
    if (w->lane == 0) {
      atomicMax((unsigned long long *)&w->run->best[0], (unsigned long long)best);
    }
  }
}

#endif
