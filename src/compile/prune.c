// Pass 4b, prune: drops what other dependencies imply.
//
// Requires: fuse events. Ensures: a producer that comes before another producer of the same event
// is gone from its InTasks (the residual add, where the down projection after it is waited for
// too), and ancestors[] holds for every task all tasks that come before it: the same ones as before
// pruning. Rewrites producers; fuse events runs again, since sets may have become equal.
//
// Why: every dropped pair is a trigger less, and most tasks with two trigger events have one of
// them for an implied pair, which normalisation would have to pay for. Method: events stand in
// topological order, so ancestors(e) = in(e) + ancestors(what in(e) waits for) is one sweep; sets
// of spans stay small because everything before a barrier is one span.
#include "compile/tgraph.h"

// Everything that comes before some trigger of the event: the union over the events that its
// triggers wait for. seen[] marks those for which this was added already (by event + 1).
static bool add_implied(mgl_tgraph *tg, uint32_t event, const mgl_task_set *before, uint32_t *seen,
                        mgl_span_list *list) {
  mgl_task_set in = tg->events[event].in;
  for (uint32_t i = 0; i < in.span_count; i++) {
    for (uint32_t task = in.spans[i].first; task < in.spans[i].last; task++) {
      uint32_t wait = tg->wait[task];
      if (wait == MGL_NO_EVENT || seen[wait] == event + 1) {
        continue;
      }
      seen[wait] = event + 1;
      if (!mgl_span_list_add_set(list, before[wait])) {
        return false;
      }
    }
  }
  return true;
}

mgl_status mgl_pass_prune(mgl_tgraph *tg, mgl_error *err) {
  mgl_task_set *before = mgl_arena_alloc_zeroed(&tg->arena, tg->event_count, sizeof *before);
  uint32_t *seen = mgl_arena_alloc_zeroed(&tg->arena, tg->event_count, sizeof *seen);
  tg->ancestors = mgl_arena_alloc_zeroed(&tg->arena, tg->task_count, sizeof *tg->ancestors);
  if (before == NULL || seen == NULL || tg->ancestors == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t event = 0; event < tg->event_count; event++) {
    mgl_task_set *in = &tg->events[event].in;
    mgl_task_set implied;
    mgl_task_set left;
    if (!add_implied(tg, event, before, seen, &tg->scratch) ||
        !mgl_span_list_take(&tg->scratch, &tg->arena, &implied) ||
        !mgl_task_set_subtract(*in, implied, &tg->scratch) ||
        !mgl_span_list_take(&tg->scratch, &tg->arena, &left) ||
        !mgl_span_list_add_set(&tg->scratch, implied) ||
        !mgl_span_list_add_set(&tg->scratch, left) ||
        !mgl_span_list_take(&tg->scratch, &tg->arena, &before[event])) {
      return mgl_out_of_memory(err);
    }
    *in = left;
  }
  tg->report.pruned_pairs = 0;
  for (uint32_t task = 0; task < tg->task_count; task++) {
    if (tg->wait[task] != MGL_NO_EVENT) {
      tg->producers[task] = tg->events[tg->wait[task]].in;
      tg->ancestors[task] = before[tg->wait[task]];
      tg->report.pruned_pairs += mgl_task_set_size(tg->producers[task]);
    }
  }
  size_t op_count = tg->program->op_count;
  return mgl_find_common_ancestors(tg->ancestors, tg->op_first, op_count, &tg->arena, &tg->scratch,
                                   &tg->before) &&
                 mgl_find_settled(tg->before, op_count, &tg->arena, &tg->settled)
             ? MGL_OK
             : mgl_out_of_memory(err);
}
