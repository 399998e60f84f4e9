// The verifier: proves of a finished task graph, from nothing but its program, what running relies
// on. It trusts no pass: compiled, hand-written and loaded graphs are checked alike.
//
//   shape      counts and limits; events stand in the order of their tasks, END_OF_TASK_GRAPH last
//   tasks      kind, tile, flags, worker; one dependent event (the one whose range holds the task)
//              and one trigger event, which every task has: all must be done when the iteration is
//   order      topological: whatever triggers an event stands before the tasks that wait for it
//   lists      every AOT task once, in its worker's list, ascending (liveness in
//   twin/protocol.h) tiles      the tasks of an op cut its units into ranges at multiples of its
//   grain pending    triggers of empty tasks that one activation can set off fit mgl_trigger's
//   array ordered    every two tasks of different ops whose regions conflict come one after the
//   other storage    in-place ops keep their input's bytes; other activations share bytes only
//   where all
//              users of the one come before the first writers of the other; outputs, and what other
//              ranks read, are not written over in the same iteration
//   ranks      tasks that read other ranks' parts wait for an event that counts the triggers of all
//              ranks. All ranks have the same graph, so what comes before such an event on one
//              rank comes before it on all, and the sets below hold for every rank's copy
//
// The last two use sets of ancestors, by task number (op by op) and not by linear order, so that
// they are a few spans each. The tasks of a LAUNCH_DEPENDENT_TASKS event run in the next iteration:
// nothing of this one comes before them.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "compile/tgraph.h"

enum {
  MAX_PENDING = 256,  // MGL_MAX_PENDING of twin/protocol.h
  STORAGE_ALIGNMENT = 64,
};
#define MAX_WORK_BYTES ((size_t)2 << 30)  // of one verification; a hostile graph could want more

typedef struct verifier {
  const mgl_graph *program;
  const mgl_task_graph *graph;
  mgl_tgraph tg;          // tasks by number, for depend and the sets
  uint32_t *number;       // [task_count] task number by position; MGL_NO_OP for empty tasks
  uint32_t *trigger_sum;  // [event_count]
  mgl_task_set *before;   // [event_count] tasks that come before an event's activation
} verifier;

static mgl_status wrong(mgl_error *err, const char *what, uint64_t where, uint64_t found) {
  return mgl_error_set(err, MGL_ERR_FORMAT, "task graph: %s (at %llu, found %llu)", what,
                       (unsigned long long)where, (unsigned long long)found);
}

static mgl_status out_of_memory(const verifier *v, mgl_error *err) {
  return v->tg.arena.over_limit
             ? mgl_error_set(err, MGL_ERR_LIMIT,
                             "task graph: needs more than %zu MiB to verify; is it damaged?",
                             MAX_WORK_BYTES >> 20)
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory verifying a task graph");
}

// --- shape ---------------------------------------------------------------------------------------

static mgl_status check_shape(const verifier *v, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  if (g->tokens < 1 || g->tokens > MGL_MAX_ITERATION_TOKENS) {
    return wrong(err, "tokens must be 1 to 2048", 0, g->tokens);
  }
  if (g->logit_rows < 1 || g->logit_rows > g->tokens) {
    return wrong(err, "rows with logits must be 1 to the number of tokens", 0, g->logit_rows);
  }
  if (g->worker_count < 1 || g->worker_count > MGL_COMPILE_MAX_WORKERS) {
    return wrong(err, "workers must be 1 to 4096", 0, g->worker_count);
  }
  if (g->target != MGL_TARGET_CPU && g->target != MGL_TARGET_CUDA) {
    return wrong(err, "the target must be one of cpu and cuda", 0, (uint64_t)g->target);
  }
  if (g->attention_strides < 1 || g->attention_strides > MGL_COMPILE_MAX_STRIDES) {
    return wrong(err, "attention strides must be 1 to 64", 0, g->attention_strides);
  }
  if (g->task_count < 1 || g->task_count > MGL_COMPILE_MAX_TASKS) {
    return wrong(err, "expected 1 to 2^24 tasks", 0, g->task_count);
  }
  if (g->event_count < 1 || g->event_count > g->task_count + 1) {
    return wrong(err, "expected 1 event to one more than tasks", 0, g->event_count);
  }
  if (g->ready_count < 1 || g->ready_count > g->task_count) {
    return wrong(err, "some task must be ready when the iteration starts", 0, g->ready_count);
  }
  if (g->tensor_count != v->program->tensor_count) {
    return wrong(err, "must have as many tensors as its program", v->program->tensor_count,
                 g->tensor_count);
  }
  return MGL_OK;
}

static mgl_status check_event(const verifier *v, uint32_t index, uint32_t first, mgl_error *err) {
  const mgl_event *e = &v->graph->events[index];
  bool last = index == v->graph->event_count - 1;
  bool empty = e->type == MGL_EVENT_END_OF_TASK_GRAPH || e->type == MGL_EVENT_EMPTY;
  bool known = empty || e->type == MGL_EVENT_LAUNCH_TASKS ||
               e->type == MGL_EVENT_LAUNCH_MASSIVE_TASKS ||
               e->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS;
  if (!known) {
    return wrong(err, "event of a type that is not part of a graph", index, e->type);
  }
  if (last != (e->type == MGL_EVENT_END_OF_TASK_GRAPH)) {
    return wrong(err, "END_OF_TASK_GRAPH must be the last event, and only that", index, e->type);
  }
  if (e->first_task != first || e->last_task < first || e->last_task > v->graph->task_count) {
    return wrong(err, "events must cut the tasks behind the ready ones into ranges, in order",
                 index, e->first_task);
  }
  if (empty != (e->first_task == e->last_task)) {
    return wrong(err, "an event has tasks exactly if it launches some", index, e->type);
  }
  uint16_t flags = 0;
  for (uint32_t i = e->first_task; i < e->last_task; i++) {
    const mgl_task *task = &v->graph->tasks[i];
    flags |= (task->flags & MGL_TASK_EMPTY) != 0 ? MGL_EVENT_HAS_EMPTY
             : (task->flags & MGL_TASK_JIT) != 0 ? MGL_EVENT_HAS_JIT
                                                 : MGL_EVENT_HAS_AOT;
    flags |= mgl_op_kind_is_exchange(task->type) ? MGL_EVENT_REMOTE : 0;
    if (task->dependent_event != index) {
      return wrong(err, "a task of an event's range must wait for it", i, task->dependent_event);
    }
  }
  if (e->flags != flags) {
    return wrong(err, "event flags must tell the kinds of its tasks", index, e->flags);
  }
  if ((flags & MGL_EVENT_REMOTE) != 0 &&
      (e->type != MGL_EVENT_LAUNCH_TASKS || flags != (MGL_EVENT_HAS_AOT | MGL_EVENT_REMOTE))) {
    return wrong(err, "tasks that read parts of other ranks must be AOT, as all of their event",
                 index, flags);
  }
  if (e->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS && flags != MGL_EVENT_HAS_JIT) {
    return wrong(err, "dependent tasks of the next iteration must be JIT", index, flags);
  }
  return MGL_OK;
}

static mgl_status check_events(const verifier *v, mgl_error *err) {
  uint32_t next = v->graph->ready_count;
  for (uint32_t i = 0; i < v->graph->event_count; i++) {
    MGL_TRY(check_event(v, i, next, err));
    next = v->graph->events[i].last_task;
  }
  return next == v->graph->task_count
             ? MGL_OK
             : wrong(err, "events must cover all tasks", v->graph->task_count, next);
}

// --- tasks ---------------------------------------------------------------------------------------

static mgl_status check_tile(const verifier *v, uint32_t index, mgl_error *err) {
  const mgl_task *task = &v->graph->tasks[index];
  const mgl_op *op = &v->program->ops[task->op];
  uint32_t units = mgl_tile_units(v->program, op, v->graph->tokens, v->graph->attention_strides);
  uint32_t grain = mgl_tile_grain(op, v->graph->target);
  if (task->begin >= task->end || task->end > units) {
    return wrong(err, "a task's tile must not be empty or end behind its op's units", index,
                 task->end);
  }
  if (task->begin % grain != 0 || (task->end % grain != 0 && task->end != units)) {
    return wrong(err, "a task's tile must begin and end at multiples of its op's grain", index,
                 task->begin);
  }
  return MGL_OK;
}

static mgl_status check_task(const verifier *v, uint32_t index, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  const mgl_task *task = &g->tasks[index];
  bool empty = task->flags == MGL_TASK_EMPTY;
  bool jit = task->flags == MGL_TASK_JIT;
  if (!empty && !jit && task->flags != 0) {
    return wrong(err, "task flags must be 0, JIT or EMPTY", index, task->flags);
  }
  if (task->variant != 0) {
    return wrong(err, "the variant of a task must be 0", index, task->variant);
  }
  if ((task->dependent_event == MGL_NO_EVENT) != (index < g->ready_count)) {
    return wrong(err, "exactly the first tasks wait for nothing", index, task->dependent_event);
  }
  if (task->trigger_event >= g->event_count) {
    return wrong(err, "every task must trigger an event", index, task->trigger_event);
  }
  const mgl_event *event = &g->events[task->trigger_event];
  if (event->type != MGL_EVENT_LAUNCH_DEPENDENT_TASKS && event->first_task <= index) {
    return wrong(err, "a task must stand before the tasks that wait for its event", index,
                 task->trigger_event);
  }
  if (empty || jit ? task->worker != MGL_NO_WORKER : task->worker >= g->worker_count) {
    return wrong(err, "exactly AOT tasks have a worker of the graph", index, task->worker);
  }
  if (mgl_op_kind_is_exchange(task->type) && task->dependent_event == MGL_NO_EVENT) {
    return wrong(err, "a task that reads parts of other ranks must wait for an event", index,
                 task->type);
  }
  if (empty) {
    return task->type == UINT16_MAX && task->op == MGL_NO_OP && task->begin == 0 &&
                   task->end == 0 && index >= g->ready_count
               ? MGL_OK
               : wrong(err, "an empty task must wait for an event and have no op", index, task->op);
  }
  if (task->op >= v->program->op_count || task->type != v->program->ops[task->op].kind) {
    return wrong(err, "a task must have its op's kind", index, task->type);
  }
  return check_tile(v, index, err);
}

static mgl_status check_triggers(verifier *v, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  for (uint32_t i = 0; i < g->task_count; i++) {
    MGL_TRY(check_task(v, i, err));
    v->trigger_sum[g->tasks[i].trigger_event]++;
  }
  for (uint32_t i = 0; i < g->event_count; i++) {
    if (g->events[i].trigger_count == 0 || g->events[i].trigger_count != v->trigger_sum[i]) {
      return wrong(err, "an event must count the tasks that trigger it", i,
                   g->events[i].trigger_count);
    }
  }
  return MGL_OK;
}

static mgl_status check_aot_lists(const verifier *v, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  uint32_t aot_count = 0;
  for (uint32_t i = 0; i < g->task_count; i++) {
    aot_count += g->tasks[i].flags == 0;
  }
  if (g->aot_start[0] != 0 || g->aot_start[g->worker_count] != aot_count) {
    return wrong(err, "the workers' lists must hold all AOT tasks", aot_count,
                 g->aot_start[g->worker_count]);
  }
  for (uint32_t w = 0; w < g->worker_count; w++) {
    if (g->aot_start[w + 1] < g->aot_start[w] || g->aot_start[w + 1] > aot_count) {
      return wrong(err, "the workers' lists must follow each other", w, g->aot_start[w + 1]);
    }
    for (uint32_t i = g->aot_start[w]; i < g->aot_start[w + 1]; i++) {
      uint32_t task = g->aot_tasks[i];
      if (task >= g->task_count || g->tasks[task].flags != 0 || g->tasks[task].worker != w ||
          (i > g->aot_start[w] && task <= g->aot_tasks[i - 1])) {
        return wrong(err, "a worker's list must hold its AOT tasks, ascending", w, task);
      }
    }
  }
  return MGL_OK;
}

// Room that mgl_trigger needs when every trigger of an event's activation activates in turn: empty
// task j of k waits under j others while its own event is worked off.
static mgl_status check_pending(verifier *v, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  uint32_t *room = v->trigger_sum;  // no longer needed
  for (uint32_t i = g->event_count; i-- > 0;) {
    uint32_t empties = 0;
    uint32_t most = 1;
    for (uint32_t task = g->events[i].first_task; task < g->events[i].last_task; task++) {
      if (g->tasks[task].flags == MGL_TASK_EMPTY) {
        uint32_t next = g->tasks[task].trigger_event;
        if (next <= i) {  // a LAUNCH_DEPENDENT_TASKS event that stands before its trigger
          room[next] = 1;
        }
        uint32_t needed = empties + room[next];
        most = needed > most ? needed : most;
        empties++;
      }
    }
    room[i] = empties > most ? empties : most;
    if (room[i] > MAX_PENDING) {
      return wrong(err, "one activation must not set off more than 256 pending triggers", i,
                   room[i]);
    }
  }
  return MGL_OK;
}

// --- tiles ---------------------------------------------------------------------------------------

typedef struct numbered {
  mgl_tg_task task;
  uint32_t position;
} numbered;

static int compare_tiles(const void *a, const void *b) {
  const numbered *x = a;
  const numbered *y = b;
  return (x->task.begin > y->task.begin) - (x->task.begin < y->task.begin);
}

static mgl_status check_op_tiles(const verifier *v, uint32_t op, const numbered *tasks,
                                 uint32_t count, mgl_error *err) {
  uint32_t units = mgl_tile_units(v->program, &v->program->ops[op], v->graph->tokens,
                                  v->graph->attention_strides);
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (tasks[i].task.begin != next) {
      return wrong(err, "the tasks of an op must cut its units without gap or overlap", op,
                   tasks[i].task.begin);
    }
    next = tasks[i].task.end;
  }
  return next == units ? MGL_OK : wrong(err, "the tasks of an op must cover its units", op, next);
}

// Numbers the tasks op by op, by tile.
static mgl_status number_tasks(verifier *v, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  mgl_tgraph *tg = &v->tg;
  size_t op_count = v->program->op_count;
  tg->op_first = mgl_arena_alloc_zeroed(&tg->arena, op_count + 2, sizeof *tg->op_first);
  tg->tasks = mgl_arena_alloc(&tg->arena, g->task_count * sizeof *tg->tasks);
  numbered *sorted = mgl_arena_alloc(&tg->arena, g->task_count * sizeof *sorted);
  if (tg->op_first == NULL || tg->tasks == NULL || sorted == NULL) {
    return out_of_memory(v, err);
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    if (g->tasks[i].op != MGL_NO_OP) {
      tg->op_first[g->tasks[i].op + 2]++;
    }
  }
  for (size_t op = 0; op < op_count; op++) {
    tg->op_first[op + 2] += tg->op_first[op + 1];
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    const mgl_task *task = &g->tasks[i];
    v->number[i] = MGL_NO_OP;
    if (task->op != MGL_NO_OP) {
      sorted[tg->op_first[task->op + 1]++] =
          (numbered){{task->op, task->begin, task->end, task->cost}, i};
    }
  }
  tg->task_count = tg->op_first[op_count];
  for (uint32_t op = 0; op < op_count; op++) {
    numbered *first = sorted + tg->op_first[op];
    uint32_t count = tg->op_first[op + 1] - tg->op_first[op];
    qsort(first, count, sizeof *first, compare_tiles);
    MGL_TRY(check_op_tiles(v, op, first, count, err));
  }
  for (uint32_t i = 0; i < tg->task_count; i++) {
    tg->tasks[i] = sorted[i].task;
    v->number[sorted[i].position] = i;
  }
  return MGL_OK;
}

// --- ordered -------------------------------------------------------------------------------------

// The positions of the tasks that trigger each event, as one array cut by `start`.
static uint32_t *list_triggers(verifier *v, uint32_t **out_start) {
  const mgl_task_graph *g = v->graph;
  mgl_arena *arena = &v->tg.arena;
  uint32_t *start = mgl_arena_alloc_zeroed(arena, (size_t)g->event_count + 2, sizeof *start);
  uint32_t *tasks = mgl_arena_alloc(arena, g->task_count * sizeof *tasks);
  if (start == NULL || tasks == NULL) {
    return NULL;
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    start[g->tasks[i].trigger_event + 2]++;
  }
  for (uint32_t i = 0; i < g->event_count; i++) {
    start[i + 2] += start[i + 1];
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    tasks[start[g->tasks[i].trigger_event + 1]++] = i;
  }
  *out_start = start;
  return tasks;
}

// before[event] from its triggers and what they wait for.
static bool find_before(verifier *v, uint32_t event, const uint32_t *triggers, uint32_t count,
                        uint32_t *seen) {
  const mgl_task_graph *g = v->graph;
  mgl_span_list *list = &v->tg.scratch;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t number = v->number[triggers[i]];
    if (number != MGL_NO_OP && !mgl_span_list_add(list, number, number + 1)) {
      return false;
    }
    uint32_t wait = g->tasks[triggers[i]].dependent_event;
    if (wait == MGL_NO_EVENT || seen[wait] == event + 1 ||
        g->events[wait].type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
      continue;
    }
    seen[wait] = event + 1;
    if (!mgl_span_list_add_set(list, v->before[wait])) {
      return false;
    }
  }
  return mgl_span_list_take(list, &v->tg.arena, &v->before[event]);
}

static mgl_status find_ancestors(verifier *v, mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  mgl_arena *arena = &v->tg.arena;
  uint32_t *start = NULL;
  uint32_t *triggers = list_triggers(v, &start);
  uint32_t *seen = mgl_arena_alloc_zeroed(arena, g->event_count, sizeof *seen);
  v->before = mgl_arena_alloc_zeroed(arena, g->event_count, sizeof *v->before);
  v->tg.ancestors = mgl_arena_alloc_zeroed(arena, v->tg.task_count, sizeof *v->tg.ancestors);
  if (triggers == NULL || seen == NULL || v->before == NULL || v->tg.ancestors == NULL) {
    return out_of_memory(v, err);
  }
  for (uint32_t event = 0; event < g->event_count; event++) {
    if (!find_before(v, event, triggers + start[event], start[event + 1] - start[event], seen)) {
      return out_of_memory(v, err);
    }
  }
  if (!mgl_task_set_contains(v->before[g->event_count - 1], 0, v->tg.task_count)) {
    return wrong(err, "every task must be done before END_OF_TASK_GRAPH is activated",
                 g->event_count - 1, mgl_task_set_size(v->before[g->event_count - 1]));
  }
  for (uint32_t i = 0; i < g->task_count; i++) {
    uint32_t wait = g->tasks[i].dependent_event;
    if (v->number[i] != MGL_NO_OP && wait != MGL_NO_EVENT &&
        g->events[wait].type != MGL_EVENT_LAUNCH_DEPENDENT_TASKS) {
      v->tg.ancestors[v->number[i]] = v->before[wait];
    }
  }
  return MGL_OK;
}

static mgl_status check_dependencies(verifier *v, mgl_error *err) {
  const mgl_tgraph *tg = &v->tg;
  if (mgl_pass_depend(&v->tg, err) != MGL_OK) {
    return out_of_memory(v, err);
  }
  for (uint32_t task = 0; task < tg->task_count; task++) {
    if (!mgl_task_set_is_subset(tg->producers[task], tg->ancestors[task])) {
      const mgl_op *op = &v->program->ops[tg->tasks[task].op];
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "task graph: a task of \"%s\" (units %u to %u) does not wait for all "
                           "tasks whose regions meet its own",
                           v->program->tensors[op->output].name, tg->tasks[task].begin,
                           tg->tasks[task].end);
    }
  }
  return MGL_OK;
}

// --- storage -------------------------------------------------------------------------------------

static mgl_status check_offset(const verifier *v, const mgl_storage *storages, uint32_t tensor,
                               mgl_error *err) {
  const mgl_task_graph *g = v->graph;
  uint64_t offset = g->activation_offsets[tensor];
  uint32_t root = storages[tensor].root;
  if (root == MGL_NO_TENSOR) {
    return offset == 0 ? MGL_OK : wrong(err, "only activations have an offset", tensor, offset);
  }
  if (offset != g->activation_offsets[root]) {
    return wrong(err, "an in-place op must keep its input's offset", tensor, offset);
  }
  if (offset % STORAGE_ALIGNMENT != 0 || storages[root].bytes > g->activation_bytes ||
      offset > g->activation_bytes - storages[root].bytes) {
    return wrong(err, "an activation must lie in the block, at a multiple of 64 bytes", tensor,
                 offset);
  }
  return MGL_OK;
}

static bool share_bytes(const verifier *v, const mgl_storage *a, const mgl_storage *b) {
  uint64_t a_begin = v->graph->activation_offsets[a->root];
  uint64_t b_begin = v->graph->activation_offsets[b->root];
  return a_begin < b_begin + b->bytes && b_begin < a_begin + a->bytes;
}

// Written before the program, as in a piece (compile/split.h).
static bool is_outer(const mgl_graph *program, const mgl_storage *s) {
  return program->ops[s->first_op].output != s->root;
}

// All pairs of pieces that share bytes, but for those that lie behind each other for certain: a
// piece goes from the list when its users are among the tasks that all later ops come after.
static mgl_status check_sharing(const verifier *v, const mgl_storage *storages,
                                const mgl_task_set *before, uint32_t *live, const uint32_t *settled,
                                mgl_error *err) {
  uint32_t live_count = 0;
  for (uint32_t tensor = 0; tensor < v->graph->tensor_count; tensor++) {
    if (storages[tensor].root == tensor && is_outer(v->program, &storages[tensor])) {
      live[live_count++] = tensor;
    }
  }
  for (uint32_t op = 0; op < v->program->op_count; op++) {
    uint32_t root = v->program->ops[op].output;
    if (storages[root].root != root) {
      continue;
    }
    const mgl_storage *b = &storages[root];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < live_count; i++) {
      const mgl_storage *a = &storages[live[i]];
      if (!a->is_output && v->tg.op_first[a->last_op + 1] <= settled[op]) {
        continue;
      }
      live[kept++] = live[i];
      if (share_bytes(v, a, b) && !mgl_storage_is_free(a, b, v->tg.op_first, before) &&
          !mgl_storage_is_free(b, a, v->tg.op_first, before)) {
        return mgl_error_set(err, MGL_ERR_FORMAT,
                             "task graph: \"%s\" and \"%s\" share bytes, and are not proven to be "
                             "used one after the other",
                             v->program->tensors[a->root].name, v->program->tensors[root].name);
      }
    }
    live_count = kept;
    live[live_count++] = root;
  }
  return MGL_OK;
}

static mgl_status check_storage(verifier *v, mgl_error *err) {
  mgl_tgraph *tg = &v->tg;
  size_t op_count = v->program->op_count;
  mgl_storage *storages = NULL;
  mgl_task_set *before = NULL;
  uint32_t *live = mgl_arena_alloc(&tg->arena, v->graph->tensor_count * sizeof *live);
  uint32_t *settled = NULL;
  const mgl_dim_values dims = mgl_compile_dims(tg->options);
  if (live == NULL || !mgl_find_storages(v->program, &dims, &tg->arena, &storages) ||
      !mgl_find_common_ancestors(tg->ancestors, tg->op_first, op_count, &tg->arena, &tg->scratch,
                                 &before) ||
      !mgl_find_settled(before, op_count, &tg->arena, &settled)) {
    return out_of_memory(v, err);
  }
  for (uint32_t i = 0; i < v->graph->tensor_count; i++) {
    MGL_TRY(check_offset(v, storages, i, err));
  }
  return check_sharing(v, storages, before, live, settled, err);
}

// --- the verifier --------------------------------------------------------------------------------

static mgl_status run_checks(verifier *v, mgl_error *err) {
  MGL_TRY(mgl_check_program(v->program, err));
  MGL_TRY(check_shape(v, err));
  mgl_arena *arena = &v->tg.arena;
  v->number = mgl_arena_alloc(arena, v->graph->task_count * sizeof *v->number);
  v->trigger_sum = mgl_arena_alloc_zeroed(arena, v->graph->event_count, sizeof *v->trigger_sum);
  if (v->number == NULL || v->trigger_sum == NULL) {
    return out_of_memory(v, err);
  }
  MGL_TRY(check_events(v, err));
  MGL_TRY(check_triggers(v, err));
  MGL_TRY(check_aot_lists(v, err));
  MGL_TRY(check_pending(v, err));
  MGL_TRY(number_tasks(v, err));
  MGL_TRY(find_ancestors(v, err));
  MGL_TRY(check_dependencies(v, err));
  return check_storage(v, err);
}

mgl_status mgl_task_graph_verify(const mgl_graph *program, const mgl_task_graph *graph,
                                 mgl_error *err) {
  mgl_compile_options options = {.target = graph->target,
                                 .tokens = graph->tokens,
                                 .logit_rows = graph->logit_rows,
                                 .workers = graph->worker_count};
  verifier v = {.program = program, .graph = graph};
  v.tg.program = program;
  v.tg.options = &options;
  v.tg.strides = graph->attention_strides;
  v.tg.arena.limit = MAX_WORK_BYTES;
  mgl_status status = run_checks(&v, err);
  mgl_arena_free(&v.tg.arena);
  mgl_span_list_free(&v.tg.scratch);
  return status;
}
