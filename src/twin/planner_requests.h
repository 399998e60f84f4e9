// Requests enter the planner, and what is wished of them; and all calls as data. One source for
// host and device; but for mgl_planner_obey, one lane calls.
#ifndef MGL_TWIN_PLANNER_REQUESTS_H
#define MGL_TWIN_PLANNER_REQUESTS_H

#include "twin/planner_plan.h"

MGL_PLANNER_FN bool mgl_planner_is_free_on(const mgl_planner *p, uint32_t slot) {
  const mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  return s->state == MGL_SLOT_FREE && (p->limits.late == 0 || s->freed_step != p->step);
}

MGL_PLANNER_FN void mgl_planner_submit_on(mgl_planner *p, uint32_t slot,
                                          const mgl_planner_request *request) {
  mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  s->state = MGL_SLOT_WAITING;
  s->wishes = 0;
  s->prompt_count = request->prompt_count;
  s->max_tokens = request->max_tokens;
  s->token_count = request->prompt_count;
  s->computed = 0;
  s->prefill = 0;
  s->page_count = 0;
  s->key_count = p->limits.prefix_cache != 0 ? request->key_count : 0;
  s->keys = request->keys;
  s->masked_to = request->masked_to != 0 ? request->masked_to : UINT32_MAX;
  mgl_planner_array(p, p->order_at)[p->count++] = slot;
}

MGL_PLANNER_FN void mgl_planner_wish_on(mgl_planner *p, uint32_t slot, mgl_slot_wish wish) {
  mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  if (s->state != MGL_SLOT_FREE) {
    s->wishes |= (uint32_t)wish;
    p->changes++;
  }
}

MGL_PLANNER_FN void mgl_planner_resume_on(mgl_planner *p, uint32_t slot) {
  mgl_planner_slot *s = &mgl_planner_slots(p)[slot];
  if ((s->wishes & MGL_WISH_PAUSE) != 0) {
    s->wishes &= ~(uint32_t)MGL_WISH_PAUSE;
    p->changes++;
  }
}

MGL_PLANNER_FN void mgl_planner_mask_on(mgl_planner *p, uint32_t slot, uint32_t masked_to) {
  mgl_planner_slots(p)[slot].masked_to = masked_to;
}

// All lanes: does what the command says.
MGL_PLANNER_FN void mgl_planner_obey(mgl_lanes lanes, mgl_planner *p,
                                     const mgl_planner_command *command) {
  if (command->call == MGL_CALL_SETTLE) {
    mgl_planner_settle_on(lanes, p);
  } else if (command->call == MGL_CALL_PLAN) {
    (void)mgl_planner_plan_on(lanes, p);
  } else if (lanes.lane == 0) {
    if (command->call == MGL_CALL_SUBMIT) {
      mgl_planner_submit_on(p, command->slot, &command->request);
    } else if (command->call == MGL_CALL_RESUME) {
      mgl_planner_resume_on(p, command->slot);
    } else if (command->call == MGL_CALL_MASK) {
      mgl_planner_mask_on(p, command->slot, command->request.masked_to);
    } else {
      mgl_planner_wish_on(p, command->slot,
                          command->call == MGL_CALL_END ? MGL_WISH_END : MGL_WISH_PAUSE);
    }
  }
  mgl_lanes_sync(lanes);
}

#endif
