#include <string.h>

#include "base/alloc.h"
#include "twin/task.h"

static const char *const target_names[] = {[MGL_TARGET_CPU] = "cpu", [MGL_TARGET_CUDA] = "cuda"};

const char *mgl_target_name(mgl_target target) {
  return target_names[target];
}

bool mgl_target_parse(const char *name, mgl_target *out) {
  for (int i = 0; i <= MGL_TARGET_CUDA; i++) {
    if (strcmp(name, target_names[i]) == 0) {
      *out = (mgl_target)i;
      return true;
    }
  }
  return false;
}

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
