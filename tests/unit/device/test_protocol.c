// The protocol driven by hand, one poll at a time: every event type, tickets, empty tasks, missed
// iterations, stopping, ids beyond 2^32 iterations; the queue under threads; and the rules
// that graphs must keep.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "support/small_graph.h"
#include "task/protocol_check.h"
#include "twin/protocol.h"

enum { R = SMALL_READY, END = SMALL_END, MOST = 4 };

// A protocol with all that it points at, and its workers and schedulers.
typedef struct rig {
  mgl_protocol p;
  small_graph graphs[2];
  mgl_worker_shared shared[MOST];
  mgl_queue scheduler_queues[MOST];
  mgl_queue_slot scheduler_slots[MOST][MGL_SCHEDULER_SLOTS];
  uint32_t jit_tasks[2][SMALL_TASKS];
  mgl_word counters[2][SMALL_EVENTS];
  mgl_worker_state workers[MOST];
  mgl_scheduler_state schedulers[MOST];
  const char *plans;  // digits: the graph of each iteration
  uint32_t plan_count;
  uint64_t first_plan;  // iteration of plans[0]
  uint32_t ran[2][SMALL_TASKS];
} rig;

static int next_plan(void *context, uint64_t iteration) {
  rig *r = context;
  assert_int_equal(iteration, r->first_plan + r->plan_count);
  char digit = r->plans[r->plan_count];
  if (digit == '\0') {
    return -1;
  }
  r->plan_count++;
  return digit - '0';
}

static void add_graph(rig *r, uint32_t workers, const small_task *tasks, uint32_t event_count,
                      const uint16_t *types) {
  uint32_t i = r->p.graph_count++;
  mgl_task_graph *g = &r->graphs[i].graph;
  mgl_graph_view *view = &r->p.graphs[i];
  mgl_error err = {0};
  small_graph_init(&r->graphs[i], workers, tasks, event_count, types);
  if (mgl_protocol_check(g, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  view->tasks = g->tasks;
  view->events = g->events;
  view->aot_start = g->aot_start;
  view->aot_tasks = g->aot_tasks;
  view->counters = r->counters[i];
  view->task_count = g->task_count;
  view->event_count = g->event_count;
  view->jit_tasks = r->jit_tasks[i];
  view->jit_count = mgl_protocol_jit_tasks(g, r->jit_tasks[i]);
  r->p.worker_count = workers;
}

static void start(rig *r, uint32_t schedulers, const char *plans) {
  r->p.scheduler_count = schedulers;
  r->p.next_plan = next_plan;
  r->p.next_plan_context = r;
  r->p.workers = r->shared;
  r->p.scheduler_queues = r->scheduler_queues;
  r->plans = plans;
  for (uint32_t i = 0; i < r->p.worker_count; i++) {
    mgl_worker_init(&r->p, &r->workers[i], i);
  }
  for (uint32_t i = 0; i < schedulers; i++) {
    mgl_queue_init(&r->scheduler_queues[i], r->scheduler_slots[i], MGL_SCHEDULER_SLOTS);
    mgl_scheduler_init(&r->schedulers[i], i);
  }
}

// Polls worker w: the task that it found, or -1 for none, -2 for stop. Finishes nothing.
static int poll(rig *r, uint32_t w, mgl_ready_task *ready) {
  mgl_poll_result result = mgl_worker_poll(&r->p, &r->workers[w], ready);
  if (result == MGL_POLL_TASK) {
    r->ran[ready->info.graph][ready->task]++;
    return (int)ready->task;
  }
  return result == MGL_POLL_STOP ? -2 : -1;
}

// Polls and finishes.
static int step(rig *r, uint32_t w) {
  mgl_ready_task ready;
  int found = poll(r, w, &ready);
  if (found >= 0) {
    assert_true(mgl_worker_finish(&r->p, w, &ready));
  }
  return found;
}

static mgl_poll_result schedule(rig *r, uint32_t s) {
  return mgl_scheduler_poll(&r->p, &r->schedulers[s]);
}

static uint64_t count_of(const rig *r, uint32_t graph, uint32_t event) {
  return mgl_load_relaxed(&r->counters[graph][event]);
}

// --- event types ---------------------------------------------------------------------------------

static const uint16_t ends[] = {MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t one[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};

static void terminate_ends_the_run_without_a_plan(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, END, 0}, {'a', R, END, 1}, {0}};
  static const uint16_t types[] = {MGL_EVENT_TERMINATE};
  for (uint32_t schedulers = 0; schedulers < 3; schedulers++) {
    rig r = {0};
    add_graph(&r, 2, tasks, 1, types);
    start(&r, schedulers, "00000");
    for (uint32_t s = 0; s < schedulers; s++) {
      (void)schedule(&r, s);
    }
    assert_int_equal(step(&r, 0), 0);
    assert_int_equal(step(&r, 0), -1);
    assert_int_equal(step(&r, 1), 1);
    for (uint32_t s = 0; s < schedulers; s++) {
      (void)schedule(&r, s);
    }
    assert_int_equal(step(&r, 0), -2);
    assert_int_equal(step(&r, 1), -2);
    for (uint32_t s = 0; s < schedulers; s++) {
      assert_int_equal(schedule(&r, s), MGL_POLL_STOP);
    }
    assert_int_equal(r.plan_count, 1);
  }
}

static void launch_tasks_waits_for_all_triggers(void **state) {
  (void)state;
  static const small_task tasks[] = {
      {'a', R, 0, 0}, {'a', R, 0, 1}, {'a', 0, END, 0}, {'j', 0, END, 0}, {0}};
  rig r = {0};
  add_graph(&r, 2, tasks, 2, one);
  start(&r, 0, "00");
  for (uint32_t run = 1; run <= 2; run++) {
    assert_int_equal(step(&r, 0), 0);
    assert_int_equal(step(&r, 0), -1);  // one of two triggers
    assert_int_equal(step(&r, 1), 1);
    assert_int_equal(count_of(&r, 0, 0), 2 * run);
    // The JIT task is whose has no other; in the second run the first one has kept its ticket.
    assert_int_equal(step(&r, 1), run == 1 ? 3 : -1);
    assert_int_equal(step(&r, 0), 2);
  }
  assert_int_equal(step(&r, 0), 3);
  assert_int_equal(step(&r, 0), -2);
  assert_int_equal(step(&r, 1), -2);
}

static void end_of_task_graph_asks_for_the_next_plan(void **state) {
  (void)state;
  static const small_task first[] = {{'a', R, END, 0}, {'a', R, END, 1}, {0}};
  static const small_task second[] = {{'j', R, END, 0}, {0}};
  rig r = {0};
  add_graph(&r, 2, first, 1, ends);
  add_graph(&r, 2, second, 1, ends);
  start(&r, 0, "010");
  assert_int_equal(step(&r, 1), -1);  // nothing is published before worker 0 begins
  assert_int_equal(step(&r, 0), 0);
  assert_int_equal(r.plan_count, 1);
  assert_int_equal(step(&r, 1), 1);
  assert_int_equal(r.plan_count, 2);
  assert_int_equal(step(&r, 0), 0);  // the JIT task of graph 1
  assert_int_equal(r.plan_count, 3);
  assert_int_equal(step(&r, 0), 0);
  assert_int_equal(step(&r, 1), 1);
  assert_int_equal(step(&r, 0), -2);
  assert_int_equal(r.p.graph_runs[0], 2);
  assert_int_equal(r.p.graph_runs[1], 1);
}

static void empty_event_does_nothing(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, 0, 0}, {'e', 0, 1, 0}, {'e', 0, END, 0}, {0}};
  static const uint16_t types[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_EMPTY,
                                   MGL_EVENT_END_OF_TASK_GRAPH};
  rig r = {0};
  add_graph(&r, 1, tasks, 3, types);
  start(&r, 1, "0");
  assert_int_equal(schedule(&r, 0), MGL_POLL_TASK);
  assert_int_equal(step(&r, 0), 0);
  assert_int_equal(mgl_queue_length(&r.scheduler_queues[0]), 1);  // the end only
  assert_int_equal(count_of(&r, 0, 1), 1);
  assert_int_equal(schedule(&r, 0), MGL_POLL_TASK);
  assert_int_equal(step(&r, 0), -2);
}

static const uint16_t massive[] = {MGL_EVENT_LAUNCH_MASSIVE_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};

static void tasks_of_a_massive_event_are_dealt_to_who_asks(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, 0, 0},   {'j', 0, END, 0}, {'j', 0, END, 0},
                                     {'a', 0, END, 1}, {'j', 0, END, 0}, {0}};
  rig r = {0};
  add_graph(&r, 3, tasks, 2, massive);
  mgl_ready_task ready;
  start(&r, 2, "0");
  assert_int_equal(schedule(&r, 0), MGL_POLL_TASK);
  assert_int_equal(step(&r, 0), 0);
  assert_int_equal(poll(&r, 2, &ready), 1);  // takes the first one and is busy
  assert_int_equal(step(&r, 1), 2);          // before its own task
  assert_int_equal(step(&r, 0), 4);          // which is no reason to wait
  assert_int_equal(step(&r, 1), 3);
  assert_int_equal(mgl_load_relaxed(&r.p.tickets), 3);
  assert_int_equal(schedule(&r, 0), MGL_POLL_NONE);
  assert_true(mgl_worker_finish(&r.p, 2, &ready));
  assert_int_equal(schedule(&r, 0), MGL_POLL_NONE);
  assert_int_equal(schedule(&r, 1), MGL_POLL_TASK);  // the end: event 1 of 2 schedulers
  assert_int_equal(step(&r, 0), -2);
}

// Whoever takes a ticket behind the last one of an iteration has the first one of the next
// iteration with JIT tasks, whatever runs in between.
static void tickets_are_kept_for_later_iterations(void **state) {
  (void)state;
  static const small_task tasks[] = {{'j', R, 0, 0}, {'j', 0, END, 0}, {0}};
  static const small_task other[] = {{'a', R, END, 1}, {0}};
  rig r = {0};
  mgl_ready_task ready;
  add_graph(&r, 3, tasks, 2, one);
  add_graph(&r, 3, other, 1, ends);
  start(&r, 0, "0110");
  assert_int_equal(poll(&r, 0, &ready), 0);
  assert_int_equal(step(&r, 1), -1);  // it has the second one, which waits
  assert_int_equal(mgl_worker_waits_for(&r.workers[1]), 1);
  assert_int_equal(step(&r, 2), -1);  // it takes the third one
  assert_int_equal(mgl_load_relaxed(&r.p.tickets), 3);
  assert_true(mgl_worker_finish(&r.p, 0, &ready));
  assert_int_equal(step(&r, 0), -1);
  assert_int_equal(step(&r, 1), 1);
  assert_int_equal(step(&r, 1), 0);  // of graph 1, twice
  assert_int_equal(step(&r, 1), 0);
  assert_int_equal(r.plan_count, 4);
  assert_int_equal(step(&r, 1), -1);  // its ticket is the fifth
  assert_int_equal(step(&r, 0), -1);  // the second one of graph 0, which waits
  assert_int_equal(step(&r, 2), 0);
  assert_int_equal(step(&r, 0), 1);
  assert_int_equal(mgl_load_relaxed(&r.p.tickets), 5);
  for (uint32_t w = 0; w < 3; w++) {
    assert_int_equal(step(&r, w), -2);
  }
}

static void dependent_tasks_run_once_in_every_run_of_their_graph(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, 0, 0},   {'e', 0, 1, 0},   {'a', 0, END, 0},
                                     {'j', 1, END, 0}, {'a', 1, END, 1}, {0}};
  static const small_task other[] = {{'a', R, END, 1}, {0}};
  static const uint16_t types[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_LAUNCH_DEPENDENT_TASKS,
                                   MGL_EVENT_END_OF_TASK_GRAPH};
  for (uint32_t schedulers = 0; schedulers < 3; schedulers++) {
    rig r = {0};
    uint32_t idle = 0;
    add_graph(&r, 2, tasks, 3, types);
    add_graph(&r, 2, other, 1, ends);
    start(&r, schedulers, "0011010");
    while (idle < 10) {
      bool did = false;
      for (uint32_t s = 0; s < schedulers; s++) {
        did = schedule(&r, s) == MGL_POLL_TASK || did;
      }
      for (uint32_t w = 0; w < 2; w++) {
        did = step(&r, w) >= 0 || did;
      }
      idle = did ? 0 : idle + 1;
    }
    assert_int_equal(step(&r, 0), -2);
    assert_int_equal(step(&r, 1), -2);
    for (uint32_t i = 0; i < 5; i++) {
      assert_int_equal(r.ran[0][i], i == 1 ? 0 : 4);
    }
    assert_int_equal(r.ran[1][0], 3);
    assert_int_equal(count_of(&r, 0, 1), 4);
    assert_int_equal(mgl_load_relaxed(&r.p.fault), MGL_FAULT_NONE);
  }
}

// --- empty tasks ---------------------------------------------------------------------------------

static void forks_and_joins_cost_no_queue(void **state) {
  (void)state;
  // 0 and 1 join in event 0, which forks through empty tasks into events 1 and 2, joined in 3.
  static const small_task tasks[] = {
      {'a', R, 0, 0}, {'a', R, 0, 1}, {'e', 0, 1, 0}, {'e', 0, 2, 0},   {'a', 1, 3, 0},
      {'a', 2, 3, 1}, {'e', 3, 4, 0}, {'e', 3, 4, 0}, {'a', 4, END, 1}, {0}};
  static const uint16_t types[] = {1, 1, 1, 1, 1, MGL_EVENT_END_OF_TASK_GRAPH};
  rig r = {0};
  add_graph(&r, 2, tasks, 6, types);
  start(&r, 1, "00");
  assert_int_equal(schedule(&r, 0), MGL_POLL_TASK);
  for (uint32_t run = 1; run <= 2; run++) {
    assert_int_equal(step(&r, 1), 1);
    assert_int_equal(step(&r, 1), -1);
    assert_int_equal(step(&r, 0), 0);
    assert_int_equal(count_of(&r, 0, 1), run);
    assert_int_equal(count_of(&r, 0, 2), run);
    assert_int_equal(step(&r, 1), 5);
    assert_int_equal(step(&r, 1), -1);
    assert_int_equal(step(&r, 0), 4);
    assert_int_equal(count_of(&r, 0, 4), 2 * run);
    assert_int_equal(mgl_queue_length(&r.scheduler_queues[0]), 0);
    assert_int_equal(step(&r, 1), 8);
    assert_int_equal(schedule(&r, 0), MGL_POLL_TASK);
  }
  assert_int_equal(step(&r, 0), -2);
}

// --- an end that nobody takes --------------------------------------------------------------------

static void more_ends_than_a_scheduler_can_have_are_a_fault(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, END, 0}, {0}};
  rig r = {0};
  add_graph(&r, 1, tasks, 1, ends);
  start(&r, 1, "0");
  assert_int_equal(schedule(&r, 0), MGL_POLL_TASK);
  for (uint32_t i = 0; i < MGL_SCHEDULER_SLOTS; i++) {
    assert_true(mgl_queue_push(&r.scheduler_queues[0], 1));
  }
  mgl_ready_task ready;
  assert_int_equal(poll(&r, 0, &ready), 0);
  assert_false(mgl_worker_finish(&r.p, 0, &ready));
  assert_int_equal(mgl_load_relaxed(&r.p.fault), MGL_FAULT_QUEUE_FULL);
}

// --- iterations ----------------------------------------------------------------------------------

static void worker_without_tasks_misses_iterations(void **state) {
  (void)state;
  static const small_task both[] = {{'a', R, END, 0}, {'a', R, END, 1}, {0}};
  static const small_task alone[] = {{'a', R, END, 0}, {0}};
  rig r = {0};
  add_graph(&r, 2, both, 1, ends);
  add_graph(&r, 2, alone, 1, ends);
  start(&r, 0, "011111111110111");
  assert_int_equal(step(&r, 0), 0);
  assert_int_equal(step(&r, 1), 1);
  for (int i = 0; i < 10; i++) {
    assert_int_equal(step(&r, 0), 0);
  }
  assert_int_equal(step(&r, 0), 0);
  assert_int_equal(step(&r, 0), -1);  // iteration 11 waits for worker 1
  assert_int_equal(r.plan_count, 12);
  assert_int_equal(step(&r, 1), 1);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(step(&r, 0), 0);
  }
  assert_int_equal(step(&r, 1), -2);  // straight to the stop
  assert_int_equal(step(&r, 0), -2);
}

static void ids_wrap_after_two_to_the_32_iterations(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, 0, 0}, {'j', 0, END, 0}, {'a', 0, END, 1}, {0}};
  const uint64_t first = ((uint64_t)1 << 32) - 2;
  const uint64_t runs = ((uint64_t)1 << 40) + 5;  // of the graph so far
  for (uint32_t schedulers = 0; schedulers < 2; schedulers++) {
    rig r = {0};
    add_graph(&r, 2, tasks, 2, one);
    start(&r, schedulers, "00000");
    r.first_plan = first;
    r.workers[0].begins = false;
    r.schedulers[0].begins = false;
    r.p.graph_runs[0] = runs;
    mgl_store_relaxed(&r.counters[0][0], runs);
    mgl_store_relaxed(&r.counters[0][1], 2 * runs);
    r.p.jit_published = runs;
    mgl_store_relaxed(&r.p.tickets, runs);
    mgl_begin_iteration(&r.p, first, false);
    for (uint32_t i = 0; i < 60; i++) {
      (void)step(&r, i % 2);
      if (schedulers > 0) {
        (void)schedule(&r, 0);
      }
    }
    for (uint32_t i = 0; i < 3; i++) {
      assert_int_equal(r.ran[0][i], 5);
    }
    assert_int_equal(mgl_load_relaxed(&r.p.fault), MGL_FAULT_NONE);
    assert_int_equal(step(&r, 0), -2);
    assert_int_equal(step(&r, 1), -2);
  }
}

static void schedulers_stop_with_the_run(void **state) {
  (void)state;
  static const small_task tasks[] = {{'j', R, END, 0}, {0}};
  for (uint32_t plans = 0; plans < 3; plans++) {
    rig r = {0};
    add_graph(&r, 2, tasks, 1, ends);
    start(&r, 4, &"00"[2 - plans]);
    for (uint32_t i = 0; i < 10; i++) {
      for (uint32_t k = 0; k < 4; k++) {
        (void)schedule(&r, k);
        (void)step(&r, k % 2);
      }
    }
    for (uint32_t k = 0; k < 4; k++) {
      assert_int_equal(schedule(&r, k), MGL_POLL_STOP);
      assert_int_equal(step(&r, k % 2), -2);
    }
    assert_int_equal(r.ran[0][0], plans);
  }
}

static void first_fault_stays_and_stops_everybody(void **state) {
  (void)state;
  static const small_task tasks[] = {{'a', R, END, 0}, {0}};
  rig r = {0};
  add_graph(&r, 1, tasks, 1, ends);
  start(&r, 1, "2");  // no such graph
  (void)schedule(&r, 0);
  assert_int_equal(mgl_load_relaxed(&r.p.fault), MGL_FAULT_PLAN);
  mgl_raise_fault(&r.p, MGL_FAULT_STUCK);
  assert_int_equal(mgl_load_relaxed(&r.p.fault), MGL_FAULT_PLAN);
  assert_int_equal(schedule(&r, 0), MGL_POLL_STOP);
  assert_int_equal(step(&r, 0), -2);
}

// --- queue ---------------------------------------------------------------------------------------

static void queue_wraps_and_pushes_back(void **state) {
  (void)state;
  static mgl_queue_slot slots[8];
  for (uint64_t size = 2; size <= 8; size *= 2) {
    mgl_queue queue;
    uint64_t out = 0;
    uint64_t next = 0;
    mgl_queue_init(&queue, slots, size);
    assert_false(mgl_queue_pop(&queue, &out));
    for (uint64_t i = 0; i < 50; i++) {
      for (uint64_t k = 0; k < size; k++) {
        assert_true(mgl_queue_push(&queue, i * size + k));
      }
      assert_false(mgl_queue_push(&queue, 12345));
      assert_int_equal(mgl_queue_length(&queue), size);
      for (uint64_t k = 0; k < size; k++) {
        assert_true(mgl_queue_pop(&queue, &out));
        assert_int_equal(out, next++);
      }
      assert_false(mgl_queue_pop(&queue, &out));
    }
  }
}

enum { PRODUCERS = 3, CONSUMERS = 3, ITEMS = 20000 };

typedef struct traffic {
  mgl_queue queue;
  mgl_queue_slot slots[16];
  mgl_word taken;
  uint64_t payload[PRODUCERS][ITEMS];  // plain: ordered by the queue
  uint32_t seen[PRODUCERS][ITEMS];
  mgl_word errors;
  mgl_word next_producer;
} traffic;

static void *produce(void *argument) {
  traffic *t = argument;
  uint64_t me = mgl_add_acq_rel(&t->next_producer, 1);
  for (uint64_t i = 0; i < ITEMS; i++) {
    t->payload[me][i] = i * 31 + me;
    while (!mgl_queue_push(&t->queue, me << 32 | i)) {
      (void)sched_yield();
    }
  }
  return NULL;
}

static void *consume(void *argument) {
  traffic *t = argument;
  uint64_t last[PRODUCERS] = {0};  // item + 1: one producer's items come in order
  while (mgl_load_relaxed(&t->taken) < (uint64_t)PRODUCERS * ITEMS) {
    uint64_t id = 0;
    if (!mgl_queue_pop(&t->queue, &id)) {
      (void)sched_yield();
      continue;
    }
    uint64_t from = id >> 32;
    uint64_t item = id & UINT32_MAX;
    (void)mgl_add_acq_rel(&t->taken, 1);
    if (from >= PRODUCERS || item >= ITEMS || last[from] > item ||
        t->payload[from][item] != item * 31 + from || t->seen[from][item]++ != 0) {
      (void)mgl_add_acq_rel(&t->errors, 1);
    } else {
      last[from] = item + 1;
    }
  }
  return NULL;
}

static void queue_keeps_order_under_threads(void **state) {
  (void)state;
  static traffic t;
  for (uint64_t size = 2; size <= 16; size *= 2) {
    pthread_t threads[PRODUCERS + CONSUMERS];
    memset(&t, 0, sizeof t);
    mgl_queue_init(&t.queue, t.slots, size);
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++) {
      assert_int_equal(pthread_create(&threads[i], NULL, i < PRODUCERS ? produce : consume, &t), 0);
    }
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++) {
      assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(mgl_load_relaxed(&t.errors), 0);
    assert_int_equal(mgl_load_relaxed(&t.queue.tail), (uint64_t)PRODUCERS * ITEMS);
  }
}

// --- rules of graphs -----------------------------------------------------------------------------

// A valid graph for 2 workers: a fork with a leaf, AOT, JIT and empty tasks, a dependent launch.
static void valid_graph(small_graph *g) {
  static const small_task tasks[] = {
      {'a', R, 0, 0},   {'a', R, 0, 1},   {'e', 0, 1, 0},   {'e', 0, 2, 0},
      {'a', 0, END, 1}, {'j', 1, END, 0}, {'a', 1, END, 0}, {0}};
  static const uint16_t types[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_LAUNCH_DEPENDENT_TASKS,
                                   MGL_EVENT_EMPTY, MGL_EVENT_END_OF_TASK_GRAPH};
  small_graph_init(g, 2, tasks, 4, types);
}

static void expect_broken(const small_graph *g, mgl_status status, const char *text) {
  mgl_error err = {0};
  mgl_status found = mgl_protocol_check(&g->graph, &err);
  if (found != status || strstr(err.text, text) == NULL) {
    fail_msg("expected \"%s\", found %d: %s", text, found, err.text);
  }
}

static void broken_graphs_are_refused(void **state) {
  (void)state;
  mgl_error err = {0};
  small_graph g;
  valid_graph(&g);
  assert_int_equal(mgl_protocol_check(&g.graph, &err), MGL_OK);
#define BROKEN(change, status, text) \
  do {                               \
    valid_graph(&g);                 \
    change;                          \
    expect_broken(&g, status, text); \
  } while (0)
  BROKEN(g.graph.task_count = 0, MGL_ERR_LIMIT, "expected 1 to 2^28");
  BROKEN(g.graph.event_count = 1u << 28, MGL_ERR_LIMIT, "expected 1 to 2^28");
  BROKEN(g.tasks[0].trigger_event = MGL_NO_EVENT, MGL_ERR_FORMAT, "task 0: expected events below");
  BROKEN(g.tasks[4].dependent_event = 9, MGL_ERR_FORMAT, "task 4: expected events below");
  BROKEN(g.graph.ready_count = 1, MGL_ERR_FORMAT, "task 1: expected that tasks below 1");
  BROKEN(g.tasks[2].flags = MGL_TASK_EMPTY | MGL_TASK_JIT, MGL_ERR_FORMAT, "an empty task cannot");
  BROKEN(g.tasks[6].flags = MGL_TASK_EMPTY, MGL_ERR_FORMAT, "an empty task cannot");
  BROKEN(g.tasks[4].dependent_event = 1, MGL_ERR_FORMAT, "whose tasks are");
  BROKEN(g.tasks[4].trigger_event = 2, MGL_ERR_FORMAT, "only empty tasks may trigger event 2");
  BROKEN(g.tasks[4].worker = 2, MGL_ERR_FORMAT, "expected a worker below 2");
  BROKEN(g.events[1].type = 6, MGL_ERR_FORMAT, "expected the end at the last one only");
  BROKEN(g.events[0].type = MGL_EVENT_END_OF_TASK_GRAPH, MGL_ERR_FORMAT, "expected the end at");
  BROKEN(g.events[3].type = MGL_EVENT_LAUNCH_TASKS, MGL_ERR_FORMAT, "expected the end at");
  BROKEN(g.events[0].last_task = 99, MGL_ERR_FORMAT, "bad tasks");
  BROKEN(g.events[0].trigger_count = 1, MGL_ERR_FORMAT, "2 tasks trigger it");
  BROKEN(g.events[0].flags = 0, MGL_ERR_FORMAT, "expected flags 6");
  BROKEN(g.events[1].first_task = 4, MGL_ERR_FORMAT, "its task 4 waits for event 0");
  BROKEN(g.aot_start[2] = 3, MGL_ERR_FORMAT, "AOT lists");
  BROKEN(g.aot_start[1] = 9, MGL_ERR_FORMAT, "bad range");
  BROKEN(g.aot_tasks[1] = 0, MGL_ERR_FORMAT, "ascending");
  BROKEN(g.tasks[0].worker = 1, MGL_ERR_FORMAT, "not an AOT task of this worker");
#undef BROKEN
  // Triggers out of order: task 1, behind event 0, triggers it again.
  static const small_task cycle[] = {{'a', R, 0, 0}, {'a', 0, 0, 0}, {'a', 0, END, 0}, {0}};
  small_graph_init(&g, 1, cycle, 2, one);
  expect_broken(&g, MGL_ERR_FORMAT, "stands behind its first task");
  // Nothing behind event 1 leads to the end.
  static const small_task lost[] = {{'a', R, 0, 0}, {'a', 0, END, 0}, {'a', 0, 1, 0}, {0}};
  static const uint16_t types[] = {1, 1, MGL_EVENT_END_OF_TASK_GRAPH};
  small_graph_init(&g, 1, lost, 3, types);
  expect_broken(&g, MGL_ERR_FORMAT, "task 2: does not lead to the end");
}

static void long_cascades_are_refused(void **state) {
  (void)state;
  enum { WIDE = MGL_MAX_PENDING + 1 };
  static mgl_task tasks[WIDE + 1];
  static mgl_event events[2];
  static uint32_t aot_start[2];
  static uint32_t aot_tasks[1];
  mgl_error err = {0};
  for (uint32_t wide = WIDE - 1; wide <= WIDE; wide++) {
    mgl_task_graph g = {.worker_count = 1,
                        .task_count = wide + 1,
                        .event_count = 2,
                        .tasks = tasks,
                        .events = events,
                        .aot_start = aot_start,
                        .aot_tasks = aot_tasks,
                        .ready_count = 1};
    tasks[0] = (mgl_task){.dependent_event = MGL_NO_EVENT, .trigger_event = 0};
    for (uint32_t i = 1; i <= wide; i++) {
      tasks[i] = (mgl_task){.flags = MGL_TASK_EMPTY, .trigger_event = 1};
    }
    events[0] = (mgl_event){MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_HAS_EMPTY, 1, 1, wide + 1};
    events[1] = (mgl_event){MGL_EVENT_END_OF_TASK_GRAPH, 0, wide, 0, 0};
    aot_start[1] = 1;
    mgl_status expected = wide == WIDE ? MGL_ERR_LIMIT : MGL_OK;
    assert_int_equal(mgl_protocol_check(&g, &err), expected);
  }
  assert_non_null(strstr(err.text, "the limit is 256"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(terminate_ends_the_run_without_a_plan),
      cmocka_unit_test(launch_tasks_waits_for_all_triggers),
      cmocka_unit_test(end_of_task_graph_asks_for_the_next_plan),
      cmocka_unit_test(empty_event_does_nothing),
      cmocka_unit_test(tasks_of_a_massive_event_are_dealt_to_who_asks),
      cmocka_unit_test(tickets_are_kept_for_later_iterations),
      cmocka_unit_test(dependent_tasks_run_once_in_every_run_of_their_graph),
      cmocka_unit_test(forks_and_joins_cost_no_queue),
      cmocka_unit_test(more_ends_than_a_scheduler_can_have_are_a_fault),
      cmocka_unit_test(worker_without_tasks_misses_iterations),
      cmocka_unit_test(ids_wrap_after_two_to_the_32_iterations),
      cmocka_unit_test(schedulers_stop_with_the_run),
      cmocka_unit_test(first_fault_stays_and_stops_everybody),
      cmocka_unit_test(queue_wraps_and_pushes_back),
      cmocka_unit_test(queue_keeps_order_under_threads),
      cmocka_unit_test(broken_graphs_are_refused),
      cmocka_unit_test(long_cascades_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
