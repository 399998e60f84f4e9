// Grammars of a body: which parameter asks for one, and the one that comes of it.
#ifndef MGL_REQUEST_READ_GRAMMAR_H
#define MGL_REQUEST_READ_GRAMMAR_H

#include "request/parameters.h"

mgl_parameter_read mgl_read_response_format, mgl_read_text_format, mgl_read_structured_outputs;
mgl_parameter_read mgl_read_guided;  // refuses it, and says what takes its place

// Notes that the answer must match a grammar; parameter names who asks (borrowed; in the table),
// and a body that asks twice is refused. text: as megalith_grammar_options has it, memory of
// base/alloc.h, taken over, also on failure; NULL is no memory, unless the kind needs no text.
mgl_status mgl_ask_set_grammar(mgl_ask *ask, const char *parameter, megalith_grammar_kind kind,
                               char *text, mgl_error *err);
// Compiles it, if there is one.
mgl_status mgl_ask_compile_grammar(mgl_ask *ask, const megalith_model *model, mgl_error *err);

#endif
