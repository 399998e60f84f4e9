#include "app/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <megalith.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/words.h"

enum { MAX_PATH_BYTES = 4096 };

// --- values --------------------------------------------------------------------------------------

static mgl_status parse_u64(const mgl_option *option, const char *text, uint64_t *out,
                            mgl_error *err) {
  char *end = NULL;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  bool is_number = isdigit((unsigned char)text[0]) && *end == 0;
  if (!is_number || errno == ERANGE || value < option->u64_min || value > option->u64_max) {
    bool is_negative =
        text[0] == '-' && text[1] != 0 && text[1 + strspn(text + 1, "0123456789")] == 0;
    const char *kind = is_number || is_negative ? "" : "a whole number of ";
    const char *quote = is_number || is_negative ? "" : "\"";
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--%s: expected %s%" PRIu64 " to %" PRIu64 ", found %s%.80s%s",
                         option->name, kind, option->u64_min, option->u64_max, quote, text, quote);
  }
  *out = value;
  return MGL_OK;
}

static mgl_status parse_real(const mgl_option *option, const char *text, double *out,
                             mgl_error *err) {
  char *end = NULL;
  double value = strtod(text, &end);
  bool is_number = text[0] != 0 && !isspace((unsigned char)text[0]) && *end == 0;
  // Written so that a NaN fails.
  if (!is_number || !(value >= option->min && value <= option->max)) {
    const char *quote = is_number ? "" : "\"";
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "--%s: expected a number of %g to %g, found %s%.80s%s", option->name,
                         option->min, option->max, quote, text, quote);
  }
  *out = value;
  return MGL_OK;
}

static mgl_status check_device(const char *text, mgl_error *err) {
  megalith_error error = {0};
  return megalith_device_check(text, &error) == MEGALITH_OK
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT, "--%s", error.text);  // "device: expected ..."
}

static bool is_choice(const mgl_option *option, const char *word, size_t bytes) {
  const char *choice = NULL;
  for (uint32_t i = 0; (choice = option->choices(i)) != NULL; i++) {
    if (strlen(choice) == bytes && memcmp(choice, word, bytes) == 0) {
      return true;
    }
  }
  return false;
}

static mgl_status check_choice(const mgl_option *option, const char *word, size_t bytes,
                               mgl_error *err) {
  if (is_choice(option, word, bytes)) {
    return MGL_OK;
  }
  char expected[256] = "";
  const char *choice = NULL;
  for (uint32_t i = 0; (choice = option->choices(i)) != NULL; i++) {
    const char *separator = i == 0 ? "" : option->choices(i + 1) == NULL ? " or " : ", ";
    size_t used = strlen(expected);
    strncat(expected, separator, sizeof expected - 1 - used);
    used = strlen(expected);
    strncat(expected, choice, sizeof expected - 1 - used);
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "--%s: expected %s, found \"%.*s\"", option->name,
                       expected, (int)(bytes < 80 ? bytes : 80), word);
}

// Paths that no system call can mean anything by. prefix: "--" or nothing.
static mgl_status check_path(const char *prefix, const char *name, const char *path,
                             mgl_error *err) {
  size_t bytes = strlen(path);
  if (bytes == 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s%s: expected a path, found an empty text",
                         prefix, name);
  }
  if (bytes >= MAX_PATH_BYTES) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "%s%s: expected a path of at most %d bytes, found %zu bytes", prefix, name,
                         MAX_PATH_BYTES - 1, bytes);
  }
  return MGL_OK;
}

static mgl_status parse_value(mgl_argument *argument, mgl_error *err) {
  const mgl_option *option = argument->option;
  const char *text = argument->text;
  switch (option->type) {
    case MGL_OPTION_FLAG:
    case MGL_OPTION_TEXT: return MGL_OK;
    case MGL_OPTION_FILE: return check_path("--", option->name, text, err);
    case MGL_OPTION_U64: return parse_u64(option, text, &argument->u64, err);
    case MGL_OPTION_REAL: return parse_real(option, text, &argument->real, err);
    case MGL_OPTION_DEVICE: return check_device(text, err);
    case MGL_OPTION_CHOICE: return check_choice(option, text, strlen(text), err);
    case MGL_OPTION_LIST:
      for (;;) {
        size_t bytes = strcspn(text, ",");
        MGL_TRY(check_choice(option, text, bytes, err));
        if (text[bytes] == 0) {
          return MGL_OK;
        }
        text += bytes + 1;
      }
  }
  return MGL_OK;
}

// --- the command line ----------------------------------------------------------------------------

const mgl_option *mgl_command_option(const mgl_command *command, size_t index) {
  if (index < command->option_count) {
    return &command->options[index];
  }
  index -= command->option_count;
  for (size_t i = 0; command->groups != NULL && command->groups[i] != NULL; i++) {
    if (index < command->groups[i]->count) {
      return &command->groups[i]->options[index];
    }
    index -= command->groups[i]->count;
  }
  return NULL;
}

static bool is_name(const char *candidate, const char *name, size_t bytes) {
  return candidate != NULL && strlen(candidate) == bytes && memcmp(candidate, name, bytes) == 0;
}

static const mgl_option *find_long(const mgl_command *command, const char *name, size_t bytes) {
  const mgl_option *option = NULL;
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    if (is_name(option->name, name, bytes) || is_name(option->alias, name, bytes)) {
      break;
    }
  }
  return option;
}

static const mgl_option *find_short(const mgl_command *command, char name) {
  const mgl_option *option = NULL;
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    if (option->short_name == name) {
      break;
    }
  }
  return option;
}

// The option that has this word among its choices (--cuda: --device), NULL if none does.
static const mgl_option *find_choice(const mgl_command *command, const char *word) {
  const mgl_option *option = NULL;
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    if (option->choices != NULL && is_choice(option, word, strlen(word))) {
      break;
    }
  }
  return option;
}

// " (did you mean ...?)" for a long option's name that the command does not have.
static void ask_meant(const mgl_command *command, const char *word, char out[MGL_MEANT_BYTES]) {
  const char *names[MGL_MAX_OPTIONS + 1] = {"help"};
  const char *choice = strcmp(word, "gpu") == 0 ? "cuda" : word;
  const mgl_option *of_choice = find_choice(command, choice);
  bool is_letter = word[0] != 0 && word[1] == 0;
  const mgl_option *of_letter = is_letter ? find_short(command, word[0]) : NULL;
  const mgl_option *option = NULL;
  size_t count = 1;
  while ((option = mgl_command_option(command, count - 1)) != NULL && count <= MGL_MAX_OPTIONS) {
    names[count++] = option->name;
  }
  if (of_letter != NULL) {
    (void)snprintf(out, MGL_MEANT_BYTES, " (did you mean -%s, --%s?)", word, of_letter->name);
  } else if (of_choice != NULL) {
    (void)snprintf(out, MGL_MEANT_BYTES, " (did you mean --%s %s?)", of_choice->name, choice);
  } else {
    mgl_words_ask("--", word, names, count, out);
  }
}

static mgl_status unknown_option(const mgl_command *command, const char *text, mgl_error *err) {
  char meant[MGL_MEANT_BYTES];
  char word[MGL_MAX_WORD_BYTES + 2];  // one longer than a known one is long enough to be unknown
  const char *name = text + strspn(text, "-");
  (void)snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "="), name);
  if (command->positional != NULL && command->choices == NULL && !command->takes_file &&
      (strcmp(word, "model") == 0 || strcmp(word, "m") == 0)) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "unknown option %.80s: %s stands without an option, as in megalith %s "
                         "path/to/model",
                         text, command->positional, command->name);
  }
  // "-n" is one letter, "--n" a name.
  bool is_letter = text[1] != '-' && word[1] == 0;
  meant[0] = 0;
  if (!is_letter) {
    ask_meant(command, word, meant);
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT, "unknown option %.80s%s", text, meant);
}

// "-prompt x" would be -p with the value "rompt".
static mgl_status check_one_dash(const mgl_command *command, const char *text, mgl_error *err) {
  size_t bytes = strcspn(text + 1, "=");
  const mgl_option *option = bytes < 2 ? NULL : find_long(command, text + 1, bytes);
  return option == NULL
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT, "unknown option %.80s (did you mean --%s?)",
                             text, option->name);
}

// Splits one argument that starts with a dash into its option and the value attached to it (NULL
// when there is none).
static mgl_status match_option(const mgl_command *command, const char *text,
                               const mgl_option **out_option, const char **out_value,
                               mgl_error *err) {
  *out_value = NULL;
  if (text[1] == '-') {
    size_t bytes = strcspn(text + 2, "=");
    *out_option = find_long(command, text + 2, bytes);
    *out_value = text[2 + bytes] == '=' ? text + 3 + bytes : NULL;
  } else {
    *out_option = find_short(command, text[1]);
    *out_value = text[2] == 0 ? NULL : text + 2 + (text[2] == '=');
  }
  if (*out_option == NULL) {
    return unknown_option(command, text, err);
  }
  if (text[1] != '-') {
    MGL_TRY(check_one_dash(command, text, err));
  }
  if ((*out_option)->type == MGL_OPTION_FLAG && *out_value != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "--%s takes no value, found \"%.80s\"",
                         (*out_option)->name, *out_value);
  }
  return MGL_OK;
}

// "-temp" was -t with the value "emp", which it cannot have.
static mgl_status maybe_one_dash(const mgl_command *command, const char *given, mgl_status status,
                                 mgl_error *err) {
  char meant[MGL_MEANT_BYTES];
  char text[MGL_ERROR_TEXT_BYTES];
  ask_meant(command, given + 1, meant);
  memcpy(text, err->text, sizeof text);
  return mgl_error_set(err, status, "%s%s", text, meant);
}

// "-p --chat", "--stop -p": the value was forgotten. One that is meant so stands behind "=".
static mgl_status check_no_option(const mgl_command *command, const mgl_argument *argument,
                                  mgl_error *err) {
  const char *text = argument->text;
  bool is_long = strncmp(text, "--", 2) == 0 && find_long(command, text + 2, strlen(text + 2));
  bool is_short = text[0] == '-' && text[1] != 0 && text[2] == 0 && find_short(command, text[1]);
  if (!is_long && !is_short) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "--%s: expected a value (%s), found the option %s (if that is the value: "
                       "--%s=%s)",
                       argument->option->name, argument->option->value_name, text,
                       argument->option->name, text);
}

// Parses the option at argv[*at] and moves *at behind it and its value.
static mgl_status parse_option(mgl_arguments *out, int argc, char *const *argv, int *at,
                               mgl_error *err) {
  mgl_argument argument = {0};
  const char *given = argv[*at];
  MGL_TRY(match_option(out->command, given, &argument.option, &argument.text, err));
  bool is_attached = argument.text != NULL && given[1] != '-';
  (*at)++;
  if (argument.option->type != MGL_OPTION_FLAG && argument.text == NULL) {
    if (*at == argc) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "--%s: expected a value (%s), found the end",
                           argument.option->name, argument.option->value_name);
    }
    argument.text = argv[(*at)++];
    MGL_TRY(check_no_option(out->command, &argument, err));
  }
  mgl_status status = parse_value(&argument, err);
  if (status != MGL_OK) {
    return is_attached ? maybe_one_dash(out->command, given, status, err) : status;
  }
  out->items[out->count++] = argument;
  return MGL_OK;
}

static mgl_status parse_positional(mgl_arguments *out, const char *text, mgl_error *err) {
  const mgl_command *command = out->command;
  if (command->positional == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "expected options only, found \"%.80s\"", text);
  }
  if (out->positional != NULL && command->second != NULL && out->second == NULL) {
    out->second = text;
    return MGL_OK;
  }
  if (out->positional != NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "expected one %s, found \"%.80s\" and \"%.80s\"%s%s", command->positional,
                         out->positional, text, command->text_hint == NULL ? "" : ": ",
                         command->text_hint == NULL ? "" : command->text_hint);
  }
  out->positional = text;
  return command->choices == NULL ? check_path("", command->positional, text, err) : MGL_OK;
}

// Help wins over every mistake, but not where "--help" is the value of an option before it: so this
// walks the line as the parser does and ignores what it cannot match.
static bool wants_help(const mgl_command *command, int argc, char *const *argv) {
  for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      return true;
    }
    const mgl_option *option = NULL;
    const char *value = NULL;
    if (argv[i][0] == '-' && argv[i][1] != 0 &&
        match_option(command, argv[i], &option, &value, NULL) == MGL_OK &&
        option->type != MGL_OPTION_FLAG && value == NULL) {
      i++;
    }
  }
  return false;
}

mgl_status mgl_arguments_parse(const mgl_command *command, int argc, char *const *argv,
                               mgl_arguments *out, mgl_error *err) {
  *out = (mgl_arguments){.command = command, .wants_help = wants_help(command, argc, argv)};
  if (out->wants_help) {
    return MGL_OK;
  }
  out->items = mgl_alloc_zeroed((size_t)argc + 1, sizeof *out->items);
  if (out->items == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %d arguments", argc);
  }
  bool options_over = false;
  int i = 0;
  while (i < argc) {
    if (!options_over && strcmp(argv[i], "--") == 0) {
      options_over = true;
      i++;
    } else if (!options_over && argv[i][0] == '-' && argv[i][1] != 0) {
      MGL_TRY(parse_option(out, argc, argv, &i, err));
    } else {
      MGL_TRY(parse_positional(out, argv[i++], err));
    }
  }
  return MGL_OK;
}

void mgl_arguments_free(mgl_arguments *arguments) {
  mgl_free(arguments->items);
  *arguments = (mgl_arguments){0};
}

// --- readers -------------------------------------------------------------------------------------

static const mgl_argument *find_last(const mgl_arguments *arguments, const char *name) {
  const mgl_option *option = find_long(arguments->command, name, strlen(name));
  assert(option != NULL);
  for (size_t i = arguments->count; i > 0; i--) {
    if (arguments->items[i - 1].option == option) {
      return &arguments->items[i - 1];
    }
  }
  return NULL;
}

const mgl_argument *mgl_arguments_find(const mgl_arguments *arguments, const char *name) {
  for (size_t i = arguments->count; i > 0; i--) {
    if (strcmp(arguments->items[i - 1].option->name, name) == 0) {
      return &arguments->items[i - 1];
    }
  }
  return NULL;
}

bool mgl_arguments_has(const mgl_arguments *arguments, const char *name) {
  return find_last(arguments, name) != NULL;
}

const char *mgl_arguments_text(const mgl_arguments *arguments, const char *name,
                               const char *otherwise) {
  const mgl_argument *found = find_last(arguments, name);
  return found == NULL ? otherwise : found->text;
}

uint64_t mgl_arguments_u64(const mgl_arguments *arguments, const char *name, uint64_t otherwise) {
  const mgl_argument *found = find_last(arguments, name);
  return found == NULL ? otherwise : found->u64;
}

double mgl_arguments_real(const mgl_arguments *arguments, const char *name, double otherwise) {
  const mgl_argument *found = find_last(arguments, name);
  return found == NULL ? otherwise : found->real;
}
