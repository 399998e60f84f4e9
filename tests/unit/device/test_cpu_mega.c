// The CPU runtime around the protocol: faults are reported by name and in time and never falsely,
// idle threads cost nothing, the trace is valid, arguments are checked, memory is given back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "device/cpu/cpu_mega.h"
#include "support/small_graph.h"

enum { R = SMALL_READY, END = SMALL_END };

static const uint16_t ends[] = {MGL_EVENT_END_OF_TASK_GRAPH};
static const uint16_t one[] = {MGL_EVENT_LAUNCH_TASKS, MGL_EVENT_END_OF_TASK_GRAPH};

typedef struct job {
  mgl_cpu_mega *mega;
  uint64_t iterations;
  uint32_t stuck_task;  // in iteration 1 this one waits until the fault is raised
  int graph;            // that next_plan returns
  uint64_t plan_ns;     // how long next_plan takes
  uint64_t task_ns;     // how long a task spins
  uint64_t sleep_ns;    // and sleeps
  uint64_t iteration;
  atomic_uint faults;
  atomic_uint tasks;
  atomic_uint pulses;  // from inside tasks, unless...
  bool is_mute;
  atomic_uint asked;                 // for weights
  char heard[MGL_ERROR_TEXT_BYTES];  // by on_fault
} job;

static void nap(uint64_t ns) {
  struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  (void)nanosleep(&time, NULL);
}

static void run_task(void *context, uint32_t worker, const mgl_task_graph *graph,
                     const mgl_task *task) {
  (void)worker;
  job *j = context;
  j->tasks++;
  if (j->iteration == 1 && task - graph->tasks == j->stuck_task) {
    while (!mgl_cpu_mega_faulted(j->mega)) {
      nap(1000000);
    }
  }
  if (j->sleep_ns > 0) {
    nap(j->sleep_ns);
  }
  uint64_t start = mgl_clock_ns();
  while (j->task_ns > 0 && mgl_clock_ns() - start < j->task_ns) {
    j->pulses += j->is_mute ? 0 : 1;
  }
}

static uint64_t pulses(void *context) {
  job *j = context;
  return j->pulses;
}

static int next_plan(void *context, uint64_t iteration) {
  job *j = context;
  j->iteration = iteration;
  if (j->plan_ns > 0) {
    nap(j->plan_ns);
  }
  return iteration < j->iterations ? j->graph : -1;
}

// 6000 bytes for every task.
static size_t weights(void *context, const mgl_task_graph *graph, const mgl_task *task, size_t from,
                      const void **out) {
  static const unsigned char bytes[6000];
  job *j = context;
  (void)graph;
  (void)task;
  j->asked++;
  *out = bytes + from;
  return sizeof bytes - from;
}

static const char *op_name(void *context, const mgl_task_graph *graph, uint32_t op) {
  static const char *const names[] = {"0.qkv", "0.\"gate\\up\"", "lm_head"};
  (void)context;
  (void)graph;
  return op < 3 ? names[op] : NULL;
}

static void on_fault(void *context, const char *message) {
  job *j = context;
  j->faults++;
  (void)snprintf(j->heard, sizeof j->heard, "%s", message);
}

// A runtime with its team; *options may have been filled but for the callbacks.
typedef struct rig {
  mgl_topology *topology;
  mgl_team *team;
  mgl_cpu_mega *mega;
  small_graph graph;
} rig;

static void open_rig(rig *r, job *j, uint32_t threads, const mgl_cpu_mega_options *options) {
  mgl_error err = {0};
  const mgl_task_graph *graphs[] = {&r->graph.graph};
  mgl_cpu_mega_options filled = *options;
  filled.context = j;
  filled.run_task = run_task;
  filled.next_plan = next_plan;
  filled.op_name = op_name;
  filled.on_fault = on_fault;
  assert_int_equal(mgl_topology_create(&r->topology, &err), MGL_OK);
  assert_int_equal(mgl_team_create(r->topology, threads, &r->team, &err), MGL_OK);
  if (mgl_cpu_mega_create(graphs, 1, r->team, &filled, &r->mega, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  j->mega = r->mega;
}

static void close_rig(rig *r) {
  mgl_cpu_mega_destroy(r->mega);
  mgl_team_destroy(r->team);
  mgl_topology_destroy(r->topology);
}

static uint64_t process_cpu_ns(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// --- faults --------------------------------------------------------------------------------------

// 0 -> event 0 -> 2 on worker 1; 1 -> event 0 as well.
static const small_task join[] = {{'a', R, 0, 0}, {'a', R, 0, 1}, {'a', 0, END, 1}, {0}};

static void stuck_task_is_named(void **state) {
  (void)state;
  job j = {.iterations = 3, .stuck_task = 0};
  rig r;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.fault_ms = 400;
  small_graph_init(&r.graph, 2, join, 2, one);
  open_rig(&r, &j, 2, &options);
  uint64_t start = mgl_clock_ns();
  assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_ERR_INTERNAL);
  uint64_t took_ms = (mgl_clock_ns() - start) / 1000000;
  assert_true(took_ms >= 400 && took_ms < 3000);
  assert_string_equal(err.text,
                      "no task made progress for 0.4 s in iteration 1 of task graph 0: "
                      "task #0 (op 0.qkv, tile [0,1)) on worker 0 is running, triggers event 0 (1 "
                      "of 2 triggers); task #2 (op lm_head, tile [2,3)) on worker 1, waits for "
                      "event 0 (1 of 2 triggers)");
  assert_int_equal(j.faults, 1);
  assert_string_equal(j.heard, err.text);
  // The next run is as good as new.
  j.stuck_task = UINT32_MAX;
  assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_OK);
  assert_int_equal(mgl_cpu_mega_iterations(r.mega), 3);
  assert_int_equal(mgl_cpu_mega_tasks(r.mega), 9);
  close_rig(&r);
}

static void stuck_only_worker_is_seen(void **state) {
  (void)state;
  static const small_task alone[] = {{'j', R, END, 0}, {0}};
  job j = {.iterations = 3, .stuck_task = 0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.fault_ms = 400;
  for (options.schedulers = 0; options.schedulers < 2; options.schedulers++) {
    rig r;
    mgl_error err = {0};
    small_graph_init(&r.graph, 1, alone, 1, ends);
    open_rig(&r, &j, 1 + options.schedulers, &options);
    assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_ERR_INTERNAL);
    assert_string_equal(err.text,
                        "no task made progress for 0.4 s in iteration 1 of task graph 0: task #0 "
                        "(op 0.qkv, tile [0,1)) on worker 0 is running, triggers event 0 (0 of 1 "
                        "triggers)");
    close_rig(&r);
  }
}

// A task of a second is progress as long as it says so.
static void long_task_that_pulses_is_no_fault(void **state) {
  (void)state;
  static const small_task alone[] = {{'a', R, END, 0}, {0}};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.fault_ms = 300;
  options.pulses = pulses;
  for (int is_mute = 0; is_mute < 2; is_mute++) {
    job j = {
        .iterations = 1, .stuck_task = UINT32_MAX, .task_ns = 1000000000, .is_mute = is_mute == 1};
    rig r;
    mgl_error err = {0};
    small_graph_init(&r.graph, 1, alone, 1, ends);
    open_rig(&r, &j, 1, &options);
    assert_int_equal(mgl_cpu_mega_run(r.mega, &err), is_mute == 1 ? MGL_ERR_INTERNAL : MGL_OK);
    assert_int_equal(j.faults, is_mute);
    close_rig(&r);
  }
}

// A task that computes and gives no sign hangs, long before the time of a fault; one that sleeps as
// long, or gives signs, does not.
static void task_that_hangs_is_found_by_its_processor_time(void **state) {
  (void)state;
  static const small_task alone[] = {{'a', R, END, 0}, {0}};
  enum { SIGNS, MUTE, ASLEEP };
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.hang_ms = 200;
  options.pulses = pulses;
  for (int kind = SIGNS; kind <= ASLEEP; kind++) {
    job j = {.iterations = 1, .stuck_task = UINT32_MAX, .is_mute = kind == MUTE};
    rig r;
    mgl_error err = {0};
    if (kind == ASLEEP) {
      j.sleep_ns = 1000000000;
    } else {
      j.task_ns = 1500000000;
    }
    small_graph_init(&r.graph, 1, alone, 1, ends);
    open_rig(&r, &j, 1, &options);
    assert_int_equal(mgl_cpu_mega_run(r.mega, &err), kind == MUTE ? MGL_ERR_INTERNAL : MGL_OK);
    assert_int_equal(j.faults, kind == MUTE ? 1 : 0);
    if (kind == MUTE) {
      assert_non_null(strstr(err.text,
                             "a task has computed for 0.2 s without an end or a sign in "
                             "iteration 0 of task graph 0: task #0 (op 0.qkv"));
    }
    close_rig(&r);
  }
}

static void slow_plan_is_no_fault(void **state) {
  (void)state;
  job j = {.iterations = 1, .stuck_task = UINT32_MAX, .plan_ns = 1000000000};
  rig r;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.fault_ms = 300;
  for (options.schedulers = 0; options.schedulers < 2; options.schedulers++) {
    small_graph_init(&r.graph, 2, join, 2, one);
    open_rig(&r, &j, 2 + options.schedulers, &options);
    if (mgl_cpu_mega_run(r.mega, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    close_rig(&r);
  }
  assert_int_equal(j.faults, 0);
}

static void plan_without_a_graph_is_a_fault(void **state) {
  (void)state;
  job j = {.iterations = 5, .stuck_task = UINT32_MAX, .graph = 1};
  rig r;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  for (options.schedulers = 0; options.schedulers < 2; options.schedulers++) {
    small_graph_init(&r.graph, 2, join, 2, one);
    open_rig(&r, &j, 2 + options.schedulers, &options);
    assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_ERR_INTERNAL);
    assert_string_equal(err.text, "next_plan returned a task graph that does not exist");
    close_rig(&r);
  }
}

// --- waiting -------------------------------------------------------------------------------------

static void idle_threads_use_no_processor(void **state) {
  (void)state;
  job j = {.iterations = 0, .stuck_task = UINT32_MAX, .plan_ns = 1000000000};
  rig r;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  small_graph_init(&r.graph, 7, join, 2, one);
  open_rig(&r, &j, 7, &options);
  assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_OK);  // warm
  uint64_t cpu = process_cpu_ns();
  assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_OK);
  cpu = process_cpu_ns() - cpu;
  printf("7 threads idle for 1 s: %.2f ms of processor time, %.3f%% of a core each\n",
         (double)cpu / 1e6, (double)cpu / 1e9 * 100 / 7);
  assert_true(cpu < 20000000);  // 2% of one core for all of them
  close_rig(&r);
}

// Workers wait for one long task: those that have nothing to do sleep, once they have fetched what
// they will need.
static void waiting_workers_sleep(void **state) {
  (void)state;
  static const small_task wait[] = {{'a', R, 0, 0}, {'a', 0, END, 1}, {0}};
  job j = {.iterations = 2, .stuck_task = UINT32_MAX, .task_ns = 300000000};
  rig r;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.weights = weights;
  small_graph_init(&r.graph, 2, wait, 2, one);
  open_rig(&r, &j, 2, &options);
  uint64_t cpu = process_cpu_ns();
  assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_OK);
  cpu = process_cpu_ns() - cpu;
  assert_true(cpu < 1250000000);  // four tasks of 0.3 s at most, not twice that
  // Each wait asks a few times until 512 KiB have been fetched; with a processor for each worker.
  assert_true(mgl_team_crowded(r.team) ? j.asked == 0 : j.asked >= 100);
  close_rig(&r);
}

static void crowded_team_makes_progress(void **state) {
  (void)state;
  static const small_task tasks[] = {
      {'a', R, 0, 0}, {'a', R, 0, 1}, {'a', R, 0, 2},   {'a', R, 0, 3},   {'j', 0, 1, 0},
      {'j', 0, 1, 0}, {'a', 0, 1, 4}, {'a', 1, END, 5}, {'j', 1, END, 0}, {0}};
  static const uint16_t types[] = {1, 1, MGL_EVENT_END_OF_TASK_GRAPH};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.fault_ms = 1000;
  for (options.schedulers = 0; options.schedulers < 2; options.schedulers++) {
    job j = {.iterations = 1000, .stuck_task = UINT32_MAX};
    rig r;
    mgl_error err = {0};
    small_graph_init(&r.graph, 7, tasks, 3, types);
    open_rig(&r, &j, 7 + options.schedulers, &options);
    uint64_t start = mgl_clock_ns();
    if (mgl_cpu_mega_run(r.mega, &err) != MGL_OK) {
      fail_msg("%s", err.text);
    }
    printf("7 workers, %u schedulers: %.1f us an iteration of 9 tasks\n", options.schedulers,
           (double)(mgl_clock_ns() - start) / 1e3 / 1000);
    assert_int_equal(mgl_cpu_mega_tasks(r.mega), 9000);
    close_rig(&r);
  }
}

// --- trace ---------------------------------------------------------------------------------------

static void trace_is_chrome_json(void **state) {
  (void)state;
  job j = {.iterations = 5, .stuck_task = UINT32_MAX, .task_ns = 20000};
  rig r;
  mgl_error err = {0};
  mgl_text text = {0};
  json_t *root = NULL;
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.trace_tasks = 4;  // of the 5 and 10 that the two workers run
  small_graph_init(&r.graph, 2, join, 2, one);
  open_rig(&r, &j, 2, &options);
  assert_int_equal(mgl_cpu_mega_run(r.mega, &err), MGL_OK);
  assert_int_equal(mgl_cpu_mega_trace_json(r.mega, &text, &err), MGL_OK);
  if (mgl_json_parse(text.data, text.bytes, "trace", &root, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  const json_t *events = json_object_get(root, "traceEvents");
  assert_int_equal(json_array_size(events), 3 + 8);
  size_t index = 0;
  json_t *event = NULL;
  double last_end[2] = {0};
  uint32_t complete = 0;
  json_array_foreach(events, index, event) {
    if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) {
      continue;
    }
    const json_t *arguments = json_object_get(event, "args");
    long long worker = json_integer_value(json_object_get(event, "tid"));
    double ts = json_number_value(json_object_get(event, "ts"));
    double duration = json_number_value(json_object_get(event, "dur"));
    double wait = json_number_value(json_object_get(arguments, "wait_us"));
    long long task = json_integer_value(json_object_get(arguments, "index"));
    assert_true(worker == 0 || worker == 1);
    assert_true(duration >= 20.0);
    assert_true(complete % 4 == 0 || (wait >= 0 && ts - wait - last_end[worker] < 0.01));
    last_end[worker] = ts + duration;
    assert_in_range(json_integer_value(json_object_get(arguments, "iteration")), 1, 4);
    assert_string_equal(json_string_value(json_object_get(event, "name")),
                        task == 0   ? "0.qkv [0,1)"
                        : task == 1 ? "0.\"gate\\up\" [1,2)"
                                    : "lm_head [2,3)");
    complete++;
  }
  assert_int_equal(complete, 8);
  json_decref(root);
  mgl_text_free(&text);
  close_rig(&r);
}

// --- arguments and memory ------------------------------------------------------------------------

static void arguments_are_checked(void **state) {
  (void)state;
  static const small_task alone[] = {{'a', R, END, 0}, {0}};
  static small_graph a, b;
  const mgl_task_graph *graphs[17];
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_cpu_mega *mega = NULL;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.run_task = run_task;
  options.next_plan = next_plan;
  small_graph_init(&a, 2, join, 2, one);
  small_graph_init(&b, 1, alone, 1, ends);
  for (uint32_t i = 0; i < 17; i++) {
    graphs[i] = &a.graph;
  }
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  assert_int_equal(mgl_team_create(topology, 2, &team, &err), MGL_OK);
  assert_int_equal(mgl_cpu_mega_create(graphs, 0, team, &options, &mega, &err), MGL_ERR_LIMIT);
  assert_int_equal(mgl_cpu_mega_create(graphs, 17, team, &options, &mega, &err), MGL_ERR_LIMIT);
  options.schedulers = 1;
  assert_int_equal(mgl_cpu_mega_create(graphs, 1, team, &options, &mega, &err), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(err.text, "at least 3 threads"));
  options.schedulers = 65;
  assert_int_equal(mgl_cpu_mega_create(graphs, 1, team, &options, &mega, &err), MGL_ERR_LIMIT);
  options.schedulers = 0;
  options.trace_tasks = (1 << 24) + 1;
  assert_int_equal(mgl_cpu_mega_create(graphs, 1, team, &options, &mega, &err), MGL_ERR_LIMIT);
  options.trace_tasks = 0;
  graphs[1] = &b.graph;
  assert_int_equal(mgl_cpu_mega_create(graphs, 2, team, &options, &mega, &err), MGL_ERR_ARGUMENT);
  a.events[0].trigger_count = 7;
  assert_int_equal(mgl_cpu_mega_create(graphs, 1, team, &options, &mega, &err), MGL_ERR_FORMAT);
  assert_non_null(strstr(err.text, "task graph 0: event 0"));
  assert_null(mega);
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
}

static void every_failing_allocation_is_reported(void **state) {
  (void)state;
  small_graph graph;
  const mgl_task_graph *graphs[] = {&graph.graph};
  mgl_topology *topology = NULL;
  mgl_team *team = NULL;
  mgl_error err = {0};
  mgl_cpu_mega_options options = mgl_cpu_mega_defaults();
  options.run_task = run_task;
  options.next_plan = next_plan;
  options.schedulers = 1;
  options.trace_tasks = 10;
  small_graph_init(&graph, 2, join, 2, one);
  assert_int_equal(mgl_topology_create(&topology, &err), MGL_OK);
  assert_int_equal(mgl_team_create(topology, 3, &team, &err), MGL_OK);
  int64_t live = mgl_alloc_live();
  mgl_status status = MGL_ERR_MEMORY;
  for (uint64_t n = 1; status != MGL_OK; n++) {
    mgl_cpu_mega *mega = NULL;
    assert_true(n < 100);
    mgl_alloc_fail_nth(n);
    status = mgl_cpu_mega_create(graphs, 1, team, &options, &mega, &err);
    mgl_alloc_fail_nth(0);
    assert_true(status == MGL_OK || status == MGL_ERR_MEMORY);
    mgl_cpu_mega_destroy(mega);
    assert_int_equal(mgl_alloc_live(), live);
  }
  mgl_team_destroy(team);
  mgl_topology_destroy(topology);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stuck_task_is_named),
      cmocka_unit_test(stuck_only_worker_is_seen),
      cmocka_unit_test(long_task_that_pulses_is_no_fault),
      cmocka_unit_test(task_that_hangs_is_found_by_its_processor_time),
      cmocka_unit_test(slow_plan_is_no_fault),
      cmocka_unit_test(plan_without_a_graph_is_a_fault),
      cmocka_unit_test(idle_threads_use_no_processor),
      cmocka_unit_test(waiting_workers_sleep),
      cmocka_unit_test(crowded_team_makes_progress),
      cmocka_unit_test(trace_is_chrome_json),
      cmocka_unit_test(arguments_are_checked),
      cmocka_unit_test(every_failing_allocation_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
