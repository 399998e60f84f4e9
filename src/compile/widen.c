// Pass 4c, widen: one event for an op where exact ones would cost more than they say.
//
// Requires: fuse events after prune. Ensures: what comes before what is the same or more; the
// contracts of fuse events and prune hold again. Not with options->exact.
//
// Where tiles of two ops are cut at different places, a producer triggers several of the consumer's
// events, and normalisation pays for each such group of producers with a fork event and an empty
// task per event. With a few workers that is a lot: 8 tasks of qkv_proj and 8 heads of attention
// share nothing evenly, and forks are then two thirds of all tasks. The producers of one stage are
// balanced and end together, so a common event delays little. So an op whose own events would need
// more than 1/FORK_SHARE of the tasks that take part waits, in all its tasks, for all of their
// producers. For CUDA that is every op that would need a fork at all: there it would stand on the
// critical path, a chain of two more atomic operations, where one event costs nothing.
#include "compile/tgraph.h"

enum { FORK_SHARE = 4 };

typedef struct widener {
  mgl_tgraph *tg;
  uint32_t *seen;    // [event_count] op + 1 for which it was listed
  uint32_t *events;  // of the op at hand
  uint32_t event_count;
  uint64_t *signature;  // [task_count] of the events of this op that a producer triggers
  uint32_t *hits;       // [task_count] their number
} widener;

static void list_events(widener *w, uint32_t op) {
  const mgl_tgraph *tg = w->tg;
  w->event_count = 0;
  for (uint32_t task = tg->op_first[op]; task < tg->op_first[op + 1]; task++) {
    uint32_t event = tg->wait[task];
    if (event != MGL_NO_EVENT && w->seen[event] != op + 1) {
      w->seen[event] = op + 1;
      w->events[w->event_count++] = event;
    }
  }
}

// Fork events and empty tasks that this op's events need, counted by runs of producers with the
// same events; *out_producers: those that take part. Leaves signature and hits zeroed.
static uint64_t count_forks(const widener *w, mgl_task_set producers, uint32_t *out_producers) {
  for (uint32_t e = 0; e < w->event_count; e++) {
    mgl_task_set in = w->tg->events[w->events[e]].in;
    for (uint32_t i = 0; i < in.span_count; i++) {
      for (uint32_t task = in.spans[i].first; task < in.spans[i].last; task++) {
        w->signature[task] = (w->signature[task] ^ (e + 1)) * 0x9e3779b97f4a7c15u;
        w->hits[task]++;
      }
    }
  }
  uint64_t forks = 0;
  uint64_t previous = 0;
  *out_producers = 0;
  for (uint32_t i = 0; i < producers.span_count; i++) {
    for (uint32_t task = producers.spans[i].first; task < producers.spans[i].last; task++) {
      if (w->hits[task] > 1 && w->signature[task] != previous) {
        forks += 1 + w->hits[task];
      }
      previous = w->signature[task];
      w->signature[task] = 0;
      w->hits[task] = 0;
      ++*out_producers;
    }
  }
  return forks;
}

static bool widen_op(widener *w, uint32_t op) {
  mgl_tgraph *tg = w->tg;
  mgl_task_set all;
  list_events(w, op);
  if (w->event_count < 2) {
    return true;
  }
  for (uint32_t e = 0; e < w->event_count; e++) {
    if (!mgl_span_list_add_set(&tg->scratch, tg->events[w->events[e]].in)) {
      return false;
    }
  }
  if (!mgl_span_list_take(&tg->scratch, &tg->arena, &all)) {
    return false;
  }
  uint32_t producers = 0;
  uint64_t forks = count_forks(w, all, &producers);
  uint64_t tasks = (uint64_t)producers + tg->op_first[op + 1] - tg->op_first[op];
  bool is_cuda = tg->options->target == MGL_TARGET_CUDA;
  if (is_cuda ? forks > 0 : forks * FORK_SHARE > tasks) {
    for (uint32_t task = tg->op_first[op]; task < tg->op_first[op + 1]; task++) {
      tg->producers[task] = all;
    }
    tg->report.widened_ops++;
  }
  return true;
}

mgl_status mgl_pass_widen(mgl_tgraph *tg, mgl_error *err) {
  if (tg->options->exact) {
    return MGL_OK;
  }
  widener w = {.tg = tg};
  w.seen = mgl_arena_alloc_zeroed(&tg->arena, tg->event_count, sizeof *w.seen);
  w.events = mgl_arena_alloc(&tg->arena, tg->event_count * sizeof *w.events);
  w.signature = mgl_arena_alloc_zeroed(&tg->arena, tg->task_count, sizeof *w.signature);
  w.hits = mgl_arena_alloc_zeroed(&tg->arena, tg->task_count, sizeof *w.hits);
  if (w.seen == NULL || w.events == NULL || w.signature == NULL || w.hits == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t op = 0; op < tg->program->op_count; op++) {
    if (!widen_op(&w, op)) {
      return mgl_out_of_memory(err);
    }
  }
  if (tg->report.widened_ops == 0) {
    return MGL_OK;
  }
  MGL_TRY(mgl_pass_fuse_events(tg, err));
  MGL_TRY(mgl_pass_prune(tg, err));
  return mgl_pass_fuse_events(tg, err);
}
