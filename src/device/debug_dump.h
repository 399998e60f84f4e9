// What a run compiled, as files for whoever looks for a fault: FOLDER/rank_N/NAME.
#ifndef MGL_DEVICE_DEBUG_DUMP_H
#define MGL_DEVICE_DEBUG_DUMP_H

#include "base/status.h"
#include "base/text.h"
#include "device/build.h"
#include "device/compilation.h"
#include "graph/graph.h"

enum { MGL_DEBUG_DUMP_PATH_BYTES = MGL_COMPILATION_PATH_BYTES + 160 };

// Which rank of those that run the model this process is; 0 where nobody says so.
void mgl_debug_dump_rank(uint32_t rank);

// The folder that the settings name (debug_dump_path); NULL: nothing is dumped.
const char *mgl_debug_dump_folder(const struct mgl_compilation *c);
// The path of a file in this rank's part of `folder`, which is made.
mgl_status mgl_debug_dump_path(const char *folder, const char *name,
                               char out[MGL_DEBUG_DUMP_PATH_BYTES], mgl_error *err);
mgl_status mgl_debug_dump_file(const char *folder, const char *name, const mgl_text *text,
                               mgl_error *err);

// Nothing where the build names no folder. A file that is there is replaced.
mgl_status mgl_debug_dump(const mgl_build *build, const char *name, const mgl_text *text,
                          mgl_error *err);
mgl_status mgl_debug_dump_program(const mgl_build *build, const char *name,
                                  const mgl_graph *program, mgl_error *err);
// `program` may be a piece's view (compile/split.h).
mgl_status mgl_debug_dump_graph(const mgl_build *build, const char *name, const mgl_graph *program,
                                const mgl_task_graph *graph, mgl_error *err);

#endif
