// Chats: messages, tools and variables put into the chat template of a model folder, and the tokens
// of what comes of it.
//
// The template sees what transformers' apply_chat_template gives it; where the OpenAI API and
// transformers differ (content as a list of parts, arguments of tool calls as JSON in a string),
// messages are changed to what templates expect, as vLLM does it. Rejected: leaving that to
// templates, of which few know both forms.
#ifndef MGL_MODEL_CHAT_H
#define MGL_MODEL_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"
#include "model/model_folder.h"

enum { MGL_MAX_CHAT_MESSAGES = 65536 };

typedef struct mgl_chat_message {
  const char *role, *content;  // what is not UTF-8 becomes U+FFFD, as in plain prompts
} mgl_chat_message;

// All pointers are borrowed; zero-initialise. Exactly one form of messages, 1 to
// MGL_MAX_CHAT_MESSAGES of them.
typedef struct mgl_chat {
  const mgl_chat_message *messages;  // [message_count]
  size_t message_count;
  const json_t *json_messages;  // an array of objects, see below
  const json_t *tools;          // an array of objects, the variable `tools`; NULL: none
  const json_t *variables;      // an object: more variables; NULL: none
  bool continues_final;         // generation goes on inside the last message, which is not closed
} mgl_chat;

// A JSON message has a role (a string) and a content: a string, an array of parts {"type": "text",
// "text"}, or, of an assistant, null or nothing. Parts reach a template that looks into them
// (mgl_chat_template_takes_parts) as they are, others as one string with newlines between them.
// Arguments of tool_calls that are the text of a JSON object become that object. Reasoning
// ("reasoning_content", "thinking" or "reasoning") is there under the first two names. Other keys
// are handed on. A variable must not have a name that is set here: messages, tools,
// add_generation_prompt, bos_token, eos_token.

// Appends the rendered chat to *out, which a failure leaves as it was, ready for
// mgl_tokenizer_encode without add_special (the template writes the BOS itself). Unless the last
// message is continued, with the generation prompt. What is wrong with the chat is
// MGL_ERR_ARGUMENT. Needs a folder opened with its chat template.
mgl_status mgl_chat_render(const mgl_model_folder *folder, const mgl_chat *chat, mgl_text *out,
                           mgl_error *err);
// The same as tokens, appended to *out. Needs the tokenizer too.
mgl_status mgl_chat_encode(const mgl_model_folder *folder, const mgl_chat *chat,
                           mgl_token_list *out, mgl_error *err);

#endif
