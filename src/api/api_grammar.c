// Grammars of requests, behind the handles of megalith.h.
#include <string.h>

#include "api/api_parts.h"

_Static_assert((int)MEGALITH_MAX_GRAMMAR_BYTES == (int)MGL_GRAMMAR_MAX_TEXT_BYTES, "one limit");
_Static_assert((int)MEGALITH_GRAMMAR_PARTS == (int)MGL_GRAMMAR_PARTS + 1, "one order");
_Static_assert((int)MEGALITH_GRAMMAR_JSON_SCHEMA == (int)MGL_GRAMMAR_JSON_SCHEMA + 1, "one order");

// The handle is the grammar itself.
mgl_grammar *mgl_api_grammar(megalith_grammar *grammar) {
  return (mgl_grammar *)grammar;
}

static mgl_status create(const megalith_model *model, const megalith_grammar_options *given,
                         mgl_grammar **out, mgl_error *err) {
  megalith_grammar_options options;
  MGL_TRY(mgl_api_read_options(given, sizeof options, "megalith_grammar_options", &options, err));
  if (options.kind < MEGALITH_GRAMMAR_JSON_SCHEMA || options.kind > MEGALITH_GRAMMAR_PARTS) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "grammar: expected a kind of 1 to %d, found %d",
                         (int)MEGALITH_GRAMMAR_PARTS, (int)options.kind);
  }
  if (options.text == NULL && options.kind != MEGALITH_GRAMMAR_JSON_OBJECT) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "grammar: expected a text, found NULL");
  }
  if (model->folder.tokenizer == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "a grammar needs a tokenizer.json, and %s has none", model->folder.path);
  }
  bool has_text = options.kind != MEGALITH_GRAMMAR_JSON_OBJECT;
  const mgl_grammar_source source = {.kind = (mgl_grammar_kind)((int)options.kind - 1),
                                     .text = has_text ? options.text : "",
                                     .bytes = !has_text                 ? 0
                                              : options.text_bytes != 0 ? options.text_bytes
                                                                        : strlen(options.text)};
  return mgl_grammar_cache_get(model->grammars, &source, out, err);
}

megalith_status megalith_grammar_create(const megalith_model *model,
                                        const megalith_grammar_options *options,
                                        megalith_grammar **out, megalith_error *error) {
  mgl_error err = {0};
  mgl_grammar *grammar = NULL;
  mgl_status status = create(model, options, &grammar, &err);
  *out = (megalith_grammar *)grammar;
  return mgl_api_report(status, &err, error);
}

void megalith_grammar_release(megalith_grammar *grammar) {
  mgl_grammar_release(mgl_api_grammar(grammar));
}
