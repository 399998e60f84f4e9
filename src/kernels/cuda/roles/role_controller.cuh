// The controller warp: polls the protocol, hands tasks to the consumers, lets them go when their
// event is activated, and watches for a run that does not get on.
//
// A worker's tasks ascend in linear order, those of its list and those for which it takes tickets.
// So the next one is known while one runs, and is handed over before its event is activated: the
// consumers prepare what does not depend on others, and the loader asks for its weights. (A ticket
// is taken no earlier, so that what is left goes to whoever has time.)
//
// The fault condition is that no worker anywhere finished a task for stall_ns while the run is not
// over. Every controller that waits watches, by summing all workers' progress a few times per
// stall_ns, so that the fault is found whichever worker is stuck; the first to find it says which
// task and raises the protocol's fault, and everybody leaves.
#ifndef MGL_KERNELS_CUDA_ROLES_ROLE_CONTROLLER_CUH
#define MGL_KERNELS_CUDA_ROLES_ROLE_CONTROLLER_CUH

#include "kernels/cuda/common/page_stream.cuh"
#include "kernels/cuda/common/ranks.cuh"
#include "kernels/cuda/common/trace.cuh"
#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/linear/one_function.cuh"
#include "kernels/cuda/linear/tasks_linear_rows.cuh"
#include "kernels/cuda/roles/first_item.cuh"

enum {
  MGL_POLLS_PER_FAULT = 32,   // empty polls between two looks at the fault word
  MGL_POLLS_PER_LOOK = 1024,  // and at the clock
  MGL_LOOKS_PER_STALL = 8,
};

struct mgl_watch {
  uint32_t polls;
  uint64_t next_ns;   // when to look again
  uint64_t since_ns;  // when progress was last seen
  uint64_t progress;
};

struct mgl_controller {
  mgl_cuda_run *run;
  mgl_block *block;
  mgl_iteration_info info;  // of the iteration that it is in
  uint64_t iteration;       // that one, or the least that it enters next
  bool entered;
  uint32_t at, end;   // steps of this worker's list in that iteration
  uint32_t batch_at;  // lane i holds step batch_at + i
  uint32_t batch_end;
  mgl_cuda_step mine;          // this lane's
  uint32_t mine_below;         // and how many JIT tasks come before it
  uint32_t jit_count;          // of the graph
  uint16_t ring_pages;         // of it, too
  uint32_t jit_first;          // where JIT tasks begin in its steps
  const mgl_cuda_step *steps;  // its steps
  uint32_t latest_op;          // of the task in the other slot; UINT32_MAX: none of this iteration
  bool tells;                  // the loader is told of tasks (run->tells_loader)
  uint64_t ticket;             // as in mgl_worker_state; lane 0's
  uint32_t slot, parity;       // the next slot to fill, and the phase of its mbarriers
  uint32_t announced;          // tasks handed over that the loader knows
  uint32_t activated;          // and let go; lane 0's
  mgl_watch watch;
};

// --- watching ------------------------------------------------------------------------------------

MGL_DEVICE void mgl_raise_stall(mgl_cuda_run *run, mgl_cuda_stall what, uint32_t worker,
                                uint64_t task_id) {
  uint64_t stall = (uint64_t)what << 48 | (uint64_t)worker << 32 | (uint32_t)task_id;
  (void)mgl_cas_acq_rel(&run->stall, MGL_CUDA_STALL_NONE, stall);
  mgl_raise_fault(&run->protocol, MGL_FAULT_STUCK);
}

// Says who is stuck: the worker that runs the earliest task, else the task that this worker waits
// for (or MGL_NO_EVENT). The earliest, since a task may have begun when some of its warps had what
// they read, and others still wait for a task before it.
static __device__ __noinline__ void mgl_report_stall(mgl_cuda_run *run, uint32_t graph,
                                                     uint32_t waits_for) {
  const mgl_protocol *p = &run->protocol;
  uint64_t earliest = UINT64_MAX;
  uint32_t worker = 0;
  for (uint32_t i = 0; i < p->worker_count; i++) {
    uint64_t current = mgl_load_relaxed(&p->workers[i].current);
    if (current != 0 && current < earliest) {
      earliest = current;
      worker = i;
    }
  }
  if (earliest != UINT64_MAX) {
    mgl_raise_stall(run, MGL_CUDA_STALL_RUNNING, worker, earliest - 1);
    return;
  }
  if (waits_for != MGL_NO_EVENT) {
    mgl_raise_stall(run, MGL_CUDA_STALL_WAITING, blockIdx.x, mgl_make_id(0, graph, waits_for));
  } else {
    mgl_raise_stall(run, MGL_CUDA_STALL_IDLE, blockIdx.x, 0);
  }
}

// After an empty poll. False: the run has failed.
MGL_DEVICE bool mgl_watch_progress(mgl_controller *c, uint32_t waits_for) {
  mgl_watch *watch = &c->watch;
  watch->polls++;
  if (watch->polls % MGL_POLLS_PER_FAULT == 0 &&
      mgl_load_relaxed(&c->run->protocol.fault) != MGL_FAULT_NONE) {
    return false;
  }
  if (watch->polls % MGL_POLLS_PER_LOOK != 0) {
    return true;
  }
  uint64_t now = mgl_global_ns();
  if (now < watch->next_ns) {
    return true;
  }
  watch->next_ns = now + c->run->stall_ns / MGL_LOOKS_PER_STALL;
  uint64_t progress = 0;
  for (uint32_t i = 0; i < c->run->protocol.worker_count; i++) {
    progress += mgl_load_relaxed(&c->run->protocol.workers[i].progress);
  }
  if (watch->since_ns == 0 || progress != watch->progress) {
    watch->progress = progress;
    watch->since_ns = now;
  } else if (mgl_load_relaxed(&c->run->planning.idle) != 0) {
    watch->since_ns = now;  // there is nothing to do
  } else if (now - watch->since_ns > c->run->stall_ns) {
    mgl_report_stall(c->run, c->info.graph, waits_for);
    return false;
  }
  return true;
}

// A random pause in debug runs.
MGL_DEVICE void mgl_delay(const mgl_cuda_run *run, uint64_t iteration, uint32_t task,
                          uint32_t salt) {
  uint32_t hash = ((uint32_t)iteration * 0x9e3779b9u ^ task * 0x85ebca6bu ^ salt) * 0xc2b2ae35u;
  __nanosleep((hash >> 8) % (run->delay + 1));
}

MGL_DEVICE bool mgl_is_injected(const mgl_cuda_run *run, mgl_cuda_injection what,
                                uint64_t iteration, uint32_t task) {
  return run->injection == (uint32_t)what && task == run->injection_task &&
         iteration == run->injection_iteration;
}

// --- the list ------------------------------------------------------------------------------------

// Lane 0: enters the live iteration once it is one that this worker has not been in.
MGL_DEVICE mgl_poll_result mgl_poll_iteration(mgl_controller *c) {
  const mgl_protocol *p = &c->run->protocol;
  if (!mgl_read_iteration(p, &c->info) || c->info.iteration < c->iteration) {
    return MGL_POLL_NONE;
  }
  c->iteration = c->info.iteration;
  return c->info.stop ? MGL_POLL_STOP : MGL_POLL_TASK;
}

// All lanes: the next iteration's list.
MGL_DEVICE void mgl_begin_list(mgl_controller *c) {
  c->iteration = __shfl_sync(0xffffffffu, (unsigned long long)c->iteration, 0);
  c->info.run = __shfl_sync(0xffffffffu, (unsigned long long)c->info.run, 0);
  c->info.graph = __shfl_sync(0xffffffffu, c->info.graph, 0);
  c->info.iteration = c->iteration;
  const mgl_cuda_graph *graph = &c->run->graphs[c->info.graph];
  c->entered = true;
  c->at = graph->step_start[blockIdx.x];
  c->end = graph->step_start[blockIdx.x + 1];
  c->batch_at = c->at;
  c->batch_end = c->at;
  c->ring_pages = (uint16_t)graph->ring_pages;
  c->jit_count = graph->jit_count;
  c->steps = graph->steps;
  c->jit_first = graph->step_start[c->run->protocol.worker_count];
  c->latest_op = UINT32_MAX;
}

enum : uint32_t { MGL_NO_STEP = UINT32_MAX };

// All lanes: where the next step stands in the graph's steps, as mgl_next_task chooses it;
// MGL_NO_STEP: there is none left in this iteration.
MGL_DEVICE uint32_t mgl_next_step(mgl_controller *c) {
  const bool has_aot = c->at < c->end;
  const uint32_t lane = threadIdx.x % 32;
  if (has_aot && c->at >= c->batch_end) {
    uint32_t left = c->end - c->at;
    uint32_t count = left < c->run->step_batch ? left : c->run->step_batch;
    c->batch_at = c->at;
    c->batch_end = c->at + count;
    if (lane < count) {
      c->mine = c->steps[c->at + lane];
      c->mine_below = c->jit_count > 0 ? c->run->graphs[c->info.graph].jit_below[c->at + lane] : 0;
    }
  }
  if (c->jit_count > 0) {
    uint32_t below = c->jit_count;
    if (has_aot) {
      below = __shfl_sync(0xffffffffu, c->mine_below, c->at - c->batch_at);
    }
    uint32_t number = below;
    if (lane == 0) {
      uint64_t mine = mgl_take_ticket(&c->run->protocol, &c->info, below, has_aot, &c->ticket);
      if (mine < below) {
        number = (uint32_t)mine;
        c->ticket = 0;
      }
    }
    number = __shfl_sync(0xffffffffu, number, 0);
    if (number < below) {
      return c->jit_first + number;
    }
  }
  return has_aot ? c->at++ : MGL_NO_STEP;
}

// All lanes: the step at a place that mgl_next_step has found last.
MGL_DEVICE mgl_cuda_step mgl_step_at(mgl_controller *c, uint32_t at) {
  if (at + 1 != c->at) {  // a JIT task: places of lists are below those of JIT tasks
    return c->steps[at];
  }
  uint32_t lane = at - c->batch_at;
  mgl_cuda_step step;
  step.task = __shfl_sync(0xffffffffu, c->mine.task, lane);
  step.op = __shfl_sync(0xffffffffu, c->mine.op, lane);
  step.begin = __shfl_sync(0xffffffffu, c->mine.begin, lane);
  step.end = __shfl_sync(0xffffffffu, c->mine.end, lane);
  step.wait_event = __shfl_sync(0xffffffffu, c->mine.wait_event, lane);
  step.wait_count = __shfl_sync(0xffffffffu, c->mine.wait_count, lane);
  step.trigger_event = __shfl_sync(0xffffffffu, c->mine.trigger_event, lane);
  step.trigger_kind = __shfl_sync(0xffffffffu, c->mine.trigger_kind, lane);
  return step;
}

// Lane 0: whether the step's event is activated. (A relaxed load with a fence after the last one
// takes 0.4 us longer a stage: docs/log/030.)
MGL_DEVICE bool mgl_step_ready(const mgl_word *counter, uint64_t target) {
  // Acquire, paired with the releases of the triggers: what the tasks before wrote is visible.
  return counter == nullptr ||
         (MGL_RANKS > 1 ? mgl_load_acquire_system(counter) : mgl_load_acquire(counter)) >= target;
}

// --- handing over --------------------------------------------------------------------------------

MGL_DEVICE void mgl_next_slot(mgl_controller *c) {
  if (++c->slot == MGL_CUDA_SLOTS) {
    c->slot = 0;
    c->parity ^= 1;
  }
}

// Whether only workers that poll its counter wait for an event of this type and with these flags.
MGL_DEVICE bool mgl_is_polled(uint32_t type_and_flags) {
  const uint32_t type = type_and_flags >> 16;
  const uint32_t flags = type_and_flags & 0xffff;
  return (type == MGL_EVENT_LAUNCH_TASKS || type == MGL_EVENT_LAUNCH_MASSIVE_TASKS) && flags != 0 &&
         (flags & ~(uint32_t)(MGL_EVENT_HAS_AOT | MGL_EVENT_HAS_JIT)) == 0;
}

// A task of this block that was handed over and has not ended, MGL_NO_EVENT if there is none.
MGL_DEVICE uint32_t mgl_held_task(const mgl_controller *c) {
  static_assert(MGL_CUDA_SLOTS == 2, "the other slot was filled before");
  mgl_block *block = c->block;
  uint32_t other = c->slot ^ 1;
  if (!mgl_mbarrier_test(&block->stored[c->slot], c->parity ^ 1)) {
    return block->slots[c->slot].task;
  }
  if (!mgl_mbarrier_test(&block->stored[other], c->slot == 0 ? c->parity ^ 1 : c->parity)) {
    return block->slots[other].task;
  }
  return MGL_NO_EVENT;
}

// All lanes: until the next slot may be filled. Where tasks wait for words of activations, this is
// where a run that does not get on is noticed. False: the run has failed.
MGL_DEVICE bool mgl_await_slot(mgl_controller *c) {
  while (!mgl_mbarrier_try_briefly(&c->block->stored[c->slot], c->parity ^ 1)) {
    uint32_t failed = 0;
    if (threadIdx.x % 32 == 0) {
      failed = mgl_watch_progress(c, c->block->slots[c->slot].task) ? 0 : 1;
    }
    if (__shfl_sync(0xffffffffu, failed, 0) != 0) {
      return false;
    }
  }
  return true;
}

// Lane 0: the body of attend's task in a slot, `function` or the one of a single item.
MGL_DEVICE uint32_t mgl_attend_one_function(const mgl_slot *slot, mgl_plan_kind kind,
                                            uint32_t function) {
  const uint32_t flags = MGL_CUDA_CARRIED | MGL_CUDA_UNITS_APART;
  // A plan whose items have some of a group's heads does not say that chunks are short.
  const mgl_cuda_item *item = &slot->first.item;
  const bool shorts =
      kind == MGL_PLAN_SHORT || (MGL_HEAD_PARTS > 1 && kind == MGL_PLAN_DECODES &&
                                 item->kv_end - item->kv_begin <= MGL_CUDA_MIN_CHUNK);
  const bool one = MGL_CARRIES && MGL_TARGET_COPIES && shorts &&
                   (slot->op.flags & flags) == flags && slot->op.copy_bytes != 0 &&
                   slot->end - slot->begin == 1 && slot->first.item_count <= slot->first.strides;
  if (!one || function != MGL_CALL_ATTEND_DECODE) {
    return function;
  }
  const bool each = MGL_HEAD_PARTS == 1 && !MGL_HAS_WINDOWS;
  return slot->op.tokens == 1 ? (uint32_t)MGL_CALL_ATTEND_ONE
         : each               ? (uint32_t)MGL_CALL_ATTEND_EACH
                              : function;
}

// All lanes: fills the slot and announces it. known: the loader knows of it, or is told. False: the
// run has failed.
MGL_DEVICE bool mgl_announce(mgl_controller *c, const mgl_iteration_info *info,
                             const mgl_cuda_step *step, bool known) {
  mgl_block *block = c->block;
  mgl_slot *slot = &block->slots[c->slot];
  uint32_t lane = threadIdx.x % 32;
  if (!mgl_await_slot(c)) {
    return false;
  }
  while (c->tells && c->announced - block->heard >= MGL_CUDA_SLOTS) {  // it has only to look
  }
  const mgl_cuda_op *op = &c->run->graphs[info->graph].ops[step->op];
  const mgl_cuda_op *latest = &block->slots[c->slot ^ 1].op;
  const bool same = step->op == c->latest_op;  // as of one with several tasks for each worker
  c->latest_op = step->op;
  static_assert(sizeof(mgl_cuda_op) % 16 == 0 && sizeof(mgl_cuda_op) <= 512, "a copy by one warp");
  if (lane < sizeof(mgl_cuda_op) / 16) {
    ((uint4 *)&slot->op)[lane] =
        same ? ((const uint4 *)latest)[lane] : __ldg((const uint4 *)op + lane);
  }
  if (lane == 31) {
    slot->begin = step->begin;
    slot->end = step->end;
    slot->task = step->task;
    slot->trigger_event = step->trigger_event;
    // Nobody needs the count where only workers poll it.
    const uint32_t kind = step->trigger_kind & ~(uint32_t)(MGL_RANKS > 1 ? MGL_EVENT_REMOTE : 0);
    bool polled = mgl_is_polled(kind) && step->trigger_event != MGL_NO_EVENT;
    slot->trigger =
        polled ? &c->run->protocol.graphs[info->graph].counters[step->trigger_event] : nullptr;
    slot->graph = info->graph;
    slot->ordinal = c->announced + (known ? 1 : 0);
    slot->mute = 0;
    if (block->debug != 0) {
      slot->mute = mgl_is_injected(c->run, MGL_INJECT_LOSE, info->iteration, step->task) ? 1 : 0;
    }
    uint64_t copy_bytes =
        same ? latest->copy_bytes : __ldg((const unsigned long long *)&op->copy_bytes);
    slot->copy_at = info->run % 2 != 0 ? 0 : copy_bytes;
    slot->open_at = copy_bytes - slot->copy_at;
    slot->iteration = info->iteration;
    slot->run = info->run;
    slot->plan = &c->run->plans[info->iteration & 1];
  }
  c->announced += known ? 1 : 0;
  __syncwarp();
  if (c->tells && lane == 0) {
    mgl_fence_block();
    slot->told = c->announced;
  }
  mgl_plan_kind plan_kind = MGL_PLAN_ANY;
  if (slot->op.kind == MGL_OP_ATTEND) {
    uint64_t iteration = c->run->iterations_past + info->iteration;
    plan_kind = (mgl_plan_kind)mgl_find_first_item(
        c->run, slot, c->run->graphs[info->graph].attention_strides,
        (uint32_t)(iteration * c->run->op_count + step->op));
    __syncwarp();
  }
  if (MGL_RANKS > 1 && mgl_is_exchanged(&slot->op)) {
    mgl_find_exchange(c->run, slot, lane);
    __syncwarp();
  }
  if (lane == 0) {
    uint32_t function = mgl_one_function(&slot->op);
    if (slot->op.kind == MGL_OP_ATTEND) {
      function =
          mgl_attend_function(&slot->op, plan_kind, slot->first.item_count, slot->first.strides);
      function = mgl_attend_one_function(slot, plan_kind, function);
    } else if (function == MGL_CALL_NOTHING) {
      function = mgl_task_function_of(&slot->op, MGL_TARGET_CAPABILITY, MGL_HAS_CODES);
      function = mgl_known_function(&slot->op, function);
    }
    slot->function = function;
    slot->ring_pages = mgl_is_paged(slot->op.kind) ? c->ring_pages : block->page_count;
    if ((function >= MGL_CALL_LINEAR_ROWS_1 && function <= MGL_CALL_SIXTEEN_ADDED_2) ||
        function <= MGL_CALL_ONE_ADDED_2 || (MGL_HAS_CODES && function >= MGL_CALL_CODED)) {
      // So that its consumers need not go to the L2 for it.
      slot->rows = (uint16_t)mgl_linear_rows(slot);
    }
    mgl_mbarrier_arrive(&block->announced[c->slot]);
  }
  return true;
}

// Lane 0: the task in the slot may run. What others wait for comes first.
// (Where it waits for words of activations, its consumers go on asking for them.)
MGL_DEVICE void mgl_let_go(mgl_controller *c, const mgl_iteration_info *info,
                           const mgl_cuda_step *step, bool known) {
  if (c->block->debug != 0) {
    mgl_delay(c->run, info->iteration, step->task, 1);
  }
  mgl_mbarrier_arrive(&c->block->go[c->slot]);
  if (known) {
    c->activated++;
    c->block->activated = c->activated;
  }
  c->watch.since_ns = 0;
  c->watch.polls = 0;
}

// All lanes: runs the step at this place of the graph's steps. False: the run has failed.
MGL_DEVICE bool mgl_run_step(mgl_controller *c, uint32_t at) {
  mgl_cuda_step step = mgl_step_at(c, at);
  const mgl_word *counter = nullptr;
  if (step.wait_event != MGL_NO_EVENT) {
    counter = &c->run->protocol.graphs[c->info.graph].counters[step.wait_event];
  }
  uint64_t target = step.wait_count * c->info.run;
  const bool known = c->tells || at + 1 == c->at;  // else it is JIT, and not a linear's
  if (!mgl_announce(c, &c->info, &step, known)) {
    return false;
  }
  if (MGL_TRACE && threadIdx.x % 32 == 0) {
    c->block->handed_clock[c->slot] = mgl_trace_clock();
  }
  uint32_t state = 0;  // 1: ready, 2: failed
  if (threadIdx.x % 32 == 0) {
    do {
      state = mgl_step_ready(counter, target) ? 1 : mgl_watch_progress(c, step.task) ? 0 : 2;
    } while (state == 0);
  }
  state = __shfl_sync(0xffffffffu, state, 0);
  if (state == 2) {
    return false;
  }
  if (threadIdx.x % 32 == 0) {
    mgl_let_go(c, &c->info, &step, known);
  }
  mgl_next_slot(c);
  return true;
}

// After so many empty polls since its latest task, some milliseconds, there seems to be nothing to
// do: the worker asks less often for an iteration.
enum { MGL_POLLS_BEFORE_PAUSE = 8192, MGL_POLL_PAUSE_NS = 2000 };

// All lanes: until this worker is in an iteration that it has not been in. False: the run ends.
MGL_DEVICE bool mgl_find_iteration(mgl_controller *c) {
  uint32_t found = MGL_POLL_NONE;
  if (threadIdx.x % 32 == 0) {
    do {
      found = mgl_poll_iteration(c);
      if (found == MGL_POLL_NONE && !mgl_watch_progress(c, mgl_held_task(c))) {
        found = MGL_POLL_STOP;
      }
      if (found == MGL_POLL_NONE && c->watch.polls > MGL_POLLS_BEFORE_PAUSE) {
        __nanosleep(MGL_POLL_PAUSE_NS);
      }
    } while (found == MGL_POLL_NONE);
  }
  found = __shfl_sync(0xffffffffu, found, 0);
  if (found == MGL_POLL_STOP) {
    return false;
  }
  mgl_begin_list(c);
  return true;
}

// All lanes: where the next step of this worker stands, in the iteration that it is in or a later
// one; MGL_NO_STEP: the run ends.
MGL_DEVICE uint32_t mgl_find_step(mgl_controller *c) {
  for (;;) {
    if (c->entered) {
      uint32_t at = mgl_next_step(c);
      if (at != MGL_NO_STEP) {
        return at;
      }
      c->entered = false;
      c->iteration++;
    }
    if (!mgl_find_iteration(c)) {
      return MGL_NO_STEP;
    }
  }
}

// Until the plan of an iteration is announced, which it is but where there was nothing to do;
// returns its graph, 255: none follows.
MGL_DEVICE uint32_t mgl_await_plan(mgl_cuda_run *run, uint64_t iteration) {
  const mgl_word *word = &run->announced[iteration & 1];
  // Release, paired with the acquire of the planner: all of the iterations before has ended.
  mgl_store_release(&run->planning.ended, iteration);
  for (;;) {
    // Acquire, paired with the planner's release.
    uint64_t announced = mgl_load_acquire(word);
    if (announced >> 8 >= iteration + 1) {
      return announced & 255;
    }
    if (mgl_load_relaxed(&run->protocol.fault) != MGL_FAULT_NONE) {
      return 255;
    }
    __nanosleep(200);
  }
}

// The protocol's question for the next plan, which was made while the iteration before ran; here it
// only takes effect. (A call, not a pointer as on the host: an unknown callee costs registers.)
static __device__ __noinline__ int mgl_ask_next_plan(mgl_protocol *p, uint64_t iteration) {
  mgl_cuda_run *run = (mgl_cuda_run *)p;                                  // its first member
  uint64_t announced = mgl_load_acquire(&run->announced[iteration & 1]);  // as below
  if (run->iteration_ns != nullptr) {
    run->iteration_ns[iteration % run->iteration_capacity] = mgl_global_ns();
  }
  uint32_t graph = announced & 255;
  if (announced >> 8 < iteration + 1 || graph >= p->graph_count) {
    graph = mgl_await_plan(run, iteration);
    run->planning.resumed = iteration;
    run->planning.resumed_ns = mgl_global_ns();
  }
  return iteration < run->most_iterations && graph < p->graph_count ? (int)graph : -1;
}

// One thread: the first iteration. A function of its own: it is rare.
static __device__ __noinline__ void mgl_begin_run(mgl_protocol *p) {
  mgl_begin_iteration(p, 0, false);
}

MGL_DEVICE void mgl_controller_run(mgl_cuda_run *run, mgl_block *block) {
  mgl_controller c = {};
  c.run = run;
  c.block = block;
  c.tells = run->tells_loader != 0;
  if (threadIdx.x % 32 == 0 && blockIdx.x == 0 && run->protocol.scheduler_count == 0) {
    mgl_begin_run(&run->protocol);
  }
  __syncwarp();
  uint32_t at = 0;
  while ((at = mgl_find_step(&c)) != MGL_NO_STEP && mgl_run_step(&c, at)) {
  }
  if (threadIdx.x % 32 == 0) {
    block->stop = 1;
  }
}

#endif
