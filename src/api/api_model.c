#include <string.h>

#include "api/api_parts.h"
#include "base/alloc.h"
#include "model/chat.h"

_Static_assert((int)MEGALITH_OK == (int)MGL_OK, "one numbering");
_Static_assert((int)MEGALITH_ERROR_ARGUMENT == (int)MGL_ERR_ARGUMENT, "one numbering");
_Static_assert((int)MEGALITH_ERROR_FORMAT == (int)MGL_ERR_FORMAT, "one numbering");
_Static_assert((int)MEGALITH_ERROR_UNSUPPORTED == (int)MGL_ERR_UNSUPPORTED, "one numbering");
_Static_assert((int)MEGALITH_ERROR_IO == (int)MGL_ERR_IO, "one numbering");
_Static_assert((int)MEGALITH_ERROR_MEMORY == (int)MGL_ERR_MEMORY, "one numbering");
_Static_assert((int)MEGALITH_ERROR_LIMIT == (int)MGL_ERR_LIMIT, "one numbering");
_Static_assert((int)MEGALITH_ERROR_INTERNAL == (int)MGL_ERR_INTERNAL, "one numbering");
_Static_assert((int)MEGALITH_ERROR_TEXT_BYTES == (int)MGL_ERROR_TEXT_BYTES, "one size of texts");
_Static_assert((int)MEGALITH_MAX_PROMPT_BYTES == (int)MGL_TOKENIZER_MAX_TEXT_BYTES, "one limit");
_Static_assert((int)MEGALITH_MAX_MESSAGES == (int)MGL_MAX_CHAT_MESSAGES, "one limit");
_Static_assert((int)MEGALITH_MAX_STOP_TOKENS == (int)MGL_MAX_EOS_IDS, "one limit");
_Static_assert((int)MEGALITH_MAX_SALT_BYTES == (int)MGL_MAX_SALT_BYTES, "one limit");
_Static_assert((int)MEGALITH_MAX_STOP_TEXTS == (int)MGL_MAX_STOP_TEXTS, "one limit");
_Static_assert((int)MEGALITH_MAX_STOP_TEXT_BYTES == (int)MGL_MAX_STOP_TEXT_BYTES, "one limit");
_Static_assert((int)MEGALITH_MAX_LOGIT_BIASES == (int)MGL_MAX_LOGIT_BIASES, "one limit");
_Static_assert((int)MEGALITH_MAX_TOP_LOGPROBS == (int)MGL_MAX_TOP_LOGPROBS, "one limit");
_Static_assert(MEGALITH_VERSION_MAJOR == MGL_VERSION_MAJOR &&
                   MEGALITH_VERSION_MINOR == MGL_VERSION_MINOR &&
                   MEGALITH_VERSION_PATCH == MGL_VERSION_PATCH,
               "the public header has the version of CMakeLists.txt");

// --- structs and errors of callers ---------------------------------------------------------------

mgl_status mgl_api_read_options(const void *given, size_t known_bytes, const char *what, void *out,
                                mgl_error *err) {
  size_t bytes = 0;
  memset(out, 0, known_bytes);
  if (given == NULL) {
    return MGL_OK;
  }
  memcpy(&bytes, given, sizeof bytes);
  if (bytes < sizeof bytes || bytes > 16 * known_bytes) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected size to be sizeof(%s), found %zu",
                         what, what, bytes);
  }
  for (size_t i = known_bytes; i < bytes; i++) {
    if (((const unsigned char *)given)[i] != 0) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                           "%s: byte %zu is set, which libmegalith %s does not know; it knows %zu",
                           what, i, MGL_VERSION, known_bytes);
    }
  }
  memcpy(out, given, bytes < known_bytes ? bytes : known_bytes);
  return MGL_OK;
}

megalith_status mgl_api_report(mgl_status status, const mgl_error *err, megalith_error *out) {
  if (out != NULL) {
    *out = (megalith_error){.status = (megalith_status)status};
    if (status != MGL_OK && err != NULL) {
      memcpy(out->text, err->text, sizeof out->text);
    }
  }
  return (megalith_status)status;
}

const char *megalith_version(void) {
  return MGL_VERSION;
}

// --- models --------------------------------------------------------------------------------------

// Variables of the template that a caller may set: all but those that Megalith sets.
static void describe_template(megalith_model *model) {
  static const char *const own[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                    "eos_token"};
  const mgl_chat_template *chat = model->folder.chat_template;
  size_t count = 0;
  const char *const *names = chat == NULL ? NULL : mgl_chat_template_variables(chat, &count);
  model->info.chat_template = chat == NULL ? "" : mgl_chat_template_source(chat);
  for (size_t i = 0; i < count; i++) {
    bool is_own = false;
    for (size_t j = 0; j < sizeof own / sizeof *own; j++) {
      is_own = is_own || strcmp(names[i], own[j]) == 0;
    }
    if (!is_own) {
      model->template_variables[model->info.template_variable_count++] = names[i];
    }
  }
  model->info.template_variables = model->template_variables;
}

static void describe(megalith_model *model) {
  const mgl_model_folder *folder = &model->folder;
  model->info = (megalith_model_info){
      .family = mgl_family_name(folder->config.family),
      .vocab_size = folder->config.vocab_size,
      .context_tokens = folder->config.context_tokens,
      .has_tokenizer = folder->tokenizer != NULL,
      .has_chat_template = folder->chat_template != NULL,
      .unapplied = folder->generation.unapplied,
      .tokenizer_size = folder->tokenizer == NULL ? 0 : mgl_tokenizer_vocab_size(folder->tokenizer),
      .sampling = &model->sampling,
      .max_new_tokens = folder->generation.max_new_tokens,
      .temperature = folder->generation.temperature};
  describe_template(model);
  const mgl_generation *generation = &folder->generation;
  model->sampling =
      (megalith_sampling){.size = sizeof model->sampling,
                          .temperature = generation->do_sample ? generation->temperature : 0,
                          .top_k = generation->top_k,
                          .top_p = generation->top_p,
                          .min_p = generation->min_p,
                          .repetition_penalty = generation->repetition_penalty,
                          .min_new_tokens = generation->min_new_tokens};
}

static mgl_status open_model(const char *path, const megalith_model_options *given,
                             megalith_model **out, mgl_error *err) {
  static const mgl_weight_source sources[] = {
      [MEGALITH_WEIGHTS_AUTO] = MGL_WEIGHTS_AUTO,
      [MEGALITH_WEIGHTS_MAPPED] = MGL_WEIGHTS_MAPPED,
      [MEGALITH_WEIGHTS_COPIED] = MGL_WEIGHTS_COPIED,
      [MEGALITH_WEIGHTS_DUMMY] = MGL_WEIGHTS_DUMMY,
      [MEGALITH_WEIGHTS_SHORT] = MGL_WEIGHTS_SHORT,
      [MEGALITH_WEIGHTS_NONE] = MGL_WEIGHTS_DUMMY,  // which nothing will draw
  };
  megalith_model_options options;
  MGL_TRY(mgl_api_read_options(given, sizeof options, "megalith_model_options", &options, err));
  if (path == NULL || path[0] == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "model: expected a path, found none");
  }
  if ((size_t)options.weights >= sizeof sources / sizeof *sources) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "weights: expected 0 to 5, found %d",
                         (int)options.weights);
  }
  megalith_model *model = mgl_alloc_zeroed(1, sizeof *model);
  if (model == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a model");
  }
  atomic_init(&model->references, 1);
  model->source = sources[options.weights];
  model->dummy_seed = options.dummy_seed;
  model->has_weights = options.weights != MEGALITH_WEIGHTS_NONE;
  unsigned needs = MGL_WANT_TEXT;
  needs |= options.needs_tokenizer ? (unsigned)MGL_NEED_TOKENIZER : 0u;
  needs |= options.needs_chat_template ? (unsigned)MGL_NEED_CHAT_TEMPLATE : 0u;
  needs |= model->source == MGL_WEIGHTS_DUMMY ? 0u : (unsigned)MGL_NEED_WEIGHTS;
  mgl_status status = mgl_model_folder_open(path, needs, &model->folder, err);
  if (status == MGL_OK) {
    status = mgl_grammar_cache_create(model->folder.tokenizer, model->folder.config.vocab_size,
                                      &model->grammars, err);
  }
  if (status != MGL_OK) {
    mgl_model_folder_close(&model->folder);
    mgl_free(model);
    return status;
  }
  describe(model);
  *out = model;
  return MGL_OK;
}

megalith_status megalith_model_open(const char *path, const megalith_model_options *options,
                                    megalith_model **out, megalith_error *error) {
  mgl_error err = {0};
  *out = NULL;
  return mgl_api_report(open_model(path, options, out, &err), &err, error);
}

void mgl_api_keep_model(megalith_model *model) {
  // Relaxed: whoever keeps it holds a reference already.
  atomic_fetch_add_explicit(&model->references, 1, memory_order_relaxed);
}

void megalith_model_close(megalith_model *model) {
  // The last one sees all that others did with the model before they let go.
  if (model != NULL && mgl_count_add_acq_rel(&model->references, UINT32_MAX) == 1) {
    mgl_grammar_cache_destroy(model->grammars);
    mgl_model_folder_close(&model->folder);
    mgl_free(model);
  }
}

const megalith_model_info *megalith_model_describe(const megalith_model *model) {
  return &model->info;
}

// --- text and tokens -----------------------------------------------------------------------------

static mgl_status need_tokenizer(const megalith_model *model, mgl_error *err) {
  if (model->folder.tokenizer == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "text needs a tokenizer.json, and %s has none: use token ids",
                         model->folder.path);
  }
  return MGL_OK;
}

static mgl_status check_below(uint32_t limit, const char *what, const int32_t *ids, size_t count,
                              mgl_error *err) {
  for (size_t i = 0; i < count; i++) {
    if (ids[i] < 0 || (uint32_t)ids[i] >= limit) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s %zu: expected an id of 0 to %u, found %d",
                           what, i, limit - 1, ids[i]);
    }
  }
  return MGL_OK;
}

mgl_status mgl_api_check_ids(const megalith_model *model, const char *what, const int32_t *ids,
                             size_t count, mgl_error *err) {
  return check_below(model->info.vocab_size, what, ids, count, err);
}

static void hand_out_ids(const mgl_token_list *list, int32_t *ids, size_t capacity, size_t *count) {
  size_t copied = list->count < capacity ? list->count : capacity;
  *count = list->count;
  if (copied > 0) {
    memcpy(ids, list->ids, copied * sizeof *ids);
  }
}

megalith_status megalith_model_tokenize(const megalith_model *model, const char *text, size_t bytes,
                                        int32_t *ids, size_t capacity, size_t *count,
                                        megalith_error *error) {
  mgl_error err = {0};
  mgl_token_list list = {0};
  *count = 0;
  mgl_status status = need_tokenizer(model, &err);
  if (status == MGL_OK) {
    status = mgl_tokenizer_encode(model->folder.tokenizer, text, bytes,
                                  (mgl_encode_options){.add_special = true}, &list, &err);
  }
  if (status == MGL_OK) {
    hand_out_ids(&list, ids, capacity, count);
  }
  mgl_token_list_free(&list);
  return mgl_api_report(status, &err, error);
}

megalith_status megalith_model_encode(const megalith_model *model,
                                      const megalith_request_options *options, int32_t *ids,
                                      size_t capacity, size_t *count, megalith_error *error) {
  mgl_error err = {0};
  mgl_token_list list = {0};
  megalith_request_options known;
  *count = 0;
  mgl_status status =
      mgl_api_read_options(options, sizeof known, "megalith_request_options", &known, &err);
  if (status == MGL_OK) {
    status = mgl_api_encode_prompt(&model->folder, &known, &list, &err);
  }
  if (status == MGL_OK) {
    hand_out_ids(&list, ids, capacity, count);
  }
  mgl_token_list_free(&list);
  return mgl_api_report(status, &err, error);
}

megalith_status mgl_api_give_text(mgl_status status, mgl_text *all, char *text, size_t capacity,
                                  size_t *bytes, mgl_error *err, megalith_error *error) {
  if (status == MGL_OK) {
    status = mgl_text_check(all, err);
  }
  *bytes = status == MGL_OK ? all->bytes : 0;
  if (status == MGL_OK && capacity > 0) {
    size_t copied = all->bytes < capacity - 1 ? all->bytes : capacity - 1;
    if (copied > 0) {
      memcpy(text, all->data, copied);
    }
    text[copied] = 0;
  }
  mgl_text_free(all);
  return mgl_api_report(status, err, error);
}

// Ids below this may have a text.
static uint32_t text_limit(const megalith_model *model) {
  const megalith_model_info *info = &model->info;
  return info->vocab_size > info->tokenizer_size ? info->vocab_size : info->tokenizer_size;
}

static megalith_status decode(const megalith_model *model, const int32_t *ids, size_t count,
                              bool skip_special, char *text, size_t capacity, size_t *bytes,
                              megalith_error *error) {
  mgl_error err = {0};
  mgl_text all = {0};
  mgl_status status = need_tokenizer(model, &err);
  if (status == MGL_OK) {
    status = check_below(text_limit(model), "token", ids, count, &err);
  }
  if (status == MGL_OK) {
    status = mgl_tokenizer_decode(model->folder.tokenizer, ids, count, skip_special, &all, &err);
  }
  return mgl_api_give_text(status, &all, text, capacity, bytes, &err, error);
}

megalith_status megalith_model_detokenize(const megalith_model *model, const int32_t *ids,
                                          size_t count, char *text, size_t capacity, size_t *bytes,
                                          megalith_error *error) {
  return decode(model, ids, count, true, text, capacity, bytes, error);
}

megalith_status megalith_model_detokenize_special(const megalith_model *model, const int32_t *ids,
                                                  size_t count, char *text, size_t capacity,
                                                  size_t *bytes, megalith_error *error) {
  return decode(model, ids, count, false, text, capacity, bytes, error);
}

megalith_status megalith_model_token_text(const megalith_model *model, int32_t id, char *text,
                                          size_t capacity, size_t *bytes, megalith_error *error) {
  return decode(model, &id, 1, false, text, capacity, bytes, error);
}

megalith_status megalith_model_token_bytes(const megalith_model *model, int32_t id, char *bytes,
                                           size_t capacity, size_t *count, megalith_error *error) {
  mgl_error err = {0};
  mgl_text all = {0};
  bool is_token = false, is_special = false;
  mgl_status status = need_tokenizer(model, &err);
  if (status == MGL_OK) {
    status = check_below(text_limit(model), "token", &id, 1, &err);
  }
  if (status == MGL_OK) {
    status =
        mgl_tokenizer_token_bytes(model->folder.tokenizer, id, &all, &is_token, &is_special, &err);
    // Special tokens, and those of tokenizers that put spaces between tokens, have a text alone.
    if (status == MGL_ERR_UNSUPPORTED || is_special) {
      status = mgl_tokenizer_decode(model->folder.tokenizer, &id, 1, false, &all, &err);
    }
  }
  return mgl_api_give_text(status, &all, bytes, capacity, count, &err, error);
}
