// A worker that waits for an event fetches the weights of its next AOT tasks into its cache.
// Weights depend on nothing, and while one worker waits for a slower one, part of the memory's
// bandwidth is free (docs/log/042). The loader of a GPU worker does the same.
//
// Bounded, so that what is fetched stays in a private cache of 1 MiB beside what tasks use. Behind
// the last task of an iteration the list is taken to begin anew: the next iteration is likely to
// run the same graph, and if it does not, some lines were fetched for nothing. Rejected: plain
// loads instead of prefetch instructions (they hold up the poll that ends the wait).
//
// One worker's own; no other thread touches it.
#ifndef MGL_DEVICE_CPU_CPU_LOOKAHEAD_H
#define MGL_DEVICE_CPU_CPU_LOOKAHEAD_H

#include <stddef.h>
#include <stdint.h>

#include "twin/task.h"

enum {
  MGL_LOOKAHEAD_BYTES = 512 << 10,  // fetched before the task runs that they are for, at most
  MGL_LOOKAHEAD_STEP = 512,         // bytes between two polls, at most
};

// Weights of a task in the order in which it reads them: those from byte `from` on, as far as they
// lie in one piece. Returns their bytes, and where they are; 0: there are no more. Any worker may
// call it at any time during a run.
typedef size_t mgl_task_weights(void *context, const mgl_task_graph *graph, const mgl_task *task,
                                size_t from, const void **out);

// All zero at first.
typedef struct mgl_lookahead {
  const mgl_task_graph *graph;  // of the task that started last; NULL before the first
  uint32_t at;                  // position in aot_tasks of the task whose weights come next
  size_t from;                  // bytes of its weights that were fetched
  const unsigned char *piece;   // the next of them
  size_t piece_bytes;           // 0: the piece is still to be asked for
  size_t left;                  // bytes that may be fetched before another task starts
} mgl_lookahead;

// The worker starts the AOT task at `position` of graph->aot_tasks.
void mgl_lookahead_start(mgl_lookahead *lookahead, const mgl_task_graph *graph, uint32_t position);

// The next bytes to fetch, MGL_LOOKAHEAD_STEP at most; 0: none for now.
size_t mgl_lookahead_next(mgl_lookahead *lookahead, uint32_t worker, mgl_task_weights *weights,
                          void *context, const unsigned char **out);

#endif
