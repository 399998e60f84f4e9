#include "device/cpu/cpu_lookahead.h"

// Tasks without weights that one call passes over: more of them in a row wait for the next call, so
// that a poll is never far away.
enum { MOST_TASKS = 4 };

void mgl_lookahead_start(mgl_lookahead *l, const mgl_task_graph *graph, uint32_t position) {
  if (l->graph != graph || l->at <= position) {
    *l = (mgl_lookahead){.graph = graph, .at = position + 1, .left = MGL_LOOKAHEAD_BYTES};
  }
  // Otherwise the weights of this task were passed, and what was fetched for later ones still
  // counts.
}

size_t mgl_lookahead_next(mgl_lookahead *l, uint32_t worker, mgl_task_weights *weights,
                          void *context, const unsigned char **out) {
  if (l->graph == NULL || l->left == 0) {
    return 0;
  }
  const mgl_task_graph *graph = l->graph;
  uint32_t begin = graph->aot_start[worker];
  uint32_t end = graph->aot_start[worker + 1];
  for (uint32_t i = 0; begin < end && i < MOST_TASKS && l->piece_bytes == 0; i++) {
    if (l->at >= end) {
      l->at = begin;
      l->from = 0;
    }
    const void *piece = NULL;
    l->piece_bytes =
        weights(context, graph, &graph->tasks[graph->aot_tasks[l->at]], l->from, &piece);
    l->piece = piece;
    if (l->piece_bytes == 0) {
      l->at++;
      l->from = 0;
    }
  }
  size_t bytes = l->piece_bytes < MGL_LOOKAHEAD_STEP ? l->piece_bytes : MGL_LOOKAHEAD_STEP;
  bytes = bytes < l->left ? bytes : l->left;
  *out = l->piece;
  if (bytes > 0) {
    l->piece += bytes;
    l->piece_bytes -= bytes;
    l->from += bytes;
    l->left -= bytes;
  }
  return bytes;
}
