// All interleavings of small task graphs: twin/protocol.h over a model of its atomics.
//
// Workers and schedulers are coroutines that stop before each access to a shared word. A
// depth-first search lets every enabled one go on from every state; a state is left when it was
// seen before. A state is: the shared words and queue slots, what has run, and for each actor its
// private struct at the start of its poll and a hash of all values that it has read since (which
// determine where it is). Two states are taken for equal if a 64-bit hash is.
//
// Each scenario is searched twice. "spin": an actor that found nothing polls again whenever a
// shared word has changed since its poll began. "sleep": only when mgl_notify was called since; so
// a missing notification shows as a deadlock.
//
// Checked in every state: a task runs after its predecessors, once an iteration, AOT on its own
// worker; an iteration ends after all its tasks; no fault; somebody can go on unless all have left.
//
// With two ranks there are two of all that, and two places to sleep. Their tasks meet at remote
// events: what waits for one runs after the tasks before it on both ranks, and these run again,
// writing over their parts, only after both have read them. What holds them back is the plan: rank
// 0 posts one when both are done, as cpu_ranks.c does, here upon the model's words. Each fault that
// is made on purpose (mutation) must be found.
//
// Covered are sequentially consistent interleavings of accesses, exhaustively for the scenarios
// below. Left out as scheduling points are loads of a word that only the loading actor writes (they
// commute with everything), and the words that only the watchdog reads.
#define MGL_ATOMICS_MODEL 1

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <string.h>
#include <ucontext.h>

#include "base/alloc.h"
#include "support/small_graph.h"
#include "task/protocol_check.h"
#include "twin/protocol.h"

enum {
  MOST_RANKS = 2,
  MOST_WORKERS = 3,
  MOST_SCHEDULERS = 2,
  MOST_ACTORS = 4,
  MOST_GRAPHS = 2,
  STACK_BYTES = 12288,
  MOST_DEPTH = 4000,
  TABLE_BITS = 23,
};

#if defined(MGL_TEST_SANITIZED)
enum { STATE_LIMIT = 150000 };  // sanitized trees see the same code, less far
#else
enum { STATE_LIMIT = 5000000 };
#endif

// --- the world -----------------------------------------------------------------------------------

typedef struct actor {
  ucontext_t context;
  mgl_worker_state worker;
  mgl_scheduler_state scheduler;
  uint64_t trail;   // hash of the private state at the poll's start and of all that it read since
  uint64_t ticket;  // notifications, or changes, when its poll began
  char *top;        // of the part of its stack that is in use; stacks grow down from the end
  bool sleeping;
  bool sharing;  // it hands on a plan, or waits for one
  bool left;
} actor;

typedef struct rank_world {
  mgl_protocol protocol;
  mgl_worker_shared workers[MOST_WORKERS];
  mgl_queue scheduler_queues[MOST_SCHEDULERS];
  mgl_queue_slot event_slots[MOST_SCHEDULERS][MGL_SCHEDULER_SLOTS];
  mgl_word counters[MOST_GRAPHS][SMALL_EVENTS];
  mgl_word done;  // plans that it is done with, and waits for the next one
  uint64_t notifications;
  uint64_t plans;              // plans asked for, so the present iteration and one
  uint32_t graph;              // of the present iteration
  uint8_t began[SMALL_TASKS];  // `plans` when it last began
  uint8_t ended[SMALL_TASKS];
} rank_world;

typedef struct world {
  rank_world ranks[MOST_RANKS];
  actor actors[MOST_ACTORS];  // of rank 0 first: workers, schedulers
  uint64_t changes;
  mgl_word posted;              // plans of rank 0
  mgl_word lost[SMALL_EVENTS];  // where nobody looks
  const char *error;
} world;

typedef enum mutation {
  SOUND,
  LOST_TRIGGER,  // rank 0's triggers do not reach the other's counters
  LOST_WAKE,     // who makes the last trigger does not wake the other rank
  OWN_TRIGGERS,  // an event that other ranks trigger, too, is taken for one that does not
  EARLY_PLAN,    // rank 0 posts a plan before the other has ended the iteration before
  LOST_TICKET,   // who took a ticket behind an iteration's last does not keep it
} mutation;

typedef struct scenario {
  const char *name;
  const small_task *tasks[MOST_GRAPHS];
  const uint16_t *types[MOST_GRAPHS];
  uint32_t event_counts[MOST_GRAPHS];
  const char *plans;  // digits: the graph of each iteration
  uint32_t workers;   // of a rank
  uint32_t schedulers;
} scenario;

// Of two ranks.
typedef struct rank_scenario {
  scenario of;
  uint32_t remote;  // bits of events that both trigger
  mutation mutation;
} rank_scenario;

static const uint16_t terminate[] = {MGL_EVENT_TERMINATE};

static world now;
static char stacks[MOST_ACTORS][STACK_BYTES] __attribute__((aligned(64)));
static ucontext_t searcher;
static uint32_t running;  // actor
static bool sleeps;       // the mode
static const scenario *present;
static uint32_t remote;  // of a rank_scenario; 0: there is one rank
static mutation mutated;
static small_graph graphs[MOST_GRAPHS];
static uint32_t jit_tasks[MOST_GRAPHS][SMALL_TASKS];

MODEL_FN static uint32_t rank_count(void) {
  return remote == 0 ? 1 : MOST_RANKS;
}

MODEL_FN static uint32_t rank_actors(void) {
  return present->workers + present->schedulers;
}

MODEL_FN static uint32_t actor_count(void) {
  return rank_actors() * rank_count();
}

MODEL_FN static rank_world *rank_of(uint32_t actor_idx) {
  return &now.ranks[actor_idx / rank_actors()];
}

MODEL_FN static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = ((hash ^ value) + 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// --- scheduling points ---------------------------------------------------------------------------

MODEL_FN static bool is_private(const mgl_word *word) {
  const rank_world *r = rank_of(running);
  const uint32_t own = running % rank_actors();
  if (word == &r->protocol.planning) {
    return true;
  }
  for (uint32_t i = 0; i < present->workers; i++) {
    if (word == &r->workers[i].progress || word == &r->workers[i].waiting) {
      return true;
    }
  }
  for (uint32_t i = 0; i < present->schedulers; i++) {
    if (word == &r->scheduler_queues[i].head && own == present->workers + i) {
      return true;  // nobody else looks at it
    }
  }
  return false;
}

// Not inlined: everything of the actor that lives lies above this function's own small frame.
MODEL_FN __attribute__((noinline)) static void yield(void) {
  actor *a = &now.actors[running];
  a->top = (char *)__builtin_frame_address(0) - 512;
  (void)swapcontext(&a->context, &searcher);
}

MODEL_FN void model_before(const mgl_word *word, model_access access) {
  (void)access;
  if (!is_private(word)) {
    yield();
  }
}

// What pop reads besides words: the value at the head that it has just taken.
MODEL_FN static uint64_t popped_value(const mgl_word *word) {
  const rank_world *r = rank_of(running);
  for (uint32_t i = 0; i < present->schedulers; i++) {
    const mgl_queue *queue = &r->scheduler_queues[i];
    if (word == &queue->head) {
      return queue->slots[(queue->head.value - 1) & queue->mask].value;
    }
  }
  return 0;
}

MODEL_FN void model_after(const mgl_word *word, model_access access, uint64_t value) {
  actor *a = &now.actors[running];
  a->trail = mix(mix(a->trail, access), value);
  if (access == MODEL_UPDATE) {
    a->trail = mix(a->trail, popped_value(word));
  }
  if (access == MODEL_NOTIFY) {
    rank_world *r = value == MODEL_OWN_RANK ? rank_of(running) : &now.ranks[value];
    bool is_lost = mutated == LOST_WAKE && value != MODEL_OWN_RANK && !a->sharing;
    r->notifications += is_lost ? 0 : 1;
  } else if (access != MODEL_LOAD && !is_private(word)) {
    now.changes++;
  }
}

// --- actors --------------------------------------------------------------------------------------

MODEL_FN static void fail_with(const char *text) {
  now.error = now.error == NULL ? text : now.error;
}

// True if everything that task `of` waits for has run in this iteration, empty tasks looked through;
// on all ranks where all trigger the event.
MODEL_FN static bool preds_done(const rank_world *r, const mgl_task_graph *g, uint32_t of) {
  uint32_t event = g->tasks[of].dependent_event;
  if (event == MGL_NO_EVENT || g->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
    return true;
  }
  const bool is_remote = (remote >> event & 1) != 0;
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->tasks[i].trigger_event != event) {
      continue;
    }
    bool empty = (g->tasks[i].flags & MGL_TASK_EMPTY) != 0;
    bool done = empty ? preds_done(r, g, i) : r->ended[i] == r->plans;
    for (uint32_t q = 0; is_remote && q < rank_count(); q++) {
      done = done && now.ranks[q].ended[i] == r->plans;
    }
    if (!done) {
      return false;
    }
  }
  return true;
}

// True if all ranks have read what the task writes for them: whoever waited for it in the iteration
// before has ended there. (Not followed where graphs take turns.)
MODEL_FN static bool parts_are_read(const rank_world *r, const mgl_task_graph *g, uint32_t of) {
  uint32_t event = g->tasks[of].trigger_event;
  if (present->tasks[1] != NULL) {
    return true;
  }
  for (uint32_t q = 0; (remote >> event & 1) != 0 && q < rank_count(); q++) {
    for (uint32_t i = g->events[event].first_task; i < g->events[event].last_task; i++) {
      if (now.ranks[q].ended[i] + 1u < r->plans) {
        return false;
      }
    }
  }
  return true;
}

MODEL_FN static void run_task(uint32_t worker, const mgl_ready_task *ready) {
  rank_world *r = rank_of(running);
  const mgl_task_graph *g = &graphs[ready->info.graph].graph;
  const mgl_task *task = &g->tasks[ready->task];
  if (ready->info.graph != r->graph || ready->info.iteration + 1 != r->plans) {
    fail_with("a task of another iteration runs");
    return;
  }
  if (r->began[ready->task] == r->plans || (task->flags & MGL_TASK_EMPTY) != 0) {
    fail_with("a task runs twice, or is empty");
  }
  if (task->flags == 0 && task->worker != worker) {
    fail_with("an AOT task runs on another worker");
  }
  if (!preds_done(r, g, ready->task)) {
    fail_with("a task runs before its predecessors");
  }
  if (!parts_are_read(r, g, ready->task)) {
    fail_with("a part is written over that a rank has not read");
  }
  r->began[ready->task] = (uint8_t)r->plans;
  yield();  // it takes time
  r->ended[ready->task] = (uint8_t)r->plans;
}

// --- plans ---------------------------------------------------------------------------------------

// Rank 0: the others are done with all plans. The others: there is a new one.
MODEL_FN static bool is_shared(rank_world *r) {
  uint64_t posted = mgl_load_acquire(&now.posted);
  if (r != now.ranks) {
    return posted == mgl_load_relaxed(&r->done);
  }
  bool done = true;
  for (uint32_t q = 1; q < rank_count(); q++) {
    done = mgl_load_acquire(&now.ranks[q].done) == posted + 1 && done;
  }
  return done || mutated == EARLY_PLAN;
}

MODEL_FN static void wait_for_plan(rank_world *r) {
  actor *a = &now.actors[running];
  uint64_t trail = a->trail;
  for (;;) {
    a->ticket = sleeps ? r->notifications : now.changes;
    if (is_shared(r)) {
      return;
    }
    a->sleeping = true;
    a->trail = mix(trail, 55);
    yield();
    a->sleeping = false;
    a->trail = trail;
  }
}

// mgl_ranks_post and mgl_ranks_take.
MODEL_FN static void share_plan(rank_world *r) {
  actor *a = &now.actors[running];
  a->sharing = true;
  if (r == now.ranks) {
    wait_for_plan(r);
    mgl_store_release(&now.posted, mgl_load_relaxed(&now.posted) + 1);
    for (uint32_t q = 1; q < rank_count(); q++) {
      mgl_notify_rank(q);
    }
  } else {
    mgl_store_release(&r->done, mgl_load_relaxed(&r->done) + 1);
    mgl_notify_rank(0);
    wait_for_plan(r);
  }
  a->sharing = false;
}

MODEL_FN static int next_plan(void *context, uint64_t iteration) {
  rank_world *r = context;
  const mgl_task_graph *g = &graphs[r->graph].graph;
  if (iteration != r->plans) {
    fail_with("plans are asked for out of order");
  }
  for (uint32_t i = 0; iteration > 0 && i < g->task_count; i++) {
    if ((g->tasks[i].flags & MGL_TASK_EMPTY) == 0 && r->ended[i] != r->plans) {
      fail_with("an iteration ended before all its tasks");
    }
  }
  if (rank_count() > 1) {
    share_plan(r);
  }
  char digit = present->plans[iteration];
  r->plans++;
  r->graph = digit == '\0' ? 0 : (uint32_t)(digit - '0');
  return digit == '\0' ? -1 : digit - '0';
}

// --- polling -------------------------------------------------------------------------------------

MODEL_FN static void start_poll(actor *a) {
  const mgl_worker_state *w = &a->worker;
  const mgl_scheduler_state *s = &a->scheduler;
  a->ticket = sleeps ? rank_of(running)->notifications : now.changes;
  a->trail = mix(mix(mix(w->iteration, w->info.iteration), w->info.run), w->info.graph);
  a->trail = mix(mix(mix(a->trail, w->aot_at), w->aot_end), w->entered * 2u + w->begins);
  a->trail = mix(mix(mix(a->trail, w->info.jit_before), w->ticket), w->next);
  a->trail = mix(a->trail, s->begins);
}

MODEL_FN static void actor_main(void) {
  actor *a = &now.actors[running];
  mgl_protocol *p = &rank_of(running)->protocol;
  const uint32_t own = running % rank_actors();
  const bool works = own < present->workers;
  mgl_poll_result result = MGL_POLL_NONE;
  while (result != MGL_POLL_STOP) {
    mgl_ready_task ready;
    if (mutated == LOST_TICKET && !a->worker.entered) {
      a->worker.ticket = 0;
    }
    start_poll(a);
    result = works ? mgl_worker_poll(p, &a->worker, &ready) : mgl_scheduler_poll(p, &a->scheduler);
    if (result == MGL_POLL_NONE) {
      a->sleeping = true;
      a->trail = mix(a->trail, 77);
      yield();
      a->sleeping = false;
    } else if (result == MGL_POLL_TASK && works) {
      run_task(own, &ready);
      if (!mgl_worker_finish(p, own, &ready)) {
        fail_with("a fault was raised");
      }
    }
  }
  a->left = true;
  a->trail = 0;
  yield();
}

// --- states --------------------------------------------------------------------------------------

static uint64_t hash_queue(uint64_t hash, const mgl_queue *queue) {
  hash = mix(mix(hash, queue->head.value), queue->tail.value);
  for (uint64_t i = 0; i <= queue->mask; i++) {
    hash = mix(mix(hash, queue->slots[i].sequence.value), queue->slots[i].value);
  }
  return hash;
}

static bool is_awake(uint32_t i) {
  const actor *a = &now.actors[i];
  return !a->sleeping || a->ticket != (sleeps ? rank_of(i)->notifications : now.changes);
}

static uint64_t hash_rank(uint64_t hash, const rank_world *r) {
  const mgl_protocol *p = &r->protocol;
  hash = mix(mix(mix(hash, p->published.value), p->info.value), p->fault.value);
  hash = mix(mix(mix(hash, p->jit_before.value), p->jit_published), p->tickets.value);
  for (uint32_t g = 0; g < p->graph_count; g++) {
    hash = mix(hash, p->graph_runs[g]);
    for (uint32_t e = 0; e < p->graphs[g].event_count; e++) {
      hash = mix(hash, r->counters[g][e].value);
    }
  }
  for (uint32_t i = 0; i < p->worker_count; i++) {
    hash = mix(hash, r->workers[i].current.value);
  }
  for (uint32_t i = 0; i < p->scheduler_count; i++) {
    hash = hash_queue(hash, &r->scheduler_queues[i]);
  }
  hash = mix(mix(mix(hash, r->plans), r->graph), r->done.value);
  for (uint32_t i = 0; i < SMALL_TASKS; i++) {
    hash = mix(hash, r->began[i] * 256u + r->ended[i]);
  }
  return hash;
}

static uint64_t hash_state(void) {
  uint64_t hash = mix(1, now.posted.value);
  for (uint32_t i = 0; i < rank_count(); i++) {
    hash = hash_rank(hash, &now.ranks[i]);
  }
  for (uint32_t i = 0; i < actor_count(); i++) {
    const actor *a = &now.actors[i];
    bool stale = a->ticket != (sleeps ? rank_of(i)->notifications : now.changes);
    hash = mix(mix(hash, a->trail), a->sharing * 8u + a->left * 4u + a->sleeping * 2u + stale);
  }
  return hash == 0 ? 1 : hash;
}

// A state to come back to.
typedef struct frame {
  world world;
  char stacks[MOST_ACTORS][STACK_BYTES / 2];
  double paths;  // complete interleavings from here
  uint64_t hash;
  uint32_t next;  // actor to try
} frame;

static void save(frame *f) {
  memcpy(&f->world, &now, sizeof now);
  for (uint32_t i = 0; i < actor_count(); i++) {
    size_t used = (size_t)(stacks[i] + STACK_BYTES - now.actors[i].top);
    assert_true(used <= sizeof f->stacks[i]);
    memcpy(f->stacks[i], now.actors[i].top, used);
  }
}

static void restore(const frame *f) {
  memcpy(&now, &f->world, sizeof now);
  for (uint32_t i = 0; i < actor_count(); i++) {
    size_t used = (size_t)(stacks[i] + STACK_BYTES - now.actors[i].top);
    memcpy(now.actors[i].top, f->stacks[i], used);
  }
}

// --- the search ----------------------------------------------------------------------------------

typedef struct seen {
  uint64_t hash;
  double paths;
} seen;

typedef struct search {
  seen *table;
  frame **frames;  // [MOST_DEPTH], made when they are needed
  uint32_t depth;
  uint32_t deepest;
  uint64_t states;
  uint64_t steps;
  uint64_t ends;      // states in which all have left
  char failure[256];  // what was found; "": nothing
} search;

static seen *find(search *s, uint64_t hash) {
  uint64_t mask = (1u << TABLE_BITS) - 1;
  uint64_t at = hash & mask;
  while (s->table[at].hash != 0 && s->table[at].hash != hash) {
    at = (at + 1) & mask;
  }
  return &s->table[at];
}

static void set_up_graphs(void) {
  mgl_error err = {0};
  for (uint32_t g = 0; g < MOST_GRAPHS && present->tasks[g] != NULL; g++) {
    small_graph_init(&graphs[g], present->workers, present->tasks[g], present->event_counts[g],
                     present->types[g]);
    for (uint32_t e = 0; e < present->event_counts[g]; e++) {
      mgl_event *event = &graphs[g].events[e];
      if ((remote >> e & 1) != 0 && !mgl_is_end(event) && mutated != OWN_TRIGGERS) {
        event->flags |= MGL_EVENT_REMOTE;
      }
    }
    if (mgl_protocol_check(&graphs[g].graph, &err) != MGL_OK) {
      fail_msg("%s: %s", present->name, err.text);
    }
  }
}

static void set_up_views(uint32_t rank) {
  rank_world *r = &now.ranks[rank];
  mgl_protocol *p = &r->protocol;
  for (uint32_t g = 0; g < MOST_GRAPHS && present->tasks[g] != NULL; g++) {
    const mgl_task_graph *graph = &graphs[g].graph;
    p->graphs[g] = (mgl_graph_view){.tasks = graph->tasks,
                                    .events = graph->events,
                                    .aot_start = graph->aot_start,
                                    .aot_tasks = graph->aot_tasks,
                                    .counters = r->counters[g],
                                    .task_count = graph->task_count,
                                    .event_count = graph->event_count,
                                    .jit_tasks = jit_tasks[g],
                                    .jit_count = mgl_protocol_jit_tasks(graph, jit_tasks[g])};
    for (uint32_t q = 0; q < rank_count(); q++) {
      bool is_lost = mutated == LOST_TRIGGER && rank == 0 && q != 0;
      p->graphs[g].peers[q] = is_lost ? now.lost : now.ranks[q].counters[g];
    }
    p->graph_count = g + 1;
  }
}

static void set_up_queue(mgl_queue *queue, mgl_queue_slot *slots, uint64_t size) {
  queue->slots = slots;
  queue->mask = size - 1;
  for (uint64_t k = 0; k < size; k++) {
    slots[k].sequence.value = k;
  }
}

// Before the actors exist: no scheduling points.
static void set_up_rank(uint32_t rank) {
  rank_world *r = &now.ranks[rank];
  mgl_protocol *p = &r->protocol;
  actor *actors = &now.actors[rank * rank_actors()];
  p->worker_count = present->workers;
  p->scheduler_count = present->schedulers;
  p->next_plan = next_plan;
  p->next_plan_context = r;
  p->workers = r->workers;
  p->scheduler_queues = r->scheduler_queues;
  p->rank = rank;
  p->rank_count = remote == 0 ? 0 : MOST_RANKS;
  set_up_views(rank);
  for (uint32_t i = 0; i < present->workers; i++) {
    mgl_worker_init(p, &actors[i].worker, i);
  }
  for (uint32_t i = 0; i < present->schedulers; i++) {
    set_up_queue(&r->scheduler_queues[i], r->event_slots[i], MGL_SCHEDULER_SLOTS);
    mgl_scheduler_init(&actors[present->workers + i].scheduler, i);
  }
}

static void set_up(void) {
  memset(&now, 0, sizeof now);
  assert_true(rank_count() <= MOST_RANKS && actor_count() <= MOST_ACTORS);
  set_up_graphs();
  for (uint32_t rank = 0; rank < rank_count(); rank++) {
    set_up_rank(rank);
  }
}

static void go(uint32_t i) {
  running = i;
  (void)swapcontext(&searcher, &now.actors[i].context);
}

// Not inlined: getcontext may return twice for all that the compiler knows.
__attribute__((noinline)) static void make_coroutine(uint32_t i) {
  actor *a = &now.actors[i];
  (void)getcontext(&a->context);
  a->context.uc_stack.ss_sp = stacks[i];
  a->context.uc_stack.ss_size = STACK_BYTES;
  a->context.uc_link = NULL;
  makecontext(&a->context, actor_main, 0);
}

static void start_actors(void) {
  for (uint32_t i = 0; i < actor_count(); i++) {
    make_coroutine(i);
    go(i);  // up to its first access
  }
}

// What is wrong with the present state; NULL: nothing.
static const char *judge(uint32_t *left) {
  uint32_t awake = 0;
  *left = 0;
  for (uint32_t i = 0; i < actor_count(); i++) {
    *left += now.actors[i].left ? 1 : 0;
    awake += !now.actors[i].left && is_awake(i) ? 1 : 0;
  }
  for (uint32_t i = 0; i < rank_count(); i++) {
    const rank_world *r = &now.ranks[i];
    const bool asks = present->types[0] != terminate;
    if (r->protocol.fault.value != 0) {
      return "a fault was raised";
    }
    if (*left == actor_count() && r->plans != strlen(present->plans) + (asks ? 1 : 0)) {
      return "stopped after another number of plans";
    }
  }
  if (now.error == NULL && *left < actor_count() && awake == 0) {
    return "deadlock";
  }
  return now.error;
}

// Enters the present state: true if it is new and has successors. *paths: interleavings from here,
// if it is not.
static bool enter(search *s, double *paths) {
  uint32_t left = 0;
  const char *wrong = judge(&left);
  if (wrong != NULL) {
    (void)snprintf(s->failure, sizeof s->failure, "%s (%s), depth %u: %s", present->name,
                   sleeps ? "sleep" : "spin", s->depth, wrong);
    return false;
  }
  uint64_t hash = hash_state();
  seen *entry = find(s, hash);
  *paths = 1;
  if (entry->hash != 0) {
    *paths = entry->paths;
    return false;
  }
  entry->hash = hash;
  s->states++;
  if (left == actor_count()) {
    entry->paths = 1;
    s->ends++;
    return false;
  }
  if (s->frames[s->depth] == NULL) {
    s->frames[s->depth] = mgl_alloc(sizeof(frame));
  }
  frame *f = s->frames[s->depth];
  f->hash = hash;
  f->next = 0;
  f->paths = 0;
  save(f);
  s->depth++;
  s->deepest = s->depth > s->deepest ? s->depth : s->deepest;
  assert_true(s->depth < MOST_DEPTH);
  return true;
}

// Returns false if the limit of states was reached, or something is wrong (s->failure).
static bool explore(search *s) {
  double paths = 0;
  set_up();
  start_actors();
  (void)enter(s, &paths);
  while (s->depth > 0 && s->failure[0] == 0) {
    frame *f = s->frames[s->depth - 1];
    uint32_t i = f->next++;
    if (i == actor_count()) {
      find(s, f->hash)->paths = f->paths;
      s->depth--;
      if (s->depth > 0) {
        s->frames[s->depth - 1]->paths += f->paths;
      }
      continue;
    }
    if (s->states >= STATE_LIMIT) {
      return false;
    }
    restore(f);
    if (now.actors[i].left || !is_awake(i)) {
      continue;
    }
    s->steps++;
    go(i);
    if (!enter(s, &paths)) {
      f->paths += paths;
    }
  }
  return s->failure[0] == 0;
}

// --- scenarios -----------------------------------------------------------------------------------

enum { R = SMALL_READY, END = SMALL_END };
static const uint16_t ends[] = {MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t one[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t two[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_LAUNCH_TASKS,
                               MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t three[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_LAUNCH_TASKS,
                                 MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t massive[] = {MGL_EVENT_LAUNCH_MASSIVE_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t dependent[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_LAUNCH_DEPENDENT_TASKS,
                                     MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t leaf[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_EMPTY,
                                MGL_EVENT_END_OF_TASK_GRAPH};

static const small_task aot_alone[] = {{'a', R, END, 0}, {0}};
static const small_task aot_pair[] = {{'a', R, END, 0}, {'a', R, END, 1}, {0}};
static const small_task aot_chain[] = {{'a', R, 0, 0}, {'a', 0, END, 1}, {0}};
static const small_task aot_join[] = {{'a', R, 0, 0}, {'a', R, 0, 1}, {'a', 0, END, 1}, {0}};
static const small_task jit_alone[] = {{'j', R, END, 0}, {0}};
static const small_task jit_chain[] = {{'j', R, 0, 0}, {'j', 0, END, 0}, {0}};
static const small_task jit_three[] = {
    {'a', R, 0, 0}, {'j', 0, END, 0}, {'j', 0, END, 0}, {'j', 0, END, 0}, {0}};
static const small_task hybrid[] = {{'a', R, 0, 0}, {'j', 0, END, 0}, {'a', 0, END, 1}, {0}};
static const small_task in_turn[] = {{'j', R, 0, 0}, {'a', 0, 1, 0},   {'j', 1, 2, 0},
                                     {'j', 1, 2, 0}, {'a', 2, END, 1}, {0}};
static const small_task in_turn_alone[] = {{'j', R, 0, 0}, {'a', 0, 1, 0},   {'j', 1, 2, 0},
                                           {'j', 1, 2, 0}, {'a', 2, END, 0}, {0}};
static const small_task fork_join[] = {{'a', R, 0, 0},   {'e', 0, 1, 0},   {'e', 0, END, 0},
                                       {'a', 1, END, 1}, {'j', 1, END, 0}, {0}};
static const small_task depends[] = {
    {'a', R, 0, 0}, {'e', 0, 1, 0}, {'a', 0, END, 1}, {'j', 1, END, 0}, {0}};
// Parts that all ranks read, on the worker that makes them or on another one.
static const small_task exchange[] = {{'a', R, 0, 0}, {'a', 0, END, 0}, {0}};
static const small_task exchange_apart[] = {{'a', R, 0, 0}, {'a', 0, END, 1}, {0}};
static const small_task exchange_queued[] = {{'j', R, 0, 0}, {'a', 0, END, 0}, {0}};
static const small_task exchange_twice[] = {{'a', R, 0, 0}, {'a', 0, 1, 0}, {'a', 1, END, 0}, {0}};
static const small_task empties[] = {{'a', R, 0, 1}, {'e', 0, 1, 0}, {'e', 0, END, 0}, {0}};

static const scenario scenarios[] = {
    {"1 AOT task, worker 1 misses iterations", {aot_alone}, {ends}, {1}, "000", 2, 0},
    {"1 AOT task, 1 scheduler", {aot_alone}, {ends}, {1}, "00", 2, 1},
    {"2 AOT tasks", {aot_pair}, {ends}, {1}, "00", 2, 0},
    {"AOT chain", {aot_chain}, {one}, {2}, "00", 2, 0},
    {"AOT join", {aot_join}, {one}, {2}, "00", 2, 0},
    {"AOT join, 1 scheduler", {aot_join}, {one}, {2}, "00", 2, 1},
    {"1 JIT task", {jit_alone}, {ends}, {1}, "00", 2, 0},
    {"1 JIT task, 1 scheduler", {jit_alone}, {ends}, {1}, "00", 2, 1},
    {"JIT chain", {jit_chain}, {one}, {2}, "00", 2, 0},
    {"JIT chain, 1 scheduler", {jit_chain}, {one}, {2}, "00", 2, 1},
    {"3 JIT tasks behind an event, 1 worker", {jit_three}, {one}, {2}, "0000", 1, 0},
    {"3 JIT tasks, 1 worker, 1 scheduler", {jit_three}, {one}, {2}, "000", 1, 1},
    {"3 JIT tasks, 2 workers", {jit_three}, {one}, {2}, "0", 2, 0},
    {"3 massive JIT tasks, 1 worker, 2 schedulers", {jit_three}, {massive}, {2}, "0", 1, 2},
    {"AOT and JIT behind one event", {hybrid}, {one}, {2}, "00", 2, 0},
    {"AOT and JIT behind one event, 1 scheduler", {hybrid}, {one}, {2}, "0", 2, 1},
    {"fork and join by empty tasks", {fork_join}, {two}, {3}, "00", 2, 0},
    {"fork and join by empty tasks, 1 scheduler", {fork_join}, {two}, {3}, "0", 2, 1},
    {"1 JIT task, 3 workers", {jit_alone}, {ends}, {1}, "0", 3, 0},
    {"tickets kept while a graph without JIT tasks runs",
     {jit_chain, aot_alone},
     {one, ends},
     {2, 1},
     "010",
     2,
     0},
    {"JIT and AOT in turn", {in_turn}, {three}, {4}, "0", 2, 0},
    {"JIT and AOT in turn, 1 worker", {in_turn_alone}, {three}, {4}, "000", 1, 0},
    {"dependent launch", {depends}, {dependent}, {3}, "00", 2, 0},
    {"dependent launch, another graph in between",
     {depends, aot_alone},
     {dependent, ends},
     {3, 1},
     "010",
     2,
     0},
    {"dependent launch, 1 scheduler", {depends}, {dependent}, {3}, "0", 2, 1},
    {"EMPTY event", {empties}, {leaf}, {3}, "00", 2, 0},
    {"TERMINATE event", {aot_pair}, {terminate}, {1}, "0", 2, 0},
    {"stop at once", {aot_pair}, {ends}, {1}, "", 2, 1},
    {"3 workers, AOT chain, one idle", {aot_chain}, {one}, {2}, "00", 3, 0},
};

static const rank_scenario rank_scenarios[] = {
    {{"2 ranks, an exchange", {exchange}, {one}, {2}, "00", 1, 0}, 1, SOUND},
    {{"2 ranks, two exchanges", {exchange_twice}, {two}, {3}, "00", 1, 0}, 3, SOUND},
    {{"2 ranks, queued tasks", {exchange_queued}, {one}, {2}, "00", 1, 0}, 1, SOUND},
    {{"2 ranks, another graph", {exchange, aot_alone}, {one, ends}, {2, 1}, "010", 1, 0}, 1, SOUND},
    // With MGL_TEST_LONG: four actors.
    {{"2 ranks, readers apart", {exchange_apart}, {one}, {2}, "0", 2, 0}, 1, SOUND},
    {{"2 ranks, a scheduler each", {exchange}, {one}, {2}, "0", 1, 1}, 1, SOUND},
};
enum { LARGE_RANK_SCENARIOS = 2 };

// Each must be found; a lost wake only where actors sleep.
static const rank_scenario mutations[] = {
    {{"LOST_TRIGGER", {exchange}, {one}, {2}, "00", 1, 0}, 1, LOST_TRIGGER},
    {{"LOST_WAKE", {exchange}, {one}, {2}, "00", 1, 0}, 1, LOST_WAKE},
    {{"OWN_TRIGGERS", {exchange}, {one}, {2}, "00", 1, 0}, 1, OWN_TRIGGERS},
    {{"EARLY_PLAN", {exchange}, {one}, {2}, "00", 1, 0}, 1, EARLY_PLAN},
    {{"LOST_TICKET", {jit_alone}, {ends}, {1}, "00", 2, 0}, 0, LOST_TICKET},
};

static void open_search(search *s) {
  *s = (search){.table = mgl_alloc((sizeof(seen)) << TABLE_BITS),
                .frames = mgl_alloc_zeroed(MOST_DEPTH, sizeof(frame *))};
  assert_non_null(s->table);
  assert_non_null(s->frames);
}

static void close_search(search *s) {
  for (uint32_t i = 0; i < MOST_DEPTH; i++) {
    mgl_free(s->frames[i]);
  }
  mgl_free(s->frames);
  mgl_free(s->table);
}

// Of one scenario, in one mode. False: not all of it, or something is wrong.
static bool run_search(search *s, const scenario *of, bool with_sleep) {
  present = of;
  sleeps = with_sleep;
  memset(s->table, 0, sizeof(seen) << TABLE_BITS);
  s->depth = s->deepest = 0;
  s->states = s->steps = s->ends = 0;
  s->failure[0] = 0;
  return explore(s);
}

typedef struct totals {
  uint64_t states, steps;
  double paths;
  uint32_t cut;
} totals;

static void search_scenario(search *s, const scenario *of, totals *t) {
  for (int mode = 0; mode < 2; mode++) {
    bool complete = run_search(s, of, mode == 1);
    if (s->failure[0] != 0) {
      fail_msg("%s", s->failure);
    }
    double paths = complete ? find(s, s->frames[0]->hash)->paths : 0;
    printf("%-62s %-5s %8llu states %9llu steps depth %4u %.3g interleavings%s\n", present->name,
           sleeps ? "sleep" : "spin", (unsigned long long)s->states, (unsigned long long)s->steps,
           s->deepest, paths, complete ? "" : " (cut)");
    t->states += s->states;
    t->steps += s->steps;
    t->paths += paths;
    t->cut += complete ? 0 : 1;
  }
}

static void check_totals(const totals *t, size_t count) {
  printf("%zu scenarios twice: %llu states, %llu steps, %.3g interleavings; %u cut\n", count,
         (unsigned long long)t->states, (unsigned long long)t->steps, t->paths, t->cut);
#if !defined(MGL_TEST_SANITIZED)
  assert_int_equal(t->cut, 0);
#endif
}

static void all_interleavings(void **state) {
  (void)state;
  search s;
  totals t = {0};
  open_search(&s);
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    search_scenario(&s, &scenarios[i], &t);
  }
  check_totals(&t, sizeof scenarios / sizeof *scenarios);
  close_search(&s);
}

static void all_interleavings_of_ranks(void **state) {
  (void)state;
  size_t count = sizeof rank_scenarios / sizeof *rank_scenarios;
  count -= getenv("MGL_TEST_LONG") == NULL ? LARGE_RANK_SCENARIOS : 0;
  search s;
  totals t = {0};
  open_search(&s);
  for (size_t i = 0; i < count; i++) {
    remote = rank_scenarios[i].remote;
    search_scenario(&s, &rank_scenarios[i].of, &t);
  }
  remote = 0;
  check_totals(&t, count);
  close_search(&s);
}

static void mutations_are_found(void **state) {
  (void)state;
  search s;
  open_search(&s);
  for (size_t i = 0; i < sizeof mutations / sizeof *mutations; i++) {
    remote = mutations[i].remote;
    mutated = mutations[i].mutation;
    for (int mode = 0; mode < 2; mode++) {
      const bool complete = run_search(&s, &mutations[i].of, mode == 1);
      const bool is_found = s.failure[0] != 0;
      printf("%s\n", is_found ? s.failure : "LOST_WAKE (spin): nothing sleeps");
      assert_true(is_found || (mode == 0 && mutated == LOST_WAKE && complete));
    }
  }
  remote = 0;
  mutated = SOUND;
  close_search(&s);
}

int main(void) {
#if defined(__SANITIZE_THREAD__)
#define NO_COROUTINES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_COROUTINES 1
#endif
#endif
#if defined(NO_COROUTINES)
  printf("skipped: one thread with coroutines, of which the thread sanitizer knows nothing\n");
  (void)all_interleavings;
  (void)all_interleavings_of_ranks;
  (void)mutations_are_found;
  return 0;
#else
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_interleavings_of_ranks),
      cmocka_unit_test(mutations_are_found),
      cmocka_unit_test(all_interleavings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
