#include "app/run_prompts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/chat_options.h"
#include "app/client.h"
#include "app/grammar_options.h"
#include "app/output.h"
#include "app/sampling_options.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"

enum { DEFAULT_MAX_TOKENS = 256 };

// What all prompts share.
typedef struct collector {
  const mgl_arguments *arguments;
  const megalith_model *model;
  const megalith_model_info *info;  // of the model
  const megalith_sampling *sampling;
  mgl_app_chat chat;  // of the command line
  mgl_prompt_list *list;
} collector;

// A prompt as it was written, before it is tokens. Pointers are borrowed.
typedef struct written_prompt {
  const char *text;  // NULL: messages
  size_t bytes;
  const json_t *messages;
  const mgl_app_chat *chat;  // of messages; of a text too, where texts are messages
} written_prompt;

// --- encoding ------------------------------------------------------------------------------------

// The text as a user's message.
static mgl_status encode_message(const collector *c, const written_prompt *written,
                                 megalith_request_options *options, mgl_ids *out, mgl_error *err) {
  if (memchr(written->text, 0, written->bytes) != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected text, found a NUL byte, which a chat template cannot take");
  }
  char *copy = mgl_strndup(written->text, written->bytes);
  if (copy == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a prompt");
  }
  const char *system = mgl_arguments_text(c->arguments, "system", NULL);
  const megalith_message messages[] = {{.role = "system", .content = system},
                                       {.role = "user", .content = copy}};
  size_t first = system == NULL ? 1 : 0;
  options->messages = messages + first;
  options->message_count = 2 - first;
  mgl_status status = mgl_client_encode(c->model, options, out, err);
  mgl_free(copy);
  return status;
}

static mgl_status encode(const collector *c, const written_prompt *written, mgl_ids *out,
                         mgl_error *err) {
  megalith_request_options options = {.size = sizeof options};
  mgl_app_chat_texts texts;
  const bool is_chat = written->text == NULL || mgl_arguments_has(c->arguments, "chat");
  if (!c->info->has_tokenizer) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "text needs a tokenizer.json, and the model's folder has none: use tokens");
  }
  if (!is_chat) {
    options.text = written->text;
    options.text_bytes = written->bytes;
    return mgl_client_encode(c->model, &options, out, err);
  }
  mgl_status status = mgl_app_chat_request(written->chat, written->messages, &texts, &options, err);
  if (status == MGL_OK) {
    status = written->text != NULL ? encode_message(c, written, &options, out, err)
                                   : mgl_client_encode(c->model, &options, out, err);
  }
  mgl_app_chat_texts_free(&texts);
  return status;
}

// How many tokens a prompt may get; the default is cut to the context, an explicit number is not.
// `asked`: by the prompt itself, 0: nothing.
static mgl_status limit_tokens(const collector *c, uint64_t asked, mgl_prompt *prompt,
                               mgl_error *err) {
  uint64_t context = c->info->context_tokens;
  uint32_t models = c->info->max_new_tokens;
  bool is_explicit = asked != 0 || mgl_arguments_has(c->arguments, "max-tokens");
  uint64_t wanted = asked != 0 ? asked
                               : mgl_arguments_u64(c->arguments, "max-tokens",
                                                   models != 0 ? models : DEFAULT_MAX_TOKENS);
  size_t count = prompt->tokens.count;
  if (count == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected at least 1 token, found an empty text");
  }
  if (count >= context) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "expected at most %llu tokens (the model's context is %llu), found %zu",
                         (unsigned long long)(context - 1), (unsigned long long)context, count);
  }
  uint64_t left = context - count;
  if (wanted > left && is_explicit) {
    return mgl_error_set(
        err, MGL_ERR_LIMIT,
        "%zu tokens and %llu new ones do not fit into the model's context of %llu: "
        "expected %s %llu at most",
        count, (unsigned long long)wanted, (unsigned long long)context,
        asked != 0 ? "\"max_tokens\"" : "--max-tokens", (unsigned long long)left);
  }
  prompt->max_new_tokens = (uint32_t)(wanted < left ? wanted : left);
  return MGL_OK;
}

// The model's default of the least tokens is cut to what a prompt may get; an explicit number is
// not.
static void limit_least(const collector *c, bool is_explicit, mgl_prompt *prompt) {
  is_explicit = is_explicit || mgl_arguments_has(c->arguments, "min-tokens");
  if (!is_explicit && prompt->sampling.min_new_tokens > prompt->max_new_tokens) {
    prompt->sampling.min_new_tokens = prompt->max_new_tokens;
  }
}

// --- the list ------------------------------------------------------------------------------------

static mgl_status add_stop(mgl_prompt *prompt, const char *text, mgl_error *err) {
  if (text[0] == 0 || strlen(text) > MEGALITH_MAX_STOP_TEXT_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "stop text: expected 1 to %d bytes, found %zu",
                         MEGALITH_MAX_STOP_TEXT_BYTES, strlen(text));
  }
  if (prompt->stop_count == MEGALITH_MAX_STOP_TEXTS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d stop texts, found more",
                         MEGALITH_MAX_STOP_TEXTS);
  }
  prompt->stops[prompt->stop_count] = mgl_strdup(text);
  if (prompt->stops[prompt->stop_count] == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a stop text");
  }
  prompt->stop_count++;
  return MGL_OK;
}

// What the command line says of every prompt.
static mgl_status fill_defaults(const collector *c, mgl_prompt *prompt, mgl_error *err) {
  prompt->sampling = *c->sampling;
  prompt->sampling.seed += c->list->count - 1;
  prompt->ignores_eos = mgl_arguments_has(c->arguments, "ignore-eos");
  prompt->stops = mgl_alloc_zeroed(MEGALITH_MAX_STOP_TEXTS, sizeof *prompt->stops);
  if (prompt->stops == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a prompt");
  }
  for (size_t i = 0; i < c->arguments->count; i++) {
    const mgl_argument *argument = &c->arguments->items[i];
    if (strcmp(argument->option->name, "stop") == 0) {
      MGL_TRY(add_stop(prompt, argument->text, err));
    }
  }
  return MGL_OK;
}

static mgl_status append_prompt(collector *c, mgl_prompt **out, mgl_error *err) {
  mgl_prompt_list *list = c->list;
  void *items = list->items;
  if (list->count == MGL_RUN_MAX_PROMPTS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d prompts, found more",
                         MGL_RUN_MAX_PROMPTS);
  }
  MGL_TRY(mgl_grow(&items, &list->capacity, list->count + 1, sizeof *list->items, err));
  list->items = items;
  *out = &list->items[list->count++];
  **out = (mgl_prompt){0};
  return fill_defaults(c, *out, err);
}

mgl_status mgl_prompt_fail(mgl_prompt *prompt, mgl_status status, const mgl_error *reason,
                           mgl_error *err) {
  if (prompt->file == NULL || status == MGL_ERR_MEMORY || status == MGL_ERR_IO ||
      status == MGL_ERR_INTERNAL) {
    return mgl_error_set(err, status, "%s", reason->text);
  }
  mgl_free(prompt->error);
  prompt->error = mgl_strdup(reason->text);
  return prompt->error != NULL ? MGL_OK
                               : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a message");
}

static void free_prompt(mgl_prompt *prompt) {
  mgl_free(prompt->id);
  mgl_free(prompt->error);
  mgl_free(prompt->tokens.ids);
  for (uint32_t i = 0; i < prompt->stop_count; i++) {
    mgl_free(prompt->stops[i]);
  }
  mgl_free(prompt->stops);
  mgl_free(prompt->biases);
  megalith_grammar_release(prompt->own_grammar);
}

void mgl_prompts_free(mgl_prompt_list *list) {
  for (size_t i = 0; i < list->count; i++) {
    free_prompt(&list->items[i]);
  }
  mgl_free(list->items);
  megalith_grammar_release(list->grammar);
  *list = (mgl_prompt_list){0};
}

// --- JSON lines ----------------------------------------------------------------------------------

// Every key that a line may have, NULL behind the last.
static const char *const line_keys[] = {"id",
                                        "prompt",
                                        "messages",
                                        "tokens",
                                        "max_tokens",
                                        "stop",
                                        "ignore_eos",
                                        MGL_APP_CHAT_KEYS,
                                        MGL_APP_SAMPLING_KEYS,
                                        MGL_APP_GRAMMAR_KEYS,
                                        NULL};

static mgl_status unknown_key(const char *key, mgl_error *err) {
  char expected[512] = "";
  size_t used = 0;
  for (size_t i = 0; line_keys[i] != NULL; i++) {
    const char *before = i == 0 ? "" : line_keys[i + 1] == NULL ? " or " : ", ";
    used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", before, line_keys[i]);
    assert(used < sizeof expected);
  }
  return mgl_error_set(err, MGL_ERR_FORMAT, "unknown key \"%.40s\": expected %s", key, expected);
}

static mgl_status check_keys(mgl_json_object o, mgl_error *err) {
  const char *key = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)o.object, key, value) {
    size_t i = 0;
    while (line_keys[i] != NULL && strcmp(line_keys[i], key) != 0) {
      i++;
    }
    if (line_keys[i] == NULL) {
      return unknown_key(key, err);
    }
  }
  return MGL_OK;
}

static mgl_status read_id(mgl_json_object o, mgl_prompt *prompt, mgl_error *err) {
  const json_t *id = json_object_get(o.object, "id");
  if (id == NULL) {
    return MGL_OK;
  }
  if (!json_is_string(id) && !json_is_integer(id)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "\"id\": expected a string or an integer");
  }
  mgl_text text = {0};
  if (json_is_string(id)) {
    mgl_json_append_string(&text, json_string_value(id), json_string_length(id));
  } else {
    mgl_text_format(&text, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
  }
  prompt->id = text.data;  // the text's memory is what mgl_free takes
  return mgl_text_check(&text, err);
}

static mgl_status read_parameters(mgl_json_object o, mgl_prompt *prompt, uint64_t *max_tokens,
                                  mgl_error *err) {
  MGL_TRY(mgl_json_opt_u64(o, "max_tokens", 1, MGL_MAX_CONTEXT, max_tokens, err));
  bool ignores_eos = false;
  MGL_TRY(mgl_json_opt_bool(o, "ignore_eos", &ignores_eos, err));
  prompt->ignores_eos = prompt->ignores_eos || ignores_eos;
  return mgl_app_sampling_read(o, &prompt->sampling, &prompt->biases, err);
}

static mgl_status read_stop_texts(mgl_json_object o, mgl_prompt *prompt, mgl_error *err) {
  const json_t *stop = json_object_get(o.object, "stop");
  if (stop == NULL || json_is_null(stop)) {
    return MGL_OK;
  }
  size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
  for (size_t i = 0; i < count; i++) {
    const json_t *item = json_is_array(stop) ? json_array_get(stop, i) : stop;
    if (mgl_json_plain_string(item) == NULL) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "\"stop\": expected a string or an array of strings without NUL");
    }
    MGL_TRY(add_stop(prompt, json_string_value(item), err));
  }
  return MGL_OK;
}

static mgl_status read_tokens(const json_t *tokens, uint32_t vocab_size, mgl_ids *out,
                              mgl_error *err) {
  if (!json_is_array(tokens)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "\"tokens\": expected an array of ids");
  }
  size_t count = json_array_size(tokens);
  void *items = out->ids;
  MGL_TRY(mgl_grow(&items, &out->capacity, count, sizeof *out->ids, err));
  out->ids = items;
  for (size_t i = 0; i < count; i++) {
    const json_t *id = json_array_get(tokens, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= (json_int_t)vocab_size) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "\"tokens\"[%zu]: expected an id of 0 to %u", i,
                           vocab_size - 1);
    }
    out->ids[out->count++] = (int32_t)json_integer_value(id);
  }
  return MGL_OK;
}

static mgl_status read_prompt(const collector *c, mgl_json_object o, mgl_prompt *prompt,
                              mgl_error *err) {
  const json_t *tokens = json_object_get(o.object, "tokens");
  const json_t *messages = json_object_get(o.object, "messages");
  const json_t *text = json_object_get(o.object, "prompt");
  int given = (tokens != NULL) + (messages != NULL) + (text != NULL);
  if (given != 1) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "expected one of prompt, messages and tokens, found %d", given);
  }
  bool is_chat = messages != NULL || (text != NULL && mgl_arguments_has(c->arguments, "chat"));
  if (!is_chat && mgl_app_chat_in(o)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "tools, chat_template_kwargs and continue_final_message need messages");
  }
  if (tokens != NULL) {
    return read_tokens(tokens, c->info->vocab_size, &prompt->tokens, err);
  }
  if (text != NULL && !json_is_string(text)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "\"prompt\": expected a string");
  }
  mgl_app_chat own = {0};
  mgl_status status = mgl_app_chat_read(o, &c->chat, &own, err);
  if (status == MGL_OK) {
    const written_prompt written = {.text = json_string_value(text),
                                    .bytes = json_string_length(text),
                                    .messages = messages,
                                    .chat = &own};
    status = encode(c, &written, &prompt->tokens, err);
  }
  mgl_app_chat_free(&own);
  return status;
}

static mgl_status read_grammar(const collector *c, mgl_json_object o, mgl_prompt *prompt,
                               mgl_error *err) {
  if (!c->info->has_tokenizer &&
      (mgl_json_has(o, "response_format") || mgl_json_has(o, "structured_outputs"))) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "a grammar needs a tokenizer.json, and the model's folder has none");
  }
  return mgl_app_grammar_read(o, c->model, &prompt->own_grammar, err);
}

static mgl_status read_object(const collector *c, const json_t *root, mgl_prompt *prompt,
                              mgl_error *err) {
  mgl_json_object o = {.object = root, .where = "JSON"};
  uint64_t max_tokens = 0;
  if (!json_is_object(root)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected a JSON object");
  }
  MGL_TRY(read_id(o, prompt, err));  // first, so that an answer that is an error has it too
  MGL_TRY(check_keys(o, err));
  MGL_TRY(read_parameters(o, prompt, &max_tokens, err));
  MGL_TRY(read_stop_texts(o, prompt, err));
  MGL_TRY(read_grammar(c, o, prompt, err));
  MGL_TRY(read_prompt(c, o, prompt, err));
  MGL_TRY(limit_tokens(c, max_tokens, prompt, err));
  limit_least(c, mgl_json_has(o, "min_tokens"), prompt);
  return MGL_OK;
}

static mgl_status read_json_line(const collector *c, const char *text, size_t bytes,
                                 mgl_prompt *prompt, mgl_error *err) {
  json_t *root = NULL;
  MGL_TRY(mgl_json_parse(text, bytes, "JSON", &root, err));
  mgl_status status = read_object(c, root, prompt, err);
  json_decref(root);
  return status;
}

// --- sources -------------------------------------------------------------------------------------

static mgl_status read_text(const collector *c, const char *text, size_t bytes, mgl_prompt *prompt,
                            mgl_error *err) {
  const written_prompt written = {.text = text, .bytes = bytes, .chat = &c->chat};
  MGL_TRY(encode(c, &written, &prompt->tokens, err));
  MGL_TRY(limit_tokens(c, 0, prompt, err));
  limit_least(c, false, prompt);
  return MGL_OK;
}

// A prompt that is no line of a file.
static mgl_status add_text(collector *c, const char *text, size_t bytes, mgl_error *err) {
  mgl_prompt *prompt = NULL;
  MGL_TRY(append_prompt(c, &prompt, err));
  mgl_status status = read_text(c, text, bytes, prompt, err);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "prompt %zu", c->list->count);
  }
  return status;
}

static bool is_blank(const char *text, size_t bytes) {
  size_t i = 0;
  while (i < bytes && strchr(" \t\r", text[i]) != NULL && text[i] != 0) {
    i++;
  }
  return i == bytes;
}

static mgl_status add_line(collector *c, const char *file, size_t line, const char *text,
                           size_t bytes, mgl_error *err) {
  mgl_prompt *prompt = NULL;
  mgl_error reason = {0};
  MGL_TRY(append_prompt(c, &prompt, err));
  prompt->file = file;
  prompt->line = line;
  mgl_status status = mgl_arguments_has(c->arguments, "jsonl")
                          ? read_json_line(c, text, bytes, prompt, &reason)
                          : read_text(c, text, bytes, prompt, &reason);
  return status == MGL_OK ? MGL_OK : mgl_prompt_fail(prompt, status, &reason, err);
}

// Lines end with a newline, or a carriage return and one; blank lines are none.
static mgl_status add_lines(collector *c, const char *file, const char *text, size_t bytes,
                            mgl_error *err) {
  size_t line = 1;
  for (size_t at = 0; at < bytes; line++) {
    const char *newline = memchr(text + at, '\n', bytes - at);
    size_t end = newline == NULL ? bytes : (size_t)(newline - text);
    size_t next = newline == NULL ? bytes : end + 1;
    end -= end > at && newline != NULL && text[end - 1] == '\r' ? 1 : 0;
    if (!is_blank(text + at, end - at)) {
      MGL_TRY(add_line(c, file, line, text + at, end - at, err));
    }
    at = next;
  }
  return MGL_OK;
}

static mgl_status add_input(collector *c, bool has_lines, mgl_error *err) {
  mgl_text text = {0};
  mgl_status status = mgl_input_read(MEGALITH_MAX_PROMPT_BYTES, &text, err);
  const char *data = text.data == NULL ? "" : text.data;
  if (status == MGL_OK) {
    status = has_lines ? add_lines(c, "standard input", data, text.bytes, err)
                       : add_text(c, data, text.bytes, err);
  }
  mgl_text_free(&text);
  return status;
}

static mgl_status add_file(collector *c, const char *path, mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  if (strcmp(path, "-") == 0) {
    return add_input(c, true, err);
  }
  MGL_TRY(mgl_file_read_any(path, MEGALITH_MAX_PROMPT_BYTES, &text, &bytes, err));
  mgl_status status = add_lines(c, path, text, bytes, err);
  mgl_free(text);
  return status;
}

static mgl_status add_all(collector *c, mgl_error *err) {
  const mgl_arguments *arguments = c->arguments;
  bool has_source = false;
  for (size_t i = 0; i < arguments->count; i++) {
    const mgl_argument *argument = &arguments->items[i];
    if (strcmp(argument->option->name, "prompt") == 0) {
      MGL_TRY(add_text(c, argument->text, strlen(argument->text), err));
      has_source = true;
    } else if (strcmp(argument->option->name, "file") == 0) {
      MGL_TRY(add_file(c, argument->text, err));
      has_source = true;
    }
  }
  if (!has_source && isatty(STDIN_FILENO)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "no prompt: expected -p TEXT, -f FILE or text on standard input: see "
                         "megalith run --help");
  }
  if (!has_source) {
    MGL_TRY(add_input(c, mgl_arguments_has(arguments, "jsonl"), err));
  }
  return c->list->count > 0 ? MGL_OK
                            : mgl_error_set(err, MGL_ERR_ARGUMENT,
                                            "expected at least 1 prompt, found only blank lines");
}

mgl_status mgl_prompts_collect(const mgl_arguments *arguments, const megalith_model *model,
                               const megalith_sampling *sampling, mgl_prompt_list *out,
                               mgl_error *err) {
  collector c = {.arguments = arguments,
                 .model = model,
                 .info = megalith_model_describe(model),
                 .sampling = sampling,
                 .list = out};
  mgl_status status = mgl_app_chat_choose(arguments, &c.chat, err);
  if (status == MGL_OK && c.info->has_tokenizer) {
    status = mgl_app_grammar_choose(arguments, model, &out->grammar, err);
  }
  if (status == MGL_OK) {
    status = add_all(&c, err);
  }
  mgl_app_chat_free(&c.chat);
  return status;
}
