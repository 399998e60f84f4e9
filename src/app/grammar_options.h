// The grammars of `megalith run`: of its options, and of lines of JSON.
#ifndef MGL_APP_GRAMMAR_OPTIONS_H
#define MGL_APP_GRAMMAR_OPTIONS_H

#include "app/options.h"
#include "base/json.h"
#include "grammar/cache.h"

extern const mgl_option_group mgl_grammar_options;

// Keys of a line that give it a grammar, as the server has them.
#define MGL_APP_GRAMMAR_KEYS "response_format", "structured_outputs"

// What --json-schema, --regex or --grammar say; *out is NULL without any. The caller releases it.
mgl_status mgl_app_grammar_choose(const mgl_arguments *arguments, mgl_grammar_cache *cache,
                                  mgl_grammar **out, mgl_error *err);
// The same of a line; without such a key *out stays.
mgl_status mgl_app_grammar_read(mgl_json_object o, mgl_grammar_cache *cache, mgl_grammar **out,
                                mgl_error *err);

#endif
