#include "app/chat_options.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "request/json_text.h"

static mgl_status set_variable(json_t *variables, const char *name, json_t *value, mgl_error *err) {
  if (json_object_set_new(variables, name, value) != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chat variable");
  }
  return MGL_OK;
}

static mgl_status share_variables(json_t *variables, const json_t *from, mgl_error *err) {
  const char *name = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)(uintptr_t)from, name, value) {
    MGL_TRY(set_variable(variables, name, json_incref(value), err));
  }
  return MGL_OK;
}

static bool is_name(const char *text, size_t bytes) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  static const char others[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  return bytes > 0 && strspn(text, letters) > 0 && strspn(text, others) == bytes;
}

// A value as JSON if it is that, else as a string, in which what is not UTF-8 becomes U+FFFD.
static mgl_status read_value(const char *text, json_t **out, mgl_error *err) {
  mgl_error reason = {0};
  mgl_status status = mgl_json_parse(text, strlen(text), "--chat-var", out, &reason);
  if (status == MGL_ERR_MEMORY) {
    return mgl_error_set(err, status, "%s", reason.text);
  }
  if (*out == NULL) {
    mgl_text valid = {0};
    mgl_json_append_string(&valid, text, strlen(text));
    status = mgl_text_check(&valid, err);
    if (status == MGL_OK) {
      status = mgl_json_parse(valid.data, valid.bytes, "--chat-var", out, err);
    }
    mgl_text_free(&valid);
    return status;
  }
  return MGL_OK;
}

// NAME=VALUE.
static mgl_status add_variable(json_t *variables, const char *text, mgl_error *err) {
  size_t bytes = strcspn(text, "=");
  json_t *value = NULL;
  if (text[bytes] != '=' || !is_name(text, bytes)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--chat-var: expected NAME=VALUE, found \"%.80s\"",
                         text);
  }
  MGL_TRY(read_value(text + bytes + 1, &value, err));
  char *name = mgl_strndup(text, bytes);
  mgl_status status = MGL_OK;
  if (name == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chat variable");
  } else {
    status = set_variable(variables, name, json_incref(value), err);
  }
  mgl_free(name);
  json_decref(value);
  return status;
}

static mgl_status need_variables(mgl_app_chat *chat, mgl_error *err) {
  chat->variables = chat->variables != NULL ? chat->variables : json_object();
  return chat->variables != NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for chat variables");
}

mgl_status mgl_app_chat_choose(const mgl_arguments *arguments, mgl_app_chat *out, mgl_error *err) {
  const char *tools = mgl_arguments_text(arguments, "tools", NULL);
  if (tools != NULL) {
    MGL_TRY(mgl_json_read(tools, MGL_APP_CHAT_JSON_BYTES, &out->tools, err));
    if (!json_is_array(out->tools)) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a JSON array of tools", tools);
    }
  }
  for (size_t i = 0; i < arguments->count; i++) {
    if (strcmp(arguments->items[i].option->name, "chat-var") == 0) {
      MGL_TRY(need_variables(out, err));
      MGL_TRY(add_variable(out->variables, arguments->items[i].text, err));
    }
  }
  return MGL_OK;
}

bool mgl_app_chat_in(mgl_json_object o) {
  static const char *const keys[] = {MGL_APP_CHAT_KEYS};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    if (mgl_json_has(o, keys[i])) {
      return true;
    }
  }
  return false;
}

mgl_status mgl_app_chat_read(mgl_json_object o, const mgl_app_chat *usual, mgl_app_chat *out,
                             mgl_error *err) {
  const json_t *tools =
      mgl_json_has(o, "tools") ? json_object_get(o.object, "tools") : usual->tools;
  mgl_json_object own;
  MGL_TRY(mgl_json_opt_object(o, "chat_template_kwargs", &own, err));
  MGL_TRY(mgl_json_opt_bool(o, "continue_final_message", &out->continues_final, err));
  out->tools = json_incref((json_t *)(uintptr_t)tools);
  if (usual->variables != NULL || own.object != NULL) {
    MGL_TRY(need_variables(out, err));
    MGL_TRY(share_variables(out->variables, usual->variables, err));
    MGL_TRY(share_variables(out->variables, own.object, err));
  }
  return MGL_OK;
}

void mgl_app_chat_free(mgl_app_chat *chat) {
  json_decref(chat->tools);
  json_decref(chat->variables);
  *chat = (mgl_app_chat){0};
}

static mgl_status text_of(const json_t *json, char **out, mgl_error *err) {
  if (json == NULL) {
    return MGL_OK;
  }
  *out = json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT);
  return *out != NULL ? MGL_OK : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chat");
}

mgl_status mgl_app_chat_request(const mgl_app_chat *chat, const json_t *messages,
                                mgl_app_chat_texts *texts, megalith_request_options *options,
                                mgl_error *err) {
  *texts = (mgl_app_chat_texts){0};
  MGL_TRY(text_of(messages, &texts->messages, err));
  MGL_TRY(text_of(chat->tools, &texts->tools, err));
  MGL_TRY(text_of(chat->variables, &texts->variables, err));
  options->messages_json = texts->messages;
  options->tools_json = texts->tools;
  options->chat_variables_json = texts->variables;
  options->continue_final_message = chat->continues_final;
  return MGL_OK;
}

void mgl_app_chat_texts_free(mgl_app_chat_texts *texts) {
  free(texts->messages);  // from jansson
  free(texts->tools);
  free(texts->variables);
  *texts = (mgl_app_chat_texts){0};
}

// --- the options ---------------------------------------------------------------------------------

static const mgl_option options[] = {
    {.name = "tools",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "a JSON array of tools that the chat template shows to the model [none]"},
    {.name = "chat-var",
     .value_name = "NAME=VALUE",
     .type = MGL_OPTION_TEXT,
     .repeatable = true,
     .help = "a variable of the chat template, such as enable_thinking=false; a value that is JSON "
             "is that, any other a string [none]"},
};

const mgl_option_group mgl_chat_options = {options, sizeof options / sizeof *options};
