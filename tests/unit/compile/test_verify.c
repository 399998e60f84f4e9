// The verifier against damaged task graphs: every change of a single field that means something is
// refused, and where a change leaves all counts right, verifier and brute force agree.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "compile/compile.h"
#include "support/graph_oracle.h"
#include "support/random_program.h"

#ifdef MGL_TEST_SANITIZED
enum { PROGRAMS = 12, FLIPS = 60, MOVES = 20 };
#else
enum { PROGRAMS = 60, FLIPS = 150, MOVES = 60 };
#endif

static mgl_task_graph *compile(const mgl_graph *program, uint32_t tokens, uint32_t workers,
                               mgl_launch launch) {
  mgl_error err = {0};
  mgl_task_graph *g = NULL;
  mgl_compile_options options = {.tokens = tokens, .workers = workers, .launch = launch};
  if (mgl_compile(program, &options, &g, NULL, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return g;
}

static bool accepts(const mgl_graph *program, const mgl_task_graph *g) {
  mgl_error err = {0};
  mgl_status status = mgl_task_graph_verify(program, g, &err);
  assert_true(status == MGL_OK || (status == MGL_ERR_FORMAT && err.text[0] != 0));
  return status == MGL_OK;
}

// --- single fields -------------------------------------------------------------------------------

typedef struct field {
  void *at;
  size_t bytes;
} field;

static field pick_task_field(mgl_task *task, random_source *random) {
  switch (random_below(random, 9)) {
    case 0: return (field){&task->type, sizeof task->type};
    case 1: return (field){&task->variant, sizeof task->variant};
    case 2: return (field){&task->flags, sizeof task->flags};
    case 3: return (field){&task->worker, sizeof task->worker};
    case 4: return (field){&task->op, sizeof task->op};
    case 5: return (field){&task->begin, sizeof task->begin};
    case 6: return (field){&task->end, sizeof task->end};
    case 7: return (field){&task->dependent_event, sizeof task->dependent_event};
    default: return (field){&task->trigger_event, sizeof task->trigger_event};
  }
}

static field pick_event_field(mgl_event *event, random_source *random) {
  switch (random_below(random, 5)) {
    case 0: return (field){&event->type, sizeof event->type};
    case 1: return (field){&event->flags, sizeof event->flags};
    case 2: return (field){&event->trigger_count, sizeof event->trigger_count};
    case 3: return (field){&event->first_task, sizeof event->first_task};
    default: return (field){&event->last_task, sizeof event->last_task};
  }
}

static field pick_field(const mgl_graph *program, mgl_task_graph *g, random_source *random) {
  switch (random_below(random, 8)) {
    case 0:
    case 1:
    case 2: return pick_task_field(&g->tasks[random_below(random, g->task_count)], random);
    case 3:
    case 4: return pick_event_field(&g->events[random_below(random, g->event_count)], random);
    case 5: return (field){&g->aot_start[random_below(random, g->worker_count + 1)], 4};
    case 6: {
      uint32_t count = g->aot_start[g->worker_count];
      return count == 0 ? (field){&g->ready_count, 4}
                        : (field){&g->aot_tasks[random_below(random, count)], 4};
    }
    default: {
      uint32_t tensor = random_below(random, g->tensor_count);
      while (program->tensors[tensor].placement == MGL_PLACE_ACTIVATION) {
        tensor = (tensor + 1) % g->tensor_count;
      }
      return (field){&g->activation_offsets[tensor], 8};
    }
  }
}

// Changes the value: a step up or down, another small number, or one bit.
static void damage(field f, random_source *random) {
  uint64_t old = 0;
  memcpy(&old, f.at, f.bytes);
  uint64_t value = old;
  while (memcmp(&value, &old, f.bytes) == 0) {
    switch (random_below(random, 4)) {
      case 0: value = old + 1; break;
      case 1: value = old - 1; break;
      case 2: value = random_below(random, 64); break;
      default: value = old ^ (uint64_t)1 << random_below(random, (uint32_t)f.bytes * 8);
    }
  }
  memcpy(f.at, &value, f.bytes);
}

static bool same_meaning(uint64_t old, const mgl_task_graph *g, field f) {
  for (uint32_t i = 0; i < g->event_count; i++) {
    // Whether one scheduler or all queue an event's tasks is a matter of speed.
    uint16_t type = g->events[i].type;
    if (f.at == &g->events[i].type &&
        (type == MGL_EVENT_LAUNCH_MASSIVE_TASKS || type == MGL_EVENT_LAUNCH_TASKS) &&
        (old == MGL_EVENT_LAUNCH_MASSIVE_TASKS || old == MGL_EVENT_LAUNCH_TASKS)) {
      return true;
    }
  }
  return false;
}

static void changed_fields_are_refused(void **state) {
  (void)state;
  uint32_t refused = 0;
  for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
    random_source random = {seed + 77};
    mgl_graph *program = random_program(seed, 5 + random_below(&random, 20));
    mgl_task_graph *g = compile(program, 1u << random_below(&random, 7),
                                1 + random_below(&random, 9), (mgl_launch)random_below(&random, 3));
    assert_true(accepts(program, g));
    for (int i = 0; i < FLIPS; i++) {
      field f = pick_field(program, g, &random);
      uint64_t old = 0;
      memcpy(&old, f.at, f.bytes);
      damage(f, &random);
      bool accepted = accepts(program, g);
      // type.
      if (accepted && !same_meaning(old, g, f)) {
        uint64_t now = 0;
        memcpy(&now, f.at, f.bytes);
        fail_msg(
            "program %llu: a change from %llx to %llx in %zu bytes at task byte %td, event "
            "byte %td is accepted",
            (unsigned long long)seed, (unsigned long long)old, (unsigned long long)now, f.bytes,
            (char *)f.at - (char *)g->tasks, (char *)f.at - (char *)g->events);
      }
      refused += !accepted;
      memcpy(f.at, &old, f.bytes);
    }
    assert_true(accepts(program, g));
    mgl_task_graph_destroy(g);
    mgl_graph_destroy(program);
  }
  assert_true(refused > PROGRAMS * FLIPS / 2);
}

// --- consistent changes --------------------------------------------------------------------------

static bool all_conflicts_are_ordered(const mgl_graph *program, const mgl_task_graph *g,
                                      const bit_matrix *order) {
  mgl_tile_access *access = calloc(g->task_count, sizeof *access);
  assert_non_null(access);
  bool ok = true;
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->tasks[i].op != MGL_NO_OP) {
      mgl_tile_regions(program, &program->ops[g->tasks[i].op], g->tokens, g->attention_strides,
                       g->tasks[i].begin, g->tasks[i].end, &access[i]);
    }
    for (uint32_t j = 0; j < i; j++) {
      if (g->tasks[i].op != g->tasks[j].op && oracle_conflict(&access[i], &access[j])) {
        // In program order, which a damaged graph may have turned round.
        bool forward = g->tasks[j].op < g->tasks[i].op;
        ok &= forward ? bit_matrix_get(order, i, j) : bit_matrix_get(order, j, i);
      }
    }
  }
  free(access);
  return ok;
}

static bool all_reach_the_end(const mgl_task_graph *g, const bit_matrix *order) {
  for (uint32_t i = 0; i < g->task_count; i++) {
    bool reaches = g->tasks[i].op == MGL_NO_OP || g->tasks[i].trigger_event == g->event_count - 1;
    for (uint32_t j = i + 1; j < g->task_count; j++) {
      reaches |= g->tasks[j].trigger_event == g->event_count - 1 && bit_matrix_get(order, j, i);
    }
    if (!reaches) {
      return false;
    }
  }
  return true;
}

// All users of a's storage before all tasks of the op that first writes b's.
static bool all_before(const mgl_graph *program, const mgl_task_graph *g, const bit_matrix *order,
                       uint32_t a, uint32_t b) {
  for (uint32_t x = 0; x < g->task_count; x++) {
    for (uint32_t y = 0; y < g->task_count; y++) {
      if (g->tasks[x].op != MGL_NO_OP && g->tasks[y].op != MGL_NO_OP &&
          program->ops[g->tasks[y].op].output == b &&
          oracle_touches(program, &program->ops[g->tasks[x].op], a) &&
          !bit_matrix_get(order, y, x)) {
        return false;
      }
    }
  }
  return true;
}

static bool chain_is_output(const mgl_graph *program, uint32_t root) {
  for (uint32_t i = 0; i < program->tensor_count; i++) {
    if (program->tensors[i].is_output && oracle_root(program, i) == root) {
      return true;
    }
  }
  return false;
}

static bool storage_is_safe(const mgl_graph *program, const mgl_task_graph *g,
                            const bit_matrix *order) {
  const mgl_dim_values dims = {g->tokens, g->tokens, g->tokens};
  for (uint32_t a = 0; a < program->tensor_count; a++) {
    const mgl_tensor *x = &program->tensors[a];
    uint64_t a_begin = g->activation_offsets[a];
    uint64_t a_end = a_begin + mgl_tensor_elements(x, &dims) * mgl_dtype_bytes(x->dtype);
    if (x->placement != MGL_PLACE_ACTIVATION || oracle_root(program, a) != a) {
      continue;
    }
    for (uint32_t b = 0; b < a; b++) {
      const mgl_tensor *y = &program->tensors[b];
      uint64_t b_begin = g->activation_offsets[b];
      uint64_t b_end = b_begin + mgl_tensor_elements(y, &dims) * mgl_dtype_bytes(y->dtype);
      if (y->placement == MGL_PLACE_ACTIVATION && oracle_root(program, b) == b && a_begin < b_end &&
          b_begin < a_end &&
          !(all_before(program, g, order, a, b) && !chain_is_output(program, a)) &&
          !(all_before(program, g, order, b, a) && !chain_is_output(program, b))) {
        return false;
      }
    }
  }
  return true;
}

static bool oracle_accepts(const mgl_graph *program, const mgl_task_graph *g) {
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->events[g->tasks[i].trigger_event].first_task <= i) {
      return false;  // waits for itself, or for something behind it
    }
  }
  bit_matrix order = oracle_order(g);
  bool ok = all_conflicts_are_ordered(program, g, &order) && all_reach_the_end(g, &order) &&
            storage_is_safe(program, g, &order);
  free(order.bits);
  return ok;
}

// Lets a task trigger another event, mostly a later one, with both counts made right. False: not
// possible here.
static bool move_trigger(mgl_task_graph *g, random_source *random, uint32_t *out_task) {
  uint32_t task = random_below(random, g->task_count);
  uint32_t from = g->tasks[task].trigger_event;
  uint32_t to = random_below(random, g->event_count);
  if (to == from || g->events[from].trigger_count == 1 ||
      (g->events[to].first_task <= task && random_below(random, 4) != 0)) {
    return false;
  }
  g->events[from].trigger_count--;
  g->events[to].trigger_count++;
  g->tasks[task].trigger_event = to;
  *out_task = task;
  return true;
}

// Moves one storage chain to a random place in the block.
static void move_storage(const mgl_graph *program, mgl_task_graph *g, random_source *random) {
  uint32_t tensor = random_below(random, g->tensor_count);
  while (program->tensors[tensor].placement != MGL_PLACE_ACTIVATION) {
    tensor = (tensor + 1) % g->tensor_count;
  }
  uint32_t root = oracle_root(program, tensor);
  uint64_t offset = (uint64_t)128 * random_below(random, (uint32_t)(g->activation_bytes / 128));
  const mgl_dim_values dims = {g->tokens, g->tokens, g->tokens};
  uint64_t bytes = mgl_tensor_elements(&program->tensors[root], &dims) *
                   mgl_dtype_bytes(program->tensors[root].dtype);
  if (offset + bytes > g->activation_bytes) {
    offset = 0;
  }
  for (uint32_t i = 0; i < g->tensor_count; i++) {
    if (program->tensors[i].placement == MGL_PLACE_ACTIVATION && oracle_root(program, i) == root) {
      g->activation_offsets[i] = offset;
    }
  }
}

static void verifier_and_brute_force_agree(void **state) {
  (void)state;
  uint32_t accepted = 0;
  uint32_t refused = 0;
  for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
    random_source random = {seed + 5};
    mgl_graph *program = random_program(seed, 5 + random_below(&random, 12));
    mgl_task_graph *g = compile(program, 1u << random_below(&random, 3),
                                1 + random_below(&random, 4), MGL_LAUNCH_AUTO);
    uint64_t *offsets = malloc(g->tensor_count * sizeof *offsets);
    assert_non_null(offsets);
    memcpy(offsets, g->activation_offsets, g->tensor_count * sizeof *offsets);
    for (int i = 0; i < MOVES; i++) {
      mgl_task *tasks = malloc(g->task_count * sizeof *tasks);
      mgl_event *events = malloc(g->event_count * sizeof *events);
      assert_true(tasks != NULL && events != NULL);
      memcpy(tasks, g->tasks, g->task_count * sizeof *tasks);
      memcpy(events, g->events, g->event_count * sizeof *events);
      uint32_t task = 0;
      if (random_below(&random, 2) == 0 || !move_trigger(g, &random, &task)) {
        move_storage(program, g, &random);
      }
      bool valid = oracle_accepts(program, g);
      if (accepts(program, g) != valid) {
        fail_msg("program %llu, move %d: brute force says %d", (unsigned long long)seed, i, valid);
      }
      accepted += valid;
      refused += !valid;
      memcpy(g->tasks, tasks, g->task_count * sizeof *tasks);
      memcpy(g->events, events, g->event_count * sizeof *events);
      memcpy(g->activation_offsets, offsets, g->tensor_count * sizeof *offsets);
      free(tasks);
      free(events);
    }
    free(offsets);
    mgl_task_graph_destroy(g);
    mgl_graph_destroy(program);
  }
  print_message("%u changed graphs are right, %u wrong\n", accepted, refused);
  assert_true(accepted > 10 && refused > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(changed_fields_are_refused),
      cmocka_unit_test(verifier_and_brute_force_agree),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
