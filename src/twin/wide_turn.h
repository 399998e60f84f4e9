// A plan of the planner in the megakernel for the wide class: what plan_turn.h is for up to 64
// tokens. One source for host and device. By then all tokens of the plan's rows are known: the
// launch before has ended.
#ifndef MGL_TWIN_WIDE_TURN_H
#define MGL_TWIN_WIDE_TURN_H

#include "twin/plan_turn.h"
#include "twin/wide_run.h"

// One lane: a row.
MGL_PLANNER_FN void mgl_wide_turn_row(const mgl_cuda_run *run, mgl_wide_plan *plan,
                                      const mgl_plan_entry *entry, uint32_t row, uint32_t number) {
  const mgl_cuda_sequence *s = &run->sequences[entry->slot];
  uint32_t position = entry->position + number;
  plan->tokens[row] = position < s->token_count ? s->tokens[position] : 0;
  plan->positions[row] = position;
  plan->slots[row] = entry->slot;
}

// One lane: what the host is told.
MGL_PLANNER_FN void mgl_wide_turn_note(const mgl_planner *p, uint64_t kv_tokens,
                                       mgl_feed_iteration *note) {
  note->decode_tokens = p->decode_entry_count;
  note->prompt_tokens = p->token_count - p->decode_entry_count;
  note->kv_tokens = kv_tokens;
  note->counts = p->counts;
  note->running = p->running;
  note->waiting = p->count - p->running;
  note->pages_used = p->limits.page_count - p->free_count - p->idle_count;
  note->pages_used_most = p->pages_used_most;
}

// All lanes: what the planner decided, as the tasks of the wide class read it, but for the cuts of
// attention's work (mgl_wide_build_cuts).
MGL_PLANNER_FN void mgl_wide_turn(mgl_lanes lanes, mgl_cuda_run *run, const mgl_wide_shape *shape,
                                  mgl_wide_plan *plan, mgl_wide_work *work) {
  const mgl_planner *p = run->planner;
  const mgl_plan_entry *entries = (const mgl_plan_entry *)mgl_planner_at(p, p->entries_at);
  uint32_t rows = 0;
  uint32_t logits = 0;
  uint64_t kv_tokens = 0;
  uint32_t takes_rows = 0;
  for (uint32_t base = 0; base < p->entry_count; base += lanes.count) {
    uint32_t idx = base + lanes.lane;
    bool there = idx < p->entry_count;
    bool samples = there && (entries[idx].flags & MGL_ENTRY_SAMPLES) != 0;
    uint32_t count = there ? entries[idx].count : 0;
    uint32_t all_rows, all_logits;
    uint32_t row = rows + mgl_lanes_prefix(lanes, count, &all_rows);
    uint32_t logit = logits + mgl_lanes_prefix(lanes, samples ? 1 : 0, &all_logits);
    takes_rows +=
        mgl_lanes_sum(lanes, samples && run->sequences[entries[idx].slot].takes_row != 0 ? 1 : 0);
    kv_tokens += mgl_lanes_sum(lanes, idx < p->decode_entry_count ? entries[idx].position + 1 : 0);
    if (there) {
      run->places[idx].row = row;
    }
    if (samples) {
      plan->logit_rows[logit] = row + count - 1;
      plan->logit_slots[logit] = entries[idx].slot;
    }
    if (count == 1) {
      mgl_wide_turn_row(run, plan, &entries[idx], row, 0);
    }
    rows += all_rows;
    logits += all_logits;
  }
  mgl_lanes_sync(lanes);
  for (uint32_t i = p->decode_entry_count; i < p->entry_count; i++) {
    for (uint32_t j = lanes.lane; entries[i].count > 1 && j < entries[i].count; j += lanes.count) {
      mgl_wide_turn_row(run, plan, &entries[i], run->places[i].row + j, j);
    }
  }
  if (lanes.lane == 0) {
    plan->token_count = rows;
    plan->sequence_count = p->entry_count;
    plan->logit_row_count = logits;
    plan->takes_rows = takes_rows;
    mgl_wide_turn_note(p, kv_tokens, &plan->note);
  }
  mgl_lanes_sync(lanes);
  mgl_wide_build_items(lanes, shape, entries, p->entry_count, work);
}

#endif
