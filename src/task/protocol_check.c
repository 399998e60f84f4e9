// Four passes over tasks and events: ranges, counts, AOT lists, and one in reverse linear order
// that finds what leads to the end and how deep empty tasks cascade.
#include "task/protocol_check.h"

#include <stdbool.h>

#include "base/alloc.h"
#include "twin/protocol.h"

static bool is_dependent(const mgl_event *event) {
  return event->type == MGL_EVENT_LAUNCH_DEPENDENT_TASKS;
}

// A counter that nothing of the same iteration waits for.
static bool is_leaf(const mgl_event *event) {
  return event->type == MGL_EVENT_EMPTY || is_dependent(event);
}

static mgl_status check_task(const mgl_task_graph *g, uint32_t i, mgl_error *err) {
  const mgl_task *task = &g->tasks[i];
  uint32_t d = task->dependent_event;
  bool empty = (task->flags & MGL_TASK_EMPTY) != 0;
  bool jit = (task->flags & MGL_TASK_JIT) != 0;
  if (task->trigger_event >= g->event_count || (d != MGL_NO_EVENT && d >= g->event_count)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "task %u: expected events below %u, found %u and %u",
                         i, g->event_count, d, task->trigger_event);
  }
  if ((d == MGL_NO_EVENT) != (i < g->ready_count)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "task %u: expected that tasks below %u, and only they, wait for no event",
                         i, g->ready_count);
  }
  if (empty && (jit || d == MGL_NO_EVENT || is_leaf(&g->events[d]))) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "task %u: an empty task cannot be JIT, ready, or launched dependently", i);
  }
  if (d != MGL_NO_EVENT && (i < g->events[d].first_task || i >= g->events[d].last_task)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "task %u: waits for event %u, whose tasks are [%u, %u)", i, d,
                         g->events[d].first_task, g->events[d].last_task);
  }
  if (!empty && is_leaf(&g->events[task->trigger_event])) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "task %u: only empty tasks may trigger event %u, for which nothing of the "
                         "same iteration waits",
                         i, task->trigger_event);
  }
  if (!empty && !jit && task->worker >= g->worker_count) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "task %u: expected a worker below %u, found %u", i,
                         g->worker_count, task->worker);
  }
  return MGL_OK;
}

// triggers[event]: how many tasks trigger it; last_trigger: the index behind the last of them.
static mgl_status check_event(const mgl_task_graph *g, uint32_t e, uint32_t triggers,
                              uint32_t last_trigger, mgl_error *err) {
  const mgl_event *event = &g->events[e];
  bool last = e + 1 == g->event_count;
  bool ends = mgl_is_end(event);
  if (event->type > MGL_EVENT_LAUNCH_DEPENDENT_TASKS || ends != last) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "event %u of %u has type %u: expected the end at the last one only", e,
                         g->event_count, event->type);
  }
  if (event->first_task > event->last_task || event->last_task > g->task_count ||
      ((ends || event->type == MGL_EVENT_EMPTY) && event->first_task != event->last_task)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "event %u (type %u): bad tasks [%u, %u) of %u", e,
                         event->type, event->first_task, event->last_task, g->task_count);
  }
  if (event->trigger_count != triggers ||
      (triggers == 0 && (ends || event->first_task != event->last_task))) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "event %u: %u tasks trigger it, its trigger count is %u", e, triggers,
                         event->trigger_count);
  }
  unsigned flags = 0;
  for (uint32_t i = event->first_task; i < event->last_task; i++) {
    bool empty = (g->tasks[i].flags & MGL_TASK_EMPTY) != 0;
    bool jit = (g->tasks[i].flags & MGL_TASK_JIT) != 0;
    flags |= empty ? MGL_EVENT_HAS_EMPTY : jit ? MGL_EVENT_HAS_JIT : MGL_EVENT_HAS_AOT;
    flags |= event->flags & MGL_EVENT_REMOTE;
    if (g->tasks[i].dependent_event != e) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "event %u: its task %u waits for event %u", e, i,
                           g->tasks[i].dependent_event);
    }
  }
  if ((flags & MGL_EVENT_REMOTE) != 0 && flags != (MGL_EVENT_HAS_AOT | MGL_EVENT_REMOTE)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "event %u: expected AOT tasks only behind triggers of other ranks", e);
  }
  if (event->flags != flags) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "event %u: expected flags %u, found %u", e, flags,
                         event->flags);
  }
  if (!is_dependent(event) && event->first_task < event->last_task &&
      last_trigger > event->first_task) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "event %u: task %u triggers it but stands behind its first task %u", e,
                         last_trigger - 1, event->first_task);
  }
  return MGL_OK;
}

static mgl_status check_lists(const mgl_task_graph *g, mgl_error *err) {
  uint32_t aot_count = 0;
  for (uint32_t i = 0; i < g->task_count; i++) {
    aot_count += (g->tasks[i].flags & (MGL_TASK_EMPTY | MGL_TASK_JIT)) == 0 ? 1 : 0;
  }
  if (g->aot_start[0] != 0 || g->aot_start[g->worker_count] != aot_count) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "AOT lists: expected 0 to %u entries for as many AOT tasks, found %u to "
                         "%u",
                         aot_count, g->aot_start[0], g->aot_start[g->worker_count]);
  }
  // Ascending, in range and of this worker: as many entries as AOT tasks are all of them, once.
  for (uint32_t w = 0; w < g->worker_count; w++) {
    if (g->aot_start[w] > g->aot_start[w + 1] || g->aot_start[w + 1] > aot_count) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "AOT list of worker %u: bad range", w);
    }
    for (uint32_t at = g->aot_start[w]; at < g->aot_start[w + 1]; at++) {
      uint32_t i = g->aot_tasks[at];
      if (i >= g->task_count || g->tasks[i].worker != w ||
          (g->tasks[i].flags & (MGL_TASK_EMPTY | MGL_TASK_JIT)) != 0 ||
          (at > g->aot_start[w] && g->aot_tasks[at - 1] >= i)) {
        return mgl_error_set(err, MGL_ERR_FORMAT,
                             "AOT list of worker %u: entry %u is not an AOT task of this worker in "
                             "ascending order",
                             w, i);
      }
    }
  }
  return MGL_OK;
}

// ways[e]: LEADS if event e leads to the end, plus the most triggers that are pending at once when
// empty tasks cascade from it. Its tasks stand behind the tasks that trigger it, so one pass over
// tasks in descending order sees every event after all events behind it.
#define LEADS (1u << 31)

static mgl_status check_ways(const mgl_task_graph *g, uint32_t *ways, mgl_error *err) {
  for (uint32_t e = 0; e < g->event_count; e++) {
    ways[e] = mgl_is_end(&g->events[e]) ? LEADS | 1 : 1;
  }
  for (uint32_t i = g->task_count; i-- > 0;) {
    const mgl_task *task = &g->tasks[i];
    bool empty = (task->flags & MGL_TASK_EMPTY) != 0;
    uint32_t leads = ways[task->trigger_event] & LEADS;
    if (leads == 0 && !(empty && is_leaf(&g->events[task->trigger_event]))) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "task %u: does not lead to the end of the graph",
                           i);
    }
    uint32_t d = task->dependent_event;
    if (d == MGL_NO_EVENT || is_leaf(&g->events[d])) {
      continue;
    }
    ways[d] |= leads;
    if (!empty) {
      continue;
    }
    // While one of an event's n empty tasks is resolved, at most n - 1 others are pending.
    uint32_t siblings = g->events[d].last_task - g->events[d].first_task;
    uint32_t pending = siblings - 1 + (ways[task->trigger_event] & ~LEADS);
    if (pending > MGL_MAX_PENDING) {
      return mgl_error_set(err, MGL_ERR_LIMIT,
                           "event %u: empty tasks behind it set off up to %u triggers at once; the "
                           "limit is %d",
                           d, pending, MGL_MAX_PENDING);
    }
    ways[d] = (pending > (ways[d] & ~LEADS) ? pending : (ways[d] & ~LEADS)) | (ways[d] & LEADS);
  }
  return MGL_OK;
}

mgl_status mgl_protocol_check(const mgl_task_graph *graph, mgl_error *err) {
  if (graph->task_count == 0 || graph->event_count == 0 || graph->worker_count == 0 ||
      graph->ready_count > graph->task_count ||
      (graph->task_count | graph->event_count) >> MGL_ID_INDEX_BITS != 0) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "task graph: expected 1 to 2^%d tasks and events, found %u (%u ready) and "
                         "%u, for %u workers",
                         MGL_ID_INDEX_BITS, graph->task_count, graph->ready_count,
                         graph->event_count, graph->worker_count);
  }
  uint32_t *triggers = mgl_alloc_zeroed(graph->event_count, sizeof *triggers);
  uint32_t *scratch = mgl_alloc_zeroed(graph->event_count, sizeof *scratch);
  mgl_status status = MGL_OK;
  if (triggers == NULL || scratch == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for checking %u events",
                           graph->event_count);
  }
  for (uint32_t i = 0; status == MGL_OK && i < graph->task_count; i++) {
    status = check_task(graph, i, err);
    if (status == MGL_OK) {
      triggers[graph->tasks[i].trigger_event]++;
      scratch[graph->tasks[i].trigger_event] = i + 1;
    }
  }
  for (uint32_t e = 0; status == MGL_OK && e < graph->event_count; e++) {
    status = check_event(graph, e, triggers[e], scratch[e], err);
  }
  if (status == MGL_OK) {
    status = check_lists(graph, err);
  }
  if (status == MGL_OK) {
    status = check_ways(graph, scratch, err);
  }
  mgl_free(triggers);
  mgl_free(scratch);
  return status;
}

uint32_t mgl_protocol_jit_tasks(const mgl_task_graph *graph, uint32_t *out) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < graph->task_count; i++) {
    if ((graph->tasks[i].flags & MGL_TASK_JIT) == 0) {
      continue;
    }
    if (out != NULL) {
      out[count] = i;
    }
    count++;
  }
  return count;
}
