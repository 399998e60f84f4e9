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
// Covered are sequentially consistent interleavings of accesses, exhaustively for the scenarios
// below. Left out as scheduling points are loads of a word that only the loading actor writes (they
// commute with everything), and the words that only the watchdog reads.
#define MGL_ATOMICS_MODEL 1

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <string.h>
#include <ucontext.h>

#include "base/alloc.h"
#include "support/small_graph.h"
#include "task/protocol_check.h"
#include "twin/protocol.h"

enum {
  MOST_WORKERS = 3,
  MOST_SCHEDULERS = 2,
  MOST_ACTORS = 4,
  MOST_GRAPHS = 2,
  MOST_JIT = 8,     // slots of a JIT queue
  MOST_EVENTS = 8,  // slots of a scheduler queue
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
  bool left;
} actor;

typedef struct world {
  mgl_protocol protocol;
  mgl_worker_shared workers[MOST_WORKERS];
  mgl_queue scheduler_queues[MOST_SCHEDULERS];
  mgl_queue_slot jit_slots[MOST_WORKERS][MOST_JIT];
  mgl_queue_slot event_slots[MOST_SCHEDULERS][MOST_EVENTS];
  mgl_word counters[MOST_GRAPHS][SMALL_EVENTS];
  actor actors[MOST_ACTORS];
  uint64_t notifications;
  uint64_t changes;
  uint64_t plans;              // plans asked for
  uint32_t graph;              // of the present iteration
  uint8_t began[SMALL_TASKS];  // in the present iteration
  uint8_t done[SMALL_TASKS];
  const char *error;
} world;

typedef struct scenario {
  const char *name;
  const small_task *tasks[MOST_GRAPHS];
  const uint16_t *types[MOST_GRAPHS];
  uint32_t event_counts[MOST_GRAPHS];
  const char *plans;  // digits: the graph of each iteration
  uint32_t workers;
  uint32_t schedulers;
  uint64_t jit_size;  // 0: as liveness asks
} scenario;

static const uint16_t terminate[] = {MGL_EVENT_TERMINATE};

static world now;
static char stacks[MOST_ACTORS][STACK_BYTES] __attribute__((aligned(64)));
static ucontext_t searcher;
static uint32_t running;  // actor
static bool sleeps;       // the mode
static const scenario *present;
static small_graph graphs[MOST_GRAPHS];

MODEL_FN static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = ((hash ^ value) + 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// --- scheduling points ---------------------------------------------------------------------------

MODEL_FN static bool is_private(const mgl_word *word, model_access access) {
  const world *w = &now;
  if (word == &w->protocol.planning) {
    return true;
  }
  for (uint32_t i = 0; i < present->workers; i++) {
    if (word == &w->workers[i].progress || word == &w->workers[i].waiting ||
        (word == &w->workers[i].jit.head && access == MODEL_LOAD && running == i)) {
      return true;
    }
  }
  for (uint32_t i = 0; i < present->schedulers; i++) {
    if (word == &w->scheduler_queues[i].head && running == present->workers + i) {
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
  if (!is_private(word, access)) {
    yield();
  }
}

// What pop reads besides words: the value at the head that it has just taken.
MODEL_FN static uint64_t popped_value(const mgl_word *word) {
  for (uint32_t i = 0; i < present->workers + present->schedulers; i++) {
    const mgl_queue *queue =
        i < present->workers ? &now.workers[i].jit : &now.scheduler_queues[i - present->workers];
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
    now.notifications++;
  } else if (access != MODEL_LOAD && !is_private(word, access)) {
    now.changes++;
  }
}

// --- actors --------------------------------------------------------------------------------------

MODEL_FN static void fail_with(const char *text) {
  now.error = now.error == NULL ? text : now.error;
}

// True if everything that task `of` waits for has run, empty tasks looked through.
MODEL_FN static bool preds_done(const mgl_task_graph *g, uint32_t of) {
  uint32_t event = g->tasks[of].dependent_event;
  if (event == MGL_NO_EVENT || g->events[event].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
    return true;
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    bool empty = (g->tasks[i].flags & MGL_TASK_EMPTY) != 0;
    if (g->tasks[i].trigger_event == event && (empty ? !preds_done(g, i) : !now.done[i])) {
      return false;
    }
  }
  return true;
}

MODEL_FN static void run_task(uint32_t worker, const mgl_ready_task *ready) {
  const mgl_task_graph *g = &graphs[ready->info.graph].graph;
  const mgl_task *task = &g->tasks[ready->task];
  if (ready->info.graph != now.graph || ready->info.iteration + 1 != now.plans) {
    fail_with("a task of another iteration runs");
    return;
  }
  if (now.began[ready->task] != 0 || (task->flags & MGL_TASK_EMPTY) != 0) {
    fail_with("a task runs twice, or is empty");
  }
  if (task->flags == 0 && task->worker != worker) {
    fail_with("an AOT task runs on another worker");
  }
  if (!preds_done(g, ready->task)) {
    fail_with("a task runs before its predecessors");
  }
  now.began[ready->task] = 1;
  yield();  // it takes time
  now.done[ready->task] = 1;
}

MODEL_FN static int next_plan(void *context, uint64_t iteration) {
  (void)context;
  const mgl_task_graph *g = &graphs[now.graph].graph;
  if (iteration != now.plans) {
    fail_with("plans are asked for out of order");
  }
  for (uint32_t i = 0; iteration > 0 && i < g->task_count; i++) {
    if ((g->tasks[i].flags & MGL_TASK_EMPTY) == 0 && now.done[i] == 0) {
      fail_with("an iteration ended before all its tasks");
    }
  }
  char digit = present->plans[iteration];
  now.plans++;
  for (uint32_t i = 0; i < SMALL_TASKS; i++) {
    now.began[i] = 0;
    now.done[i] = 0;
  }
  now.graph = digit == '\0' ? 0 : (uint32_t)(digit - '0');
  return digit == '\0' ? -1 : digit - '0';
}

MODEL_FN static void start_poll(actor *a) {
  const mgl_worker_state *w = &a->worker;
  const mgl_scheduler_state *s = &a->scheduler;
  a->ticket = sleeps ? now.notifications : now.changes;
  a->trail = mix(mix(mix(w->iteration, w->info.iteration), w->info.run), w->info.graph);
  a->trail = mix(mix(mix(a->trail, w->aot_at), w->aot_end), w->entered * 2u + w->begins);
  a->trail = mix(mix(mix(a->trail, s->list.iteration), s->list.graph), s->list.next);
  a->trail = mix(mix(a->trail, s->list.last), s->list.dependent);
  a->trail = mix(a->trail, s->launching * 2u + s->begins);
}

MODEL_FN static void actor_main(void) {
  actor *a = &now.actors[running];
  bool works = running < present->workers;
  mgl_poll_result result = MGL_POLL_NONE;
  while (result != MGL_POLL_STOP) {
    mgl_ready_task ready;
    start_poll(a);
    result = works ? mgl_worker_poll(&now.protocol, &a->worker, &ready)
                   : mgl_scheduler_poll(&now.protocol, &a->scheduler);
    if (result == MGL_POLL_NONE) {
      a->sleeping = true;
      a->trail = mix(a->trail, 77);
      yield();
      a->sleeping = false;
    } else if (result == MGL_POLL_TASK && works) {
      run_task(running, &ready);
      if (!mgl_worker_finish(&now.protocol, running, &ready)) {
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

static bool is_awake(const actor *a) {
  return !a->sleeping || a->ticket != (sleeps ? now.notifications : now.changes);
}

static uint64_t hash_state(void) {
  const mgl_protocol *p = &now.protocol;
  uint64_t hash = mix(mix(mix(1, p->published.value), p->info.value), p->fault.value);
  for (uint32_t g = 0; g < p->graph_count; g++) {
    hash = mix(hash, p->graph_runs[g]);
    for (uint32_t e = 0; e < p->graphs[g].event_count; e++) {
      hash = mix(hash, now.counters[g][e].value);
    }
  }
  for (uint32_t i = 0; i < p->worker_count; i++) {
    hash = mix(hash_queue(hash, &now.workers[i].jit), now.workers[i].current.value);
  }
  for (uint32_t i = 0; i < p->scheduler_count; i++) {
    hash = hash_queue(hash, &now.scheduler_queues[i]);
  }
  hash = mix(mix(hash, now.plans), now.graph);
  for (uint32_t i = 0; i < SMALL_TASKS; i++) {
    hash = mix(hash, now.began[i] * 2u + now.done[i]);
  }
  for (uint32_t i = 0; i < p->worker_count + p->scheduler_count; i++) {
    const actor *a = &now.actors[i];
    bool stale = a->ticket != (sleeps ? now.notifications : now.changes);
    hash = mix(mix(hash, a->trail), a->left * 4u + a->sleeping * 2u + stale);
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
  for (uint32_t i = 0; i < present->workers + present->schedulers; i++) {
    size_t used = (size_t)(stacks[i] + STACK_BYTES - now.actors[i].top);
    assert_true(used <= sizeof f->stacks[i]);
    memcpy(f->stacks[i], now.actors[i].top, used);
  }
}

static void restore(const frame *f) {
  memcpy(&now, &f->world, sizeof now);
  for (uint32_t i = 0; i < present->workers + present->schedulers; i++) {
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
  uint64_t ends;  // states in which all have left
} search;

static seen *find(search *s, uint64_t hash) {
  uint64_t mask = (1u << TABLE_BITS) - 1;
  uint64_t at = hash & mask;
  while (s->table[at].hash != 0 && s->table[at].hash != hash) {
    at = (at + 1) & mask;
  }
  return &s->table[at];
}

static void set_up(void) {
  mgl_error err = {0};
  mgl_protocol *p = &now.protocol;
  memset(&now, 0, sizeof now);
  p->worker_count = present->workers;
  p->scheduler_count = present->schedulers;
  p->next_plan = next_plan;
  p->workers = now.workers;
  p->scheduler_queues = now.scheduler_queues;
  for (uint32_t g = 0; g < MOST_GRAPHS && present->tasks[g] != NULL; g++) {
    small_graph_init(&graphs[g], present->workers, present->tasks[g], present->event_counts[g],
                     present->types[g]);
    if (mgl_protocol_check(&graphs[g].graph, &err) != MGL_OK) {
      fail_msg("%s: %s", present->name, err.text);
    }
    const mgl_task_graph *graph = &graphs[g].graph;
    p->graphs[g] = (mgl_graph_view){.tasks = graph->tasks,
                                    .events = graph->events,
                                    .aot_start = graph->aot_start,
                                    .aot_tasks = graph->aot_tasks,
                                    .counters = now.counters[g],
                                    .task_count = graph->task_count,
                                    .event_count = graph->event_count,
                                    .ready_count = graph->ready_count};
    p->graph_count = g + 1;
  }
  uint64_t jit_size = 0;
  uint64_t event_size = 0;
  mgl_protocol_queue_sizes(p->graphs, p->graph_count, &jit_size, &event_size);
  jit_size = present->jit_size != 0 ? present->jit_size : jit_size;
  assert_true(jit_size <= MOST_JIT && event_size <= MOST_EVENTS);
  // Before the actors exist: no scheduling points.
  for (uint32_t i = 0; i < present->workers; i++) {
    mgl_queue *queue = &now.workers[i].jit;
    queue->slots = now.jit_slots[i];
    queue->mask = jit_size - 1;
    for (uint64_t k = 0; k < jit_size; k++) {
      queue->slots[k].sequence.value = k;
    }
    mgl_worker_init(p, &now.actors[i].worker, i);
  }
  for (uint32_t i = 0; i < present->schedulers; i++) {
    mgl_queue *queue = &now.scheduler_queues[i];
    queue->slots = now.event_slots[i];
    queue->mask = event_size - 1;
    for (uint64_t k = 0; k < event_size; k++) {
      queue->slots[k].sequence.value = k;
    }
    mgl_scheduler_init(&now.actors[present->workers + i].scheduler, i);
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
  for (uint32_t i = 0; i < present->workers + present->schedulers; i++) {
    make_coroutine(i);
    go(i);  // up to its first access
  }
}

// Enters the present state: true if it is new and has successors. *paths: interleavings from here,
// if it is not.
static bool enter(search *s, double *paths) {
  uint32_t count = present->workers + present->schedulers;
  uint32_t left = 0;
  uint32_t awake = 0;
  if (now.error != NULL || now.protocol.fault.value != 0) {
    fail_msg("%s (%s), depth %u: %s, fault %llu", present->name, sleeps ? "sleep" : "spin",
             s->depth, now.error != NULL ? now.error : "",
             (unsigned long long)now.protocol.fault.value);
  }
  for (uint32_t i = 0; i < count; i++) {
    left += now.actors[i].left ? 1 : 0;
    awake += !now.actors[i].left && is_awake(&now.actors[i]) ? 1 : 0;
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
  if (left == count) {
    bool asks = present->types[0] != terminate;
    if (now.plans != strlen(present->plans) + (asks ? 1 : 0)) {
      fail_msg("%s: stopped after %llu plans", present->name, (unsigned long long)now.plans);
    }
    entry->paths = 1;
    s->ends++;
    return false;
  }
  if (awake == 0) {
    fail_msg("%s (%s), depth %u: deadlock", present->name, sleeps ? "sleep" : "spin", s->depth);
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

// Returns false if the limit of states was reached.
static bool explore(search *s) {
  double paths = 0;
  set_up();
  start_actors();
  (void)enter(s, &paths);
  while (s->depth > 0) {
    frame *f = s->frames[s->depth - 1];
    uint32_t i = f->next++;
    if (i == present->workers + present->schedulers) {
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
    if (now.actors[i].left || !is_awake(&now.actors[i])) {
      continue;
    }
    s->steps++;
    go(i);
    if (!enter(s, &paths)) {
      f->paths += paths;
    }
  }
  return true;
}

// --- scenarios -----------------------------------------------------------------------------------

enum { R = SMALL_READY, END = SMALL_END };
static const uint16_t ends[] = {MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t one[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t two[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_LAUNCH_TASKS,
                               MGL_EVENT_END_OF_TASK_GRAPH};
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
static const small_task fork_join[] = {{'a', R, 0, 0},   {'e', 0, 1, 0},   {'e', 0, END, 0},
                                       {'a', 1, END, 1}, {'j', 1, END, 0}, {0}};
static const small_task depends[] = {
    {'a', R, 0, 0}, {'e', 0, 1, 0}, {'a', 0, END, 1}, {'j', 1, END, 0}, {0}};
static const small_task empties[] = {{'a', R, 0, 1}, {'e', 0, 1, 0}, {'e', 0, END, 0}, {0}};

static const scenario scenarios[] = {
    {"1 AOT task, worker 1 misses iterations", {aot_alone}, {ends}, {1}, "000", 2, 0, 0},
    {"1 AOT task, 1 scheduler", {aot_alone}, {ends}, {1}, "00", 2, 1, 0},
    {"2 AOT tasks", {aot_pair}, {ends}, {1}, "00", 2, 0, 0},
    {"AOT chain", {aot_chain}, {one}, {2}, "00", 2, 0, 0},
    {"AOT join", {aot_join}, {one}, {2}, "00", 2, 0, 0},
    {"AOT join, 1 scheduler", {aot_join}, {one}, {2}, "00", 2, 1, 0},
    {"1 JIT task", {jit_alone}, {ends}, {1}, "00", 2, 0, 0},
    {"1 JIT task, 1 scheduler", {jit_alone}, {ends}, {1}, "00", 2, 1, 0},
    {"JIT chain", {jit_chain}, {one}, {2}, "00", 2, 0, 0},
    {"JIT chain, 1 scheduler", {jit_chain}, {one}, {2}, "00", 2, 1, 0},
    {"3 JIT tasks behind an event, 1 worker, queue wraps",
     {jit_three},
     {one},
     {2},
     "0000",
     1,
     0,
     0},
    {"3 JIT tasks, 1 worker, 1 scheduler, full queue of 2",
     {jit_three},
     {one},
     {2},
     "000",
     1,
     1,
     2},
    {"3 JIT tasks, 2 workers", {jit_three}, {one}, {2}, "0", 2, 0, 0},
    {"3 massive JIT tasks, 1 worker, 2 schedulers, full queue of 2",
     {jit_three},
     {massive},
     {2},
     "0",
     1,
     2,
     2},
    {"AOT and JIT behind one event", {hybrid}, {one}, {2}, "00", 2, 0, 0},
    {"AOT and JIT behind one event, 1 scheduler", {hybrid}, {one}, {2}, "0", 2, 1, 2},
    {"fork and join by empty tasks", {fork_join}, {two}, {3}, "00", 2, 0, 0},
    {"fork and join by empty tasks, 1 scheduler", {fork_join}, {two}, {3}, "0", 2, 1, 0},
    {"dependent launch", {depends}, {dependent}, {3}, "00", 2, 0, 0},
    {"dependent launch, another graph in between",
     {depends, aot_alone},
     {dependent, ends},
     {3, 1},
     "010",
     2,
     0,
     0},
    {"dependent launch, 1 scheduler", {depends}, {dependent}, {3}, "0", 2, 1, 0},
    {"EMPTY event", {empties}, {leaf}, {3}, "00", 2, 0, 0},
    {"TERMINATE event", {aot_pair}, {terminate}, {1}, "0", 2, 0, 0},
    {"stop at once", {aot_pair}, {ends}, {1}, "", 2, 1, 0},
    {"3 workers, AOT chain, one idle", {aot_chain}, {one}, {2}, "00", 3, 0, 0},
};

static void all_interleavings(void **state) {
  (void)state;
  search s = {.table = mgl_alloc((sizeof(seen)) << TABLE_BITS),
              .frames = mgl_alloc_zeroed(MOST_DEPTH, sizeof(frame *))};
  assert_non_null(s.table);
  assert_non_null(s.frames);
  uint64_t states = 0;
  uint64_t steps = 0;
  double total = 0;
  uint32_t cut = 0;
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    present = &scenarios[i];
    for (int mode = 0; mode < 2; mode++) {
      sleeps = mode == 1;
      memset(s.table, 0, sizeof(seen) << TABLE_BITS);
      s.depth = s.deepest = 0;
      s.states = s.steps = s.ends = 0;
      bool complete = explore(&s);
      double paths = complete ? find(&s, s.frames[0]->hash)->paths : 0;
      printf("%-62s %-5s %8llu states %9llu steps depth %4u %.3g interleavings%s\n", present->name,
             sleeps ? "sleep" : "spin", (unsigned long long)s.states, (unsigned long long)s.steps,
             s.deepest, paths, complete ? "" : " (cut)");
      states += s.states;
      steps += s.steps;
      total += paths;
      cut += complete ? 0 : 1;
    }
  }
  printf("%zu scenarios twice: %llu states, %llu steps, %.3g interleavings; %u cut\n",
         sizeof scenarios / sizeof *scenarios, (unsigned long long)states,
         (unsigned long long)steps, total, cut);
#if !defined(MGL_TEST_SANITIZED)
  assert_int_equal(cut, 0);
#endif
  for (uint32_t i = 0; i < MOST_DEPTH; i++) {
    mgl_free(s.frames[i]);
  }
  mgl_free(s.frames);
  mgl_free(s.table);
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
  return 0;
#else
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_interleavings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
