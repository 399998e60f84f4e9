// Where the MODEL of a command lies, and what somebody likely meant by one that is no model folder.
#ifndef MGL_APP_MODEL_PATH_H
#define MGL_APP_MODEL_PATH_H

#include "app/options.h"
#include "base/status.h"

// The folder of MODEL, or else of the demo model: the folder that MEGALITH_DEMO names, else demo
// beside the build folder, else the installed one, else the one of the source tree. *name: the last
// part of the path, printable. Free both with mgl_free.
mgl_status mgl_app_model_path(const mgl_arguments *arguments, char **path, char **name,
                              mgl_error *err);

// Opening arguments->positional failed with *err: appends what to do where the path itself tells
// it: a prompt without its -p, the name of a model on a hub (which Megalith does not download), the
// cache of such a hub, a file of another format, or of git lfs.
void mgl_model_path_explain(const mgl_arguments *arguments, mgl_error *err);

#endif
