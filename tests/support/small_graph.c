#include "support/small_graph.h"

#include <assert.h>
#include <string.h>

static void add_task(small_graph *out, uint32_t i, const small_task *spec, uint32_t end) {
  mgl_task *task = &out->tasks[i];
  uint32_t trigger = spec->trigger == SMALL_END ? end : (uint32_t)spec->trigger;
  task->type = 1;
  task->flags = spec->kind == 'j' ? MGL_TASK_JIT : spec->kind == 'e' ? MGL_TASK_EMPTY : 0;
  task->worker = spec->kind == 'a' ? (uint16_t)spec->worker : MGL_NO_WORKER;
  task->op = spec->kind == 'e' ? MGL_NO_OP : i;
  task->begin = i;
  task->end = i + 1;
  task->trigger_event = trigger;
  task->dependent_event = MGL_NO_EVENT;
  out->events[trigger].trigger_count++;
  if (spec->after == SMALL_READY) {
    out->graph.ready_count++;
    return;
  }
  mgl_event *event = &out->events[spec->after];
  task->dependent_event = (uint32_t)spec->after;
  if (event->last_task == 0) {
    event->first_task = i;
  }
  event->last_task = i + 1;
  event->flags |= spec->kind == 'j'   ? MGL_EVENT_HAS_JIT
                  : spec->kind == 'e' ? MGL_EVENT_HAS_EMPTY
                                      : MGL_EVENT_HAS_AOT;
}

void small_graph_init(small_graph *out, uint32_t workers, const small_task *tasks,
                      uint32_t event_count, const uint16_t *types) {
  assert(event_count <= SMALL_EVENTS && workers <= SMALL_WORKERS);
  memset(out, 0, sizeof *out);
  mgl_task_graph *g = &out->graph;
  g->tokens = 1;
  g->worker_count = workers;
  g->event_count = event_count;
  g->tasks = out->tasks;
  g->events = out->events;
  g->aot_start = out->aot_start;
  g->aot_tasks = out->aot_tasks;
  for (uint32_t e = 0; e < event_count; e++) {
    out->events[e].type = types[e];
  }
  for (; tasks[g->task_count].kind != 0; g->task_count++) {
    assert(g->task_count < SMALL_TASKS);
    add_task(out, g->task_count, &tasks[g->task_count], event_count - 1);
  }
  uint32_t at = 0;
  for (uint32_t w = 0; w < workers; w++) {
    out->aot_start[w] = at;
    for (uint32_t i = 0; i < g->task_count; i++) {
      if (out->tasks[i].flags == 0 && out->tasks[i].worker == w) {
        out->aot_tasks[at++] = i;
      }
    }
  }
  out->aot_start[workers] = at;
}
