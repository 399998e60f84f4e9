#include "app/grammar_options.h"

#include "app/client.h"
#include "base/alloc.h"
#include "base/file.h"
#include "request/ask.h"
#include "request/read_grammar.h"

static const struct {
  const char *option;
  megalith_grammar_kind kind;
} kinds[] = {{"json-schema", MEGALITH_GRAMMAR_JSON_SCHEMA},
             {"regex", MEGALITH_GRAMMAR_REGEX},
             {"grammar", MEGALITH_GRAMMAR_EBNF}};

enum { KINDS = sizeof kinds / sizeof *kinds };

mgl_status mgl_app_grammar_choose(const mgl_arguments *arguments, const megalith_model *model,
                                  megalith_grammar **out, mgl_error *err) {
  size_t found = KINDS;
  *out = NULL;
  for (size_t i = 0; i < KINDS; i++) {
    if (mgl_arguments_has(arguments, kinds[i].option) && found < KINDS) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected one of --%s and --%s, found both",
                           kinds[found].option, kinds[i].option);
    }
    found = mgl_arguments_has(arguments, kinds[i].option) ? i : found;
  }
  if (found == KINDS) {
    return MGL_OK;
  }
  const char *value = mgl_arguments_text(arguments, kinds[found].option, "");
  megalith_grammar_options options = {
      .size = sizeof options, .kind = kinds[found].kind, .text = value};
  megalith_error error = {0};
  char *text = NULL;
  if (options.kind != MEGALITH_GRAMMAR_REGEX) {
    MGL_TRY(mgl_file_read_any(value, MEGALITH_MAX_GRAMMAR_BYTES, &text, &options.text_bytes, err));
    options.text = text;
  }
  mgl_status status =
      mgl_client_status(megalith_grammar_create(model, &options, out, &error), &error, err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "--%s", kinds[found].option);
  }
  mgl_free(text);
  return status;
}

mgl_status mgl_app_grammar_read(mgl_json_object o, const megalith_model *model,
                                megalith_grammar **out, mgl_error *err) {
  static const char *const keys[] = {MGL_APP_GRAMMAR_KEYS};
  mgl_ask ask = {.endpoint = MGL_ENDPOINT_COMPLETIONS};
  mgl_status status = MGL_OK;
  for (size_t i = 0; i < sizeof keys / sizeof *keys && status == MGL_OK; i++) {
    const json_t *value = json_object_get(o.object, keys[i]);
    const mgl_parameter *parameter = NULL;
    if (value != NULL && !json_is_null(value)) {
      status = mgl_parameter_find(ask.endpoint, keys[i], &parameter, err);
      status = status == MGL_OK ? mgl_parameter_set(&ask, parameter, value, err) : status;
    }
  }
  if (status == MGL_OK) {
    status = mgl_ask_compile_grammar(&ask, model, err);
  }
  if (status == MGL_OK) {
    *out = ask.grammar;
    ask.grammar = NULL;
  }
  mgl_ask_free(&ask);
  return status;
}

static const mgl_option options[] = {
    {.name = "json-schema",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "the output is JSON that is valid by this schema (docs/grammars.md) [anything]"},
    {.name = "regex",
     .value_name = "REGEX",
     .type = MGL_OPTION_TEXT,
     .help = "the output is what this regular expression matches as a whole"},
    {.name = "grammar",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "the output is what the rule root of this grammar in EBNF stands for"},
};

const mgl_option_group mgl_grammar_options = {options, sizeof options / sizeof *options};
