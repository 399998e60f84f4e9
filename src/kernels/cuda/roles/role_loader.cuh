// The loader warp: runs ahead through the worker's AOT list and streams packed weights into smem
// pages. Weights do not depend on other tasks, so it does not wait for events. Where there are JIT
// tasks with weights, the controller tells it of each task when it hands it over, one ahead.
//
// Pages form a ring, a shorter one in graphs of several tokens (twin/page_ring.h). What bounds it
// is not only the room in the ring: with all of a GPU's blocks asking for a dozen pages each, every
// flag and activation waits behind 26 MB of requests. So few pages are on their way at a time: the
// graph's in_flight for a task that has inputs, and in_flight_ahead for one that waits for them
// (worth 8 to 13% of a step).
//
// One lane asks for all that a multiprocessor reads, a page every 450 ns on an H200, and what it
// does for a page is short (docs/log/182): addresses in shared memory are numbers that it keeps,
// since from a pointer the compiler makes them anew each time, and in the steady state it looks at
// two mbarriers and at nothing else.
//
// It goes on into the next iteration as soon as that is announced. When the run stops it still
// delivers the pages of all tasks that were let go, and leaves with no copy outstanding.
#ifndef MGL_KERNELS_CUDA_ROLES_ROLE_LOADER_CUH
#define MGL_KERNELS_CUDA_ROLES_ROLE_LOADER_CUH

#include "kernels/cuda/common/experts.cuh"
#include "kernels/cuda/common/page_stream.cuh"
#include "kernels/cuda/common/trace.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "twin/page_ring.h"

// An mgl_load is what the loader knows of one task; lane i of the warp holds that of the i-th
// fetched.
struct mgl_load {
  const uint8_t *weights;  // NULL: nothing to stream
  uint32_t task;
  uint32_t begin, end;  // row blocks
  uint32_t k_padded;
  uint32_t batch_blocks;  // row blocks of a batch
  uint32_t passes;
  uint32_t group_pages;
  uint32_t packing, panel_bytes;
  // With MGL_HAS_EXPERTS: mgl_load_experts_kind, and above two bits the op's index.
  uint32_t experts;
};

enum mgl_loader_copy { MGL_LOADER_COPY_FIRST, MGL_LOADER_COPY_SECOND, MGL_LOADER_COPY_UNKNOWN };

typedef enum mgl_load_experts_kind {
  MGL_LOAD_DENSE,
  MGL_LOAD_EXPERTS_UP,
  MGL_LOAD_EXPERTS_DOWN,
} mgl_load_experts_kind;

struct mgl_loader {
  mgl_cuda_run *run;
  uint32_t block_at;               // addresses in shared memory: of the block,
  uint32_t pages_at;               // and of page 0 of the ring
  uint32_t page_count;             // of the ring, now
  uint32_t all_pages, ring_pages;  // run's, and of the ring for the present task
  uint32_t asleep;                 // mgl_page_ring_resize's
  uint32_t most_short, most_long;  // of the graph: of tasks with few pages, and with many
  uint32_t most_ahead;             // of those without inputs; 0: nothing is asked for ahead
  uint32_t most;                   // of the task once it has inputs
  uint32_t bound;                  // what holds now: `most`, or most_ahead before that
  uint32_t page, parity;           // of the ring: the next one to fill, and its phase
  uint32_t landed, landed_parity;  // the oldest one that was on its way when last looked at
  uint32_t in_flight;              // pages that were not seen to have landed
  uint32_t ordinal;                // of the task among this worker's, all iterations
  uint64_t iteration;
  uint32_t graph;  // of that iteration
  // With MGL_HAS_EXPERTS (loader_experts.cuh), of this iteration:
  uint32_t copy;      // mgl_loader_copy of activations
  uint32_t routed;    // mgl_loader_key of the ops that the routes in scratch are for; 0: none
  uint32_t rows;      // tokens that they are of
  bool several;       // of a graph of several
  mgl_tracer traced;  // lane 0's
};

// Both 0 and 1 are phases that a page may be in; a page that was never filled is free.
MGL_DEVICE void mgl_ring_next(const mgl_loader *l, uint32_t *page, uint32_t *parity) {
  if (++*page == l->page_count) {
    *page = 0;
    *parity ^= 1;
  }
}

// Reads a word of the block that other warps write.
MGL_DEVICE uint32_t mgl_loader_word(const mgl_loader *l, size_t offset) {
  return mgl_load_shared_word(l->block_at + (uint32_t)offset);
}

// Addresses of a page's mbarriers.
MGL_DEVICE uint32_t mgl_loader_full(const mgl_loader *l, uint32_t page) {
  return l->block_at + (uint32_t)offsetof(mgl_block, page_full) + page * (uint32_t)sizeof(uint64_t);
}

MGL_DEVICE uint32_t mgl_loader_free(const mgl_loader *l, uint32_t page) {
  return l->block_at + (uint32_t)offsetof(mgl_block, page_free) + page * (uint32_t)sizeof(uint64_t);
}

// True if the loader should give up: the run stopped, and the task will never run.
MGL_DEVICE bool mgl_loader_gives_up(const mgl_loader *l) {
  return mgl_loader_word(l, offsetof(mgl_block, stop)) != 0 &&
         l->ordinal >= mgl_loader_word(l, offsetof(mgl_block, activated));
}

MGL_DEVICE void mgl_loader_saw_landing(mgl_loader *l) {
  l->in_flight--;
  mgl_ring_next(l, &l->landed, &l->landed_parity);
}

MGL_DEVICE void mgl_loader_look(mgl_loader *l) {
  while (l->in_flight > 0 &&
         mgl_mbarrier_test_at(mgl_loader_full(l, l->landed), l->landed_parity)) {
    mgl_loader_saw_landing(l);
  }
}

#if MGL_TARGET_COPIES

enum { MGL_LOADER_LANES = 1 };

// Before the copies into a page: so many bytes will come.
MGL_DEVICE void mgl_page_expect(uint32_t bytes, uint32_t full) {
  mgl_mbarrier_expect_at(full, bytes);
}

// Behind them.
MGL_DEVICE void mgl_page_asked(uint32_t) {}

// One bulk copy. The hint: these bytes are read once an iteration, so they should not push out what
// is read again (L2::evict_first, as createpolicy encodes it for all of the bytes).
MGL_DEVICE void mgl_page_copy(uint32_t page_at, const uint8_t *from, uint32_t bytes,
                              uint32_t full) {
  mgl_bulk_copy_by(0x12f0000000000000ull, page_at, from, bytes, full);
}

#else

enum { MGL_LOADER_LANES = 32 };

// `count` times 16 bytes a lane; with the hint of the bulk copy.
template <int count>
MGL_DEVICE void mgl_lane_copies(uint32_t to, const uint8_t *from) {
#pragma unroll
  for (int i = 0; i < count; i++) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + i * 512),
                 "l"(from + i * 512), "l"(0x12f0000000000000ull)
                 : "memory");
  }
}

MGL_DEVICE void mgl_page_expect(uint32_t, uint32_t) {}

MGL_DEVICE void mgl_page_asked(uint32_t full) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
}

// The whole warp copies. Copies follow each other without anything between them: one warp has to
// ask for all that a multiprocessor reads, a copy every 20 ns.
MGL_DEVICE void mgl_page_copy(uint32_t page_at, const uint8_t *from, uint32_t bytes, uint32_t) {
  uint32_t to = page_at + threadIdx.x % 32 * 16;
  from += threadIdx.x % 32 * 16;
  if (bytes == MGL_CUDA_PAGE_BYTES) {
    mgl_lane_copies<MGL_CUDA_PAGE_BYTES / 512>(to, from);
  } else {
#pragma unroll 1
    for (uint32_t at = 0; at < bytes; at += 512) {
      if (at + threadIdx.x % 32 * 16 < bytes) {  // scales are any multiple of 64 bytes
        mgl_lane_copies<1>(to + at, from + at);
      }
    }
  }
}

#endif

MGL_DEVICE void mgl_init_pages(mgl_block *block, uint32_t pages) {
  for (uint32_t i = 0; i < pages; i++) {
    mgl_mbarrier_init(&block->page_full[i], MGL_LOADER_LANES);
    mgl_mbarrier_init(&block->page_free[i], MGL_CUDA_CONSUMER_WARPS);
  }
}

MGL_DEVICE void mgl_page_load(uint32_t page_at, const uint8_t *from, uint32_t bytes,
                              uint32_t full) {
  mgl_page_expect(bytes, full);
  mgl_page_copy(page_at, from, bytes, full);
  mgl_page_asked(full);
}

// Gives all lanes that load what the first of them has found, so that they stay together.
MGL_DEVICE bool mgl_loader_told(bool found) {
  return MGL_LOADER_LANES == 1 ? found : __shfl_sync(0xffffffffu, found, 0) != 0;
}

// True for the lane that looks at mbarriers, where several load.
MGL_DEVICE bool mgl_loader_looks() {
  return MGL_LOADER_LANES == 1 || threadIdx.x % 32 == 0;
}

// Waits until few enough pages are on their way. False: give up. One lane.
MGL_DEVICE bool mgl_loader_await_landing(mgl_loader *l) {
  while (l->in_flight >= l->bound) {
    if (l->bound == l->most) {  // nothing but a landing changes this, and that is sure to come
      mgl_mbarrier_wait_at(mgl_loader_full(l, l->landed), l->landed_parity);
      mgl_loader_saw_landing(l);
      continue;
    }
    if (l->ordinal < mgl_loader_word(l, offsetof(mgl_block, arrived))) {
      l->bound = l->most;
    }
    mgl_loader_look(l);
    if (l->in_flight >= l->bound && mgl_loader_gives_up(l)) {
      return false;
    }
  }
  return true;
}

// Waits until few enough are on their way and the next page of the ring is free. False: give up.
// One lane.
MGL_DEVICE bool mgl_loader_await_room(mgl_loader *l) {
  if (!mgl_loader_await_landing(l)) {
    return false;
  }
  while (!mgl_mbarrier_try_at(mgl_loader_free(l, l->page), l->parity ^ 1)) {
    if (mgl_loader_gives_up(l)) {
      return false;
    }
  }
  return true;
}

// Says to all lanes that load whether there is room.
MGL_DEVICE bool mgl_loader_room(mgl_loader *l) {
  return mgl_loader_told(!mgl_loader_looks() || mgl_loader_await_room(l));
}

// Behind the copies into the ring's next page.
MGL_DEVICE void mgl_load_ends(mgl_loader *l) {
  mgl_ring_next(l, &l->page, &l->parity);
  l->in_flight++;
}

MGL_DEVICE bool mgl_load_page(mgl_loader *l, const uint8_t *from, uint32_t bytes) {
  if (!mgl_loader_room(l)) {
    return false;
  }
  mgl_page_load(l->pages_at + l->page * MGL_PAGE_BYTES, from, bytes, mgl_loader_full(l, l->page));
  mgl_load_ends(l);
  return true;
}

// A page of `count` panels (1 or 2), each so many bytes behind the one before.
MGL_DEVICE bool mgl_load_panels(mgl_loader *l, const mgl_load *load, const uint8_t *from,
                                uint64_t step, uint32_t count) {
  if (count == 1 || step == load->panel_bytes) {
    return mgl_load_page(l, from, count * load->panel_bytes);
  }
  if (!mgl_loader_room(l)) {
    return false;
  }
  uint32_t to = l->pages_at + l->page * MGL_PAGE_BYTES;
  uint32_t full = mgl_loader_full(l, l->page);
  mgl_page_expect(2 * load->panel_bytes, full);
  mgl_page_copy(to, from, load->panel_bytes, full);
  mgl_page_copy(to + load->panel_bytes, from + step, load->panel_bytes, full);
  mgl_page_asked(full);
  mgl_load_ends(l);
  return true;
}

// As mgl_load_batch, of codes.
MGL_DEVICE bool mgl_load_coded_batch(mgl_loader *l, const mgl_load *load, uint32_t block,
                                     uint32_t blocks) {
  const uint32_t panels = mgl_panels_of(load->k_padded);
  const uint32_t most = mgl_packing_panels((mgl_packing)load->packing);
  const uint64_t block_bytes = (uint64_t)panels * load->panel_bytes;
  const uint8_t *first = load->weights + block * block_bytes;
  const bool along_k = load->group_pages == MGL_ALL_PAGES;
  const uint32_t outer = along_k ? blocks : panels, inner = along_k ? panels : blocks;
  const uint64_t outer_step = along_k ? block_bytes : load->panel_bytes;
  const uint64_t inner_step = along_k ? load->panel_bytes : block_bytes;
  for (uint32_t i = 0; i < outer; i++) {
    for (uint32_t j = 0; j < inner; j += most) {
      uint32_t count = inner - j < most ? inner - j : most;
      if (!mgl_load_panels(l, load, first + i * outer_step + j * inner_step, inner_step, count)) {
        return false;
      }
    }
  }
  return true;
}

// Pages that may be on their way before a task has inputs.
MGL_DEVICE uint32_t mgl_loader_bound(const mgl_loader *l) {
  return l->most_ahead != 0 ? l->most_ahead : l->most;
}

#include "kernels/cuda/roles/loader_experts.cuh"  // by the functions above

// The pages of a batch of row blocks, in the order of page_stream.cuh.
MGL_DEVICE bool mgl_load_batch(mgl_loader *l, const mgl_load *load, uint32_t block,
                               uint32_t blocks) {
  uint32_t pages = mgl_pages_of_block(load->k_padded);
  for (uint32_t first = 0; first < pages; first += load->group_pages) {
    uint32_t last = pages - first < load->group_pages ? pages : first + load->group_pages;
    for (uint32_t i = block; i < block + blocks; i++) {
      const uint8_t *from = load->weights + i * mgl_block_bytes(load->k_padded);
      for (uint32_t page = first; page < last; page++) {
        if (!mgl_load_page(l, from + (size_t)page * MGL_CUDA_PAGE_BYTES,
                           mgl_page_bytes(load->k_padded, page))) {
          return false;
        }
      }
    }
  }
  return true;
}

// Without prefetch: until the task is let go, and the ones before it have consumed all their pages.
// (Not until it has inputs: a linear waits for its first pages before.) False: give up. One lane.
MGL_DEVICE bool mgl_loader_await_turn(const mgl_loader *l) {
  uint32_t last = l->page == 0 ? l->page_count - 1 : l->page - 1;
  uint32_t parity = l->page == 0 ? l->parity ^ 1 : l->parity;
  while (l->ordinal >= mgl_loader_word(l, offsetof(mgl_block, activated)) ||
         !mgl_mbarrier_test_at(mgl_loader_free(l, last), parity)) {
    if (mgl_loader_gives_up(l)) {
      return false;
    }
  }
  return true;
}

// Makes the ring as long as the present task wants it (twin/page_ring.h), once all that was asked
// for has landed. Pages that join it held partial sums, so that waits for the tasks before. False:
// give up. One lane.
MGL_DEVICE bool mgl_loader_resize(mgl_loader *l) {
  while (l->in_flight > 0) {
    mgl_mbarrier_wait_at(mgl_loader_full(l, l->landed), l->landed_parity);
    mgl_loader_saw_landing(l);
  }
  while (l->ring_pages > l->page_count &&
         mgl_loader_word(l, offsetof(mgl_block, ended)) < l->ordinal) {
    if (mgl_loader_gives_up(l)) {
      return false;
    }
  }
  uint32_t late =
      mgl_page_ring_resize(l->ring_pages, &l->page_count, &l->page, &l->parity, &l->asleep);
  for (uint32_t page = 0; late != 0; page++, late >>= 1) {
    if ((late & 1) != 0) {
      mgl_mbarrier_arrive_at(mgl_loader_full(l, page));
      for (uint32_t warp = 0; warp < MGL_CUDA_CONSUMER_WARPS; warp++) {
        mgl_mbarrier_arrive_at(mgl_loader_free(l, page));
      }
    }
  }
  l->landed = l->page;
  l->landed_parity = l->parity;
#if MGL_TARGET_COPIES
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // copies come behind partial sums
#endif
  return true;
}

// All pages of a task. False: give up.
MGL_DEVICE bool mgl_load_task(mgl_loader *l, const mgl_load *load) {
  if (l->most_ahead == 0 && !mgl_loader_told(!mgl_loader_looks() || mgl_loader_await_turn(l))) {
    return false;
  }
  if (MGL_LOADER_LANES == 1 && l->page_count != l->ring_pages && !mgl_loader_resize(l)) {
    return false;
  }
  uint32_t began = mgl_trace_clock();
  uint32_t most = load->batch_blocks;
  uint32_t pages = (load->end - load->begin) * mgl_pages_of_block(load->k_padded) * load->passes;
  if (MGL_HAS_CODES && load->packing != MGL_PACKING_BF16) {
    pages = (load->end - load->begin) * mgl_coded_pages(load->packing, load->k_padded);
  }
  l->most = pages < MGL_CUDA_LONG_PAGES ? l->most_short : l->most_long;
  l->bound = mgl_loader_bound(l);
  if (MGL_HAS_EXPERTS && load->experts != MGL_LOAD_DENSE) {
    if (!mgl_load_experts(l, load)) {
      return false;
    }
  }
  const uint32_t passes = MGL_HAS_EXPERTS && load->experts != MGL_LOAD_DENSE ? 0 : load->passes;
  for (uint32_t pass = 0; pass < passes; pass++) {
    for (uint32_t block = load->begin; block < load->end; block += most) {
      uint32_t blocks = load->end - block < most ? load->end - block : most;
      if (MGL_HAS_CODES && load->packing != MGL_PACKING_BF16) {
        if (!mgl_load_coded_batch(l, load, block, blocks)) {
          return false;
        }
      } else if (!mgl_load_batch(l, load, block, blocks)) {
        return false;
      }
    }
  }
  if (threadIdx.x % 32 == 0) {
    mgl_trace_add(&l->traced, began, mgl_trace_clock(), (uint32_t)l->iteration, l->graph,
                  load->task);
  }
  return true;
}

// Of a task of an op, which is the op_idx-th one.
MGL_DEVICE mgl_load mgl_load_of(const mgl_loader *l, const mgl_cuda_op *op, uint32_t op_idx,
                                uint32_t task, uint32_t begin, uint32_t end) {
  mgl_load load;
  load.weights = mgl_is_paged(op->kind) ? op->weights : nullptr;
  load.task = task;
  load.begin = begin;
  load.end = end;
  load.k_padded = op->k_padded;
  load.batch_blocks = mgl_op_batch_blocks(op, l->all_pages - l->ring_pages);
  load.passes = op->passes;
  load.group_pages = mgl_group_pages(op);
  load.packing = mgl_op_packing(op);
  load.panel_bytes = mgl_op_panel_bytes(op);
  if (MGL_HAS_EXPERTS) {
    const uint32_t kind = (op->flags & MGL_CUDA_X_NORMED) != 0 ? (uint32_t)MGL_LOAD_EXPERTS_UP
                                                               : (uint32_t)MGL_LOAD_EXPERTS_DOWN;
    load.experts =
        (op->flags & MGL_CUDA_EXPERTS) == 0 ? (uint32_t)MGL_LOAD_DENSE : kind | op_idx << 2;
  }
  return load;
}

// Step `at` of a graph's list.
MGL_DEVICE mgl_load mgl_fetch_load(const mgl_loader *l, const mgl_cuda_graph *graph, uint32_t at) {
  const mgl_cuda_step *step = &graph->steps[at];
  return mgl_load_of(l, &graph->ops[step->op], step->op, step->task, step->begin, step->end);
}

// One lane: the task in a slot, of which the controller has told.
MGL_DEVICE mgl_load mgl_hear_load(const mgl_loader *l, mgl_block *block, const mgl_slot *slot) {
  mgl_load load = mgl_load_of(l, &slot->op, 0, slot->task, slot->begin, slot->end);
  mgl_fence_block();
  block->heard = l->ordinal + 1;
  return load;
}

// The load that `lane` holds, for all lanes.
MGL_DEVICE mgl_load mgl_load_of_lane(const mgl_load *mine, uint32_t lane) {
  mgl_load load;
  load.weights = (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)mine->weights, lane);
  load.task = __shfl_sync(0xffffffffu, mine->task, lane);
  load.begin = __shfl_sync(0xffffffffu, mine->begin, lane);
  load.end = __shfl_sync(0xffffffffu, mine->end, lane);
  load.k_padded = __shfl_sync(0xffffffffu, mine->k_padded, lane);
  load.batch_blocks = __shfl_sync(0xffffffffu, mine->batch_blocks, lane);
  load.passes = __shfl_sync(0xffffffffu, mine->passes, lane);
  load.group_pages = __shfl_sync(0xffffffffu, mine->group_pages, lane);
  load.packing = MGL_PACKING_BF16;
  load.panel_bytes = 0;
  if (MGL_HAS_CODES) {
    load.packing = __shfl_sync(0xffffffffu, mine->packing, lane);
    load.panel_bytes = __shfl_sync(0xffffffffu, mine->panel_bytes, lane);
  }
  load.experts = MGL_LOAD_DENSE;
  if (MGL_HAS_EXPERTS) {
    load.experts = __shfl_sync(0xffffffffu, mine->experts, lane);
  }
  return load;
}

// This worker's list of one graph, or where the loader is told of tasks the one in the slot `told`.
// False: give up.
MGL_DEVICE bool mgl_load_list(mgl_loader *l, const mgl_cuda_graph *graph, mgl_block *block,
                              const mgl_slot *told) {
  uint32_t lane = threadIdx.x % 32;
  uint32_t first = told != nullptr ? 0 : graph->step_start[blockIdx.x];
  uint32_t last = told != nullptr ? 1 : graph->step_start[blockIdx.x + 1];
  uint32_t batch = l->run->step_batch;
  l->ring_pages = graph->ring_pages;
  l->most_short = graph->in_flight;
  l->most_long = graph->in_flight_long;
  // Here, since a look at each task is a trip to the L2, which the router's answer waits for.
  l->most_ahead = l->run->prefetch != 0 ? graph->in_flight_ahead : 0;
  if (MGL_HAS_EXPERTS) {
    l->copy = MGL_LOADER_COPY_UNKNOWN;
    l->routed = 0;
  }
  for (; first < last; first += batch) {
    uint32_t count = last - first < batch ? last - first : batch;
    mgl_load mine = {};
    if (lane < count) {
      mine =
          told != nullptr ? mgl_hear_load(l, block, told) : mgl_fetch_load(l, graph, first + lane);
    }
    for (uint32_t i = 0; i < count; i++, l->ordinal++) {
      bool goes_on = true;
      if (MGL_HAS_EXPERTS) {  // before the rest of the load is kept, too
        const uint32_t experts = __shfl_sync(0xffffffffu, mine.experts, i);
        goes_on = experts == MGL_LOAD_DENSE || mgl_loader_route(l, experts);
      }
      mgl_load load = mgl_load_of_lane(&mine, i);
      if (goes_on && load.weights != nullptr && lane < MGL_LOADER_LANES) {
        goes_on = mgl_load_task(l, &load);
      }
      if (__any_sync(0xffffffffu, !goes_on)) {
        return false;
      }
    }
  }
  return true;
}

// The graph of the loader's iteration, once it is announced; 255: none. If this worker has no task
// in it the announcement may have been overwritten by a later one: then there is nothing to load.
MGL_DEVICE uint32_t mgl_await_announcement(mgl_loader *l, bool *missed) {
  const mgl_word *word = &l->run->announced[l->iteration & 1];
  for (;;) {
    uint64_t announced = mgl_load_acquire(word);
    if (announced >> 8 >= l->iteration + 1) {
      *missed = announced >> 8 > l->iteration + 1;
      return announced & 255;
    }
    if (mgl_loader_word(l, offsetof(mgl_block, stop)) != 0) {
      return 255;
    }
    __nanosleep(100);
  }
}

// The graph of the next task in `slot`, once the controller tells of it; 255: there will be none.
MGL_DEVICE uint32_t mgl_await_told(mgl_loader *l, const mgl_block *block, const mgl_slot *slot) {
  while (slot->told != l->ordinal + 1) {
    if (block->stop != 0) {
      return 255;
    }
  }
  mgl_fence_block();
  l->iteration = slot->iteration;  // for the trace
  return slot->graph;
}

MGL_DEVICE void mgl_loader_run(mgl_cuda_run *run, mgl_block *block, uint8_t *pages) {
  mgl_loader l = {};
  l.run = run;
  l.block_at = mgl_kept(mgl_shared_address(block));
  l.pages_at = mgl_kept(mgl_shared_address(pages));
  l.page_count = l.all_pages = run->page_count;
  mgl_trace_open(run, MGL_CUDA_TRACE_LOAD, &l.traced);
  const bool is_told = run->tells_loader != 0;
  for (;; l.iteration++) {
    bool missed = false;
    uint32_t graph = 255;
    const mgl_slot *slot = is_told ? &block->slots[l.ordinal % MGL_CUDA_SLOTS] : nullptr;
    if (threadIdx.x % 32 == 0) {
      graph = is_told ? mgl_await_told(&l, block, slot) : mgl_await_announcement(&l, &missed);
    }
    graph = __shfl_sync(0xffffffffu, graph, 0);
    missed = __shfl_sync(0xffffffffu, missed, 0);
    l.graph = graph;
    if (!missed && (graph == 255 || !mgl_load_list(&l, &run->graphs[graph], block, slot))) {
      break;
    }
  }
  if (threadIdx.x % 32 == 0) {
    while (l.in_flight > 0) {
      mgl_loader_look(&l);
    }
    mgl_trace_close(run, MGL_CUDA_TRACE_LOAD, &l.traced);
  }
}

#endif
