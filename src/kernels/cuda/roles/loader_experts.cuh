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
// uses that place meanwhile: that all logits are there means that all that was before has its
// words, and behind the tasks of experts the next one of the block begins when their pages are
// consumed. But a token's logits tell of that token only: the router's task may still read partial
// sums of others, which lie where routes go. So with several tokens, tasks before end first.
//
// A part of role_loader.cuh, which includes it behind what it calls.
#ifndef MGL_KERNELS_CUDA_ROLES_LOADER_EXPERTS_CUH
#define MGL_KERNELS_CUDA_ROLES_LOADER_EXPERTS_CUH

#include "kernels/cuda/common/expert_choice.cuh"

enum {
  MGL_EXPERT_UP_BLOCKS = MGL_EXPERT_FEATURES / MGL_CUDA_HALF_ROWS,
  MGL_EXPERT_DOWN_BLOCKS = MGL_EXPERT_WIDTH / MGL_CUDA_BLOCK_ROWS,
  MGL_EXPERT_UP_BYTES = MGL_EXPERT_WIDTH * MGL_CUDA_BLOCK_ROWS * 2,  // of a row block
  MGL_EXPERT_DOWN_BYTES = MGL_EXPERT_FEATURES * MGL_CUDA_BLOCK_ROWS * 2,
};

// --- when logits are there -----------------------------------------------------------------------

// One lane: which copy of activations this iteration writes, which its run of the graph says, once
// it is live. False: give up.
MGL_DEVICE bool mgl_loader_find_copy(mgl_loader *l) {
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
MGL_DEVICE bool mgl_loader_await_logits(mgl_loader *l, uint64_t copy_bytes) {
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
MGL_DEVICE void mgl_loader_ask_logits(const uint8_t *at, uint32_t logits[MGL_EXPERT_LANE_LOGITS]) {
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
MGL_DEVICE void mgl_loader_logits(const uint8_t *at, bool carried, uint32_t stop_at,
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

// --- choosing ------------------------------------------------------------------------------------

MGL_DEVICE uint32_t mgl_loader_routes(const mgl_loader *l) {
  return l->block_at + MGL_CUDA_BLOCK_BYTES + MGL_EXPERT_ROUTES_AT;
}

// The whole warp: until the tasks before have left scratch. False: give up.
MGL_DEVICE bool mgl_loader_await_scratch(const mgl_loader *l) {
  bool goes_on = true;
  while (goes_on && mgl_loader_word(l, offsetof(mgl_block, ended)) < l->ordinal) {
    goes_on = !mgl_loader_gives_up(l);
  }
  return __all_sync(0xffffffffu, goes_on);
}

// The whole warp: the experts of all rows. The next one's logits come while one's are compared.
// False: give up.
MGL_DEVICE bool mgl_loader_choose(const mgl_loader *l, const uint8_t *at, bool carried) {
  const uint32_t stop_at = l->block_at + (uint32_t)offsetof(mgl_block, stop);
  uint32_t routes_at = mgl_loader_routes(l);
  uint32_t logits[MGL_EXPERT_LANE_LOGITS], next[MGL_EXPERT_LANE_LOGITS];
  mgl_loader_ask_logits(at, next);
#pragma unroll 1
  for (uint32_t left = l->rows; left > 0; left--) {
    mgl_loader_logits(at, carried, stop_at, next);
#pragma unroll
    for (uint32_t i = 0; i < MGL_EXPERT_LANE_LOGITS; i++) {
      logits[i] = next[i];
    }
    if (left > 1) {
      at += MGL_EXPERTS * sizeof(float);
      mgl_loader_ask_logits(at, next);
    }
    if (left > 1 && left == l->rows && !mgl_loader_await_scratch(l)) {
      return false;
    }
    mgl_expert_choose(logits, routes_at);
    routes_at += MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES;
  }
  return true;
}

// --- hits and parts ------------------------------------------------------------------------------

// Who has which expert is found in a table in scratch, of an mgl_expert_mark's bytes each: the rows
// that have it, a bit each, and the slots of a pass's rows that it is, four bits each; 15: none. It
// lies where down's partial sums do, which nobody makes before these routes are there.
enum {
  MGL_EXPERT_MARKS_AT = MGL_EXPERT_SUMS_AT,
  MGL_EXPERT_MARK_BYTES = 16,
  MGL_EXPERT_MARK_SLOTS = 8,  // where in a mark
};

static_assert(!MGL_EXPERTS_BY_HITS || MGL_EXPERT_MARKS_AT + MGL_EXPERTS * MGL_EXPERT_MARK_BYTES <=
                                          MGL_CUDA_SCRATCH_BYTES,
              "room for marks");

MGL_DEVICE void mgl_store_words(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Bits of words that differ: each is set, or cleared, by one lane only.
MGL_DEVICE void mgl_flip_bits(uint32_t at, uint32_t bits) {
  asm volatile("red.shared.xor.b32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
}

// The whole warp: marks what rows [begin, end), which are of one pass, have.
MGL_DEVICE void mgl_expert_mark_rows(uint32_t scratch, uint32_t begin, uint32_t end) {
  const uint32_t lane = threadIdx.x % 32;
  __syncwarp();  // other lanes' marks are cleared, and routes are there
#pragma unroll 1
  for (uint32_t i = begin * MGL_EXPERT_SLOTS + lane; i < end * MGL_EXPERT_SLOTS; i += 32) {
    const uint32_t row = i / MGL_EXPERT_SLOTS, in_pass = row - begin;
    const uint32_t expert =
        mgl_load_shared_word(scratch + MGL_EXPERT_ROUTES_AT + i * MGL_EXPERT_ROUTE_BYTES);
    const uint32_t mark = scratch + MGL_EXPERT_MARKS_AT + expert * MGL_EXPERT_MARK_BYTES;
    mgl_flip_bits(mark + row / 32 * 4, 1u << row % 32);
    mgl_flip_bits(mark + MGL_EXPERT_MARK_SLOTS + in_pass / 8 * 4, (15 ^ i % MGL_EXPERT_SLOTS)
                                                                      << in_pass % 8 * 4);
  }
  __syncwarp();
}

// The whole warp: what a pass has hit, in ascending order; clears the slots of all marks.
MGL_DEVICE void mgl_expert_put_hits(uint32_t scratch, uint32_t pass) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t at =
      scratch + MGL_EXPERT_HITS_AT + pass * (MGL_EXPERT_MOST_HITS * MGL_EXPERT_HIT_BYTES);
  uint32_t count = 0;
#pragma unroll 1
  for (uint32_t expert = lane; expert < MGL_EXPERT_LANE_LOGITS * 32; expert += 32) {
    const uint32_t mark = scratch + MGL_EXPERT_MARKS_AT + expert * MGL_EXPERT_MARK_BYTES;
    uint32_t low = UINT32_MAX, high = UINT32_MAX;
    if (expert < MGL_EXPERTS) {
      low = mgl_load_shared_word(mark + MGL_EXPERT_MARK_SLOTS);
      high = mgl_load_shared_word(mark + MGL_EXPERT_MARK_SLOTS + 4);
      mgl_store_shared_word(mark + MGL_EXPERT_MARK_SLOTS, UINT32_MAX);
      mgl_store_shared_word(mark + MGL_EXPERT_MARK_SLOTS + 4, UINT32_MAX);
    }
    const bool hit = (low & high) != UINT32_MAX;
    const uint32_t all = __ballot_sync(0xffffffffu, hit);
    if (hit) {
      mgl_store_words(at + (count + __popc(all & ((1u << lane) - 1))) * MGL_EXPERT_HIT_BYTES,
                      expert, 0, low, high);
    }
    count += __popc(all);
  }
  if (lane == 0) {
    mgl_store_shared_word(scratch + MGL_EXPERT_COUNTS_AT + pass * (uint32_t)sizeof(uint32_t),
                          count);
  }
}

// The whole warp: the parts of all rows, experts ascending.
MGL_DEVICE void mgl_expert_put_parts(uint32_t scratch) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t count = 0;
#pragma unroll 1
  for (uint32_t expert = lane; expert < MGL_EXPERT_LANE_LOGITS * 32; expert += 32) {
    const uint32_t mark = scratch + MGL_EXPERT_MARKS_AT + expert * MGL_EXPERT_MARK_BYTES;
    const uint32_t low = expert < MGL_EXPERTS ? mgl_load_shared_word(mark) : 0;
    const uint32_t high = expert < MGL_EXPERTS ? mgl_load_shared_word(mark + 4) : 0;
    const uint32_t parts =
        (__popc(low) + __popc(high) + (MGL_EXPERT_PART_ROWS - 1)) / MGL_EXPERT_PART_ROWS;
    uint32_t until = parts;  // of the lanes up to this one
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, until, step);
      until += lane >= step ? other : 0;
    }
    for (uint32_t part = 0; part < parts; part++) {
      mgl_store_words(
          scratch + MGL_EXPERT_PARTS_AT + (count + until - parts + part) * MGL_EXPERT_HIT_BYTES,
          expert, part * MGL_EXPERT_PART_ROWS, low, high);
    }
    count += __shfl_sync(0xffffffffu, until, 31);
  }
  if (lane == 0) {
    mgl_store_shared_word(scratch + MGL_EXPERT_PARTS_COUNT_AT, count);
  }
}

// The whole warp: hits and parts of the routes of all rows. (A function of its own, which keeps
// little: what the loader keeps must stay in registers beside what is kept here. See docs/gpu.md,
// "Five things that cost days".)
static __device__ __noinline__ void mgl_expert_share(uint32_t scratch, uint32_t rows) {
  for (uint32_t expert = threadIdx.x % 32; expert < MGL_EXPERTS; expert += 32) {
    mgl_store_words(scratch + MGL_EXPERT_MARKS_AT + expert * MGL_EXPERT_MARK_BYTES, 0, 0,
                    UINT32_MAX, UINT32_MAX);
  }
#pragma unroll 1
  for (uint32_t pass = 0; pass * MGL_EXPERT_PASS_ROWS < rows; pass++) {
    const uint32_t begin = pass * MGL_EXPERT_PASS_ROWS;
    mgl_expert_mark_rows(scratch, begin, min(begin + MGL_EXPERT_PASS_ROWS, rows));
    mgl_expert_put_hits(scratch, pass);
  }
  mgl_expert_put_parts(scratch);
}

// Down follows gate and up in the program, and reads the same logits.
MGL_DEVICE uint32_t mgl_loader_key(uint32_t experts) {
  uint32_t op = experts >> 2;
  return (experts & 3) == MGL_LOAD_EXPERTS_UP ? op : op - 1;
}

// The whole warp: the experts of all tokens for a task (mgl_load.experts), unless they are there.
// False: give up. (For down they are there, and it needs no trip to the L2 to find that out.)
MGL_DEVICE bool mgl_loader_route(mgl_loader *l, uint32_t experts) {
  if (l->routed == mgl_loader_key(experts)) {
    return true;
  }
  const mgl_cuda_op *op = &l->run->graphs[l->graph].ops[experts >> 2];
  const uint8_t *at = (const uint8_t *)op->angles;
  l->routed = mgl_loader_key(experts);
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
  if (!mgl_loader_choose(l, at, op->copy_bytes != 0)) {
    return false;
  }
  if (MGL_EXPERTS_BY_HITS && l->several) {
    mgl_expert_share(l->block_at + MGL_CUDA_BLOCK_BYTES, l->rows);
  }
  __syncwarp();
  return true;
}

// --- pages ---------------------------------------------------------------------------------------

// A line of experts whose weights follow each other: of a row's slots, of parts or of hits. A table
// in scratch has their numbers.
struct mgl_expert_line {
  uint32_t at, step;  // the first one's number, and from one to the next
  uint32_t count;
};

MGL_DEVICE uint32_t mgl_line_expert(const mgl_expert_line *line, uint32_t i) {
  return mgl_load_shared_word(line->at + i * line->step);
}

MGL_DEVICE mgl_expert_line mgl_line_of_row(const mgl_loader *l, uint32_t row) {
  return {mgl_loader_routes(l) + row * (MGL_EXPERT_SLOTS * MGL_EXPERT_ROUTE_BYTES),
          MGL_EXPERT_ROUTE_BYTES, MGL_EXPERT_SLOTS};
}

MGL_DEVICE mgl_expert_line mgl_line_of_parts(const mgl_loader *l) {
  const uint32_t scratch = l->block_at + MGL_CUDA_BLOCK_BYTES;
  return {scratch + MGL_EXPERT_PARTS_AT, MGL_EXPERT_HIT_BYTES,
          l->rows == 0 ? 0 : mgl_load_shared_word(scratch + MGL_EXPERT_PARTS_COUNT_AT)};
}

MGL_DEVICE mgl_expert_line mgl_line_of_pass(const mgl_loader *l, uint32_t pass) {
  const uint32_t scratch = l->block_at + MGL_CUDA_BLOCK_BYTES;
  return {scratch + MGL_EXPERT_HITS_AT + pass * (MGL_EXPERT_MOST_HITS * MGL_EXPERT_HIT_BYTES),
          MGL_EXPERT_HIT_BYTES,
          mgl_load_shared_word(scratch + MGL_EXPERT_COUNTS_AT + pass * (uint32_t)sizeof(uint32_t))};
}

// Row blocks [begin, end) of gate and up of a line.
MGL_DEVICE bool mgl_load_up(mgl_loader *l, const mgl_load *load, const mgl_expert_line *line,
                            uint32_t begin, uint32_t end) {
#pragma unroll 1
  for (uint32_t block = begin; block < end; block++) {
    uint64_t from =
        (uint64_t)mgl_line_expert(line, block / MGL_EXPERT_UP_BLOCKS) * MGL_EXPERT_UP_BLOCKS +
        block % MGL_EXPERT_UP_BLOCKS;
    from *= MGL_EXPERT_UP_BYTES;
#pragma unroll 1
    for (uint32_t at = 0; at < MGL_EXPERT_UP_BYTES; at += MGL_CUDA_PAGE_BYTES) {
      if (!mgl_load_page(l, load->weights + from + at, MGL_CUDA_PAGE_BYTES)) {
        return false;
      }
    }
  }
  return true;
}

// Row block `block` of down, of all of a line. joined: an expert's row begins where the one before
// ends, so a page may have parts of several; else with a page of its own.
MGL_DEVICE bool mgl_load_down(mgl_loader *l, const mgl_load *load, const mgl_expert_line *line,
                              bool joined, uint32_t block) {
  uint32_t i = 0, in_row = 0;
#pragma unroll 1
  while (i < line->count) {
    if (!mgl_loader_room(l)) {
      return false;
    }
    const uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
    const uint32_t full = mgl_loader_full(l, l->page);
    const uint32_t page_bytes =
        joined ? MGL_CUDA_PAGE_BYTES
               : min((uint32_t)MGL_CUDA_PAGE_BYTES, MGL_EXPERT_DOWN_BYTES - in_row);
    mgl_page_expect(page_bytes, full);
#pragma unroll 1
    for (uint32_t done = 0; done < page_bytes;) {
      const uint32_t bytes = min(page_bytes - done, MGL_EXPERT_DOWN_BYTES - in_row);
      const uint64_t from = (uint64_t)mgl_line_expert(line, i) * MGL_EXPERT_DOWN_BLOCKS + block;
      mgl_page_copy(to + done, load->weights + from * MGL_EXPERT_DOWN_BYTES + in_row, bytes, full);
      done += bytes;
      in_row += bytes;
      i += in_row == MGL_EXPERT_DOWN_BYTES ? 1 : 0;
      in_row = in_row == MGL_EXPERT_DOWN_BYTES ? 0 : in_row;
    }
    mgl_page_asked(full);
    mgl_load_ends(l);
  }
  return true;
}

// --- pages of codes ------------------------------------------------------------------------------

// Models without E2M1 have no code for its parts.
MGL_DEVICE mgl_packing mgl_part_packing(const mgl_load *load) {
  __builtin_assume(MGL_HAS_MX4 != 0 || load->packing != MGL_PACKING_MX4);
  return (mgl_packing)load->packing;
}

MGL_DEVICE bool mgl_is_mx4(const mgl_load *load) {
  return MGL_HAS_MX4 && load->packing == MGL_PACKING_MX4;
}

// As mgl_load_up: an expert's row block is whole panels.
MGL_DEVICE bool mgl_load_coded_up(mgl_loader *l, const mgl_load *load, const mgl_expert_line *line,
                                  uint32_t begin, uint32_t end) {
  const uint32_t panels = mgl_panels_of(MGL_EXPERT_WIDTH);
  const uint32_t most = mgl_packing_panels((mgl_packing)load->packing);
#pragma unroll 1
  for (uint32_t block = begin; block < end; block++) {
    const uint64_t first =
        (uint64_t)mgl_line_expert(line, block / MGL_EXPERT_UP_BLOCKS) * MGL_EXPERT_UP_BLOCKS +
        block % MGL_EXPERT_UP_BLOCKS;
    const uint8_t *from = load->weights + first * panels * load->panel_bytes;
    for (uint32_t i = 0; i < panels; i += most) {
      const uint32_t count = min(most, panels - i);
      uint32_t bytes = count * load->panel_bytes;
      if (MGL_EXPERT_WIDTH % MGL_PANEL_K != 0 &&
          mgl_is_mx4(load)) {  // nothing behind the row's end
        bytes = min(bytes, mgl_mx4_bytes(MGL_EXPERT_WIDTH) - i * load->panel_bytes);
      }
      if (!mgl_load_page(l, from + i * load->panel_bytes, bytes)) {
        return false;
      }
    }
  }
  return true;
}

// As mgl_load_down, joined, of E2M1, whose row blocks are bytes in the order of columns, as bf16's
// are. Behind the end of the last slot's row the page has whatever was there.
MGL_DEVICE bool mgl_load_mx4_down(mgl_loader *l, const mgl_load *load, const mgl_expert_line *line,
                                  uint32_t block) {
  const uint32_t row_bytes = mgl_mx4_bytes(MGL_EXPERT_FEATURES);
  const uint32_t block_bytes = mgl_panels_of(MGL_EXPERT_FEATURES) * load->panel_bytes;
  uint32_t i = 0, in_row = 0;
#pragma unroll 1
  for (uint32_t left = MGL_EXPERT_SLOTS * row_bytes; left > 0;) {
    if (!mgl_loader_room(l)) {
      return false;
    }
    const uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
    const uint32_t full = mgl_loader_full(l, l->page);
    const uint32_t page_bytes = min(2 * load->panel_bytes, left);
    mgl_page_expect(page_bytes, full);
#pragma unroll 1
    for (uint32_t done = 0; done < page_bytes;) {
      const uint32_t bytes = min(page_bytes - done, row_bytes - in_row);
      const uint64_t from = (uint64_t)mgl_line_expert(line, i) * MGL_EXPERT_DOWN_BLOCKS + block;
      mgl_page_copy(to + done, load->weights + from * block_bytes + in_row, bytes, full);
      done += bytes;
      in_row += bytes;
      i += in_row == row_bytes ? 1 : 0;
      in_row = in_row == row_bytes ? 0 : in_row;
    }
    mgl_page_asked(full);
    mgl_load_ends(l);
    left -= page_bytes;
  }
  return true;
}

// Where the loader is in a row of down, all slots one behind the other.
struct mgl_expert_place {
  uint32_t slot, column;  // in the row of the slot's expert
  const uint8_t *block;   // that expert's row block
};

MGL_DEVICE void mgl_expert_enter(const mgl_load *load, const mgl_expert_line *line, uint32_t block,
                                 mgl_expert_place *at) {
  const uint32_t expert = mgl_line_expert(line, at->slot);
  const uint64_t first = (uint64_t)expert * MGL_EXPERT_DOWN_BLOCKS + block;
  at->column = 0;
  at->block = load->weights + first * mgl_panels_of(MGL_EXPERT_FEATURES) * load->panel_bytes;
}

// A panel of that row.
MGL_DEVICE void mgl_load_panel_of_slots(const mgl_load *load, const mgl_expert_line *line,
                                        uint32_t block, uint32_t to, uint32_t full,
                                        mgl_expert_place *at) {
  for (uint32_t done = 0; done < MGL_PANEL_K;) {
    const mgl_panel_part part = mgl_panel_part_of(mgl_part_packing(load), load->panel_bytes, done,
                                                  at->column, MGL_EXPERT_FEATURES);
    mgl_page_copy(to + part.codes_to, at->block + part.codes_from, part.codes_bytes, full);
    mgl_page_copy(to + part.scales_to, at->block + part.scales_from, part.scales_bytes, full);
    done += part.columns;
    at->column += part.columns;
    if (at->column == MGL_EXPERT_FEATURES) {
      const bool more = ++at->slot < MGL_EXPERT_SLOTS;
      if (MGL_EXPERTS_CUT && !more) {  // the last panel is filled up with what the slot begins with
        at->slot = MGL_EXPERT_SLOTS - 1;
      }
      if (MGL_EXPERTS_CUT || more) {
        mgl_expert_enter(load, line, block, at);
      }
    }
  }
}

// As mgl_load_down, joined.
MGL_DEVICE bool mgl_load_coded_down(mgl_loader *l, const mgl_load *load,
                                    const mgl_expert_line *line, uint32_t block) {
  const uint32_t panels = mgl_panels_of(MGL_EXPERT_SLOTS * MGL_EXPERT_FEATURES);
  const uint32_t most = mgl_packing_panels((mgl_packing)load->packing);
  mgl_expert_place at = {};
  mgl_expert_enter(load, line, block, &at);
  for (uint32_t i = 0; i < panels; i += most) {
    if (!mgl_loader_room(l)) {
      return false;
    }
    const uint32_t count = min(most, panels - i);
    const uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
    const uint32_t full = mgl_loader_full(l, l->page);
    mgl_page_expect(count * load->panel_bytes, full);
    for (uint32_t j = 0; j < count; j++) {
      mgl_load_panel_of_slots(load, line, block, to + j * load->panel_bytes, full, &at);
    }
    mgl_page_asked(full);
    mgl_load_ends(l);
  }
  return true;
}

// As mgl_load_down, else.
MGL_DEVICE bool mgl_load_coded_hits(mgl_loader *l, const mgl_load *load,
                                    const mgl_expert_line *line, uint32_t block) {
  const uint32_t panels = mgl_panels_of(MGL_EXPERT_FEATURES);
#pragma unroll 1
  for (uint32_t i = 0; i < line->count; i++) {
    const uint64_t first = (uint64_t)mgl_line_expert(line, i) * MGL_EXPERT_DOWN_BLOCKS + block;
    const uint8_t *from = load->weights + first * panels * load->panel_bytes;
    for (uint32_t column = 0; column < MGL_EXPERT_FEATURES; column += MGL_PANEL_K) {
      if (!mgl_loader_room(l)) {
        return false;
      }
      const mgl_panel_part part = mgl_panel_part_of(mgl_part_packing(load), load->panel_bytes, 0,
                                                    column, MGL_EXPERT_FEATURES);
      const uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
      const uint32_t full = mgl_loader_full(l, l->page);
      mgl_page_expect(part.codes_bytes + part.scales_bytes, full);
      mgl_page_copy(to + part.codes_to, from + part.codes_from, part.codes_bytes, full);
      if (!mgl_is_mx4(load)) {
        mgl_page_copy(to + part.scales_to, from + part.scales_from, part.scales_bytes, full);
      }
      mgl_page_asked(full);
      mgl_load_ends(l);
    }
  }
  return true;
}

// --- a task --------------------------------------------------------------------------------------

MGL_DEVICE bool mgl_is_coded(const mgl_load *load) {
  return MGL_HAS_CODES && load->packing != MGL_PACKING_BF16;
}

// Whether tokens share the reading and their task has a body for that (linear/tasks_experts.cuh).
MGL_DEVICE bool mgl_loads_hits(const mgl_loader *l, const mgl_load *load) {
  return MGL_EXPERTS_BY_HITS && l->several &&
         (!mgl_is_coded(load) || MGL_EXPERT_FEATURES % MGL_SHARE_K == 0);
}

MGL_DEVICE bool mgl_load_ups(mgl_loader *l, const mgl_load *load) {
  const bool hits = mgl_loads_hits(l, load);
  const uint32_t lines = hits ? 1 : l->rows;
#pragma unroll 1
  for (uint32_t row = 0; row < lines; row++) {
    const mgl_expert_line line = hits ? mgl_line_of_parts(l) : mgl_line_of_row(l, row);
    const uint32_t begin = hits ? mgl_part_share(load->begin, line.count) : load->begin;
    const uint32_t end = hits ? mgl_part_share(load->end, line.count) : load->end;
    if (!(mgl_is_coded(load) ? mgl_load_coded_up(l, load, &line, begin, end)
                             : mgl_load_up(l, load, &line, begin, end))) {
      return false;
    }
  }
  return true;
}

MGL_DEVICE bool mgl_load_downs(mgl_loader *l, const mgl_load *load) {
  const bool hits = mgl_loads_hits(l, load);
  const uint32_t lines =
      hits ? (l->rows + (MGL_EXPERT_PASS_ROWS - 1)) / MGL_EXPERT_PASS_ROWS : l->rows;
#pragma unroll 1
  for (uint32_t row = 0; row < lines; row++) {
    const mgl_expert_line line = hits ? mgl_line_of_pass(l, row) : mgl_line_of_row(l, row);
#pragma unroll 1
    for (uint32_t block = load->begin; block < load->end; block++) {
      if (!(!mgl_is_coded(load) ? mgl_load_down(l, load, &line, !hits, block)
            : hits              ? mgl_load_coded_hits(l, load, &line, block)
            : mgl_is_mx4(load)  ? mgl_load_mx4_down(l, load, &line, block)
                                : mgl_load_coded_down(l, load, &line, block))) {
        return false;
      }
    }
  }
  return true;
}

// All pages of a task of experts. False: give up.
MGL_DEVICE bool mgl_load_experts(mgl_loader *l, const mgl_load *load) {
  const bool up = (load->experts & 3) == MGL_LOAD_EXPERTS_UP;
  const uint32_t pages = (load->end - load->begin) * l->rows *
                         (mgl_is_coded(load) ? mgl_coded_pages(load->packing, load->k_padded)
                                             : mgl_pages_of_block(load->k_padded));
  l->most = pages < MGL_CUDA_LONG_PAGES ? l->most_short : l->most_long;
  // What gate and up read was there before the logits were. One token's pages of down follow theirs
  // without a pause (docs/log/255); of several tokens that was not measured.
  l->bound = up || l->rows == 1 ? l->most : mgl_loader_bound(l);
  return up ? mgl_load_ups(l, load) : mgl_load_downs(l, load);
}

#endif
