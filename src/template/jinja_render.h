// The interpreter of a parsed chat template: runs statements, appends text to runtime->out.
#ifndef MGL_TEMPLATE_JINJA_RENDER_H
#define MGL_TEMPLATE_JINJA_RENDER_H

#include "template/jinja_parse.h"
#include "template/jinja_value.h"

// Runs the statements of a template in a fresh top-level scope. The runtime's
// context, where, out, out_start and err are set by the caller; its arena is the caller's to free.
mgl_status mgl_jinja_render(mgl_jinja_runtime *runtime, const mgl_jinja_tree *tree);

#endif
