// Grammars put together: a JSON value that is one of
//
//   {"text": "..."}                          these characters
//   {"schema": {...}}                        JSON that is valid by the schema
//   {"json_object": true}                    any JSON object
//   {"regex": "..."}  {"choice": ["..."]}  {"grammar": "..."}
//   {"token": "<|python_tag|>"}              a special token
//   {"text_without": "<tool_call>"}          any text in which this does not occur; may be empty
//   {"sequence": [PART, ...]}  {"any_of": [PART, ...]}
//   {"repeat": PART, "min": 0, "max": 3}     min is 0 if it is not given, max as many as there are
//
// So tool calls: {"sequence": [{"text": "<tool_call>\n{\"name\": \"f\", \"arguments\": "},
// {"schema": {...}}, {"text": "}\n</tool_call>"}]}.
#ifndef MGL_GRAMMAR_PARTS_H
#define MGL_GRAMMAR_PARTS_H

#include <jansson.h>

#include "grammar/json_rules.h"
#include "text/tokenizer.h"

// tokenizer may be NULL: then there are no special tokens. NULL after a failure.
const mgl_expression *mgl_parts_expression(mgl_builder *b, const mgl_json_rules *rules,
                                           const mgl_tokenizer *tokenizer, const json_t *part);
// A JSON array of texts.
const mgl_expression *mgl_choice_expression(mgl_builder *b, const json_t *texts);

#endif
