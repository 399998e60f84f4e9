// The planner's turns in mode full, whose kernels have no warp to spare that lives as long as the
// launch: a warp of a kernel in each iteration, and a kernel of its own between iterations.
//
// One source for host and device, as plan_turn.h. What becomes of a turn the host learns from one
// word (mgl_host_plan_make), by which it queues the kernels of what was planned.
#ifndef MGL_TWIN_FULL_TURN_H
#define MGL_TWIN_FULL_TURN_H

#include "twin/op_launch.h"
#include "twin/plan_turn.h"

// All lanes: whether none of the iterations that follow has more tokens than the latest plan: all
// requests are decoding, none can come, and none is preempted, since all have pages to their ends.
// *left: iterations that follow at most, where all get a row in each.
MGL_PLANNER_FN bool mgl_full_is_calm(mgl_lanes lanes, const mgl_cuda_run *run, uint32_t *left) {
  const mgl_planner *p = run->planner;
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t pages = 0;
  uint32_t prompts = 0;
  uint32_t most = 0;
  for (uint32_t i = lanes.lane; i < p->running; i += lanes.count) {
    const mgl_planner_slot *s = &slots[order[i]];
    uint32_t rest = s->max_tokens - s->token_count;
    most = rest > most ? rest : most;
    prompts += s->computed < s->prefill ? 1 : 0;
    pages += mgl_planner_pages_for(p, s->max_tokens - 1) - s->page_count;
  }
  pages = mgl_lanes_sum(lanes, pages);
  prompts = mgl_lanes_sum(lanes, prompts);
  *left = ~mgl_lanes_min(lanes, ~most);
  bool closed = run->planning.end != MGL_FEED_OPEN && run->planning.pending_count == 0;
  return closed && p->count == p->running && prompts == 0 &&
         p->token_count == p->decode_entry_count && pages <= p->free_count + p->idle_count;
}

// All lanes: what attention begins the items of plan `parity` with.
MGL_PLANNER_FN void mgl_full_note_items(mgl_lanes lanes, const mgl_cuda_run *run, uint32_t parity,
                                        mgl_op_first *firsts) {
  const mgl_cuda_plan *plan = &run->plans[parity];
  for (uint32_t i = lanes.lane; i < plan->item_count; i += lanes.count) {
    const mgl_cuda_item item = plan->items[i];
    const int32_t *table = run->block_tables + (size_t)item.slot * run->block_table_stride;
    mgl_op_first *to = &firsts[parity * MGL_CUDA_MAX_ITEMS + i];
    to->item = item;
    to->own_first = (uint32_t)table[item.position / MGL_CUDA_KV_PAGE_TOKENS];
    to->own_last = (uint32_t)table[(item.position + item.count - 1) / MGL_CUDA_KV_PAGE_TOKENS];
    for (uint32_t warp = 0; warp < MGL_CUDA_CONSUMER_WARPS; warp++) {
      uint32_t position = item.kv_begin + warp * MGL_CUDA_KV_PAGE_TOKENS;
      bool cached = position < item.kv_end && position < item.fresh;
      to->pages[warp] = cached ? (uint32_t)table[position / MGL_CUDA_KV_PAGE_TOKENS] : 0;
    }
  }
  mgl_lanes_sync(lanes);
}

// All lanes: plan `iteration`, and all that the host is told with it. between: no iteration runs,
// and all before this one have ended; else the one before runs. Returns the host's word.
MGL_PLANNER_FN uint64_t mgl_full_turn(mgl_lanes lanes, mgl_cuda_run *run, mgl_op_first *firsts,
                                      uint64_t iteration, bool between) {
  mgl_cuda_planning *planning = &run->planning;
  if (lanes.lane == 0) {
    mgl_turn_tell_iterations(run, between ? iteration : iteration - 1);
    mgl_turn_settle(run, between ? planning->commands.own : planning->commands_before);
  }
  mgl_lanes_sync(lanes);
  uint32_t tokens = mgl_plan_turn(lanes, run, iteration);
  uint32_t left = 0;
  uint32_t flags = between ? (uint32_t)MGL_HOST_PLAN_TOLD : 0;
  if (tokens > 0) {
    mgl_full_note_items(lanes, run, iteration & 1, firsts);
    flags |= mgl_full_is_calm(lanes, run, &left) ? (uint32_t)MGL_HOST_PLAN_CALM : 0;
    flags |= run->planner->entry_count == tokens ? (uint32_t)MGL_HOST_PLAN_DECODES : 0;
  } else if (mgl_turn_is_over(run)) {
    flags |= (uint32_t)MGL_HOST_PLAN_OVER;
  } else if (planning->pending_count > 0) {
    flags |= (uint32_t)MGL_HOST_PLAN_AGAIN;
  }
  if (lanes.lane == 0) {
    planning->commands_before = planning->commands.own;
    if (between && tokens == 0) {  // nothing is under way that a command could still concern
      mgl_turn_settle(run, planning->commands.own);
    }
  }
  mgl_lanes_sync(lanes);
  return mgl_host_plan_make(iteration, left, flags, tokens);
}

#endif
