// Pass 5, normalise: every task has at most one dependent and one trigger event (MPK, 4.1).
//
// Requires: fuse events, so that every task waits for at most one event. Ensures: dependent[] and
// trigger[] for all tasks, empty ones included, with the same "comes before" between tasks of ops;
// a task that nothing waits for triggers END_OF_TASK_GRAPH.
//
// Forks. A task that triggers events e1 ... ek triggers one fork event instead, on which k empty
// tasks wait that trigger e1 ... ek. All tasks with the same k events share one fork: each ei needs
// all of them anyway, so nothing is delayed. And where these tasks are all that ei needs, ei itself
// is the fork. An event with more than FAN_OUT events behind it forks in levels, so that an
// activation sets off a bounded number of triggers (MGL_MAX_PENDING in twin/protocol.h).
//
// Joins (a task that waits for several events) do not occur: successor-set fusion has made one
// event of them. This is checked, and is why the paper's second transformation is not here.
#include <assert.h>
#include <string.h>

#include "compile/tgraph.h"

enum { FAN_OUT = 48 };  // 3 levels are 110592 events; 3 * 48 pending triggers at most

// A class: tasks that trigger the same events.
typedef struct fork_class {
  const uint32_t *events;  // ascending
  uint32_t event_count;
  uint32_t task_count;
  uint32_t trigger;  // what these tasks trigger
} fork_class;

typedef struct normaliser {
  mgl_tgraph *tg;
  uint32_t *start;     // [task_count + 1] into `triggers`
  uint32_t *triggers;  // events that a task triggers, task by task
  fork_class *classes;
  uint32_t class_count;
  uint32_t *class_of;     // [task_count]
  mgl_span_list empties;  // (dependent event, trigger event) pairs
} normaliser;

// The events that every task triggers, as one array cut by `start`.
static bool list_triggers(normaliser *n) {
  mgl_tgraph *tg = n->tg;
  uint64_t total = 0;
  for (uint32_t event = 0; event < tg->event_count; event++) {
    total += mgl_task_set_size(tg->events[event].in);
  }
  n->start = mgl_arena_alloc_zeroed(&tg->arena, (size_t)tg->task_count + 2, sizeof *n->start);
  n->triggers =
      total < UINT32_MAX ? mgl_arena_alloc(&tg->arena, (size_t)total * sizeof *n->triggers) : NULL;
  if (n->start == NULL || n->triggers == NULL) {
    return false;
  }
  for (int fill = 0; fill < 2; fill++) {
    // First counts into start[task + 2]; then start[task + 1] is each task's cursor.
    for (uint32_t event = 0; event < tg->event_count; event++) {
      mgl_task_set in = tg->events[event].in;
      for (uint32_t i = 0; i < in.span_count; i++) {
        for (uint32_t task = in.spans[i].first; task < in.spans[i].last; task++) {
          if (fill == 0) {
            n->start[task + 2]++;
          } else {
            n->triggers[n->start[task + 1]++] = event;
          }
        }
      }
    }
    for (uint32_t task = 0; fill == 0 && task < tg->task_count; task++) {
      n->start[task + 2] += n->start[task + 1];
    }
  }
  return true;
}

static uint64_t hash_events(const uint32_t *events, uint32_t count) {
  uint64_t hash = count;
  for (uint32_t i = 0; i < count; i++) {
    hash = (hash ^ events[i]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 31;
  }
  return hash;
}

static bool find_classes(normaliser *n) {
  mgl_tgraph *tg = n->tg;
  uint64_t mask = 63;
  while (mask < (uint64_t)tg->task_count * 2) {
    mask = mask * 2 + 1;
  }
  uint32_t *table = mgl_arena_alloc_zeroed(&tg->arena, mask + 1, sizeof *table);
  n->classes = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *n->classes);
  n->class_of = mgl_arena_alloc(&tg->arena, tg->task_count * sizeof *n->class_of);
  if (table == NULL || n->classes == NULL || n->class_of == NULL) {
    return false;
  }
  for (uint32_t task = 0; task < tg->task_count; task++) {
    const uint32_t *events = n->triggers + n->start[task];
    uint32_t count = n->start[task + 1] - n->start[task];
    uint64_t slot = hash_events(events, count) & mask;
    for (; table[slot] != 0; slot = (slot + 1) & mask) {
      const fork_class *c = &n->classes[table[slot] - 1];
      if (c->event_count == count &&
          (count == 0 || memcmp(c->events, events, count * sizeof *events) == 0)) {
        break;
      }
    }
    if (table[slot] == 0) {
      n->classes[n->class_count] = (fork_class){events, count, 0, MGL_NO_EVENT};
      table[slot] = ++n->class_count;
    }
    n->class_of[task] = table[slot] - 1;
    n->classes[n->class_of[task]].task_count++;
  }
  return true;
}

// An empty task between two events.
static bool add_empty(normaliser *n, uint32_t dependent, uint32_t trigger) {
  return mgl_span_list_push(&n->empties, (mgl_span){dependent, trigger});
}

// Empty tasks from `fork` to each of the events but `skip`, in levels.
static bool spread(normaliser *n, uint32_t fork, const uint32_t *events, uint32_t count,
                   uint32_t skip) {
  if (count <= FAN_OUT) {
    for (uint32_t i = 0; i < count; i++) {
      if (events[i] != skip && !add_empty(n, fork, events[i])) {
        return false;
      }
    }
    return true;
  }
  uint32_t parts = FAN_OUT;
  for (uint32_t i = 0; i < parts; i++) {
    uint32_t first = (uint32_t)((uint64_t)count * i / parts);
    uint32_t last = (uint32_t)((uint64_t)count * (i + 1) / parts);
    uint32_t child = last - first == 1 ? events[first] : n->tg->graph_event_count++;
    if (child == skip) {
      continue;
    }
    if (!add_empty(n, fork, child) ||
        (last - first > 1 && !spread(n, child, events + first, last - first, skip))) {
      return false;
    }
  }
  return true;
}

// Chooses what each class triggers. END gets its number last.
static bool make_forks(normaliser *n) {
  mgl_tgraph *tg = n->tg;
  for (uint32_t i = 0; i < n->class_count; i++) {
    fork_class *c = &n->classes[i];
    if (c->event_count == 1) {
      c->trigger = c->events[0];
    }
    for (uint32_t j = 0; c->event_count > 1 && j < c->event_count; j++) {
      if (mgl_task_set_size(tg->events[c->events[j]].in) == c->task_count) {
        c->trigger = c->events[j];
        break;
      }
    }
    if (c->event_count > 1) {
      uint32_t skip = c->trigger;
      c->trigger = skip == MGL_NO_EVENT ? tg->graph_event_count++ : skip;
      if (!spread(n, c->trigger, c->events, c->event_count, skip)) {
        return false;
      }
    }
  }
  uint32_t end = tg->graph_event_count++;
  for (uint32_t i = 0; i < n->class_count; i++) {
    if (n->classes[i].event_count == 0) {
      n->classes[i].trigger = end;
    }
  }
  return true;
}

static bool write_result(normaliser *n) {
  mgl_tgraph *tg = n->tg;
  tg->empty_count = (uint32_t)n->empties.count;
  size_t all = (size_t)tg->task_count + tg->empty_count;
  mgl_tg_task *tasks = mgl_arena_alloc(&tg->arena, all * sizeof *tasks);
  tg->dependent = mgl_arena_alloc(&tg->arena, all * sizeof *tg->dependent);
  tg->trigger = mgl_arena_alloc(&tg->arena, all * sizeof *tg->trigger);
  tg->trigger_count =
      mgl_arena_alloc_zeroed(&tg->arena, tg->graph_event_count, sizeof *tg->trigger_count);
  if (tasks == NULL || tg->dependent == NULL || tg->trigger == NULL || tg->trigger_count == NULL) {
    return false;
  }
  memcpy(tasks, tg->tasks, tg->task_count * sizeof *tasks);
  tg->tasks = tasks;
  for (uint32_t task = 0; task < all; task++) {
    if (task < tg->task_count) {
      tg->dependent[task] = tg->wait[task];
      tg->trigger[task] = n->classes[n->class_of[task]].trigger;
    } else {
      mgl_span pair = n->empties.spans[task - tg->task_count];
      tg->tasks[task] = (mgl_tg_task){.op = MGL_NO_OP};
      tg->dependent[task] = pair.first;
      tg->trigger[task] = pair.last;
    }
    tg->trigger_count[tg->trigger[task]]++;
  }
  return true;
}

mgl_status mgl_pass_normalise(mgl_tgraph *tg, mgl_error *err) {
  normaliser n = {.tg = tg};
  tg->graph_event_count = tg->event_count;
  bool ok = list_triggers(&n) && find_classes(&n) && make_forks(&n) && write_result(&n);
  mgl_span_list_free(&n.empties);
  if (!ok) {
    return mgl_out_of_memory(err);
  }
  tg->report.final_events = tg->event_count;
  tg->report.empty_tasks = tg->empty_count;
  tg->report.added_events = tg->graph_event_count - tg->event_count - 1;  // END is not added
  return MGL_OK;
}
