// The public face of the template interpreter: checks the source, owns the parsed tree, sets up and
// tears down a render.
//
// lexer (jinja_lex) -> tree (jinja_parse) -> text (jinja_render, with jinja_operators and the
// builtins). A parsed template is immutable; a render keeps all its state on its own.
#include "template/chat_template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "template/jinja_parse.h"
#include "template/jinja_render.h"

struct mgl_chat_template {
  mgl_arena arena;  // the source, the tree and `where`
  const char *where;
  mgl_jinja_tree tree;
  const char *source;
  bool takes_parts;
  const char *variables[MGL_TEMPLATE_MAX_VARIABLES];
  size_t variable_count;
};

// The source with "\r\n" and "\r" as "\n" and without one newline at its end, as Jinja reads it.
static mgl_jinja_string normalise(const char *source, size_t bytes, char *out) {
  size_t used = 0;
  for (size_t i = 0; i < bytes; i++) {
    if (source[i] == '\r') {
      i += i + 1 < bytes && source[i + 1] == '\n';
      out[used++] = '\n';
    } else {
      out[used++] = source[i];
    }
  }
  used -= used != 0 && out[used - 1] == '\n';
  return (mgl_jinja_string){out, used};
}

static mgl_status check_source(const char *source, size_t bytes, const char *where,
                               mgl_error *err) {
  if (bytes > MGL_TEMPLATE_MAX_SOURCE_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "%s: expected a template of at most %d bytes, found %zu", where,
                         MGL_TEMPLATE_MAX_SOURCE_BYTES, bytes);
  }
  size_t at = mgl_jinja_text_invalid_at((mgl_jinja_string){source, bytes});
  if (at != bytes) {
    int line = 1;
    for (size_t i = 0; i < at; i++) {
      line += source[i] == '\n';
    }
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: line %d: the template is not valid UTF-8", where,
                         line);
  }
  return MGL_OK;
}

static mgl_status list_variables(mgl_chat_template *parsed, mgl_error *err) {
  mgl_jinja_string names[MGL_TEMPLATE_MAX_VARIABLES];
  size_t count = mgl_jinja_variables(&parsed->tree, names, MGL_TEMPLATE_MAX_VARIABLES);
  for (size_t i = 0; i < count; i++) {
    char *name = mgl_arena_alloc_text(&parsed->arena, names[i].bytes + 1);
    if (name == NULL) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory for a template", parsed->where);
    }
    memcpy(name, names[i].data, names[i].bytes);
    name[names[i].bytes] = 0;
    parsed->variables[parsed->variable_count++] = name;
  }
  return MGL_OK;
}

mgl_status mgl_chat_template_parse(const char *source, size_t bytes, const char *where,
                                   mgl_chat_template **out, mgl_error *err) {
  *out = NULL;
  MGL_TRY(check_source(source, bytes, where, err));
  mgl_chat_template *parsed = mgl_alloc_zeroed(1, sizeof *parsed);
  mgl_status status = MGL_OK;
  if (parsed == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory for a template", where);
  }
  parsed->arena.limit = MGL_TEMPLATE_MAX_MEMORY_BYTES;
  size_t where_bytes = strlen(where) + 1;
  char *where_copy = mgl_arena_alloc_text(&parsed->arena, where_bytes);
  char *copy = mgl_arena_alloc_text(&parsed->arena, bytes + 1);
  if (where_copy == NULL || copy == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "%s: out of memory for a template", where);
    goto fail;
  }
  memcpy(where_copy, where, where_bytes);
  parsed->where = where_copy;
  mgl_jinja_string normalised = normalise(source, bytes, copy);
  copy[normalised.bytes] = 0;
  parsed->source = copy;
  if ((status = mgl_jinja_parse(normalised, parsed->where, &parsed->arena, &parsed->tree, err)) !=
          MGL_OK ||
      (status = list_variables(parsed, err)) != MGL_OK) {
    goto fail;
  }
  parsed->takes_parts = mgl_jinja_takes_parts(&parsed->tree);
  *out = parsed;
  return MGL_OK;
fail:
  mgl_chat_template_destroy(parsed);
  return status;
}

void mgl_chat_template_destroy(mgl_chat_template *chat_template) {
  if (chat_template != NULL) {
    mgl_arena_free(&chat_template->arena);
    mgl_free(chat_template);
  }
}

bool mgl_chat_template_takes_parts(const mgl_chat_template *chat_template) {
  return chat_template->takes_parts;
}

const char *mgl_chat_template_source(const mgl_chat_template *chat_template) {
  return chat_template->source;
}

const char *const *mgl_chat_template_variables(const mgl_chat_template *chat_template,
                                               size_t *count) {
  *count = chat_template->variable_count;
  return chat_template->variables;
}

mgl_status mgl_chat_template_render(const mgl_chat_template *chat_template, const json_t *context,
                                    mgl_text *out, mgl_error *err) {
  if (!json_is_object(context)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: the context of a template must be an object",
                         chat_template->where);
  }
  MGL_TRY(mgl_text_check(out, err));
  size_t start = out->bytes;
  mgl_jinja_runtime runtime = {
      .where = chat_template->where, .line = 1, .out = out, .out_start = start, .err = err};
  runtime.arena.limit = MGL_TEMPLATE_MAX_MEMORY_BYTES;
  mgl_jinja_value variables;
  mgl_status status = mgl_jinja_from_json(&runtime, context, 0, &variables);
  if (status == MGL_OK) {
    runtime.context = *variables.dict;
    status = mgl_jinja_render(&runtime, &chat_template->tree);
  }
  mgl_arena_free(&runtime.arena);
  if (status != MGL_OK) {
    // The caller's text stays what it was, whatever was appended before the failure.
    out->bytes = start;
    out->failed = false;
    if (out->data != NULL) {
      out->data[start] = 0;
    }
  }
  return status;
}
