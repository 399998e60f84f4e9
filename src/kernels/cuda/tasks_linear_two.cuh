// The linears of an iteration of 9 to 16 tokens, two row tiles, in the megakernel: the same sums in
// the same order as tasks_linear.cuh, so the same bits.
//
// Where x waits to be written, each trip to the L2 counts, and where pages stream, what a page
// costs: 16 rows make a worker compute about as long as the memory takes. So
//   - all of a group's x is asked for at once, both tiles, and by those lanes again whose words are
//     not there yet; the norm's weights are in the L1 before;
//   - x of the next group is on its way while a group is computed, where x is bf16 (f32 takes the
//     registers of two);
//   - pages are awaited in pairs, and a page's weights are on their way to registers during the
//     products of the page before;
//   - partial sums lie as the lanes hold them, four of them in one access without conflicts.
#ifndef MGL_KERNELS_CUDA_TASKS_LINEAR_TWO_CUH
#define MGL_KERNELS_CUDA_TASKS_LINEAR_TWO_CUH

#include "kernels/cuda/tasks_linear.cuh"

enum {
  MGL_TWO_TILES = 2,
  MGL_TWO_EARLY = 2,  // row blocks of a batch whose residuals are asked for before
  MGL_TWO_BLOCKS = mgl_batch_blocks(MGL_TWO_TILES),
  MGL_TWO_PIECES = MGL_GROUP_PAGES * MGL_LINEAR_CHUNKS,  // that a lane has of a row in a group
  MGL_TWO_BLOCK_FLOATS = 8 * MGL_TWO_TILES * MGL_CUDA_BLOCK_ROWS,  // partial sums of a row block
  MGL_TWO_QUADS = MGL_TWO_BLOCK_FLOATS / 4,
  MGL_TWO_WARP_FLOATS = MGL_TWO_BLOCKS * MGL_TWO_BLOCK_FLOATS,
  MGL_TWO_SUMS_AT = mgl_linear_shape<MGL_TWO_TILES>::SUMS_AT,
};

static_assert(MGL_TWO_BLOCK_FLOATS == MGL_CUDA_CONSUMERS, "an output of each block for a thread");
static_assert(MGL_TWO_SUMS_AT + MGL_TWO_EARLY * MGL_TWO_BLOCK_FLOATS * 4 <= MGL_CUDA_SCRATCH_BYTES,
              "residuals");
static_assert(MGL_GROUP_PAGES == 2, "pages come in pairs");

// --- x -------------------------------------------------------------------------------------------

// This lane's rows of x, one of each tile: where its first element lies.
struct mgl_two_rows {
  const uint8_t *at[MGL_TWO_TILES];
  bool there[MGL_TWO_TILES];
};

static __device__ __forceinline__ void mgl_two_find_rows(const mgl_worker *w, const mgl_linear *l,
                                                         mgl_two_rows *rows) {
#pragma unroll
  for (uint32_t tile = 0; tile < MGL_TWO_TILES; tile++) {
    uint32_t row = w->lane / 4 + tile * 8;
    rows->there[tile] = row < l->rows;
    rows->at[tile] = mgl_linear_x(l, rows->there[tile] ? row : 0, mgl_linear_first(w, 0));
  }
}

// This lane's part of a group, as it lies in memory; bf16 fills only [][][0].
template <bool NORMED>
struct mgl_two_raw {
  static constexpr int QUADS = NORMED ? 2 : 1;
  uint4 v[MGL_TWO_TILES][MGL_TWO_PIECES][QUADS];
};

// The first `pieces` pieces of the group from page first_page on: all of them, or those that are
// open.
template <bool NORMED, bool ALL>
static __device__ __forceinline__ void mgl_two_ask(const mgl_two_rows *rows, uint32_t first_page,
                                                   uint32_t pieces, mgl_two_raw<NORMED> *raw) {
  constexpr uint32_t bytes = NORMED ? sizeof(float) : sizeof(uint16_t);
#pragma unroll
  for (int tile = 0; tile < MGL_TWO_TILES; tile++) {
    const uint8_t *from = rows->at[tile] + (size_t)first_page * (MGL_CUDA_PAGE_K * bytes);
#pragma unroll
    for (int piece = 0; piece < MGL_TWO_PIECES; piece++) {
#pragma unroll
      for (int quad = 0; quad < mgl_two_raw<NORMED>::QUADS; quad++) {
        uint4 *v = &raw->v[tile][piece][quad];
        bool in = (uint32_t)piece < pieces;
        bool wanted = in && (ALL ? rows->there[tile] : mgl_has_open(*v));
        mgl_load_l2_if(from + mgl_linear_element(piece) * bytes + quad * 16, wanted, v);
      }
    }
  }
}

// What is not asked for: open where there is a row, else zeros.
template <bool NORMED>
static __device__ __forceinline__ void mgl_two_clear(const mgl_two_rows *rows,
                                                     mgl_two_raw<NORMED> *raw) {
#pragma unroll
  for (int tile = 0; tile < MGL_TWO_TILES; tile++) {
    uint32_t word = rows->there[tile] ? MGL_CUDA_OPEN : 0;
#pragma unroll
    for (int i = 0; i < MGL_TWO_PIECES * mgl_two_raw<NORMED>::QUADS; i++) {
      raw->v[tile][i / mgl_two_raw<NORMED>::QUADS][i % mgl_two_raw<NORMED>::QUADS] =
          make_uint4(word, word, word, word);
    }
  }
}

// (The open word is the largest of all.)
template <bool NORMED>
static __device__ __forceinline__ bool mgl_two_is_open(const mgl_two_raw<NORMED> *raw, int pieces) {
  uint32_t largest = 0;
#pragma unroll
  for (int tile = 0; tile < MGL_TWO_TILES; tile++) {
#pragma unroll
    for (int piece = 0; piece < pieces; piece++) {
#pragma unroll
      for (int quad = 0; quad < mgl_two_raw<NORMED>::QUADS; quad++) {
        uint4 v = raw->v[tile][piece][quad];
        largest = max(max(largest, max(v.x, v.y)), max(v.z, v.w));
      }
    }
  }
  return largest == MGL_CUDA_OPEN;
}

// Until all of a group is there. As long as first pieces are open only these are asked for: 16 rows
// asked for by all SMs again and again fill the L2's queues. When the run stops it gives up, and
// the task is mute.
template <bool NORMED>
static __device__ __forceinline__ void mgl_two_await(const mgl_worker *w, const mgl_linear *l,
                                                     const mgl_two_rows *rows, uint32_t first_page,
                                                     mgl_two_raw<NORMED> *raw) {
  if (!l->carried) {
    return;
  }
  while (__any_sync(0xffffffffu, mgl_two_is_open<NORMED>(raw, MGL_TWO_PIECES)) &&
         w->block->stop == 0) {
    bool first = __any_sync(0xffffffffu, mgl_two_is_open<NORMED>(raw, 1)) != 0;
    mgl_two_ask<NORMED, false>(rows, first_page, first ? 1 : (uint32_t)MGL_TWO_PIECES, raw);
  }
}

// The norm's weights of this warp into the L1: the caches forget them between iterations.
static __device__ __forceinline__ void mgl_two_fetch_norm(const mgl_worker *w,
                                                          const mgl_linear *l) {
  for (uint32_t piece = w->lane / 4; piece < l->pages * MGL_LINEAR_CHUNKS; piece += 8) {
    const float *from = l->norm + mgl_linear_first(w, 0) + mgl_linear_element((int)piece);
    float a, b;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(a) : "l"(from));
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(b) : "l"(from + 4));
  }
}

template <bool NORMED>
static __device__ __forceinline__ void mgl_two_convert(const mgl_worker *w, const mgl_linear *l,
                                                       uint32_t first_page,
                                                       const mgl_two_raw<NORMED> *raw,
                                                       mgl_linear_group<MGL_TWO_TILES> *x,
                                                       float squares[MGL_TWO_TILES]) {
#pragma unroll
  for (int piece = 0; piece < MGL_TWO_PIECES; piece++) {
    float4 norm[2];
    if (NORMED) {
      uint32_t e = mgl_linear_first(w, first_page) + mgl_linear_element(piece);
      norm[0] = __ldg((const float4 *)(l->norm + e));
      norm[1] = __ldg((const float4 *)(l->norm + e + 4));
    }
#pragma unroll
    for (int tile = 0; tile < MGL_TWO_TILES; tile++) {
      const uint4 *v = raw->v[tile][piece];
      x->x[tile][piece / MGL_LINEAR_CHUNKS][piece % MGL_LINEAR_CHUNKS] =
          NORMED ? mgl_linear_normed(v, norm, &squares[tile]) : v[0];
    }
  }
}

// --- pages ---------------------------------------------------------------------------------------

// This warp's part of a page.
struct mgl_two_page {
  uint4 v[MGL_LINEAR_STEPS];
};

static __device__ __forceinline__ uint32_t mgl_two_second(const mgl_worker *w) {
  return w->page + 1 == w->page_count ? 0 : w->page + 1;
}

// Until the next two pages of the ring are there: a lane waits for one of them.
static __device__ __forceinline__ void mgl_two_await_pages(const mgl_worker *w) {
  bool second = w->lane % 2 != 0;
  uint32_t page = second ? mgl_two_second(w) : w->page;
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
  if (MGL_TRACE && w->thread == 0) {
    w->block->starved[w->slot] += mgl_trace_clock() - from;
  }
}

static __device__ __forceinline__ void mgl_two_read(const mgl_linear *l, uint32_t page,
                                                    mgl_two_page *out) {
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    out->v[step] = mgl_load_shared(l->page_at + page * MGL_CUDA_PAGE_BYTES + step * 512);
  }
}

// Awaits two pages, and reads the first one.
static __device__ __forceinline__ void mgl_two_begin_pages(const mgl_worker *w, const mgl_linear *l,
                                                           mgl_two_page *first) {
  mgl_two_await_pages(w);
  mgl_two_read(l, w->page, first);
}

// Two pages that are in registers: the loader may fill them again.
static __device__ __forceinline__ void mgl_two_release(mgl_worker *w, const mgl_linear *l,
                                                       const mgl_two_page *first,
                                                       const mgl_two_page *second) {
  uint32_t after = mgl_two_second(w);
  uint32_t page = w->lane == 0 ? w->page : after;
  uint32_t released = mgl_shared_address(&w->block->page_free[page]);
  released += mgl_loads_arrived(first->v, l->zero) | mgl_loads_arrived(second->v, l->zero);
  __syncwarp();
  if (w->lane < 2) {
    mgl_mbarrier_arrive_at(released);
  }
  w->page_parity ^= after == 0 ? 1 : 0;
  w->page = after;
  after = mgl_two_second(w);
  w->page_parity ^= after == 0 ? 1 : 0;
  w->page = after;
}

// --- products ------------------------------------------------------------------------------------

// Partial sums of a row block: of a feature 16 tokens, in the order 0, 1, 8, 9, 2, 3, 10, 11 ...: a
// lane's four of it are 16 bytes. Its quads are permuted, so that neither lanes with neighbouring
// quads nor lanes with neighbouring features meet in a bank.
static __device__ __forceinline__ uint32_t mgl_two_quad(uint32_t feature, uint32_t quad) {
  return feature * 4 + (quad ^ feature / 2 % 4);
}

static __device__ __forceinline__ uint32_t mgl_two_place(uint32_t token, uint32_t feature) {
  return mgl_two_quad(feature, token % 8 / 2) * 4 + token / 8 * 2 + token % 2;
}

// A row block times a group, added to what is in scratch at `at`, an address in shared memory. a:
// the first of its pages, and then, if `goes_on`, of the pages behind it.
static __device__ __forceinline__ void mgl_two_block(mgl_worker *w, const mgl_linear *l,
                                                     const mgl_linear_group<MGL_TWO_TILES> *x,
                                                     bool adds, uint32_t at, mgl_two_page *a,
                                                     bool goes_on) {
  float sums[MGL_TWO_TILES][4] = {};
  mgl_two_page b;
  mgl_two_read(l, mgl_two_second(w), &b);
  if (adds) {
#pragma unroll
    for (int half = 0; half < 2; half++) {  // features g and g + 8
      uint4 v = mgl_load_shared(at + half * 512);
      sums[0][2 * half] = __uint_as_float(v.x);
      sums[0][2 * half + 1] = __uint_as_float(v.y);
      sums[1][2 * half] = __uint_as_float(v.z);
      sums[1][2 * half + 1] = __uint_as_float(v.w);
    }
  }
  mgl_linear_page<MGL_TWO_TILES>(x, 0, a->v, sums);
  mgl_two_release(w, l, a, &b);
  if (goes_on) {
    mgl_two_begin_pages(w, l, a);
  }
  mgl_linear_page<MGL_TWO_TILES>(x, 1, b.v, sums);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    mgl_store_shared(at + half * 512, make_float4(sums[0][2 * half], sums[0][2 * half + 1],
                                                  sums[1][2 * half], sums[1][2 * half + 1]));
  }
}

// --- outputs -------------------------------------------------------------------------------------

// A thread has one output of each row block of a batch: this token's, of this feature of the block.
static __device__ __forceinline__ uint32_t mgl_two_token(const mgl_worker *w) {
  return w->thread / MGL_CUDA_BLOCK_ROWS;
}

static __device__ __forceinline__ uint32_t mgl_two_feature(const mgl_worker *w) {
  return w->thread % MGL_CUDA_BLOCK_ROWS;
}

// The output's column of row block i of the batch; n or more: there is none.
static __device__ __forceinline__ uint32_t mgl_two_column(const mgl_worker *w, const mgl_linear *l,
                                                          uint32_t i) {
  uint32_t columns = mgl_block_columns(l->kind);
  bool has = i < l->blocks && mgl_two_feature(w) < columns;
  return has ? (l->block + i) * columns + mgl_two_feature(w) : l->op->n;
}

// Of a plain x: the residuals of the batch's first row blocks, on their way into scratch, where
// the sums of squares of others are. (In registers they would be spilled.)
static __device__ __forceinline__ void mgl_two_fetch_residuals(const mgl_worker *w,
                                                               const mgl_linear *l) {
  uint32_t block = w->thread / MGL_TWO_QUADS;
  uint32_t token = w->thread % MGL_TWO_QUADS / 4;
  if (l->kind != MGL_OP_LINEAR_ADD || block >= MGL_TWO_EARLY || block >= l->blocks ||
      token >= l->rows || l->op->n % MGL_CUDA_BLOCK_ROWS != 0) {
    return;
  }
  size_t element =
      (size_t)token * l->op->n + (l->block + block) * MGL_CUDA_BLOCK_ROWS + w->thread % 4 * 4;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   mgl_shared_address(w->scratch + MGL_TWO_SUMS_AT + w->thread * 16)),
               "l"((const uint8_t *)l->op->residual + l->copy_at + element * sizeof(float))
               : "memory");
}

// The residual or the bias of row block i of the batch, of an output that is there.
template <bool NORMED>
static __device__ __forceinline__ float mgl_two_addend(const mgl_worker *w, const mgl_linear *l,
                                                       uint32_t column, uint32_t i) {
  if (l->kind == MGL_OP_LINEAR_ADD) {
    size_t element = (size_t)mgl_two_token(w) * l->op->n + column;
    float addend = __uint_as_float(MGL_CUDA_OPEN);
    if (!NORMED && i < MGL_TWO_EARLY && l->op->n % MGL_CUDA_BLOCK_ROWS == 0) {
      const float *early = (const float *)(w->scratch + MGL_TWO_SUMS_AT);
      addend = early[i * MGL_TWO_BLOCK_FLOATS + w->thread];
    } else {
      addend = mgl_load_l2_float((const uint8_t *)l->op->residual + l->copy_at +
                                 element * sizeof(float));
    }
    return mgl_linear_addend(w, l, element, addend);
  }
  return l->op->bias != nullptr ? __ldg(l->op->bias + column) : 0;
}

// Of gate_up: two neighbouring columns are a word of the output. All lanes of a warp; value: of
// gate or of up, the sum times the norm's factor.
static __device__ __forceinline__ void mgl_two_write_gated(const mgl_worker *w, const mgl_linear *l,
                                                           uint32_t i, float value, bool mute) {
  uint32_t column = mgl_two_column(w, l, i);
  const mgl_slot *slot = mgl_task_slot(w);
  float up = __shfl_down_sync(0xffffffffu, value, MGL_CUDA_HALF_ROWS);
  uint32_t bits = mgl_round_bf16(mgl_silu_mul(value, up));
  uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
  uint8_t *at =
      (uint8_t *)l->op->out + ((size_t)mgl_two_token(w) * l->op->n + column) * sizeof(uint16_t);
  if (column >= l->op->n || column % 2 != 0) {
    return;
  }
  bool copies = mgl_has_copies(l->op);
  if (mgl_two_token(w) >= l->rows) {
    if (copies && mgl_two_token(w) < l->op->tokens) {
      mgl_open_word(at, slot);
    }
  } else if (!mute) {
    mgl_write_word(at, bits | next << 16, slot, copies);
  }
}

// Of the others; value: the sum times the norm's factor, of row block i of the batch.
template <bool NORMED>
static __device__ __forceinline__ void mgl_two_write(const mgl_worker *w, const mgl_linear *l,
                                                     uint32_t i, float value, bool mute,
                                                     uint64_t *best) {
  uint32_t column = mgl_two_column(w, l, i);
  const mgl_slot *slot = mgl_task_slot(w);
  size_t element = (size_t)mgl_two_token(w) * l->op->n + column;
  uint8_t *at = (uint8_t *)l->op->out + element * sizeof(float);
  bool copies = mgl_has_copies(l->op) && l->kind != MGL_OP_LOGITS;
  if (column >= l->op->n) {
    return;
  }
  if (mgl_two_token(w) >= l->rows) {
    if (copies && mgl_two_token(w) < l->op->tokens) {
      mgl_open_word(at, slot);
    }
    return;
  }
  value += mgl_two_addend<NORMED>(w, l, column, i);
  if (!mute) {
    mgl_write_word(at, __float_as_uint(value), slot, copies);
  }
  if (l->kind == MGL_OP_LOGITS) {
    uint64_t candidate = mgl_ordered_best(value, column);
    *best = candidate > *best ? candidate : *best;
  }
}

// What is needed before and behind the products, and should take no registers between.
static __device__ __forceinline__ void mgl_two_look_again(const mgl_worker *w, mgl_linear *l) {
  const mgl_slot *slot = mgl_task_slot(w);
  l->kind = slot->op.kind;
  l->copy_at = slot->copy_at;
  l->inverse_k = __fdividef(1.0f, (float)slot->op.k);
  l->rows = slot->rows;
  l->carried = MGL_CARRIES && (slot->op.flags & MGL_CUDA_CARRIED) != 0;
}

// Finishes and writes the outputs of a batch. best: of the thread's token, for logits.
template <bool NORMED>
static __device__ __forceinline__ void mgl_two_finish(const mgl_worker *w, const mgl_linear *l,
                                                      uint64_t *best) {
  const float *partial = (const float *)w->scratch;
  partial += mgl_two_place(mgl_two_token(w), mgl_two_feature(w));
  bool mute = mgl_task_is_mute(w);
  float factor = mgl_linear_factor<MGL_TWO_SUMS_AT>(w, l, mgl_two_token(w));
#pragma unroll
  for (uint32_t i = 0; i < MGL_TWO_BLOCKS; i++) {
    if (i >= l->blocks) {
      break;
    }
    float total = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < MGL_CUDA_CONSUMER_WARPS; warp++) {
      total += partial[warp * MGL_TWO_WARP_FLOATS + i * MGL_TWO_BLOCK_FLOATS];
    }
    if (l->kind == MGL_OP_GATE_UP) {
      mgl_two_write_gated(w, l, i, total * factor, mute);
    } else {
      mgl_two_write<NORMED>(w, l, i, total * factor, mute, best);
    }
  }
}

// The largest logit of each row, over all tasks; 16 neighbouring lanes have one row.
static __device__ __forceinline__ void mgl_two_share_best(const mgl_worker *w, const mgl_linear *l,
                                                          uint64_t best) {
  if (l->kind != MGL_OP_LOGITS) {
    return;
  }
  for (int offset = MGL_CUDA_BLOCK_ROWS / 2; offset > 0; offset /= 2) {
    uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)best, offset);
    best = other > best ? other : best;
  }
  if (mgl_two_feature(w) == 0 && mgl_two_token(w) < l->rows) {
    atomicMax((unsigned long long *)&w->run->best[mgl_two_token(w)], (unsigned long long)best);
  }
}

// --- the task ------------------------------------------------------------------------------------

// Where a linear has this function: whole pairs of pages, and one pass. (Before sm_90a a normed x
// would be spilled.)
static __device__ __forceinline__ bool mgl_is_linear_of_two(const mgl_cuda_op *op) {
#if __CUDA_ARCH__ >= 900
  return op->row_tiles == MGL_TWO_TILES && op->passes == 1 &&
         op->k % (MGL_GROUP_PAGES * MGL_CUDA_PAGE_K) == 0;
#else
  return false;
#endif
}

// The batch of row blocks that begins with `block`.
static __device__ __forceinline__ void mgl_two_set_batch(mgl_linear *l, uint32_t block,
                                                         uint32_t end) {
  l->block = block;
  l->blocks = end - block < MGL_TWO_BLOCKS ? end - block : MGL_TWO_BLOCKS;
}

// What the first batch takes from the L2, once it may be asked for.
template <bool NORMED>
static __device__ __forceinline__ void mgl_two_ask_first(const mgl_worker *w, const mgl_linear *l,
                                                         const mgl_two_rows *rows,
                                                         mgl_two_raw<NORMED> *raw) {
  mgl_two_ask<NORMED, true>(rows, 0, MGL_TWO_PIECES, raw);
  if (!NORMED) {
    mgl_two_fetch_residuals(w, l);
  }
}

template <bool NORMED>
static __device__ __forceinline__ void mgl_task_linear_two(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, slot->rows, true, &l);
  l.normed = NORMED;
  const uint32_t end = slot->end;
  const uint32_t warp_at = mgl_shared_address(w->scratch) +
                           w->warp * (MGL_TWO_WARP_FLOATS * (uint32_t)sizeof(float)) +
                           mgl_two_quad(w->lane / 4, w->lane % 4) * 16;
  mgl_two_rows rows;
  mgl_two_raw<NORMED> raw;
  mgl_two_page a;
  uint64_t best = 0;
  mgl_two_set_batch(&l, slot->begin, end);
  uint32_t left = (end - l.block) * l.pages;  // pages of the task
  mgl_two_find_rows(w, &l, &rows);
  mgl_two_clear<NORMED>(&rows, &raw);
  if (l.carried) {
    mgl_two_ask_first<NORMED>(w, &l, &rows, &raw);
  }
  if (NORMED) {
    mgl_two_fetch_norm(w, &l);
  }
  if (!mgl_task_wait(w)) {
    return;
  }
  if (!NORMED) {
    mgl_two_begin_pages(w, &l, &a);
  }
  if (!l.carried) {
    mgl_two_ask_first<NORMED>(w, &l, &rows, &raw);
  }
  for (bool began = false;; began = true) {
    float squares[MGL_TWO_TILES] = {};
#pragma unroll 1
    for (uint32_t first = 0; first < l.pages; first += MGL_GROUP_PAGES) {
      mgl_linear_group<MGL_TWO_TILES> x;
      mgl_two_await<NORMED>(w, &l, &rows, first, &raw);
      if (!began && first == 0) {
        mgl_task_began(w);
      }
      mgl_two_convert<NORMED>(w, &l, first, &raw, &x, squares);
      if (NORMED) {  // whose x takes the registers before
        mgl_two_begin_pages(w, &l, &a);
      }
      bool more = first + MGL_GROUP_PAGES < l.pages;
      if (!NORMED && more) {
        mgl_two_ask<NORMED, true>(&rows, first + MGL_GROUP_PAGES, MGL_TWO_PIECES, &raw);
      }
#pragma unroll 1
      for (uint32_t block = 0; block < l.blocks; block++) {
        left -= MGL_GROUP_PAGES;
        mgl_two_block(w, &l, &x, first > 0,
                      warp_at + block * (MGL_TWO_BLOCK_FLOATS * (uint32_t)sizeof(float)), &a,
                      NORMED ? block + 1 < l.blocks : left > 0);
      }
      if (NORMED && more) {
        mgl_two_ask<NORMED, true>(&rows, first + MGL_GROUP_PAGES, MGL_TWO_PIECES, &raw);
      }
    }
    if (left > 0) {  // another batch follows
      mgl_two_ask<NORMED, true>(&rows, 0, MGL_TWO_PIECES, &raw);
    }
    if (NORMED) {
      mgl_linear_share_squares<MGL_TWO_TILES>(w, squares);
    } else {
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    mgl_sync_consumers();
    mgl_two_look_again(w, &l);
    mgl_two_finish<NORMED>(w, &l, &best);
    if (left == 0) {
      break;
    }
    mgl_two_set_batch(&l, l.block + l.blocks, end);
    mgl_sync_consumers();  // the batch before has been read
    if (!NORMED) {
      mgl_two_fetch_residuals(w, &l);
    }
  }
  mgl_two_share_best(w, &l, best);
}

#endif
