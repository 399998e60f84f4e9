// The verifier of schedules: proves, from nothing but the program, that running a schedule computes
// it, whatever lowering made it.
//
//   ops      the schedule's ops are the program's: each is computed once, with the units it has
//   tiles    the steps of an op cut its units without gap or overlap; a tile of several steps is
//            shared as its kernel asks, so that nobody waits for ever (twin/wide_run.h)
//   waits    steps wait in the manner of their lowering
//   lists    a step is in its worker's list, and in no other; lists ascend
//   order    an event counts the steps that trigger it, and all of them stand before the steps that
//            wait for it; so do the steps that write what a step waits for by words. Since lists
//            ascend too, something can always run
//   values   in the order of the ops, what an op reads is what it expects: the value that the
//            program gives it, not one that has been overwritten or is not there yet
//   ordered  of every two accesses that conflict, the one that stands first in that order has
//            happened before the other. So running in parallel gives what that order gives
//   words    what is awaited by words is written by steps that write words; and behind all that a
//            worker writes it triggers an event, so that words can be made open again
//
// Not proven here: that a task graph's activations share bytes only where they may
// (mgl_task_graph_verify), and what a device does between iterations.
#include <string.h>

#include "compile/tgraph.h"
#include "lower/lower_parts.h"
#include "lower/stages.h"
#include "lower/verify_parts.h"

#define MAX_WORK_BYTES ((size_t)2 << 30)  // of one verification

mgl_status mgl_schedule_wrong(mgl_error *err, const char *what, uint64_t where, uint64_t found) {
  return mgl_error_set(err, MGL_ERR_FORMAT, "schedule: %s (at %llu, found %llu)", what,
                       (unsigned long long)where, (unsigned long long)found);
}

mgl_status mgl_verifier_out_of_memory(const mgl_verifier *v, mgl_error *err) {
  return v->arena.over_limit
             ? mgl_error_set(err, MGL_ERR_LIMIT, "schedule: needs more than %zu MiB to verify",
                             MAX_WORK_BYTES >> 20)
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory verifying a schedule");
}

// --- accesses ------------------------------------------------------------------------------------

static mgl_status find_accesses(mgl_verifier *v, mgl_error *err) {
  uint64_t total = 0;
  mgl_access found[MGL_ACCESS_MAX];
  for (uint32_t pass = 0; pass < 2; pass++) {
    total = 0;
    for (uint32_t i = 0; i < v->count; i++) {
      mgl_numbered_step *n = &v->steps[i];
      uint32_t count = mgl_schedule_accesses(v->program, v->s, n->op, n->begin, n->end, found);
      n->first_access = (uint32_t)total;
      n->access_count = count;
      if (v->accesses != NULL) {
        memcpy(v->accesses + total, found, count * sizeof *found);
      }
      total += count;
    }
    if (v->accesses == NULL) {
      v->accesses = total > UINT32_MAX
                        ? NULL
                        : mgl_arena_alloc_zeroed(&v->arena, (size_t)total, sizeof *v->accesses);
    }
    if (v->accesses == NULL) {
      return mgl_verifier_out_of_memory(v, err);
    }
  }
  return MGL_OK;
}

static bool overlap(const mgl_access *a, const mgl_access *b) {
  return a->buffer == b->buffer && a->row_begin < b->row_end && b->row_begin < a->row_end &&
         a->column_begin < b->column_end && b->column_begin < a->column_end;
}

// Whether two steps have accesses that conflict; writes_only: those of `a` that b reads.
static bool conflict(const mgl_verifier *v, const mgl_numbered_step *a, const mgl_numbered_step *b,
                     bool reads_only) {
  for (uint32_t i = 0; i < a->access_count; i++) {
    const mgl_access *x = &v->accesses[a->first_access + i];
    for (uint32_t j = 0; j < b->access_count; j++) {
      const mgl_access *y = &v->accesses[b->first_access + j];
      bool counts = reads_only ? x->writes && !y->writes : x->writes || y->writes;
      if (counts && overlap(x, y)) {
        return true;
      }
    }
  }
  return false;
}

// --- order ---------------------------------------------------------------------------------------

// Adds the steps whose words a step reads, and what has happened before them.
static mgl_status add_writers(mgl_verifier *v, uint32_t number, mgl_error *err) {
  const mgl_numbered_step *n = &v->steps[number];
  for (uint32_t op = 0; op < n->op; op++) {
    uint32_t last = v->op_first[op + 1];
    const mgl_span *added = NULL;
    // Only ops whose result, or KV cache, this one reads.
    bool reads = false;
    for (uint32_t i = 0; i < n->access_count && !reads; i++) {
      const mgl_access *access = &v->accesses[n->first_access + i];
      reads = !access->writes && access->buffer == v->program->ops[v->s->ops[op].op].output;
    }
    for (uint32_t i = v->op_first[op]; reads && i < last; i++) {
      if (!conflict(v, &v->steps[i], n, true)) {
        continue;
      }
      if (v->steps[i].step >= n->step) {
        return mgl_schedule_wrong(err, "what is awaited by words must stand before who waits",
                                  n->step, v->steps[i].step);
      }
      bool more = v->ancestors[i].spans != added || added == NULL;
      if (!mgl_span_list_add(&v->scratch, i, i + 1) ||
          (more && !mgl_span_list_add_set(&v->scratch, v->ancestors[i]))) {
        return mgl_verifier_out_of_memory(v, err);
      }
      added = v->ancestors[i].spans;
    }
  }
  return MGL_OK;
}

static mgl_status find_step_ancestors(mgl_verifier *v, uint32_t idx, mgl_task_set *out,
                                      mgl_error *err) {
  const mgl_schedule_step *step = &v->s->steps[idx];
  *out = (mgl_task_set){0};
  if (step->wait == MGL_WAIT_NOTHING || step->wait == MGL_WAIT_WORDS) {
    if (step->event != MGL_NO_EVENT) {
      return mgl_schedule_wrong(err, "a step that waits for no event must name none", idx,
                                step->event);
    }
    if (step->wait == MGL_WAIT_NOTHING) {
      return MGL_OK;
    }
    if (v->s->lowering != MGL_LOWER_WORDS || v->number[idx] == MGL_NO_OP) {
      return mgl_schedule_wrong(err, "only words can be awaited without an event", idx, step->wait);
    }
    MGL_TRY(add_writers(v, v->number[idx], err));
    return mgl_span_list_take(&v->scratch, &v->arena, out) ? MGL_OK
                                                           : mgl_verifier_out_of_memory(v, err);
  }
  if (step->event >= v->s->event_count || step->wait > MGL_WAIT_KERNEL) {
    return mgl_schedule_wrong(err, "a step must wait for an event of the schedule", idx,
                              step->event);
  }
  if (v->triggers[step->event] != v->s->events[step->event].trigger_count ||
      v->triggers[step->event] == 0) {
    return mgl_schedule_wrong(err, "all that trigger an event must stand before who waits for it",
                              idx, v->triggers[step->event]);
  }
  mgl_span_list *gathered = &v->gathered[step->event];
  if (gathered->count > 0 && !mgl_span_list_take(gathered, &v->arena, &v->before[step->event])) {
    return mgl_verifier_out_of_memory(v, err);
  }
  *out = v->before[step->event];
  return MGL_OK;
}

static mgl_status trigger_event(mgl_verifier *v, uint32_t idx, uint32_t event,
                                mgl_task_set ancestors, mgl_error *err) {
  if (event >= v->s->event_count) {
    return mgl_schedule_wrong(err, "a step must trigger an event of the schedule", idx, event);
  }
  if (++v->triggers[event] > v->s->events[event].trigger_count) {
    return mgl_schedule_wrong(err, "an event must count the steps that trigger it", event,
                              v->triggers[event]);
  }
  uint32_t number = v->number[idx];
  bool added = number == MGL_NO_OP || mgl_span_list_add(&v->gathered[event], number, number + 1);
  return added && mgl_span_list_add_set(&v->gathered[event], ancestors)
             ? MGL_OK
             : mgl_verifier_out_of_memory(v, err);
}

// In stages of several ranks, what the other ranks' copy of a step triggers here stands for what
// this one's step triggers there, and what it writes here for what this one's writes there.
static mgl_status trigger(mgl_verifier *v, uint32_t idx, mgl_task_set ancestors, mgl_error *err) {
  const mgl_schedule_step *step = &v->s->steps[idx];
  const bool stages = v->s->lowering == MGL_LOWER_STAGES;
  const uint32_t others =
      stages ? mgl_stages_others(&v->s->ops[step->op], step->trigger) : MGL_NO_EVENT;
  if (step->trigger == MGL_NO_EVENT) {
    return MGL_OK;
  }
  MGL_TRY(trigger_event(v, idx, step->trigger, ancestors, err));
  return others == MGL_NO_EVENT || others == step->trigger
             ? MGL_OK
             : trigger_event(v, idx, others, ancestors, err);
}

static mgl_status find_ancestors(mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  v->before = mgl_arena_alloc_zeroed(&v->arena, s->event_count, sizeof *v->before);
  v->triggers = mgl_arena_alloc_zeroed(&v->arena, s->event_count, sizeof *v->triggers);
  v->gathered = mgl_arena_alloc_zeroed(&v->arena, s->event_count, sizeof *v->gathered);
  v->ancestors = mgl_arena_alloc_zeroed(&v->arena, v->count, sizeof *v->ancestors);
  if (v->before == NULL || v->triggers == NULL || v->gathered == NULL || v->ancestors == NULL) {
    v->gathered = NULL;
    return mgl_verifier_out_of_memory(v, err);
  }
  for (uint32_t i = 0; i < s->step_count; i++) {
    mgl_task_set ancestors;
    MGL_TRY(find_step_ancestors(v, i, &ancestors, err));
    if (v->number[i] != MGL_NO_OP) {
      v->ancestors[v->number[i]] = ancestors;
    }
    MGL_TRY(trigger(v, i, ancestors, err));
  }
  for (uint32_t i = 0; i < s->event_count; i++) {
    if (v->triggers[i] != s->events[i].trigger_count) {
      return mgl_schedule_wrong(err, "an event must count the steps that trigger it", i,
                                v->triggers[i]);
    }
  }
  uint32_t end = s->event_count - 1;  // the iteration is over
  if (v->gathered[end].count > 0 &&
      !mgl_span_list_take(&v->gathered[end], &v->arena, &v->before[end])) {
    return mgl_verifier_out_of_memory(v, err);
  }
  return mgl_task_set_contains(v->before[end], 0, v->count)
             ? MGL_OK
             : mgl_schedule_wrong(err,
                                  "every step must have happened when the last event is activated",
                                  end, mgl_task_set_size(v->before[end]));
}

// --- values --------------------------------------------------------------------------------------

static mgl_status check_values(mgl_verifier *v, mgl_error *err) {
  uint32_t buffers = mgl_access_buffers(v->program, v->s);
  uint64_t *holds = mgl_arena_alloc(&v->arena, buffers * sizeof *holds);
  mgl_access found[MGL_ACCESS_MAX];
  if (holds == NULL) {
    return mgl_verifier_out_of_memory(v, err);
  }
  for (uint32_t i = 0; i < buffers; i++) {
    holds[i] = mgl_access_first_value(v->program, v->s, i);
  }
  for (uint32_t op = 0; op < v->s->op_count; op++) {
    uint32_t count = mgl_schedule_accesses(v->program, v->s, op, 0, v->s->ops[op].units, found);
    for (uint32_t i = 0; i < count; i++) {
      if (!found[i].writes && found[i].value != holds[found[i].buffer]) {
        const mgl_op *of = &v->program->ops[v->s->ops[op].op];
        return mgl_error_set(
            err, MGL_ERR_FORMAT,
            "schedule: op %u, of \"%s\", reads \"%s\" when something else is there", op,
            v->program->tensors[of->output].name,
            mgl_access_buffer_name(v->program, v->s, found[i].buffer));
      }
    }
    for (uint32_t i = 0; i < count; i++) {
      if (found[i].writes) {
        holds[found[i].buffer] = found[i].value;
      }
    }
  }
  return MGL_OK;
}

// --- ordered -------------------------------------------------------------------------------------

static bool have_same_accesses(const mgl_verifier *v, const mgl_numbered_step *a,
                               const mgl_numbered_step *b) {
  bool same = a->access_count == b->access_count;
  for (uint32_t i = 0; i < a->access_count && same; i++) {
    const mgl_access *x = &v->accesses[a->first_access + i];
    const mgl_access *y = &v->accesses[b->first_access + i];
    same = x->buffer == y->buffer && x->row_begin == y->row_begin && x->row_end == y->row_end &&
           x->column_begin == y->column_begin && x->column_end == y->column_end &&
           x->writes == y->writes;
  }
  return same;
}

// Whether one of the steps just before step number b of an op has the same accesses and waits for
// the same: of a linear every so many steps one has the same tokens.
static bool is_repeated(const mgl_verifier *v, uint32_t op, uint32_t b) {
  enum { LOOKS = 16 };
  const uint32_t least = b - v->op_first[op] < LOOKS ? v->op_first[op] : b - LOOKS;
  for (uint32_t i = b; i-- > least;) {
    if (v->ancestors[i].spans == v->ancestors[b].spans &&
        have_same_accesses(v, &v->steps[i], &v->steps[b])) {
      return true;
    }
  }
  return false;
}

static mgl_status check_pair(const mgl_verifier *v, uint32_t first, uint32_t second,
                             mgl_error *err) {
  for (uint32_t b = v->op_first[second]; b < v->op_first[second + 1]; b++) {
    if (is_repeated(v, second, b)) {
      continue;
    }
    for (uint32_t a = v->op_first[first]; a < v->op_first[first + 1]; a++) {
      if (!mgl_task_set_contains(v->ancestors[b], a, a + 1) &&
          conflict(v, &v->steps[a], &v->steps[b], false)) {
        return mgl_error_set(err, MGL_ERR_FORMAT,
                             "schedule: step %u (op %u, units %u to %u) does not wait for step %u "
                             "(op %u, units %u to %u), whose regions meet its own",
                             v->steps[b].step, second, v->steps[b].begin, v->steps[b].end,
                             v->steps[a].step, first, v->steps[a].begin, v->steps[a].end);
      }
    }
  }
  return MGL_OK;
}

// Whether two ops have accesses that may conflict.
static bool may_conflict(const mgl_verifier *v, uint32_t a, uint32_t b) {
  mgl_access x[MGL_ACCESS_MAX];
  mgl_access y[MGL_ACCESS_MAX];
  uint32_t m = mgl_schedule_accesses(v->program, v->s, a, 0, v->s->ops[a].units, x);
  uint32_t n = mgl_schedule_accesses(v->program, v->s, b, 0, v->s->ops[b].units, y);
  for (uint32_t i = 0; i < m; i++) {
    for (uint32_t j = 0; j < n; j++) {
      if (x[i].buffer == y[j].buffer && (x[i].writes || y[j].writes)) {
        return true;
      }
    }
  }
  return false;
}

static mgl_status check_ordered(mgl_verifier *v, mgl_error *err) {
  mgl_task_set *common = NULL;
  if (!mgl_find_common_ancestors(v->ancestors, v->op_first, v->s->op_count, &v->arena, &v->scratch,
                                 &common)) {
    return mgl_verifier_out_of_memory(v, err);
  }
  for (uint32_t second = 0; second < v->s->op_count; second++) {
    for (uint32_t first = second; first-- > 0;) {
      if (!mgl_task_set_contains(common[second], v->op_first[first], v->op_first[first + 1]) &&
          may_conflict(v, first, second)) {
        MGL_TRY(check_pair(v, first, second, err));
      }
    }
  }
  return MGL_OK;
}

// --- words ---------------------------------------------------------------------------------------

static bool writes_words(const mgl_verifier *v, uint32_t op) {
  return mgl_kind_writes_words(v->s->ops[op].kind);
}

static mgl_status check_words(const mgl_verifier *v, mgl_error *err) {
  const mgl_schedule *s = v->s;
  if (s->lowering != MGL_LOWER_WORDS) {
    return MGL_OK;
  }
  for (uint32_t i = 0; i < v->count; i++) {
    const mgl_numbered_step *n = &v->steps[i];
    for (uint32_t j = 0; s->steps[n->step].wait == MGL_WAIT_WORDS && j < n->access_count; j++) {
      const mgl_access *access = &v->accesses[n->first_access + j];
      for (uint32_t op = 0; op < s->op_count && !access->writes; op++) {
        if (v->program->ops[s->ops[op].op].output == access->buffer && !writes_words(v, op)) {
          return mgl_schedule_wrong(err, "what is awaited by words must be written as words",
                                    n->step, op);
        }
      }
    }
  }
  for (uint32_t worker = 0; worker < s->worker_count; worker++) {
    bool covered = true;
    for (uint32_t i = s->list_start[worker]; i < s->list_start[worker + 1]; i++) {
      const mgl_schedule_step *step = &s->steps[s->list[i]];
      covered = step->trigger != MGL_NO_EVENT || (covered && !writes_words(v, step->op));
    }
    if (!covered) {
      return mgl_schedule_wrong(err, "a worker must trigger an event behind all that it writes",
                                worker, 0);
    }
  }
  return MGL_OK;
}

// --- the verifier --------------------------------------------------------------------------------

static mgl_status run_checks(mgl_verifier *v, mgl_error *err) {
  MGL_TRY(mgl_verify_ops(v, err));
  MGL_TRY(find_accesses(v, err));
  MGL_TRY(find_ancestors(v, err));
  MGL_TRY(check_values(v, err));
  MGL_TRY(check_ordered(v, err));
  return check_words(v, err);
}

mgl_status mgl_schedule_verify(const mgl_graph *program, const mgl_schedule *schedule,
                               mgl_error *err) {
  mgl_verifier v = {.program = program, .s = schedule, .arena.limit = MAX_WORK_BYTES};
  mgl_status status = run_checks(&v, err);
  for (uint32_t i = 0; v.gathered != NULL && i < schedule->event_count; i++) {
    mgl_span_list_free(&v.gathered[i]);
  }
  mgl_span_list_free(&v.scratch);
  mgl_arena_free(&v.arena);
  return status;
}
