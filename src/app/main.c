// The `megalith` command: finds the subcommand, runs it, and turns its result into an exit status.
//
// This is the only place that prints error messages. Exit status: 0 success, 1 any failure, 130
// ended by Ctrl-C. A command whose reader has gone (megalith run ... | head -c 5) ends without a
// word by SIGPIPE, as other tools do, but after it has removed what it was writing.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/commands.h"
#include "app/help.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/settings.h"
#include "base/file.h"
#include "base/words.h"

enum { EXIT_FAILED = 1, EXIT_INTERRUPTED = 130 };

static const mgl_command *const commands[] = {
    &mgl_command_run,      &mgl_command_serve,    &mgl_command_score,      &mgl_command_tokenize,
    &mgl_command_template, &mgl_command_bench,    &mgl_command_throughput, &mgl_command_bench_serve,
    &mgl_command_plan,     &mgl_command_compile,  &mgl_command_graph,      &mgl_command_test,
    &mgl_command_trace,    &mgl_command_quantize, &mgl_command_info,       &mgl_command_completion,
};

enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

const mgl_command *const *mgl_commands(size_t *out_count) {
  *out_count = COMMAND_COUNT;
  return commands;
}

static mgl_status print_help(const mgl_command *command, mgl_error *err) {
  mgl_text out = {0};
  if (command == NULL) {
    mgl_help_append_overview(commands, COMMAND_COUNT, &out);
  } else {
    mgl_help_append_command(command, &out);
  }
  mgl_status status = mgl_output_text(&out, err);
  mgl_text_free(&out);
  return status;
}

// Words that other programs have for a command, and what to do instead.
static const struct {
  const char *word, *instead;
} other_words[] = {
    {"chat", "did you mean run --chat?"},
    {"complete", "did you mean run?"},
    {"download", "Megalith downloads nothing: name a model's folder"},
    {"generate", "did you mean run?"},
    {"list", "models are folders: name one"},
    {"pull", "Megalith downloads nothing: name a model's folder"},
    {"throughput", "did you mean bench throughput?"},
    {"version", "did you mean --version?"},
    {"-v", "did you mean --version?"},
    {"-V", "did you mean --version?"},
};

// A MODEL or an option where the command should stand.
static mgl_status no_command(const char *word, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected a command before \"%.200s\", as in megalith run %.200s%s: see "
                       "megalith --help",
                       word, word, word[0] == '-' ? "" : " -p TEXT");
}

static mgl_status unknown_command(const char *name, mgl_error *err) {
  mgl_file_kind kind = MGL_FILE_ABSENT;
  for (size_t i = 0; i < sizeof other_words / sizeof *other_words; i++) {
    if (strcmp(name, other_words[i].word) == 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "unknown command \"%s\" (%s): see megalith --help", name,
                           other_words[i].instead);
    }
  }
  bool is_folder = mgl_file_find(name, &kind, NULL) == MGL_OK && kind == MGL_FILE_FOLDER;
  if (name[0] == '-' || is_folder || strchr(name, '/') != NULL) {
    return no_command(name, err);
  }
  const char *names[COMMAND_COUNT];
  char meant[MGL_MEANT_BYTES];
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    names[i] = commands[i]->name;
  }
  mgl_words_ask("", name, names, COMMAND_COUNT, meant);
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "unknown command \"%.80s\"%s: see megalith --help",
                       name, meant);
}

// Where a launcher has started several processes, those but rank 0 follow it, whatever it does.
static mgl_status start_command(mgl_arguments *arguments, mgl_error *err) {
  const mgl_command *command = arguments->command;
  if (command->takes_launchers) {
    MGL_TRY(mgl_launcher_find(getenv, (uint32_t)mgl_arguments_u64(arguments, "tensor-parallel", 0),
                              &arguments->launcher, err));
  }
  return arguments->launcher.rank == 0 ? command->run(arguments, err)
                                       : mgl_app_follow(arguments, err);
}

static mgl_status run_command(const mgl_command *command, int argc, char *const *argv,
                              mgl_error *err) {
  mgl_arguments arguments = {0};
  mgl_settings settings = {0};
  mgl_status status = mgl_settings_collect(command, argc, argv, &settings, err);
  if (status == MGL_OK) {
    status = mgl_arguments_parse(command, settings.argc, settings.argv, &arguments, err);
  }
  if (status != MGL_OK) {
    char text[MGL_ERROR_TEXT_BYTES];
    memcpy(text, err->text, sizeof text);
    (void)mgl_error_set(err, status, "%s: see megalith %s --help", text, command->name);
  } else {
    status = arguments.wants_help ? print_help(command, err) : start_command(&arguments, err);
  }
  mgl_arguments_free(&arguments);
  mgl_settings_free(&settings);
  return status;
}

// How many of the arguments name this command: 0, 1 or 2.
static int words_of(const mgl_command *command, int argc, char *const *argv) {
  const char *second = strchr(command->name, ' ');
  size_t bytes = second == NULL ? strlen(command->name) : (size_t)(second - command->name);
  if (strlen(argv[1]) != bytes || strncmp(argv[1], command->name, bytes) != 0) {
    return 0;
  }
  if (second == NULL) {
    return 1;
  }
  return argc > 2 && strcmp(argv[2], second + 1) == 0 ? 2 : 0;
}

// The command that the first arguments name, *words of them; NULL if none does.
static const mgl_command *find_command(int argc, char *const *argv, int *words) {
  const mgl_command *found = NULL;
  *words = 0;
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    int of_this = words_of(commands[i], argc, argv);
    if (of_this > *words) {
      found = commands[i];
      *words = of_this;
    }
  }
  return found;
}

// `megalith help`, and `megalith help COMMAND`; --help and -h in its place are the same. `megalith
// help --man` prints the manual page.
static mgl_status help(int argc, char *const *argv, mgl_error *err) {
  int words = 0;
  if (argc == 3 && strcmp(argv[2], "--man") == 0) {
    mgl_text out = {0};
    mgl_help_append_man(commands, COMMAND_COUNT, &out);
    mgl_status status = mgl_output_text(&out, err);
    mgl_text_free(&out);
    return status;
  }
  const mgl_command *command = argc < 3 ? NULL : find_command(argc - 1, argv + 1, &words);
  if (argc > 2 && command == NULL && argv[2][0] != '-' && strcmp(argv[2], "help") != 0) {
    return unknown_command(argv[2], err);
  }
  return print_help(command, err);
}

static mgl_status dispatch(int argc, char *const *argv, mgl_error *err) {
  static const char version[] = "megalith " MGL_VERSION "\n";
  if (argc < 2) {
    return mgl_error_set(
        err, MGL_ERR_ARGUMENT,
        "expected a command (run, serve, score, tokenize, template, bench, plan, compile, "
        "graph, trace, info, completion): see megalith --help");
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
      strcmp(argv[1], "help") == 0) {
    return help(argc, argv, err);
  }
  if (strcmp(argv[1], "--version") == 0) {
    return mgl_output_write(version, sizeof version - 1, err);
  }
  int words = 0;
  const mgl_command *command = find_command(argc, argv, &words);
  return command == NULL ? unknown_command(argv[1], err)
                         : run_command(command, argc - 1 - words, argv + 1 + words, err);
}

int main(int argc, char **argv) {
  mgl_error err = {0};
  mgl_output_init();
  (void)signal(SIGPIPE, SIG_IGN);  // a reader that has gone shows as a failed write
  (void)signal(SIGXFSZ, SIG_IGN);  // and so does a file that reached its limit
  mgl_status status = dispatch(argc, argv, &err);
  if (mgl_interrupt_seen()) {
    return EXIT_INTERRUPTED;
  }
  if (mgl_output_reader_gone()) {
    (void)signal(SIGPIPE, SIG_DFL);
    (void)raise(SIGPIPE);
  }
  if (status != MGL_OK) {
    (void)fprintf(stderr, "megalith: %s\n", err.text);
    return EXIT_FAILED;
  }
  return 0;
}
