// Mode full: a kernel for every op, made of the megakernel's tasks, chained by programmatic
// dependent launch: the baseline that the megakernel is measured against.
//
// A kernel's blocks start while the kernels before it still run, as soon as there is room on a
// multiprocessor: with two blocks of a linear on each, one computes while the next one's block has
// set itself up, has its op (a parameter, not memory) at hand, and streams its first weight pages.
// Only then it waits for the kernels before. So every kernel says at its very start that the next
// one may come.
//
// What may be read before the wait: what no kernel writes (weights, norms, tables), and plan and KV
// cache of the iterations before this one. For the latter no kernel of an iteration may start
// before all attention of the one before has ended; therefore the last kernel of an iteration,
// sample, lets the next ones come only after its own wait. Nothing is written before the wait.
// Every kernel has a block that waits, so that the end of one implies the end of all before it.
//
// An iteration of which nobody has work (the host queues iterations ahead of the device's plans) is
// left at once by every block.
#define MGL_KERNEL_PER_OP 1

#include "kernels/cuda/attend/op_attend.cuh"
#include "kernels/cuda/common/layout.h"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/linear/op_linear_one.cuh"
#include "kernels/cuda/linear/tasks_linear.cuh"
#include "kernels/cuda/roles/call_task.cuh"
#include "kernels/cuda/roles/role_loader.cuh"
#include "kernels/cuda/small/tasks_iteration.cuh"
#include "kernels/cuda/small/tasks_sample.cuh"
#include "twin/device_run.h"
#include "twin/full_turn.h"
#include "twin/op_launch.h"
#include "twin/variant.h"

#define MGL_LAYOUT_RUN MGL_SAME_LAYOUT
#define MGL_LAYOUT_LAUNCH MGL_SAME_LAYOUT
#include "twin/layout.def"

static_assert(MGL_OP_SCRATCH_ONE == MGL_OP_ONE_X_AT && MGL_OP_SCRATCH_EIGHT == MGL_LINEAR_NORM_AT &&
                  MGL_OP_SCRATCH_MAX_NORM == MGL_LINEAR_NORM_MAX,
              "the host's numbers");

extern __shared__ __align__(128) uint8_t mgl_memory[];

// The protocol's question, which is never asked here: kernels follow each other, and events are not
// triggered.
static __device__ int mgl_ask_next_plan(mgl_protocol *, uint64_t) {
  return -1;
}

// --- a block -------------------------------------------------------------------------------------

// Lets the blocks of the next kernel come.
MGL_DEVICE void mgl_let_next_come() {
#if MGL_TARGET_COPIES
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The units of this block, of the first or the second op. False: it is the second one's.
MGL_DEVICE bool mgl_block_units(const mgl_cuda_op_launch &launch, uint32_t *begin, uint32_t *end) {
  if (blockIdx.x >= launch.blocks) {
    *begin = 0;
    *end = launch.second_units;
    return false;
  }
  *begin = launch.units * blockIdx.x / launch.blocks;  // 32 bits hold it (make_launch)
  *end = launch.units * (blockIdx.x + 1) / launch.blocks;
  return true;
}

// One warp: the block's task, as a controller would hand it over.
MGL_DEVICE void mgl_fill_slot(const mgl_cuda_op_launch &launch, mgl_block *block) {
  mgl_slot *slot = &block->slots[0];
  uint32_t lane = threadIdx.x % 32;
  uint32_t begin, end;
  bool first = mgl_block_units(launch, &begin, &end);
  const uint32_t *op = (const uint32_t *)&launch.ops[first ? 0 : 1];
  for (uint32_t i = lane; i < sizeof(mgl_cuda_op) / sizeof(uint32_t); i += 32) {
    ((uint32_t *)&slot->op)[i] = op[i];
  }
  if (lane == 0) {
    slot->begin = begin;
    slot->end = end;
    slot->graph = launch.graph;
    slot->iteration = launch.parity;  // nobody needs more of it
    slot->ordinal = 1;
    slot->mute = 0;
    slot->copy_at = 0;
    slot->plan = launch.plan;
    block->page_count = (uint16_t)launch.page_count;
    slot->ring_pages = (uint16_t)launch.page_count;
    block->activated = 0;
    block->arrived = 0;
    block->debug = 0;
    block->stop = 0;
    mgl_mbarrier_init(&block->began[0], 1);
  }
}

MGL_DEVICE mgl_worker mgl_make_worker(const mgl_cuda_op_launch &launch) {
  mgl_worker w = {};
  mgl_worker_enter(&w, launch.run, (mgl_block *)mgl_memory, launch.scratch_bytes);
  w.page_count = launch.page_count;
  return w;
}

// Number of the live iteration plus 1, once this iteration's first kernel has ended.
MGL_DEVICE uint64_t mgl_published(const mgl_cuda_run *run) {
  return mgl_load_relaxed(&run->protocol.published);
}

// --- the next plan
// ---------------------------------------------------------------------------------

MGL_DEVICE void mgl_plan_nothing(mgl_cuda_plan *plan) {
  plan->graph = UINT32_MAX;
  plan->token_count = 0;
  plan->sequence_count = 0;
  plan->logit_row_count = 0;
  plan->item_count = 0;
}

// One warp: a turn of the planner, and the host's word of it. Returns the plan's tokens. A function
// of its own, for its registers.
static __device__ __noinline__ uint32_t mgl_op_turn(mgl_cuda_run *run, uint64_t *host_plan,
                                                    mgl_op_first *firsts, uint64_t iteration,
                                                    bool between) {
  mgl_lanes lanes = {threadIdx.x % 32, 32};
  uint64_t begin = mgl_global_ns();
  uint64_t word = mgl_full_turn(lanes, run, firsts, iteration, between);
  if (lanes.lane == 0) {
    run->planning.planning_ns += mgl_global_ns() - begin;
    // The host polls it, and takes what it says of the plan from nowhere else.
    mgl_store_release_system((mgl_word *)host_plan, word);
  }
  __syncwarp();
  return mgl_host_plan_tokens(word);
}

// One warp: the plan of the next iteration. Nothing behind an iteration of nothing, nor when the
// host has ended the run from outside.
static __device__ __noinline__ void mgl_op_next_plan(const mgl_cuda_op_launch &launch) {
  mgl_cuda_run *run = launch.run;
  mgl_await_kernels_before();
  bool goes_on = mgl_read_word(&launch.plan->token_count) != 0 && run->planner != nullptr &&
                 mgl_load_relaxed(&run->protocol.fault) == MGL_FAULT_NONE;
  uint32_t tokens = 0;
  if (goes_on) {
    tokens = mgl_op_turn(run, launch.host_plan, launch.firsts, mgl_published(run), false);
  }
  if (tokens == 0 && threadIdx.x == 0) {
    mgl_plan_nothing(launch.next_plan);
  }
}

// This kernel plans between iterations, when none runs: it makes the first plan of a launch, and
// the next one where there was nothing to do.
extern "C" __global__ void __launch_bounds__(MGL_OP_PLAN_THREADS, 1)
    mgl_op_plan(mgl_cuda_run *run, uint64_t *host_plan, mgl_op_first *firsts) {
  (void)mgl_op_turn(run, host_plan, firsts, mgl_published(run), true);
}

// Before an iteration that the host has planned, the first one.
extern "C" __global__ void __launch_bounds__(MGL_OP_PLAN_THREADS, 1)
    mgl_op_note(const mgl_cuda_run *run, mgl_op_first *firsts) {
  mgl_lanes lanes = {threadIdx.x, 32};
  mgl_full_note_items(lanes, run, 0, firsts);
}

// --- linears -------------------------------------------------------------------------------------

// Returns where page number `index` of the block's stream (page_stream.cuh) lies, and its bytes;
// the stream is that of one pass.
MGL_DEVICE const uint8_t *mgl_page_of(const mgl_load *load, uint32_t index, uint32_t *bytes) {
  uint32_t pages = mgl_pages_of_block(load->k_padded);
  uint32_t most = load->batch_blocks;
  uint32_t block = load->begin + index / (most * pages) * most;
  uint32_t blocks = load->end - block < most ? load->end - block : most;
  index %= most * pages;
  uint32_t page = index / (blocks * load->group_pages) * load->group_pages;
  uint32_t group = pages - page < load->group_pages ? pages - page : load->group_pages;
  index %= blocks * load->group_pages;
  block += index / group;
  page += index % group;
  *bytes = mgl_page_bytes(load->k_padded, page);
  return load->weights + block * mgl_block_bytes(load->k_padded) +
         (size_t)page * MGL_CUDA_PAGE_BYTES;
}

// Into the L2, with nobody waiting for it.
MGL_DEVICE void mgl_page_to_l2(const mgl_load *load, uint32_t index) {
#if MGL_TARGET_COPIES
  uint32_t bytes;
  const uint8_t *from = mgl_page_of(load, index, &bytes);
  mgl_bulk_to_l2(from, bytes);
#endif
}

MGL_DEVICE mgl_load mgl_load_of(const mgl_cuda_op_launch &launch) {
  mgl_load load;
  load.weights = launch.ops[0].weights;
  load.k_padded = launch.ops[0].k_padded;
  load.batch_blocks = mgl_batch_blocks(launch.ops[0].row_tiles);
  load.passes = launch.ops[0].passes;
  load.group_pages = mgl_group_pages(&launch.ops[0]);
  (void)mgl_block_units(launch, &load.begin, &load.end);
  return load;
}

// Waits until the next page may be loaded. Meanwhile, while the kernels before still compute,
// brings pages behind the ring into the L2, a page at a time: what those kernels wait for must not
// queue behind them. False: there is nothing to compute. One lane.
MGL_DEVICE bool mgl_await_room(const mgl_cuda_op_launch &launch, const mgl_load *load,
                               uint32_t l2_end, uint32_t *l2_at, long long *l2_clock,
                               mgl_loader *l) {
  for (;;) {
    bool waits = mgl_loader_word(l, offsetof(mgl_block, arrived)) == 0;
    mgl_loader_look(l);
    if (l->in_flight < (waits ? l->most_ahead : l->most) &&
        mgl_mbarrier_test_at(mgl_loader_free(l, l->page), l->parity ^ 1)) {
      return true;
    }
    if (mgl_loader_word(l, offsetof(mgl_block, stop)) != 0) {
      return false;
    }
    if (waits && *l2_at < l2_end && l->in_flight == 0 &&
        clock64() - *l2_clock >= (long long)launch.l2_clocks) {
      *l2_clock = clock64();
      mgl_page_to_l2(load, (*l2_at)++);
    }
  }
}

// The loader warp: all pages of the block's task.
MGL_DEVICE void mgl_load_op(const mgl_cuda_op_launch &launch, const mgl_load *load) {
  mgl_loader l = {};
  l.block_at = mgl_kept(mgl_shared_address(mgl_memory));
  l.pages_at = l.block_at + MGL_CUDA_BLOCK_BYTES + launch.scratch_bytes;
  l.page_count = launch.page_count;
  l.most = launch.in_flight;
  l.most_ahead = launch.in_flight_ahead;
  if (launch.prefetch == 0) {
    mgl_await_kernels_before();
  }
  if (threadIdx.x % 32 < MGL_LOADER_LANES) {
    uint32_t count = (load->end - load->begin) * mgl_pages_of_block(load->k_padded);
    uint32_t l2_at = launch.page_count;
    uint32_t l2_end = mgl_min(l2_at + launch.early_pages, count);
    long long l2_clock = 0;
    for (uint32_t i = 0; i < count * load->passes; i++) {
      uint32_t bytes;
      const uint8_t *from = mgl_page_of(load, i % count, &bytes);
      if (!mgl_loader_told(!mgl_loader_looks() ||
                           mgl_await_room(launch, load, l2_end, &l2_at, &l2_clock, &l))) {
        break;
      }
      mgl_page_load(l.pages_at + l.page * MGL_PAGE_BYTES, from, bytes, mgl_loader_full(&l, l.page));
      mgl_load_ends(&l);
    }
    while (mgl_loader_looks() && l.in_flight > 0) {  // no block ends with copies on their way
      mgl_loader_look(&l);
    }
  }
}

// The second op, if any, is next_plan.
template <void (*task)(mgl_worker *)>
MGL_DEVICE void mgl_op_linear(const mgl_cuda_op_launch &launch) {
  mgl_block *block = (mgl_block *)mgl_memory;
  uint32_t warp = threadIdx.x / 32;
  if (blockIdx.x >= launch.blocks) {  // next_plan's
    if (threadIdx.x == 0) {
      mgl_let_next_come();
    }
    if (warp == 0) {
      mgl_op_next_plan(launch);
    }
    return;
  }
  if (warp == 0) {
    mgl_fill_slot(launch, block);
  } else if (threadIdx.x == MGL_CUDA_CONSUMERS) {
    mgl_init_pages(block, launch.page_count);
    mgl_mbarriers_made();
    mgl_let_next_come();
  }
  __syncthreads();
  const mgl_load load = mgl_load_of(launch);
  if (warp == MGL_CUDA_CONSUMER_WARPS) {
    mgl_load_op(launch, &load);
    return;
  }
  if (mgl_linear_rows(&block->slots[0]) == 0) {
    block->stop = 1;
    mgl_await_kernels_before();
    return;
  }
  mgl_worker w = mgl_make_worker(launch);
  task(&w);
}

#define MGL_KERNEL_LINEAR(ENUM, name, blocks, scratch, condition, why, ...)   \
  extern "C" __global__ void __launch_bounds__(MGL_OP_LINEAR_THREADS, blocks) \
      mgl_op_##name(const __grid_constant__ mgl_cuda_op_launch launch) {      \
    mgl_op_linear<__VA_ARGS__>(launch);                                       \
  }
#include "twin/variant.def"

// --- linears of codes and of experts -------------------------------------------------------------

#if MGL_EXPERTS != 0 || MGL_PACKINGS >> 1 != 0

// The loader warp: routes, if the op has experts, then all pages of the block's task, as for a task
// of the megakernel.
MGL_DEVICE void mgl_load_op_task(const mgl_cuda_op_launch &launch) {
  const mgl_slot *slot = &((const mgl_block *)mgl_memory)->slots[0];
  const mgl_cuda_op *op = &slot->op;
  mgl_loader l = {};
  l.run = launch.run;
  l.block_at = mgl_kept(mgl_shared_address(mgl_memory));
  l.pages_at = l.block_at + MGL_CUDA_BLOCK_BYTES + launch.scratch_bytes;
  l.page_count = l.all_pages = l.ring_pages = launch.page_count;
  l.most_short = l.most_long = l.most_ahead = l.most = l.bound = launch.in_flight;
  if (MGL_HAS_EXPERTS && mgl_of_experts(op)) {
    l.rows = mgl_linear_rows(slot);
    l.several = mgl_of_hits(op);
    (void)mgl_loader_choose(&l, (const uint8_t *)op->angles, false);
    if (MGL_EXPERTS_BY_HITS && l.several) {
      mgl_expert_share(l.block_at + MGL_CUDA_BLOCK_BYTES, l.rows);
    }
    __syncwarp();
  }
  const mgl_load load = mgl_load_of(&l, op, 0, 0, slot->begin, slot->end);
  if (threadIdx.x % 32 >= MGL_LOADER_LANES) {
    return;
  }
  if (MGL_HAS_EXPERTS && mgl_of_experts(op)) {
    (void)mgl_load_experts(&l, &load);
  } else {
    for (uint32_t pass = 0; pass < load.passes; pass++) {
      for (uint32_t block = load.begin; block < load.end; block += load.batch_blocks) {
        (void)mgl_load_coded_batch(&l, &load, block, mgl_min(load.end - block, load.batch_blocks));
      }
    }
  }
  while (mgl_loader_looks() && l.in_flight > 0) {  // no block ends with copies on their way
    mgl_loader_look(&l);
  }
}

// The body that the megakernel's controller would choose.
MGL_DEVICE void mgl_run_op_task(mgl_cuda_run *run, mgl_block *block) {
  const uint32_t function =
      mgl_task_function_of(&block->slots[0].op, MGL_TARGET_CAPABILITY, MGL_HAS_CODES);
  if (MGL_HAS_CODES && function >= MGL_CALL_CODED) {
    (void)mgl_find_coded<1>(run, block, 0, function - MGL_CALL_CODED);
    return;
  }
#define MGL_CASE_ANY(...)
#define MGL_CASE_SM_90(...)
#define MGL_CASE_EXPERTS(ENUM, ...)             \
  if (function == MGL_CALL_##ENUM) {            \
    (void)mgl_call<__VA_ARGS__>(run, block, 0); \
  }
#define MGL_TASK_LINEAR(ENUM, name, order, from, ...) \
  MGL_TARGET_IF_EXPERTS(MGL_CASE_##from(ENUM, __VA_ARGS__))
#include "twin/variant.def"
}

// A block is a worker with one task. Nothing is loaded ahead of the kernels before: which experts a
// token has, these say, and of codes this kernel is to be right, not fast. The second op, if any,
// is next_plan.
extern "C" __global__ void __launch_bounds__(MGL_OP_LINEAR_THREADS, 1)
    mgl_op_task(const __grid_constant__ mgl_cuda_op_launch launch) {
  mgl_block *block = (mgl_block *)mgl_memory;
  const uint32_t warp = threadIdx.x / 32;
  mgl_await_kernels_before();
  if (threadIdx.x == 0) {
    mgl_let_next_come();
  }
  if (blockIdx.x >= launch.blocks) {
    if (warp == 0) {
      mgl_op_next_plan(launch);
    }
    return;
  }
  if (warp == 0) {
    mgl_fill_slot(launch, block);
    __syncwarp();
    if (threadIdx.x == 0) {
      block->slots[0].rows = (uint16_t)mgl_linear_rows(&block->slots[0]);
      block->activated = 1;
      mgl_mbarrier_init(&block->go[0], 1);
    }
  } else if (threadIdx.x == MGL_CUDA_CONSUMERS) {
    mgl_init_pages(block, launch.page_count);
    mgl_mbarriers_made();
  }
  __syncthreads();
  if (block->slots[0].rows == 0) {
    return;
  }
  if (warp == MGL_CUDA_CONSUMER_WARPS) {
    if (threadIdx.x % 32 == 0) {
      mgl_mbarrier_arrive(&block->go[0]);
    }
    mgl_load_op_task(launch);
  } else {
    mgl_run_op_task(launch.run, block);
  }
}

#endif

// --- attention -----------------------------------------------------------------------------------

// A whole warp: the block's first item, into the slot that it has filled.
MGL_DEVICE void mgl_op_find_first(const mgl_cuda_op_launch &launch, mgl_slot *slot) {
  enum { WORDS = offsetof(mgl_op_first, padding) / sizeof(uint32_t), ITEM = 12 };
  static_assert(sizeof(mgl_cuda_item) == ITEM * sizeof(uint32_t) && WORDS < 32 &&
                    offsetof(mgl_first_item, pages) ==
                        offsetof(mgl_first_item, own_first) + 2 * sizeof(uint32_t),
                "a lane copies a word");
  const mgl_op_first *firsts = launch.firsts + launch.parity * MGL_CUDA_MAX_ITEMS;
  mgl_first_item *first = &slot->first;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t begin, end;
  (void)mgl_block_units(launch, &begin, &end);
  uint32_t unit = begin;
  uint32_t guess = begin % launch.strides;  // an item where there are enough
  guess = guess < MGL_CUDA_MAX_ITEMS ? guess : 0;
  const uint32_t *word =
      lane < WORDS ? (const uint32_t *)&firsts[guess] + lane : &launch.plan->item_count;
  uint32_t found = mgl_load_l2_word(word);
  const uint32_t item_count = __shfl_sync(0xffffffffu, found, WORDS);
  while (unit < end && unit % launch.strides >= item_count) {
    unit++;
  }
  uint32_t index = unit % launch.strides;
  if (unit < end && index != guess && lane < WORDS) {
    found = mgl_load_l2_word((const uint32_t *)&firsts[index] + lane);
  }
  if (lane < ITEM) {
    ((uint32_t *)&first->item)[lane] = found;
  } else if (lane < WORDS) {
    (&first->own_first)[lane - ITEM] = found;
  } else if (lane == WORDS) {
    first->item_count = item_count;
    first->tag = 0;
    first->unit = unit;
    first->kv_head = unit / launch.strides;
    first->strides = launch.strides;
    first->kv_heads = launch.units / launch.strides;
  }
}

// Whether this block has nothing to do. One of no attention of an iteration of nothing waits: the
// next plan is being made.
MGL_DEVICE bool mgl_attend_is_idle(const mgl_slot *slot) {
  if (slot->first.item_count == 0) {
    mgl_await_kernels_before();
  }
  return slot->first.unit >= slot->end;
}

// The second op, if any, is next_plan.
template <void (*task)(mgl_worker *)>
MGL_DEVICE void mgl_op_attention(const mgl_cuda_op_launch &launch) {
  if (threadIdx.x == 0) {
    mgl_let_next_come();
  }
  mgl_block *block = (mgl_block *)mgl_memory;
  if (threadIdx.x < 32) {
    mgl_fill_slot(launch, block);
    __syncwarp();
    if (blockIdx.x < launch.blocks) {
      mgl_op_find_first(launch, &block->slots[0]);
    }
  }
  __syncthreads();
  if (blockIdx.x >= launch.blocks) {
    if (threadIdx.x < 32) {
      mgl_op_next_plan(launch);
    }
    return;
  }
  if (mgl_attend_is_idle(&block->slots[0])) {
    return;
  }
  mgl_worker w = mgl_make_worker(launch);
  task(&w);
}

#define MGL_KERNEL_ATTEND(ENUM, name, threads, blocks, condition, why, ...)        \
  extern "C" __global__ void __launch_bounds__(MGL_OP_##threads##_THREADS, blocks) \
      mgl_op_##name(const __grid_constant__ mgl_cuda_op_launch launch) {           \
    mgl_op_attention<__VA_ARGS__>(launch);                                         \
  }
#include "twin/variant.def"

// --- the ends of an iteration --------------------------------------------------------------------

// embed, and rope_angles in a block of its own. Counts the iteration.
extern "C" __global__ void __launch_bounds__(MGL_OP_OTHER_THREADS, 2)
    mgl_op_embed(const __grid_constant__ mgl_cuda_op_launch launch) {
  if (threadIdx.x == 0) {
    mgl_let_next_come();
  }
  if (threadIdx.x < 32) {
    mgl_fill_slot(launch, (mgl_block *)mgl_memory);
  }
  __syncthreads();
  mgl_worker w = mgl_make_worker(launch);
  if (blockIdx.x >= launch.blocks) {
    mgl_task_rope_angles(&w);
    return;
  }
  mgl_task_embed(&w);
  if (threadIdx.x == 0 && blockIdx.x == 0 && mgl_read_word(&launch.plan->token_count) != 0) {
    mgl_cuda_run *run = launch.run;
    uint64_t iteration = mgl_published(run);
    mgl_store_relaxed(&run->protocol.published, iteration + 1);
    run->iteration_ns[iteration % run->iteration_capacity] = mgl_global_ns();
  }
}

// Its last warp keeps the kernels behind it waiting until those before it have ended.
extern "C" __global__ void __launch_bounds__(MGL_OP_LINEAR_THREADS, 1)
    mgl_op_sample(const __grid_constant__ mgl_cuda_op_launch launch) {
  if (threadIdx.x < 32) {
    mgl_fill_slot(launch, (mgl_block *)mgl_memory);
  }
  __syncthreads();
  if (threadIdx.x >= MGL_CUDA_CONSUMERS) {
    mgl_await_kernels_before();
    mgl_let_next_come();
    return;
  }
  mgl_worker w = mgl_make_worker(launch);
  mgl_task_sample(&w);
  if (threadIdx.x == 0 && blockIdx.x == 0 && mgl_read_word(&launch.plan->token_count) != 0) {
    mgl_cuda_run *run = launch.run;
    run->iteration_ns[mgl_published(run) % run->iteration_capacity] = mgl_global_ns();
  }
}
