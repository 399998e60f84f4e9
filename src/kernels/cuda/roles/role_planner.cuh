// The planner warp: one warp of the whole GPU, the fourth role warp of the last worker block. It
// makes the plan of iteration i + 1 while iteration i computes, takes in requests and tells the
// host what was done (plan_turn.h).
//
// A turn takes tens of microseconds where requests come in, and loads one after the other, so no
// worker's consumers may spend them: next_plan's task only says that the plan is wanted, and the
// event that it triggers is triggered from here. What is sampled meanwhile waits for that event.
//   Rejected: consumers that plan, on whose worker all stages of the iteration wait (docs/log/059).
//
// When there is nothing to do, the last iteration ends first; whoever would begin the next one
// waits (mgl_ask_next_plan), and this warp asks for commands, less and less often.
#ifndef MGL_KERNELS_CUDA_ROLES_ROLE_PLANNER_CUH
#define MGL_KERNELS_CUDA_ROLES_ROLE_PLANNER_CUH

#include "kernels/cuda/common/worker.cuh"
#include "kernels/cuda/roles/role_storer.cuh"
#include "twin/plan_turn.h"

enum {
  MGL_IDLE_LEAST_NS = 500,  // between two looks for commands
  MGL_IDLE_MOST_NS = 8000,
};

MGL_DEVICE bool mgl_planner_gives_up(const mgl_cuda_run *run) {
  return mgl_load_relaxed(&run->protocol.fault) != MGL_FAULT_NONE;
}

// Lane 0: until a word that only grows has that value. False: the run has failed. Nobody waits for
// this warp, so it asks seldom: its multiprocessor has other work.
MGL_DEVICE bool mgl_planner_await(const mgl_cuda_run *run, const mgl_word *word, uint64_t value,
                                  mgl_marker *marker) {
  while (mgl_load_relaxed(word) < value) {
    if (mgl_planner_gives_up(run)) {
      return false;
    }
    if (MGL_TRACE && marker != nullptr) {
      mgl_trace_mark_if_due(run, marker);
    }
    __nanosleep(2000);
  }
  // Acquire, paired with the release of who writes it: next_plan's task, or the end of an
  // iteration.
  return mgl_load_acquire(word) >= value;
}

// Lane 0: the event of next_plan's task, behind all that the plan consists of.
static __device__ __noinline__ void mgl_planner_trigger(mgl_cuda_run *run, uint64_t iteration) {
  const mgl_cuda_planning *planning = &run->planning;
  if (planning->event == MGL_NO_EVENT) {
    return;  // a fault to be
  }
  if (planning->trigger != nullptr) {
    mgl_add_release(planning->trigger, 1);
  } else {
    mgl_trigger_all(&run->protocol, iteration - 1, planning->run, planning->graph, planning->event);
  }
}

// Lane 0: the plan is there, or (graph 255) there is none.
MGL_DEVICE void mgl_planner_announce(mgl_cuda_run *run, uint64_t iteration, uint32_t graph) {
  // Release, paired with the acquires of loaders and of whoever begins the iteration.
  mgl_store_release(&run->announced[iteration & 1], (iteration + 1) << 8 | graph);
}

// All lanes. A function of its own, for its registers.
static __device__ __noinline__ uint32_t mgl_planner_turn(mgl_cuda_run *run, uint64_t iteration) {
  mgl_lanes lanes = {threadIdx.x % 32, 32};
  uint64_t begin = mgl_global_ns();
  uint32_t tokens = mgl_plan_turn(lanes, run, iteration);
  if (lanes.lane == 0) {
    run->planning.planning_ns += mgl_global_ns() - begin;
  }
  __syncwarp();
  return tokens;
}

// Lane 0: what is known once iterations up to `count` have ended.
static __device__ __noinline__ void mgl_planner_tell(mgl_cuda_run *run, uint64_t count,
                                                     uint64_t commands) {
  mgl_turn_tell_iterations(run, count);
  mgl_turn_settle(run, commands);
}

// Lane 0: until there may be something to plan. False: the launch is over, or has failed.
MGL_DEVICE bool mgl_planner_idle(mgl_cuda_run *run) {
  uint32_t pause = MGL_IDLE_LEAST_NS;
  if (mgl_turn_is_over(run)) {
    return false;
  }
  mgl_store_relaxed(&run->planning.idle, 1);
  while (!mgl_turn_has_news(run) && !mgl_planner_gives_up(run)) {
    __nanosleep(pause);
    pause = pause < MGL_IDLE_MOST_NS ? pause * 2 : pause;
  }
  mgl_store_relaxed(&run->planning.idle, 0);
  return !mgl_planner_gives_up(run);
}

// All lanes: there was nothing to plan. True: now there is; false: the launch ends, or has failed.
static __device__ __noinline__ bool mgl_planner_await_work(mgl_cuda_run *run, uint64_t iteration) {
  mgl_cuda_planning *planning = &run->planning;
  uint32_t tokens = 0;
  bool ends = false;
  if (threadIdx.x % 32 == 0 && iteration > 0) {
    mgl_planner_trigger(run, iteration);
  }
  if (planning->wide_tokens != 0) {  // the launch ends: all that it has done is told
    if (threadIdx.x % 32 == 0 && mgl_planner_await(run, &planning->ended, iteration, nullptr)) {
      mgl_planner_tell(run, iteration, planning->commands_before);
    }
    __syncwarp();
    return false;
  }
  while (tokens == 0 && !ends) {
    if (threadIdx.x % 32 == 0) {
      ends = !mgl_planner_await(run, &planning->ended, iteration, nullptr);
      if (!ends) {
        mgl_planner_tell(run, iteration, planning->commands.own);
        ends = !mgl_planner_idle(run);
      }
    }
    ends = __shfl_sync(0xffffffffu, ends ? 1 : 0, 0) != 0;
    if (!ends) {
      tokens = mgl_planner_turn(run, iteration);
      ends = planning->wide_tokens != 0;
    }
  }
  return !ends;
}

// The whole warp, until the launch ends.
static __device__ __noinline__ void mgl_planner_run(mgl_cuda_run *run) {
  mgl_cuda_planning *planning = &run->planning;
  uint32_t lane = threadIdx.x % 32;
  mgl_marker marker = {};
  for (uint64_t iteration = 0;; iteration++) {
    uint32_t failed = 0;
    if (lane == 0 && iteration > 0) {
      failed = mgl_planner_await(run, &planning->wanted, iteration, &marker) ? 0 : 1;
      if (failed == 0) {
        mgl_planner_tell(run, iteration - 1, planning->commands_before);
      }
    }
    if (__shfl_sync(0xffffffffu, failed, 0) != 0) {
      break;
    }
    bool waits = mgl_planner_turn(run, iteration) == 0;
    if (waits && !mgl_planner_await_work(run, iteration)) {
      if (lane == 0) {
        mgl_planner_announce(run, iteration, 255);
      }
      break;
    }
    if (lane == 0) {
      planning->commands_before = planning->commands.own;
      mgl_planner_announce(run, iteration, run->plans[iteration & 1].graph);
      if (!waits && iteration > 0) {
        mgl_planner_trigger(run, iteration);
      }
    }
  }
  if (lane == 0) {
    mgl_trace_mark(run, marker.number);
  }
}

#endif
