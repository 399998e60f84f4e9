// Submission: from the caller's struct to a request in the inbox, everything checked on the way.
#include <stdio.h>
#include <string.h>

#include "api/api_parts.h"
#include "base/alloc.h"

static mgl_status check_array(const char *name, const void *array, size_t count, mgl_error *err) {
  return array != NULL || count == 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected %zu, found NULL", name, count);
}

// --- the prompt ----------------------------------------------------------------------------------

static mgl_status copy_tokens(const megalith_request_options *options, mgl_token_list *out,
                              mgl_error *err) {
  void *items = out->ids;
  MGL_TRY(mgl_grow(&items, &out->capacity, options->token_count, sizeof *out->ids, err));
  out->ids = items;
  if (options->token_count > 0) {
    memcpy(out->ids, options->tokens, options->token_count * sizeof *out->ids);
  }
  out->count = options->token_count;
  return MGL_OK;
}

mgl_status mgl_api_encode_prompt(const mgl_model_folder *folder,
                                 const megalith_request_options *options, mgl_token_list *out,
                                 mgl_error *err) {
  bool is_chat = options->messages != NULL || options->messages_json != NULL;
  int given = (options->text != NULL) + (options->tokens != NULL) + (options->messages != NULL) +
              (options->messages_json != NULL);
  if (given != 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "prompt: expected one of text, tokens, messages and messages_json, found "
                         "%d",
                         given);
  }
  if (!is_chat && (options->tools_json != NULL || options->chat_variables_json != NULL ||
                   options->continue_final_message)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "prompt: tools_json, chat_variables_json and continue_final_message need "
                         "messages, found %s",
                         options->text != NULL ? "a text" : "tokens");
  }
  if (options->tokens != NULL) {
    return copy_tokens(options, out, err);
  }
  if (folder->tokenizer == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "a text prompt needs a tokenizer.json, and %s has none: use token ids",
                         folder->path);
  }
  if (is_chat) {
    return mgl_api_encode_chat(folder, options, out, err);
  }
  size_t bytes = options->text_bytes != 0 ? options->text_bytes : strlen(options->text);
  mgl_encode_options how = {.add_special = !options->without_special,
                            .plain_special = options->plain_special};
  return mgl_tokenizer_encode(folder->tokenizer, options->text, bytes, how, out, err);
}

// Keeps the end of a prompt that is longer than asked for. Nobody has asked for the usual number of
// new tokens, so that leaves the prompt half of a short context at least.
static void cut_prompt(const megalith_engine *engine, const megalith_request_options *options,
                       mgl_token_list *prompt) {
  uint32_t context = engine->info.context_tokens;
  uint32_t wanted = options->max_new_tokens;
  if (wanted == 0) {
    wanted = engine->default_new_tokens < context / 2 ? engine->default_new_tokens : context / 2;
  }
  size_t most = options->max_prompt_tokens;
  if (most == UINT32_MAX) {
    most = wanted < context ? context - wanted : 1;
  }
  if (most != 0 && prompt->count > most) {
    memmove(prompt->ids, prompt->ids + prompt->count - most, most * sizeof *prompt->ids);
    prompt->count = most;
  }
}

// --- what else is asked --------------------------------------------------------------------------

static mgl_status copy_biases(const megalith_sampling *s, megalith_request *request,
                              mgl_error *err) {
  if (s->bias_count == 0 || s->bias_count > MGL_MAX_LOGIT_BIASES) {
    return MGL_OK;  // too many: refused by the check of the request
  }
  MGL_TRY(check_array("logit biases", s->biases, s->bias_count, err));
  request->biases = mgl_alloc_zeroed(s->bias_count, sizeof *request->biases);
  if (request->biases == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u logit biases", s->bias_count);
  }
  for (uint32_t i = 0; i < s->bias_count; i++) {
    request->biases[i] = (mgl_logit_bias){s->biases[i].token, s->biases[i].value};
  }
  return MGL_OK;
}

static mgl_status copy_allowed(const megalith_sampling *s, uint32_t vocab_size,
                               megalith_request *request, mgl_error *err) {
  if (s->allowed_count > vocab_size) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "allowed tokens: expected at most %u, found %u",
                         vocab_size, s->allowed_count);
  }
  MGL_TRY(check_array("allowed tokens", s->allowed, s->allowed_count, err));
  if (s->allowed_count == 0) {
    return MGL_OK;
  }
  request->allowed = mgl_alloc_zeroed(s->allowed_count, sizeof *request->allowed);
  if (request->allowed == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u allowed tokens",
                         s->allowed_count);
  }
  memcpy(request->allowed, s->allowed, s->allowed_count * sizeof *request->allowed);
  return MGL_OK;
}

// The tokens of a bad word as one more run, unless they are the last run again: some tokenizers put
// a blank before every text.
static mgl_status add_bad_run(const mgl_tokenizer *tokenizer, const char *blank, const char *word,
                              megalith_request *request, mgl_error *err) {
  char text[MEGALITH_MAX_BAD_WORD_BYTES + 2];
  mgl_token_list *tokens = &request->bad_tokens;
  size_t begin = tokens->count;
  size_t last = request->bad_count < 2 ? 0 : request->bad_ends[request->bad_count - 2];
  int bytes = snprintf(text, sizeof text, "%s%s", blank, word);
  MGL_TRY(
      mgl_tokenizer_encode(tokenizer, text, (size_t)bytes, (mgl_encode_options){0}, tokens, err));
  size_t run = tokens->count - begin;
  bool repeats = run == begin - last &&
                 memcmp(tokens->ids + last, tokens->ids + begin, run * sizeof *tokens->ids) == 0;
  if (run == 0 || repeats) {
    tokens->count = begin;
  } else {
    request->bad_ends[request->bad_count++] = (uint32_t)tokens->count;
  }
  return MGL_OK;
}

static mgl_status read_bad_words(const mgl_tokenizer *tokenizer,
                                 const megalith_request_options *options, megalith_request *request,
                                 mgl_error *err) {
  if (options->bad_word_count == 0) {
    return MGL_OK;
  }
  MGL_TRY(check_array("bad_words", options->bad_words, options->bad_word_count, err));
  if (options->bad_word_count > MEGALITH_MAX_BAD_WORDS || tokenizer == NULL) {
    return mgl_error_set(err, tokenizer == NULL ? MGL_ERR_UNSUPPORTED : MGL_ERR_LIMIT,
                         "bad words: expected at most %d, and a tokenizer.json, found %u",
                         MEGALITH_MAX_BAD_WORDS, options->bad_word_count);
  }
  request->bad_ends =
      mgl_alloc_zeroed(2 * (size_t)options->bad_word_count, sizeof *request->bad_ends);
  if (request->bad_ends == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for bad words");
  }
  for (uint32_t i = 0; i < options->bad_word_count; i++) {
    const char *word = options->bad_words[i];
    size_t bytes = word == NULL ? 0 : strlen(word);
    if (bytes < 1 || bytes > MEGALITH_MAX_BAD_WORD_BYTES) {
      return mgl_error_set(err, MGL_ERR_LIMIT, "bad word %u: expected 1 to %d bytes, found %zu", i,
                           MEGALITH_MAX_BAD_WORD_BYTES, bytes);
    }
    MGL_TRY(add_bad_run(tokenizer, "", word, request, err));
    MGL_TRY(add_bad_run(tokenizer, " ", word, request, err));
  }
  request->asked.sampling.bad_runs = (mgl_bad_runs){
      .tokens = request->bad_tokens.ids, .ends = request->bad_ends, .count = request->bad_count};
  return MGL_OK;
}

// Memory for what the engine shall find out about the prompt.
static mgl_status read_prompt_logprobs(const megalith_sampling *s, uint32_t vocab_size,
                                       megalith_request *request, mgl_error *err) {
  size_t count = request->prompt.count;
  uint32_t tops = s->prompt_top_logprobs;
  if (!s->prompt_logprobs) {
    return MGL_OK;
  }
  if (tops > MGL_MAX_TOP_LOGPROBS) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "log probabilities of a prompt: expected at most %d, found %u",
                         MGL_MAX_TOP_LOGPROBS, tops);
  }
  tops = tops < vocab_size ? tops : vocab_size;
  request->prompt_logprobs = mgl_alloc_zeroed(count + 1, sizeof *request->prompt_logprobs);
  request->prompt_top = mgl_alloc_zeroed(count * tops + 1, sizeof *request->prompt_top);
  request->prompt_told = mgl_alloc_zeroed(count * tops + 1, sizeof *request->prompt_told);
  if (request->prompt_logprobs == NULL || request->prompt_top == NULL ||
      request->prompt_told == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "out of memory for the log probabilities of a prompt of %zu tokens",
                         count);
  }
  request->asked.prompt_logprobs = request->prompt_logprobs;
  request->asked.prompt_top = request->prompt_top;
  request->asked.prompt_top_count = tops;
  return MGL_OK;
}

// All of it but what lies in the request's own memory.
static mgl_sampling plain_sampling(const megalith_sampling *s) {
  return (mgl_sampling){.temperature = s->temperature,
                        .top_k = s->top_k,
                        .top_p = s->top_p == 0 ? 1 : s->top_p,
                        .min_p = s->min_p,
                        .repetition_penalty = s->repetition_penalty,
                        .presence_penalty = s->presence_penalty,
                        .frequency_penalty = s->frequency_penalty,
                        .min_tokens = s->min_new_tokens,
                        .logprobs = s->logprobs,
                        .top_logprobs = s->logprobs ? s->top_logprobs : 0,
                        .seed = s->seed};
}

static mgl_status read_sampling(const megalith_model *model, const megalith_sampling *given,
                                megalith_request *request, mgl_error *err) {
  megalith_sampling s;
  uint32_t most = request->asked.max_new_tokens;
  MGL_TRY(mgl_api_read_options(given, sizeof s, "megalith_sampling", &s, err));
  if (given == NULL) {
    s = model->sampling;
    s.min_new_tokens = s.min_new_tokens < most ? s.min_new_tokens : most;
  }
  MGL_TRY(copy_biases(&s, request, err));
  MGL_TRY(copy_allowed(&s, model->info.vocab_size, request, err));
  MGL_TRY(read_prompt_logprobs(&s, model->info.vocab_size, request, err));
  mgl_sampling *sampling = &request->asked.sampling;
  *sampling = plain_sampling(&s);
  sampling->biases = request->biases;
  sampling->bias_count = s.bias_count;
  sampling->allowed = request->allowed;
  sampling->allowed_count = s.allowed_count;
  return MGL_OK;
}

static mgl_status check_sampling(const megalith_sampling *given, mgl_error *err) {
  megalith_sampling s;
  megalith_request scratch = {.hub = NULL};
  MGL_TRY(mgl_api_read_options(given, sizeof s, "megalith_sampling", &s, err));
  mgl_sampling sampling = plain_sampling(&s);
  mgl_status status = copy_biases(&s, &scratch, err);
  if (status == MGL_OK) {
    sampling.biases = scratch.biases;
    sampling.bias_count = s.bias_count;
    status = mgl_sampling_check(&sampling, err);
  }
  mgl_free(scratch.biases);
  return status;
}

megalith_status megalith_sampling_check(const megalith_sampling *sampling, megalith_error *error) {
  mgl_error err = {0};
  return mgl_api_report(check_sampling(sampling, &err), &err, error);
}

// Memory for all that a request will give.
static mgl_status allocate_outputs(const megalith_engine *engine, megalith_request *request,
                                   mgl_error *err) {
  const mgl_request *asked = &request->asked;
  size_t most = asked->max_new_tokens;
  uint32_t vocab_size = mgl_runner_vocab_size(engine->runner);
  bool logprobs = asked->sampling.logprobs;
  request->top_count =
      asked->sampling.top_logprobs < vocab_size ? asked->sampling.top_logprobs : vocab_size;
  request->tokens = mgl_alloc_zeroed(most, sizeof *request->tokens);
  request->text_ends = mgl_alloc_zeroed(most + 1, sizeof *request->text_ends);
  if (logprobs) {
    request->logprobs = mgl_alloc_zeroed(most, sizeof *request->logprobs);
    request->top = mgl_alloc_zeroed(most * request->top_count + 1, sizeof *request->top);
  }
  bool got_all = request->tokens != NULL && request->text_ends != NULL &&
                 (!logprobs || (request->logprobs != NULL && request->top != NULL));
  return got_all ? MGL_OK
                 : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a request of %u tokens",
                                 asked->max_new_tokens);
}

static mgl_status read_salt(const megalith_request_options *options, megalith_request *request,
                            mgl_error *err) {
  if (options->cache_salt_bytes > MGL_MAX_SALT_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "cache_salt: expected at most %d bytes, found %zu",
                         MGL_MAX_SALT_BYTES, options->cache_salt_bytes);
  }
  MGL_TRY(check_array("cache_salt", options->cache_salt, options->cache_salt_bytes, err));
  if (options->cache_salt_bytes > 0) {
    memcpy(request->salt, options->cache_salt, options->cache_salt_bytes);
  }
  request->asked.salt = request->salt;
  request->asked.salt_bytes = options->cache_salt_bytes;
  return MGL_OK;
}

static mgl_status read_stops(const megalith_model *model, const megalith_request_options *options,
                             megalith_request *request, mgl_error *err) {
  const mgl_generation *generation = &model->folder.generation;
  uint32_t models = options->ignore_model_stops ? 0 : generation->eos_count;
  if (options->stop_token_count > MGL_MAX_EOS_IDS - models) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "stop tokens: expected at most %u besides the model's %u, found %u",
                         MGL_MAX_EOS_IDS - models, models, options->stop_token_count);
  }
  MGL_TRY(check_array("stop_tokens", options->stop_tokens, options->stop_token_count, err));
  MGL_TRY(
      mgl_api_check_ids(model, "stop token", options->stop_tokens, options->stop_token_count, err));
  if (models > 0) {
    memcpy(request->stop_ids, generation->eos_ids, models * sizeof *request->stop_ids);
  }
  if (options->stop_token_count > 0) {
    memcpy(request->stop_ids + models, options->stop_tokens,
           options->stop_token_count * sizeof *request->stop_ids);
  }
  request->asked.stop_ids = request->stop_ids;
  request->asked.stop_count = models + options->stop_token_count;
  return MGL_OK;
}

// The default is cut to what the context leaves; an explicit number is not.
static uint32_t choose_new_tokens(const megalith_engine *engine, uint32_t wanted,
                                  size_t prompt_count) {
  uint64_t most = engine->info.context_tokens;
  if (wanted != 0 || prompt_count >= most) {
    return wanted != 0 ? wanted : 1;  // refused by the check of the request
  }
  uint64_t left = most - prompt_count;
  return (uint32_t)(engine->default_new_tokens < left ? engine->default_new_tokens : left);
}

static mgl_status fill_request(const megalith_engine *engine,
                               const megalith_request_options *options, megalith_request *request,
                               mgl_error *err) {
  const mgl_model_folder *folder = &engine->model->folder;
  MGL_TRY(mgl_api_encode_prompt(folder, options, &request->prompt, err));
  cut_prompt(engine, options, &request->prompt);
  mgl_request *asked = &request->asked;
  asked->prompt = request->prompt.ids;
  asked->prompt_count = request->prompt.count;
  asked->max_new_tokens = choose_new_tokens(engine, options->max_new_tokens, request->prompt.count);
  MGL_TRY(read_sampling(engine->model, options->sampling, request, err));
  MGL_TRY(read_bad_words(folder->tokenizer, options, request, err));
  MGL_TRY(read_stops(engine->model, options, request, err));
  MGL_TRY(read_salt(options, request, err));
  if (options->grammar != NULL) {
    asked->grammar = mgl_api_grammar(options->grammar);
    mgl_grammar_keep(asked->grammar);
  }
  MGL_TRY(mgl_engine_check(engine->engine, asked, err));
  MGL_TRY(check_array("stop_texts", options->stop_texts, options->stop_text_count, err));
  const bool begins = (options->messages != NULL || options->messages_json != NULL) &&
                      !options->continue_final_message;  // an answer is a text of its own
  const mgl_text_output_options text_options = {.stops = options->stop_texts,
                                                .stop_count = options->stop_text_count,
                                                .keep_special = options->keep_special,
                                                .keep_stop = options->keep_stop_text,
                                                .behind = request->prompt.ids,
                                                .behind_count = begins ? 0 : request->prompt.count};
  MGL_TRY(mgl_text_output_create(folder->tokenizer, &text_options, &request->output, err));
  MGL_TRY(allocate_outputs(engine, request, err));
  request->on_output = options->on_output;
  request->context = options->context;
  asked->priority = options->priority;
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

static void init_changed(megalith_request *request) {
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&request->changed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

// Puts a complete request into the inbox; from here on the engine's thread may have it.
static mgl_status enter_inbox(hub *h, megalith_request *request, bool has_handle, mgl_error *err) {
  mgl_status status = MGL_OK;
  (void)pthread_mutex_lock(&h->lock);
  if (h->quit) {
    status = mgl_error_set(err, MGL_ERR_ARGUMENT, "the engine is being destroyed");
  } else if (h->broken.status != MEGALITH_OK) {
    status = mgl_error_set(err, (mgl_status)h->broken.status, "the engine has failed: %s",
                           h->broken.text);
  } else if (h->outstanding == MEGALITH_MAX_REQUESTS) {
    status = mgl_error_set(err, MGL_ERR_LIMIT,
                           "expected at most %d requests that have not finished, found more",
                           MEGALITH_MAX_REQUESTS);
  } else {
    h->references++;
    h->outstanding++;
    request->hub = h;
    request->life = mgl_life_begin(has_handle);
    mgl_api_append_inbox(request);
  }
  (void)pthread_mutex_unlock(&h->lock);
  return status;
}

static mgl_status submit(megalith_engine *engine, const megalith_request_options *given,
                         megalith_request **out, mgl_error *err) {
  megalith_request_options options;
  MGL_TRY(mgl_api_read_options(given, sizeof options, "megalith_request_options", &options, err));
  if (engine->scoring) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "request: expected an engine that was created without scoring");
  }
  megalith_request *request = mgl_alloc_zeroed(1, sizeof *request);
  if (request == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a request");
  }
  init_changed(request);
  mgl_status status = fill_request(engine, &options, request, err);
  if (status == MGL_OK) {
    status = enter_inbox(engine->hub, request, out != NULL, err);
  }
  if (status != MGL_OK) {
    mgl_api_destroy_request(request);
    return status;
  }
  if (out != NULL) {
    *out = request;
  }
  return MGL_OK;
}

megalith_status megalith_engine_submit(megalith_engine *engine,
                                       const megalith_request_options *options,
                                       megalith_request **out, megalith_error *error) {
  mgl_error err = {0};
  if (out != NULL) {
    *out = NULL;
  }
  return mgl_api_report(submit(engine, options, out, &err), &err, error);
}
