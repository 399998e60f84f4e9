// What a command says about chats beside the messages: tools and variables of the template, from
// options and from keys of JSON objects.
#ifndef MGL_APP_CHAT_OPTIONS_H
#define MGL_APP_CHAT_OPTIONS_H

#include <jansson.h>
#include <megalith.h>

#include "app/options.h"
#include "base/json.h"

enum { MGL_APP_CHAT_JSON_BYTES = 16 * 1024 * 1024 };  // of a file with messages or tools

// Owned; zero-initialise.
typedef struct mgl_app_chat {
  json_t *tools;      // NULL: none
  json_t *variables;  // an object; NULL: none
  bool continues_final;
} mgl_app_chat;

// The keys that an object may have for it.
#define MGL_APP_CHAT_KEYS "tools", "chat_template_kwargs", "continue_final_message"

// --tools and --chat-var. Free *out also after a failure.
mgl_status mgl_app_chat_choose(const mgl_arguments *arguments, mgl_app_chat *out, mgl_error *err);
// What an object says, and `usual` where it says nothing; variables of both, the object's first.
mgl_status mgl_app_chat_read(mgl_json_object o, const mgl_app_chat *usual, mgl_app_chat *out,
                             mgl_error *err);
bool mgl_app_chat_in(mgl_json_object o);  // whether an object has one of the keys
void mgl_app_chat_free(mgl_app_chat *chat);

// A chat as texts, for a request.
typedef struct mgl_app_chat_texts {
  char *messages, *tools, *variables;  // JSON; NULL: none
} mgl_app_chat_texts;

// Puts a chat into *options, with messages as JSON unless they are NULL. The texts are what
// *options borrows: free *texts behind its use, also after a failure.
mgl_status mgl_app_chat_request(const mgl_app_chat *chat, const json_t *messages,
                                mgl_app_chat_texts *texts, megalith_request_options *options,
                                mgl_error *err);
void mgl_app_chat_texts_free(mgl_app_chat_texts *texts);

extern const mgl_option_group mgl_chat_options;

#endif
