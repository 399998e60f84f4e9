// Pass 4, fuse events: from one event a dependent pair to as few as say the same (MPK, 4.1).
//
// Requires: depend (or prune). Ensures: no two events have equal InTasks, no two have equal
// OutTasks, and the tasks that a task waits for are its producers.
//
// Method: successor-set fusion makes one event of all events with OutTasks {c}: its InTasks are c's
// producers, which depend already holds as one set. Predecessor-set fusion makes one event of all
// with equal InTasks, found by hashing. That is a fixed point: every task now waits for one event,
// so OutTasks of different events are disjoint and not empty, and InTasks differ. Rejected: merging
// event by event until nothing changes, which costs the pairs themselves.
#include <string.h>

#include "compile/tgraph.h"

// Open addressing over sets; slots hold event + 1.
typedef struct event_table {
  uint32_t *slots;
  uint64_t mask;
} event_table;

static uint32_t *find_slot(const mgl_tgraph *tg, const event_table *table, mgl_task_set set) {
  uint64_t slot = mgl_task_set_hash(set) & table->mask;
  while (table->slots[slot] != 0 &&
         !mgl_task_set_equal(tg->events[table->slots[slot] - 1].in, set)) {
    slot = (slot + 1) & table->mask;
  }
  return &table->slots[slot];
}

// Fills `wait` and the events' InTasks; span_counts[e] becomes the number of spans of OutTasks.
static void group_by_producers(mgl_tgraph *tg, const event_table *table, uint32_t *span_counts,
                               uint32_t *last_task) {
  for (uint32_t task = 0; task < tg->task_count; task++) {
    tg->wait[task] = MGL_NO_EVENT;
    if (tg->producers[task].span_count == 0) {
      continue;
    }
    uint32_t *slot = find_slot(tg, table, tg->producers[task]);
    if (*slot == 0) {
      tg->events[tg->event_count] = (mgl_tg_event){.in = tg->producers[task]};
      last_task[tg->event_count] = UINT32_MAX;
      *slot = ++tg->event_count;
    }
    uint32_t event = *slot - 1;
    tg->wait[task] = event;
    span_counts[event] += last_task[event] + 1 != task || last_task[event] == UINT32_MAX;
    last_task[event] = task;
  }
}

// OutTasks from `wait`.
static bool fill_out_sets(mgl_tgraph *tg, uint32_t *span_counts) {
  mgl_span **spans = mgl_arena_alloc_zeroed(&tg->arena, tg->event_count, sizeof *spans);
  if (spans == NULL) {
    return false;
  }
  for (uint32_t event = 0; event < tg->event_count; event++) {
    spans[event] = mgl_arena_alloc(&tg->arena, span_counts[event] * sizeof **spans);
    if (spans[event] == NULL) {
      return false;
    }
    tg->events[event].out = (mgl_task_set){spans[event], 0};
  }
  for (uint32_t task = 0; task < tg->task_count; task++) {
    if (tg->wait[task] == MGL_NO_EVENT) {
      continue;
    }
    mgl_task_set *out = &tg->events[tg->wait[task]].out;
    mgl_span *own = spans[tg->wait[task]];
    if (out->span_count > 0 && own[out->span_count - 1].last == task) {
      own[out->span_count - 1].last++;
    } else {
      own[out->span_count++] = (mgl_span){task, task + 1};
    }
  }
  return true;
}

mgl_status mgl_pass_fuse_events(mgl_tgraph *tg, mgl_error *err) {
  event_table table = {.mask = 63};
  while (table.mask < (uint64_t)tg->task_count * 2) {
    table.mask = table.mask * 2 + 1;
  }
  table.slots = mgl_arena_alloc_zeroed(&tg->arena, table.mask + 1, sizeof *table.slots);
  uint32_t *span_counts = mgl_arena_alloc_zeroed(&tg->arena, tg->task_count, sizeof *span_counts);
  uint32_t *last_task = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *last_task);
  tg->events = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *tg->events);
  tg->wait = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *tg->wait);
  tg->event_count = 0;
  if (table.slots == NULL || span_counts == NULL || last_task == NULL || tg->events == NULL ||
      tg->wait == NULL) {
    return mgl_out_of_memory(err);
  }
  group_by_producers(tg, &table, span_counts, last_task);
  return fill_out_sets(tg, span_counts) ? MGL_OK : mgl_out_of_memory(err);
}
