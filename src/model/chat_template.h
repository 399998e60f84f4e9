// Chat templates: the Jinja source of tokenizer_config.json (or chat_template.jinja), rendered over
// a list of messages by a small interpreter of the Jinja subset that chat templates use.
//
// A construct outside the subset is refused by name and line when the template is parsed (or, for a
// filter or method on a value, when it is rendered); it is never rendered wrong. Loops and
// recursion are bounded, since templates come from files. Rejected: recognising known templates by
// their text, which breaks with every new model.
#ifndef MGL_MODEL_CHAT_TEMPLATE_H
#define MGL_MODEL_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

enum {
  MGL_TEMPLATE_MAX_SOURCE_BYTES = 1 << 20,
  MGL_TEMPLATE_MAX_OUTPUT_BYTES = 64 << 20,
  MGL_TEMPLATE_MAX_STEPS = 10 * 1000 * 1000,
  MGL_TEMPLATE_MAX_DEPTH = 64,
};

typedef struct mgl_chat_template mgl_chat_template;

mgl_status mgl_chat_template_parse(const char *source, size_t bytes, const char *where,
                                   mgl_chat_template **out, mgl_error *err);
void mgl_chat_template_destroy(mgl_chat_template *chat_template);  // NULL is fine

// Renders with the variables of `context`, a JSON object: "messages" (array of {"role",
// "content"}), "add_generation_prompt" (bool), "bos_token" and "eos_token" (strings), "tools" and
// what else a caller wants to define. Appends to *out. A template's raise_exception() gives
// MGL_ERR_ARGUMENT with its text.
mgl_status mgl_chat_template_render(const mgl_chat_template *chat_template, const json_t *context,
                                    mgl_text *out, mgl_error *err);

#endif
