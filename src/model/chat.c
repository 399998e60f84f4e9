// Chats as a template's variables: messages are checked, changed where templates expect another
// form, and rendered.
//
// A message that needs no change is shared with the caller's JSON; others are copied as far down as
// they change.
#include "model/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "template/jinja_text.h"
#include "text/unicode.h"

// What stands behind the last message while a chat that continues it is rendered; as in
// transformers, a word and a space, which tells whether the template trims.
#define FINAL_TAG "CONTINUE_FINAL_MESSAGE_TAG"

// --- JSON with every allocation checked ----------------------------------------------------------

// Sets object[key], taking `value`, which is NULL when memory ran out while it was made.
static mgl_status set_member(json_t *object, const char *key, json_t *value, mgl_error *err) {
  if (json_object_set_new(object, key, value) != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for the \"%s\" of a chat", key);
  }
  return MGL_OK;
}

// The same for a value that others keep.
static mgl_status share_member(json_t *object, const char *key, const json_t *value,
                               mgl_error *err) {
  return set_member(object, key, json_incref((json_t *)(uintptr_t)value), err);
}

static mgl_status append_item(json_t *array, json_t *value, mgl_error *err) {
  if (json_array_append_new(array, value) != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chat message");
  }
  return MGL_OK;
}

// Adds the members of `from`, shared, to an object.
static mgl_status share_members(json_t *object, const json_t *from, mgl_error *err) {
  const char *key = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)(uintptr_t)from, key, value) {
    MGL_TRY(share_member(object, key, value, err));
  }
  return MGL_OK;
}

static mgl_status set_text(json_t *object, const char *key, const mgl_text *text, mgl_error *err) {
  MGL_TRY(mgl_text_check(text, err));
  return set_member(object, key, json_stringn(text->data == NULL ? "" : text->data, text->bytes),
                    err);
}

static mgl_jinja_string string_of(const json_t *value) {
  return (mgl_jinja_string){json_string_value(value), json_string_length(value)};
}

// --- one message ---------------------------------------------------------------------------------

// The name of a JSON value for messages: a part's type, a role.
static int shown(const json_t *name) {
  size_t bytes = json_string_length(name);
  return (int)(bytes < 40 ? bytes : 40);
}

static mgl_status check_parts(const json_t *parts, size_t message, mgl_error *err) {
  for (size_t i = 0; i < json_array_size(parts); i++) {
    const json_t *part = json_array_get(parts, i);
    const json_t *type = json_object_get(part, "type");
    if (!json_is_object(part) || !json_is_string(type)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "messages[%zu].content[%zu]: expected an object with a \"type\"",
                           message, i);
    }
    if (strcmp(json_string_value(type), "text") != 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "messages[%zu].content[%zu]: expected a part of type \"text\", found "
                           "\"%.*s\": Megalith runs models of text only",
                           message, i, shown(type), json_string_value(type));
    }
    if (!json_is_string(json_object_get(part, "text"))) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "messages[%zu].content[%zu]: expected a string \"text\"", message, i);
    }
  }
  return MGL_OK;
}

static mgl_status check_message(const json_t *message, size_t i, mgl_error *err) {
  if (!json_is_object(message)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "messages[%zu]: expected an object", i);
  }
  const json_t *role = json_object_get(message, "role");
  const json_t *content = json_object_get(message, "content");
  bool has_none = content == NULL || json_is_null(content);
  if (!json_is_string(role) || (has_none && strcmp(json_string_value(role), "assistant") != 0)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "messages[%zu]: expected a role and a content", i);
  }
  if (!has_none && !json_is_string(content) && !json_is_array(content)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "messages[%zu].content: expected a string or an array of parts", i);
  }
  return json_is_array(content) ? check_parts(content, i, err) : MGL_OK;
}

// Replaces message["content"], an array of parts, by their text, with newlines between them.
static mgl_status join_parts(json_t *message, const json_t *parts, mgl_error *err) {
  mgl_text text = {0};
  for (size_t i = 0; i < json_array_size(parts); i++) {
    mgl_jinja_string part = string_of(json_object_get(json_array_get(parts, i), "text"));
    mgl_text_append(&text, "\n", i == 0 ? 0 : 1);
    mgl_text_append(&text, part.data, part.bytes);
  }
  mgl_status status = set_text(message, "content", &text, err);
  mgl_text_free(&text);
  return status;
}

// One tool call with its arguments as an object, where they are the text of one; else a model wrote
// them in its own way, and the template gets them so.
static mgl_status add_call(json_t *calls, const json_t *call, mgl_error *err) {
  const json_t *function = json_object_get(call, "function");
  const json_t *arguments = json_object_get(function, "arguments");
  json_t *parsed = NULL;
  mgl_error reason = {0};
  if (json_is_string(arguments)) {
    mgl_jinja_string text = string_of(arguments);
    if (mgl_json_parse(text.data, text.bytes, "arguments", &parsed, &reason) == MGL_ERR_MEMORY) {
      return mgl_error_set(err, MGL_ERR_MEMORY, "%s", reason.text);
    }
  }
  if (!json_is_object(parsed)) {
    json_decref(parsed);
    return append_item(calls, json_incref((json_t *)(uintptr_t)call), err);
  }
  json_t *call_copy = json_object();
  json_t *function_copy = json_object();
  mgl_status status = append_item(calls, call_copy, err);
  if (status == MGL_OK) {
    status = share_members(call_copy, call, err);
  }
  if (status == MGL_OK) {
    json_incref(function_copy);  // its place in the call has a reference of its own
    status = set_member(call_copy, "function", function_copy, err);
  }
  if (status == MGL_OK) {
    status = share_members(function_copy, function, err);
  }
  if (status == MGL_OK) {
    status = share_member(function_copy, "arguments", parsed, err);
  }
  json_decref(function_copy);
  json_decref(parsed);
  return status;
}

static mgl_status convert_calls(json_t *message, const json_t *calls, mgl_error *err) {
  json_t *converted = json_array();
  MGL_TRY(set_member(message, "tool_calls", converted, err));
  for (size_t i = 0; i < json_array_size(calls); i++) {
    MGL_TRY(add_call(converted, json_array_get(calls, i), err));
  }
  return MGL_OK;
}

// What an assistant thought, under whichever name; NULL: nothing.
static const json_t *find_reasoning(const json_t *message) {
  static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const json_t *found = json_object_get(message, names[i]);
    if (found != NULL && !json_is_null(found)) {
      return found;
    }
  }
  return NULL;
}

// Adds a message that was checked to a list, as the template wants it.
static mgl_status add_message(json_t *list, const json_t *message, bool takes_parts,
                              mgl_error *err) {
  const json_t *content = json_object_get(message, "content");
  const json_t *calls = json_object_get(message, "tool_calls");
  const json_t *reasoning = find_reasoning(message);
  bool joins = json_is_array(content) && !takes_parts;
  if (!joins && content != NULL && !json_is_array(calls) && reasoning == NULL) {
    return append_item(list, json_incref((json_t *)(uintptr_t)message), err);
  }
  json_t *copy = json_object();
  MGL_TRY(append_item(list, copy, err));
  if (reasoning != NULL) {
    MGL_TRY(share_member(copy, "thinking", reasoning, err));
  }
  MGL_TRY(share_members(copy, message, err));
  if (reasoning != NULL) {
    MGL_TRY(share_member(copy, "reasoning_content", reasoning, err));
  }
  if (content == NULL) {
    MGL_TRY(set_member(copy, "content", json_null(), err));
  }
  if (json_is_array(calls)) {
    MGL_TRY(convert_calls(copy, calls, err));
  }
  return joins ? join_parts(copy, content, err) : MGL_OK;
}

// --- all of them ---------------------------------------------------------------------------------

static mgl_status set_lossy(json_t *object, const char *key, const char *text, mgl_error *err) {
  mgl_text valid = {0};
  mgl_utf8_append_lossy(&valid, text, strlen(text));
  mgl_status status = set_text(object, key, &valid, err);
  mgl_text_free(&valid);
  return status;
}

static mgl_status list_plain(const mgl_chat *chat, json_t *list, mgl_error *err) {
  for (size_t i = 0; i < chat->message_count; i++) {
    const mgl_chat_message *m = &chat->messages[i];
    if (m->role == NULL || m->content == NULL) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "messages[%zu]: expected a role and a content",
                           i);
    }
    json_t *message = json_object();
    MGL_TRY(append_item(list, message, err));
    MGL_TRY(set_lossy(message, "role", m->role, err));
    MGL_TRY(set_lossy(message, "content", m->content, err));
  }
  return MGL_OK;
}

static mgl_status list_json(const mgl_model_folder *folder, const mgl_chat *chat, json_t *list,
                            mgl_error *err) {
  bool takes_parts = mgl_chat_template_takes_parts(folder->chat_template);
  for (size_t i = 0; i < json_array_size(chat->json_messages); i++) {
    const json_t *message = json_array_get(chat->json_messages, i);
    MGL_TRY(check_message(message, i, err));
    MGL_TRY(add_message(list, message, takes_parts, err));
  }
  return MGL_OK;
}

static mgl_status add_tools(const mgl_chat *chat, json_t *context, mgl_error *err) {
  if (chat->tools == NULL) {
    return set_member(context, "tools", json_null(), err);
  }
  for (size_t i = 0; i < json_array_size(chat->tools); i++) {
    if (!json_is_object(json_array_get(chat->tools, i))) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "tools[%zu]: expected an object", i);
    }
  }
  if (!json_is_array(chat->tools)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "tools: expected an array of objects");
  }
  return share_member(context, "tools", chat->tools, err);
}

static mgl_status add_variables(const mgl_chat *chat, json_t *context, mgl_error *err) {
  static const char *const own[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                    "eos_token"};
  if (chat->variables == NULL) {
    return MGL_OK;
  }
  if (!json_is_object(chat->variables)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "chat variables: expected an object");
  }
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    if (json_object_get(chat->variables, own[i]) != NULL) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "chat variables: \"%s\" is set by Megalith: expected another name",
                           own[i]);
    }
  }
  return share_members(context, chat->variables, err);
}

// What transformers' apply_chat_template defines: special tokens only where the model has them,
// "tools" and "documents" as none.
static mgl_status fill_context(const mgl_model_folder *folder, const mgl_chat *chat,
                               json_t *context, mgl_error *err) {
  MGL_TRY(set_member(context, "add_generation_prompt", json_boolean(!chat->continues_final), err));
  MGL_TRY(set_member(context, "documents", json_null(), err));
  if (folder->bos_token != NULL) {
    MGL_TRY(set_member(context, "bos_token", json_string(folder->bos_token), err));
  }
  if (folder->eos_token != NULL) {
    MGL_TRY(set_member(context, "eos_token", json_string(folder->eos_token), err));
  }
  MGL_TRY(add_tools(chat, context, err));
  return add_variables(chat, context, err);
}

// --- continuing the last message -----------------------------------------------------------------

// Sets object[key], a string, to itself and the tag. *final becomes the string, referenced.
static mgl_status tag_text(json_t *object, const char *key, json_t **final, mgl_error *err) {
  mgl_text text = {0};
  *final = json_incref(json_object_get(object, key));
  mgl_jinja_string before = string_of(*final);
  mgl_text_append(&text, before.data, before.bytes);
  mgl_text_append_string(&text, FINAL_TAG " ");
  mgl_status status = set_text(object, key, &text, err);
  mgl_text_free(&text);
  return status;
}

// Replaces the last item of a list, an object, by a copy of its own.
static mgl_status own_last(json_t *list, json_t **out, mgl_error *err) {
  size_t last = json_array_size(list) - 1;
  json_t *copy = json_object();
  json_t *shared = json_incref(json_array_get(list, last));
  *out = copy;
  mgl_status status = json_array_set_new(list, last, copy) == 0
                          ? share_members(copy, shared, err)
                          : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chat message");
  json_decref(shared);
  return status;
}

// Puts the tag behind the text of the last message.
static mgl_status tag_final(json_t *list, json_t **final, mgl_error *err) {
  json_t *message = NULL;
  json_t *part = NULL;
  MGL_TRY(own_last(list, &message, err));
  const json_t *content = json_object_get(message, "content");
  if (json_is_string(content)) {
    return tag_text(message, "content", final, err);
  }
  if (json_array_size(content) == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "messages[%zu]: expected a text that can be continued, found none",
                         json_array_size(list) - 1);
  }
  json_t *parts = json_array();
  json_t *shared = json_incref((json_t *)(uintptr_t)content);
  mgl_status status = set_member(message, "content", parts, err);
  for (size_t i = 0; status == MGL_OK && i < json_array_size(shared); i++) {
    status = append_item(parts, json_incref(json_array_get(shared, i)), err);
  }
  json_decref(shared);
  MGL_TRY(status);
  MGL_TRY(own_last(parts, &part, err));
  return tag_text(part, "text", final, err);
}

// Cuts the rendered chat behind the last message's text, where the tag stands.
static mgl_status cut_at_tag(const json_t *final, size_t start, mgl_text *out, mgl_error *err) {
  MGL_TRY(mgl_text_check(out, err));
  mgl_jinja_string chat = {out->data == NULL ? "" : out->data + start, out->bytes - start};
  mgl_jinja_string message = mgl_jinja_text_strip(string_of(final), NULL, true, true);
  size_t at = mgl_jinja_text_find_last(chat, MGL_JINJA_LITERAL(FINAL_TAG));
  if (at == SIZE_MAX || mgl_jinja_text_find(chat, message, 0) == SIZE_MAX) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "the last message cannot be continued: the chat template changes its text");
  }
  size_t behind = at + strlen(FINAL_TAG);
  mgl_jinja_string kept = mgl_jinja_text_part(chat, 0, at);
  if (behind == chat.bytes || chat.data[behind] != ' ') {  // the template trims: so does the cut
    kept = mgl_jinja_text_strip(kept, NULL, false, true);
  }
  out->bytes = start + kept.bytes;
  out->data[out->bytes] = 0;
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

static mgl_status check_chat(const mgl_model_folder *folder, const mgl_chat *chat, mgl_error *err) {
  if (folder->chat_template == NULL && folder->no_chat_template != NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s", folder->no_chat_template);
  }
  if (folder->chat_template == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s was opened without its chat template",
                         folder->path);
  }
  size_t count =
      chat->messages != NULL ? chat->message_count : json_array_size(chat->json_messages);
  if (count < 1 || count > MGL_MAX_CHAT_MESSAGES) {
    bool is_array = chat->json_messages == NULL || json_is_array(chat->json_messages);
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "messages: expected an array of 1 to %d objects, found %s%zu",
                         MGL_MAX_CHAT_MESSAGES, is_array ? "" : "no array, so ", count);
  }
  return MGL_OK;
}

static mgl_status render(const mgl_model_folder *folder, const mgl_chat *chat, json_t *context,
                         mgl_text *out, mgl_error *err) {
  json_t *list = json_array();
  json_t *final = NULL;
  size_t start = out->bytes;
  MGL_TRY(set_member(context, "messages", list, err));
  MGL_TRY(fill_context(folder, chat, context, err));
  MGL_TRY(chat->messages != NULL ? list_plain(chat, list, err)
                                 : list_json(folder, chat, list, err));
  mgl_status status = chat->continues_final ? tag_final(list, &final, err) : MGL_OK;
  if (status == MGL_OK) {
    status = mgl_chat_template_render(folder->chat_template, context, out, err);
  }
  if (status == MGL_OK && chat->continues_final) {
    status = cut_at_tag(final, start, out, err);
    if (status != MGL_OK) {
      out->bytes = start;
      if (out->data != NULL) {
        out->data[start] = 0;
      }
    }
  }
  json_decref(final);
  return status;
}

mgl_status mgl_chat_render(const mgl_model_folder *folder, const mgl_chat *chat, mgl_text *out,
                           mgl_error *err) {
  MGL_TRY(check_chat(folder, chat, err));
  json_t *context = json_object();
  mgl_status status = render(folder, chat, context, out, err);
  json_decref(context);
  return status;
}

mgl_status mgl_chat_encode(const mgl_model_folder *folder, const mgl_chat *chat,
                           mgl_token_list *out, mgl_error *err) {
  mgl_text text = {0};
  mgl_status status = mgl_chat_render(folder, chat, &text, err);
  if (status == MGL_OK) {
    status = mgl_text_check(&text, err);
  }
  if (status == MGL_OK) {
    status = mgl_tokenizer_encode(folder->tokenizer, text.data == NULL ? "" : text.data, text.bytes,
                                  (mgl_encode_options){0}, out, err);
  }
  mgl_text_free(&text);
  return status;
}
