// JSON Schema to an expression: the texts of JSON values that are valid.
//
// What is generated is always valid. Not all that is valid can be generated: members come in the
// order of `properties`, and where `additionalProperties` is not given, there are no others (all
// servers that constrain by a schema do so). docs/serve.md lists the keywords; whatever is not
// among them is refused with its name and place.
#ifndef MGL_GRAMMAR_JSON_SCHEMA_H
#define MGL_GRAMMAR_JSON_SCHEMA_H

#include <jansson.h>

#include "grammar/json_rules.h"

enum { MGL_JSON_SCHEMA_MAX_PARTS = 65536 };  // schemas within a schema, those copied by allOf too

// NULL after a failure.
const mgl_expression *mgl_json_schema_expression(mgl_builder *b, const mgl_json_rules *rules,
                                                 const json_t *schema);

#endif
