// What the runtime's moving parts cost with two workers, in nanoseconds:
//   barrier         a barrier of the team, which eager execution pays between ops
//   aot             a dependency hop to the other worker, whose task waits at the head of its list
//   jit             the same with JIT tasks, scheduled by the worker that activates the event
//   jit, scheduler  the same through one dedicated scheduler thread (a third thread)
//   end             the end of an iteration to the first task of the next, on the other worker
// Chains of tasks that do nothing, alternating between the workers; medians of repeated runs. The
// workers must have processors of their own, or it measures the kernel's scheduler.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/cpu/cpu_mega.h"

enum { CHAIN = 2000, RUNS = 31, BARRIERS = 2000 };

typedef struct chain {
  mgl_task_graph graph;
  mgl_task tasks[CHAIN];
  mgl_event events[CHAIN];
  uint32_t aot_start[3];
  uint32_t aot_tasks[CHAIN];
} chain;

typedef struct job {
  uint64_t iterations;
  uint64_t start_ns;
} job;

static int compare(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

static double median(double *values, size_t count) {
  qsort(values, count, sizeof *values, compare);
  return values[count / 2];
}

// length tasks in a row; task i is AOT on worker i % 2, or JIT.
static void fill(chain *c, uint32_t length, bool jit) {
  memset(c, 0, sizeof *c);
  c->graph.worker_count = 2;
  c->graph.task_count = length;
  c->graph.event_count = length;
  c->graph.ready_count = 1;
  c->graph.tasks = c->tasks;
  c->graph.events = c->events;
  c->graph.aot_start = c->aot_start;
  c->graph.aot_tasks = c->aot_tasks;
  for (uint32_t i = 0; i < length; i++) {
    bool last = i + 1 == length;
    c->tasks[i].flags = jit ? MGL_TASK_JIT : 0;
    c->tasks[i].worker = jit ? MGL_NO_WORKER : (uint16_t)(i % 2);
    c->tasks[i].dependent_event = i == 0 ? MGL_NO_EVENT : i - 1;
    c->tasks[i].trigger_event = i;
    c->events[i].type = last ? MGL_EVENT_END_OF_TASK_GRAPH : MGL_EVENT_LAUNCH_TASKS;
    c->events[i].trigger_count = 1;
    if (!last) {
      c->events[i].flags = jit ? MGL_EVENT_HAS_JIT : MGL_EVENT_HAS_AOT;
      c->events[i].first_task = i + 1;
      c->events[i].last_task = i + 2;
    }
  }
  uint32_t at = 0;
  for (uint32_t w = 0; w < 2 && !jit; w++) {
    for (uint32_t i = w; i < length; i += 2) {
      c->aot_tasks[at++] = i;
    }
    c->aot_start[w + 1] = at;
  }
}

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  (void)context;
  (void)worker;
  (void)graph;
  (void)task;
}

static int next_plan(void *context, uint64_t iteration) {
  job *j = context;
  if (iteration == 0) {
    j->start_ns = mgl_clock_ns();
  }
  return iteration < j->iterations ? 0 : -1;
}

// Nanoseconds per task of a chain of `length`, run `iterations` times in a row.
static double measure(const mgl_topology *topology, uint32_t length, bool jit, uint32_t schedulers,
                      uint64_t iterations) {
  static chain c;
  double ns[RUNS];
  job j = {.iterations = iterations};
  mgl_team *team = NULL;
  mgl_cpu_mega *mega = NULL;
  mgl_error err = {0};
  const mgl_task_graph *graphs[] = {&c.graph};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.context = &j;
  options.run_task = run_task;
  options.next_plan = next_plan;
  options.schedulers = schedulers;
  fill(&c, length, jit);
  if (mgl_team_create(topology, 2 + schedulers, &team, &err) != MGL_OK ||
      mgl_cpu_mega_create(graphs, 1, team, &options, &mega, &err) != MGL_OK) {
    (void)fprintf(stderr, "%s\n", err.text);
    exit(1);
  }
  for (int i = 0; i < RUNS; i++) {
    if (mgl_cpu_mega_run(mega, &err) != MGL_OK) {
      (void)fprintf(stderr, "%s\n", err.text);
      exit(1);
    }
    ns[i] = (double)(mgl_clock_ns() - j.start_ns) / (double)(length * iterations);
  }
  mgl_cpu_mega_destroy(mega);
  mgl_team_destroy(team);
  return median(ns, RUNS);
}

typedef struct barriers {
  mgl_team *team;
  double ns[RUNS];
} barriers;

static void run_barriers(void *context, uint32_t index) {
  barriers *b = context;
  for (int run = 0; run < RUNS; run++) {
    uint64_t start = mgl_clock_ns();
    for (int i = 0; i < BARRIERS; i++) {
      mgl_team_barrier(b->team);
    }
    if (index == 0) {
      b->ns[run] = (double)(mgl_clock_ns() - start) / BARRIERS;
    }
  }
}

int main(void) {
  mgl_topology *topology = NULL;
  mgl_error err = {0};
  barriers b = {0};
  if (mgl_topology_create(&topology, &err) != MGL_OK ||
      mgl_team_create(topology, 2, &b.team, &err) != MGL_OK) {
    (void)fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  mgl_team_run(b.team, run_barriers, &b);
  double barrier = median(b.ns, RUNS);
  mgl_team_destroy(b.team);
  double aot = measure(topology, CHAIN, false, 0, 1);
  double jit = measure(topology, CHAIN, true, 0, 1);
  double end = measure(topology, 2, false, 0, CHAIN);
  double scheduled = measure(topology, CHAIN, true, 1, 1);
  printf(
      "{\"bench\":\"hops\",\"workers\":2,\"processors\":%u,\"barrier_ns\":%.0f,\"aot_ns\":%.0f,"
      "\"jit_ns\":%.0f,\"jit_scheduler_ns\":%.0f,\"end_ns\":%.0f}\n",
      mgl_topology_threads(topology), barrier, aot, jit, scheduled, 2 * end - aot);
  mgl_topology_destroy(topology);
  return 0;
}
