// Random task graphs that keep the rules of task/protocol_check.h, for testing runtimes.
#ifndef SUPPORT_RANDOM_TASK_GRAPH_H
#define SUPPORT_RANDOM_TASK_GRAPH_H

#include <stdint.h>

#include "twin/task.h"

enum { RANDOM_GRAPH_MAX_TASKS = 160, RANDOM_GRAPH_MAX_GROUPS = 24 };

// A small generator (splitmix64): the same sequence everywhere.
uint64_t splitmix_next(uint64_t *state);
uint32_t splitmix_below(uint64_t *state, uint32_t bound);  // [0, bound)

typedef enum random_labels { RANDOM_AOT, RANDOM_JIT, RANDOM_HYBRID } random_labels;

typedef struct random_task_graph {
  mgl_task_graph graph;  // its arrays are the ones below
  // The tasks that are not empty and that task i has to see finished: preds[pred_start[i]) ...
  // directly, or through empty tasks.
  uint32_t *pred_start;
  uint32_t *preds;
  uint32_t work_count;  // tasks that are not empty
} random_task_graph;

// A DAG of up to max_groups groups of tasks that wait for one event each. Tasks trigger events of
// later groups; some tasks are empty, some events massive, dependent or EMPTY.
random_task_graph *random_task_graph_create(uint64_t *state, uint32_t workers, uint32_t max_groups,
                                            random_labels labels);
void random_task_graph_destroy(random_task_graph *graph);  // NULL is fine

#endif
