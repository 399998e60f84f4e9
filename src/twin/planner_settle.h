// The turn's first half: what ended, is paused or is resumed leaves or enters the planner's order.
// One source for host and device (twin/planner_lanes.h); all lanes call.
#ifndef MGL_TWIN_PLANNER_SETTLE_H
#define MGL_TWIN_PLANNER_SETTLE_H

#include "twin/planner_pages.h"

MGL_PLANNER_FN bool mgl_planner_leaves(const mgl_planner_slot *s) {
  return s->state == MGL_SLOT_LAST || s->wishes != 0;
}

// Takes those that leave out of order[] and lists them in leaving[]; returns how many.
MGL_PLANNER_FN uint32_t mgl_planner_compact(mgl_lanes lanes, mgl_planner *p) {
  const mgl_planner_slot *slots = mgl_planner_slots(p);
  uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t *leaving = mgl_planner_array(p, p->leaving_at);
  uint32_t kept = 0, left = 0, left_running = 0, left_before_cursor = 0;
  for (uint32_t base = 0; base < p->count; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    bool listed = i < p->count;
    uint32_t slot = listed ? order[i] : 0;
    bool leaves = listed && mgl_planner_leaves(&slots[slot]);
    uint32_t total_kept, total_left;
    uint32_t kept_before = mgl_lanes_prefix(lanes, listed && !leaves ? 1 : 0, &total_kept);
    uint32_t before = mgl_lanes_prefix(lanes, leaves ? 1 : 0, &total_left);
    left_running += mgl_lanes_sum(lanes, leaves && i < p->running ? 1 : 0);
    left_before_cursor += mgl_lanes_sum(lanes, leaves && i < p->cursor ? 1 : 0);
    if (leaves) {
      leaving[left + before] = slot;
    } else if (listed) {
      order[kept + kept_before] = slot;  // not above any index that is still to be read
    }
    kept += total_kept;
    left += total_left;
  }
  mgl_lanes_sync(lanes);
  if (lanes.lane == 0) {
    p->count = kept;
    p->running -= left_running;
    p->cursor -= left_before_cursor;
  }
  mgl_lanes_sync(lanes);
  return left;
}

// The pages of those in leaving[] become free, and their slots but for paused ones.
MGL_PLANNER_FN void mgl_planner_let_go(mgl_lanes lanes, mgl_planner *p, uint32_t count) {
  mgl_planner_slot *slots = mgl_planner_slots(p);
  const uint32_t *leaving = mgl_planner_array(p, p->leaving_at);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t slot = leaving[i];
    mgl_planner_slot *s = &slots[slot];
    mgl_planner_release(lanes, p, slot);
    if (lanes.lane == 0) {
      if (s->state != MGL_SLOT_LAST && (s->wishes & MGL_WISH_END) == 0) {
        s->state = MGL_SLOT_PAUSED;
        p->paused++;
      } else {
        s->state = MGL_SLOT_FREE;
        s->wishes = 0;
        s->freed_step = p->step;
      }
    }
  }
  mgl_lanes_sync(lanes);
}

// Frees the slots of paused requests that end, and puts those that are resumed in front of the ones
// that wait.
MGL_PLANNER_FN void mgl_planner_wake(mgl_lanes lanes, mgl_planner *p) {
  mgl_planner_slot *slots = mgl_planner_slots(p);
  uint32_t *order = mgl_planner_array(p, p->order_at);
  uint32_t *woken = mgl_planner_array(p, p->leaving_at);
  uint32_t resumed = 0, ended = 0;
  for (uint32_t base = 0; base < p->limits.slots; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    bool paused = i < p->limits.slots && slots[i].state == MGL_SLOT_PAUSED;
    bool ends = paused && (slots[i].wishes & MGL_WISH_END) != 0;
    bool resumes = paused && slots[i].wishes == 0;
    uint32_t total;
    uint32_t before = mgl_lanes_prefix(lanes, resumes ? 1 : 0, &total);
    ended += mgl_lanes_sum(lanes, ends ? 1 : 0);
    if (resumes) {
      woken[resumed + before] = i;
      slots[i].state = MGL_SLOT_WAITING;
    } else if (ends) {
      slots[i].state = MGL_SLOT_FREE;
      slots[i].wishes = 0;
      slots[i].freed_step = p->step;
    }
    resumed += total;
  }
  // From the end: each round writes above what it and the rounds after it read.
  uint32_t waiting = p->count - p->running;
  for (uint32_t base = 0; base < waiting && resumed > 0; base += lanes.count) {
    uint32_t i = base + lanes.lane;
    uint32_t at = i < waiting ? p->count - 1 - i : 0;
    uint32_t slot = order[at];
    mgl_lanes_sync(lanes);
    if (i < waiting) {
      order[at + resumed] = slot;
    }
  }
  mgl_lanes_sync(lanes);
  for (uint32_t i = lanes.lane; i < resumed; i += lanes.count) {
    order[p->running + i] = woken[i];
  }
  mgl_lanes_sync(lanes);
  if (lanes.lane == 0) {
    p->count += resumed;
    p->paused -= resumed + ended;
  }
  mgl_lanes_sync(lanes);
}

MGL_PLANNER_FN void mgl_planner_settle_on(mgl_lanes lanes, mgl_planner *p) {
  if (p->changes == 0) {
    return;
  }
  uint32_t left = mgl_planner_compact(lanes, p);
  mgl_planner_let_go(lanes, p, left);
  if (p->paused > 0) {
    mgl_planner_wake(lanes, p);
  }
  if (lanes.lane == 0) {
    p->changes = 0;
  }
  mgl_lanes_sync(lanes);
}

#endif
