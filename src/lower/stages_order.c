// The order of steps where tiles are turned in chains, and whose they are: as if they ran. A worker
// without work takes a step of the oldest layer that has one whose event is activated, of steps of
// a layer what others wait for longest; so what a chain waits for hides behind whatever the other
// one has, without a rule for each op.
//
//   requires  steps in an order that is topological, of which none waits for others within a tile
//   ensures   the same steps in such an order: in that in which they begin
//
// Times are estimates, in parts of what a stage of k takes; all ranks find the same ones, and no
// result depends on them (docs/log/301). Parts and x go through one link in the order in which they
// are ready.
//   Rejected: steps in turn to the workers, op by op (docs/log/289), which leaves every worker
//   waiting at the ends of ops; an order of ops by hand, with tiles to whoever is free first.
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "lower/access.h"
#include "lower/lower_parts.h"
#include "lower/packed.h"
#include "lower/stages.h"
#include "twin/wide_run.h"

enum {
  EVENT = 10000,     // from a trigger to who waits, here: more than it takes, and so a step that
  REMOTE = 12000,    // ends late seldom holds up others; and at another rank
  LINK_BYTES = 160,  // that leave meanwhile
  WINDOW = 64,       // groups that are looked at
};

// Steps of an op that wait for the same and trigger the same.
typedef struct group {
  uint32_t first, count, taken;
  uint32_t layer, turn;
  bool backwards;
} group;

typedef struct event_state {
  uint32_t left;   // triggers
  uint64_t ready;  // when the last of those so far is seen
} event_state;

typedef struct order {
  const mgl_graph *program;
  mgl_schedule *s;
  group *groups;
  uint32_t group_count, first_group;
  event_state *events;
  uint32_t *running;  // [workers] the step, or MGL_NO_OP
  uint64_t *ends;     // [workers] when it ends, or ended
  mgl_schedule_step *steps;
  uint32_t count;
  uint64_t now, link;  // when the link is free
} order;

static uint32_t others_of(const order *o, const mgl_schedule_step *step) {
  return mgl_stages_others(&o->s->ops[step->op], step->trigger);
}

static void find_groups(order *o) {
  const mgl_schedule *s = o->s;
  uint32_t layer = 0, layer_op = 0;
  for (uint32_t i = 0; i < s->step_count; i++) {
    const mgl_schedule_step *step = &s->steps[i], *last = i == 0 ? step : step - 1;
    const mgl_step_pace pace = mgl_schedule_pace(o->program, s, step);
    if (pace.opens && step->op > layer_op) {
      layer_op = step->op;
      layer++;
    }
    if (i == 0 || step->op != last->op || step->event != last->event ||
        step->trigger != last->trigger) {
      o->groups[o->group_count++] = (group){.first = i,
                                            .layer = step->op < layer_op ? layer - 1 : layer,
                                            .turn = pace.turn,
                                            .backwards = pace.backwards};
    }
    o->groups[o->group_count - 1].count++;
    o->events[step->trigger].left++;
    if (others_of(o, step) != MGL_NO_EVENT) {
      o->events[others_of(o, step)].left++;
    }
  }
}

static int compare_groups(const void *a, const void *b) {
  const group *x = a;
  const group *y = b;
  if (x->layer != y->layer) {
    return x->layer < y->layer ? -1 : 1;
  }
  if (x->turn != y->turn) {
    return x->turn < y->turn ? -1 : 1;
  }
  return (x->first > y->first) - (x->first < y->first);
}

static void trigger(order *o, uint32_t event, uint64_t at) {
  event_state *e = &o->events[event];
  e->left--;
  e->ready = at > e->ready ? at : e->ready;
}

// When the group's event is activated; UINT64_MAX: that is not known yet.
static uint64_t ready_at(const order *o, const group *g) {
  const uint32_t event = o->s->steps[g->first].event;
  if (event == MGL_NO_EVENT) {
    return 0;
  }
  return o->events[event].left == 0 ? o->events[event].ready : UINT64_MAX;
}

// A step that may run now; NULL: there is none, and at *next the first one may run that is known.
static const mgl_schedule_step *take(order *o, uint64_t *next) {
  while (o->groups[o->first_group].taken == o->groups[o->first_group].count) {
    o->first_group++;
  }
  for (uint32_t i = o->first_group; i < o->group_count && i < o->first_group + WINDOW; i++) {
    group *g = &o->groups[i];
    const uint64_t at = g->taken < g->count ? ready_at(o, g) : UINT64_MAX;
    if (at <= o->now) {
      const bool back = g->backwards;
      const uint32_t number = back ? g->count - 1 - g->taken : g->taken;
      g->taken++;
      return &o->s->steps[g->first + number];
    }
    *next = at < *next ? at : *next;
  }
  return NULL;
}

// The worker that has had no work for longest, or o->s->worker_count.
static uint32_t idle_worker(const order *o) {
  uint32_t found = o->s->worker_count;
  for (uint32_t w = 0; w < o->s->worker_count; w++) {
    const bool idle = o->running[w] == MGL_NO_OP;
    found = idle && (found == o->s->worker_count || o->ends[w] < o->ends[found]) ? w : found;
  }
  return found;
}

static void begin_step(order *o, const mgl_schedule_step *step, uint32_t worker) {
  mgl_schedule_step *to = &o->steps[o->count];
  *to = *step;
  to->worker = worker;
  o->ends[worker] = o->now + mgl_schedule_pace(o->program, o->s, step).time;
  o->running[worker] = o->count++;
  trigger(o, to->trigger, o->ends[worker] + EVENT);
}

// Time goes on until `next`, or until a worker is done.
static void go_on(order *o, uint64_t next) {
  for (uint32_t w = 0; w < o->s->worker_count; w++) {
    next = o->running[w] != MGL_NO_OP && o->ends[w] < next ? o->ends[w] : next;
  }
  o->now = next;
  for (uint32_t w = 0; w < o->s->worker_count; w++) {
    if (o->running[w] == MGL_NO_OP || o->ends[w] > next) {
      continue;
    }
    const mgl_schedule_step *step = &o->steps[o->running[w]];
    if (others_of(o, step) != MGL_NO_EVENT) {
      const uint64_t bytes = mgl_schedule_pace(o->program, o->s, step).bytes;
      o->link = (o->link > next ? o->link : next) + bytes / LINK_BYTES;
      trigger(o, others_of(o, step), (bytes > 0 ? o->link : next) + REMOTE);
    }
    o->running[w] = MGL_NO_OP;
  }
}

static void put_in_order(order *o) {
  while (o->count < o->s->step_count) {
    uint64_t next = UINT64_MAX;
    const uint32_t worker = idle_worker(o);
    const mgl_schedule_step *step = worker < o->s->worker_count ? take(o, &next) : NULL;
    if (step != NULL) {
      begin_step(o, step, worker);
    } else {
      go_on(o, next);
    }
  }
  memcpy(o->s->steps, o->steps, o->count * sizeof *o->steps);
}

mgl_status mgl_stages_put_in_order(const mgl_graph *program, mgl_schedule **schedule,
                                   mgl_error *err) {
  mgl_schedule *s = *schedule;
  mgl_arena arena = {0};
  order o = {.program = program, .s = s};
  o.groups = mgl_arena_alloc_zeroed(&arena, s->step_count, sizeof *o.groups);
  o.events = mgl_arena_alloc_zeroed(&arena, s->event_count, sizeof *o.events);
  o.running = mgl_arena_alloc_zeroed(&arena, s->worker_count, sizeof *o.running);
  o.ends = mgl_arena_alloc_zeroed(&arena, s->worker_count, sizeof *o.ends);
  o.steps = mgl_arena_alloc_zeroed(&arena, s->step_count, sizeof *o.steps);
  const bool has_room = o.groups != NULL && o.events != NULL && o.running != NULL &&
                        o.ends != NULL && o.steps != NULL;
  if (has_room) {
    for (uint32_t w = 0; w < s->worker_count; w++) {
      o.running[w] = MGL_NO_OP;
    }
    find_groups(&o);
    qsort(o.groups, o.group_count, sizeof *o.groups, compare_groups);
    put_in_order(&o);
  }
  mgl_arena_free(&arena);
  if (!has_room) {
    mgl_schedule_destroy(s);
    *schedule = NULL;
  }
  return has_room ? MGL_OK : mgl_schedule_out_of_memory(err);
}
