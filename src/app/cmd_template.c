// megalith template: what the model's chat template makes of messages, before it is tokens.
#include <string.h>
#include <unistd.h>

#include "app/chat_options.h"
#include "app/client.h"
#include "app/commands.h"
#include "app/output.h"
#include "base/alloc.h"

typedef struct rendering {
  const megalith_model *model;
  megalith_request_options options;
} rendering;

static megalith_status get_text(const void *context, char *text, size_t capacity, size_t *bytes,
                                megalith_error *error) {
  const rendering *r = context;
  return megalith_model_render(r->model, &r->options, text, capacity, bytes, error);
}

// With r->options.messages, or those of JSON.
static mgl_status render_chat(rendering *r, const mgl_app_chat *chat, const json_t *messages,
                              mgl_text *out, mgl_error *err) {
  mgl_app_chat_texts texts;
  mgl_status status = mgl_app_chat_request(chat, messages, &texts, &r->options, err);
  if (status == MGL_OK) {
    status = mgl_client_append(get_text, r, out, err);
  }
  mgl_app_chat_texts_free(&texts);
  return status;
}

static mgl_status render_plain(rendering *r, const mgl_arguments *arguments,
                               const mgl_app_chat *chat, mgl_text *out, mgl_error *err) {
  const megalith_message messages[] = {
      {.role = "system", .content = mgl_arguments_text(arguments, "system", NULL)},
      {.role = "user", .content = mgl_arguments_text(arguments, "prompt", NULL)}};
  size_t first = messages[0].content == NULL ? 1 : 0;
  size_t count = messages[1].content == NULL ? 1 : 2;
  r->options.messages = messages + first;
  r->options.message_count = count - first;
  return render_chat(r, chat, NULL, out, err);
}

// An array of messages, or an object that has them, as a line of `megalith run --jsonl`.
static mgl_status render_json(rendering *r, const json_t *json, const char *where,
                              const mgl_app_chat *usual, mgl_text *out, mgl_error *err) {
  mgl_json_object o = {.object = json_is_object(json) ? json : NULL, .where = where};
  mgl_app_chat own = {0};
  json_t *none = json_array();  // what an object without messages has
  mgl_status status = none != NULL ? mgl_app_chat_read(o, usual, &own, err)
                                   : mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a chat");
  if (status == MGL_OK) {
    const json_t *messages = json_is_object(json) ? json_object_get(json, "messages") : json;
    own.continues_final = own.continues_final || usual->continues_final;
    status = render_chat(r, &own, messages == NULL ? none : messages, out, err);
  }
  json_decref(none);
  mgl_app_chat_free(&own);
  return status;
}

static mgl_status read_messages(const mgl_arguments *arguments, json_t **out, mgl_error *err) {
  const char *path = mgl_arguments_text(arguments, "messages", "-");
  mgl_text text = {0};
  if (strcmp(path, "-") != 0) {
    return mgl_json_read(path, MGL_APP_CHAT_JSON_BYTES, out, err);
  }
  if (!mgl_arguments_has(arguments, "messages") && isatty(STDIN_FILENO)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "no messages: expected -p TEXT, --messages FILE or JSON on standard "
                         "input: see megalith template --help");
  }
  mgl_status status = mgl_input_read(MGL_APP_CHAT_JSON_BYTES, &text, err);
  if (status == MGL_OK) {
    status =
        mgl_json_parse(text.data == NULL ? "" : text.data, text.bytes, "standard input", out, err);
  }
  mgl_text_free(&text);
  return status;
}

static mgl_status render(const mgl_arguments *arguments, const megalith_model *model,
                         const mgl_app_chat *usual, mgl_text *out, mgl_error *err) {
  rendering r = {.model = model, .options = {.size = sizeof r.options}};
  bool is_plain = mgl_arguments_has(arguments, "prompt") || mgl_arguments_has(arguments, "system");
  if (is_plain && mgl_arguments_has(arguments, "messages")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected --messages, or -p and --system, found both: see megalith "
                         "template --help");
  }
  if (is_plain) {
    return render_plain(&r, arguments, usual, out, err);
  }
  json_t *json = NULL;
  MGL_TRY(read_messages(arguments, &json, err));
  const char *where = mgl_arguments_text(arguments, "messages", "standard input");
  mgl_status status = render_json(&r, json, where, usual, out, err);
  json_decref(json);
  return status;
}

static mgl_status template_command(const mgl_arguments *arguments, mgl_error *err) {
  megalith_model *model = NULL;
  const megalith_model_options options = {
      .size = sizeof options, .weights = MEGALITH_WEIGHTS_NONE, .needs_chat_template = true};
  mgl_app_chat chat = {.continues_final = mgl_arguments_has(arguments, "continue")};
  mgl_text output = {0};
  mgl_status status = MGL_OK;
  if ((status = mgl_client_open(arguments, &options, &model, NULL, err)) == MGL_OK &&
      (status = mgl_app_chat_choose(arguments, &chat, err)) == MGL_OK &&
      (status = render(arguments, model, &chat, &output, err)) == MGL_OK) {
    status = mgl_output_text(&output, err);
  }
  mgl_text_free(&output);
  mgl_app_chat_free(&chat);
  megalith_model_close(model);
  return status;
}

static const mgl_option template_options[] = {
    {.name = "prompt",
     .short_name = 'p',
     .value_name = "TEXT",
     .type = MGL_OPTION_TEXT,
     .help = "a user's message"},
    {.name = "system",
     .value_name = "TEXT",
     .type = MGL_OPTION_TEXT,
     .help = "system message of the chat [none]"},
    {.name = "messages",
     .value_name = "FILE",
     .type = MGL_OPTION_FILE,
     .help = "a JSON array of messages as the OpenAI API has them, or an object with messages, and "
             "tools, chat_template_kwargs and continue_final_message; - is standard input"},
    {.name = "continue",
     .type = MGL_OPTION_FLAG,
     .help = "leave the last message open, so that generation would go on inside it"},
};

static const mgl_option_group *const groups[] = {&mgl_chat_options, NULL};

const mgl_command mgl_command_template = {
    .name = "template",
    .summary = "print what the chat template makes of messages",
    .positional = "MODEL",
    .text_hint = "a prompt stands behind -p, in quotes",
    .description =
        "Prints the prompt that the model gets for messages, with no newline added. Without -p\n"
        "and --messages, reads the messages as JSON on standard input. To see its tokens:\n"
        "megalith template ... | megalith tokenize --no-special",
    .examples =
        "megalith template --system \"Be brief.\" -p \"Why is the sky blue?\"\n"
        "megalith template path/to/Qwen3-0.6B -p Hello --chat-var enable_thinking=false\n"
        "megalith template path/to/model --messages chat.json --tools tools.json",
    .options = template_options,
    .option_count = sizeof template_options / sizeof *template_options,
    .groups = groups,
    .run = template_command,
};
