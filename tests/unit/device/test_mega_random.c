// The CPU runtime over random task graphs: whatever the graph, the number of workers and
// schedulers and the delays, every task runs once an iteration and sees what its predecessors
// wrote.
//
// Tasks leave their marks in plain memory, so the thread sanitizer sees every order that the
// protocol does not establish. Cases are numbered; a failure names the case, and
// MGL_TEST_CASE=N runs that one alone. MGL_TEST_LONG=1: ten times as many.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "device/cpu/cpu_mega.h"
#include "support/random_task_graph.h"

enum { MOST_GRAPHS = 4, MOST_THREADS = 7 + 4, CASES = 1000 };

typedef struct job {
  random_task_graph *graphs[MOST_GRAPHS];
  uint32_t graph_count;
  uint64_t iterations;
  uint64_t seed;
  uint32_t delay;  // 0: none, 1: short spins, 2: now and then a yield or a sleep

  // Plain memory, ordered by the runtime only.
  uint64_t present;                                     // iteration + 1
  uint32_t graph;                                       // of the present iteration
  uint64_t marks[MOST_GRAPHS][RANDOM_GRAPH_MAX_TASKS];  // iteration + 1 of the latest run of a task
  uint32_t counts[MOST_THREADS][64];  // tasks that each worker ran; a cache line apart
  uint64_t tasks;                     // expected in total

  _Atomic uint32_t errors;  // printed by the thread that finds it; the first ones only
} job;

__attribute__((format(printf, 2, 3))) static void complain(job *j, const char *format, ...) {
  if (j->errors++ < 5) {
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
  }
}

static void delay(const job *j, uint32_t task) {
  uint64_t state = j->seed ^ j->present * 0x9e37u ^ task;
  uint32_t choice = splitmix_below(&state, 64);
  if (j->delay == 0) {
    return;
  }
  if (j->delay == 2 && choice == 0) {
    struct timespec nap = {.tv_nsec = 50000};
    (void)nanosleep(&nap, NULL);
  } else if (j->delay == 2 && choice < 8) {
    (void)sched_yield();
  } else {
    for (volatile uint32_t i = splitmix_below(&state, 400); i > 0; i--) {
    }
  }
}

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  job *j = context;
  const random_task_graph *r = j->graphs[j->graph];
  uint32_t index = (uint32_t)(task - graph->tasks);
  uint64_t *marks = j->marks[j->graph];
  if (graph != &r->graph) {
    complain(j, "iteration %llu: a task of another graph\n", (unsigned long long)j->present);
    return;
  }
  if (marks[index] == j->present || (task->flags & MGL_TASK_EMPTY) != 0 ||
      (task->flags == 0 && task->worker != worker)) {
    complain(j, "iteration %llu task %u: runs twice, or is empty, or on the wrong worker %u\n",
             (unsigned long long)j->present, index, worker);
  }
  delay(j, index);
  for (uint32_t i = r->pred_start[index]; i < r->pred_start[index + 1]; i++) {
    if (marks[r->preds[i]] != j->present) {
      complain(j, "iteration %llu task %u: runs before its predecessor %u\n",
               (unsigned long long)j->present, index, r->preds[i]);
    }
  }
  marks[index] = j->present;
  j->counts[worker][0]++;
}

static int next_plan(void *context, uint64_t iteration) {
  job *j = context;
  if (iteration != j->present) {
    complain(j, "plan %llu asked for after iteration %llu\n", (unsigned long long)iteration,
             (unsigned long long)j->present);
  }
  if (iteration > 0) {  // everything of the iteration before has run
    const mgl_task_graph *g = &j->graphs[j->graph]->graph;
    for (uint32_t i = 0; i < g->task_count; i++) {
      if ((g->tasks[i].flags & MGL_TASK_EMPTY) == 0 && j->marks[j->graph][i] != j->present) {
        complain(j, "iteration %llu ended without task %u\n", (unsigned long long)iteration, i);
      }
    }
  }
  if (iteration == j->iterations) {
    return -1;
  }
  uint64_t state = j->seed + iteration;
  j->present = iteration + 1;
  j->graph = splitmix_below(&state, j->graph_count);
  j->tasks += j->graphs[j->graph]->work_count;
  return (int)j->graph;
}

static mgl_team *team_of(mgl_topology *topology, mgl_team **teams, uint32_t size) {
  mgl_error err = {0};
  if (teams[size] == NULL && mgl_team_create(topology, size, &teams[size], &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return teams[size];
}

// One case: graphs, a team, some runs. Returns the number of tasks that ran.
static uint64_t run_case(mgl_topology *topology, mgl_team **teams, uint64_t number) {
  static const uint32_t worker_counts[] = {1, 2, 3, 7};
  uint64_t state = number * 7919;
  job *j = mgl_alloc_zeroed(1, sizeof *j);
  uint32_t workers = worker_counts[splitmix_below(&state, 4)];
  uint32_t schedulers = splitmix_below(&state, 2) == 0 ? 0 : splitmix_below(&state, 5);
  const mgl_task_graph *graphs[MOST_GRAPHS];
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  mgl_cpu_mega *mega = NULL;
  mgl_error err = {0};
  uint64_t total = 0;
  j->graph_count = 1 + splitmix_below(&state, MOST_GRAPHS);
  for (uint32_t i = 0; i < j->graph_count; i++) {
    uint32_t groups = 1 + splitmix_below(&state, splitmix_below(&state, 4) == 0 ? 24 : 8);
    j->graphs[i] = random_task_graph_create(&state, workers, groups, splitmix_below(&state, 3));
    graphs[i] = &j->graphs[i]->graph;
  }
  j->delay = splitmix_below(&state, 3);
  options.context = j;
  options.run_task = run_task;
  options.next_plan = next_plan;
  options.schedulers = schedulers;
  options.fault_ms = 60000;
  (void)splitmix_below(&state, 2);  // cases keep their numbers
  options.trace_tasks = splitmix_below(&state, 8) == 0 ? 32 : 0;
  mgl_team *team = team_of(topology, teams, workers + schedulers);
  if (mgl_cpu_mega_create(graphs, j->graph_count, team, &options, &mega, &err) != MGL_OK) {
    fail_msg("case %llu: %s", (unsigned long long)number, err.text);
  }
  int64_t live = mgl_alloc_live();
  for (uint32_t run = 0; run < 2; run++) {
    uint64_t ran = 0;
    j->seed = splitmix_next(&state);
    j->iterations = splitmix_below(&state, 9);
    j->present = 0;
    j->tasks = 0;
    memset(j->marks, 0, sizeof j->marks);
    memset(j->counts, 0, sizeof j->counts);
    uint64_t allocations = mgl_alloc_count();
    mgl_status status = mgl_cpu_mega_run(mega, &err);
    for (uint32_t w = 0; w < workers; w++) {
      ran += j->counts[w][0];
    }
    if (status != MGL_OK || j->errors != 0 || ran != j->tasks || mgl_cpu_mega_tasks(mega) != ran ||
        mgl_cpu_mega_iterations(mega) != j->iterations || mgl_alloc_count() != allocations) {
      fail_msg("case %llu (%u workers, %u schedulers): %llu of %llu tasks ran; %s",
               (unsigned long long)number, workers, schedulers, (unsigned long long)ran,
               (unsigned long long)j->tasks, status != MGL_OK ? err.text : "see above");
    }
    total += ran;
  }
  assert_int_equal(mgl_alloc_live(), live);
  mgl_cpu_mega_destroy(mega);
  for (uint32_t i = 0; i < j->graph_count; i++) {
    random_task_graph_destroy(j->graphs[i]);
  }
  mgl_free(j);
  return total;
}

static void random_graphs_run_in_order(void **state) {
  (void)state;
  const char *only = getenv("MGL_TEST_CASE");
  const char *many = getenv("MGL_TEST_LONG");
  uint64_t first = only != NULL ? strtoull(only, NULL, 10) : 0;
  uint64_t last = only != NULL ? first + 1 : many != NULL ? CASES * 10 : CASES;
#if defined(MGL_TEST_SANITIZED)
  last = only == NULL && many == NULL ? CASES / 2 : last;
#endif
  mgl_team *teams[MOST_THREADS + 1] = {NULL};
  mgl_topology *topology = NULL;
  mgl_error err = {0};
  uint64_t tasks = 0;
  int64_t live = mgl_alloc_live();
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  for (uint64_t number = first; number < last; number++) {
    tasks += run_case(topology, teams, number);
  }
  for (uint32_t size = 0; size <= MOST_THREADS; size++) {
    mgl_team_destroy(teams[size]);
  }
  mgl_topology_destroy(topology);
  assert_int_equal(mgl_alloc_live(), live);
  printf("%llu cases of random task graphs, two runs each, %llu tasks\n",
         (unsigned long long)(last - first), (unsigned long long)tasks);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_graphs_run_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
