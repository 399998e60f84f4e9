#include "base/alloc.h"
#include "task/task.h"

void mgl_task_graph_destroy(mgl_task_graph *graph) {
  if (graph != NULL) {
    mgl_free(graph->tasks);
    mgl_free(graph->events);
    mgl_free(graph->aot_start);
    mgl_free(graph->aot_tasks);
    mgl_free(graph->activation_offsets);
    mgl_free(graph);
  }
}
