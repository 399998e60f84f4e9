// A model for requests and answers: what the public API tells of one, with nothing behind it.
#ifndef MGL_TESTS_FUZZ_MODEL_H
#define MGL_TESTS_FUZZ_MODEL_H

#include <megalith.h>
#include <stdio.h>
#include <string.h>

struct megalith_model {
  char unused;
};

struct megalith_grammar {
  char unused;
};

static megalith_model fuzz_model;
static megalith_grammar fuzz_grammar;

const megalith_model_info *megalith_model_describe(const megalith_model *model) {
  static const char *const variables[] = {"enable_thinking", "reasoning_effort"};
  static const megalith_sampling sampling = {.size = sizeof sampling};
  static const megalith_model_info info = {.family = "none",
                                           .vocab_size = 1024,
                                           .context_tokens = 512,
                                           .has_tokenizer = true,
                                           .has_chat_template = true,
                                           .unapplied = "",
                                           .sampling = &sampling,
                                           .chat_template = "{{ tools }}",
                                           .template_variables = variables,
                                           .template_variable_count = 2};
  (void)model;
  return &info;
}

// Which text it is of does not matter: no engine sees it.
megalith_status megalith_grammar_create(const megalith_model *model,
                                        const megalith_grammar_options *options,
                                        megalith_grammar **out, megalith_error *error) {
  (void)model;
  (void)error;
  *out =
      options->kind == MEGALITH_GRAMMAR_JSON_OBJECT || options->text != NULL ? &fuzz_grammar : NULL;
  return MEGALITH_OK;
}

void megalith_grammar_release(megalith_grammar *grammar) {
  (void)grammar;
}

megalith_status megalith_model_token_bytes(const megalith_model *model, int32_t id, char *text,
                                           size_t capacity, size_t *bytes, megalith_error *error) {
  char piece[4] = {(char)(id & 255), (char)(id >> 8), '"', 0};
  (void)model;
  (void)error;
  *bytes = strlen(piece);
  (void)snprintf(text, capacity, "%s", piece);
  return MEGALITH_OK;
}

megalith_status megalith_model_detokenize(const megalith_model *model, const int32_t *ids,
                                          size_t count, char *text, size_t capacity, size_t *bytes,
                                          megalith_error *error) {
  (void)model;
  (void)ids;
  (void)error;
  *bytes = count;
  if (capacity > 0) {
    (void)snprintf(text, capacity, "%*s", (int)count, "");
  }
  return MEGALITH_OK;
}

#endif
