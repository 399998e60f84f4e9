// Random tensor programs through the whole compiler, every property judged by independent, naive
// code: all pairs of regions, bit matrices of what comes before what, and a symbolic execution that
// runs tasks in random orders and looks at every byte that a task reads; of several ranks, in random
// orders of all their tasks, at every byte of every rank.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/tgraph.h"
#include "graph/balance.h"
#include "support/expert_owner.h"
#include "support/graph_oracle.h"
#include "support/must.h"
#include "support/random_program.h"

#ifdef MGL_TEST_SANITIZED
enum { PROGRAMS = 60, RANK_PROGRAMS = 20, CASES = 1 };
#else
enum { PROGRAMS = 200, RANK_PROGRAMS = 80, CASES = 3 };
#endif

// --- brute force ---------------------------------------------------------------------------------

static mgl_tile_access *all_accesses(const mgl_tgraph *tg) {
  mgl_tile_access *access = calloc(tg->task_count, sizeof *access);
  assert_non_null(access);
  for (uint32_t i = 0; i < tg->task_count; i++) {
    mgl_tile_regions(tg->program, &tg->program->ops[tg->tasks[i].op], tg->options->tokens,
                     tg->strides, tg->tasks[i].begin, tg->tasks[i].end, &access[i]);
  }
  return access;
}

static bit_matrix brute_force_pairs(const mgl_tgraph *tg, const mgl_tile_access *access,
                                    uint64_t *out_count) {
  bit_matrix pairs = bit_matrix_create(tg->task_count);
  *out_count = 0;
  for (uint32_t later = 0; later < tg->task_count; later++) {
    for (uint32_t earlier = 0; earlier < later; earlier++) {
      if (tg->tasks[earlier].op != tg->tasks[later].op &&
          oracle_conflict(&access[earlier], &access[later])) {
        bit_matrix_set(&pairs, later, earlier);
        ++*out_count;
      }
    }
  }
  return pairs;
}

static bool in_set(mgl_task_set set, uint32_t task) {
  for (uint32_t i = 0; i < set.span_count; i++) {
    if (set.spans[i].first <= task && task < set.spans[i].last) {
      return true;
    }
  }
  return false;
}

static void check_producers(const mgl_tgraph *tg, const bit_matrix *pairs) {
  for (uint32_t later = 0; later < tg->task_count; later++) {
    for (uint32_t earlier = 0; earlier < tg->task_count; earlier++) {
      if (in_set(tg->producers[later], earlier) != bit_matrix_get(pairs, later, earlier)) {
        fail_msg("task %u and %u: depend says %d", later, earlier,
                 in_set(tg->producers[later], earlier));
      }
    }
  }
}

// --- events --------------------------------------------------------------------------------------

static void check_fused(const mgl_tgraph *tg) {
  for (uint32_t a = 0; a < tg->event_count; a++) {
    assert_true(tg->events[a].in.span_count > 0 && tg->events[a].out.span_count > 0);
    for (uint32_t b = 0; b < a; b++) {
      assert_false(mgl_task_set_equal(tg->events[a].in, tg->events[b].in));
      assert_false(mgl_task_set_equal(tg->events[a].out, tg->events[b].out));
    }
  }
  uint32_t waiting = 0;
  for (uint32_t task = 0; task < tg->task_count; task++) {
    uint32_t events = 0;
    for (uint32_t e = 0; e < tg->event_count; e++) {
      if (in_set(tg->events[e].out, task)) {
        assert_int_equal(tg->wait[task], e);
        events++;
      }
    }
    assert_true(events <= 1);
    assert_int_equal(events == 0, tg->producers[task].span_count == 0);
    waiting += events;
  }
  (void)waiting;
}

// Nothing that a task waits for directly comes before something else that it waits for.
static void check_reduced(const mgl_tgraph *tg, const bit_matrix *before) {
  for (uint32_t e = 0; e < tg->event_count; e++) {
    for (uint32_t a = 0; a < tg->task_count; a++) {
      for (uint32_t b = 0; in_set(tg->events[e].in, a) && b < tg->task_count; b++) {
        assert_false(in_set(tg->events[e].in, b) && bit_matrix_get(before, b, a));
      }
    }
  }
}

// --- the emitted graph ---------------------------------------------------------------------------

// Position of the task with that op and first unit.
static uint32_t number_of(const mgl_tgraph *tg, const mgl_task *task) {
  for (uint32_t i = tg->op_first[task->op]; i < tg->op_first[task->op + 1]; i++) {
    if (tg->tasks[i].begin == task->begin) {
      assert_int_equal(tg->tasks[i].end, task->end);
      return i;
    }
  }
  fail_msg("no such task");
  return 0;
}

static void check_graph_shape(const mgl_task_graph *g) {
  unsigned char *listed = calloc(g->task_count, 1);
  assert_non_null(listed);
  for (uint32_t e = 0; e < g->event_count; e++) {
    uint32_t triggers = 0;
    for (uint32_t i = 0; i < g->task_count; i++) {
      triggers += g->tasks[i].trigger_event == e;
      bool in_range = i >= g->events[e].first_task && i < g->events[e].last_task;
      assert_int_equal(in_range, g->tasks[i].dependent_event == e);  // consecutive, and only those
      if (g->tasks[i].trigger_event == e) {
        assert_true(i < g->events[e].first_task);  // topological
      }
    }
    for (uint32_t i = g->events[e].first_task; i + 1 < g->events[e].last_task; i++) {
      assert_true(g->tasks[i].op == MGL_NO_OP || g->tasks[i + 1].op != MGL_NO_OP);  // empty first
    }
    assert_int_equal(triggers, g->events[e].trigger_count);
    assert_true(triggers > 0);
  }
  assert_int_equal(g->events[g->event_count - 1].type, MGL_EVENT_END_OF_TASK_GRAPH);
  for (uint32_t w = 0; w < g->worker_count; w++) {
    for (uint32_t i = g->aot_start[w]; i < g->aot_start[w + 1]; i++) {
      assert_true(i == g->aot_start[w] || g->aot_tasks[i - 1] < g->aot_tasks[i]);
      assert_int_equal(g->tasks[g->aot_tasks[i]].worker, w);
      assert_int_equal(listed[g->aot_tasks[i]]++, 0);
    }
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    assert_int_equal(listed[i], (g->tasks[i].flags & (MGL_TASK_JIT | MGL_TASK_EMPTY)) == 0);
    assert_int_equal(i < g->ready_count, g->tasks[i].dependent_event == MGL_NO_EVENT);
  }
  free(listed);
}

// What comes before what in the emitted graph, by task number.
static bit_matrix order_by_number(const mgl_tgraph *tg, const mgl_task_graph *g) {
  bit_matrix positions = oracle_order(g);
  bit_matrix numbers = bit_matrix_create(tg->task_count);
  uint32_t *number = calloc(g->task_count, sizeof *number);
  assert_non_null(number);
  for (uint32_t i = 0; i < g->task_count; i++) {
    number[i] = g->tasks[i].op == MGL_NO_OP ? MGL_NO_OP : number_of(tg, &g->tasks[i]);
    for (uint32_t j = 0; j < i && number[i] != MGL_NO_OP; j++) {
      if (number[j] != MGL_NO_OP && bit_matrix_get(&positions, i, j)) {
        bit_matrix_set(&numbers, number[i], number[j]);
      }
    }
  }
  free(number);
  free(positions.bits);
  return numbers;
}

// The emitted graph orders tasks of ops exactly as all pairs together do; or more, where ops were
// widened.
static uint64_t check_same_order(const bit_matrix *found, const bit_matrix *needed, bool exact) {
  uint64_t extra = 0;
  for (uint32_t i = 0; i < found->size; i++) {
    for (uint32_t j = 0; j < found->size; j++) {
      bool has = bit_matrix_get(found, i, j);
      bool needs = bit_matrix_get(needed, i, j);
      assert_true(has == needs || (has && !exact));
      extra += has != needs;
    }
  }
  return extra;
}

// --- storage -------------------------------------------------------------------------------------

static uint32_t writer_of(const mgl_graph *program, uint32_t tensor) {
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].output == tensor) {
      return i;
    }
  }
  return MGL_NO_OP;
}

// Every task that touches a's storage comes before every task that first writes b's.
static bool all_before(const mgl_tgraph *tg, const bit_matrix *before, uint32_t a, uint32_t b) {
  uint32_t writer = writer_of(tg->program, b);
  for (uint32_t x = 0; x < tg->task_count; x++) {
    if (!oracle_touches(tg->program, &tg->program->ops[tg->tasks[x].op], a)) {
      continue;
    }
    for (uint32_t y = tg->op_first[writer]; y < tg->op_first[writer + 1]; y++) {
      if (!bit_matrix_get(before, y, x)) {
        return false;
      }
    }
  }
  return true;
}

static uint32_t check_layout(const mgl_tgraph *tg, const mgl_task_graph *g,
                             const bit_matrix *before) {
  const mgl_graph *p = tg->program;
  const mgl_dim_values dims = {g->tokens, g->tokens, g->tokens};
  uint32_t reused = 0;
  for (uint32_t a = 0; a < p->tensor_count; a++) {
    if (p->tensors[a].placement != MGL_PLACE_ACTIVATION) {
      continue;
    }
    uint32_t root = oracle_root(p, a);
    uint64_t a_begin = g->activation_offsets[a];
    uint64_t a_end =
        a_begin + mgl_tensor_elements(&p->tensors[a], &dims) * mgl_dtype_bytes(p->tensors[a].dtype);
    assert_int_equal(a_begin, g->activation_offsets[root]);
    assert_true(a_begin % 128 == 0 && a_end <= g->activation_bytes);
    for (uint32_t b = 0; root == a && b < a; b++) {
      if (p->tensors[b].placement != MGL_PLACE_ACTIVATION || oracle_root(p, b) != b) {
        continue;
      }
      uint64_t b_begin = g->activation_offsets[b];
      uint64_t b_end = b_begin + mgl_tensor_elements(&p->tensors[b], &dims) *
                                     mgl_dtype_bytes(p->tensors[b].dtype);
      if (a_begin < b_end && b_begin < a_end) {
        assert_true(all_before(tg, before, a, b) || all_before(tg, before, b, a));
        reused++;
      }
    }
  }
  return reused;
}

// --- symbolic execution --------------------------------------------------------------------------

// Each byte of the block holds the tensor that last wrote it. Each KV head counts the tasks of each
// op that have written it.
typedef struct machine {
  struct machine *all;  // [ranks]
  uint32_t ranks;
  const mgl_graph *program;
  const mgl_task_graph *g;
  uint32_t *owner;
  uint32_t *tasks_done;  // [op]
  uint32_t *triggers;    // [event]
  uint32_t *ready;
  uint32_t ready_count;
  uint32_t done_count;
  uint64_t routes;  // seed of this run's
} machine;

static void each_byte(machine *m, const mgl_region *r, bool write, uint32_t tensor) {
  const mgl_tensor *t = &m->program->tensors[r->tensor];
  uint64_t row = mgl_tensor_row_elements(t);
  uint64_t width = mgl_dtype_bytes(t->dtype);
  for (uint32_t i = r->row_begin; i < r->row_end; i++) {
    uint64_t first = m->g->activation_offsets[r->tensor] + (i * row + r->column_begin) * width;
    uint64_t last = m->g->activation_offsets[r->tensor] + (i * row + r->column_end) * width;
    for (uint64_t at = first; at < last; at++) {
      if (write) {
        m->owner[at] = tensor;
      } else if (m->owner[at] != tensor) {
        fail_msg(
            "\"%s\" is read where %s lies", m->program->tensors[tensor].name,
            m->owner[at] == MGL_NO_TENSOR ? "nothing" : m->program->tensors[m->owner[at]].name);
      }
    }
  }
}

// Of the union that a tile of experts declares, what it writes by this run's routes.
static void each_owned_byte(machine *m, const mgl_op *op, const mgl_task *task,
                            const mgl_region *r) {
  expert_owner owner;
  expert_owner_init(&owner, m->program, op, m->g->tokens, m->routes + task->op);
  for (uint32_t row = r->row_begin; row < r->row_end; row++) {
    for (uint32_t column = r->column_begin; column < r->column_end; column++) {
      const uint32_t unit = expert_owner_unit(&owner, row, column);
      const mgl_region one = {r->tensor, row, row + 1, column, column + 1};
      if (task->begin <= unit && unit < task->end) {
        each_byte(m, &one, true, r->tensor);
      }
    }
  }
}

// All tasks of earlier ops that write this KV tensor are done, none of later ones.
static void check_kv(const machine *m, uint32_t op, uint32_t kv, const uint32_t *task_counts) {
  for (uint32_t other = 0; other < m->program->op_count; other++) {
    const mgl_op *o = &m->program->ops[other];
    bool writes = o->output == kv || (o->kind == MGL_OP_ATTEND && o->inputs[1] == kv);
    // Only whole tensors are judged, so ops that wait for some heads only are left out.
    if (writes && other < op && o->kind == MGL_OP_KV_WRITE) {
      assert_int_equal(m->tasks_done[other], task_counts[other]);
    }
    if (writes && other > op && o->kind == MGL_OP_KV_WRITE) {
      assert_int_equal(m->tasks_done[other], 0);
    }
  }
}

static void run_task(machine *m, const mgl_task *task, const uint32_t *task_counts) {
  const mgl_op *op = &m->program->ops[task->op];
  mgl_tile_access access;
  mgl_tile_regions(m->program, op, m->g->tokens, m->g->attention_strides, task->begin, task->end,
                   &access);
  for (uint32_t i = 0; i < access.read_count; i++) {
    const mgl_region *r = &access.reads[i];
    if (m->program->tensors[r->tensor].placement == MGL_PLACE_ACTIVATION) {
      const bool is_part = r->tensor == mgl_op_input(op, MGL_ROLE_PART);
      each_byte(m, r, false, r->tensor);
      for (uint32_t rank = 0; is_part && rank < m->ranks; rank++) {
        each_byte(&m->all[rank], r, false, r->tensor);
      }
    } else {
      check_kv(m, task->op, r->tensor, task_counts);
    }
  }
  for (uint32_t i = 0; i < access.write_count; i++) {
    const mgl_region *r = &access.writes[i];
    if (r->tensor == op->output &&
        m->program->tensors[r->tensor].placement == MGL_PLACE_ACTIVATION) {
      if (mgl_op_shares_by_data(op)) {
        each_owned_byte(m, op, task, r);
      } else {
        each_byte(m, r, true, r->tensor);
      }
    }
  }
  m->tasks_done[task->op]++;
}

static void trigger(machine *m, uint32_t event_idx) {
  const mgl_event *event = &m->g->events[event_idx];
  const uint32_t ranks = (event->flags & MGL_EVENT_REMOTE) != 0 ? m->ranks : 1;
  if (++m->triggers[event_idx] == event->trigger_count * ranks) {
    for (uint32_t i = event->first_task; i < event->last_task; i++) {
      m->ready[m->ready_count++] = i;
    }
  }
}

static void finish_task(machine *m, uint32_t task, const uint32_t *task_counts) {
  if (m->g->tasks[task].op != MGL_NO_OP) {
    run_task(m, &m->g->tasks[task], task_counts);
  }
  m->done_count++;
  uint32_t event = m->g->tasks[task].trigger_event;
  if ((m->g->events[event].flags & MGL_EVENT_REMOTE) == 0) {
    trigger(m, event);
    return;
  }
  for (uint32_t rank = 0; rank < m->ranks; rank++) {
    trigger(&m->all[rank], event);
  }
}

static void open_machine(machine *m) {
  const mgl_task_graph *g = m->g;
  m->owner = malloc((g->activation_bytes + 1) * sizeof *m->owner);
  m->tasks_done = calloc(m->program->op_count, sizeof *m->tasks_done);
  m->triggers = calloc(g->event_count, sizeof *m->triggers);
  m->ready = calloc(g->task_count, sizeof *m->ready);
  assert_true(m->owner != NULL && m->tasks_done != NULL && m->triggers != NULL && m->ready != NULL);
  memset(m->owner, 0xff, (g->activation_bytes + 1) * sizeof *m->owner);
  for (uint32_t i = 0; i < g->ready_count; i++) {
    m->ready[m->ready_count++] = i;
  }
}

// All tasks have run, and outputs are still there when the iteration is over.
static void close_machine(machine *m) {
  const mgl_graph *program = m->program;
  const mgl_dim_values dims = {m->g->tokens, m->g->tokens, m->g->tokens};
  assert_int_equal(m->done_count, m->g->task_count);
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    if (program->tensors[i].is_output) {
      mgl_region whole = {.tensor = i,
                          .row_end = (uint32_t)mgl_dim_value(program->tensors[i].dims[0], &dims),
                          .column_end = (uint32_t)mgl_tensor_row_elements(&program->tensors[i])};
      each_byte(m, &whole, false, i);
    }
  }
  free(m->owner);
  free(m->tasks_done);
  free(m->triggers);
  free(m->ready);
}

// Runs all tasks of all ranks, any ready one next.
static void execute(const mgl_graph *program, const mgl_task_graph *g, uint32_t ranks,
                    random_source *random) {
  machine all[MGL_MAX_RANKS];
  const uint64_t routes = random_below(random, 1000);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    all[rank] = (machine){.all = all, .ranks = ranks, .program = program, .g = g, .routes = routes};
    open_machine(&all[rank]);
  }
  uint32_t *task_counts = calloc(program->op_count, sizeof *task_counts);
  assert_non_null(task_counts);
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->tasks[i].op != MGL_NO_OP) {
      task_counts[g->tasks[i].op]++;
    }
  }
  bool newest_first = random_below(random, 2) == 0;
  for (uint64_t left = (uint64_t)g->task_count * ranks; left > 0; left--) {
    uint32_t rank = ranks > 1 ? random_below(random, ranks) : 0;
    for (uint32_t tries = 0; all[rank].ready_count == 0; tries++) {
      assert_true(tries < ranks);
      rank = (rank + 1) % ranks;
    }
    machine *m = &all[rank];
    uint32_t at = newest_first && random_below(random, 4) != 0
                      ? m->ready_count - 1
                      : random_below(random, m->ready_count);
    uint32_t task = m->ready[at];
    m->ready[at] = m->ready[--m->ready_count];
    finish_task(m, task, task_counts);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    close_machine(&all[rank]);
  }
  free(task_counts);
}

// --- JSON ----------------------------------------------------------------------------------------

static void check_json(const mgl_graph *program, const mgl_task_graph *g) {
  mgl_error err = {0};
  mgl_text first = {0};
  mgl_text second = {0};
  mgl_graph *program2 = NULL;
  mgl_task_graph *g2 = NULL;
  assert_int_equal(mgl_task_graph_write_json(program, g, &first, &err), MGL_OK);
  if (mgl_task_graph_read_json(first.data, first.bytes, "out", &program2, &g2, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(g2->task_count, g->task_count);
  assert_int_equal(g2->event_count, g->event_count);
  assert_int_equal(g2->ready_count, g->ready_count);
  assert_int_equal(g2->activation_bytes, g->activation_bytes);
  assert_int_equal(g2->target, g->target);
  assert_int_equal(g2->attention_strides, g->attention_strides);
  assert_memory_equal(g2->tasks, g->tasks, g->task_count * sizeof *g->tasks);
  assert_memory_equal(g2->events, g->events, g->event_count * sizeof *g->events);
  assert_memory_equal(g2->aot_start, g->aot_start, (g->worker_count + 1) * sizeof *g->aot_start);
  assert_memory_equal(g2->aot_tasks, g->aot_tasks,
                      g->aot_start[g->worker_count] * sizeof *g->aot_tasks);
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    uint32_t same = mgl_graph_find(program2, program->tensors[i].name);
    assert_int_not_equal(same, MGL_NO_TENSOR);
    assert_int_equal(g2->activation_offsets[same], g->activation_offsets[i]);
  }
  assert_int_equal(mgl_task_graph_write_json(program2, g2, &second, &err), MGL_OK);
  assert_int_equal(first.bytes, second.bytes);
  assert_memory_equal(first.data, second.data, first.bytes);
  mgl_text_free(&first);
  mgl_text_free(&second);
  mgl_graph_destroy(program2);
  mgl_task_graph_destroy(g2);
}

// --- the test ------------------------------------------------------------------------------------

typedef struct totals {
  uint64_t tasks, pairs, fused, pruned, empty, reused, jit, widened, extra, ops_seen[MGL_OP_COUNT];
  uint32_t by_data;  // ops whose tiles share experts by routes
} totals;

// Columns are cut at multiples of 16 for the CPU and of 8 for CUDA, rows anywhere.
static void check_grain(const mgl_graph *program, const mgl_task_graph *g) {
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->tasks[i].op != MGL_NO_OP &&
        mgl_tile_grain(&program->ops[g->tasks[i].op], MGL_TARGET_CPU) == 16) {
      assert_int_equal(g->tasks[i].begin % (g->target == MGL_TARGET_CUDA ? 8 : 16), 0);
    }
  }
}

static void check_case(const mgl_graph *program, const mgl_compile_options *options, uint32_t ranks,
                       random_source *random, totals *sum) {
  mgl_tgraph tg = {.program = program, .options = options};
  MUST(mgl_pass_partition(&tg, &err));
  MUST(mgl_pass_depend(&tg, &err));
  mgl_tile_access *access = all_accesses(&tg);
  uint64_t pair_count = 0;
  bit_matrix before = brute_force_pairs(&tg, access, &pair_count);
  if (!options->coarse) {
    check_producers(&tg, &before);
    assert_int_equal(pair_count, tg.report.dependent_pairs);
  }
  MUST(mgl_pass_fuse_events(&tg, &err));
  check_fused(&tg);
  sum->fused += tg.event_count;
  bit_matrix_close(&before);
  MUST(mgl_pass_prune(&tg, &err));
  if (!options->coarse) {
    check_reduced(&tg, &before);
  }
  MUST(mgl_pass_fuse_events(&tg, &err));
  check_fused(&tg);
  mgl_task_graph *g = NULL;
  mgl_compile_report report;
  MUST(mgl_compile(program, options, &g, &report, &err));
  check_graph_shape(g);
  check_grain(program, g);
  bit_matrix order = order_by_number(&tg, g);
  bool exact = report.widened_ops == 0 && !options->coarse;
  assert_true(exact || !options->exact || options->coarse);
  sum->extra += check_same_order(&order, &before, exact);
  sum->reused += check_layout(&tg, g, &order);
  sum->widened += report.widened_ops;
  free(order.bits);
  execute(program, g, ranks, random);
  check_json(program, g);
  sum->tasks += report.task_count;
  sum->pairs += report.dependent_pairs;
  sum->pruned += report.pruned_events;
  sum->empty += report.empty_tasks;
  sum->jit += report.jit_tasks;
  mgl_task_graph_destroy(g);
  free(access);
  free(before.bits);
  mgl_arena_free(&tg.arena);
  mgl_span_list_free(&tg.scratch);
}

static void random_programs_compile_correctly(void **state) {
  (void)state;
  static const uint32_t tokens[] = {1, 2, 8, 64};
  static const uint32_t workers[] = {1, 2, 3, 7, 132};
  totals sum = {0};
  for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
    random_source random = {seed * 31 + 7};
    uint32_t op_count = 6 + random_below(&random, 30);
    mgl_graph *program =
        seed % 2 == 0 ? random_program(seed, op_count) : random_cuda_program(seed, op_count);
    for (size_t i = 0; i < program->op_count; i++) {
      sum.ops_seen[program->ops[i].kind]++;
      sum.by_data += mgl_op_shares_by_data(&program->ops[i]);
    }
    for (int i = 0; i < CASES; i++) {
      mgl_compile_override jit = {.op = "linear", .launch = MGL_LAUNCH_JIT};
      bool has_linear = false;
      for (size_t op = 0; op < program->op_count; op++) {
        has_linear |= program->ops[op].kind == MGL_OP_LINEAR;
      }
      mgl_compile_options options = {
          .target = random_below(&random, 2) == 0 ? MGL_TARGET_CPU : MGL_TARGET_CUDA,
          .tokens = tokens[random_below(&random, 4)],
          .workers = workers[random_below(&random, 5)],
          .launch = (mgl_launch)random_below(&random, 3),
          .overrides = &jit,
          .override_count = has_linear && random_below(&random, 3) == 0 ? 1 : 0,
          .coarse = random_below(&random, 6) == 0,
          .exact = random_below(&random, 2) == 0,
          .verify = true,
      };
      check_case(program, &options, 1, &random, &sum);
    }
    mgl_graph_destroy(program);
  }
  for (int i = 0; i < MGL_OP_COUNT; i++) {
    // What several ranks have has a test of its own, below.
    // Fused mixtures, only where mgl_fuse_ops_cuda puts them (test_cuda_target.c).
    bool mixture = i == MGL_OP_ROUTER || i == MGL_OP_EXPERTS_UP || i == MGL_OP_EXPERTS_DOWN;
    // Custom ops need whoever registers them (test_custom_op.c).
    bool custom = i == MGL_OP_CUSTOM || i == MGL_OP_CUSTOM_UPDATE;
    assert_true(sum.ops_seen[i] > 0 || mixture || custom || i == MGL_OP_ZEROS ||
                mgl_op_kind_is_exchange((uint32_t)i));
  }
  // The passes must also be of use.
  assert_true(sum.fused * 4 < sum.pairs && sum.pruned <= sum.fused);
  assert_true(sum.reused > 0 && sum.empty > 0 && sum.jit > 0);
  assert_true(sum.widened > 0 && sum.extra > 0 && sum.by_data > 0);
  print_message(
      "%llu tasks, %llu pairs, %llu events fused, %llu pruned, %llu empty tasks, %llu "
      "pieces of storage shared\n",
      (unsigned long long)sum.tasks, (unsigned long long)sum.pairs, (unsigned long long)sum.fused,
      (unsigned long long)sum.pruned, (unsigned long long)sum.empty,
      (unsigned long long)sum.reused);
}

static void random_exchanges_compile_correctly(void **state) {
  (void)state;
  static const uint32_t tokens[] = {1, 2, 8, 64};
  static const uint32_t workers[] = {1, 2, 3, 7, 32};
  totals sum = {0};
  for (uint64_t seed = 0; seed < RANK_PROGRAMS; seed++) {
    random_source random = {seed * 37 + 11};
    const uint32_t ranks = 2u << random_below(&random, 3);
    mgl_graph *program = random_rank_program(seed, 6 + random_below(&random, 25), ranks);
    for (size_t i = 0; i < program->op_count; i++) {
      sum.ops_seen[program->ops[i].kind]++;
    }
    for (int i = 0; i < CASES; i++) {
      const mgl_compile_options options = {.tokens = tokens[random_below(&random, 4)],
                                           .workers = workers[random_below(&random, 5)],
                                           .launch = (mgl_launch)random_below(&random, 3),
                                           .coarse = random_below(&random, 6) == 0,
                                           .exact = random_below(&random, 2) == 0,
                                           .verify = true};
      check_case(program, &options, ranks, &random, &sum);
    }
    mgl_graph_destroy(program);
  }
  assert_true(sum.ops_seen[MGL_OP_ALL_REDUCE] > RANK_PROGRAMS &&
              sum.ops_seen[MGL_OP_ZEROS] > RANK_PROGRAMS / 2 &&
              sum.ops_seen[MGL_OP_REDUCE_SCATTER] > RANK_PROGRAMS / 3 &&
              sum.ops_seen[MGL_OP_ALL_GATHER] > RANK_PROGRAMS / 2);
  assert_true(sum.reused > 0 && sum.empty > 0 && sum.jit > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_compile_correctly),
                                     cmocka_unit_test(random_exchanges_compile_correctly)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
