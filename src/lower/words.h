// Which waits of a task graph the words of activations stand for (words.c).
#ifndef MGL_LOWER_WORDS_H
#define MGL_LOWER_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/graph.h"
#include "twin/task.h"

// True if a graph of the program may be a carrying one (twin/device_run.h): it is for few tokens,
// has no JIT task, no op whose result is not written as words though others wait for it, no event
// that orders more than words do, and behind all that a worker writes there is an event between two
// iterations that it triggers.
bool mgl_words_carry(const mgl_graph *program, const mgl_task_graph *graph);

// These ask of a carrying graph whether nobody needs the event's count, since all that wait for it
// wait for words; and whether a task writes such words.
bool mgl_words_replace_event(const mgl_task_graph *graph, uint32_t event);
bool mgl_words_are_written(const mgl_task *task);

#endif
