// Task graphs of a few tasks, written by hand, without heap.
#ifndef SUPPORT_SMALL_GRAPH_H
#define SUPPORT_SMALL_GRAPH_H

#include <stdint.h>

#include "twin/task.h"

enum { SMALL_TASKS = 24, SMALL_EVENTS = 12, SMALL_WORKERS = 8, SMALL_END = 99, SMALL_READY = -1 };

typedef struct small_task {
  char kind;    // 'a' AOT, 'j' JIT, 'e' empty
  int after;    // the event that it waits for, or SMALL_READY
  int trigger;  // the event that it triggers, or SMALL_END
  int worker;   // of an AOT task
} small_task;

typedef struct small_graph {
  mgl_task_graph graph;
  mgl_task tasks[SMALL_TASKS];
  mgl_event events[SMALL_EVENTS];
  uint32_t aot_start[SMALL_WORKERS + 1];
  uint32_t aot_tasks[SMALL_TASKS];
} small_graph;

// Tasks in linear order, those behind one event next to each other; kind 0 ends the list. types:
// mgl_event_type of each event, the end included. Counts, ranges, flags and lists follow.
void small_graph_init(small_graph *out, uint32_t workers, const small_task *tasks,
                      uint32_t event_count, const uint16_t *types);

#endif
