// Command lines: one table of options per command, and the parser that reads them.
//
// The tables are the only place where an option is written down: the parser, the --help texts
// (help.h) and the completion scripts (cmd_completion.c) are all made from them. An argument is
// `--name value`, `--name=value`, `-n value`, `-nvalue`, `-n=value` or `--name` for a flag; `--`
// ends the options; what remains is the positional argument, with a second one behind it where the
// command has that. Types and ranges are checked while
// parsing, so a command reads only valid values. An option without `repeatable` counts with its
// last value. Rejected: getopt_long, which knows no types, no help and no completion.
#ifndef MGL_APP_OPTIONS_H
#define MGL_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/launcher.h"
#include "base/status.h"

enum { MGL_MAX_OPTIONS = 64 };  // of a command

typedef enum mgl_option_type {
  MGL_OPTION_FLAG,    // no value
  MGL_OPTION_TEXT,    // anything
  MGL_OPTION_FILE,    // a path of a file; differs from text in completion only
  MGL_OPTION_U64,     // a whole number in [min, max]
  MGL_OPTION_REAL,    // a number in [min, max]
  MGL_OPTION_CHOICE,  // one of choices
  MGL_OPTION_LIST,    // one or more of choices with commas between them
  MGL_OPTION_DEVICE,  // auto, cpu, cuda or cuda:N
} mgl_option_type;

// The choice of that index, NULL behind the last one. A function, so that a table can show names
// that live elsewhere (the modes of engine/runner.h).
typedef const char *mgl_choice_name(uint32_t index);

typedef struct mgl_option {
  const char *name;        // without dashes
  char short_name;         // 0: none
  const char *value_name;  // in capitals, for the help; NULL for a flag
  const char *help;        // one line, lower case, with the default in brackets
  mgl_option_type type;
  double min, max;   // of MGL_OPTION_REAL
  uint64_t u64_min;  // of MGL_OPTION_U64
  uint64_t u64_max;  // of MGL_OPTION_U64
  mgl_choice_name
      *choices;  // of MGL_OPTION_CHOICE and MGL_OPTION_LIST, and what to complete of _DEVICE
  bool repeatable;
  const char *alias;  // another name, of other programs; NULL: none
} mgl_option;

// Options that several commands have.
typedef struct mgl_option_group {
  const mgl_option *options;  // [count]
  size_t count;
} mgl_option_group;

struct mgl_arguments;

typedef struct mgl_command {
  const char *name;
  const char *summary;        // one line, lower case
  const char *positional;     // name of the one positional argument; NULL: there is none
  const char *second;         // of one behind it, which may be left out; NULL: there is none
  mgl_choice_name *choices;   // what the positional argument may be; NULL: a path
  bool takes_file;            // that path is a file and required; else a model folder
  const char *text_hint;      // how it takes text, for who gives it as MODEL; NULL: it takes none
  const char *description;    // for the help: text lines of at most 90 characters
  const char *examples;       // for the help: one command per line
  const mgl_option *options;  // [option_count] of its own, without --help, which all have
  size_t option_count;
  bool takes_launchers;  // processes that mpirun and the like have started are its ranks
  bool takes_settings;   // options also come from the environment and a file (settings.h)
  const mgl_option_group *const *groups;  // behind its own ones, NULL behind the last; NULL: none
  mgl_status (*run)(const struct mgl_arguments *arguments, mgl_error *err);
} mgl_command;

// The options of a command and of its groups by number, NULL behind the last one.
const mgl_option *mgl_command_option(const mgl_command *command, size_t index);

// One option as it was given.
typedef struct mgl_argument {
  const mgl_option *option;
  const char *text;  // the value, borrowed from argv; NULL for a flag
  uint64_t u64;      // of MGL_OPTION_U64
  double real;       // of MGL_OPTION_REAL
} mgl_argument;

typedef struct mgl_arguments {
  const mgl_command *command;
  mgl_argument *items;  // [count] in the order of the command line
  size_t count;
  const char *positional;  // NULL when absent; borrowed from argv
  const char *second;      // likewise
  mgl_launcher launcher;   // of commands that take launchers
  bool wants_help;         // -h or --help was among them; then nothing else is checked
} mgl_arguments;

// Parses argv[0 .. argc), the arguments behind the command's name. Free with mgl_arguments_free,
// also after a failure.
mgl_status mgl_arguments_parse(const mgl_command *command, int argc, char *const *argv,
                               mgl_arguments *out, mgl_error *err);
void mgl_arguments_free(mgl_arguments *arguments);

// The last one of that name; NULL also where the command has no such option.
const mgl_argument *mgl_arguments_find(const mgl_arguments *arguments, const char *name);

// Readers by name (asserted to be in the table); `otherwise` is for an absent option.
bool mgl_arguments_has(const mgl_arguments *arguments, const char *name);
const char *mgl_arguments_text(const mgl_arguments *arguments, const char *name,
                               const char *otherwise);
uint64_t mgl_arguments_u64(const mgl_arguments *arguments, const char *name, uint64_t otherwise);
double mgl_arguments_real(const mgl_arguments *arguments, const char *name, double otherwise);

#endif
