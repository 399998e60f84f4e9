// The linears of one token in a kernel of their own (op_kernels.cu), where two blocks share a
// multiprocessor and its registers: as in tasks_linear_one.cuh, with the same sums in the same
// order, but x is staged in the warp's own part of scratch, from which an operand of two k-steps is
// one load, and a page's weights stay where they are until the products of the page before are
// made. All 8 columns of the products are that one token.
//   Rejected: first pages and x in registers, as in the megakernel, which spills here (Llama-3.2-1B
//   0.951 to 0.978 ms, Qwen3-0.6B 0.62 to 0.68).
#ifndef MGL_KERNELS_CUDA_LINEAR_OP_LINEAR_ONE_CUH
#define MGL_KERNELS_CUDA_LINEAR_OP_LINEAR_ONE_CUH

#include "kernels/cuda/linear/tasks_linear_one.cuh"

enum {
  MGL_OP_ONE_PIECE_BYTES = 64,  // staged: 32 elements as bf16
  MGL_OP_ONE_X_AT = MGL_ONE_SUMS_AT + MGL_LINEAR_SUMS_BYTES,
};

// --- x -------------------------------------------------------------------------------------------

// Returns where this lane's group t of piece 0 is staged.
MGL_DEVICE uint32_t mgl_op_one_stage_at(const mgl_worker *w, const mgl_linear *l) {
  return mgl_shared_address(w->scratch) + MGL_OP_ONE_X_AT +
         w->warp * (2 * l->pages * MGL_OP_ONE_PIECE_BYTES) + w->lane % 4 * 16;
}

// Norms, rounds and stages x.
template <bool NORMED>
MGL_DEVICE void mgl_op_one_stage(const mgl_worker *w, const mgl_linear *l,
                                 const mgl_one_x<NORMED> *x, const mgl_one_norm *norm,
                                 mgl_one_squares<NORMED> *squares) {
  uint32_t at = mgl_op_one_stage_at(w, l) + w->lane / 4 * MGL_OP_ONE_PIECE_BYTES;
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
      mgl_store_shared_quad(at + round * (MGL_ONE_PIECES * MGL_OP_ONE_PIECE_BYTES), group);
    }
  }
  __syncwarp();
}

// --- pages ---------------------------------------------------------------------------------------

// The task's pages as a warp goes through them.
struct mgl_op_one_ring {
  uint32_t page, parity;  // of the next one to load
  uint32_t ready;         // from there on that are known to be there
  uint32_t release;       // the one that is released next
};

MGL_DEVICE uint32_t mgl_op_one_next(const mgl_worker *w, uint32_t page) {
  return page + 1 == w->page_count ? 0 : page + 1;
}

// Counts pages that are there, up to `most`, without waiting. (A test takes a hundred cycles; here
// they pass while x is not there anyway.)
MGL_DEVICE void mgl_op_one_look(const mgl_worker *w, mgl_op_one_ring *ring, uint32_t most) {
  uint32_t page = ring->page;
  uint32_t parity = ring->parity;
  for (ring->ready = 0; ring->ready < most; ring->ready++) {
    if (!mgl_mbarrier_test_at(mgl_one_barrier(w, page), parity)) {
      return;
    }
    page = mgl_op_one_next(w, page);
    parity ^= page == 0 ? 1 : 0;
  }
}

// Loads this warp's weights of the next page, and waits for it if it is not known to be there.
MGL_DEVICE void mgl_op_one_load(const mgl_worker *w, const mgl_linear *l, mgl_op_one_ring *ring,
                                uint4 weights[MGL_LINEAR_STEPS]) {
  if (ring->ready == 0) {
    mgl_page_wait_at(w, mgl_one_barrier(w, ring->page), ring->parity);
    ring->ready = 1;
  }
  mgl_linear_read(l, ring->page, weights);
  ring->ready--;
  ring->page = mgl_op_one_next(w, ring->page);
  ring->parity ^= ring->page == 0 ? 1 : 0;
}

// Lets the loader have the next page again. (Products came before, so all lanes have loaded.)
MGL_DEVICE void mgl_op_one_release(const mgl_worker *w, const mgl_linear *l, mgl_op_one_ring *ring,
                                   const uint4 weights[MGL_LINEAR_STEPS]) {
  if (w->lane == 0) {
    mgl_mbarrier_arrive_at(mgl_one_barrier(w, ring->release) + MGL_ONE_FREE +
                           mgl_loads_arrived(weights, l->zero));
  }
  ring->release = mgl_op_one_next(w, ring->release);
}

// --- products ------------------------------------------------------------------------------------

// A page's products; x: where this lane's operand of it is staged.
MGL_DEVICE void mgl_op_one_products(const mgl_worker *w, const mgl_linear *l, uint32_t x,
                                    const uint4 weights[MGL_LINEAR_STEPS], mgl_op_one_ring *ring,
                                    mgl_one_sums *sums) {
  const uint4 b[2] = {mgl_load_shared(x), mgl_load_shared(x + MGL_OP_ONE_PIECE_BYTES)};
  float products[MGL_LINEAR_STEPS][4] = {};
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    const uint32_t a[4] = {weights[step].x, weights[step].y, weights[step].z, weights[step].w};
    mgl_mma(products[step], a, step % 2 == 0 ? b[step / 2].x : b[step / 2].z,
            step % 2 == 0 ? b[step / 2].y : b[step / 2].w);
  }
  mgl_op_one_release(w, l, ring, weights);
  sums->low += (products[0][0] + products[1][0]) + (products[2][0] + products[3][0]);
  sums->high += (products[0][2] + products[1][2]) + (products[2][2] + products[3][2]);
}

// This warp's part of a batch: its sums of row block after row block. A page's weights are asked
// for before the products of the page before are made. shares: the squares are shared on the way.
template <bool NORMED>
MGL_DEVICE void mgl_op_one_batch(const mgl_worker *w, const mgl_linear *l,
                                 const mgl_one_squares<NORMED> *squares, bool shares,
                                 float *partial, mgl_op_one_ring *ring) {
  uint4 even[MGL_LINEAR_STEPS];
  uint4 odd[MGL_LINEAR_STEPS];
  mgl_op_one_load(w, l, ring, even);
  if (shares) {
    mgl_one_share_squares<NORMED, MGL_PACKING_BF16>(w, l, squares);
  }
#pragma unroll 1
  for (uint32_t block = 0; block < l->blocks; block++) {
    mgl_one_sums sums = {0, 0};
    uint32_t x = mgl_op_one_stage_at(w, l);
#pragma unroll 1
    for (uint32_t left = l->pages; left > 0; left -= 2) {
      mgl_op_one_load(w, l, ring, odd);
      mgl_op_one_products(w, l, x, even, ring, &sums);
      if (left > 2 || block + 1 < l->blocks) {
        mgl_op_one_load(w, l, ring, even);
      }
      mgl_op_one_products(w, l, x + 2 * MGL_OP_ONE_PIECE_BYTES, odd, ring, &sums);
      x += 4 * MGL_OP_ONE_PIECE_BYTES;
    }
    if (w->lane % 4 == 0) {
      float *to = partial + w->warp * MGL_ONE_WARP_FLOATS + block * MGL_CUDA_BLOCK_ROWS;
      to[w->lane / 4] = sums.low;
      to[w->lane / 4 + MGL_CUDA_HALF_ROWS] = sums.high;
    }
  }
}

// --- the task ------------------------------------------------------------------------------------

template <bool NORMED>
MGL_DEVICE void mgl_op_task_linear_one(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, mgl_linear_rows(slot), true, &l);
  const uint32_t begin = slot->begin;
  const uint32_t end = slot->end;
  mgl_one_norm norm;
  mgl_one_x<NORMED> mine;
  mgl_one_squares<NORMED> squares = {};
  if (NORMED) {
    mgl_one_load_norm<MGL_PACKING_BF16>(w, &l, &norm);
  }
  mgl_op_one_ring ring = {w->page, w->page_parity, 0, w->page};
  mgl_op_one_look(w, &ring, (end - begin) * l.pages);
  mgl_await_kernels_before();
  mine = {};
  mgl_one_await<NORMED, MGL_PACKING_BF16>(w, &l, &mine);
  mgl_op_one_stage<NORMED>(w, &l, &mine, &norm, &squares);
  mgl_task_began(w);
  uint64_t best = 0;
  uint32_t buffer = 0;
#pragma unroll 1
  for (uint32_t block = begin; block < end; block += MGL_ONE_BLOCKS) {
    mgl_one_batch_of(&l, block, end);
    mgl_one_output output;
    mgl_one_aim(w, &l, &output);
    // Two batches' partial sums in turn.
    float *partial = (float *)w->scratch + buffer * MGL_ONE_BATCH_FLOATS;
    mgl_op_one_batch<NORMED>(w, &l, &squares, block == begin, partial, &ring);
    mgl_sync_consumers();
    if (w->thread < MGL_ONE_OUTPUTS) {
      mgl_one_finish<NORMED>(w, &l, &output, partial, &best);
    }
    buffer ^= 1;
  }
  w->page = ring.page;
  w->page_parity = ring.parity;
  mgl_one_share_best(w, &l, best);
}

#endif
