#include <string.h>

#include "base/alloc.h"
#include "gpu/gpu_bench.h"

// The workers of neighbouring stages differ, so that every hop goes from one multiprocessor to
// another.
static uint16_t worker_of(const hand_stages *stages, uint32_t stage, uint32_t task) {
  return (uint16_t)((stage * 37 + task) % stages->workers);
}

static void make_tasks(const hand_stages *stages, mgl_task_graph *graph) {
  for (uint32_t i = 0; i < graph->task_count; i++) {
    uint32_t stage = i / stages->width;
    graph->tasks[i] = (mgl_task){
        .type = MGL_OP_EMBED,
        .flags = stages->jit ? MGL_TASK_JIT : 0,
        .worker = stages->jit ? MGL_NO_WORKER : worker_of(stages, stage, i % stages->width),
        .dependent_event = stage == 0 ? MGL_NO_EVENT : stage - 1,
        .trigger_event = stage};
  }
  uint16_t launch = stages->massive ? MGL_EVENT_LAUNCH_MASSIVE_TASKS : MGL_EVENT_LAUNCH_TASKS;
  for (uint32_t i = 0; i < stages->count; i++) {
    bool last = i + 1 == stages->count;
    graph->events[i] = (mgl_event){.type = last ? MGL_EVENT_END_OF_TASK_GRAPH : launch,
                                   .flags = last          ? 0
                                            : stages->jit ? MGL_EVENT_HAS_JIT
                                                          : MGL_EVENT_HAS_AOT,
                                   .trigger_count = stages->width,
                                   .first_task = last ? graph->task_count : (i + 1) * stages->width,
                                   .last_task = last ? graph->task_count : (i + 2) * stages->width};
  }
}

static void make_lists(const hand_stages *stages, mgl_task_graph *graph) {
  uint32_t at = 0;
  for (uint32_t worker = 0; worker < stages->workers; worker++) {
    graph->aot_start[worker] = at;
    for (uint32_t i = 0; i < graph->task_count; i++) {
      if (graph->tasks[i].worker == worker) {
        graph->aot_tasks[at++] = i;
      }
    }
  }
  graph->aot_start[stages->workers] = at;
}

mgl_task_graph *hand_graph_create(const hand_stages *stages) {
  mgl_task_graph *graph = gpu_must_alloc(1, sizeof *graph);
  graph->tokens = 1;
  graph->worker_count = stages->workers;
  graph->task_count = stages->count * stages->width;
  graph->event_count = stages->count;
  graph->ready_count = stages->width;
  graph->tasks = gpu_must_alloc(graph->task_count, sizeof *graph->tasks);
  graph->events = gpu_must_alloc(graph->event_count, sizeof *graph->events);
  graph->aot_start = gpu_must_alloc(stages->workers + (size_t)1, sizeof *graph->aot_start);
  graph->aot_tasks = gpu_must_alloc(graph->task_count, sizeof *graph->aot_tasks);
  graph->tensor_count = 3;  // of the program in hops.c
  graph->activation_offsets = gpu_must_alloc(3, sizeof *graph->activation_offsets);
  graph->activation_bytes = 64 * sizeof(float);
  make_tasks(stages, graph);
  make_lists(stages, graph);
  return graph;
}
