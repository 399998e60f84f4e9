// The inside of a worker block: its shared memory, named barriers, and small warp tools.
//
// Warps 0 to 7 are consumers, then come the controller, the loader, the storer and a scheduler. The
// controller fills slots with tasks in the order in which they will run; consumers take them one
// after the other, may prepare what does not depend on other tasks, wait until the task may run,
// and compute; the storer triggers its event. Barrier 0 is left to __syncthreads, which only the
// start uses.
//
// Structures of the roles and tasks are meant to live in registers: every function that gets a
// pointer to one is inlined by force. A structure in local memory costs a trip to the L2 for each
// access, since the acquires of the controller's polls drop the L1 (docs/log/028).
#ifndef MGL_KERNELS_CUDA_COMMON_WORKER_CUH
#define MGL_KERNELS_CUDA_COMMON_WORKER_CUH

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/target.h"
#include "twin/device_run.h"

#ifndef MGL_KERNEL_PER_OP
#define MGL_KERNEL_PER_OP 0  // 1: not the megakernel, but a kernel for every op (op_kernels.cu)
#endif

#ifndef MGL_RANKS
#define MGL_RANKS 1  // GPUs that run the model together (device_run.h)
#endif

// What few models have (mgl_cuda_extras); others' kernels have no code for it.
#ifndef MGL_HAS_WINDOWS
#define MGL_HAS_WINDOWS 0
#endif
#ifndef MGL_HAS_SINKS
#define MGL_HAS_SINKS 0
#endif
#ifndef MGL_HAS_SUM_BIASES
#define MGL_HAS_SUM_BIASES 0
#endif
#ifndef MGL_HAS_CUT_ROWS
#define MGL_HAS_CUT_ROWS 0
#endif

enum {
  MGL_CARRIES = !MGL_KERNEL_PER_OP,  // activations may carry their readiness
  MGL_BARRIER_CONSUMERS = 1,         // among consumers
  MGL_CUDA_SLOTS = 2,  // tasks that the controller has handed over and that are not stored
  MGL_MBARRIER_TRIES = 1 << 24,  // many seconds
};

// An mgl_first_item is what an attend task begins with. The controller reads it, so that consumers
// have no trips to the L2 before they ask for keys.
struct mgl_first_item {
  mgl_cuda_item item;      // of later items of the task too, until the output is made
  uint32_t item_count;     // of the plan
  uint32_t unit, kv_head;  // of the item; a unit behind the task's: there is none
  uint32_t strides, kv_heads;
  uint32_t tag;  // of partial results: of this op in this iteration, and of no other
  uint32_t own_first, own_last;             // KV pages of the item's first and last token
  uint32_t pages[MGL_CUDA_CONSUMER_WARPS];  // of each warp's first tile of cached positions
};

// An mgl_exchange is where a linear_add over ranks sends its parts and finds those of all.
struct mgl_exchange {
  uint64_t *inbox;  // of this rank, the one of the exchange: [ranks, stride]
  uint32_t stride;
  uint32_t rank;  // this one
  uint32_t tag;
  int64_t peers[MGL_MAX_RANKS];
};

// A task between controller, consumers and storer.
struct __align__(16) mgl_slot {
  mgl_cuda_op op;       // copied, so that consumers need no memory access to begin
  uint32_t begin, end;  // tile; in row blocks for linears
  uint32_t function;    // mgl_task_function (twin/variant.h)
  uint16_t rows;        // of the iteration that are computed, for linears of few tokens
  uint16_t ring_pages;  // of a linear: its graph's
  uint32_t task;
  uint32_t trigger_event;
  mgl_word *trigger;  // its counter, where only workers that poll it wait; NULL: more is to be done
  uint16_t graph;
  uint16_t mute;  // 1: an injected fault: what it computes is not written
  uint32_t
      ordinal;  // tasks of this block that the loader knows and that were let go, with this one
  volatile uint32_t
      told;          // for the loader, where it is told: `ordinal`, once op and tile are there
  uint64_t copy_at;  // of this run's copy of activations, in bytes from the first
  uint64_t open_at;  // of the other copy
  uint64_t iteration, run;
  const mgl_cuda_plan *plan;  // of the iteration
  union {
    __align__(16) mgl_first_item first;  // attend
    mgl_exchange exchange;               // linear_add over ranks
  };
};

// At the start of a block's shared memory.
struct mgl_block {
  mgl_slot slots[MGL_CUDA_SLOTS];
  // mbarriers; phase n of a slot's belongs to the n-th task in it.
  uint64_t announced[MGL_CUDA_SLOTS];  // by the controller: the slot is filled
  uint64_t go[MGL_CUDA_SLOTS];         // by the controller: the task may run, or ask for its inputs
  uint64_t began[MGL_CUDA_SLOTS];      // by a consumer: it has inputs
  uint64_t done[MGL_CUDA_SLOTS];       // by every consumer warp: its outputs are written
  uint64_t stored[MGL_CUDA_SLOTS];     // by the storer: the slot may be filled again
  uint64_t page_full[MGL_CUDA_MAX_PAGES];
  uint64_t page_free[MGL_CUDA_MAX_PAGES];
  volatile uint32_t activated;  // tasks that the loader knows and that were let go: they take pages
  volatile uint32_t arrived;    // and that have inputs: the loader's bound reads it
  volatile uint32_t heard;      // tasks that the loader was told of, and has read what it was told
  volatile uint32_t ended;      // tasks that the loader knows and that have ended, by the storer
  uint16_t page_count;
  uint16_t debug;  // 1: delays or an injected fault; so that others need not look into memory
  volatile uint32_t stop;  // the run is over or has failed: whoever waits gives up
  // With MGL_TRACE, of the task in a slot, by the first consumer: the clock when it had inputs, and
  // for how long it has waited for weights.
  uint32_t began_clock[MGL_CUDA_SLOTS];
  uint32_t handed_clock[MGL_CUDA_SLOTS];  // by the controller: when it began to wait
  uint32_t starved[MGL_CUDA_SLOTS];
};

static_assert(sizeof(mgl_block) <= MGL_CUDA_BLOCK_BYTES, "scratch begins behind it");

template <int barrier, int threads>
MGL_DEVICE void mgl_block_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(barrier), "n"(threads) : "memory");
}

MGL_DEVICE void mgl_sync_consumers() {
  mgl_block_sync<MGL_BARRIER_CONSUMERS, MGL_CUDA_CONSUMERS>();
}

MGL_DEVICE uint64_t mgl_global_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// For the trace: the low half of the multiprocessor's clock, or nothing at all without MGL_TRACE.
MGL_DEVICE uint32_t mgl_trace_clock() {
  uint32_t now = 0;
  if (MGL_TRACE) {
    asm volatile("mov.u32 %0, %clock;" : "=r"(now));
  }
  return now;
}

MGL_DEVICE uint32_t mgl_shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

// Moves registers between warpgroups, where the hardware can: consumers need more than the other
// roles. Whole warpgroups call it.
template <int registers, bool more>
MGL_DEVICE void mgl_set_registers() {
#if MGL_TARGET_COPIES
  if (more) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
  }
#endif
}

// A number that the compiler keeps in a register instead of making it anew at each use.
MGL_DEVICE uint32_t mgl_kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A word of shared memory that other warps write.
MGL_DEVICE uint32_t mgl_load_shared_word(uint32_t address) {
  uint32_t value;
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

MGL_DEVICE void mgl_store_shared_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// --- mbarriers -----------------------------------------------------------------------------------

MGL_DEVICE void mgl_mbarrier_init(uint64_t *barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mgl_shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Behind the last one: the copy engine sees them.
MGL_DEVICE void mgl_mbarriers_made() {
#if MGL_TARGET_COPIES
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// (Functions that end in _at take addresses in shared memory, which fit into one register.)
MGL_DEVICE void mgl_mbarrier_arrive_at(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

MGL_DEVICE void mgl_mbarrier_arrive(uint64_t *barrier) {
  mgl_mbarrier_arrive_at(mgl_shared_address(barrier));
}

// Returns what an mbarrier answers.
#define MGL_MBARRIER_ASK(question, operands, ...)                                            \
  uint32_t done;                                                                             \
  asm volatile("{\n.reg .pred p;\nmbarrier." question ".parity.shared::cta.b64 p, " operands \
               ";\nselp.u32 %0, 1, 0, p;\n}"                                                 \
               : "=r"(done)                                                                  \
               : __VA_ARGS__                                                                 \
               : "memory");                                                                  \
  return done != 0

// True if the phase of that parity has ended.
MGL_DEVICE bool mgl_mbarrier_test_at(uint32_t barrier, uint32_t parity) {
  MGL_MBARRIER_ASK("test_wait", "[%1], %2", "r"(barrier), "r"(parity));
}

MGL_DEVICE bool mgl_mbarrier_test(uint64_t *barrier, uint32_t parity) {
  return mgl_mbarrier_test_at(mgl_shared_address(barrier), parity);
}

// Asks whether the phase is over, as a test does, but the hardware suspends the thread for a while
// first.
MGL_DEVICE bool mgl_mbarrier_try_at(uint32_t barrier, uint32_t parity) {
#if MGL_TARGET_COPIES
  MGL_MBARRIER_ASK("try_wait", "[%1], %2", "r"(barrier), "r"(parity));
#else
  return mgl_mbarrier_test_at(barrier, parity);
#endif
}

MGL_DEVICE bool mgl_mbarrier_try(uint64_t *barrier, uint32_t parity) {
  return mgl_mbarrier_try_at(mgl_shared_address(barrier), parity);
}

// Asks whether the phase is over, suspended for a microsecond at most. It is for warps that look at
// other things too, and should not take issue slots from those that compute.
MGL_DEVICE bool mgl_mbarrier_try_briefly(uint64_t *barrier, uint32_t parity) {
#if MGL_TARGET_COPIES
  MGL_MBARRIER_ASK("try_wait", "[%1], %2, %3", "r"(mgl_shared_address(barrier)), "r"(parity),
                   "r"(1000));
#else
  return mgl_mbarrier_test(barrier, parity);
#endif
}

// Waits for the end of the phase of that parity; only where it is sure to come.
// Where that is a mistake, the launch ends with an error instead of a hang.
MGL_DEVICE void mgl_mbarrier_wait_at(uint32_t barrier, uint32_t parity) {
  for (uint32_t tries = 0; !mgl_mbarrier_try_at(barrier, parity); tries++) {
    if (tries == MGL_MBARRIER_TRIES) {
      __trap();
    }
  }
}

MGL_DEVICE void mgl_mbarrier_wait(uint64_t *barrier, uint32_t parity) {
  mgl_mbarrier_wait_at(mgl_shared_address(barrier), parity);
}

// Waits for the phase, or until the run stops. All threads that wait for one phase get the same
// answer: `stop` is set by the thread that would complete it, after it has completed its last one.
MGL_DEVICE bool mgl_mbarrier_wait_or_stop(mgl_block *block, uint64_t *barrier, uint32_t parity) {
  while (!mgl_mbarrier_try(barrier, parity)) {
    if (block->stop != 0) {
      return mgl_mbarrier_test(barrier, parity);
    }
  }
  return true;
}

// Before copies by the copy engine: an arrival, and so many bytes will come.
MGL_DEVICE void mgl_mbarrier_expect_at(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// A bulk copy into shared memory, whose bytes count for the mbarrier `full`.
MGL_DEVICE void mgl_bulk_copy_at(uint32_t to, const void *from, uint32_t bytes, uint32_t full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(full)
      : "memory");
}

// The same by a policy for the L2.
MGL_DEVICE void mgl_bulk_copy_by(uint64_t policy, uint32_t to, const void *from, uint32_t bytes,
                                 uint32_t full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(full), "l"(policy)
      : "memory");
}

// --- what a task function gets -------------------------------------------------------------------

// A consumer thread's view of its block and of the task that it runs.
struct mgl_worker {
  mgl_cuda_run *run;
  mgl_block *block;
  uint8_t *scratch;  // MGL_CUDA_SCRATCH_BYTES of shared memory, 128-byte aligned; the task's own
  uint8_t *pages;
  uint32_t thread;       // 0 to MGL_CUDA_CONSUMERS - 1
  uint32_t warp, lane;   // of the consumers
  uint32_t slot;         // index of the task's slot
  uint32_t slot_parity;  // phase of the slot's mbarriers
  uint32_t page;         // of the ring: the next one to consume
  uint32_t page_parity;  // phase of its page_full
  uint32_t page_count;
};

// Where a consumer is, in a block whose pages lie behind so many bytes of scratch.
MGL_DEVICE void mgl_worker_enter(mgl_worker *w, mgl_cuda_run *run, mgl_block *block,
                                 uint32_t scratch_bytes) {
  w->run = run;
  w->block = block;
  w->scratch = (uint8_t *)block + MGL_CUDA_BLOCK_BYTES;
  w->pages = w->scratch + scratch_bytes;
  w->thread = threadIdx.x;
  w->warp = threadIdx.x / 32;
  w->lane = threadIdx.x % 32;
}

MGL_DEVICE const mgl_slot *mgl_task_slot(const mgl_worker *w) {
  return &w->block->slots[w->slot];
}

// With a kernel for every op: until the kernels before have ended, and what they wrote may be read.
MGL_DEVICE void mgl_await_kernels_before() {
#if MGL_TARGET_COPIES
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Until the task may run: what the tasks before it wrote may be read afterwards. Every consumer
// thread calls it once per task. False: the run has failed; the task returns at once.
MGL_DEVICE bool mgl_task_wait(mgl_worker *w) {
  if (MGL_KERNEL_PER_OP) {
    mgl_await_kernels_before();
    return true;
  }
  return mgl_mbarrier_wait_or_stop(w->block, &w->block->go[w->slot], w->slot_parity);
}

// The task has (some of) its inputs. Every consumer thread calls it once per task that may run.
MGL_DEVICE void mgl_task_began(mgl_worker *w) {
  if (w->thread == 0) {
    const mgl_slot *slot = mgl_task_slot(w);
    if (MGL_TRACE) {
      w->block->began_clock[w->slot] = mgl_trace_clock();
      w->block->starved[w->slot] = 0;
    }
    w->block->arrived = slot->ordinal;
    mgl_mbarrier_arrive(&w->block->began[w->slot]);
  }
}

// For a task that waits for its event only.
MGL_DEVICE bool mgl_task_begin(mgl_worker *w) {
  if (!mgl_task_wait(w)) {
    return false;
  }
  mgl_task_began(w);
  return true;
}

// True if what the task has computed must not be seen: some of it may come from inputs that were
// given up, or it is a fault to be. (Who gives up has seen `stop`, and so does who meets it at a
// barrier afterwards.)
MGL_DEVICE bool mgl_task_is_mute(const mgl_worker *w) {
  if (!MGL_TARGET_COPIES) {  // there are no registers for both at once
    return w->block->stop != 0 || mgl_task_slot(w)->mute != 0;
  }
  return (w->block->stop | mgl_task_slot(w)->mute) != 0;
}

// --- activations that carry their readiness ------------------------------------------------------

// Whether an op's output has two copies.
MGL_DEVICE bool mgl_has_copies(const mgl_cuda_op *op) {
  return MGL_CARRIES && op->copy_bytes != 0;
}

MGL_DEVICE bool mgl_is_open(uint32_t word) {
  return word == MGL_CUDA_OPEN;
}

MGL_DEVICE bool mgl_has_open(uint4 v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == MGL_CUDA_OPEN;
}

// A word for other SMs to see as soon as it can be seen.
MGL_DEVICE void mgl_store_l2_word(uint8_t *at, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

// A word of an output; where outputs have copies, also the same word of the other copy, which
// becomes open.
MGL_DEVICE void mgl_write_word(uint8_t *at, uint32_t word, const mgl_slot *slot, bool copies) {
  if (!copies) {
    *(uint32_t *)at = word;
    return;
  }
  word = mgl_is_open(word) ? 0x7fffffffu : word;  // a NaN, but not that one
  mgl_store_l2_word(at + slot->copy_at, word);
  mgl_store_l2_word(at + slot->open_at, MGL_CUDA_OPEN);
}

// Opens a word that has no value in this run: only the other copy's is written.
MGL_DEVICE void mgl_open_word(uint8_t *at, const mgl_slot *slot) {
  mgl_store_l2_word(at + slot->open_at, MGL_CUDA_OPEN);
}

// For the trace: the task in a slot has waited for weights since the clock `from`.
MGL_DEVICE void mgl_note_starved(mgl_block *block, uint32_t slot, uint32_t thread, uint32_t from) {
  if (MGL_TRACE && thread == 0) {
    block->starved[slot] += mgl_trace_clock() - from;
  }
}

// Waits for a page that is not there yet, and notes for how long.
MGL_DEVICE void mgl_page_await_noted(mgl_block *block, uint32_t slot, uint32_t full,
                                     uint32_t parity) {
  uint32_t from = mgl_trace_clock();
  mgl_mbarrier_wait_at(full, parity);
  mgl_note_starved(block, slot, threadIdx.x, from);
}

// Waits for a page that is not there yet and notes it, in a function of its own, so that the loops
// that call it stay short.
static __device__ __noinline__ void mgl_page_starve(mgl_block *block, uint32_t slot, uint32_t full,
                                                    uint32_t parity) {
  mgl_page_await_noted(block, slot, full, parity);
}

// Until a page of the ring is there; full: the address of its mbarrier. On sm_90a a trace notes
// waits in a function of its own: inline, in loops over pages, it makes an iteration of
// Qwen3-0.6B 2% longer. (On sm_100a, where nothing was measured, the call makes callers spill.)
MGL_DEVICE void mgl_page_wait_at(const mgl_worker *w, uint32_t full, uint32_t parity) {
  if (!MGL_TRACE) {
    mgl_mbarrier_wait_at(full, parity);
  } else if (!mgl_mbarrier_test_at(full, parity)) {
    if (MGL_TARGET_WGMMA) {
      mgl_page_starve(w->block, w->slot, full, parity);
    } else {
      mgl_page_await_noted(w->block, w->slot, full, parity);
    }
  }
}

MGL_DEVICE void mgl_page_wait(const mgl_worker *w) {
  mgl_page_wait_at(w, mgl_shared_address(&w->block->page_full[w->page]), w->page_parity);
}

MGL_DEVICE void mgl_next_page(mgl_worker *w) {
  w->page++;
  if (w->page == w->page_count) {
    w->page = 0;
    w->page_parity ^= 1;
  }
}

// --- warps and numbers ---------------------------------------------------------------------------

MGL_DEVICE float mgl_warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

MGL_DEVICE uint64_t mgl_warp_max(uint64_t value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// bf16 as the host has it: round to nearest even, a NaN stays one.
MGL_DEVICE float mgl_widen_bf16(uint32_t bits) {
  return __uint_as_float(bits << 16);
}

MGL_DEVICE uint16_t mgl_round_bf16(float value) {
  uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (uint16_t)(bits >> 16 | 0x40u);
  }
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Two at once, as the tensor cores want them: `low` in the low half.
MGL_DEVICE uint32_t mgl_pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// gate / (1 + exp(-gate)) * up, within a few units in the last place: it is rounded to bf16.
MGL_DEVICE float mgl_silu_mul(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// 16 bytes that another SM may have written in this launch, or writes now: through the L2, never
// the L1.
MGL_DEVICE uint4 mgl_load_l2(const void *address) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// Loads past the L1 where `wanted`, else *v stays: the load is predicated, not branched around.
MGL_DEVICE void mgl_load_l2_if(const void *address, bool wanted, uint4 *v) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "@p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
      : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w)
      : "l"(address), "r"((uint32_t)wanted)
      : "memory");
}

// 8 and 4 bytes of the same.
MGL_DEVICE uint2 mgl_load_l2_pair(const void *address) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(address)
               : "memory");
  return v;
}

// Asks for what will be read soon, as far as the L2. bytes: a multiple of 16.
MGL_DEVICE void mgl_bulk_to_l2(const void *from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// 16 bytes in one piece: all of them are of one store. (Four words need not be.)
MGL_DEVICE uint4 mgl_load_l2_whole(const void *address) {
  uint4 v;
  asm volatile(
      "{\n.reg .b128 x;\n.reg .b64 low, high;\n"
      "ld.relaxed.gpu.global.b128 x, [%4];\n"
      "mov.b128 {low, high}, x;\n"
      "mov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(address)
      : "memory");
  return v;
}

MGL_DEVICE void mgl_store_l2_whole(void *address, uint4 v) {
  asm volatile(
      "{\n.reg .b128 x;\n.reg .b64 low, high;\n"
      "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\n"
      "mov.b128 x, {low, high};\n"
      "st.relaxed.gpu.global.b128 [%0], x;\n}" ::"l"(address),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}

// 8 bytes, in one piece too.
MGL_DEVICE uint64_t mgl_load_l2_long(const void *address) {
  unsigned long long v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
  return v;
}

MGL_DEVICE void mgl_store_l2_long(void *address, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"((unsigned long long)v)
               : "memory");
}

MGL_DEVICE uint32_t mgl_load_l2_word(const void *address) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

MGL_DEVICE float mgl_load_l2_float(const void *address) {
  return __uint_as_float(mgl_load_l2_word(address));
}

MGL_DEVICE float4 mgl_floats_of(uint4 v) {
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                     __uint_as_float(v.w));
}

MGL_DEVICE uint4 mgl_load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

MGL_DEVICE void mgl_load_shared_words(uint32_t address, uint32_t *out) {
  const uint4 v = mgl_load_shared(address);
  out[0] = v.x;
  out[1] = v.y;
  out[2] = v.z;
  out[3] = v.w;
}

MGL_DEVICE void mgl_store_shared(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

MGL_DEVICE void mgl_store_shared_quad(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Loads from there, zeros where `there` is false.
MGL_DEVICE uint4 mgl_load_shared_if(uint32_t address, bool there) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@p ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "r"(address), "r"((uint32_t)there)
      : "memory");
  return v;
}

#endif
