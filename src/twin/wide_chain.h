// A turn of the planner between two iterations of the wide class: it ends the one before and begins
// the next, so that a run of large iterations needs nothing of the host but kernels in a queue.
//
// The host queues turn, iteration and sampling on one stream, always an iteration ahead. A turn
// whose plan is not one for the wide class ends the chain: the plan waits in the planner for the
// narrow class (planning.narrow_tokens), and what was queued behind it finds nothing to do. One
// source for host and device, as plan_turn.h.
//   Rejected: a launch of the narrow class for every plan (docs/log/103).
//   Not tried: planning beside the iteration, as the narrow class does. It would save what the
//   planner's decision takes, 1% of the shortest wide iterations, and the work list would still
//   have to wait for the tokens.
#ifndef MGL_TWIN_WIDE_CHAIN_H
#define MGL_TWIN_WIDE_CHAIN_H

#include "twin/wide_turn.h"

enum { MGL_WIDE_LISTS = 11 };

// A graph of the wide class, as in mgl_wide_run.
typedef struct mgl_wide_list {
  uint64_t tokens;       // most of an iteration
  uint64_t tile_tokens;  // of its linears
  uint64_t border;       // of attention's work
  const mgl_cuda_step *steps;
  const uint32_t *step_start;
  const mgl_wide_op *ops;
} mgl_wide_list;

// Every turn of a program gets an mgl_wide_chain, by value.
typedef struct mgl_wide_chain {
  mgl_wide_run *run;
  mgl_wide_plan *plan;
  mgl_wide_work *work;
  uint64_t *zeros;  // [zero_count] 0 before an iteration: counters, and what starts with them
  uint64_t zero_count;
  mgl_wide_shape shape;
  // Of several ranks: counters of the run, in turn; 0 before an iteration (twin/wide_run.h). NULL:
  // they are among `zeros`.
  mgl_word *counters[2];
  uint64_t counter_count;
  uint32_t list_count;
  mgl_wide_list lists[MGL_WIDE_LISTS];  // by tokens, the fewest first
} mgl_wide_chain;

// Each turn tells the host in feed.wide how many turns there were so far, and whether the chain has
// ended.
MGL_PLANNER_FN uint64_t mgl_wide_word_make(uint64_t turns, bool over) {
  return turns << 1 | (over ? 1u : 0);
}
MGL_PLANNER_FN uint64_t mgl_wide_word_turns(uint64_t word) {
  return word >> 1;
}
MGL_PLANNER_FN bool mgl_wide_word_over(uint64_t word) {
  return (word & 1) != 0;
}

// One lane: an iteration has ended. All that was read of commands was read before its plan.
MGL_PLANNER_FN void mgl_wide_chain_tell(mgl_cuda_run *run, const mgl_wide_plan *plan,
                                        uint64_t now_ns) {
  mgl_cuda_planning *planning = &run->planning;
  uint64_t iteration = planning->told++;
  if (mgl_ring_has_room(&run->feed->iterations, &planning->iterations, MGL_FEED_ITERATIONS)) {
    mgl_feed_iteration *to = &run->iterations[planning->iterations.own & (MGL_FEED_ITERATIONS - 1)];
    *to = plan->note;
    to->iteration = iteration;
    to->ns = now_ns - planning->wide_ns;
    to->planning_ns = planning->planning_ns;
    mgl_ring_publish(&run->feed->iterations, &planning->iterations);
  }
  mgl_turn_settle(run, planning->commands.own);
}

// All lanes: this iteration's counters are those that the turn before has cleared.
MGL_PLANNER_FN void mgl_wide_chain_turn_counters(mgl_lanes lanes, const mgl_wide_chain *chain) {
  mgl_word *last = chain->run->counters;
  mgl_word *now = chain->counters[last == chain->counters[0] ? 1 : 0];
  if (now == NULL) {
    return;
  }
  mgl_lanes_sync(lanes);  // all lanes have read
  for (uint64_t i = lanes.lane; i < chain->counter_count; i += lanes.count) {
    mgl_store_relaxed(&last[i], 0);
  }
  if (lanes.lane == 0) {
    chain->run->counters = now;
  }
}

// All lanes: the plan that waits in the planner, as the next iteration finds it.
MGL_PLANNER_FN void mgl_wide_chain_begin(mgl_lanes lanes, mgl_cuda_run *run,
                                         const mgl_wide_chain *chain, uint64_t now_ns) {
  mgl_cuda_planning *planning = &run->planning;
  for (uint64_t i = lanes.lane; i < chain->zero_count; i += lanes.count) {
    chain->zeros[i] = 0;
  }
  mgl_wide_chain_turn_counters(lanes, chain);
  uint32_t list = 0;
  while (chain->lists[list].tokens < planning->wide_tokens) {
    list++;
  }
  mgl_wide_shape shape = chain->shape;
  shape.border = (uint32_t)chain->lists[list].border;
  mgl_wide_turn(lanes, run, &shape, chain->plan, chain->work);
  if (lanes.lane == 0) {
    chain->run->steps = chain->lists[list].steps;
    chain->run->tile_tokens = chain->lists[list].tile_tokens;
    chain->run->step_start = chain->lists[list].step_start;
    chain->run->ops = chain->lists[list].ops;
    chain->run->block_tables = run->block_tables;
    planning->wide_runs = 1;
    planning->wide_ns = now_ns;
  }
}

// One lane: what is queued behind this turn finds nothing to do.
MGL_PLANNER_FN void mgl_wide_chain_end(mgl_cuda_run *run, const mgl_wide_chain *chain) {
  chain->run->steps = NULL;
  chain->plan->logit_row_count = 0;
  run->planning.wide_tokens = 0;
  run->planning.wide_runs = 0;
}

// All lanes: what is computed behind the iteration that has ended. Returns whether the wide class
// does it.
MGL_PLANNER_FN bool mgl_wide_chain_plan(mgl_lanes lanes, mgl_cuda_run *run,
                                        const mgl_wide_chain *chain, uint64_t now_ns) {
  mgl_cuda_planning *planning = &run->planning;
  if (lanes.lane == 0) {
    mgl_wide_chain_tell(run, chain->plan, now_ns);
  }
  mgl_lanes_sync(lanes);
  uint32_t tokens = mgl_turn_decide(lanes, run, planning->told);
  bool wide = mgl_turn_is_wide(lanes, run, tokens);
  if (lanes.lane == 0) {
    planning->commands_before = planning->commands.own;
    planning->narrow_tokens = wide ? 0 : tokens;
  }
  if (wide) {
    mgl_turn_leave_to_wide(lanes, run, tokens);
    return true;
  }
  return false;
}

// All lanes, behind an iteration, or in front of the chain's first one. Then, of any number of
// lanes, mgl_wide_chain_cut.
MGL_PLANNER_FN void mgl_wide_chain_turn(mgl_lanes lanes, mgl_cuda_run *run,
                                        const mgl_wide_chain *chain, uint64_t now_ns) {
  mgl_cuda_planning *planning = &run->planning;
  bool goes_on = planning->wide_tokens != 0 &&
                 mgl_load_relaxed(&chain->run->fault) == (uint64_t)MGL_WIDE_FAULT_NONE;
  bool runs = planning->wide_runs != 0;
  mgl_lanes_sync(lanes);  // all lanes have read
  if (goes_on && runs) {
    goes_on = mgl_wide_chain_plan(lanes, run, chain, now_ns);
  }
  if (goes_on) {
    mgl_wide_chain_begin(lanes, run, chain, now_ns);
  } else if (lanes.lane == 0) {
    mgl_wide_chain_end(run, chain);
  }
  if (lanes.lane == 0) {
    planning->wide_turns++;
    mgl_store_release_system(&run->feed->wide, mgl_wide_word_make(planning->wide_turns, !goes_on));
  }
  mgl_lanes_sync(lanes);
}

// All lanes: the cuts of attention's work, if the turn has begun an iteration.
MGL_PLANNER_FN void mgl_wide_chain_cut(mgl_lanes lanes, const mgl_wide_chain *chain) {
  if (chain->run->steps != NULL) {
    mgl_wide_build_cuts(lanes, &chain->shape, chain->work);
  }
}

#endif
