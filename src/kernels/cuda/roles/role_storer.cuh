// The storer warp: when the consumers have written a task's outputs, triggers its event, so that
// the consumers can go on with the next task meanwhile.
//
// Memory order: each consumer warp arrives at `done` after its stores (release), the storer waits
// for the phase (acquire), and its trigger is a release at gpu scope, which by causality order
// covers what it has seen: nobody needs a fence of his own.
#ifndef MGL_KERNELS_CUDA_ROLES_ROLE_STORER_CUH
#define MGL_KERNELS_CUDA_ROLES_ROLE_STORER_CUH

#include "kernels/cuda/common/ranks.cuh"
#include "kernels/cuda/common/trace.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/roles/role_controller.cuh"

// True if the task was to fail and has: its event is not triggered.
MGL_DEVICE bool mgl_inject(mgl_cuda_run *run, const mgl_slot *slot) {
  if (slot->mute != 0) {
    return true;
  }
  if (!mgl_is_injected(run, MGL_INJECT_HANG, slot->iteration, slot->task)) {
    return false;
  }
  while (mgl_load_relaxed(&run->protocol.fault) == 0) {
    __nanosleep(1000);
  }
  return true;
}

// Triggers that may activate an event here, with all that follows. A function of its own: it is
// rare, and keeps an array in memory.
static __device__ __noinline__ void mgl_trigger_all(mgl_protocol *p, uint64_t iteration,
                                                    uint64_t run, uint32_t graph, uint32_t event) {
  mgl_iteration_info info;
  info.iteration = iteration;
  info.run = run;
  info.graph = graph;
  info.stop = false;
  (void)mgl_trigger(p, &info, event);  // a failure shows at the next poll
}

MGL_DEVICE void mgl_store_task(mgl_cuda_run *run, mgl_block *block, const mgl_slot *slot) {
  bool lost = false;
  if (block->debug != 0) {
    mgl_delay(run, slot->iteration, slot->task, 2);
    lost = mgl_inject(run, slot);
  }
  lost = lost || block->stop != 0;  // what it computed may come from inputs that were given up
  if (MGL_RANKS > 1 && slot->op.kind == MGL_OP_LOGITS && slot->trigger != nullptr && !lost) {
    mgl_trigger_ranks(run, slot->trigger);
  } else if (slot->trigger != nullptr && !lost) {
    mgl_add_release(slot->trigger, 1);
  } else if (!lost && slot->trigger_event != MGL_NO_EVENT) {
    mgl_trigger_all(&run->protocol, slot->iteration, slot->run, slot->graph, slot->trigger_event);
  }
}

// An mgl_storer_trace is what the storer records.
struct mgl_storer_trace {
  mgl_tracer waited, computed, triggered;
};

// The task in slot `at` had its outputs at the clock `done` and has been triggered.
MGL_DEVICE void mgl_trace_stored(mgl_storer_trace *trace, const mgl_block *block, uint32_t at,
                                 uint32_t done) {
  if (MGL_TRACE) {
    uint32_t end = mgl_trace_clock();
    const mgl_slot *slot = &block->slots[at];
    mgl_trace_add(&trace->waited, block->handed_clock[at], block->began_clock[at],
                  (uint32_t)slot->iteration, slot->graph, slot->task);
    mgl_trace_add(&trace->computed, block->began_clock[at], done, (uint32_t)slot->iteration,
                  slot->graph, slot->task);
    mgl_trace_add(&trace->triggered, done, end, block->starved[at], slot->graph, slot->task);
  }
}

// One thread.
MGL_DEVICE void mgl_storer_run(mgl_cuda_run *run, mgl_block *block) {
  mgl_worker_shared *shared = &run->protocol.workers[blockIdx.x];
  uint64_t progress = mgl_load_relaxed(&shared->progress);
  uint32_t at = 0;
  uint32_t parity = 0;
  mgl_storer_trace trace;
  mgl_trace_open(run, MGL_CUDA_TRACE_WAIT, &trace.waited);
  mgl_trace_open(run, MGL_CUDA_TRACE_COMPUTE, &trace.computed);
  mgl_trace_open(run, MGL_CUDA_TRACE_TRIGGER, &trace.triggered);
  while (mgl_mbarrier_wait_or_stop(block, &block->go[at], parity)) {
    const mgl_slot *slot = &block->slots[at];
    mgl_mbarrier_wait_or_stop(block, &block->began[at], parity);
    mgl_store_relaxed(&shared->current, mgl_make_id(slot->iteration, slot->graph, slot->task) + 1);
    mgl_mbarrier_wait(&block->done[at], parity);
    uint32_t done = mgl_trace_clock();
    mgl_store_task(run, block, slot);
    mgl_trace_stored(&trace, block, at, done);
    mgl_store_relaxed(&shared->current, 0);
    mgl_store_relaxed(&shared->progress, ++progress);
    block->ended = slot->ordinal;
    mgl_mbarrier_arrive(&block->stored[at]);
    if (++at == MGL_CUDA_SLOTS) {
      at = 0;
      parity ^= 1;
    }
  }
  mgl_trace_close(run, MGL_CUDA_TRACE_WAIT, &trace.waited);
  mgl_trace_close(run, MGL_CUDA_TRACE_COMPUTE, &trace.computed);
  mgl_trace_close(run, MGL_CUDA_TRACE_TRIGGER, &trace.triggered);
}

#endif
