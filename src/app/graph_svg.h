// A picture of a task graph, or of one layer of it, for a browser.
//
// Tasks are boxes in columns, events circles between the columns; what waits stands right of what
// it waits for. A task's column is one more than the latest column of the tasks shown that trigger
// its event, its row follows theirs. Colour says the kind of op, hatching JIT, a red outline the
// critical path; hovering shows all of a descriptor. Rejected: dot, which takes minutes for a graph
// of thousands of edges and is one more thing to install.
#ifndef MGL_APP_GRAPH_SVG_H
#define MGL_APP_GRAPH_SVG_H

#include "base/status.h"
#include "base/text.h"
#include "graph/graph.h"
#include "task/analyse.h"
#include "twin/task.h"

enum { MGL_GRAPH_SVG_MAX_TASKS = 400 };  // more than that is no picture any more
#define MGL_GRAPH_SVG_ALL UINT32_MAX     // instead of a layer's number

// Appends a whole SVG file. With a layer L, of the ops whose names begin with "L." (and kv.L, which
// kv_write is called after). More than MGL_GRAPH_SVG_MAX_TASKS tasks, or none, are refused.
mgl_status mgl_graph_svg_append(const mgl_graph *program, const mgl_task_graph *graph,
                                const mgl_analysis *analysis, uint32_t layer, mgl_text *out,
                                mgl_error *err);

#endif
