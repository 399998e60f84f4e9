#include "request/parameters.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/words.h"
#include "request/read_grammar.h"
#include "request/read_values.h"
#include "request/value_schemas.h"

enum {
  C = MGL_ENDPOINT_COMPLETIONS,
  M = MGL_ENDPOINT_CHAT,
  R = MGL_ENDPOINT_RESPONSES,
  T = MGL_ENDPOINT_TOKENIZE,
  D = MGL_ENDPOINT_DETOKENIZE,
  MAX_CONTEXT = 16 * 1024 * 1024,
  MAX_VOCAB = 16 * 1024 * 1024,
};

#define AT(field) .offset = offsetof(mgl_ask, field)
#define BOOL(field) .type = MGL_PARAMETER_BOOL, AT(field)
#define U32(field, least, most) .type = MGL_PARAMETER_U32, AT(field), .min = (least), .max = (most)
#define REAL(field, least, most) \
  .type = MGL_PARAMETER_REAL, AT(field), .min = (least), .max = (most)
#define TEXT(field, least, most) \
  .type = MGL_PARAMETER_TEXT, AT(field), .min = (least), .max = (most)
#define READ(function, words, json_schema) \
  .type = MGL_PARAMETER_READ, .read = (function), .values = (words), .schema = (json_schema)
#define ONLY(list) .type = MGL_PARAMETER_ONLY, .values = (list)
#define MEANS(default_words, words) .otherwise = (default_words), .meaning = (words)

static const mgl_parameter table[] = {
    // What is asked.
    {"model", C | M | R | T | D, TEXT(model, 1, 4096),
     MEANS("the served model", "the served model's name; another one is refused")},
    {"prompt", C,
     READ(mgl_read_prompt, "a text, texts, token ids, or lists of token ids", SCHEMA_PROMPTS),
     MEANS("required", "what to continue; each prompt gives n choices")},
    {"messages", M | T, READ(mgl_read_messages, "1 to 65536 messages", SCHEMA_MESSAGES),
     MEANS("required", "the chat; content is a text or a list of parts of type text")},
    {"input", R, READ(mgl_read_input, "a text, or a list of messages", SCHEMA_INPUT),
     MEANS("required", "the chat")},
    {"instructions", R, READ(mgl_read_instructions, "a text", "{\"type\":\"string\"}"),
     MEANS("none", "put in front of the chat as a system message")},
    {"prompt", T, READ(mgl_read_prompt, "a text", SCHEMA_TEXT),
     MEANS("required", "what to tokenize")},
    {"tokens", D, READ(mgl_read_prompt, "token ids", SCHEMA_IDS),
     MEANS("required", "what to make text of")},
    {"add_special_tokens", C, BOOL(add_special_tokens),
     MEANS("true", "what the model wants in front of texts, such as a BOS; not of token ids")},
    {"add_special_tokens", T, READ(mgl_read_add_special, "true or false", "{\"type\":\"boolean\"}"),
     MEANS("true; of messages false", "the same; with messages, true is refused")},
    {"truncate_prompt_tokens", C | M,
     READ(mgl_read_truncate, "-1, or 1 to 16777216",
          "{\"anyOf\":[{\"const\":-1}," SCHEMA_RANGE("1", "16777216") "]}"),
     MEANS("none",
           "only so many tokens at the prompt's end count; -1: as many as fit beside "
           "max_tokens")},
    {"return_token_strs", T, BOOL(return_token_strs),
     MEANS("false", "the text of each token too, as token_strs")},
    // How long.
    {"max_tokens", C, READ(mgl_read_max_tokens, "0 to 16777216", SCHEMA_RANGE("0", "16777216")),
     MEANS("the model's, or 256", "most tokens to generate; 0 with echo or prompt_logprobs only")},
    {"max_tokens", M, U32(max_tokens, 1, MAX_CONTEXT),
     MEANS("the model's, or 256", "most tokens to generate")},
    {"max_completion_tokens", M, U32(max_tokens, 1, MAX_CONTEXT),
     MEANS("as max_tokens", "the same")},
    {"max_output_tokens", R, U32(max_tokens, 1, MAX_CONTEXT),
     MEANS("the model's, or 256", "the same")},
    {"min_tokens", C | M, U32(sampling.min_new_tokens, 0, MAX_CONTEXT),
     MEANS("the model's, or 0", "no stop token before so many")},
    {"stop", C | M, READ(mgl_read_stop, "a text, or up to 16 texts of 1 to 256 bytes", SCHEMA_STOP),
     MEANS("none", "texts that end the answer; they are not part of it")},
    {"stop_token_ids", C | M, READ(mgl_read_stop_token_ids, "up to 16 token ids", SCHEMA_STOP_IDS),
     MEANS("none", "tokens that end the answer")},
    {"include_stop_str_in_output", C | M, BOOL(keep_stop),
     MEANS("false", "true: the text of stop that ends the answer is its end")},
    {"ignore_eos", C | M, BOOL(ignore_eos),
     MEANS("false", "the model's own stop tokens do not end the answer")},
    // How tokens are chosen.
    {"temperature", C | M | R, REAL(sampling.temperature, 0, 100),
     MEANS("the model's", "0 takes the likeliest token")},
    {"top_p", C | M | R, REAL(sampling.top_p, 0, 1),
     MEANS("the model's", "the likeliest tokens that together reach it; 0: all")},
    {"top_k", C | M, READ(mgl_read_top_k, "-1 to 16777216", SCHEMA_RANGE("-1", "16777216")),
     MEANS("the model's", "the k likeliest tokens; 0 and -1: all")},
    {"min_p", C | M, REAL(sampling.min_p, 0, 1),
     MEANS("the model's, or 0", "tokens at least so many times as likely as the likeliest")},
    {"presence_penalty", C | M, REAL(sampling.presence_penalty, -2, 2),
     MEANS("0", "subtracted from logits of tokens that were generated")},
    {"frequency_penalty", C | M, REAL(sampling.frequency_penalty, -2, 2),
     MEANS("0", "subtracted as often as the token was generated")},
    {"repetition_penalty", C | M, REAL(sampling.repetition_penalty, 0.01, 100),
     MEANS("the model's, or 1", "above 1, tokens of prompt and answer come less often")},
    {"logit_bias", C | M,
     READ(mgl_read_logit_bias, "up to 1024 token ids with -100 to 100", SCHEMA_BIASES),
     MEANS("none", "added to logits")},
    {"allowed_token_ids", C | M, READ(mgl_read_allowed, "1 or more token ids", SCHEMA_IDS),
     MEANS("none", "no other tokens are chosen")},
    {"bad_words", C | M,
     READ(mgl_read_bad_words, "up to 256 texts of 1 to 256 bytes", SCHEMA_BAD_WORDS),
     MEANS("none",
           "texts whose tokens are not generated, alone or behind a blank; other tokens may "
           "spell them")},
    {"seed", C | M,
     READ(mgl_read_seed, "0 to 9223372036854775807", SCHEMA_RANGE("0", "9223372036854775807")),
     MEANS("drawn anew", "the same seed gives the same answer; choice i has seed + i")},
    {"n", C | M, U32(n, 1, MGL_ASK_MAX_CHOICES), MEANS("1", "choices for each prompt")},
    // What is told.
    {"stream", C | M | R, BOOL(stream), MEANS("false", "the answer comes as events")},
    {"stream_options", C | M,
     READ(mgl_read_stream_options, "{\"include_usage\": true or false}", SCHEMA_STREAM),
     MEANS("none", "a last event with the usage; only with stream")},
    {"logprobs", C, READ(mgl_read_logprobs, "0 to 20", SCHEMA_RANGE("0", "20")),
     MEANS("none", "log probabilities of the tokens and of so many likeliest")},
    {"logprobs", M, BOOL(chat_logprobs), MEANS("false", "log probabilities of the tokens")},
    {"top_logprobs", M, U32(sampling.top_logprobs, 0, MEGALITH_MAX_TOP_LOGPROBS),
     MEANS("0", "and of so many likeliest; needs logprobs")},
    {"echo", C, BOOL(echo),
     MEANS("false",
           "the prompt stands before the answer, with log probabilities if they are asked")},
    {"prompt_logprobs", C | M, READ(mgl_read_prompt_logprobs, "0 to 20", SCHEMA_RANGE("0", "20")),
     MEANS("none",
           "log probabilities of the prompt's tokens, and of so many likeliest; not of "
           "streams; on the CPU only")},
    {"skip_special_tokens", C | M,
     READ(mgl_read_skip_special, "true or false", "{\"type\":\"boolean\"}"),
     MEANS("true", "false: special tokens that are generated appear in the text")},
    {"return_tokens_as_token_ids", C | M, BOOL(shows_token_ids),
     MEANS("false", "log probabilities name tokens token_id:7 and so on")},
    {"return_token_ids", C | M, BOOL(return_token_ids),
     MEANS("false", "choices have token_ids, the tokens that were generated")},
    {"request_id", C | M, TEXT(request_id, 1, MGL_ASK_MAX_ID_BYTES),
     MEANS("drawn", "part of the answer's id, and of the log")},
    {"user", C | M | R, TEXT(user, 0, 1024), MEANS("none", "written to the log")},
    {"safety_identifier", M | R, TEXT(user, 0, 1024), MEANS("none", "written to the log")},
    {"priority", C | M,
     READ(mgl_read_priority, "-2147483648 to 2147483647",
          SCHEMA_RANGE("-2147483648", "2147483647")),
     MEANS("0", "of the requests that wait, those with less begin first")},
    {"cache_salt", C | M, TEXT(cache_salt, 1, MEGALITH_MAX_SALT_BYTES),
     MEANS("none", "prompts share KV memory only under the same salt")},
    // Chats.
    {"tools", M, READ(mgl_read_tools, "a list of functions", SCHEMA_TOOLS),
     MEANS("none", "functions that the model may call")},
    {"tool_choice", M,
     READ(mgl_read_tool_choice,
          "auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}",
          SCHEMA_TOOL_CHOICE),
     MEANS("auto", "none: tools are not shown to the model; the last two: the answer is a call")},
    {"parallel_tool_calls", M, BOOL(parallel_tool_calls),
     MEANS("true", "false: the first call only")},
    {"chat_template_kwargs", M | T,
     READ(mgl_read_template_kwargs, "an object of variables that the model's template has",
          "{\"type\":\"object\"}"),
     MEANS("none", "such as enable_thinking")},
    {"reasoning_effort", M,
     READ(mgl_read_reasoning_effort, "none, minimal, low, medium, high or xhigh", SCHEMA_EFFORT),
     MEANS("the template's",
           "the template's variable of that name, or else whether it thinks at all")},
    {"continue_final_message", M | T, BOOL(continue_final_message),
     MEANS("false", "the answer continues the last message; add_generation_prompt is then false")},
    {"add_generation_prompt", M | T,
     READ(mgl_read_generation_prompt, "true or false", "{\"type\":\"boolean\"}"),
     MEANS("not continue_final_message", "must be what continue_final_message is not")},
    {"include_reasoning", M,
     READ(mgl_read_include_reasoning, "true or false", "{\"type\":\"boolean\"}"),
     MEANS("true", "false: the answer has no reasoning_content")},
    // What the answer must be.
    {"response_format", C | M,
     READ(mgl_read_response_format,
          "{\"type\": \"text\"}, {\"type\": \"json_object\"}, or {\"type\": \"json_schema\", "
          "\"json_schema\": {\"name\": ..., \"schema\": ...}}",
          SCHEMA_FORMAT),
     MEANS("text", "JSON that is valid by the schema, strict or not")},
    {"text", R,
     READ(mgl_read_text_format,
          "{\"format\": {\"type\": \"text\"}}, with json_object, or with json_schema, name and "
          "schema",
          SCHEMA_TEXT_OPTIONS),
     MEANS("text", "as response_format")},
    {"structured_outputs", C | M,
     READ(mgl_read_structured_outputs,
          "an object with one of json, regex, choice, grammar and json_object", SCHEMA_STRUCTURED),
     MEANS("none", "what the answer must match; docs/grammars.md has the syntax")},
    // What is refused but for the value that changes nothing.
    {"best_of", C | M, ONLY("[1]"), MEANS("1", "")},
    {"suffix", C, ONLY("[\"\"]"), MEANS("none", "")},
    {"guided_json", C | M, READ(mgl_read_guided, "null", "{\"type\":\"null\"}"),
     MEANS("none", "use structured_outputs")},
    {"guided_regex", C | M, READ(mgl_read_guided, "null", "{\"type\":\"null\"}"),
     MEANS("none", "use structured_outputs")},
    {"guided_choice", C | M, READ(mgl_read_guided, "null", "{\"type\":\"null\"}"),
     MEANS("none", "use structured_outputs")},
    {"guided_grammar", C | M, READ(mgl_read_guided, "null", "{\"type\":\"null\"}"),
     MEANS("none", "use structured_outputs")},
    {"use_beam_search", C | M, ONLY("[false]"), MEANS("false", "")},
    {"length_penalty", C | M, ONLY("[1]"), MEANS("1", "")},
    {"early_stopping", C | M, ONLY("[false]"), MEANS("false", "")},
    {"spaces_between_special_tokens", C | M, ONLY("[true, false]"),
     MEANS("true", "either way there are none: the tokenizers here put none")},
    {"thinking_token_budget", M, ONLY("[]"), MEANS("none", "not supported yet")},
    {"logits_processors", C | M, ONLY("[]"), MEANS("none", "")},
    {"prompt_embeds", C, ONLY("[]"), MEANS("none", "")},
    {"kv_transfer_params", C | M, ONLY("[]"), MEANS("none", "")},
    {"vllm_xargs", C | M, ONLY("[]"), MEANS("none", "")},
    {"mm_processor_kwargs", M, ONLY("[]"), MEANS("none", "models of text only")},
    {"media_io_kwargs", M, ONLY("[]"), MEANS("none", "models of text only")},
    {"add_special_tokens", M, ONLY("[false]"), MEANS("false", "templates write them")},
    {"chat_template", M, ONLY("[]"), MEANS("the model's", "templates come with the model only")},
    {"documents", M, ONLY("[[]]"), MEANS("none", "")},
    {"echo", M, ONLY("[false]"), MEANS("false", "")},
    {"functions", M, ONLY("[]"), MEANS("none", "deprecated: use tools")},
    {"function_call", M, ONLY("[\"none\"]"), MEANS("none", "deprecated: use tool_choice")},
    {"audio", M, ONLY("[]"), MEANS("none", "")},
    {"modalities", M, ONLY("[[\"text\"]]"), MEANS("text", "")},
    {"prediction", M, ONLY("[]"), MEANS("none", "")},
    {"web_search_options", M, ONLY("[]"), MEANS("none", "")},
    {"verbosity", M, ONLY("[\"medium\"]"), MEANS("medium", "")},
    {"service_tier", C | M | R, ONLY("[\"auto\", \"default\"]"), MEANS("auto", "")},
    {"store", M | R, ONLY("[false]"), MEANS("false", "nothing is stored")},
    {"metadata", M | R, ONLY("[{}]"), MEANS("none", "nothing is stored")},
    {"prompt_cache_key", M | R, ONLY("[]"), MEANS("none", "the prefix cache needs no key")},
    {"prompt_cache_retention", M | R, ONLY("[\"in-memory\"]"), MEANS("in-memory", "")},
    {"background", R, ONLY("[false]"), MEANS("false", "")},
    {"conversation", R, ONLY("[]"), MEANS("none", "nothing is stored")},
    {"previous_response_id", R, ONLY("[]"), MEANS("none", "nothing is stored")},
    {"include", R, ONLY("[[]]"), MEANS("none", "")},
    {"max_tool_calls", R, ONLY("[]"), MEANS("none", "")},
    {"parallel_tool_calls", R, ONLY("[true, false]"), MEANS("true", "there are no tools here yet")},
    {"prompt", R, ONLY("[]"), MEANS("none", "")},
    {"reasoning", R, ONLY("[{}]"), MEANS("none", "not supported yet")},
    {"stream_options", R, ONLY("[{}]"), MEANS("none", "")},
    {"tool_choice", R, ONLY("[\"auto\", \"none\"]"), MEANS("auto", "")},
    {"tools", R, ONLY("[[]]"), MEANS("none", "not supported yet; /v1/chat/completions has them")},
    {"top_logprobs", R, ONLY("[0]"), MEANS("0", "")},
    {"truncation", R, ONLY("[\"disabled\"]"), MEANS("disabled", "")},
    {"tools", T, READ(mgl_read_tools, "a list of functions", SCHEMA_TOOLS),
     MEANS("none", "as in /v1/chat/completions")},
};

enum { PARAMETER_COUNT = sizeof table / sizeof *table };

static const struct {
  mgl_endpoint endpoint;
  const char *path;
} endpoints[] = {
    {MGL_ENDPOINT_COMPLETIONS, "/v1/completions"}, {MGL_ENDPOINT_CHAT, "/v1/chat/completions"},
    {MGL_ENDPOINT_RESPONSES, "/v1/responses"},     {MGL_ENDPOINT_TOKENIZE, "/tokenize"},
    {MGL_ENDPOINT_DETOKENIZE, "/detokenize"},
};

enum { ENDPOINT_COUNT = sizeof endpoints / sizeof *endpoints };

const char *mgl_endpoint_path(mgl_endpoint endpoint) {
  size_t i = 0;
  while (endpoints[i].endpoint != endpoint) {
    i++;
  }
  return endpoints[i].path;
}

const mgl_parameter *mgl_parameter_at(size_t i) {
  return i < PARAMETER_COUNT ? &table[i] : NULL;
}

// --- finding -------------------------------------------------------------------------------------

static mgl_status unknown(mgl_endpoint endpoint, const char *name, mgl_error *err) {
  const char *names[PARAMETER_COUNT];
  size_t count = 0;
  char meant[MGL_MEANT_BYTES];
  for (size_t i = 0; i < PARAMETER_COUNT; i++) {
    if ((table[i].endpoints & endpoint) != 0) {
      names[count++] = table[i].name;
    } else if (strcmp(table[i].name, name) == 0) {
      for (size_t j = 0; j < ENDPOINT_COUNT; j++) {
        if ((table[i].endpoints & endpoints[j].endpoint) != 0) {
          return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\": a parameter of %s, not of %s", name,
                               endpoints[j].path, mgl_endpoint_path(endpoint));
        }
      }
    }
  }
  mgl_words_ask("", name, names, count, meant);
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%.60s\": no parameter of %s%s", name,
                       mgl_endpoint_path(endpoint), meant);
}

mgl_status mgl_parameter_find(mgl_endpoint endpoint, const char *name, const mgl_parameter **out,
                              mgl_error *err) {
  for (size_t i = 0; i < PARAMETER_COUNT; i++) {
    if ((table[i].endpoints & endpoint) != 0 && strcmp(table[i].name, name) == 0) {
      *out = &table[i];
      return MGL_OK;
    }
  }
  return unknown(endpoint, name, err);
}

// --- setting -------------------------------------------------------------------------------------

mgl_status mgl_parameter_refuse(const char *name, const char *expected, const json_t *found,
                                mgl_error *err) {
  enum { SHOWN_BYTES = 60 };
  char shown[SHOWN_BYTES + 4];
  // Only as much as is shown is made; a body may be large.
  size_t bytes = json_dumpb(found, shown, SHOWN_BYTES, JSON_ENCODE_ANY | JSON_COMPACT);
  if (bytes > SHOWN_BYTES) {
    memcpy(shown + SHOWN_BYTES, "...", 4);
  } else {
    shown[bytes] = 0;
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "\"%s\": expected %s, found %s", name, expected,
                       bytes == 0 ? "something else" : shown);
}

static void append_values(const mgl_parameter *p, mgl_text *out) {
  switch (p->type) {
    case MGL_PARAMETER_BOOL: mgl_text_append_string(out, "true or false"); break;
    case MGL_PARAMETER_U32: mgl_text_format(out, "%.0f to %.0f", p->min, p->max); break;
    case MGL_PARAMETER_REAL: mgl_text_format(out, "a number of %g to %g", p->min, p->max); break;
    case MGL_PARAMETER_TEXT:
      mgl_text_format(out, "a text of %.0f to %.0f bytes", p->min, p->max);
      break;
    case MGL_PARAMETER_READ: mgl_text_append_string(out, p->values); break;
    case MGL_PARAMETER_ONLY: {
      size_t bytes = strlen(p->values);
      mgl_text_format(out, "%s%.*s", bytes == 2 ? "null" : "only ", (int)(bytes - 2),
                      p->values + 1);
      break;
    }
  }
}

static mgl_status refuse_value(const mgl_parameter *p, const json_t *value, mgl_error *err) {
  mgl_text expected = {0};
  append_values(p, &expected);
  if (p->type == MGL_PARAMETER_ONLY) {
    mgl_text_append_string(&expected, " (nothing else is supported)");
  }
  mgl_status status = mgl_text_check(&expected, err);
  if (status == MGL_OK) {
    status = mgl_parameter_refuse(p->name, expected.data, value, err);
  }
  mgl_text_free(&expected);
  return status;
}

static mgl_status check_only(const mgl_parameter *p, const json_t *value, mgl_error *err) {
  json_t *allowed = NULL;
  bool found = false;
  MGL_TRY(mgl_json_parse(p->values, strlen(p->values), p->name, &allowed, err));
  for (size_t i = 0; i < json_array_size(allowed); i++) {
    const json_t *item = json_array_get(allowed, i);
    bool is_number = json_is_number(item) && json_is_number(value);
    found = found || json_equal(item, value) ||
            (is_number && json_number_value(item) == json_number_value(value));
  }
  json_decref(allowed);
  return found ? MGL_OK : refuse_value(p, value, err);
}

mgl_status mgl_parameter_set(mgl_ask *ask, const mgl_parameter *parameter, const json_t *value,
                             mgl_error *err) {
  const mgl_parameter *p = parameter;
  void *field = (char *)ask + p->offset;
  double number = json_number_value(value);
  bool in_range = number >= p->min && number <= p->max;
  switch (p->type) {
    case MGL_PARAMETER_BOOL:
      if (!json_is_boolean(value)) {
        return refuse_value(p, value, err);
      }
      *(bool *)field = json_is_true(value);
      return MGL_OK;
    case MGL_PARAMETER_U32:
      if (!json_is_integer(value) || !in_range) {
        return refuse_value(p, value, err);
      }
      *(uint32_t *)field = (uint32_t)json_integer_value(value);
      return MGL_OK;
    case MGL_PARAMETER_REAL:
      if (!json_is_number(value) || !in_range) {
        return refuse_value(p, value, err);
      }
      *(double *)field = number;
      return MGL_OK;
    case MGL_PARAMETER_TEXT: {
      size_t bytes = json_string_length(value);
      if (!json_is_string(value) || (double)bytes < p->min || (double)bytes > p->max ||
          strlen(json_string_value(value)) != bytes) {
        return refuse_value(p, value, err);
      }
      *(const char **)field = json_string_value(value);
      return MGL_OK;
    }
    case MGL_PARAMETER_READ: return p->read(ask, p, value, err);
    case MGL_PARAMETER_ONLY: return check_only(p, value, err);
  }
  return MGL_OK;
}

// --- documentation -------------------------------------------------------------------------------

enum { LIST_WIDTH = 98 };  // documents have at most 100 columns

// Appends a list item, wrapped at spaces.
static void append_item(const char *text, mgl_text *out) {
  size_t column = 1;
  mgl_text_append_string(out, "-");
  while (*text != 0) {
    size_t bytes = strcspn(text, " ");
    if (column + 1 + bytes > LIST_WIDTH) {
      mgl_text_append_string(out, "\n ");
      column = 1;
    }
    mgl_text_append_string(out, " ");
    mgl_text_append(out, text, bytes);
    column += 1 + bytes;
    text += bytes + (text[bytes] == ' ');
  }
  mgl_text_append_string(out, "\n");
}

void mgl_parameters_append_table(mgl_text *out) {
  static const struct {
    unsigned bit;
    char letter;
  } letters[] = {{C, 'C'}, {M, 'M'}, {R, 'R'}, {T, 'T'}, {D, 'D'}};
  for (size_t i = 0; i < PARAMETER_COUNT; i++) {
    const mgl_parameter *p = &table[i];
    mgl_text item = {0};
    mgl_text_format(&item, "`%s` (", p->name);
    for (size_t j = 0; j < sizeof letters / sizeof *letters; j++) {
      if ((p->endpoints & letters[j].bit) != 0) {
        mgl_text_append(&item, &letters[j].letter, 1);
      }
    }
    mgl_text_append_string(&item, "): ");
    append_values(p, &item);
    mgl_text_format(&item, " [%s]%s%s.", p->otherwise, p->meaning[0] == 0 ? "" : ": ", p->meaning);
    append_item(item.data == NULL ? "" : item.data, out);
    out->failed = out->failed || item.failed;
    mgl_text_free(&item);
  }
}
