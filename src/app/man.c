// The manual page, in roff's macros for them (man(7)), from the same tables as --help.
#include <string.h>

#include "app/help.h"

// Text with what roff would read as its own made harmless.
static void append_escaped(const char *text, mgl_text *out) {
  bool at_start = true;
  for (; *text != 0; text++) {
    if (at_start && (*text == '.' || *text == '\'')) {
      mgl_text_append_string(out, "\\&");
    }
    if (*text == '\\') {
      mgl_text_append_string(out, "\\e");
    } else if (*text == '-') {
      mgl_text_append_string(out, "\\-");
    } else {
      mgl_text_append(out, text, 1);
    }
    at_start = *text == '\n';
  }
}

static void append_option(const mgl_option *option, mgl_text *out) {
  mgl_text_append_string(out, ".TP\n.B ");
  if (option->short_name != 0) {
    mgl_text_format(out, "\\-%c, ", option->short_name);
  }
  mgl_text_append_string(out, "\\-\\-");
  append_escaped(option->name, out);
  if (option->value_name != NULL) {
    mgl_text_format(out, " \\fI%s\\fP", option->value_name);
  }
  mgl_text_append_string(out, "\n");
  append_escaped(option->help, out);
  if (option->alias != NULL) {
    mgl_text_append_string(out, " (also \\-\\-");
    append_escaped(option->alias, out);
    mgl_text_append_string(out, ")");
  }
  mgl_text_append_string(out, "\n");
}

static void append_command(const mgl_command *command, mgl_text *out) {
  const mgl_option *option = NULL;
  mgl_text_format(
      out, ".SS megalith %s%s%s%s%s\n", command->name, command->positional == NULL ? "" : " ",
      command->positional == NULL ? "" : command->positional, command->second == NULL ? "" : " ",
      command->second == NULL ? "" : command->second);
  append_escaped(command->description, out);
  mgl_text_append_string(out, "\n");
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    append_option(option, out);
  }
  mgl_text_append_string(out, ".PP\nExamples:\n.PP\n.nf\n.RS\n");
  append_escaped(command->examples, out);
  mgl_text_append_string(out, "\n.RE\n.fi\n");
}

void mgl_help_append_man(const mgl_command *const *commands, size_t count, mgl_text *out) {
  mgl_text_append_string(
      out, ".TH MEGALITH 1 \"\" \"megalith " MGL_VERSION
           "\" \"User Commands\"\n"
           ".SH NAME\nmegalith \\- an inference engine for large language models\n"
           ".SH SYNOPSIS\n.B megalith\n.I COMMAND\n[options] [\\fIMODEL\\fP]\n"
           ".SH DESCRIPTION\n"
           "Runs open\\-weight language models from Hugging Face folders, on CPUs and\n"
           "NVIDIA GPUs, as a command and as a server with the OpenAI API.\n"
           ".I MODEL\nis such a folder; without it, the demo model is used.\n"
           ".SH COMMANDS\n");
  for (size_t i = 0; i < count; i++) {
    append_command(commands[i], out);
  }
  mgl_text_append_string(
      out,
      ".SH ENVIRONMENT\n"
      ".TP\n.B MEGALITH_DEMO\nfolder of the demo model\n"
      ".TP\n.B MEGALITH_DEVICE\nwhere models run without \\-\\-device\n"
      ".TP\n.B MEGALITH_CACHE\nfolder of compiled device code\n"
      ".TP\n.B MEGALITH_SIMD\nscalar, avx2, avx512, avx512_bf16 or amx_bf16: at most that level\n"
      ".TP\n.B OPENAI_API_KEY\nthe key that \\fBmegalith bench serve\\fP shows\n"
      ".PP\nEach option of \\fBmegalith serve\\fP is a variable too: \\-\\-max\\-requests is\n"
      "MEGALITH_MAX_REQUESTS.\n"
      ".SH FILES\n"
      ".TP\n.I /etc/megalith/serve.yaml\noptions of \\fBmegalith.service\\fP\n"
      ".SH EXIT STATUS\n"
      "0 success, 1 a failure, which one line on standard error tells, 130 ended by Ctrl\\-C.\n");
}
