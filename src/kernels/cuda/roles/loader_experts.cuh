// Experts in the loader: which ones a token has, and where their weights lie.
//
// Of one token, gate and up of its S experts are a gate_up of S * F features, and down is a
// linear_add of S * F inputs: activations of slots lie behind each other, and all that tells such a
// task from a dense one is where its weights come from. So the cut into tasks is static and even
// whatever the router says, every output has one order of summation, and consumers need no expert's
// number. Several tokens are computed one after the other, with the same bits.
//   Rejected: a queue of pairs of tokens and experts, or a task for each expert: two more hops.
//
// The router's logits are words that carry their readiness, and so are what the numbers of experts
// wait for. The loader of every worker chooses by itself, a warp for a token: largest logits first,
// lower numbers first among equal ones, as the CPU does. It leaves numbers and weights in scratch,
// behind what the tasks of experts use; they are there before the task's first page is. Nobody else
// writes there meanwhile: that all logits are there means that all that was before has its words,
// and behind the tasks of experts the next one of the block begins when their pages are consumed.
//
// A part of role_loader.cuh, which includes it behind what it calls.
#ifndef MGL_KERNELS_CUDA_ROLES_LOADER_EXPERTS_CUH
#define MGL_KERNELS_CUDA_ROLES_LOADER_EXPERTS_CUH

#include "kernels/cuda/common/experts.cuh"

enum {
  // Of a token, in each lane; one where there are no experts, whose code is compiled, too.
  MGL_EXPERT_LANE_LOGITS = MGL_EXPERTS == 0 ? 1 : (MGL_EXPERTS + 31) / 32,
  MGL_EXPERT_UP_BLOCKS = MGL_EXPERT_FEATURES / MGL_CUDA_HALF_ROWS,
  MGL_EXPERT_DOWN_BLOCKS = MGL_EXPERT_WIDTH / MGL_CUDA_BLOCK_ROWS,
  MGL_EXPERT_UP_BYTES = MGL_EXPERT_WIDTH * MGL_CUDA_BLOCK_ROWS * 2,  // of a row block
  MGL_EXPERT_DOWN_BYTES = MGL_EXPERT_FEATURES * MGL_CUDA_BLOCK_ROWS * 2,
};

// --- when logits are there -----------------------------------------------------------------------

// One lane: which copy of activations this iteration writes, which its run of the graph says, once
// it is live. False: give up.
static __device__ __forceinline__ bool mgl_loader_find_copy(mgl_loader *l) {
  mgl_iteration_info info;
  while (l->copy == MGL_LOADER_COPY_UNKNOWN) {
    if (mgl_read_iteration(&l->run->protocol, &info) && info.iteration == l->iteration) {
      l->copy = info.run % 2 != 0 ? MGL_LOADER_COPY_FIRST : MGL_LOADER_COPY_SECOND;
    } else if (mgl_loader_gives_up(l)) {
      return false;
    }
  }
  return true;
}

// One lane: until logits may be asked for. False: give up.
static __device__ __forceinline__ bool mgl_loader_await_logits(mgl_loader *l, uint64_t copy_bytes) {
  if (copy_bytes != 0) {
    return mgl_loader_find_copy(l);
  }
  while (l->ordinal >= mgl_loader_word(l, offsetof(mgl_block, activated))) {
    if (mgl_loader_gives_up(l)) {
      return false;
    }
  }
  return true;
}

// This lane's logits of a token: experts lane, lane + 32, ...
static __device__ __forceinline__ void mgl_loader_ask_logits(
    const uint8_t *at, uint32_t logits[MGL_EXPERT_LANE_LOGITS]) {
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    uint32_t expert = i * 32 + threadIdx.x % 32;
    logits[i] = 0xff800000u;  // -infinity
    if (MGL_EXPERTS % 32 == 0 || expert < MGL_EXPERTS) {
      logits[i] = mgl_load_l2_word(at + expert * sizeof(float));
    }
  }
}

// Until all of them are there, which were asked for. Where the run stops they are whatever is
// there; numbers of experts are made of them all the same, and the task is mute. stop_at: the
// address of the block's `stop`.
static __device__ __forceinline__ void mgl_loader_logits(const uint8_t *at, bool carried,
                                                         uint32_t stop_at,
                                                         uint32_t logits[MGL_EXPERT_LANE_LOGITS]) {
  for (;;) {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
      largest = max(largest, logits[i]);
    }
    bool open = carried && largest == MGL_CUDA_OPEN;
    if (!__any_sync(0xffffffffu, open) || mgl_load_shared_word(stop_at) != 0) {
      return;
    }
    mgl_loader_ask_logits(at, logits);
  }
}

// --- the choice ----------------------------------------------------------------------------------

// Numbers in the order of logits, above 0; a NaN is below all others.
static __device__ __forceinline__ uint32_t mgl_expert_order(uint32_t logit) {
  bool nan = (logit & 0x7fffffffu) > 0x7f800000u;
  uint32_t order = (logit & 0x80000000u) != 0 ? ~logit : logit | 0x80000000u;
  return nan ? 1 : order;
}

// A lane's logits in descending order, of equal ones those of lower numbers first; places: which of
// the lane's experts they are of.
struct mgl_expert_row {
  uint32_t order[MGL_EXPERT_LANE_LOGITS], place[MGL_EXPERT_LANE_LOGITS];
};

static __device__ __forceinline__ void mgl_expert_sort(mgl_expert_row *row) {
#pragma unroll
  for (int from = 0; from + 1 < MGL_EXPERT_LANE_LOGITS; from++) {
#pragma unroll
    for (int i = MGL_EXPERT_LANE_LOGITS - 1; i > from; i--) {
      // Neighbours change places only if the later one is larger: equal ones stay as they were.
      const bool swaps = row->order[i] > row->order[i - 1];
      const uint32_t order = row->order[i], place = row->place[i];
      row->order[i] = swaps ? row->order[i - 1] : order;
      row->place[i] = swaps ? row->place[i - 1] : place;
      row->order[i - 1] = swaps ? order : row->order[i - 1];
      row->place[i - 1] = swaps ? place : row->place[i - 1];
    }
  }
}

// The whole warp: of this lane's experts those that are among the S of the token, a bit each, and
// the largest of all logits. What a turn takes is met once a layer by everybody, so each lane has
// its best one in front, and the lowest number is looked for only where several are the best.
static __device__ __forceinline__ uint32_t
mgl_expert_find(const uint32_t logits[MGL_EXPERT_LANE_LOGITS], uint32_t *top) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t chosen = 0;
  mgl_expert_row row;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    row.order[i] = i * 32 + lane < MGL_EXPERTS ? mgl_expert_order(logits[i]) : 0;
    row.place[i] = i;
  }
  mgl_expert_sort(&row);
#pragma unroll 1
  for (uint32_t slot = 0; slot < MGL_EXPERT_SLOTS; slot++) {
    const uint32_t largest = __reduce_max_sync(0xffffffffu, row.order[0]);
    bool is_mine = row.order[0] == largest;
    const uint32_t all = __ballot_sync(0xffffffffu, is_mine);
    if ((all & (all - 1)) != 0) {
      const uint32_t mine = is_mine ? row.place[0] * 32 + lane : 0xffffffffu;
      is_mine = mine == __reduce_min_sync(0xffffffffu, mine);
    }
    *top = slot == 0 ? largest : *top;
    chosen |= is_mine ? 1u << row.place[0] : 0;
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
      const bool last = i + 1 == MGL_EXPERT_LANE_LOGITS;
      row.order[i] = !is_mine ? row.order[i] : last ? 0 : row.order[last ? i : i + 1];
      row.place[i] = !is_mine ? row.place[i] : last ? 0 : row.place[last ? i : i + 1];
    }
  }
  return chosen;
}

// Of this lane's experts: the slots of a pass's rows that they are, and all rows that have them.
struct mgl_expert_hits {
  uint64_t slots[MGL_EXPERT_LANE_LOGITS];
  uint64_t rows[MGL_EXPERT_LANE_LOGITS];
};

// The whole warp: writes the S experts of a row in ascending order. notes: to *hits, too.
static __device__ __forceinline__ void mgl_expert_choose(
    const uint32_t logits[MGL_EXPERT_LANE_LOGITS], uint32_t routes_at, uint32_t at_row, bool notes,
    mgl_expert_hits *hits) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t top = 0;
  const uint32_t chosen = mgl_expert_find(logits, &top);
  float largest = __uint_as_float((top & 0x80000000u) != 0 ? top & 0x7fffffffu : ~top);
  float weights[MGL_EXPERT_LANE_LOGITS];
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    weights[i] = __expf(__uint_as_float(logits[i]) - largest);
    bool counts = (chosen >> i & 1) != 0 || (MGL_EXPERT_SOFTMAX_OF_ALL && !MGL_EXPERT_RENORMALISE);
    sum += counts ? weights[i] : 0.0f;
  }
  sum = mgl_warp_sum(sum);
  uint32_t before = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    bool is_chosen = (chosen >> i & 1) != 0;
    uint32_t all = __ballot_sync(0xffffffffu, is_chosen);
    if (is_chosen) {
      uint32_t slot = before + __popc(all & ((1u << lane) - 1));
      mgl_expert_put(routes_at + slot * MGL_EXPERT_ROUTE_BYTES, i * 32 + lane,
                     __fdividef(weights[i], sum) * MGL_EXPERT_SCALE);
      if (MGL_EXPERTS_BY_HITS && notes) {
        // Where 15 was.
        hits->slots[i] ^= (uint64_t)(15 ^ slot) << at_row % MGL_EXPERT_PASS_ROWS * 4;
        hits->rows[i] |= UINT64_C(1) << at_row;
      }
    }
    before += __popc(all);
  }
}

static __device__ __forceinline__ uint32_t mgl_loader_routes(const mgl_loader *l) {
  return l->block_at + MGL_CUDA_BLOCK_BYTES + MGL_EXPERT_ROUTES_AT;
}

// The whole warp: what the pass has hit, in ascending order.
static __device__ __forceinline__ void mgl_loader_put_hits(const mgl_loader *l, uint32_t pass,
                                                           const mgl_expert_hits *hits) {
  const uint32_t scratch = l->block_at + MGL_CUDA_BLOCK_BYTES, lane = threadIdx.x % 32;
  uint32_t at = scratch + MGL_EXPERT_HITS_AT + pass * (MGL_EXPERT_MOST_HITS * MGL_EXPERT_HIT_BYTES);
  uint32_t count = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    const uint64_t slots = hits->slots[i];
    const uint32_t all = __ballot_sync(0xffffffffu, slots != UINT64_MAX);
    if (slots != UINT64_MAX) {
      const uint32_t place = at + (count + __popc(all & ((1u << lane) - 1))) * MGL_EXPERT_HIT_BYTES;
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(i * 32 + lane),
                   "r"(0), "r"((uint32_t)slots), "r"((uint32_t)(slots >> 32))
                   : "memory");
    }
    count += __popc(all);
  }
  if (lane == 0) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(scratch + MGL_EXPERT_COUNTS_AT +
                                                 pass * (uint32_t)sizeof(uint32_t)),
                 "r"(count)
                 : "memory");
  }
}

// The whole warp: the parts of all rows, experts ascending.
static __device__ __forceinline__ void mgl_loader_put_parts(const mgl_loader *l,
                                                            const mgl_expert_hits *hits) {
  const uint32_t scratch = l->block_at + MGL_CUDA_BLOCK_BYTES, lane = threadIdx.x % 32;
  uint32_t count = 0;
#pragma unroll
  for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
    const uint64_t rows = hits->rows[i];
    const uint32_t parts =
        ((uint32_t)__popcll(rows) + (MGL_EXPERT_PART_ROWS - 1)) / MGL_EXPERT_PART_ROWS;
    uint32_t until = parts;  // of the lanes up to this one
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, until, step);
      until += lane >= step ? other : 0;
    }
    for (uint32_t part = 0; part < parts; part++) {
      const uint32_t place =
          scratch + MGL_EXPERT_PARTS_AT + (count + until - parts + part) * MGL_EXPERT_HIT_BYTES;
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(i * 32 + lane),
                   "r"(part * MGL_EXPERT_PART_ROWS), "r"((uint32_t)rows),
                   "r"((uint32_t)(rows >> 32))
                   : "memory");
    }
    count += __shfl_sync(0xffffffffu, until, 31);
  }
  if (lane == 0) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(scratch + MGL_EXPERT_PARTS_COUNT_AT), "r"(count)
                 : "memory");
  }
}

// The whole warp: the experts of all rows. The next one's logits come while one's are compared. (A
// function of its own, to which nothing is passed by address: what it keeps would otherwise take
// the registers of what the loader keeps. See docs/gpu.md, "Five things that cost days".)
static __device__ __noinline__ void mgl_loader_route_rows(uint32_t block_at, uint32_t rows,
                                                          const uint8_t *at, bool carried,
                                                          bool notes) {
  mgl_loader of = {};
  of.block_at = block_at;
  of.rows = rows;
  of.several = notes;
  const mgl_loader *l = &of;
  const uint32_t stop_at = l->block_at + (uint32_t)offsetof(mgl_block, stop);
  const size_t row_bytes = MGL_EXPERTS * sizeof(float);
  uint32_t logits[MGL_EXPERT_LANE_LOGITS], next[MGL_EXPERT_LANE_LOGITS];
  mgl_expert_hits hits = {};
  if (l->rows > 0) {
    mgl_loader_ask_logits(at, next);
  }
#pragma unroll 1
  for (uint32_t row = 0; row < l->rows; row++) {
    mgl_loader_logits(at + row * row_bytes, carried, stop_at, next);
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
      logits[i] = next[i];
      hits.slots[i] = row % MGL_EXPERT_PASS_ROWS == 0 ? UINT64_MAX : hits.slots[i];
    }
    if (row + 1 < l->rows) {
      mgl_loader_ask_logits(at + (row + 1) * row_bytes, next);
    }
    mgl_expert_choose(logits,
                      mgl_loader_routes(l) + row * (MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES), row,
                      l->several, &hits);
    if (MGL_EXPERTS_BY_HITS && l->several &&
        ((row + 1) % MGL_EXPERT_PASS_ROWS == 0 || row + 1 == l->rows)) {
      mgl_loader_put_hits(l, row / MGL_EXPERT_PASS_ROWS, &hits);
    }
  }
  if (MGL_EXPERTS_BY_HITS && l->several) {
    mgl_loader_put_parts(l, &hits);
  }
}

// Down follows gate and up in the program, and reads the same logits.
static __device__ __forceinline__ uint32_t mgl_loader_key(const mgl_load *load) {
  uint32_t op = load->experts >> 2;
  return (load->experts & 3) == MGL_LOAD_EXPERTS_UP ? op : op - 1;
}

// The whole warp: the experts of all tokens for this task, unless they are there. False: give up.
// (For down they are there, and it needs no trip to the L2 to find that out.)
static __device__ __forceinline__ bool mgl_loader_route(mgl_loader *l, const mgl_load *load) {
  if (l->routed == mgl_loader_key(load)) {
    return true;
  }
  const mgl_cuda_op *op = &l->run->graphs[l->graph].ops[load->experts >> 2];
  const uint8_t *at = (const uint8_t *)op->angles;
  l->routed = mgl_loader_key(load);
  uint32_t may = 1;
  if (threadIdx.x % 32 == 0) {
    may = mgl_loader_await_logits(l, op->copy_bytes) ? 1 : 0;
  }
  if (__shfl_sync(0xffffffffu, may, 0) == 0) {
    return false;
  }
  l->several = mgl_of_hits(op);
  l->rows = op->tokens == 1 ? 1 : __ldcg(&l->run->plans[l->iteration & 1].token_count);
  at += __shfl_sync(0xffffffffu, l->copy, 0) == MGL_LOADER_COPY_SECOND ? op->copy_bytes : 0;
  mgl_loader_route_rows(l->block_at, l->rows, at, op->copy_bytes != 0, l->several);
  __syncwarp();
  return true;
}

// --- pages ---------------------------------------------------------------------------------------

static __device__ __forceinline__ uint32_t mgl_loader_expert(const mgl_loader *l, uint32_t row,
                                                             uint32_t slot) {
  return mgl_load_shared_word(mgl_loader_routes(l) +
                              (row * MGL_EXPERT_SLOTS + slot) * MGL_EXPERT_ROUTE_BYTES);
}

// Row block `block` of an expert's gate and up, or of those of several, each of as many.
static __device__ __forceinline__ bool mgl_load_up(mgl_loader *l, const mgl_load *load,
                                                   uint32_t expert, uint32_t block) {
  uint64_t from = (uint64_t)expert * MGL_EXPERT_UP_BLOCKS + block % MGL_EXPERT_UP_BLOCKS;
  from *= MGL_EXPERT_UP_BYTES;
  for (uint32_t at = 0; at < MGL_EXPERT_UP_BYTES; at += MGL_CUDA_PAGE_BYTES) {
    if (!mgl_load_page(l, load->weights + from + at, MGL_CUDA_PAGE_BYTES)) {
      return false;
    }
  }
  return true;
}

// Row block `block` of down, of all slots one behind the other: a page may have parts of several.
static __device__ __forceinline__ bool mgl_load_down(mgl_loader *l, const mgl_load *load,
                                                     uint32_t row, uint32_t block) {
  uint32_t slot = 0, in_slot = 0;
  for (uint32_t at = 0; at < MGL_EXPERT_SLOTS * MGL_EXPERT_DOWN_BYTES; at += MGL_CUDA_PAGE_BYTES) {
    if (!mgl_loader_room(l)) {
      return false;
    }
    uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
    uint32_t full = mgl_loader_full(l, l->page);
    mgl_page_expect(MGL_CUDA_PAGE_BYTES, full);
    for (uint32_t done = 0; done < MGL_CUDA_PAGE_BYTES;) {
      uint32_t bytes = min(MGL_CUDA_PAGE_BYTES - done, MGL_EXPERT_DOWN_BYTES - in_slot);
      uint64_t from = (uint64_t)mgl_loader_expert(l, row, slot) * MGL_EXPERT_DOWN_BLOCKS + block;
      mgl_page_copy(to + done, load->weights + from * MGL_EXPERT_DOWN_BYTES + in_slot, bytes, full);
      done += bytes;
      in_slot += bytes;
      slot += in_slot == MGL_EXPERT_DOWN_BYTES ? 1 : 0;
      in_slot = in_slot == MGL_EXPERT_DOWN_BYTES ? 0 : in_slot;
    }
    mgl_page_asked(full);
    mgl_ring_next(l, &l->page, &l->parity);
    l->in_flight++;
  }
  return true;
}

// --- pages of codes ------------------------------------------------------------------------------

// As mgl_load_up: an expert's row block is whole panels.
static __device__ __forceinline__ bool mgl_load_coded_up(mgl_loader *l, const mgl_load *load,
                                                         uint32_t expert, uint32_t block) {
  const uint32_t panels = mgl_panels_of(MGL_EXPERT_WIDTH);
  const uint32_t most = mgl_packing_panels((mgl_packing)load->packing);
  uint64_t first = (uint64_t)expert * MGL_EXPERT_UP_BLOCKS + block % MGL_EXPERT_UP_BLOCKS;
  const uint8_t *from = load->weights + first * panels * load->panel_bytes;
  for (uint32_t i = 0; i < panels; i += most) {
    const uint32_t count = min(most, panels - i);
    if (!mgl_load_page(l, from + i * load->panel_bytes, count * load->panel_bytes)) {
      return false;
    }
  }
  return true;
}

// Where the loader is in a row of down, all slots one behind the other.
struct mgl_expert_place {
  uint32_t slot, column;  // in the row of the slot's expert
  const uint8_t *block;   // that expert's row block
};

static __device__ __forceinline__ void mgl_expert_enter(const mgl_loader *l, const mgl_load *load,
                                                        uint32_t row, uint32_t block,
                                                        mgl_expert_place *at) {
  const uint32_t expert = mgl_loader_expert(l, row, at->slot);
  const uint64_t first = (uint64_t)expert * MGL_EXPERT_DOWN_BLOCKS + block;
  at->column = 0;
  at->block = load->weights + first * mgl_panels_of(MGL_EXPERT_FEATURES) * load->panel_bytes;
}

// A panel of that row.
static __device__ __forceinline__ void mgl_load_panel_of_slots(const mgl_loader *l,
                                                               const mgl_load *load, uint32_t row,
                                                               uint32_t block, uint32_t to,
                                                               uint32_t full,
                                                               mgl_expert_place *at) {
  for (uint32_t done = 0; done < MGL_PANEL_K;) {
    const mgl_panel_part part = mgl_panel_part_of((mgl_packing)load->packing, load->panel_bytes,
                                                  done, at->column, MGL_EXPERT_FEATURES);
    mgl_page_copy(to + part.codes_to, at->block + part.codes_from, part.codes_bytes, full);
    mgl_page_copy(to + part.scales_to, at->block + part.scales_from, part.scales_bytes, full);
    done += part.columns;
    at->column += part.columns;
    if (at->column == MGL_EXPERT_FEATURES && ++at->slot < MGL_EXPERT_SLOTS) {
      mgl_expert_enter(l, load, row, block, at);
    }
  }
}

// As mgl_load_down.
static __device__ __forceinline__ bool mgl_load_coded_down(mgl_loader *l, const mgl_load *load,
                                                           uint32_t row, uint32_t block) {
  const uint32_t panels = MGL_EXPERT_SLOTS * MGL_EXPERT_FEATURES / MGL_PANEL_K;
  const uint32_t most = mgl_packing_panels((mgl_packing)load->packing);
  mgl_expert_place at = {};
  mgl_expert_enter(l, load, row, block, &at);
  for (uint32_t i = 0; i < panels; i += most) {
    if (!mgl_loader_room(l)) {
      return false;
    }
    const uint32_t count = min(most, panels - i);
    const uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
    const uint32_t full = mgl_loader_full(l, l->page);
    mgl_page_expect(count * load->panel_bytes, full);
    for (uint32_t j = 0; j < count; j++) {
      mgl_load_panel_of_slots(l, load, row, block, to + j * load->panel_bytes, full, &at);
    }
    mgl_page_asked(full);
    mgl_ring_next(l, &l->page, &l->parity);
    l->in_flight++;
  }
  return true;
}

// -------------------------------------------------------------------------------------------------

static __device__ __forceinline__ bool mgl_is_coded(const mgl_load *load) {
  return MGL_HAS_CODES && load->packing != MGL_PACKING_BF16;
}

static __device__ __forceinline__ bool mgl_load_up_block(mgl_loader *l, const mgl_load *load,
                                                         uint32_t expert, uint32_t block) {
  return mgl_is_coded(load) ? mgl_load_coded_up(l, load, expert, block)
                            : mgl_load_up(l, load, expert, block);
}

// Of one token.
static __device__ __forceinline__ bool mgl_load_expert_block(mgl_loader *l, const mgl_load *load,
                                                             uint32_t row, uint32_t block) {
  if ((load->experts & 3) == MGL_LOAD_EXPERTS_UP) {
    const uint32_t expert = mgl_loader_expert(l, row, block / MGL_EXPERT_UP_BLOCKS);
    return mgl_load_up_block(l, load, expert, block);
  }
  return mgl_is_coded(load) ? mgl_load_coded_down(l, load, row, block)
                            : mgl_load_down(l, load, row, block);
}

// --- pages of hits -------------------------------------------------------------------------------

static __device__ __forceinline__ uint32_t mgl_loader_hits(const mgl_loader *l, uint32_t pass) {
  return mgl_load_shared_word(l->block_at + MGL_CUDA_BLOCK_BYTES + MGL_EXPERT_COUNTS_AT +
                              pass * (uint32_t)sizeof(uint32_t));
}

static __device__ __forceinline__ uint32_t mgl_loader_hit(const mgl_loader *l, uint32_t pass,
                                                          uint32_t hit) {
  return mgl_load_shared_word(l->block_at + MGL_CUDA_BLOCK_BYTES + MGL_EXPERT_HITS_AT +
                              (pass * MGL_EXPERT_MOST_HITS + hit) * MGL_EXPERT_HIT_BYTES);
}

// A row block of an expert's down, in pages of its own.
static __device__ __forceinline__ bool mgl_load_hit_down(mgl_loader *l, const mgl_load *load,
                                                         uint32_t expert, uint32_t block) {
  const uint64_t first = (uint64_t)expert * MGL_EXPERT_DOWN_BLOCKS + block;
  if (!mgl_is_coded(load)) {
    const uint8_t *from = load->weights + first * MGL_EXPERT_DOWN_BYTES;
    for (uint32_t at = 0; at < MGL_EXPERT_DOWN_BYTES; at += MGL_CUDA_PAGE_BYTES) {
      const uint32_t left = MGL_EXPERT_DOWN_BYTES - at;
      if (!mgl_load_page(l, from + at, min((uint32_t)MGL_CUDA_PAGE_BYTES, left))) {
        return false;
      }
    }
    return true;
  }
  const uint32_t panels = mgl_panels_of(MGL_EXPERT_FEATURES);
  const uint8_t *from = load->weights + first * panels * load->panel_bytes;
  for (uint32_t column = 0; column < MGL_EXPERT_FEATURES; column += MGL_PANEL_K) {
    if (!mgl_loader_room(l)) {
      return false;
    }
    const mgl_panel_part part = mgl_panel_part_of((mgl_packing)load->packing, load->panel_bytes, 0,
                                                  column, MGL_EXPERT_FEATURES);
    const uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
    const uint32_t full = mgl_loader_full(l, l->page);
    mgl_page_expect(part.codes_bytes + part.scales_bytes, full);
    mgl_page_copy(to + part.codes_to, from + part.codes_from, part.codes_bytes, full);
    mgl_page_copy(to + part.scales_to, from + part.scales_from, part.scales_bytes, full);
    mgl_page_asked(full);
    mgl_ring_next(l, &l->page, &l->parity);
    l->in_flight++;
  }
  return true;
}

// The pages of gate and up of several rows.
static __device__ __forceinline__ bool mgl_load_parts(mgl_loader *l, const mgl_load *load) {
  const uint32_t scratch = l->block_at + MGL_CUDA_BLOCK_BYTES;
  const uint32_t parts =
      l->rows == 0 ? 0 : mgl_load_shared_word(scratch + MGL_EXPERT_PARTS_COUNT_AT);
  const uint32_t end = mgl_part_share(load->end, parts);
  for (uint32_t at = mgl_part_share(load->begin, parts); at < end; at++) {
    const uint32_t expert = mgl_load_shared_word(scratch + MGL_EXPERT_PARTS_AT +
                                                 at / MGL_EXPERT_UP_BLOCKS * MGL_EXPERT_HIT_BYTES);
    if (!mgl_load_up_block(l, load, expert, at)) {
      return false;
    }
  }
  return true;
}

// And of down.
static __device__ __forceinline__ bool mgl_load_hits(mgl_loader *l, const mgl_load *load) {
  for (uint32_t pass = 0; pass * MGL_EXPERT_PASS_ROWS < l->rows; pass++) {
    const uint32_t hits = mgl_loader_hits(l, pass);
    for (uint32_t block = load->begin; block < load->end; block++) {
      for (uint32_t hit = 0; hit < hits; hit++) {
        if (!mgl_load_hit_down(l, load, mgl_loader_hit(l, pass, hit), block)) {
          return false;
        }
      }
    }
  }
  return true;
}

// Whether tokens share the reading and their task has a body for that (linear/tasks_experts.cuh).
static __device__ __forceinline__ bool mgl_loads_hits(const mgl_loader *l, const mgl_load *load) {
  return MGL_EXPERTS_BY_HITS && l->several &&
         (!mgl_is_coded(load) || MGL_EXPERT_FEATURES % MGL_SHARE_K == 0);
}

// All pages of a task of experts, token after token. False: give up.
static __device__ __forceinline__ bool mgl_load_experts(mgl_loader *l, const mgl_load *load) {
  const bool up = (load->experts & 3) == MGL_LOAD_EXPERTS_UP;
  const bool coded = MGL_HAS_CODES && load->packing != MGL_PACKING_BF16;
  const uint32_t pages =
      (load->end - load->begin) * l->rows *
      (coded ? mgl_coded_pages(load->packing, load->k_padded) : mgl_pages_of_block(load->k_padded));
  l->most = pages < MGL_CUDA_LONG_PAGES ? l->most_short : l->most_long;
  // What gate and up read was there before the logits were.
  l->bound = up ? l->most : l->most_ahead;
  if (mgl_loads_hits(l, load)) {
    return up ? mgl_load_parts(l, load) : mgl_load_hits(l, load);
  }
  for (uint32_t row = 0; row < l->rows; row++) {
    for (uint32_t block = load->begin; block < load->end; block++) {
      if (!mgl_load_expert_block(l, load, row, block)) {
        return false;
      }
    }
  }
  return true;
}

#endif
