// A program that a user wrote, or changed, in place of the one that a model's family builds.
#ifndef MGL_GRAPH_GIVEN_PROGRAM_H
#define MGL_GRAPH_GIVEN_PROGRAM_H

#include "graph/graph.h"

// Reads the text of a program (graph_text.h) that shall run the model whose own program is `own`:
// inputs and KV caches must be of that one, "logits" must be an output with the same type, and
// weights that both have must be alike. Other weights are the checkpoint's business.
mgl_status mgl_given_program(const mgl_graph *own, const char *text, mgl_graph **out,
                             mgl_error *err);

#endif
