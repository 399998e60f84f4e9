// Pass 11, emit: the descriptors of twin/task.h.
//
// Requires: all passes before. Ensures: a task graph that owns its arrays and refers to nothing of
// the compilation; tasks and events in final order, AOT lists ascending.
#include <string.h>

#include "base/alloc.h"
#include "compile/tgraph.h"

enum { MASSIVE_TASKS = 32 };  // with more JIT tasks than this an event is called massive

static bool allocate(const mgl_tgraph *tg, mgl_task_graph *graph) {
  uint32_t all = tg->task_count + tg->empty_count;
  size_t tensor_count = tg->program->tensor_count;
  graph->tasks = mgl_alloc_zeroed(all, sizeof *graph->tasks);
  graph->events = mgl_alloc_zeroed(tg->graph_event_count, sizeof *graph->events);
  graph->aot_start = mgl_alloc_zeroed((size_t)tg->options->workers + 1, sizeof *graph->aot_start);
  graph->aot_tasks = mgl_alloc_zeroed(all, sizeof *graph->aot_tasks);
  graph->activation_offsets = mgl_alloc_zeroed(tensor_count, sizeof *graph->activation_offsets);
  return graph->tasks != NULL && graph->events != NULL && graph->aot_start != NULL &&
         graph->aot_tasks != NULL && graph->activation_offsets != NULL;
}

// final_event: final index of every event.
static void emit_tasks(const mgl_tgraph *tg, const uint32_t *final_event, mgl_task_graph *graph) {
  for (uint32_t i = 0; i < graph->task_count; i++) {
    uint32_t number = tg->order[i];
    const mgl_tg_task *from = &tg->tasks[number];
    mgl_task *to = &graph->tasks[i];
    bool empty = from->op == MGL_NO_OP;
    *to = (mgl_task){
        .type = empty ? UINT16_MAX : (uint16_t)tg->program->ops[from->op].kind,
        .flags = empty ? MGL_TASK_EMPTY : (tg->op_jit[from->op] != 0 ? MGL_TASK_JIT : 0),
        .worker = empty ? MGL_NO_WORKER : tg->worker[number],
        .op = from->op,
        .begin = from->begin,
        .end = from->end,
        .dependent_event = tg->dependent[number] == MGL_NO_EVENT
                               ? MGL_NO_EVENT
                               : final_event[tg->dependent[number]],
        .trigger_event = final_event[tg->trigger[number]],
        .cost = from->cost < UINT32_MAX ? (uint32_t)from->cost : UINT32_MAX,
    };
  }
}

static void emit_events(const mgl_tgraph *tg, mgl_task_graph *graph) {
  for (uint32_t i = 0; i < graph->event_count; i++) {
    mgl_event *event = &graph->events[i];
    uint32_t jit = 0;
    *event = (mgl_event){.trigger_count = tg->trigger_count[tg->event_order[i]],
                         .first_task = tg->event_first[i],
                         .last_task = tg->event_first[i + 1]};
    for (uint32_t task = event->first_task; task < event->last_task; task++) {
      uint16_t flags = graph->tasks[task].flags;
      jit += (flags & MGL_TASK_JIT) != 0;
      event->flags |= (flags & MGL_TASK_EMPTY) != 0 ? MGL_EVENT_HAS_EMPTY
                      : (flags & MGL_TASK_JIT) != 0 ? MGL_EVENT_HAS_JIT
                                                    : MGL_EVENT_HAS_AOT;
      event->flags |= mgl_op_kind_is_exchange(graph->tasks[task].type) ? MGL_EVENT_REMOTE : 0;
    }
    event->type = i == graph->event_count - 1 ? MGL_EVENT_END_OF_TASK_GRAPH
                  : jit > MASSIVE_TASKS       ? MGL_EVENT_LAUNCH_MASSIVE_TASKS
                                              : MGL_EVENT_LAUNCH_TASKS;
  }
}

void mgl_fill_aot_lists(mgl_task_graph *graph) {
  for (uint32_t w = 0; w < graph->worker_count; w++) {
    graph->aot_start[w + 1] += graph->aot_start[w];
  }
  for (uint32_t i = 0; i < graph->task_count; i++) {
    if (graph->tasks[i].worker != MGL_NO_WORKER) {
      graph->aot_tasks[graph->aot_start[graph->tasks[i].worker]++] = i;
    }
  }
  for (uint32_t w = graph->worker_count; w > 0; w--) {  // the cursors stand one list further
    graph->aot_start[w] = graph->aot_start[w - 1];
  }
  graph->aot_start[0] = 0;
}

mgl_status mgl_pass_emit(mgl_tgraph *tg, mgl_task_graph **out, mgl_error *err) {
  uint32_t *final_event = mgl_arena_alloc(&tg->arena, tg->graph_event_count * sizeof *final_event);
  mgl_task_graph *graph = mgl_alloc_zeroed(1, sizeof *graph);
  if (graph == NULL || final_event == NULL || !allocate(tg, graph)) {
    mgl_task_graph_destroy(graph);
    return mgl_out_of_memory(err);
  }
  for (uint32_t i = 0; i < tg->graph_event_count; i++) {
    final_event[tg->event_order[i]] = i;
  }
  graph->target = tg->options->target;
  graph->tokens = tg->options->tokens;
  graph->logit_rows = mgl_compile_dims(tg->options).logit_rows;
  graph->worker_count = tg->options->workers;
  graph->task_count = tg->task_count + tg->empty_count;
  graph->event_count = tg->graph_event_count;
  graph->ready_count = tg->ready_count;
  graph->tensor_count = (uint32_t)tg->program->tensor_count;
  graph->activation_bytes = tg->activation_bytes;
  graph->attention_strides = tg->strides;
  memcpy(graph->activation_offsets, tg->offsets, graph->tensor_count * sizeof *tg->offsets);
  emit_tasks(tg, final_event, graph);
  emit_events(tg, graph);
  for (uint32_t i = 0; i < graph->task_count; i++) {
    if (graph->tasks[i].worker != MGL_NO_WORKER) {
      graph->aot_start[graph->tasks[i].worker + 1]++;
    }
  }
  mgl_fill_aot_lists(graph);
  tg->report.descriptor_bytes =
      graph->task_count * sizeof(mgl_task) + graph->event_count * sizeof(mgl_event) +
      ((uint64_t)graph->worker_count + 1 + graph->aot_start[graph->worker_count]) *
          sizeof(uint32_t);
  *out = graph;
  return MGL_OK;
}
