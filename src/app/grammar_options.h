// The grammars of `megalith run`: of its options, and of lines of JSON.
#ifndef MGL_APP_GRAMMAR_OPTIONS_H
#define MGL_APP_GRAMMAR_OPTIONS_H

#include <megalith.h>

#include "app/options.h"
#include "base/json.h"

extern const mgl_option_group mgl_grammar_options;

// Keys of a line that give it a grammar, as the server has them.
#define MGL_APP_GRAMMAR_KEYS "response_format", "structured_outputs"

// What --json-schema, --regex or --grammar say; *out is NULL without any. The caller releases it.
mgl_status mgl_app_grammar_choose(const mgl_arguments *arguments, const megalith_model *model,
                                  megalith_grammar **out, mgl_error *err);
// The same of a line.
mgl_status mgl_app_grammar_read(mgl_json_object o, const megalith_model *model,
                                megalith_grammar **out, mgl_error *err);

#endif
