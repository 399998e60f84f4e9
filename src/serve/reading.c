#include "serve/reading.h"

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

static mgl_status append_ids(const megalith_model *model, const megalith_engine *engine,
                             const char *text, size_t bytes, mgl_text *out, mgl_error *err) {
  megalith_error error = {0};
  // Never more tokens than bytes but for what stands in front: one pass is enough for most texts.
  size_t capacity = bytes + 16;
  size_t count = 0;
  int32_t *ids = mgl_alloc_zeroed(capacity, sizeof *ids);
  if (ids == NULL) {
    return out_of_memory(bytes, err);
  }
  megalith_status status =
      megalith_model_tokenize(model, text, bytes, ids, capacity, &count, &error);
  if (status == MEGALITH_OK && count > capacity) {
    mgl_free(ids);
    capacity = count;
    ids = mgl_alloc_zeroed(capacity, sizeof *ids);
    if (ids == NULL) {
      return out_of_memory(bytes, err);
    }
    status = megalith_model_tokenize(model, text, bytes, ids, capacity, &count, &error);
  }
  mgl_text_format(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", count,
                  megalith_engine_describe(engine)->context_tokens);
  for (size_t i = 0; status == MEGALITH_OK && i < count; i++) {
    mgl_text_format(out, i == 0 ? "%d" : ",%d", ids[i]);
  }
  mgl_text_append_string(out, "]}");
  mgl_free(ids);
  return forward(status, &error, err);
}

static mgl_status append_tokenized(const megalith_model *model, const megalith_engine *engine,
                                   const mgl_ask *ask, mgl_text *out, mgl_error *err) {
  if (!ask->is_chat) {
    return append_ids(model, engine, ask->prompts[0].text, ask->prompts[0].text_bytes, out, err);
  }
  char *text = NULL;
  size_t bytes = 0;
  mgl_status status = mgl_reading_render(model, ask, &text, &bytes, err);
  if (status == MGL_OK) {
    status = append_ids(model, engine, text, bytes, out, err);
  }
  mgl_free(text);
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
