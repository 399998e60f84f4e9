// What a waiting worker fetches, on lists of tasks with known weights: in order, nothing twice,
// nothing of tasks that have started, within the bound, and round the end of the list.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/cpu_lookahead.h"

enum {
  TASKS = 12,
  WORKERS = 2,
  PIECE = 3000,  // of a task's weights; the next one lies elsewhere
  GAP = 1 << 20,
};

// Task i has sizes[i] bytes of weights, at addresses i * GAP and on.
typedef struct lists {
  mgl_task tasks[TASKS];
  uint32_t aot_tasks[TASKS];
  uint32_t aot_start[WORKERS + 1];
  mgl_task_graph graph;
  size_t sizes[TASKS];
  mgl_lookahead lookahead;
} lists;

static unsigned char memory[(size_t)TASKS * GAP];  // never touched

static size_t weights_of(void *context, const mgl_task_graph *graph, const mgl_task *task,
                         size_t from, const void **out) {
  const lists *l = context;
  size_t i = (size_t)(task - graph->tasks);
  size_t left = from < l->sizes[i] ? l->sizes[i] - from : 0;
  size_t in_piece = PIECE - from % PIECE;
  *out = memory + i * GAP + from;
  return left < in_piece ? left : in_piece;
}

// Even tasks are worker 0's, odd ones worker 1's.
static void open_lists(lists *l) {
  memset(l, 0, sizeof *l);
  for (uint32_t i = 0; i < TASKS; i++) {
    l->aot_tasks[i] = i < TASKS / 2 ? 2 * i : 2 * (i - TASKS / 2) + 1;
  }
  l->aot_start[1] = TASKS / 2;
  l->aot_start[2] = TASKS;
  l->graph.tasks = l->tasks;
  l->graph.aot_tasks = l->aot_tasks;
  l->graph.aot_start = l->aot_start;
}

// Fetches up to `limit` bytes; they must be those of task `task` from byte `from` on.
static size_t fetch(lists *l, uint32_t worker, size_t task, size_t from, size_t limit) {
  size_t fetched = 0;
  while (fetched < limit) {
    const unsigned char *at = NULL;
    size_t bytes = mgl_lookahead_next(&l->lookahead, worker, weights_of, l, &at);
    assert_true(bytes <= MGL_LOOKAHEAD_STEP);
    if (bytes == 0) {
      break;
    }
    assert_ptr_equal(at, memory + task * GAP + from + fetched);
    fetched += bytes;
  }
  return fetched;
}

static void the_next_tasks_are_fetched_in_order(void **state) {
  (void)state;
  static lists l;
  open_lists(&l);
  l.sizes[2] = 10000;
  l.sizes[6] = 777;  // after a task without weights
  l.sizes[8] = 100000;
  assert_int_equal(fetch(&l, 0, 0, 0, 1), 0);  // no task has started
  mgl_lookahead_start(&l.lookahead, &l.graph, 0);
  size_t some = fetch(&l, 0, 2, 0, 2000);
  assert_true(some >= 2000);
  assert_int_equal(fetch(&l, 0, 2, some, 10000 - some), 10000 - some);
  assert_int_equal(fetch(&l, 0, 6, 0, 777), 777);
  mgl_lookahead_start(&l.lookahead, &l.graph, 1);  // of what was fetched
  mgl_lookahead_start(&l.lookahead, &l.graph, 2);
  some = fetch(&l, 0, 8, 0, 5000);
  // Task 8 itself starts: what is left of it is not fetched any more.
  l.sizes[10] = 600;
  mgl_lookahead_start(&l.lookahead, &l.graph, 4);
  assert_int_equal(fetch(&l, 0, 10, 0, 600), 600);
}

static void no_more_is_fetched_than_the_cache_holds(void **state) {
  (void)state;
  static lists l;
  open_lists(&l);
  l.sizes[5] = 1000;
  l.sizes[7] = GAP;
  l.sizes[11] = GAP;
  mgl_lookahead_start(&l.lookahead, &l.graph, TASKS / 2);
  assert_int_equal(fetch(&l, 1, 5, 0, 1000), 1000);
  assert_int_equal(fetch(&l, 1, 7, 0, GAP), MGL_LOOKAHEAD_BYTES - 1000);
  mgl_lookahead_start(&l.lookahead, &l.graph, TASKS / 2 + 2);  // task 5: those of 7 still count
  assert_int_equal(fetch(&l, 1, 7, 0, 1), 0);
  mgl_lookahead_start(&l.lookahead, &l.graph, TASKS / 2 + 3);
  assert_int_equal(fetch(&l, 1, 11, 0, GAP), MGL_LOOKAHEAD_BYTES);
}

static void the_list_begins_anew(void **state) {
  (void)state;
  static lists l;
  static lists other;
  open_lists(&l);
  open_lists(&other);
  l.sizes[0] = 4000;
  l.sizes[4] = 500;
  other.sizes[2] = 300;
  mgl_lookahead_start(&l.lookahead, &l.graph, 5);  // the last
  assert_int_equal(fetch(&l, 0, 0, 0, 4000), 4000);
  assert_int_equal(fetch(&l, 0, 4, 0, 500), 500);
  mgl_lookahead_start(&l.lookahead, &l.graph, 0);
  assert_int_equal(fetch(&l, 0, 0, 0, 1),
                   0);  // tasks 6, 8 and 10 have none, then it would begin anew
  // Another graph comes: its own list counts.
  other.lookahead = l.lookahead;
  mgl_lookahead_start(&other.lookahead, &other.graph, 0);
  assert_int_equal(fetch(&other, 0, 2, 0, 300), 300);
}

static void a_worker_without_weights_fetches_nothing(void **state) {
  (void)state;
  static lists l;
  const unsigned char *at = NULL;
  open_lists(&l);
  l.sizes[3] = 5000;  // the other worker's
  mgl_lookahead_start(&l.lookahead, &l.graph, 2);
  for (uint32_t i = 0; i < 100; i++) {
    assert_int_equal(mgl_lookahead_next(&l.lookahead, 0, weights_of, &l, &at), 0);
  }
  l.aot_start[1] = 0;  // no AOT tasks at all
  for (uint32_t i = 0; i < 100; i++) {
    assert_int_equal(mgl_lookahead_next(&l.lookahead, 0, weights_of, &l, &at), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_next_tasks_are_fetched_in_order),
      cmocka_unit_test(no_more_is_fetched_than_the_cache_holds),
      cmocka_unit_test(the_list_begins_anew),
      cmocka_unit_test(a_worker_without_weights_fetches_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
