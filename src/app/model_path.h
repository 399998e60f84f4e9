// What somebody likely meant by a MODEL that is no model folder.
#ifndef MGL_APP_MODEL_PATH_H
#define MGL_APP_MODEL_PATH_H

#include "app/options.h"
#include "base/status.h"

// Opening arguments->positional failed with *err: appends what to do where the path itself tells
// it: a prompt without its -p, the name of a model on a hub (which Megalith does not download), the
// cache of such a hub, a file of another format, or of git lfs.
void mgl_model_path_explain(const mgl_arguments *arguments, mgl_error *err);

#endif
