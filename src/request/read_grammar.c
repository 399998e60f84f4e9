#include "request/read_grammar.h"

#include <string.h>

#include "base/alloc.h"

static mgl_status refuse(const mgl_parameter *p, const json_t *value, mgl_error *err) {
  return mgl_parameter_refuse(p->name, p->values, value, err);
}

mgl_status mgl_ask_set_grammar(mgl_ask *ask, const char *parameter, megalith_grammar_kind kind,
                               char *text, mgl_error *err) {
  if (text == NULL && kind != MEGALITH_GRAMMAR_JSON_OBJECT) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a grammar");
  }
  if (ask->grammar_kind != 0) {
    mgl_free(text);
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"%s\": expected no \"%s\" beside it: an answer has one grammar",
                         parameter, ask->grammar_parameter);
  }
  ask->grammar_kind = kind;
  ask->grammar_text = text;
  ask->grammar_parameter = parameter;
  return MGL_OK;
}

mgl_status mgl_ask_compile_grammar(mgl_ask *ask, const megalith_model *model, mgl_error *err) {
  megalith_error error = {0};
  megalith_grammar_options options = {
      .size = sizeof options, .kind = ask->grammar_kind, .text = ask->grammar_text};
  if (ask->grammar_kind == 0 ||
      megalith_grammar_create(model, &options, &ask->grammar, &error) == MEGALITH_OK) {
    return MGL_OK;
  }
  return mgl_error_set(err, (mgl_status)error.status, "\"%s\": %s", ask->grammar_parameter,
                       error.text);
}

// --- JSON ----------------------------------------------------------------------------------------

static mgl_status set_json(mgl_ask *ask, const mgl_parameter *p, megalith_grammar_kind kind,
                           const json_t *value, mgl_error *err) {
  return mgl_ask_set_grammar(ask, p->name, kind, json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY),
                             err);
}

static bool is_one_of(const char *name, const char *const *names, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(name, names[i]) == 0) {
      return true;
    }
  }
  return false;
}

// The object that has name, schema, strict and description. All schemas are kept to strictly.
static mgl_status read_json_schema(mgl_ask *ask, const mgl_parameter *p, const json_t *format,
                                   mgl_error *err) {
  static const char *const known[] = {"type", "name", "schema", "strict", "description"};
  const json_t *schema = json_object_get(format, "schema");
  const json_t *strict = json_object_get(format, "strict");
  const char *key = NULL;
  json_t *item = NULL;
  json_object_foreach((json_t *)format, key, item) {
    if (!is_one_of(key, known, sizeof known / sizeof *known)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "\"%s\": expected name, schema, strict and description, found %.40s",
                           p->name, key);
    }
  }
  if (!json_is_string(json_object_get(format, "name")) || schema == NULL ||
      (strict != NULL && !json_is_boolean(strict) && !json_is_null(strict))) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"%s\": expected a name (a text), a schema, and strict to be true or "
                         "false",
                         p->name);
  }
  return set_json(ask, p, MEGALITH_GRAMMAR_JSON_SCHEMA, schema, err);
}

// is_flat: the schema stands beside the type, as in responses.
static mgl_status read_format(mgl_ask *ask, const mgl_parameter *p, const json_t *format,
                              bool is_flat, mgl_error *err) {
  const char *type = json_string_value(json_object_get(format, "type"));
  const json_t *schema = is_flat ? format : json_object_get(format, "json_schema");
  size_t size = json_object_size(format);
  if (type != NULL && strcmp(type, "json_schema") == 0 && json_is_object(schema) &&
      (is_flat || size == 2)) {
    return read_json_schema(ask, p, schema, err);
  }
  if (type != NULL && size == 1 && strcmp(type, "json_object") == 0) {
    return mgl_ask_set_grammar(ask, p->name, MEGALITH_GRAMMAR_JSON_OBJECT, NULL, err);
  }
  return type != NULL && size == 1 && strcmp(type, "text") == 0 ? MGL_OK : refuse(p, format, err);
}

mgl_status mgl_read_response_format(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                    mgl_error *err) {
  return read_format(ask, p, value, false, err);
}

mgl_status mgl_read_text_format(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                mgl_error *err) {
  const json_t *format = json_object_get(value, "format");
  const json_t *verbosity = json_object_get(value, "verbosity");
  bool is_usual = verbosity == NULL || (json_is_string(verbosity) &&
                                        strcmp(json_string_value(verbosity), "medium") == 0);
  size_t known = (format != NULL ? 1u : 0u) + (verbosity != NULL ? 1u : 0u);
  if (!json_is_object(value) || !is_usual || json_object_size(value) != known) {
    return refuse(p, value, err);
  }
  return format == NULL || json_is_null(format) ? MGL_OK : read_format(ask, p, format, true, err);
}

// --- vLLM's structured outputs -------------------------------------------------------------------

static mgl_status set_text(mgl_ask *ask, const mgl_parameter *p, const char *key,
                           megalith_grammar_kind kind, const json_t *value, mgl_error *err) {
  size_t bytes = json_string_length(value);
  if (bytes == 0 || strlen(json_string_value(value)) != bytes) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"%s\".%s: expected a text that is not empty, without NUL", p->name, key);
  }
  return mgl_ask_set_grammar(ask, p->name, kind, mgl_strdup(json_string_value(value)), err);
}

static mgl_status set_schema(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                             mgl_error *err) {
  return json_is_string(value)  // the text of a schema
             ? set_text(ask, p, "json", MEGALITH_GRAMMAR_JSON_SCHEMA, value, err)
             : set_json(ask, p, MEGALITH_GRAMMAR_JSON_SCHEMA, value, err);
}

static mgl_status read_structured(mgl_ask *ask, const mgl_parameter *p, const char *key,
                                  const json_t *value, mgl_error *err) {
  if (strcmp(key, "json") == 0) {
    return set_schema(ask, p, value, err);
  }
  if (strcmp(key, "regex") == 0) {
    return set_text(ask, p, key, MEGALITH_GRAMMAR_REGEX, value, err);
  }
  if (strcmp(key, "grammar") == 0) {
    return set_text(ask, p, key, MEGALITH_GRAMMAR_EBNF, value, err);
  }
  if (strcmp(key, "choice") == 0) {
    return set_json(ask, p, MEGALITH_GRAMMAR_CHOICE, value, err);
  }
  if (strcmp(key, "json_object") == 0 && json_is_true(value)) {
    return mgl_ask_set_grammar(ask, p->name, MEGALITH_GRAMMAR_JSON_OBJECT, NULL, err);
  }
  return json_is_false(value)
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_UNSUPPORTED, "\"%s\": expected %s, found %.40s", p->name,
                             p->values, key);
}

mgl_status mgl_read_structured_outputs(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                       mgl_error *err) {
  const char *key = NULL;
  json_t *item = NULL;
  if (!json_is_object(value)) {
    return refuse(p, value, err);
  }
  json_object_foreach((json_t *)value, key, item) {
    if (!json_is_null(item)) {
      MGL_TRY(read_structured(ask, p, key, item, err));
    }
  }
  return ask->grammar_kind != 0 ? MGL_OK : refuse(p, value, err);
}

mgl_status mgl_read_guided(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                           mgl_error *err) {
  (void)ask;
  (void)value;
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "\"%s\": expected \"structured_outputs\": {\"%s\": ...} instead", p->name,
                       p->name + strlen("guided_"));
}
