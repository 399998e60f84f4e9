// megalith completion: scripts that let a shell complete commands, options and their values.
//
// Each script is generated from the same tables that parse the command line, so it cannot fall
// behind them. Files complete for options that name a file, folders for MODEL, words for choices.
#include <string.h>

#include "app/commands.h"
#include "app/output.h"

static const char *shell_choice(uint32_t index) {
  static const char *const shells[] = {"bash", "zsh", "fish"};
  return index < sizeof shells / sizeof *shells ? shells[index] : NULL;
}

static void append_choices(mgl_choice_name *choices, mgl_text *out) {
  const char *choice = NULL;
  for (uint32_t i = 0; (choice = choices(i)) != NULL; i++) {
    mgl_text_format(out, "%s%s", i == 0 ? "" : " ", choice);
  }
}

// Appends text for a single-quoted string of the shell; `escaped` characters get a backslash.
static void append_quoted(const char *text, const char *escaped, mgl_text *out) {
  for (; *text != 0; text++) {
    if (*text == '\'') {
      mgl_text_append_string(out, "'\\''");
    } else if (strchr(escaped, *text) != NULL) {
      mgl_text_format(out, "\\%c", *text);
    } else {
      mgl_text_append(out, text, 1);
    }
  }
}

// The second word of a subcommand's name ("throughput"), NULL for a command.
static const char *second_word(const mgl_command *command) {
  const char *space = strchr(command->name, ' ');
  return space == NULL ? NULL : space + 1;
}

// Whether `inner` is a subcommand of `outer`.
static bool is_inside(const mgl_command *inner, const mgl_command *outer) {
  size_t bytes = strlen(outer->name);
  return strncmp(inner->name, outer->name, bytes) == 0 && inner->name[bytes] == ' ';
}

// Appends the names of a command's subcommands.
static void append_inner(const mgl_command *const *commands, size_t count, const mgl_command *outer,
                         mgl_text *out) {
  for (size_t i = 0; i < count; i++) {
    if (is_inside(commands[i], outer)) {
      mgl_text_format(out, " %s", second_word(commands[i]));
    }
  }
}

// --- bash ----------------------------------------------------------------------------------------

static void append_bash_option(const mgl_option *option, mgl_text *out) {
  if (option->type == MGL_OPTION_FLAG) {
    return;
  }
  mgl_text_append_string(out, "        ");
  if (option->short_name != 0) {
    mgl_text_format(out, "-%c | ", option->short_name);
  }
  mgl_text_format(out, "--%s) ", option->name);
  if (option->choices != NULL) {
    mgl_text_append_string(out, "COMPREPLY=($(compgen -W '");
    append_choices(option->choices, out);
    mgl_text_append_string(out, "' -- \"$current\")); ");
  } else if (option->type == MGL_OPTION_FILE) {
    mgl_text_append_string(out, "mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); ");
  }
  mgl_text_append_string(out, "return ;;\n");
}

static void append_bash_command(const mgl_command *const *commands, size_t count,
                                const mgl_command *command, mgl_text *out) {
  const mgl_option *option = NULL;
  mgl_text_format(out, "    '%s')\n      case \"$previous\" in\n", command->name);
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    append_bash_option(option, out);
  }
  mgl_text_append_string(out, "      esac\n      options='--help");
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    mgl_text_format(out, " --%s", option->name);
  }
  mgl_text_append_string(out, "'\n");
  if (command->choices != NULL) {
    mgl_text_append_string(out, "      words='");
    append_choices(command->choices, out);
    mgl_text_append_string(out, "'\n");
  } else if (command->positional != NULL) {
    mgl_text_format(out, "      %s=yes\n", command->takes_file ? "files" : "folders");
  }
  mgl_text inner = {0};
  append_inner(commands, count, command, &inner);
  if (inner.bytes > 0) {
    mgl_text_format(out, "      [ \"$COMP_CWORD\" -eq 2 ] && words='%s'\n", inner.data + 1);
  }
  out->failed = out->failed || inner.failed;
  mgl_text_free(&inner);
  mgl_text_append_string(out, "      ;;\n");
}

static void append_bash(const mgl_command *const *commands, size_t count, mgl_text *out) {
  mgl_text_append_string(
      out,
      "# bash completion of megalith; load it with: source <(megalith completion bash)\n"
      "_megalith() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD - 1]}\"\n"
      "  local options='--help --version' words='' folders='' files=''\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    words='");
  const char *blank = "";
  for (size_t i = 0; i < count; i++) {
    if (second_word(commands[i]) == NULL) {
      mgl_text_format(out, "%s%s", blank, commands[i]->name);
      blank = " ";
    }
  }
  mgl_text_append_string(out, " help'\n  else\n    local command=\"${COMP_WORDS[1]}\"\n");
  for (size_t i = 0; i < count; i++) {
    if (second_word(commands[i]) != NULL) {
      mgl_text_format(out,
                      "    [ \"$COMP_CWORD\" -gt 2 ] && [ \"$command ${COMP_WORDS[2]}\" = '%s' ] "
                      "&& command='%s'\n",
                      commands[i]->name, commands[i]->name);
    }
  }
  mgl_text_append_string(out, "    case \"$command\" in\n");
  for (size_t i = 0; i < count; i++) {
    append_bash_command(commands, count, commands[i], out);
  }
  mgl_text_append_string(out,
                         "    esac\n  fi\n"
                         "  case \"$current\" in\n"
                         "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n"
                         "    *)\n"
                         "      COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                         "      if [ -n \"$folders\" ]; then\n"
                         "        mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -d -- "
                         "\"$current\")\n"
                         "      elif [ -n \"$files\" ]; then\n"
                         "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
                         "      fi\n"
                         "      ;;\n"
                         "  esac\n"
                         "}\n"
                         "complete -o filenames -F _megalith megalith\n");
}

// --- zsh -----------------------------------------------------------------------------------------

static void append_zsh_option(const mgl_option *option, mgl_text *out) {
  mgl_text_append_string(out, " \\\n        ");
  if (option->short_name != 0) {
    mgl_text_format(out, "%s{-%c,--%s}'[", option->repeatable ? "'*'" : "", option->short_name,
                    option->name);
  } else {
    mgl_text_format(out, "'%s--%s[", option->repeatable ? "*" : "", option->name);
  }
  append_quoted(option->help, "[]:\\", out);
  mgl_text_append_string(out, "]");
  if (option->type != MGL_OPTION_FLAG) {
    mgl_text_format(out, ":%s:", option->value_name);
  }
  if (option->choices != NULL) {
    mgl_text_append_string(out, "(");
    append_choices(option->choices, out);
    mgl_text_append_string(out, ")");
  } else if (option->type == MGL_OPTION_FILE) {
    mgl_text_append_string(out, "_files");
  }
  mgl_text_append_string(out, "'");
}

static void append_zsh_command(const mgl_command *const *commands, size_t count,
                               const mgl_command *command, mgl_text *out) {
  const mgl_option *option = NULL;
  mgl_text inner = {0};
  append_inner(commands, count, command, &inner);
  static const mgl_option help = {.name = "help", .short_name = 'h', .help = "print help"};
  mgl_text_format(out, "    '%s')\n      _arguments -s", command->name);
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    append_zsh_option(option, out);
  }
  append_zsh_option(&help, out);
  if (command->choices != NULL) {
    mgl_text_format(out, " \\\n        '1:%s:(", command->positional);
    append_choices(command->choices, out);
    mgl_text_append_string(out, ")'");
  } else if (command->positional != NULL && inner.bytes > 0) {
    mgl_text_format(out, " \\\n        '1:%s:{ compadd --%s; _files -/ }'", command->positional,
                    inner.data);
  } else if (command->positional != NULL) {
    mgl_text_format(out, " \\\n        '1:%s:_files%s'", command->positional,
                    command->takes_file ? "" : " -/");
  }
  mgl_text_append_string(out, "\n      ;;\n");
  out->failed = out->failed || inner.failed;
  mgl_text_free(&inner);
}

static void append_zsh(const mgl_command *const *commands, size_t count, mgl_text *out) {
  mgl_text_append_string(out,
                         "#compdef megalith\n"
                         "# zsh completion of megalith; load it with: source <(megalith completion "
                         "zsh)\n"
                         "_megalith() {\n"
                         "  local -a commands\n"
                         "  commands=(\n");
  for (size_t i = 0; i < count; i++) {
    if (second_word(commands[i]) == NULL) {
      mgl_text_format(out, "    '%s:", commands[i]->name);
      append_quoted(commands[i]->summary, "\\:", out);
      mgl_text_append_string(out, "'\n");
    }
  }
  mgl_text_append_string(out,
                         "    'help:print the help of a command'\n"
                         "  )\n"
                         "  if (( CURRENT == 2 )); then\n"
                         "    _describe command commands\n"
                         "    _arguments '--help[print help]' '--version[print the version]'\n"
                         "    return\n"
                         "  fi\n"
                         "  shift words\n"
                         "  (( CURRENT-- ))\n"
                         "  local command=\"$words[1]\"\n");
  for (size_t i = 0; i < count; i++) {
    if (second_word(commands[i]) != NULL) {
      mgl_text_format(out,
                      "  if (( CURRENT > 2 )) && [[ \"$command $words[2]\" == '%s' ]]; then\n"
                      "    command='%s'; shift words; (( CURRENT-- ))\n"
                      "  fi\n",
                      commands[i]->name, commands[i]->name);
    }
  }
  mgl_text_append_string(out, "  case \"$command\" in\n");
  for (size_t i = 0; i < count; i++) {
    append_zsh_command(commands, count, commands[i], out);
  }
  mgl_text_append_string(out,
                         "  esac\n"
                         "}\n"
                         "if [ \"$funcstack[1]\" = _megalith ]; then\n"
                         "  _megalith \"$@\"\n"
                         "else\n"
                         "  compdef _megalith megalith\n"
                         "fi\n");
}

// --- fish ----------------------------------------------------------------------------------------

// "complete -c megalith -n CONDITION", which holds behind this command and none inside it.
static void append_fish_condition(const mgl_command *const *commands, size_t count,
                                  const mgl_command *command, mgl_text *out) {
  const char *second = second_word(command);
  mgl_text inner = {0};
  append_inner(commands, count, command, &inner);
  mgl_text_format(out, "complete -c megalith -n '__fish_seen_subcommand_from %.*s",
                  (int)strcspn(command->name, " "), command->name);
  if (second != NULL) {
    mgl_text_format(out, "; and __fish_seen_subcommand_from %s", second);
  }
  if (inner.bytes > 0) {
    mgl_text_format(out, "; and not __fish_seen_subcommand_from%s", inner.data);
  }
  mgl_text_append_string(out, "'");
  out->failed = out->failed || inner.failed;
  mgl_text_free(&inner);
}

static void append_fish_option(const mgl_option *option, mgl_text *out) {
  if (option->short_name != 0) {
    mgl_text_format(out, " -s %c", option->short_name);
  }
  mgl_text_format(out, " -l %s", option->name);
  if (option->choices != NULL) {
    mgl_text_append_string(out, " -x -a '");
    append_choices(option->choices, out);
    mgl_text_append_string(out, "'");
  } else if (option->type != MGL_OPTION_FLAG) {
    mgl_text_append_string(out, option->type == MGL_OPTION_FILE ? " -r -F" : " -x");
  }
  mgl_text_append_string(out, " -d '");
  append_quoted(option->help, "", out);
  mgl_text_append_string(out, "'\n");
}

static void append_fish_positional(const mgl_command *command, mgl_text *out) {
  if (command->takes_file) {
    mgl_text_append_string(out, " -F\n");
    return;
  }
  mgl_text_append_string(out, " -a '");
  if (command->choices != NULL) {
    append_choices(command->choices, out);
  } else {
    mgl_text_append_string(out, "(__fish_complete_directories)");
  }
  mgl_text_append_string(out, "'\n");
}

static void append_fish_command(const mgl_command *const *commands, size_t count,
                                const mgl_command *command, mgl_text *out) {
  const mgl_option *option = NULL;
  const char *second = second_word(command);
  if (second == NULL) {
    mgl_text_format(out, "complete -c megalith -n __fish_use_subcommand -a %s -d '", command->name);
  } else {
    mgl_text_format(out,
                    "complete -c megalith -n '__fish_seen_subcommand_from %.*s; and not "
                    "__fish_seen_subcommand_from %s' -a %s -d '",
                    (int)strcspn(command->name, " "), command->name, second, second);
  }
  append_quoted(command->summary, "", out);
  mgl_text_append_string(out, "'\n");
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    append_fish_condition(commands, count, command, out);
    append_fish_option(option, out);
  }
  if (command->positional != NULL) {
    append_fish_condition(commands, count, command, out);
    append_fish_positional(command, out);
  }
}

static void append_fish(const mgl_command *const *commands, size_t count, mgl_text *out) {
  mgl_text_append_string(out,
                         "# fish completion of megalith; load it with: megalith completion fish | "
                         "source\n"
                         "complete -c megalith -f\n"
                         "complete -c megalith -s h -l help -d 'print help'\n"
                         "complete -c megalith -n __fish_use_subcommand -a help -d 'print the help "
                         "of a command'\n"
                         "complete -c megalith -n __fish_use_subcommand -l version -d 'print the "
                         "version'\n");
  for (size_t i = 0; i < count; i++) {
    append_fish_command(commands, count, commands[i], out);
  }
}

// -------------------------------------------------------------------------------------------------

static mgl_status completion_command(const mgl_arguments *arguments, mgl_error *err) {
  size_t count = 0;
  const mgl_command *const *commands = mgl_commands(&count);
  const char *shell = arguments->positional == NULL ? "" : arguments->positional;
  mgl_text out = {0};
  if (strcmp(shell, "bash") == 0) {
    append_bash(commands, count, &out);
  } else if (strcmp(shell, "zsh") == 0) {
    append_zsh(commands, count, &out);
  } else if (strcmp(shell, "fish") == 0) {
    append_fish(commands, count, &out);
  } else {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected bash, zsh or fish, found \"%.80s\": see megalith completion "
                         "--help",
                         shell);
  }
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

const mgl_command mgl_command_completion = {
    .name = "completion",
    .summary = "a completion script for bash, zsh or fish",
    .positional = "SHELL",
    .choices = shell_choice,
    .description =
        "Prints a script that completes megalith's command line. SHELL is bash, zsh or\n"
        "fish.",
    .examples =
        "source <(megalith completion bash)\n"
        "megalith completion zsh > ~/.zsh/completions/_megalith\n"
        "megalith completion fish > ~/.config/fish/completions/megalith.fish",
    .run = completion_command,
};
