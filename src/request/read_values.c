#include "request/read_values.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/words.h"

static mgl_status refuse(const mgl_parameter *p, const json_t *value, mgl_error *err) {
  return mgl_parameter_refuse(p->name, p->values, value, err);
}

// --- prompts -------------------------------------------------------------------------------------

static bool is_ids(const json_t *value) {
  size_t count = json_array_size(value);
  for (size_t i = 0; i < count; i++) {
    const json_t *id = json_array_get(value, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
      return false;
    }
  }
  return count > 0;
}

// Ids beyond the vocabulary. The engine refuses them too, but knows no parameters to blame.
static mgl_status check_ids(const mgl_ask *ask, const mgl_parameter *p, const json_t *ids,
                            mgl_error *err) {
  for (size_t i = 0; i < json_array_size(ids); i++) {
    json_int_t id = json_integer_value(json_array_get(ids, i));
    if (id >= ask->info->vocab_size) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "\"%s\": expected ids of 0 to %u, found %" JSON_INTEGER_FORMAT, p->name,
                           ask->info->vocab_size - 1, id);
    }
  }
  return MGL_OK;
}

// Appends ids to the ask's memory, whose place may change until all are read.
static mgl_status append_ids(mgl_ask *ask, const json_t *value, mgl_error *err) {
  size_t count = json_array_size(value);
  void *items = ask->token_memory;
  MGL_TRY(mgl_grow(&items, &ask->token_memory_capacity, ask->token_memory_count + count,
                   sizeof *ask->token_memory, err));
  ask->token_memory = items;
  for (size_t i = 0; i < count; i++) {
    ask->token_memory[ask->token_memory_count++] =
        (int32_t)json_integer_value(json_array_get(value, i));
  }
  return MGL_OK;
}

static mgl_status add_prompt(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                             mgl_error *err) {
  mgl_ask_prompt *prompt = &ask->prompts[ask->prompt_count];
  if (json_is_string(value)) {
    prompt->text = json_string_value(value);
    prompt->text_bytes = json_string_length(value);
    if (prompt->text_bytes == 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\": expected a text that is not empty",
                           p->name);
    }
  } else if (is_ids(value)) {
    if (ask->endpoint == MGL_ENDPOINT_COMPLETIONS) {  // tokenizers may have more than the model
      MGL_TRY(check_ids(ask, p, value, err));
    }
    prompt->token_count = json_array_size(value);
    MGL_TRY(append_ids(ask, value, err));
  } else {
    return refuse(p, value, err);
  }
  ask->prompt_count++;
  return MGL_OK;
}

mgl_status mgl_read_prompt(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                           mgl_error *err) {
  bool is_list = json_is_array(value) && !is_ids(value);
  size_t count = is_list ? json_array_size(value) : 1;
  bool takes_many = ask->endpoint == MGL_ENDPOINT_COMPLETIONS;
  if (count == 0 || (is_list && !takes_many) ||
      (ask->endpoint == MGL_ENDPOINT_DETOKENIZE && json_is_string(value)) ||
      (ask->endpoint == MGL_ENDPOINT_TOKENIZE && !json_is_string(value))) {
    return refuse(p, value, err);
  }
  if (count > MGL_ASK_MAX_CHOICES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "\"%s\": expected at most %d prompts, found %zu",
                         p->name, MGL_ASK_MAX_CHOICES, count);
  }
  ask->prompts = mgl_alloc_zeroed(count, sizeof *ask->prompts);
  if (ask->prompts == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu prompts", count);
  }
  for (size_t i = 0; i < count; i++) {
    MGL_TRY(add_prompt(ask, p, is_list ? json_array_get(value, i) : value, err));
  }
  size_t begin = 0;
  for (size_t i = 0; i < count; i++) {
    mgl_ask_prompt *prompt = &ask->prompts[i];
    prompt->tokens = prompt->text == NULL ? ask->token_memory + begin : NULL;
    begin += prompt->token_count;
  }
  return MGL_OK;
}

// --- chats ---------------------------------------------------------------------------------------

// The JSON text of a value in the ask's keeping.
static mgl_status keep_json(const json_t *value, char **out, mgl_error *err) {
  mgl_free(*out);
  *out = json_dumps(value, JSON_COMPACT);
  return *out != NULL ? MGL_OK
                      : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a part of the body");
}

static bool is_text_or_none(const json_t *value) {
  return value == NULL || json_is_null(value) || json_is_string(value);
}

// The rest is the template's business (model/chat.c).
static mgl_status check_message(const json_t *message, size_t i, mgl_error *err) {
  const json_t *calls = json_object_get(message, "tool_calls");
  bool has_calls = calls != NULL && !json_is_null(calls);
  if (!json_is_object(message) || json_string_length(json_object_get(message, "role")) == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"messages\"[%zu]: expected an object with a role and a content", i);
  }
  if (!is_text_or_none(json_object_get(message, "name")) ||
      !is_text_or_none(json_object_get(message, "tool_call_id"))) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"messages\"[%zu]: expected texts as name and tool_call_id", i);
  }
  for (size_t j = 0; j < json_array_size(calls); j++) {
    has_calls = has_calls && json_is_object(json_object_get(json_array_get(calls, j), "function"));
  }
  if (calls != NULL && !json_is_null(calls) && (!json_is_array(calls) || !has_calls)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "\"messages\"[%zu].tool_calls: expected objects with a function", i);
  }
  return MGL_OK;
}

mgl_status mgl_read_messages(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                             mgl_error *err) {
  size_t count = json_array_size(value);
  if (count == 0 || count > MEGALITH_MAX_MESSAGES) {
    return refuse(p, value, err);
  }
  for (size_t i = 0; i < count; i++) {
    MGL_TRY(check_message(json_array_get(value, i), i, err));
  }
  ask->is_chat = true;
  return keep_json(value, &ask->messages_json, err);
}

// Of a kind, or null, or absent.
static bool is_or_none(const json_t *object, const char *key, json_type type) {
  const json_t *value = json_object_get(object, key);
  return value == NULL || json_is_null(value) || json_typeof(value) == type;
}

static bool is_tool(const json_t *tool) {
  const char *type = json_string_value(json_object_get(tool, "type"));
  const json_t *function = json_object_get(tool, "function");
  size_t name_bytes = json_string_length(json_object_get(function, "name"));
  return type != NULL && strcmp(type, "function") == 0 && name_bytes > 0 &&
         name_bytes <= MGL_ASK_MAX_TOOL_NAME_BYTES &&
         is_or_none(function, "description", JSON_STRING) &&
         is_or_none(function, "parameters", JSON_OBJECT) &&
         (is_or_none(function, "strict", JSON_TRUE) || is_or_none(function, "strict", JSON_FALSE));
}

// Whether the chat template takes a variable.
static bool template_has(const mgl_ask *ask, const char *name) {
  const megalith_model_info *info = ask->info;
  if (strcmp(name, "tools") == 0) {  // which Megalith sets, and does not list
    return strstr(info->chat_template, name) != NULL;
  }
  for (size_t i = 0; i < info->template_variable_count; i++) {
    if (strcmp(info->template_variables[i], name) == 0) {
      return true;
    }
  }
  return false;
}

mgl_status mgl_read_tools(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                          mgl_error *err) {
  size_t count = json_array_size(value);
  if (!json_is_array(value) || count > MGL_ASK_MAX_TOOLS) {
    return refuse(p, value, err);
  }
  for (size_t i = 0; i < count; i++) {
    if (!is_tool(json_array_get(value, i))) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "\"tools\"[%zu]: expected {\"type\": \"function\", \"function\": "
                           "{\"name\": ...}}",
                           i);
    }
  }
  if (count > 0 && !template_has(ask, "tools") && ask->endpoint == MGL_ENDPOINT_CHAT) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "\"tools\": expected none, found %zu: this model's chat template shows it "
                         "no tools",
                         count);
  }
  ask->tools = count == 0 ? NULL : value;
  return count == 0 ? MGL_OK : keep_json(value, &ask->tools_json, err);
}

mgl_status mgl_read_tool_choice(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                mgl_error *err) {
  const char *word = json_string_value(value);
  const char *type = json_string_value(json_object_get(value, "type"));
  const char *name = json_string_value(json_object_get(json_object_get(value, "function"), "name"));
  bool is_function = type != NULL && strcmp(type, "function") == 0 && name != NULL;
  if (!is_function && (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0 &&
                                        strcmp(word, "required") != 0))) {
    return refuse(p, value, err);
  }
  ask->called_function = is_function ? name : NULL;
  ask->requires_call = is_function || strcmp(word, "required") == 0;
  ask->hides_tools = word != NULL && strcmp(word, "none") == 0;
  return MGL_OK;
}

// One more variable of the template.
static mgl_status set_variable(mgl_ask *ask, const char *name, json_t *value, mgl_error *err) {
  if (ask->variables == NULL) {
    ask->variables = json_object();
  }
  return json_object_set(ask->variables, name, value) == 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for template variables");
}

mgl_status mgl_read_template_kwargs(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                    mgl_error *err) {
  const char *name = NULL;
  json_t *item = NULL;
  if (!json_is_object(value)) {
    return refuse(p, value, err);
  }
  json_object_foreach((json_t *)value, name, item) {
    if (!template_has(ask, name) || strcmp(name, "tools") == 0) {
      const megalith_model_info *info = ask->info;
      char meant[MGL_MEANT_BYTES];
      mgl_words_ask("", name, info->template_variables, info->template_variable_count, meant);
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "\"chat_template_kwargs\": \"%.60s\" is no variable of this model's "
                           "chat template, which has %zu%s",
                           name, info->template_variable_count, meant);
    }
    MGL_TRY(set_variable(ask, name, item, err));
  }
  return MGL_OK;
}

mgl_status mgl_read_reasoning_effort(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                     mgl_error *err) {
  static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", NULL};
  static const char *const switches[] = {"enable_thinking", "thinking"};
  size_t i = 0;
  while (words[i] != NULL &&
         (!json_is_string(value) || strcmp(words[i], json_string_value(value)) != 0)) {
    i++;
  }
  if (words[i] == NULL) {
    return refuse(p, value, err);
  }
  if (template_has(ask, p->name)) {
    return set_variable(ask, p->name, (json_t *)value, err);
  }
  for (size_t j = 0; j < sizeof switches / sizeof *switches; j++) {
    if (template_has(ask, switches[j])) {
      return set_variable(ask, switches[j], i == 0 ? json_false() : json_true(), err);
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "\"reasoning_effort\": expected none, found \"%s\": this model's chat "
                       "template has no variable for it",
                       words[i]);
}

mgl_status mgl_read_generation_prompt(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                      mgl_error *err) {
  if (!json_is_boolean(value)) {
    return refuse(p, value, err);
  }
  ask->has_generation_prompt = true;
  ask->generation_prompt = json_is_true(value);
  return MGL_OK;
}

// --- responses -----------------------------------------------------------------------------------

mgl_status mgl_read_instructions(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                 mgl_error *err) {
  if (!json_is_string(value)) {
    return refuse(p, value, err);
  }
  ask->instructions = value;
  return MGL_OK;
}

mgl_status mgl_read_input(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                          mgl_error *err) {
  if (!json_is_string(value) && json_array_size(value) == 0) {
    return refuse(p, value, err);
  }
  ask->is_chat = true;
  ask->input = value;
  return MGL_OK;
}

// --- stops and sampling --------------------------------------------------------------------------

// Texts of 1 to 256 bytes without NUL into items, which has room for `most`.
static mgl_status read_texts(const mgl_parameter *p, const json_t *value, const char **items,
                             size_t most, uint32_t *out_count, mgl_error *err) {
  size_t count = json_is_array(value) ? json_array_size(value) : 1;
  if (count > most) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "\"%s\": expected at most %zu texts, found %zu",
                         p->name, most, count);
  }
  for (size_t i = 0; i < count; i++) {
    const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
    size_t bytes = json_string_length(item);
    if (!json_is_string(item) || bytes == 0 || bytes > MEGALITH_MAX_STOP_TEXT_BYTES ||
        strlen(json_string_value(item)) != bytes) {
      return refuse(p, item, err);
    }
    items[(*out_count)++] = json_string_value(item);
  }
  return MGL_OK;
}

mgl_status mgl_read_stop(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                         mgl_error *err) {
  return read_texts(p, value, ask->stops, MEGALITH_MAX_STOP_TEXTS, &ask->stop_count, err);
}

mgl_status mgl_read_bad_words(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                              mgl_error *err) {
  _Static_assert(MEGALITH_MAX_BAD_WORD_BYTES == MEGALITH_MAX_STOP_TEXT_BYTES, "read_texts");
  return json_is_array(value) ? read_texts(p, value, ask->bad_words, MEGALITH_MAX_BAD_WORDS,
                                           &ask->bad_word_count, err)
                              : refuse(p, value, err);
}

mgl_status mgl_read_stop_token_ids(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                   mgl_error *err) {
  size_t count = json_array_size(value);
  if (!json_is_array(value) || count > MEGALITH_MAX_STOP_TOKENS || (count > 0 && !is_ids(value))) {
    return refuse(p, value, err);
  }
  MGL_TRY(check_ids(ask, p, value, err));
  for (size_t i = 0; i < count; i++) {
    ask->stop_tokens[ask->stop_token_count++] =
        (int32_t)json_integer_value(json_array_get(value, i));
  }
  return MGL_OK;
}

mgl_status mgl_read_top_k(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                          mgl_error *err) {
  json_int_t k = json_integer_value(value);
  if (!json_is_integer(value) || k < -1 || k > 16777216) {
    return refuse(p, value, err);
  }
  ask->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
  return MGL_OK;
}

mgl_status mgl_read_seed(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                         mgl_error *err) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) {
    return refuse(p, value, err);
  }
  ask->has_seed = true;
  ask->sampling.seed = (uint64_t)json_integer_value(value);
  return MGL_OK;
}

mgl_status mgl_read_logit_bias(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                               mgl_error *err) {
  size_t count = json_object_size(value);
  const char *key = NULL;
  json_t *item = NULL;
  if (!json_is_object(value) || count > MEGALITH_MAX_LOGIT_BIASES) {
    return refuse(p, value, err);
  }
  mgl_free(ask->biases);
  ask->biases = mgl_alloc_zeroed(count + 1, sizeof *ask->biases);
  if (ask->biases == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu logit biases", count);
  }
  json_object_foreach((json_t *)value, key, item) {
    char *end = NULL;
    unsigned long id = strtoul(key, &end, 10);
    bool is_id = key[0] >= '0' && key[0] <= '9' && *end == 0 && strlen(key) <= 9 &&
                 id < ask->info->vocab_size;
    double bias = json_number_value(item);
    if (!is_id || !json_is_number(item) || !(bias >= -100 && bias <= 100)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "\"logit_bias\": expected %s, found it for \"%.40s\"", p->values, key);
    }
    ask->biases[ask->sampling.bias_count++] =
        (megalith_logit_bias){.token = (int32_t)id, .value = (float)bias};
  }
  return MGL_OK;
}

mgl_status mgl_read_allowed(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                            mgl_error *err) {
  size_t count = json_array_size(value);
  if (!is_ids(value) || count > ask->info->vocab_size) {
    return refuse(p, value, err);
  }
  MGL_TRY(check_ids(ask, p, value, err));
  mgl_free(ask->allowed);
  ask->allowed = mgl_alloc_zeroed(count, sizeof *ask->allowed);
  if (ask->allowed == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu allowed tokens", count);
  }
  for (size_t i = 0; i < count; i++) {
    ask->allowed[i] = (int32_t)json_integer_value(json_array_get(value, i));
  }
  ask->sampling.allowed_count = (uint32_t)count;
  return MGL_OK;
}

mgl_status mgl_read_priority(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                             mgl_error *err) {
  json_int_t priority = json_integer_value(value);
  if (!json_is_integer(value) || priority < INT32_MIN || priority > INT32_MAX) {
    return refuse(p, value, err);
  }
  ask->priority = (int32_t)priority;
  return MGL_OK;
}

mgl_status mgl_read_max_tokens(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                               mgl_error *err) {
  json_int_t count = json_integer_value(value);
  if (!json_is_integer(value) || count < 0 || count > 16777216) {
    return refuse(p, value, err);
  }
  ask->hides_answer = count == 0;
  ask->max_tokens = count == 0 ? 1 : (uint32_t)count;
  return MGL_OK;
}

mgl_status mgl_read_truncate(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                             mgl_error *err) {
  json_int_t count = json_integer_value(value);
  if (!json_is_integer(value) || count < -1 || count == 0 || count > 16777216) {
    return refuse(p, value, err);
  }
  ask->max_prompt_tokens = count < 0 ? UINT32_MAX : (uint32_t)count;
  return MGL_OK;
}

mgl_status mgl_read_add_special(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                mgl_error *err) {
  if (!json_is_boolean(value)) {
    return refuse(p, value, err);
  }
  ask->has_add_special = true;
  ask->add_special_tokens = json_is_true(value);
  return MGL_OK;
}

mgl_status mgl_read_include_reasoning(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                      mgl_error *err) {
  if (!json_is_boolean(value)) {
    return refuse(p, value, err);
  }
  ask->hides_thoughts = json_is_false(value);
  return MGL_OK;
}

mgl_status mgl_read_skip_special(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                 mgl_error *err) {
  if (!json_is_boolean(value)) {
    return refuse(p, value, err);
  }
  ask->shows_special = json_is_false(value);
  return MGL_OK;
}

mgl_status mgl_read_prompt_logprobs(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                    mgl_error *err) {
  json_int_t count = json_integer_value(value);
  if (!json_is_integer(value) || count < 0 || count > MEGALITH_MAX_TOP_LOGPROBS) {
    return refuse(p, value, err);
  }
  ask->has_prompt_logprobs = true;
  ask->prompt_logprobs = (uint32_t)count;
  return MGL_OK;
}

mgl_status mgl_read_logprobs(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                             mgl_error *err) {
  json_int_t count = json_integer_value(value);
  if (!json_is_integer(value) || count < 0 || count > MEGALITH_MAX_TOP_LOGPROBS) {
    return refuse(p, value, err);
  }
  ask->sampling.logprobs = true;
  ask->sampling.top_logprobs = (uint32_t)count;
  return MGL_OK;
}

mgl_status mgl_read_stream_options(mgl_ask *ask, const mgl_parameter *p, const json_t *value,
                                   mgl_error *err) {
  const char *key = NULL;
  json_t *item = NULL;
  if (!json_is_object(value)) {
    return refuse(p, value, err);
  }
  ask->has_stream_options = true;
  json_object_foreach((json_t *)value, key, item) {
    bool is_usage = strcmp(key, "include_usage") == 0;
    bool is_neutral =  // what other servers add to their events, and Megalith does not
        (strcmp(key, "include_obfuscation") == 0 || strcmp(key, "continuous_usage_stats") == 0) &&
        json_is_false(item);
    if (!json_is_boolean(item) || (!is_usage && !is_neutral)) {
      return refuse(p, value, err);
    }
    ask->include_usage = is_usage ? json_is_true(item) : ask->include_usage;
  }
  return MGL_OK;
}
