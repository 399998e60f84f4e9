// What a run compiled, as files for whoever looks for a fault: FOLDER/rank_0/NAME.
#ifndef MGL_ENGINE_DEBUG_DUMP_H
#define MGL_ENGINE_DEBUG_DUMP_H

#include "base/status.h"
#include "base/text.h"
#include "device/build.h"
#include "graph/graph.h"

// Nothing where the build names no folder (debug_dump_path). A file that is there is replaced.
mgl_status mgl_debug_dump(const mgl_build *build, const char *name, const mgl_text *text,
                          mgl_error *err);
mgl_status mgl_debug_dump_program(const mgl_build *build, const char *name,
                                  const mgl_graph *program, mgl_error *err);
// `program` may be a piece's view (compile/split.h).
mgl_status mgl_debug_dump_graph(const mgl_build *build, const char *name, const mgl_graph *program,
                                const mgl_task_graph *graph, mgl_error *err);

#endif
