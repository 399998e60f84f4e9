#include "app/help.h"

#include <string.h>

enum {
  HELP_COLUMN = 30,  // where the texts of options start
  HELP_WIDTH = 98,
};

static void append_spaces(mgl_text *out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    mgl_text_append(out, " ", 1);
  }
}

// Appends `text` from the help column on, wrapped at spaces; `used` columns of the line are taken.
static void append_wrapped(mgl_text *out, size_t used, const char *text) {
  size_t column = used;
  if (column >= HELP_COLUMN - 1) {
    mgl_text_append(out, "\n", 1);
    column = 0;
  }
  append_spaces(out, HELP_COLUMN - column);
  column = HELP_COLUMN;
  while (*text != 0) {
    size_t bytes = strcspn(text, " ");
    if (column > HELP_COLUMN && column + 1 + bytes > HELP_WIDTH) {
      mgl_text_append(out, "\n", 1);
      append_spaces(out, HELP_COLUMN);
      column = HELP_COLUMN;
    }
    if (column > HELP_COLUMN) {
      mgl_text_append(out, " ", 1);
      column++;
    }
    mgl_text_append(out, text, bytes);
    column += bytes;
    text += bytes + (text[bytes] == ' ');
  }
  mgl_text_append(out, "\n", 1);
}

static void append_option(const mgl_option *option, mgl_text *out) {
  size_t start = out->bytes;
  if (option->short_name != 0) {
    mgl_text_format(out, "  -%c, --%s", option->short_name, option->name);
  } else {
    mgl_text_format(out, "      --%s", option->name);
  }
  if (option->value_name != NULL) {
    mgl_text_format(out, " %s", option->value_name);
  }
  if (option->alias == NULL) {
    append_wrapped(out, out->bytes - start, option->help);
    return;
  }
  mgl_text help = {0};
  mgl_text_format(&help, "%s (also --%s)", option->help, option->alias);
  append_wrapped(out, out->bytes - start, help.data == NULL ? option->help : help.data);
  mgl_text_free(&help);
}

static void append_indented(const char *lines, mgl_text *out) {
  while (*lines != 0) {
    size_t bytes = strcspn(lines, "\n");
    mgl_text_format(out, "  %.*s\n", (int)bytes, lines);
    lines += bytes + (lines[bytes] == '\n');
  }
}

void mgl_help_append_command(const mgl_command *command, mgl_text *out) {
  static const mgl_option help = {.name = "help", .short_name = 'h', .help = "print this text"};
  mgl_text_format(out, "Usage: megalith %s%s", command->name,
                  mgl_command_option(command, 0) != NULL ? " [options]" : "");
  if (command->positional != NULL) {
    bool is_optional = command->choices == NULL && !command->takes_file;
    mgl_text_format(out, is_optional ? " [%s]" : " %s", command->positional);
  }
  if (command->second != NULL) {
    mgl_text_format(out, " [%s]", command->second);
  }
  mgl_text_format(out, "\n\n%s\n", command->description);
  if (command->positional != NULL && command->choices == NULL && !command->takes_file) {
    mgl_text_format(out,
                    "\n%s is a Hugging Face model folder or a GGUF file; without it, the demo\n"
                    "model is used.\n",
                    command->positional);
  }
  const mgl_option *option = NULL;
  mgl_text_append_string(out, "\nOptions:\n");
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    append_option(option, out);
  }
  append_option(&help, out);
  mgl_text_append_string(out, "\nExamples:\n");
  append_indented(command->examples, out);
}

void mgl_help_append_overview(const mgl_command *const *commands, size_t count, mgl_text *out) {
  mgl_text_append_string(out, "megalith " MGL_VERSION
                              ", an inference engine for large language models\n\n"
                              "Usage: megalith COMMAND [options] [MODEL]\n\n"
                              "Commands:\n");
  for (size_t i = 0; i < count; i++) {
    mgl_text_format(out, "  %-17s %s\n", commands[i]->name, commands[i]->summary);
  }
  mgl_text_append_string(
      out,
      "\nOptions:\n"
      "  -h, --help     print this text, or that of a command\n"
      "      --version  print the version\n\n"
      "Environment:\n"
      "  MEGALITH_DEMO    folder of the demo model, used where no MODEL is given\n"
      "  MEGALITH_DEVICE  auto, cpu, cuda or cuda:N: where models run without --device\n"
      "  MEGALITH_CACHE   folder of compiled device code [$XDG_CACHE_HOME/megalith,\n"
      "                   or ~/.cache/megalith]\n"
      "  MEGALITH_SIMD    scalar, avx2, avx512, avx512_bf16 or amx_bf16: at most that level\n\n"
      "Start with: megalith run -p \"Once upon a time\"\n");
}
