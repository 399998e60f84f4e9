// Pass 6, linearise: Algorithm 1 of MPK, breadth first over events.
//
// Requires: normalise. Ensures: order[] holds every task once; the tasks that wait for nothing come
// first; the tasks that wait for an event are consecutive, empty ones first; a task comes behind
// all tasks that trigger what it waits for. Events get their final numbers in the order of their
// tasks, END_OF_TASK_GRAPH the last.
//
// Breadth first and not depth first, so that the tasks of a stage stand together and workers that
// walk through their lists in this order stay near each other.
#include <assert.h>

#include "compile/tgraph.h"

// The tasks that wait for each event, as one array cut by `start`; empty tasks first.
typedef struct waiters {
  uint32_t *start;  // [graph_event_count + 1]
  uint32_t *tasks;
} waiters;

static bool find_waiters(mgl_tgraph *tg, waiters *w) {
  uint32_t all = tg->task_count + tg->empty_count;
  w->start =
      mgl_arena_alloc_zeroed(&tg->arena, (size_t)tg->graph_event_count + 2, sizeof *w->start);
  w->tasks = mgl_arena_alloc(&tg->arena, all * sizeof *w->tasks);
  if (w->start == NULL || w->tasks == NULL) {
    return false;
  }
  for (uint32_t task = 0; task < all; task++) {
    if (tg->dependent[task] != MGL_NO_EVENT) {
      w->start[tg->dependent[task] + 2]++;
    }
  }
  for (uint32_t event = 0; event < tg->graph_event_count; event++) {
    w->start[event + 2] += w->start[event + 1];
  }
  for (uint32_t i = 0; i < all; i++) {
    uint32_t task = i < tg->empty_count ? tg->task_count + i : i - tg->empty_count;
    if (tg->dependent[task] != MGL_NO_EVENT) {
      w->tasks[w->start[tg->dependent[task] + 1]++] = task;
    }
  }
  return true;
}

typedef struct linear_state {
  mgl_tgraph *tg;
  uint32_t task_at;   // next position
  uint32_t queued;    // events in event_order so far
  uint32_t *missing;  // triggers of each event whose tasks are not placed yet
} linear_state;

static void append(linear_state *s, uint32_t task) {
  mgl_tgraph *tg = s->tg;
  uint32_t event = tg->trigger[task];
  tg->order[s->task_at++] = task;
  // END, the last one, is numbered at the end.
  if (--s->missing[event] == 0 && event != tg->graph_event_count - 1) {
    tg->event_order[s->queued++] = event;
  }
}

mgl_status mgl_pass_linearise(mgl_tgraph *tg, mgl_error *err) {
  uint32_t all = tg->task_count + tg->empty_count;
  linear_state s = {.tg = tg};
  waiters w;
  tg->order = mgl_arena_alloc(&tg->arena, all * sizeof *tg->order);
  tg->event_order = mgl_arena_alloc(&tg->arena, tg->graph_event_count * sizeof *tg->event_order);
  tg->event_first =
      mgl_arena_alloc(&tg->arena, ((size_t)tg->graph_event_count + 1) * sizeof *tg->event_first);
  s.missing = mgl_arena_alloc(&tg->arena, tg->graph_event_count * sizeof *s.missing);
  if (tg->order == NULL || tg->event_order == NULL || tg->event_first == NULL ||
      s.missing == NULL || !find_waiters(tg, &w)) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t event = 0; event < tg->graph_event_count; event++) {
    s.missing[event] = tg->trigger_count[event];
  }
  for (uint32_t task = 0; task < tg->task_count; task++) {
    if (tg->dependent[task] == MGL_NO_EVENT) {
      append(&s, task);
    }
  }
  tg->ready_count = s.task_at;
  for (uint32_t i = 0; i < s.queued; i++) {
    uint32_t event = tg->event_order[i];
    tg->event_first[i] = s.task_at;
    for (uint32_t j = w.start[event]; j < w.start[event + 1]; j++) {
      append(&s, w.tasks[j]);
    }
  }
  if (s.task_at != all || s.queued != tg->graph_event_count - 1) {
    return mgl_error_set(err, MGL_ERR_INTERNAL, "the task graph has a cycle: %u of %u tasks placed",
                         s.task_at, all);
  }
  tg->event_order[s.queued] = tg->graph_event_count - 1;
  tg->event_first[s.queued] = all;
  tg->event_first[s.queued + 1] = all;
  return MGL_OK;
}
