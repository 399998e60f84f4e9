// The grammar of answers that must call a tool: tool_choice "required", or a function by name.
#ifndef MGL_SERVE_CALL_GRAMMAR_H
#define MGL_SERVE_CALL_GRAMMAR_H

#include <megalith.h>

#include "base/status.h"
#include "request/ask.h"
#include "serve/output_parser.h"

// Compiles the grammar of what ask->requires_call asks for, in the model's format, a thought in
// front of it allowed where the model thinks, into ask->grammar. Takes as long as
// megalith_grammar_create.
mgl_status mgl_call_grammar_compile(const megalith_model *model, mgl_output_syntax syntax,
                                    mgl_ask *ask, mgl_error *err);

#endif
