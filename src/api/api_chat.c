// Prompts that are chats: the caller's messages, tools and variables, put into the model's
// template.
#include <stdio.h>
#include <string.h>

#include "api/api_parts.h"
#include "base/alloc.h"
#include "base/json.h"
#include "model/chat.h"

// A chat with what it owns.
typedef struct owned_chat {
  mgl_chat chat;
  mgl_chat_message *messages;
  json_t *json_messages;
  json_t *tools;
  json_t *variables;
} owned_chat;

static void release(owned_chat *owned) {
  mgl_free(owned->messages);
  json_decref(owned->json_messages);
  json_decref(owned->tools);
  json_decref(owned->variables);
}

static mgl_status parse(const char *text, const char *name, json_t **out, mgl_error *err) {
  if (text == NULL) {
    return MGL_OK;
  }
  size_t bytes = strlen(text);
  if (bytes > MEGALITH_MAX_CHAT_JSON_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected at most %d bytes, found %zu", name,
                         MEGALITH_MAX_CHAT_JSON_BYTES, bytes);
  }
  return mgl_json_parse(text, bytes, name, out, err);
}

static mgl_status copy_messages(const megalith_request_options *options, owned_chat *owned,
                                mgl_error *err) {
  size_t count = options->message_count;
  if (count > MGL_MAX_CHAT_MESSAGES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "messages: expected at most %d, found %zu",
                         MGL_MAX_CHAT_MESSAGES, count);
  }
  owned->messages = mgl_alloc_zeroed(count, sizeof *owned->messages);
  if (owned->messages == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu messages", count);
  }
  for (size_t i = 0; i < count; i++) {
    owned->messages[i] = (mgl_chat_message){.role = options->messages[i].role,
                                            .content = options->messages[i].content};
  }
  owned->chat.messages = owned->messages;
  owned->chat.message_count = count;
  return MGL_OK;
}

static mgl_status read_chat(const megalith_request_options *options, owned_chat *owned,
                            mgl_error *err) {
  if (options->messages != NULL) {
    MGL_TRY(copy_messages(options, owned, err));
  }
  MGL_TRY(parse(options->messages_json, "messages_json", &owned->json_messages, err));
  MGL_TRY(parse(options->tools_json, "tools_json", &owned->tools, err));
  MGL_TRY(parse(options->chat_variables_json, "chat_variables_json", &owned->variables, err));
  owned->chat.json_messages = owned->json_messages;
  owned->chat.tools = owned->tools;
  owned->chat.variables = owned->variables;
  owned->chat.continues_final = options->continue_final_message;
  return MGL_OK;
}

mgl_status mgl_api_encode_chat(const mgl_model_folder *folder,
                               const megalith_request_options *options, mgl_token_list *out,
                               mgl_error *err) {
  owned_chat owned = {0};
  mgl_status status = read_chat(options, &owned, err);
  if (status == MGL_OK) {
    status = mgl_chat_encode(folder, &owned.chat, out, err);
  }
  release(&owned);
  return status;
}

static mgl_status render(const megalith_model *model, const megalith_request_options *given,
                         mgl_text *out, mgl_error *err) {
  megalith_request_options options;
  owned_chat owned = {0};
  MGL_TRY(mgl_api_read_options(given, sizeof options, "megalith_request_options", &options, err));
  int given_count = (options.messages != NULL) + (options.messages_json != NULL);
  if (given_count != 1) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "render: expected one of messages and messages_json, found %d",
                         given_count);
  }
  mgl_status status = read_chat(&options, &owned, err);
  if (status == MGL_OK) {
    status = mgl_chat_render(&model->folder, &owned.chat, out, err);
  }
  release(&owned);
  return status;
}

megalith_status megalith_model_render(const megalith_model *model,
                                      const megalith_request_options *options, char *text,
                                      size_t capacity, size_t *bytes, megalith_error *error) {
  mgl_error err = {0};
  mgl_text all = {0};
  const mgl_status status = render(model, options, &all, &err);
  return mgl_api_give_text(status, &all, text, capacity, bytes, &err, error);
}
