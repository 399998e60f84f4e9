// Analysis of task graphs: counts, producers, depths, the critical path, on graphs small enough to
// work out by hand.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/programs.h"
#include "task/analyse.h"

static const char program_text[] =
    "program small\n"
    "input tokens i32[T]\n"
    "weight table f32[32,16]\n"
    "weight w f32[16,16]\n"
    "x = embed(tokens, table) : f32[T,16]\n"
    "0.a = linear(x, w) : f32[T,16]\n"
    "0.b = linear(x, w) : f32[T,16]\n"
    "0.c = add(0.a, 0.b) : f32[T,16]\n"
    "output 0.c\n";

enum { OP_X, OP_A, OP_B, OP_C };

#define TASK(op_index, kind, first, last, waits_for, triggers, bytes, on)                        \
  {                                                                                              \
    .type = MGL_OP_##kind, .op = (op_index), .begin = (first), .end = (last),                    \
    .dependent_event = (waits_for), .trigger_event = (triggers), .cost = (bytes), .worker = (on) \
  }
#define EVENT(kind, count, first, last) \
  { .type = MGL_EVENT_##kind, .trigger_count = (count), .first_task = (first), .last_task = (last) }

// x -> e0 -> three tasks of a and b -> e1 -> empty -> e2 -> c -> e3, the end.
static mgl_task tasks[] = {
    TASK(OP_X, EMBED, 0, 1, MGL_NO_EVENT, 0, 100, 0),
    TASK(OP_A, LINEAR, 0, 6, 0, 1, 50, 0),
    TASK(OP_A, LINEAR, 6, 16, 0, 1, 70, MGL_NO_WORKER),
    TASK(OP_B, LINEAR, 0, 16, 0, 1, 10, 1),
    {.type = 0xffff,
     .op = MGL_NO_OP,
     .flags = MGL_TASK_EMPTY,
     .worker = MGL_NO_WORKER,
     .dependent_event = 1,
     .trigger_event = 2},
    TASK(OP_C, ADD, 0, 16, 2, 3, 5, 1),
};
static mgl_event events[] = {
    EVENT(LAUNCH_TASKS, 1, 1, 4),
    EVENT(EMPTY, 3, 4, 5),
    EVENT(LAUNCH_TASKS, 1, 5, 6),
    EVENT(END_OF_TASK_GRAPH, 1, 6, 6),
};

static mgl_task_graph small_graph(void) {
  tasks[2].flags = MGL_TASK_JIT;
  events[0].type = MGL_EVENT_LAUNCH_TASKS;
  return (mgl_task_graph){.tokens = 1,
                          .worker_count = 2,
                          .task_count = sizeof tasks / sizeof *tasks,
                          .event_count = sizeof events / sizeof *events,
                          .tasks = tasks,
                          .events = events,
                          .ready_count = 1};
}

static mgl_analysis *analyse(const mgl_graph *program, const mgl_task_graph *graph,
                             uint64_t hop_bytes) {
  mgl_analysis *analysis = NULL;
  mgl_error err = {0};
  if (mgl_analysis_create(program, graph, hop_bytes, &analysis, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return analysis;
}

static void assert_row(const mgl_op_tasks *row, uint32_t op_count, uint32_t task_count,
                       uint32_t jit_count, uint64_t cost) {
  assert_int_equal(row->op_count, op_count);
  assert_int_equal(row->task_count, task_count);
  assert_int_equal(row->jit_count, jit_count);
  assert_int_equal(row->cost, cost);
}

static void counts_tasks_by_op_kind_and_worker(void **state) {
  (void)state;
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = small_graph();
  mgl_analysis *a = analyse(program, &graph, 0);
  assert_row(&a->ops[OP_X], 1, 1, 0, 100);
  assert_row(&a->ops[OP_A], 1, 2, 1, 120);
  assert_row(&a->ops[OP_B], 1, 1, 0, 10);
  assert_row(&a->kinds[MGL_OP_LINEAR], 2, 3, 1, 130);
  assert_row(&a->kinds[MGL_OP_ADD], 1, 1, 0, 5);
  assert_row(&a->kinds[MGL_OP_ROPE], 0, 0, 0, 0);
  assert_int_equal(a->ops[OP_A].units_min, 6);
  assert_int_equal(a->ops[OP_A].units_max, 10);
  assert_int_equal(a->kinds[MGL_OP_LINEAR].units_max, 16);
  assert_int_equal(a->kinds[MGL_OP_LINEAR].cost_max, 70);
  assert_int_equal(a->aot_count, 4);
  assert_int_equal(a->jit_count, 1);
  assert_int_equal(a->empty_count, 1);
  assert_int_equal(a->cost, 235);
  assert_int_equal(a->workers[0].task_count, 2);
  assert_int_equal(a->workers[0].cost, 150);
  assert_int_equal(a->workers[1].task_count, 2);
  assert_int_equal(a->workers[1].cost, 15);
  assert_int_equal(a->events_by_type[MGL_EVENT_LAUNCH_TASKS], 2);
  assert_int_equal(a->events_by_type[MGL_EVENT_EMPTY], 1);
  assert_int_equal(a->events_by_type[MGL_EVENT_END_OF_TASK_GRAPH], 1);
  assert_int_equal(a->events_by_type[MGL_EVENT_TERMINATE], 0);
  mgl_analysis_destroy(a);
  mgl_graph_destroy(program);
}

static void lists_the_producers_of_events(void **state) {
  (void)state;
  static const uint32_t starts[] = {0, 1, 4, 5, 6};
  static const uint32_t producers[] = {0, 1, 2, 3, 4, 5};
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = small_graph();
  mgl_analysis *a = analyse(program, &graph, 0);
  assert_memory_equal(a->producer_start, starts, sizeof starts);
  assert_memory_equal(a->producers, producers, sizeof producers);
  mgl_analysis_destroy(a);
  mgl_graph_destroy(program);
}

static void finds_the_critical_path(void **state) {
  (void)state;
  // A hop is paid by a task that waits, but not by an empty one.
  static const uint64_t finish[] = {100, 157, 177, 117, 177, 189};
  static const uint32_t depth[] = {0, 1, 1, 1, 2, 2};
  static const uint32_t path[] = {0, 2, 4, 5};
  uint32_t chain[4];
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = small_graph();
  mgl_analysis *a = analyse(program, &graph, 7);
  assert_memory_equal(a->finish, finish, sizeof finish);
  assert_memory_equal(a->depth, depth, sizeof depth);
  assert_int_equal(a->depth_count, 3);
  assert_int_equal(a->last, 5);
  assert_int_equal(mgl_analysis_chain_length(a, 5), 4);
  mgl_analysis_chain(a, 5, chain);
  assert_memory_equal(chain, path, sizeof path);
  assert_int_equal(mgl_analysis_chain_length(a, 3), 2);
  mgl_analysis_chain(a, 3, chain);
  assert_int_equal(chain[0], 0);
  assert_int_equal(chain[1], 3);
  mgl_analysis_destroy(a);
  mgl_graph_destroy(program);
}

// Tasks that were launched by the iteration before start chains of their own.
static void dependent_launches_cut_chains(void **state) {
  (void)state;
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = small_graph();
  events[0].type = MGL_EVENT_LAUNCH_DEPENDENT_TASKS;
  mgl_analysis *a = analyse(program, &graph, 7);
  assert_int_equal(a->finish[1], 50);
  assert_int_equal(a->depth[1], 0);
  assert_int_equal(a->before[1], MGL_NO_TASK);
  assert_int_equal(a->finish[5], 70 + 7 + 5);
  assert_int_equal(a->last, 0);  // x alone takes longer than what does not wait for it
  assert_int_equal(a->depth_count, 2);
  mgl_analysis_destroy(a);
  mgl_graph_destroy(program);
}

static void a_graph_without_tasks(void **state) {
  (void)state;
  static mgl_event end[] = {EVENT(END_OF_TASK_GRAPH, 0, 0, 0)};
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = {.worker_count = 1, .event_count = 1, .tasks = tasks, .events = end};
  mgl_analysis *a = analyse(program, &graph, 7);
  assert_int_equal(a->last, MGL_NO_TASK);
  assert_int_equal(a->depth_count, 0);
  assert_int_equal(mgl_analysis_chain_length(a, a->last), 0);
  mgl_analysis_destroy(a);
  mgl_graph_destroy(program);
}

static void names(void **state) {
  (void)state;
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = small_graph();
  assert_string_equal(mgl_task_op_name(program, &graph.tasks[1]), "0.a");
  assert_string_equal(mgl_task_kind_name(&graph.tasks[1]), "linear");
  assert_string_equal(mgl_task_op_name(program, &graph.tasks[4]), "empty");
  assert_string_equal(mgl_task_kind_name(&graph.tasks[4]), "empty");
  for (uint32_t type = 0; type < MGL_EVENT_TYPE_COUNT; type++) {
    assert_non_null(mgl_event_type_name((mgl_event_type)type));
  }
  assert_string_equal(mgl_event_type_name(MGL_EVENT_LAUNCH_TASKS), "launch_tasks");
  mgl_graph_destroy(program);
}

static void every_allocation_fails_cleanly(void **state) {
  (void)state;
  mgl_graph *program = parse_program(program_text);
  mgl_task_graph graph = small_graph();
  int64_t live = mgl_alloc_live();
  mgl_status status = MGL_ERR_MEMORY;
  for (uint64_t n = 1; status != MGL_OK; n++) {
    mgl_analysis *a = NULL;
    mgl_error err = {0};
    assert_true(n < 100);
    mgl_alloc_fail_nth(n);
    status = mgl_analysis_create(program, &graph, 0, &a, &err);
    mgl_alloc_fail_nth(0);
    if (status != MGL_OK) {
      assert_int_equal(status, MGL_ERR_MEMORY);
      assert_null(a);
    }
    mgl_analysis_destroy(a);
    assert_int_equal(mgl_alloc_live(), live);
  }
  mgl_graph_destroy(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_tasks_by_op_kind_and_worker),
      cmocka_unit_test(lists_the_producers_of_events),
      cmocka_unit_test(finds_the_critical_path),
      cmocka_unit_test(dependent_launches_cut_chains),
      cmocka_unit_test(a_graph_without_tasks),
      cmocka_unit_test(names),
      cmocka_unit_test(every_allocation_fails_cleanly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
