// What a client asks for: a JSON body, checked and ready for megalith_engine_submit.
//
// Nothing is silently ignored: every parameter is in the table of parameters.h and either works, or
// is refused with its name, what was found and what is expected. Nothing here knows of HTTP.
#ifndef MGL_REQUEST_ASK_H
#define MGL_REQUEST_ASK_H

#include <jansson.h>
#include <megalith.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
  MGL_ASK_MAX_CHOICES = 128,        // prompts times n
  MGL_ASK_MAX_VALUES = 256 * 1024,  // of a body: strings, numbers, lists, ...
  MGL_ASK_MAX_ID_BYTES = 128,       // of request_id and the like
  MGL_ASK_PARAMETER_BYTES = 64,
  MGL_ASK_MAX_TOOLS = 1024,
  MGL_ASK_MAX_TOOL_NAME_BYTES = 256,
};

// A set of these says where a parameter belongs.
typedef enum mgl_endpoint {
  MGL_ENDPOINT_COMPLETIONS = 1,
  MGL_ENDPOINT_CHAT = 2,
  MGL_ENDPOINT_RESPONSES = 4,
  MGL_ENDPOINT_TOKENIZE = 8,
  MGL_ENDPOINT_DETOKENIZE = 16,
} mgl_endpoint;

// "/v1/completions" and so on.
const char *mgl_endpoint_path(mgl_endpoint endpoint);

typedef struct mgl_ask_prompt {
  const char *text;  // NULL: tokens
  size_t text_bytes;
  const int32_t *tokens;
  size_t token_count;
} mgl_ask_prompt;

typedef struct mgl_ask {
  mgl_endpoint endpoint;
  json_t *root;  // what strings here point into
  const char *model;
  const char *request_id;
  const char *user;
  mgl_ask_prompt *prompts;  // [prompt_count]
  size_t prompt_count;
  bool is_chat;         // messages_json instead
  char *messages_json;  // as megalith_request_options has them
  char *tools_json;
  char *variables_json;
  bool continue_final_message;
  bool hides_tools;    // tool_choice is none,
  bool requires_call;  // or required, or a function:
  const char *called_function;
  const json_t *tools;  // NULL: none
  uint32_t n;
  bool stream, include_usage;
  bool echo;
  bool hides_answer;  // max_tokens is 0: a token is generated, and nobody is told
  bool has_prompt_logprobs;
  uint32_t prompt_logprobs;  // of the likeliest, besides the prompt's own
  bool shows_special;        // special tokens in texts
  bool starts_in_thought;    // the prompt has opened a thought; the server's to find out
  bool shows_token_ids;      // "token_id:7" in place of a token's text
  bool return_token_ids;
  bool add_special_tokens;  // what the model wants in front of texts
  bool keep_stop;           // the stop text is part of the answer
  bool hides_thoughts;      // include_reasoning is false
  bool return_token_strs;   // of tokenize
  bool parallel_tool_calls;
  bool has_seed;
  bool chat_logprobs;  // of chats, where logprobs is a flag
  uint32_t max_tokens;
  megalith_sampling sampling;
  uint32_t stop_count, stop_token_count;
  const char *stops[MEGALITH_MAX_STOP_TEXTS];
  int32_t stop_tokens[MEGALITH_MAX_STOP_TOKENS];
  bool ignore_eos;
  const char *bad_words[MEGALITH_MAX_BAD_WORDS];
  uint32_t bad_word_count;
  uint32_t max_prompt_tokens;  // as megalith_request_options has it
  const char *cache_salt;
  int32_t priority;
  megalith_grammar *grammar;  // compiled; NULL: none
  // While it is read:
  json_t *variables;           // what variables_json is made of
  const json_t *instructions;  // of responses
  const json_t *input;
  bool has_stream_options, has_generation_prompt, generation_prompt, has_add_special;
  const megalith_model_info *info;
  megalith_grammar_kind grammar_kind;  // 0: none
  char *grammar_text;
  const char *grammar_parameter;  // that asks for it
  // Memory of what is above:
  int32_t *token_memory;
  size_t token_memory_count, token_memory_capacity;
  megalith_logit_bias *biases;
  int32_t *allowed;
  // Of a failure: the parameter that is to blame, "" if none is.
  char blamed[MGL_ASK_PARAMETER_BYTES];
} mgl_ask;

// Reads a body. `model` gives the defaults and the limits. Free with mgl_ask_free, also after a
// failure; then blamed says which parameter it was.
mgl_status mgl_ask_read(const megalith_model *model, mgl_endpoint endpoint, const char *body,
                        size_t bytes, mgl_ask *out, mgl_error *err);
void mgl_ask_free(mgl_ask *ask);

// What to submit for choice i of prompts times n; pointers into *ask, on_output is the caller's.
// *sampling is memory for what the options point to.
void mgl_ask_options(const mgl_ask *ask, size_t i, megalith_sampling *sampling,
                     megalith_request_options *out);

#endif
