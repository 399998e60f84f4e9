// megalith tokenize: text to token ids and back, as a filter.
#include <string.h>

#include "app/client.h"
#include "app/commands.h"
#include "app/output.h"
#include "app/token_input.h"
#include "base/alloc.h"

// Ids are digits and commas: at most eight bytes for a byte of the longest text.
enum { MAX_IDS_BYTES = 1 << 30 };

static mgl_status encode(const mgl_arguments *arguments, const megalith_model *model,
                         const mgl_text *input, mgl_text *out, mgl_error *err) {
  mgl_ids tokens = {0};
  const megalith_request_options options = {
      .size = sizeof options,
      .text = input->data == NULL ? "" : input->data,
      .text_bytes = input->bytes,
      .without_special = mgl_arguments_has(arguments, "no-special"),
      .plain_special = mgl_arguments_has(arguments, "plain")};
  mgl_status status = mgl_client_encode(model, &options, &tokens, err);
  mgl_text_append_string(out, "[");
  for (size_t i = 0; i < tokens.count; i++) {
    mgl_text_format(out, "%s%d", i == 0 ? "" : ", ", tokens.ids[i]);
  }
  mgl_text_append_string(out, "]\n");
  mgl_free(tokens.ids);
  return status;
}

typedef struct decoding {
  const megalith_model *model;
  const mgl_ids *tokens;
  bool skip_special;
} decoding;

static megalith_status get_text(const void *context, char *text, size_t capacity, size_t *bytes,
                                megalith_error *error) {
  const decoding *d = context;
  return (d->skip_special ? megalith_model_detokenize : megalith_model_detokenize_special)(
      d->model, d->tokens->ids, d->tokens->count, text, capacity, bytes, error);
}

static mgl_status decode(const mgl_arguments *arguments, const megalith_model *model,
                         const mgl_text *input, mgl_text *out, mgl_error *err) {
  mgl_ids tokens = {0};
  const decoding d = {model, &tokens, mgl_arguments_has(arguments, "no-special")};
  const char *text = input->data == NULL ? "" : input->data;
  mgl_status status =
      mgl_tokens_parse(text, input->bytes, "standard input",
                       megalith_model_describe(model)->tokenizer_size, &tokens, err);
  if (status == MGL_OK) {
    status = mgl_client_append(get_text, &d, out, err);
  }
  mgl_free(tokens.ids);
  return status;
}

static mgl_status tokenize_command(const mgl_arguments *arguments, mgl_error *err) {
  megalith_model *model = NULL;
  const megalith_model_options options = {
      .size = sizeof options, .weights = MEGALITH_WEIGHTS_NONE, .needs_tokenizer = true};
  mgl_text input = {0};
  mgl_text output = {0};
  bool decodes = mgl_arguments_has(arguments, "decode");
  mgl_status status = MGL_OK;
  if (decodes && mgl_arguments_has(arguments, "plain")) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--plain is for encoding, found --decode too: see megalith tokenize "
                         "--help");
  }
  if ((status = mgl_client_open(arguments, &options, &model, NULL, err)) == MGL_OK &&
      (status = mgl_input_read(decodes ? MAX_IDS_BYTES : MEGALITH_MAX_PROMPT_BYTES, &input, err)) ==
          MGL_OK &&
      (status = (decodes ? decode : encode)(arguments, model, &input, &output, err)) == MGL_OK) {
    status = mgl_output_text(&output, err);
  }
  mgl_text_free(&input);
  mgl_text_free(&output);
  megalith_model_close(model);
  return status;
}

static const mgl_option tokenize_options[] = {
    {.name = "decode",
     .short_name = 'd',
     .type = MGL_OPTION_FLAG,
     .help = "ids to text: a JSON array, or numbers with spaces or commas between them"},
    {.name = "no-special",
     .type = MGL_OPTION_FLAG,
     .help = "add no special tokens (a BOS, say); with --decode, leave special tokens out"},
    {.name = "plain",
     .type = MGL_OPTION_FLAG,
     .help = "special tokens that are written in the text are plain text"},
};

const mgl_command mgl_command_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids and back",
    .positional = "MODEL",
    .text_hint = "text is read from standard input",
    .description =
        "Reads text on standard input and prints its token ids as a JSON array. With\n"
        "--decode, reads ids and prints their text, with no newline added.",
    .examples =
        "echo -n \"Once upon a time\" | megalith tokenize\n"
        "echo \"[12, 34]\" | megalith tokenize --decode",
    .options = tokenize_options,
    .option_count = sizeof tokenize_options / sizeof *tokenize_options,
    .run = tokenize_command,
};
