// Chat templates: the Jinja source of tokenizer_config.json (or chat_template.jinja), rendered over
// a list of messages by a small interpreter of the Jinja subset that chat templates use.
//
// A construct outside the subset is refused by name and line when the template is parsed (or, for a
// filter or method on a value, when it is rendered); it is never rendered wrong. Loops and
// recursion are bounded, since templates come from files. Rejected: recognising known templates by
// their text, which breaks with every new model.
#ifndef MGL_TEMPLATE_CHAT_TEMPLATE_H
#define MGL_TEMPLATE_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

enum {
  MGL_TEMPLATE_MAX_SOURCE_BYTES = 1 << 20,
  MGL_TEMPLATE_MAX_OUTPUT_BYTES = 16 << 20,  // some 4 million tokens
  MGL_TEMPLATE_MAX_STEPS = 10 * 1000 * 1000,
  MGL_TEMPLATE_MAX_DEPTH = 64,                // nesting of the source: blocks and brackets
  MGL_TEMPLATE_MAX_VARIABLES = 64,            // that are listed
  MGL_TEMPLATE_MAX_MEMORY_BYTES = 256 << 20,  // of one parsed tree, and of one render
};

typedef struct mgl_chat_template mgl_chat_template;

// `where` names the source in messages (its path); it is copied, as is the source. A syntax error
// gives MGL_ERR_FORMAT, a construct outside the subset MGL_ERR_UNSUPPORTED; every message reads
// "WHERE: line N: ...".
mgl_status mgl_chat_template_parse(const char *source, size_t bytes, const char *where,
                                   mgl_chat_template **out, mgl_error *err);
void mgl_chat_template_destroy(mgl_chat_template *chat_template);  // NULL is fine

// Whether the template looks into the parts of a message's content (an array of objects with a
// type) or takes every content for a string.
bool mgl_chat_template_takes_parts(const mgl_chat_template *chat_template);

// Its source, with newlines as Jinja reads them; as long as the template.
const char *mgl_chat_template_source(const mgl_chat_template *chat_template);

// The variables that the template takes: names that it reads and does not define itself ("messages"
// and "tools" among them); at most MGL_TEMPLATE_MAX_VARIABLES, as long as the template.
const char *const *mgl_chat_template_variables(const mgl_chat_template *chat_template,
                                               size_t *count);

// Renders with the variables of `context`, a JSON object: "messages" (array of {"role",
// "content"}), "add_generation_prompt" (bool), "bos_token" and "eos_token" (strings), "tools" and
// what else a caller wants to define. Appends to *out; on failure *out is as it was. What the
// template cannot do with these values (a missing member, a wrong type) gives MGL_ERR_ARGUMENT, as
// does its raise_exception(), with its text; MGL_ERR_LIMIT says which bound was hit. Several
// threads may render one template at once, also from one context.
mgl_status mgl_chat_template_render(const mgl_chat_template *chat_template, const json_t *context,
                                    mgl_text *out, mgl_error *err);

#endif
