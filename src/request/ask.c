#include "request/ask.h"

#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "request/parameters.h"
#include "request/read_grammar.h"

// Counts what could become a value of JSON, before memory is taken for any: two bytes of a body
// can become hundreds.
static size_t count_values(const char *text, size_t bytes) {
  size_t count = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes; i++) {
    char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',' || c == '[' || c == '{') {
      count++;
    }
  }
  return count;
}

static void blame(mgl_ask *ask, const char *name) {
  size_t bytes = strlen(name);
  bytes = bytes < sizeof ask->blamed - 1 ? bytes : sizeof ask->blamed - 1;
  memcpy(ask->blamed, name, bytes);
  ask->blamed[bytes] = 0;
  mgl_string_make_printable(ask->blamed);
}

static mgl_status read_members(mgl_ask *ask, mgl_error *err) {
  const char *name = NULL;
  json_t *value = NULL;
  json_object_foreach(ask->root, name, value) {
    const mgl_parameter *parameter = NULL;
    blame(ask, name);
    MGL_TRY(mgl_parameter_find(ask->endpoint, name, &parameter, err));
    if (!json_is_null(value)) {  // as if it were not there
      MGL_TRY(mgl_parameter_set(ask, parameter, value, err));
    }
  }
  blame(ask, "");
  return MGL_OK;
}

// --- what depends on more than one parameter -----------------------------------------------------

// The parameter that is to blame, in front of mgl_error_set.
#define BLAME(name, ...) (blame(ask, name), mgl_error_set(err, MGL_ERR_ARGUMENT, __VA_ARGS__))

static mgl_status check_prompt(mgl_ask *ask, mgl_error *err) {
  static const struct {
    mgl_endpoint endpoint;
    const char *name;
  } wanted[] = {{MGL_ENDPOINT_COMPLETIONS, "prompt"},
                {MGL_ENDPOINT_CHAT, "messages"},
                {MGL_ENDPOINT_RESPONSES, "input"},
                {MGL_ENDPOINT_TOKENIZE, "prompt"},
                {MGL_ENDPOINT_DETOKENIZE, "tokens"}};
  const char *name = "";
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    name = wanted[i].endpoint == ask->endpoint ? wanted[i].name : name;
  }
  if (ask->prompt_count == 0 && !ask->is_chat) {
    return BLAME(name, "\"%s\": it is missing", name);
  }
  if (ask->prompt_count > 0 && ask->is_chat) {
    return BLAME(name, "expected one of \"prompt\" and \"messages\", found both");
  }
  size_t choices = (ask->is_chat ? 1 : ask->prompt_count) * ask->n;
  if (choices > MGL_ASK_MAX_CHOICES) {
    return BLAME("n", "\"n\": expected at most %d choices of all prompts together, found %zu",
                 MGL_ASK_MAX_CHOICES, choices);
  }
  return MGL_OK;
}

static bool has_tool(const mgl_ask *ask, const char *name) {
  for (size_t i = 0; i < json_array_size(ask->tools); i++) {
    const json_t *function = json_object_get(json_array_get(ask->tools, i), "function");
    if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0) {
      return true;
    }
  }
  return false;
}

static mgl_status check_calls(mgl_ask *ask, mgl_error *err) {
  if (!ask->requires_call) {
    return MGL_OK;
  }
  if (ask->tools == NULL) {
    return BLAME("tool_choice", "\"tool_choice\": expected \"tools\" beside it");
  }
  if (ask->called_function != NULL && !has_tool(ask, ask->called_function)) {
    return BLAME("tool_choice", "\"tool_choice\": expected a function of \"tools\", found %.60s",
                 ask->called_function);
  }
  if (ask->grammar_kind != 0) {
    return BLAME("tool_choice",
                 "\"tool_choice\": expected no \"%s\" beside a call that is required",
                 ask->grammar_parameter);
  }
  return MGL_OK;
}

// What could leave no token that may follow.
static mgl_status check_tokens(mgl_ask *ask, mgl_error *err) {
  const char *grammar = ask->grammar_kind != 0 ? ask->grammar_parameter : "tool_choice";
  const bool allows = ask->sampling.allowed_count > 0, bans = ask->bad_word_count > 0;
  if (allows && bans) {
    return BLAME("bad_words", "expected one of bad words and allowed tokens, found both");
  }
  if ((allows || bans) && (ask->grammar_kind != 0 || ask->requires_call)) {
    const char *name = allows ? "allowed_token_ids" : "bad_words";
    return BLAME(name, "\"%s\": expected no \"%s\" beside it: together they may leave no token",
                 name, grammar);
  }
  return MGL_OK;
}

static mgl_status check_rest(mgl_ask *ask, mgl_error *err) {
  if (ask->sampling.top_logprobs > 0 && ask->endpoint == MGL_ENDPOINT_CHAT && !ask->chat_logprobs) {
    return BLAME("top_logprobs", "\"top_logprobs\": expected \"logprobs\": true beside it");
  }
  if (ask->has_stream_options && !ask->stream) {
    return BLAME("stream_options", "\"stream_options\": expected \"stream\": true beside it");
  }
  if (ask->has_generation_prompt && ask->generation_prompt == ask->continue_final_message) {
    return BLAME("add_generation_prompt",
                 "\"add_generation_prompt\": expected the opposite of continue_final_message");
  }
  if (ask->has_prompt_logprobs && ask->stream) {
    return BLAME("prompt_logprobs", "\"prompt_logprobs\": expected no \"stream\" beside it");
  }
  if (ask->hides_answer && !ask->echo && !ask->has_prompt_logprobs) {
    return BLAME("max_tokens",
                 "\"max_tokens\": expected at least 1 without echo and prompt_logprobs, found 0");
  }
  if (ask->has_add_special && ask->add_special_tokens && ask->is_chat) {
    return BLAME("add_special_tokens",
                 "\"add_special_tokens\": expected false beside messages, found true: the template "
                 "writes what a chat begins with");
  }
  if (ask->max_prompt_tokens != 0 && ask->echo) {
    return BLAME("truncate_prompt_tokens",
                 "\"truncate_prompt_tokens\": expected no \"echo\" beside it");
  }
  if (ask->max_tokens != 0 && ask->sampling.min_new_tokens > ask->max_tokens &&
      json_object_get(ask->root, "min_tokens") != NULL) {
    return BLAME("min_tokens", "\"min_tokens\": expected at most max_tokens, %u, found %u",
                 ask->max_tokens, ask->sampling.min_new_tokens);
  }
  return MGL_OK;
}

static mgl_status out_of_memory(mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a body");
}

// The list of messages that "input" and "instructions" are. Parts of a message have the type
// input_text or output_text there, which templates do not know.
static mgl_status join_input(mgl_ask *ask, mgl_error *err) {
  json_t *messages = json_array();
  json_t *input = json_is_string(ask->input)
                      ? json_pack("[{s:s, s:O}]", "role", "user", "content", ask->input)
                      : json_deep_copy(ask->input);
  mgl_status status = messages == NULL || input == NULL ? out_of_memory(err) : MGL_OK;
  if (status == MGL_OK && ask->instructions != NULL) {
    json_t *first = json_pack("{s:s, s:O}", "role", "system", "content", ask->instructions);
    status = json_array_append_new(messages, first) == 0 ? MGL_OK : out_of_memory(err);
  }
  for (size_t i = 0; status == MGL_OK && i < json_array_size(input); i++) {
    json_t *message = json_array_get(input, i);
    const json_t *type = json_object_get(message, "type");
    json_t *parts = json_object_get(message, "content");
    if (!json_is_string(json_object_get(message, "role")) ||
        (type != NULL &&
         (!json_is_string(type) || strcmp(json_string_value(type), "message") != 0))) {
      status = BLAME("input", "\"input\"[%zu]: expected a message with a role and a content", i);
      break;
    }
    for (size_t j = 0; j < json_array_size(parts); j++) {
      json_t *part = json_array_get(parts, j);
      const char *kind = json_string_value(json_object_get(part, "type"));
      if (kind != NULL && (strcmp(kind, "input_text") == 0 || strcmp(kind, "output_text") == 0)) {
        (void)json_object_set_new(part, "type", json_string("text"));
      }
    }
    (void)json_object_del(message, "type");
    (void)json_object_del(message, "id");
    (void)json_object_del(message, "status");
    status = json_array_append(messages, message) == 0 ? MGL_OK : out_of_memory(err);
  }
  if (status == MGL_OK) {
    ask->messages_json = json_dumps(messages, JSON_COMPACT);
    status = ask->messages_json == NULL ? out_of_memory(err) : MGL_OK;
  }
  json_decref(messages);
  json_decref(input);
  return status;
}

static mgl_status finish(mgl_ask *ask, mgl_error *err) {
  MGL_TRY(check_prompt(ask, err));
  MGL_TRY(check_rest(ask, err));
  MGL_TRY(check_calls(ask, err));
  MGL_TRY(check_tokens(ask, err));
  if (ask->input != NULL) {
    MGL_TRY(join_input(ask, err));
  }
  if (ask->hides_tools) {
    mgl_free(ask->tools_json);
    ask->tools_json = NULL;
  }
  if (json_object_size(ask->variables) > 0) {
    ask->variables_json = json_dumps(ask->variables, JSON_COMPACT);
    MGL_TRY(ask->variables_json == NULL ? out_of_memory(err) : MGL_OK);
  }
  ask->sampling.logprobs = ask->sampling.logprobs || ask->chat_logprobs;
  ask->sampling.biases = ask->biases;
  ask->sampling.allowed = ask->allowed;
  bool echoes = ask->echo && ask->sampling.logprobs;
  uint32_t tops = echoes ? ask->sampling.top_logprobs : 0;
  ask->sampling.prompt_logprobs = echoes || ask->has_prompt_logprobs;
  ask->sampling.prompt_top_logprobs = tops > ask->prompt_logprobs ? tops : ask->prompt_logprobs;
  if (ask->max_tokens != 0 && ask->sampling.min_new_tokens > ask->max_tokens) {
    ask->sampling.min_new_tokens = ask->max_tokens;  // the model's default, not the client's
  }
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_ask_read(const megalith_model *model, mgl_endpoint endpoint, const char *body,
                        size_t bytes, mgl_ask *out, mgl_error *err) {
  const megalith_model_info *info = megalith_model_describe(model);
  *out = (mgl_ask){.endpoint = endpoint,
                   .n = 1,
                   .add_special_tokens = true,
                   .parallel_tool_calls = true,
                   .sampling = *info->sampling,
                   .info = info};
  if (count_values(body, bytes) > MGL_ASK_MAX_VALUES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "expected at most %d values of JSON, found more",
                         MGL_ASK_MAX_VALUES);
  }
  MGL_TRY(mgl_json_parse(body, bytes, "body", &out->root, err));
  if (!json_is_object(out->root)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "body: expected a JSON object");
  }
  MGL_TRY(read_members(out, err));
  MGL_TRY(finish(out, err));
  blame(out, out->grammar_kind == 0 ? "" : out->grammar_parameter);
  MGL_TRY(mgl_ask_compile_grammar(out, model, err));
  blame(out, "");
  return MGL_OK;
}

void mgl_ask_free(mgl_ask *ask) {
  json_decref(ask->root);
  json_decref(ask->variables);
  megalith_grammar_release(ask->grammar);
  mgl_free(ask->grammar_text);
  mgl_free(ask->prompts);
  mgl_free(ask->token_memory);
  mgl_free(ask->biases);
  mgl_free(ask->allowed);
  mgl_free(ask->messages_json);
  mgl_free(ask->tools_json);
  mgl_free(ask->variables_json);
  *ask = (mgl_ask){0};
}

void mgl_ask_options(const mgl_ask *ask, size_t i, megalith_sampling *sampling,
                     megalith_request_options *out) {
  const mgl_ask_prompt *prompt = ask->is_chat ? NULL : &ask->prompts[i / ask->n];
  *sampling = ask->sampling;
  sampling->seed += i;
  *out = (megalith_request_options){
      .size = sizeof *out,
      .cache_salt = ask->cache_salt,
      .cache_salt_bytes = ask->cache_salt == NULL ? 0 : strlen(ask->cache_salt),
      .max_new_tokens = ask->max_tokens,
      .sampling = sampling,
      .stop_tokens = ask->stop_tokens,
      .stop_token_count = ask->stop_token_count,
      .ignore_model_stops = ask->ignore_eos,
      .priority = ask->priority,
      .keep_special = ask->shows_special,
      .stop_texts = ask->stops,
      .stop_text_count = ask->stop_count,
      .keep_stop_text = ask->keep_stop,
      .bad_words = ask->bad_words,
      .bad_word_count = ask->bad_word_count,
      .max_prompt_tokens = ask->max_prompt_tokens,
      .grammar = ask->grammar,
  };
  if (prompt == NULL) {
    out->messages_json = ask->messages_json;
    out->tools_json = ask->tools_json;
    out->chat_variables_json = ask->variables_json;
    out->continue_final_message = ask->continue_final_message;
  } else if (prompt->text != NULL) {
    out->text = prompt->text;
    out->text_bytes = prompt->text_bytes;
    out->without_special = !ask->add_special_tokens;
  } else {
    out->tokens = prompt->tokens;
    out->token_count = prompt->token_count;
  }
}
