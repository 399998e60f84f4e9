#include "serve/reading.h"

#include <string.h>

#include "base/alloc.h"
#include "request/json_text.h"

static mgl_status out_of_memory(size_t bytes, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu bytes of text", bytes);
}

static mgl_status forward(megalith_status status, const megalith_error *error, mgl_error *err) {
  return status == MEGALITH_OK ? MGL_OK : mgl_error_set(err, (mgl_status)status, "%s", error->text);
}

mgl_status mgl_reading_render(const megalith_model *model, const mgl_ask *ask, char **out,
                              size_t *bytes, mgl_error *err) {
  megalith_sampling sampling;
  megalith_request_options options;
  megalith_error error = {0};
  mgl_ask_options(ask, 0, &sampling, &options);
  MGL_TRY(forward(megalith_model_render(model, &options, NULL, 0, bytes, &error), &error, err));
  *out = mgl_alloc(*bytes + 1);
  if (*out == NULL) {
    return out_of_memory(*bytes, err);
  }
  return forward(megalith_model_render(model, &options, *out, *bytes + 1, bytes, &error), &error,
                 err);
}

// The ids of the ask's prompt; the caller frees them.
static mgl_status encode(const megalith_model *model, const mgl_ask *ask, int32_t **out,
                         size_t *count, mgl_error *err) {
  megalith_sampling sampling;
  megalith_request_options options;
  mgl_ask_options(ask, 0, &sampling, &options);
  // Rarely more tokens than bytes: one pass is enough for most prompts.
  const char *given = ask->is_chat ? ask->messages_json : NULL;
  size_t bytes = given == NULL ? ask->prompts[0].text_bytes : strlen(given);
  *count = bytes + 16;
  for (size_t capacity = 0; capacity < *count;) {
    megalith_error error = {0};
    capacity = *count;
    mgl_free(*out);
    *out = mgl_alloc_zeroed(capacity, sizeof **out);
    if (*out == NULL) {
      return out_of_memory(capacity, err);
    }
    MGL_TRY(forward(megalith_model_encode(model, &options, *out, capacity, count, &error), &error,
                    err));
  }
  return MGL_OK;
}

static mgl_status append_token_strs(const megalith_model *model, const int32_t *ids, size_t count,
                                    mgl_text *out, mgl_error *err) {
  enum { TEXT_BYTES = 1024 };  // more than tokens have
  char text[TEXT_BYTES];
  mgl_text_append_string(out, ",\"token_strs\":[");
  for (size_t i = 0; i < count; i++) {
    size_t bytes = 0;
    megalith_error error = {0};
    MGL_TRY(forward(megalith_model_token_bytes(model, ids[i], text, sizeof text, &bytes, &error),
                    &error, err));
    mgl_text_append_string(out, i == 0 ? "" : ",");
    mgl_json_append_string(out, text, bytes < sizeof text ? bytes : sizeof text - 1);
  }
  mgl_text_append_string(out, "]");
  return MGL_OK;
}

static mgl_status append_tokenized(const megalith_model *model, const megalith_engine *engine,
                                   const mgl_ask *ask, mgl_text *out, mgl_error *err) {
  size_t count = 0;
  int32_t *ids = NULL;
  mgl_status status = encode(model, ask, &ids, &count, err);
  if (status == MGL_OK) {
    mgl_text_format(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", count,
                    megalith_engine_describe(engine)->context_tokens);
    for (size_t i = 0; i < count; i++) {
      mgl_text_format(out, i == 0 ? "%d" : ",%d", ids[i]);
    }
    mgl_text_append_string(out, "]");
    if (ask->return_token_strs) {
      status = append_token_strs(model, ids, count, out, err);
    }
    mgl_text_append_string(out, "}");
  }
  mgl_free(ids);
  return status;
}

static mgl_status append_detokenized(const megalith_model *model, const mgl_ask *ask, mgl_text *out,
                                     mgl_error *err) {
  const mgl_ask_prompt *prompt = &ask->prompts[0];
  size_t bytes = 0;
  megalith_error error = {0};
  MGL_TRY(forward(megalith_model_detokenize(model, prompt->tokens, prompt->token_count, NULL, 0,
                                            &bytes, &error),
                  &error, err));
  char *text = mgl_alloc(bytes + 1);
  if (text == NULL) {
    return out_of_memory(bytes, err);
  }
  megalith_status status = megalith_model_detokenize(model, prompt->tokens, prompt->token_count,
                                                     text, bytes + 1, &bytes, &error);
  mgl_text_append_string(out, "{\"prompt\":");
  mgl_json_append_string(out, text, status == MEGALITH_OK ? bytes : 0);
  mgl_text_append_string(out, "}");
  mgl_free(text);
  return forward(status, &error, err);
}

mgl_status mgl_reading_answer(const megalith_model *model, const megalith_engine *engine,
                              const mgl_ask *ask, mgl_text *out, mgl_error *err) {
  return ask->endpoint == MGL_ENDPOINT_DETOKENIZE ? append_detokenized(model, ask, out, err)
                                                  : append_tokenized(model, engine, ask, out, err);
}
