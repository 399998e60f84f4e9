// The controller warp: polls the protocol, hands tasks to the consumers, triggers events, and
// watches for a run that does not get on. One lane does it all; the others wait at the barriers.
//
// The fault condition is that no worker anywhere finished a task for stall_ns while the run is not
// over. Every controller that waits watches, by summing all workers' progress a few times per
// stall_ns, so that the fault is found whichever worker is stuck; the first to find it says which
// task and raises the protocol's fault, and everybody leaves at the next poll.
#ifndef MGL_KERNELS_CUDA_ROLE_CONTROLLER_CUH
#define MGL_KERNELS_CUDA_ROLE_CONTROLLER_CUH

#include "kernels/cuda/worker.cuh"

enum {
  MGL_POLLS_PER_LOOK = 256,  // empty polls between two looks at the clock
  MGL_LOOKS_PER_STALL = 8,
};

struct mgl_watch {
  uint32_t polls;
  uint64_t next_ns;   // when to look again
  uint64_t since_ns;  // when progress was last seen
  uint64_t progress;
};

static __device__ void mgl_raise_stall(mgl_cuda_run *run, mgl_cuda_stall what, uint32_t worker,
                                       uint64_t task_id) {
  uint64_t stall = (uint64_t)what << 48 | (uint64_t)worker << 32 | (uint32_t)task_id;
  (void)mgl_cas_acq_rel(&run->stall, MGL_CUDA_STALL_NONE, stall);
  mgl_raise_fault(&run->protocol, MGL_FAULT_STUCK);
}

// Says who is stuck: a worker that runs a task, else the task at the head of this worker's list.
static __device__ void mgl_report_stall(mgl_cuda_run *run, const mgl_worker_state *worker) {
  const mgl_protocol *p = &run->protocol;
  for (uint32_t i = 0; i < p->worker_count; i++) {
    uint64_t current = mgl_load_relaxed(&p->workers[i].current);
    if (current != 0) {
      mgl_raise_stall(run, MGL_CUDA_STALL_RUNNING, i, current - 1);
      return;
    }
  }
  uint32_t task = mgl_worker_waits_for(p, worker);
  if (task != MGL_NO_EVENT) {
    mgl_raise_stall(run, MGL_CUDA_STALL_WAITING, worker->index,
                    mgl_make_id(0, worker->info.graph, task));
  } else {
    mgl_raise_stall(run, MGL_CUDA_STALL_IDLE, worker->index, 0);
  }
}

static __device__ void mgl_watch_progress(mgl_cuda_run *run, const mgl_worker_state *worker,
                                          mgl_watch *watch) {
  if (++watch->polls % MGL_POLLS_PER_LOOK != 0) {
    return;
  }
  uint64_t now = mgl_global_ns();
  if (now < watch->next_ns) {
    return;
  }
  watch->next_ns = now + run->stall_ns / MGL_LOOKS_PER_STALL;
  uint64_t progress = 0;
  for (uint32_t i = 0; i < run->protocol.worker_count; i++) {
    progress += mgl_load_relaxed(&run->protocol.workers[i].progress);
  }
  if (watch->since_ns == 0 || progress != watch->progress) {
    watch->progress = progress;
    watch->since_ns = now;
  } else if (now - watch->since_ns > run->stall_ns) {
    mgl_report_stall(run, worker);
  }
}

// True if the task was to fail and has: its event is not triggered.
static __device__ bool mgl_inject(mgl_cuda_run *run, const mgl_worker_state *worker,
                                  const mgl_ready_task *ready, mgl_watch *watch) {
  if (run->injection == MGL_INJECT_NONE || ready->task != run->injection_task ||
      ready->info.iteration != run->injection_iteration) {
    return false;
  }
  while (run->injection == MGL_INJECT_HANG && mgl_load_relaxed(&run->protocol.fault) == 0) {
    mgl_watch_progress(run, worker, watch);
  }
  return true;
}

// The next plan, on the device: the argmax of the iteration that ended is the token of the next.
static __device__ int mgl_device_next_plan(void *context, uint64_t iteration) {
  mgl_cuda_run *run = (mgl_cuda_run *)context;
  run->iteration_ns[iteration] = mgl_global_ns();
  if (iteration > 0) {
    uint64_t best = mgl_load_relaxed(&run->best);
    if (best != 0) {
      run->token = (int32_t) ~(uint32_t)best;
      mgl_store_relaxed(&run->best, 0);
    }
    run->tokens_out[iteration - 1] = run->token;
  }
  return iteration < run->iterations ? (int)(iteration % run->protocol.graph_count) : -1;
}

// Lane 0: the next task into *block, or NULL when the run is over.
static __device__ void mgl_next_task(mgl_cuda_run *run, mgl_block *block, mgl_worker_state *worker,
                                     mgl_watch *watch, mgl_ready_task *ready) {
  mgl_protocol *p = &run->protocol;
  mgl_poll_result found = mgl_worker_poll(p, worker, ready);
  while (found == MGL_POLL_NONE) {
    mgl_watch_progress(run, worker, watch);
    found = mgl_worker_poll(p, worker, ready);
  }
  if (found == MGL_POLL_STOP) {
    block->op = nullptr;
    block->stop = 1;
    return;
  }
  const mgl_task *task = &p->graphs[ready->info.graph].tasks[ready->task];
  block->op = &run->ops[ready->info.graph][task->op];
  block->begin = task->begin;
  block->end = task->end;
}

// Lane 0: after the consumers are done.
static __device__ void mgl_end_task(mgl_cuda_run *run, const mgl_worker_state *worker,
                                    mgl_watch *watch, const mgl_ready_task *ready) {
  mgl_protocol *p = &run->protocol;
  watch->since_ns = 0;
  if (!mgl_inject(run, worker, ready, watch)) {
    (void)mgl_worker_finish(p, worker->index, ready);  // a failure shows at the next poll
    return;
  }
  mgl_store_relaxed(&p->workers[worker->index].current, 0);
}

// The plan of every iteration is made here: set by whoever begins the first one.
static __device__ void mgl_set_next_plan(mgl_cuda_run *run) {
  run->protocol.next_plan = mgl_device_next_plan;
  run->protocol.next_plan_context = run;
}

static __device__ void mgl_controller(mgl_cuda_run *run, mgl_block *block) {
  mgl_worker_state worker;
  mgl_ready_task ready;
  mgl_watch watch = {0, 0, 0, 0};
  mgl_worker_init(&run->protocol, &worker, blockIdx.x);
  bool leads = threadIdx.x % 32 == 0;
  if (leads && worker.begins) {
    mgl_set_next_plan(run);
  }
  for (;;) {
    if (leads) {
      mgl_next_task(run, block, &worker, &watch, &ready);
    }
    __syncwarp();
    mgl_sync_task();
    if (block->op == nullptr) {
      return;
    }
    mgl_sync_done();
    if (leads) {
      mgl_end_task(run, &worker, &watch, &ready);
    }
  }
}

#endif
