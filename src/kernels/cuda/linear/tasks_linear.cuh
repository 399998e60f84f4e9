// The linears: qkv_proj, linear_add, gate_up, logits, on tensor cores from one token on.
//
// Weights are the rows (M = 16) of the products, tokens the columns (N = 8): packed weights are
// operands as they lie in a page. Consumer warp w takes elements [64 w, 64 w + 64) of every page's
// 512 along k, for all row blocks; so a warp's share of the activations stays in its registers for
// a whole batch of row blocks, and comes from the L2 once. The warps' sums are added in a fixed
// order at the end of a batch. Every output has one order of summation, whatever else is computed
// beside it: page by page in ascending order, a page's four products added in pairs; then warps 0
// to 7.
//
// An RMS norm on the way in is split: x * weight is rounded to bf16 and multiplied, and the factor
// 1 / sqrt(mean(x^2) + eps), which commutes with the product, is applied to the sums. So nobody
// waits for the norm; every block sums the squares of what it reads anyway.
#ifndef MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_CUH
#define MGL_KERNELS_CUDA_LINEAR_TASKS_LINEAR_CUH

#include "kernels/cuda/common/page_stream.cuh"
#include "kernels/cuda/common/ranks.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/linear/codes.cuh"
#include "kernels/cuda/linear/logit_row.cuh"
#include "kernels/cuda/small/tasks_iteration.cuh"

enum {
  MGL_LINEAR_CHUNKS = 2,   // pieces of 32 elements along k that a warp has of a page
  MGL_LINEAR_STEPS = 4,    // k-steps, of 16 elements
  MGL_LINEAR_WARP_K = 64,  // elements
  MGL_LINEAR_SUMS_BYTES = MGL_CUDA_CONSUMER_WARPS * 32 * sizeof(float),  // sums of squares
  MGL_LINEAR_NORM_AT = 16384 + MGL_LINEAR_SUMS_BYTES,  // in scratch, for one row tile: the norm's
  MGL_LINEAR_NORM_MAX = 4096,                          // weights, of so many elements
  MGL_LINEAR_POLL_ROWS = 2,  // of so many rows, all is polled that a warp begins with
};

static_assert(MGL_LINEAR_WARP_K * MGL_CUDA_CONSUMER_WARPS == MGL_CUDA_PAGE_K, "warps share a page");

// The shapes in which a task can be computed: TILES row tiles of 8 tokens in a pass. One function
// each, with rolled loops, so that a stage executes little code: unrolled it was 523 KB for the
// kernel (docs/log/023), which alone was not what took the time (docs/log/024).
template <int TILES>
struct mgl_linear_shape {
  static constexpr int BLOCKS = mgl_batch_blocks(TILES);  // row blocks of a batch
  static constexpr int PAGES = MGL_GROUP_PAGES;           // of a group along k
  static constexpr int TOKENS = 8 * TILES;
  static constexpr int BLOCK_FLOATS = TOKENS * MGL_CUDA_BLOCK_ROWS;  // partial sums of a row block
  static constexpr int WARP_FLOATS = BLOCKS * BLOCK_FLOATS;
  static constexpr int TOKEN_OUTPUTS = BLOCKS * MGL_CUDA_BLOCK_ROWS;
  static constexpr int OUTPUTS = TOKENS * TOKEN_OUTPUTS / MGL_CUDA_CONSUMERS;  // of a thread
  static constexpr int SUMS_AT =  // in scratch, behind the partial sums: sums of squares
      WARP_FLOATS * 4 * MGL_CUDA_CONSUMER_WARPS;
  static_assert(SUMS_AT + MGL_LINEAR_SUMS_BYTES <=
                    (TILES == 1 ? (int)MGL_LINEAR_NORM_AT : (int)MGL_CUDA_SCRATCH_BYTES),
                "partial sums of a batch");
  static_assert(TOKEN_OUTPUTS % 32 == 0, "a warp finishes outputs of one token at a time");
};

// An mgl_linear is what a linear task knows before it computes: the op in registers.
struct mgl_linear {
  const mgl_cuda_op *op;  // in shared memory, for what is read once
  const mgl_cuda_plan *plan;
  const uint8_t *x;
  const float *norm;  // in memory
  uint32_t norm_at;   // or a copy in scratch: address in shared memory; 0: none
  uint32_t kind;
  uint32_t k;
  float inverse_k;
  uint32_t pages;  // along k
  uint32_t k_padded;
  uint32_t x_stride;
  uint32_t zero;  // mgl_cuda_op.zero
  bool normed;
  bool known;              // its k and kind, to the compiler
  bool carried;            // x and the residual carry their readiness
  uint64_t copy_at;        // of the residual
  uint32_t rows;           // tokens that the iteration brings
  uint32_t first_row;      // of this pass
  uint32_t block;          // first row block of the batch
  uint32_t blocks;         // of the batch
  uint32_t page_at;        // this lane's part of page 0 of the ring: address in shared memory; of
                           // codes the page's begin
  mgl_share_places share;  // of codes
  uint32_t panel_bytes;    // of codes
  uint32_t partial_at;     // this lane's partial sums of row block 0
};

// --- activations ---------------------------------------------------------------------------------

// Returns where elements e .. e + 7 of row `row` of the product lie in x.
MGL_DEVICE const uint8_t *mgl_linear_x(const mgl_linear *l, uint32_t row, uint32_t e) {
  if (l->kind == MGL_OP_LOGITS) {
    row = row < l->rows ? __ldcg(&l->plan->logit_rows[row]) : 0;
  }
  return l->x + ((size_t)row * l->x_stride + e) * (l->normed ? sizeof(float) : sizeof(uint16_t));
}

// Eight f32 elements times the norm's weights, as bf16; adds their squares to *squares.
MGL_DEVICE uint4 mgl_linear_normed(const uint4 raw[2], const float4 w[2], float *squares) {
  float v[8] = {__uint_as_float(raw[0].x), __uint_as_float(raw[0].y), __uint_as_float(raw[0].z),
                __uint_as_float(raw[0].w), __uint_as_float(raw[1].x), __uint_as_float(raw[1].y),
                __uint_as_float(raw[1].z), __uint_as_float(raw[1].w)};
  float even = 0;
  float odd = 0;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    even = __fmaf_rn(v[i], v[i], even);
    odd = __fmaf_rn(v[i + 1], v[i + 1], odd);
  }
  *squares += even + odd;
  return make_uint4(
      mgl_pack_bf16(v[0] * w[0].x, v[1] * w[0].y), mgl_pack_bf16(v[2] * w[0].z, v[3] * w[0].w),
      mgl_pack_bf16(v[4] * w[1].x, v[5] * w[1].y), mgl_pack_bf16(v[6] * w[1].z, v[7] * w[1].w));
}

// Before the wait: the norm's weights into scratch, or at least into the L2. The caches forget them
// between iterations, and rows of x should not wait for them.
MGL_DEVICE void mgl_linear_fetch_norm(const mgl_worker *w, mgl_linear *l) {
  l->norm_at = 0;
  if (!l->normed) {
    return;
  }
  if (l->op->row_tiles > 1 || l->k > MGL_LINEAR_NORM_MAX) {
    for (uint32_t e = w->thread * 32; e < l->k; e += MGL_CUDA_CONSUMERS * 32) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(l->norm + e));
    }
    return;
  }
  float *copy = (float *)(w->scratch + MGL_LINEAR_NORM_AT);
  for (uint32_t e = w->thread * 4; e < l->k; e += MGL_CUDA_CONSUMERS * 4) {
    *(float4 *)(copy + e) = __ldg((const float4 *)(l->norm + e));
  }
  mgl_sync_consumers();
  l->norm_at = mgl_shared_address(copy);
}

// The norm's weights of elements [e, e + 8), e below k.
MGL_DEVICE void mgl_linear_norm(const mgl_linear *l, uint32_t e, float4 w[2]) {
  if (l->norm_at != 0) {
    w[0] = mgl_floats_of(mgl_load_shared(l->norm_at + e * sizeof(float)));
    w[1] = mgl_floats_of(mgl_load_shared(l->norm_at + (e + 4) * sizeof(float)));
    return;
  }
  w[0] = __ldg((const float4 *)(l->norm + e));
  w[1] = __ldg((const float4 *)(l->norm + e + 4));
}

// A warp's activations of a group of pages: for each row tile, page and chunk this lane's eight
// elements of token g: words x and y are one k-step's operand, z and w the next one's.
template <int TILES>
struct mgl_linear_group {
  uint4 x[TILES][mgl_linear_shape<TILES>::PAGES][MGL_LINEAR_CHUNKS];
};

// This lane's part of a row as it lies in memory: PAGES pages along k; bf16 fills only [][0].
template <int PAGES>
struct mgl_linear_raw {
  uint4 v[PAGES * MGL_LINEAR_CHUNKS][2];
};

static __device__ constexpr uint32_t mgl_linear_element(int chunk) {
  return chunk / MGL_LINEAR_CHUNKS * MGL_CUDA_PAGE_K + chunk % MGL_LINEAR_CHUNKS * 32;
}

// First element of this lane from page first_page on.
MGL_DEVICE uint32_t mgl_linear_first(const mgl_worker *w, uint32_t first_page) {
  return first_page * MGL_CUDA_PAGE_K + w->warp * MGL_LINEAR_WARP_K + w->lane % 4 * 8;
}

// Asks for a row, all of it before any of it is used; zeros where there is none. FULL: every page
// is a whole one.
template <int PAGES, bool FULL>
MGL_DEVICE void mgl_linear_ask(const mgl_worker *w, const mgl_linear *l, uint32_t row,
                               uint32_t first_page, mgl_linear_raw<PAGES> *raw) {
  uint32_t first = mgl_linear_first(w, first_page);
#pragma unroll
  for (int i = 0; i < PAGES * MGL_LINEAR_CHUNKS; i++) {
    raw->v[i][0] = make_uint4(0, 0, 0, 0);
    raw->v[i][1] = make_uint4(0, 0, 0, 0);
  }
  if (row >= l->rows) {
    return;
  }
  const uint8_t *x = mgl_linear_x(l, row, first);
  uint32_t pages = l->pages - first_page;
  if (l->normed) {
#pragma unroll
    for (int i = 0; i < PAGES * MGL_LINEAR_CHUNKS; i++) {
      uint32_t e = mgl_linear_element(i);
      if (FULL ? i / MGL_LINEAR_CHUNKS < pages : first + e < l->k) {
        raw->v[i][0] = mgl_load_l2(x + e * sizeof(float));
        raw->v[i][1] = mgl_load_l2(x + (e + 4) * sizeof(float));
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < PAGES * MGL_LINEAR_CHUNKS; i++) {
    uint32_t e = mgl_linear_element(i);
    if (FULL ? i / MGL_LINEAR_CHUNKS < pages : first + e < l->k) {
      raw->v[i][0] = mgl_load_l2(x + e * sizeof(uint16_t));
    }
  }
}

// True if some word of that is not written yet.
template <int PAGES>
MGL_DEVICE bool mgl_linear_is_open(const mgl_linear *l, const mgl_linear_raw<PAGES> *raw) {
  bool open = false;
#pragma unroll
  for (int i = 0; i < PAGES * MGL_LINEAR_CHUNKS; i++) {
    open = open || mgl_has_open(raw->v[i][0]) || (l->normed && mgl_has_open(raw->v[i][1]));
  }
  return open;
}

// Asks again until all of it is there. When the run stops it gives up, and the task is mute.
template <int PAGES, bool FULL>
MGL_DEVICE void mgl_linear_await(const mgl_worker *w, const mgl_linear *l, uint32_t row,
                                 uint32_t first_page, mgl_linear_raw<PAGES> *raw) {
  if (!l->carried) {
    return;
  }
  while (__any_sync(0xffffffffu, mgl_linear_is_open<PAGES>(l, raw)) && w->block->stop == 0) {
    mgl_linear_ask<PAGES, FULL>(w, l, row, first_page, raw);
  }
}

// With many rows, asking for all of them again and again would fill the L2's queues: until the
// first piece of each lane's row is there, only that is asked for.
MGL_DEVICE void mgl_linear_await_first(const mgl_worker *w, const mgl_linear *l, uint32_t row) {
  if (!l->carried || l->rows <= MGL_LINEAR_POLL_ROWS) {
    return;
  }
  uint32_t first = mgl_linear_first(w, 0);
  bool there = row < l->rows && first < l->k;
  const uint8_t *x = mgl_linear_x(l, there ? row : 0, there ? first : 0);
  while (__any_sync(0xffffffffu, there && mgl_has_open(mgl_load_l2(x))) && w->block->stop == 0) {
  }
}

template <int PAGES, bool FULL>
MGL_DEVICE void mgl_linear_convert(const mgl_worker *w, const mgl_linear *l, uint32_t first_page,
                                   const mgl_linear_raw<PAGES> *raw,
                                   uint4 (*out)[MGL_LINEAR_CHUNKS], float *squares) {
  if (!l->normed) {
#pragma unroll
    for (int i = 0; i < PAGES * MGL_LINEAR_CHUNKS; i++) {
      out[i / MGL_LINEAR_CHUNKS][i % MGL_LINEAR_CHUNKS] = raw->v[i][0];
    }
    return;
  }
  uint32_t first = mgl_linear_first(w, first_page);
#pragma unroll
  for (int i = 0; i < PAGES * MGL_LINEAR_CHUNKS; i++) {
    uint32_t e = first + mgl_linear_element(i);
    if (FULL && i / MGL_LINEAR_CHUNKS >= l->pages - first_page) {
      break;
    }
    float4 norm[2];
    mgl_linear_norm(l, FULL || e < l->k ? e : 0, norm);
    out[i / MGL_LINEAR_CHUNKS][i % MGL_LINEAR_CHUNKS] = mgl_linear_normed(raw->v[i], norm, squares);
  }
}

// The rows of all tiles.
template <int TILES, bool FULL>
MGL_DEVICE void mgl_linear_load(const mgl_worker *w, const mgl_linear *l, uint32_t first_page,
                                mgl_linear_group<TILES> *x, float *squares) {
  constexpr int PAGES = mgl_linear_shape<TILES>::PAGES;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    mgl_linear_raw<PAGES> raw;
    uint32_t row = l->first_row + w->lane / 4 + tile * 8;
    mgl_linear_ask<PAGES, FULL>(w, l, row, first_page, &raw);
    mgl_linear_await<PAGES, FULL>(w, l, row, first_page, &raw);
    mgl_linear_convert<PAGES, FULL>(w, l, first_page, &raw, x->x[tile], &squares[tile]);
  }
}

// --- products ------------------------------------------------------------------------------------

// 0 once loads have arrived in registers. An arrival at an mbarrier can overtake loads from shared
// memory that were issued before it, and then the loader's copy, which is another proxy's write,
// the loads (seen as wrong bits in a few launches of thousands). An address that depends on what
// was loaded makes the arrival wait.
MGL_DEVICE uint32_t mgl_loads_arrived(const uint4 loaded[MGL_LINEAR_STEPS], uint32_t zero) {
  return (loaded[0].x ^ loaded[1].x ^ loaded[2].x ^ loaded[3].x) & zero;
}

// This warp's weights of a whole page, a k-step's operand each.
MGL_DEVICE void mgl_linear_read(const mgl_linear *l, uint32_t page,
                                uint4 weights[MGL_LINEAR_STEPS]) {
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    weights[step] = mgl_load_shared(l->page_at + page * MGL_PAGE_BYTES + step * 512);
  }
}

// The same of the next page of the ring. Once they are in registers the loader may fill the page
// again.
template <bool FULL>
MGL_DEVICE void mgl_linear_weights(mgl_worker *w, const mgl_linear *l, uint32_t page_bytes,
                                   uint4 weights[MGL_LINEAR_STEPS]) {
  uint32_t at = l->page_at + w->page * MGL_PAGE_BYTES;
  mgl_page_wait(w);
#pragma unroll
  for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
    if (FULL) {
      weights[step] = mgl_load_shared(at + step * 512);
    } else {  // behind the end: zero, as x is
      uint32_t in_page = w->warp * (MGL_LINEAR_STEPS * 512) + w->lane * 16 + step * 512;
      weights[step] = mgl_load_shared_if(at + step * 512, in_page < page_bytes);
    }
  }
  uint32_t released = mgl_shared_address(&w->block->page_free[w->page]);
  released += mgl_loads_arrived(weights, l->zero);
  __syncwarp();
  if (w->lane == 0) {
    mgl_mbarrier_arrive_at(released);
  }
  mgl_next_page(w);
}

// One page of one row block. The products do not wait for each other. begins: sums are not there
// yet, as if they were 0.
template <int TILES>
MGL_DEVICE void mgl_linear_page(const mgl_linear_group<TILES> *x, int page,
                                const uint4 weights[MGL_LINEAR_STEPS], float (*sums)[4],
                                bool begins = false) {
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    float products[MGL_LINEAR_STEPS][4] = {};
#pragma unroll
    for (int step = 0; step < MGL_LINEAR_STEPS; step++) {
      const uint4 b = x->x[tile][page][step / 2];
      const uint32_t a[4] = {weights[step].x, weights[step].y, weights[step].z, weights[step].w};
      mgl_mma(products[step], a, step % 2 == 0 ? b.x : b.z, step % 2 == 0 ? b.y : b.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float sum = (products[0][i] + products[1][i]) + (products[2][i] + products[3][i]);
      sums[tile][i] = begins ? sum : sums[tile][i] + sum;
    }
  }
}

// --- outputs -------------------------------------------------------------------------------------

// Output i of a thread: token and feature follow from its number, the same for all batches.
template <typename shape>
MGL_DEVICE uint32_t mgl_linear_token(const mgl_worker *w, int i) {
  return (w->thread + i * MGL_CUDA_CONSUMERS) / shape::TOKEN_OUTPUTS;
}

// Row block of the batch, and feature in it: block * 16 + feature.
template <typename shape>
MGL_DEVICE uint32_t mgl_linear_feature(const mgl_worker *w, int i) {
  return (w->thread + i * MGL_CUDA_CONSUMERS) % shape::TOKEN_OUTPUTS;
}

// An output that a thread finishes in a batch.
struct mgl_linear_output {
  bool there;
  bool opens;  // a place without a value in this run, of which the other copy becomes open
  uint32_t column;
  uint32_t place;  // in each warp's partial sums
  size_t at;       // in the op's output
  float addend;    // the residual, or the bias
};

// Done while x is on its way. (Of gate_up the upper half of a row block makes no outputs.)
template <typename shape>
MGL_DEVICE void mgl_linear_outputs(const mgl_worker *w, const mgl_linear *l,
                                   mgl_linear_output outputs[shape::OUTPUTS]) {
  const uint32_t n = l->op->n;
  const uint32_t columns = mgl_block_columns(l->kind);
  const uint8_t *addends =
      l->kind == MGL_OP_LINEAR_ADD ? (const uint8_t *)l->op->residual + l->copy_at : nullptr;
#pragma unroll
  for (int i = 0; i < shape::OUTPUTS; i++) {
    mgl_linear_output *o = &outputs[i];
    uint32_t token = mgl_linear_token<shape>(w, i);
    uint32_t feature = mgl_linear_feature<shape>(w, i);
    uint32_t block = feature / MGL_CUDA_BLOCK_ROWS;
    uint32_t in_block = feature % MGL_CUDA_BLOCK_ROWS;
    o->column = (l->block + block) * columns + in_block;
    o->place = block * shape::BLOCK_FLOATS + token * MGL_CUDA_BLOCK_ROWS + in_block;
    o->at = (size_t)(l->first_row + token) * n + o->column;
    bool place = block < l->blocks && in_block < columns && o->column < n;
    o->there = place && l->first_row + token < l->rows;
    o->opens = place && !o->there && l->first_row + token < l->op->tokens;
    o->addend = 0;
    if (o->there && addends != nullptr) {
      o->addend = mgl_load_l2_float(addends + o->at * sizeof(float));
    } else if (o->there && l->op->bias != nullptr) {
      o->addend = __ldg(l->op->bias + o->column);
    }
  }
}

// The warps' sums, which lie `stride` apart, in their order.
template <int stride>
MGL_DEVICE float mgl_sum_of_warps(const float *at) {
  float total = 0;
#pragma unroll
  for (uint32_t warp = 0; warp < MGL_CUDA_CONSUMER_WARPS; warp++) {
    total += at[warp * stride];
  }
  return total;
}

// Of one output; `at` is its place in a warp's part.
template <typename shape>
MGL_DEVICE float mgl_linear_total(const mgl_worker *w, uint32_t at) {
  return mgl_sum_of_warps<shape::WARP_FLOATS>((const float *)w->scratch + at);
}

// 1 / sqrt(mean(x^2) + eps) of a token, or 1. sums_at: where the shape has its sums of squares.
template <int sums_at>
MGL_DEVICE float mgl_linear_factor(const mgl_worker *w, const mgl_linear *l, uint32_t token) {
  if (!l->normed) {
    return 1;
  }
  const float sum = mgl_sum_of_warps<32>((const float *)(w->scratch + sums_at) + token);
  return rsqrtf(__fmaf_rn(sum, l->inverse_k, l->op->eps));  // within 2 units in the last place
}

// A residual, or another addend; a residual that was not there when it was first asked for.
MGL_DEVICE float mgl_linear_addend(const mgl_worker *w, const mgl_linear *l, size_t element,
                                   float addend) {
  if (l->carried && l->kind == MGL_OP_LINEAR_ADD) {
    const uint8_t *at = (const uint8_t *)l->op->residual + l->copy_at + element * sizeof(float);
    while (mgl_is_open(__float_as_uint(addend)) && w->block->stop == 0) {
      addend = mgl_load_l2_float(at);
    }
  }
  return addend;
}

// Adds the bias that a linear with a residual may have besides. Callers ask for MGL_HAS_SUM_BIASES
// themselves, so that other models' kernels stay what they are to the instruction.
MGL_DEVICE float mgl_linear_biased(const mgl_linear *l, uint32_t column, float value) {
  return l->kind == MGL_OP_LINEAR_ADD && l->op->bias != nullptr
             ? value + __ldg(l->op->bias + column)
             : value;
}

// Writes outputs of gate_up, where two neighbouring columns are a word. All lanes of a warp call
// it.
template <typename shape>
MGL_DEVICE void mgl_linear_write_gated(const mgl_worker *w, const mgl_linear *l,
                                       const mgl_linear_output *o, int i, bool mute) {
  const mgl_slot *slot = mgl_task_slot(w);
  uint32_t bits = 0;
  if (o->there) {
    float factor = mgl_linear_factor<shape::SUMS_AT>(w, l, mgl_linear_token<shape>(w, i));
    float gate = mgl_linear_total<shape>(w, o->place) * factor;
    float up = mgl_linear_total<shape>(w, o->place + MGL_CUDA_HALF_ROWS) * factor;
    bits = mgl_round_bf16(mgl_silu_mul(gate, up));
  }
  uint32_t next = __shfl_down_sync(0xffffffffu, bits, 1);
  uint8_t *at = (uint8_t *)l->op->out + o->at * sizeof(uint16_t);
  bool copies = mgl_has_copies(l->op);
  if (o->column % 2 != 0) {
    return;
  }
  if (o->there && !mute) {
    mgl_write_word(at, bits | next << 16, slot, copies);
  } else if (o->opens && copies) {
    mgl_open_word(at, slot);
  }
}

// Finishes and writes the outputs of a batch. best: of each of the thread's outputs, for logits.
template <typename shape>
MGL_DEVICE void mgl_linear_finish(const mgl_worker *w, const mgl_linear *l,
                                  const mgl_linear_output outputs[shape::OUTPUTS],
                                  uint64_t best[shape::OUTPUTS]) {
  const mgl_slot *slot = mgl_task_slot(w);
  uint8_t *out = (uint8_t *)l->op->out;
  bool mute = mgl_task_is_mute(w);
  bool copies = mgl_has_copies(l->op) && l->kind != MGL_OP_LOGITS;
#pragma unroll
  for (int i = 0; i < shape::OUTPUTS; i++) {
    const mgl_linear_output *o = &outputs[i];
    if (l->kind == MGL_OP_GATE_UP) {
      mgl_linear_write_gated<shape>(w, l, o, i, mute);
      continue;
    }
    if (o->opens && copies && !mgl_is_exchanged(l->op)) {
      mgl_open_word(out + o->at * sizeof(float), slot);
    }
    if (!o->there) {
      continue;
    }
    float factor = mgl_linear_factor<shape::SUMS_AT>(w, l, mgl_linear_token<shape>(w, i));
    float value = mgl_linear_total<shape>(w, o->place) * factor;
    if (mgl_is_exchanged(l->op)) {
      if (!mute) {
        mgl_send_part(slot, o->at, value);
      }
      continue;
    }
    if (MGL_HAS_SUM_BIASES) {
      value = mgl_linear_biased(l, o->column, value);
    }
    value += mgl_linear_addend(w, l, o->at, o->addend);
    if (!mute) {
      mgl_write_word(out + o->at * sizeof(float), __float_as_uint(value), slot, copies);
    }
    if (l->kind == MGL_OP_LOGITS) {
      uint64_t candidate = mgl_ordered_best(value, o->column);
      best[i] = candidate > best[i] ? candidate : best[i];
    }
  }
}

// --- the task ------------------------------------------------------------------------------------

// A row block times a group of pages, added to what is in scratch: [token][feature] of each block.
template <int TILES, bool FULL>
MGL_DEVICE void mgl_linear_block(mgl_worker *w, const mgl_linear *l,
                                 const mgl_linear_group<TILES> *x, uint32_t first, uint32_t block) {
  using shape = mgl_linear_shape<TILES>;
  uint32_t token = w->lane % 4 * 2;
  uint32_t tokens = l->rows - l->first_row;
  float *partial = (float *)w->scratch + l->partial_at + block * shape::BLOCK_FLOATS;
  float sums[TILES][4] = {};
  if (first > 0) {
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {  // features g and g + 8 of two neighbouring tokens
      sums[i / 4][i % 4] = partial[i / 4 * 8 * MGL_CUDA_BLOCK_ROWS + i % 2 * MGL_CUDA_BLOCK_ROWS +
                                   i % 4 / 2 * MGL_CUDA_HALF_ROWS];
    }
  }
#pragma unroll
  for (int page = 0; page < shape::PAGES; page++) {
    if (first + page < l->pages) {
      uint32_t bytes =
          FULL ? (uint32_t)MGL_CUDA_PAGE_BYTES : mgl_page_bytes(l->k_padded, first + page);
      uint4 weights[MGL_LINEAR_STEPS];
      mgl_linear_weights<FULL>(w, l, bytes, weights);
      mgl_linear_page<TILES>(x, page, weights, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * TILES; i++) {
    if (token + i / 4 * 8 + i % 2 < tokens) {
      partial[i / 4 * 8 * MGL_CUDA_BLOCK_ROWS + i % 2 * MGL_CUDA_BLOCK_ROWS +
              i % 4 / 2 * MGL_CUDA_HALF_ROWS] = sums[i / 4][i % 4];
    }
  }
}

// This warp's sums of squares of each token.
template <int TILES, int SUMS_AT = mgl_linear_shape<TILES>::SUMS_AT>
MGL_DEVICE void mgl_linear_share_squares(const mgl_worker *w, const float squares[TILES]) {
  float *to = (float *)(w->scratch + SUMS_AT) + w->warp * 32 + w->lane / 4;
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    float sum = squares[tile];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (w->lane % 4 == 0) {
      to[tile * 8] = sum;
    }
  }
}

// For one tile, x of a group is asked for while the group before is computed. Whether that goes on
// from one batch to the next: a ring of few pages does not last for a trip to the L2, and where
// pages are many its registers cost more.
enum { MGL_LINEAR_ASKS_ON = MGL_KERNEL_PER_OP };

// One batch of row blocks. begins, ends: the task's first and last one. raw: for one tile, the
// group that was asked for.
template <int TILES, bool FULL>
MGL_DEVICE void mgl_linear_batch(mgl_worker *w, const mgl_linear *l, bool begins, bool ends,
                                 mgl_linear_raw<mgl_linear_shape<TILES>::PAGES> *raw,
                                 uint64_t best[mgl_linear_shape<TILES>::OUTPUTS]) {
  using shape = mgl_linear_shape<TILES>;
  float squares[TILES] = {};
  mgl_linear_output outputs[shape::OUTPUTS];
  mgl_linear_group<TILES> x;
  uint32_t row = l->first_row + w->lane / 4;
  if (begins) {
    mgl_linear_await_first(w, l, row);
  }
  if (TILES == 1 && (begins || !MGL_LINEAR_ASKS_ON)) {
    mgl_linear_ask<shape::PAGES, FULL>(w, l, row, 0, raw);
  }
  mgl_linear_outputs<shape>(w, l, outputs);
#pragma unroll 1
  for (uint32_t first = 0; first < l->pages; first += shape::PAGES) {
    if (TILES == 1) {
      mgl_linear_await<shape::PAGES, FULL>(w, l, row, first, raw);
      if (begins && first == 0) {
        mgl_task_began(w);
      }
      mgl_linear_convert<shape::PAGES, FULL>(w, l, first, raw, x.x[0], squares);
      bool more = first + shape::PAGES < l->pages;
      if (more || (MGL_LINEAR_ASKS_ON && !ends)) {
        mgl_linear_ask<shape::PAGES, FULL>(w, l, row, more ? first + shape::PAGES : 0, raw);
      }
    } else {
      mgl_linear_load<TILES, FULL>(w, l, first, &x, squares);
      if (begins && first == 0) {
        mgl_task_began(w);
      }
    }
#pragma unroll 1
    for (uint32_t block = 0; block < l->blocks; block++) {
      mgl_linear_block<TILES, FULL>(w, l, &x, first, block);
    }
  }
  if (l->normed) {
    mgl_linear_share_squares<TILES>(w, squares);
  }
  mgl_sync_consumers();
  mgl_linear_finish<shape>(w, l, outputs, best);
}

// The largest logit of each row, over all tasks.
template <typename shape>
MGL_DEVICE void mgl_linear_best(const mgl_worker *w, const mgl_linear *l,
                                const uint64_t best[shape::OUTPUTS]) {
#pragma unroll
  for (int i = 0; i < shape::OUTPUTS; i++) {
    uint32_t row = l->first_row + mgl_linear_token<shape>(w, i);  // one for a whole warp
    uint64_t largest = mgl_warp_max(best[i]);
    if (row < l->rows && w->lane == 0) {
      atomicMax((unsigned long long *)&w->run->best[row], (unsigned long long)largest);
    }
  }
}

template <int TILES, bool FULL>
MGL_DEVICE void mgl_linear_run(mgl_worker *w, mgl_linear *l, uint32_t begin, uint32_t end) {
  using shape = mgl_linear_shape<TILES>;
#pragma unroll 1
  for (uint32_t pass = 0; pass < l->op->passes; pass++) {
    uint64_t best[shape::OUTPUTS] = {};
    mgl_linear_raw<shape::PAGES> raw;
    l->first_row = pass * shape::TOKENS;
#pragma unroll 1
    for (l->block = begin; l->block < end; l->block += shape::BLOCKS) {
      l->blocks = end - l->block < shape::BLOCKS ? end - l->block : shape::BLOCKS;
      bool begins = l->block == begin && pass == 0;
      if (!begins) {
        mgl_sync_consumers();  // the batch before has been read
      }
      bool ends = l->block + l->blocks == end;
      mgl_linear_batch<TILES, FULL>(w, l, begins, ends, &raw, best);
    }
    if (MGL_RANKS == 1 && l->kind == MGL_OP_LOGITS) {
      mgl_linear_best<shape>(w, l, best);
    }
  }
}

// Rows that a linear of this slot computes. (That of one token is known without a trip to the L2.)
MGL_DEVICE uint32_t mgl_linear_rows(const mgl_slot *slot) {
  if (slot->op.kind == MGL_OP_LOGITS) {
    return __ldcg(&slot->plan->logit_row_count);
  }
  return slot->op.tokens == 1 ? 1 : __ldcg(&slot->plan->token_count);
}

// All shapes begin with this. rows are those of the iteration that are computed; may_carry says
// that the shape can wait for words of x.
MGL_DEVICE void mgl_linear_init(const mgl_worker *w, const mgl_slot *slot, uint32_t rows,
                                bool may_carry, mgl_linear *l) {
  l->op = &slot->op;
  l->plan = slot->plan;
  l->carried = MGL_CARRIES && may_carry && (slot->op.flags & MGL_CUDA_CARRIED) != 0;
  l->copy_at = slot->copy_at;
  l->x = (const uint8_t *)slot->op.x + slot->copy_at;
  l->kind = slot->op.kind;
  l->k = slot->op.k;
  l->inverse_k = __fdividef(1.0f, (float)slot->op.k);  // no call, which would cost registers
  l->norm = slot->op.norm;
  l->norm_at = 0;
  l->pages = mgl_pages_of_block(slot->op.k_padded);
  l->page_at = mgl_shared_address(w->pages) + w->warp * (MGL_LINEAR_STEPS * 512) + w->lane * 16;
  l->partial_at = 0;
  l->k_padded = slot->op.k_padded;
  l->x_stride = slot->op.x_stride;
  l->zero = slot->op.zero;
  l->normed = (slot->op.flags & MGL_CUDA_X_NORMED) != 0;
  l->rows = rows;
  l->first_row = 0;
  l->known = false;
}

// What device code knows of an op's shape; K: of rows that end within the second page of a pair, or
// of codes, or 0.
template <uint32_t K>
MGL_DEVICE void mgl_linear_know(mgl_linear *l) {
  if constexpr (K != 0) {
    constexpr uint32_t pair = 2 * MGL_CUDA_PAGE_K;
    l->k = K;
    l->pages = (K + (pair - 1)) / pair * 2;
    l->k_padded = K % pair == 0 ? K : l->k_padded;
  }
}

// What is made of the sums of a linear whose body knows that and k.
typedef enum mgl_makes {
  MGL_MAKES_ANY,
  MGL_MAKES_ROWS,
  MGL_MAKES_GATED,
  MGL_MAKES_ADDED,
  MGL_MAKES_EXPERTS  // with a norm rows and experts' gated ones, else added to a residual, of any k
} mgl_makes;

// Whether bodies of 9 to 16 tokens know a norm's k: where x is more than one group, which the next
// one's words are kept beside, registers would be spilled in all of the kernel (docs/log/309).
static __device__ constexpr bool mgl_knows_two_tiles(uint32_t k) {
  return k == MGL_GROUP_PAGES * MGL_CUDA_PAGE_K;
}

// Such a body for an op of 2 to 16 tokens (of one: mgl_one_function), which has `function`
// otherwise. Activations carry their readiness, and outputs have copies.
MGL_DEVICE uint32_t mgl_known_function(const mgl_cuda_op *op, uint32_t function) {
  uint32_t rows, gated, added_1, added_2;
  switch (function) {
#define MGL_KNOWN_BY(NORMED, OTHER, BODY) \
  case MGL_CALL_##NORMED:                 \
  case MGL_CALL_##OTHER:                  \
    rows = MGL_CALL_##BODY##_ROWS;        \
    gated = MGL_CALL_##BODY##_GATED;      \
    added_1 = MGL_CALL_##BODY##_ADDED_1;  \
    added_2 = MGL_CALL_##BODY##_ADDED_2;  \
    break;
    MGL_KNOWN_BY(LINEAR_ROWS_1_NORMED, LINEAR_ROWS_1, EIGHT)
    MGL_KNOWN_BY(LINEAR_ROWS_2_NORMED, LINEAR_ROWS_2, SIXTEEN)
#undef MGL_KNOWN_BY
    default: return function;
  }
  if (!MGL_CARRIES || (op->flags & MGL_CUDA_CARRIED) == 0 || op->copy_bytes == 0) {
    return function;
  }
  if (mgl_normed(op)) {
    if (function == MGL_CALL_LINEAR_ROWS_2_NORMED && !mgl_knows_two_tiles(MGL_K_NORMED)) {
      return function;
    }
    return op->k != MGL_K_NORMED || op->kind == MGL_OP_LOGITS ? function
           : op->kind == MGL_OP_GATE_UP                       ? gated
                                                              : rows;
  }
  return op->kind != MGL_OP_LINEAR_ADD ? function
         : op->k == MGL_K_ADDED_1      ? added_1
         : op->k == MGL_K_ADDED_2      ? added_2
                                       : function;
}

// Loops over pages and rounds become straight, and a warp goes through a third fewer instructions
// (docs/log/306, 309).
template <uint32_t K, mgl_makes MAKES>
MGL_DEVICE void mgl_linear_know_all(mgl_linear *l) {
  if constexpr (MAKES != MGL_MAKES_ANY) {
    mgl_linear_know<K>(l);
    if (K != 0 && (K & (K - 1)) == 0) {
      l->inverse_k = 1.0f / K;  // exact, as it is otherwise
    }
    constexpr bool added = MAKES == MGL_MAKES_ADDED || (MAKES == MGL_MAKES_EXPERTS && K == 0);
    const bool gated = MAKES == MGL_MAKES_EXPERTS && l->kind == MGL_OP_GATE_UP;
    l->kind = MAKES == MGL_MAKES_GATED || gated ? (uint32_t)MGL_OP_GATE_UP
              : added                           ? (uint32_t)MGL_OP_LINEAR_ADD
                                                : (uint32_t)MGL_OP_COUNT;
    l->carried = true;
    l->known = true;
  }
}

// Where a warp finds its share of panels of codes.
template <mgl_packing P>
MGL_DEVICE void mgl_linear_find_share(const mgl_worker *w, const mgl_slot *slot, mgl_linear *l) {
  if constexpr (P != MGL_PACKING_BF16) {
    l->page_at = mgl_shared_address(w->pages);
    l->share = mgl_find_share<P>(w, &slot->op);
    l->panel_bytes = mgl_op_panel_bytes(&slot->op);
  }
}

// Row blocks [begin, end) of the slot, for all rows of the iteration, in one of the shapes. FULL: k
// is a whole number of pages. NORMED: whether x goes through a norm; -1: the op says it.
template <int TILES, bool FULL, int NORMED = -1>
MGL_DEVICE void mgl_task_linear(mgl_worker *w) {
  const mgl_slot *slot = mgl_task_slot(w);
  mgl_linear l;
  mgl_linear_init(w, slot, mgl_linear_rows(slot), TILES <= MGL_CUDA_CARRIED_TOKENS / 8, &l);
  l.normed = NORMED < 0 ? l.normed : NORMED != 0;
  l.partial_at = w->warp * mgl_linear_shape<TILES>::WARP_FLOATS +
                 w->lane % 4 * 2 * MGL_CUDA_BLOCK_ROWS + w->lane / 4;
  mgl_linear_fetch_norm(w, &l);
  if (mgl_task_wait(w)) {
    mgl_linear_run<TILES, FULL>(w, &l, slot->begin, slot->end);
  }
}

#endif
