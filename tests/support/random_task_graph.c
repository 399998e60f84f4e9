// Groups of tasks in linear order: group 0 is ready, group g > 0 waits for event g - 1. Behind the
// groups' events stand an EMPTY event and the end. Every task triggers the event of a later group
// or the end, so the order is topological and every task leads to the end.
#include "support/random_task_graph.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

uint64_t splitmix_next(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint32_t splitmix_below(uint64_t *state, uint32_t bound) {
  return (uint32_t)((splitmix_next(state) >> 32) * bound >> 32);
}

// A group's tasks while the graph is being made: what each triggers, as a group number; group_count
// is the end.
typedef struct group {
  uint32_t count;
  uint8_t to[RANDOM_GRAPH_MAX_TASKS];
  bool empty[RANDOM_GRAPH_MAX_TASKS];
  bool dependent;
} group;

typedef struct plan {
  group groups[RANDOM_GRAPH_MAX_GROUPS];
  uint32_t group_count;
  uint32_t task_count;
} plan;

static void add(plan *p, uint32_t from, uint32_t to, bool empty) {
  group *g = &p->groups[from];
  if (p->task_count < RANDOM_GRAPH_MAX_TASKS) {
    g->to[g->count] = (uint8_t)to;
    g->empty[g->count++] = empty && from > 0 && !g->dependent;
    p->task_count++;
  }
}

static uint32_t later_than(uint64_t *state, const plan *p, uint32_t from) {
  for (;;) {
    uint32_t to = from + 1 + splitmix_below(state, p->group_count - from);
    if (to == p->group_count || !p->groups[to].dependent) {
      return to;
    }
  }
}

static void make_plan(uint64_t *state, uint32_t max_groups, plan *p) {
  memset(p, 0, sizeof *p);
  p->group_count = 1 + splitmix_below(state, max_groups);
  for (uint32_t g = 2; g < p->group_count; g++) {
    p->groups[g].dependent = splitmix_below(state, 12) == 0;
  }
  // What every group needs: one task, and one trigger.
  for (uint32_t g = 0; g < p->group_count; g++) {
    add(p, g, later_than(state, p, g), g > 0 && splitmix_below(state, 5) == 0);
    if (g > 0 && !p->groups[g].dependent) {
      add(p, splitmix_below(state, g), g, splitmix_below(state, 4) == 0);
    }
  }
  uint32_t more = splitmix_below(state, 3 * p->group_count + 1);
  for (uint32_t i = 0; i < more; i++) {
    uint32_t from = splitmix_below(state, p->group_count);
    add(p, from, later_than(state, p, from), splitmix_below(state, 4) == 0);
  }
  if (splitmix_below(state, 3) == 0) {  // many tasks behind one event
    uint32_t from = splitmix_below(state, p->group_count);
    uint32_t wide = 4 + splitmix_below(state, 24);
    uint32_t to = later_than(state, p, from);
    for (uint32_t i = 0; i < wide && p->task_count + 24 < RANDOM_GRAPH_MAX_TASKS; i++) {
      add(p, from, to, false);
    }
  }
}

// Groups of which some empty task may trigger an event that nothing of this iteration waits for.
static void add_leaf_triggers(uint64_t *state, plan *p) {
  for (uint32_t g = 1; g < p->group_count; g++) {
    uint32_t from = 1 + splitmix_below(state, p->group_count - 1);
    if (p->groups[g].dependent) {
      add(p, p->groups[from].dependent ? 1 : from, g, true);
    }
  }
  if (p->group_count > 1 && splitmix_below(state, 2) == 0) {
    uint32_t from = 1 + splitmix_below(state, p->group_count - 1);
    if (!p->groups[from].dependent) {
      add(p, from, p->group_count + 1, true);  // the EMPTY event
    }
  }
}

// Fills tasks and events from the groups; trigger counts and flags follow from them.
static void fill(uint64_t *state, const plan *p, random_labels labels, mgl_task_graph *g) {
  uint32_t idle = splitmix_below(state, 3) == 0 ? splitmix_below(state, g->worker_count)
                                                : MGL_NO_WORKER;  // gets no AOT task
  uint32_t at = 0;
  for (uint32_t e = 0; e < g->event_count; e++) {
    g->events[e].type = MGL_EVENT_EMPTY;
  }
  g->events[g->event_count - 1].type = MGL_EVENT_END_OF_TASK_GRAPH;
  for (uint32_t k = 0; k < p->group_count; k++) {
    const group *from = &p->groups[k];
    mgl_event *event = k > 0 ? &g->events[k - 1] : NULL;
    if (k == 0) {
      g->ready_count = from->count;
    } else {
      event->first_task = at;
      event->last_task = at + from->count;
      event->type = from->dependent                 ? MGL_EVENT_LAUNCH_DEPENDENT_TASKS
                    : splitmix_below(state, 3) == 0 ? MGL_EVENT_LAUNCH_MASSIVE_TASKS
                                                    : MGL_EVENT_LAUNCH_TASKS;
    }
    for (uint32_t i = 0; i < from->count; i++, at++) {
      mgl_task *task = &g->tasks[at];
      bool jit = labels == RANDOM_JIT || (labels == RANDOM_HYBRID && splitmix_below(state, 2) == 0);
      uint32_t worker = splitmix_below(state, g->worker_count);
      if (worker == idle && g->worker_count > 1) {
        worker = (worker + 1) % g->worker_count;
      }
      task->type = from->empty[i] ? UINT16_MAX : 1;
      task->flags = from->empty[i] ? MGL_TASK_EMPTY : jit ? MGL_TASK_JIT : 0;
      task->worker = task->flags == 0 ? (uint16_t)worker : MGL_NO_WORKER;
      task->op = from->empty[i] ? MGL_NO_OP : k;
      task->begin = i;
      task->end = i + 1;
      task->dependent_event = k > 0 ? k - 1 : MGL_NO_EVENT;
      task->trigger_event = from->to[i] == p->group_count       ? g->event_count - 1
                            : from->to[i] == p->group_count + 1 ? g->event_count - 2
                                                                : from->to[i] - 1u;
      g->events[task->trigger_event].trigger_count++;
      if (event != NULL) {
        unsigned flag = from->empty[i] ? MGL_EVENT_HAS_EMPTY
                        : jit          ? MGL_EVENT_HAS_JIT
                                       : MGL_EVENT_HAS_AOT;
        event->flags = (uint16_t)(event->flags | flag);
      }
    }
  }
}

static void fill_lists(mgl_task_graph *g) {
  uint32_t at = 0;
  for (uint32_t w = 0; w < g->worker_count; w++) {
    g->aot_start[w] = at;
    for (uint32_t i = 0; i < g->task_count; i++) {
      if (g->tasks[i].flags == 0 && g->tasks[i].worker == w) {
        g->aot_tasks[at++] = i;
      }
    }
  }
  g->aot_start[g->worker_count] = at;
}

// seen[i]: what task `of` has already been found to wait for.
static uint32_t find_preds(const mgl_task_graph *g, uint32_t of, bool *seen, uint32_t *out) {
  uint32_t event = g->tasks[of].dependent_event;
  uint32_t found = 0;
  if (event == MGL_NO_EVENT || g->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
    return 0;
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->tasks[i].trigger_event == event && !seen[i]) {
      seen[i] = true;
      if ((g->tasks[i].flags & MGL_TASK_EMPTY) != 0) {
        found += find_preds(g, i, seen, out + found);
      } else {
        out[found++] = i;
      }
    }
  }
  return found;
}

random_task_graph *random_task_graph_create(uint64_t *state, uint32_t workers, uint32_t max_groups,
                                            random_labels labels) {
  plan p;
  assert(max_groups <= RANDOM_GRAPH_MAX_GROUPS);
  make_plan(state, max_groups, &p);
  add_leaf_triggers(state, &p);
  random_task_graph *r = mgl_alloc_zeroed(1, sizeof *r);
  mgl_task_graph *g = &r->graph;
  g->tokens = 1;
  g->worker_count = workers;
  g->task_count = p.task_count;
  g->event_count = p.group_count - 1 + 2;
  g->tasks = mgl_alloc_zeroed(g->task_count, sizeof *g->tasks);
  g->events = mgl_alloc_zeroed(g->event_count, sizeof *g->events);
  g->aot_start = mgl_alloc_zeroed(workers + 1, sizeof *g->aot_start);
  g->aot_tasks = mgl_alloc_zeroed(g->task_count, sizeof *g->aot_tasks);
  r->pred_start = mgl_alloc_zeroed(g->task_count + 1, sizeof *r->pred_start);
  r->preds = mgl_alloc_zeroed((size_t)g->task_count * g->task_count, sizeof *r->preds);
  fill(state, &p, labels, g);
  fill_lists(g);
  for (uint32_t i = 0; i < g->task_count; i++) {
    bool seen[RANDOM_GRAPH_MAX_TASKS] = {false};
    bool empty = (g->tasks[i].flags & MGL_TASK_EMPTY) != 0;
    uint32_t found = empty ? 0 : find_preds(g, i, seen, r->preds + r->pred_start[i]);
    r->pred_start[i + 1] = r->pred_start[i] + found;
    r->work_count += empty ? 0 : 1;
  }
  return r;
}

void random_task_graph_destroy(random_task_graph *graph) {
  if (graph == NULL) {
    return;
  }
  mgl_free(graph->graph.tasks);
  mgl_free(graph->graph.events);
  mgl_free(graph->graph.aot_start);
  mgl_free(graph->graph.aot_tasks);
  mgl_free(graph->pred_start);
  mgl_free(graph->preds);
  mgl_free(graph);
}
