// The contracts of the passes, checked right after each one (options->verify). What can only be
// judged of the whole, the verifier proves of the result (verify.c).
#include <stdlib.h>
#include <string.h>

#include "compile/tgraph.h"

static mgl_status broken(mgl_error *err, const char *pass, const char *what, uint32_t where) {
  return mgl_error_set(err, MGL_ERR_INTERNAL, "compiler pass %s: %s (at %u)", pass, what, where);
}

static mgl_status check_partition(const mgl_tgraph *tg, mgl_error *err) {
  for (uint32_t op = 0; op < tg->program->op_count; op++) {
    uint32_t next = 0;
    for (uint32_t task = tg->op_first[op]; task < tg->op_first[op + 1]; task++) {
      if (tg->tasks[task].op != op || tg->tasks[task].begin != next ||
          tg->tasks[task].end <= next) {
        return broken(err, "partition", "tiles must follow each other", task);
      }
      next = tg->tasks[task].end;
    }
    if (next !=
        mgl_tile_units(tg->program, &tg->program->ops[op], tg->options->tokens, tg->strides)) {
      return broken(err, "partition", "tiles must cover an op's units", op);
    }
  }
  return MGL_OK;
}

static mgl_status check_depend(const mgl_tgraph *tg, mgl_error *err) {
  for (uint32_t task = 0; task < tg->task_count; task++) {
    mgl_task_set set = tg->producers[task];
    for (uint32_t i = 0; i < set.span_count; i++) {
      if (set.spans[i].first >= set.spans[i].last ||
          (i > 0 && set.spans[i].first <= set.spans[i - 1].last) ||
          set.spans[i].last > tg->op_first[tg->tasks[task].op]) {
        return broken(err, "depend", "producers must be ascending tasks of earlier ops", task);
      }
    }
  }
  return MGL_OK;
}

// Events by the hash of their InTasks.
typedef struct hashed {
  uint64_t hash;
  uint32_t event;
} hashed;

static int compare_hashes(const void *a, const void *b) {
  const hashed *x = a;
  const hashed *y = b;
  return (x->hash > y->hash) - (x->hash < y->hash);
}

// OutTasks are disjoint, and so not equal, if their sizes add up to the tasks that wait.
static mgl_status check_fuse(mgl_tgraph *tg, const char *pass, mgl_error *err) {
  hashed *order = mgl_arena_alloc(&tg->arena, tg->event_count * sizeof *order);
  if (order == NULL) {
    return mgl_out_of_memory(err);
  }
  uint64_t out_tasks = 0;
  for (uint32_t event = 0; event < tg->event_count; event++) {
    order[event] = (hashed){mgl_task_set_hash(tg->events[event].in), event};
    out_tasks += mgl_task_set_size(tg->events[event].out);
    if (tg->events[event].in.span_count == 0 || tg->events[event].out.span_count == 0) {
      return broken(err, pass, "an event must have triggers and waiters", event);
    }
  }
  qsort(order, tg->event_count, sizeof *order, compare_hashes);
  for (uint32_t i = 1; i < tg->event_count; i++) {
    for (uint32_t j = i; j > 0 && order[j - 1].hash == order[i].hash; j--) {
      if (mgl_task_set_equal(tg->events[order[i].event].in, tg->events[order[j - 1].event].in)) {
        return broken(err, pass, "two events have equal InTasks", order[i].event);
      }
    }
  }
  for (uint32_t task = 0; task < tg->task_count; task++) {
    uint32_t wait = tg->wait[task];
    bool waits = wait != MGL_NO_EVENT;
    out_tasks -= waits;
    if (waits ? !mgl_task_set_equal(tg->events[wait].in, tg->producers[task]) ||
                    !mgl_task_set_contains(tg->events[wait].out, task, task + 1)
              : tg->producers[task].span_count != 0) {
      return broken(err, pass, "a task must wait for exactly its producers", task);
    }
  }
  return out_tasks == 0 ? MGL_OK : broken(err, pass, "OutTasks must be disjoint", 0);
}

// Nothing is left that something else implies, and nothing was lost.
static mgl_status check_prune(const mgl_tgraph *tg, mgl_error *err) {
  for (uint32_t event = 0; event < tg->event_count; event++) {
    mgl_task_set in = tg->events[event].in;
    const mgl_span *previous = NULL;
    for (uint32_t i = 0; i < in.span_count; i++) {
      for (uint32_t task = in.spans[i].first; task < in.spans[i].last; task++) {
        mgl_task_set before = tg->ancestors[task];
        if (before.spans == previous) {
          continue;
        }
        previous = before.spans;
        for (uint32_t j = 0; j < in.span_count; j++) {
          for (uint32_t k = 0; k < before.span_count; k++) {
            if (in.spans[j].first < before.spans[k].last &&
                before.spans[k].first < in.spans[j].last) {
              return broken(err, "prune", "an implied producer is left", task);
            }
          }
        }
        mgl_span first_out = tg->events[event].out.spans[0];
        if (!mgl_task_set_is_subset(before, tg->ancestors[first_out.first])) {
          return broken(err, "prune", "an ancestor was lost", first_out.first);
        }
      }
    }
  }
  return MGL_OK;
}

static mgl_status check_normalise(const mgl_tgraph *tg, mgl_error *err) {
  uint64_t triggers = 0;
  for (uint32_t event = 0; event < tg->graph_event_count; event++) {
    if (tg->trigger_count[event] == 0) {
      return broken(err, "normalise", "nothing triggers an event", event);
    }
    triggers += tg->trigger_count[event];
  }
  for (uint32_t task = 0; task < tg->task_count + tg->empty_count; task++) {
    bool empty = task >= tg->task_count;
    if (tg->trigger[task] >= tg->graph_event_count ||
        (empty ? tg->dependent[task] >= tg->graph_event_count - 1
               : tg->dependent[task] != tg->wait[task])) {
      return broken(err, "normalise", "a task must wait for its event and trigger one", task);
    }
  }
  return triggers == (uint64_t)tg->task_count + tg->empty_count
             ? MGL_OK
             : broken(err, "normalise", "every task must trigger one event", 0);
}

static mgl_status check_linearise(mgl_tgraph *tg, mgl_error *err) {
  uint32_t all = tg->task_count + tg->empty_count;
  unsigned char *seen = mgl_arena_alloc_zeroed(&tg->arena, all, 1);
  if (seen == NULL) {
    return mgl_out_of_memory(err);
  }
  for (uint32_t i = 0; i < all; i++) {
    if (tg->order[i] >= all || seen[tg->order[i]]++ != 0) {
      return broken(err, "linearise", "every task must be placed once", i);
    }
  }
  return MGL_OK;
}

static mgl_status check_place(const mgl_tgraph *tg, mgl_error *err) {
  for (uint32_t task = 0; task < tg->task_count; task++) {
    bool jit = tg->op_jit[tg->tasks[task].op] != 0;
    if (jit ? tg->worker[task] != MGL_NO_WORKER : tg->worker[task] >= tg->options->workers) {
      return broken(err, "place", "exactly AOT tasks must have a worker", task);
    }
  }
  return MGL_OK;
}

mgl_status mgl_check_pass(mgl_tgraph *tg, const char *pass, mgl_error *err) {
  if (strcmp(pass, "partition") == 0) {
    return check_partition(tg, err);
  }
  if (strcmp(pass, "depend") == 0) {
    return check_depend(tg, err);
  }
  if (strcmp(pass, "fuse_events") == 0 || strcmp(pass, "fuse_pruned") == 0 ||
      strcmp(pass, "widen") == 0) {
    return check_fuse(tg, pass, err);
  }
  if (strcmp(pass, "prune") == 0) {
    return check_prune(tg, err);
  }
  if (strcmp(pass, "normalise") == 0) {
    return check_normalise(tg, err);
  }
  if (strcmp(pass, "linearise") == 0) {
    return check_linearise(tg, err);
  }
  if (strcmp(pass, "place") == 0) {
    return check_place(tg, err);
  }
  return MGL_OK;  // label has no other contract; lay_out and emit are the verifier's
}
