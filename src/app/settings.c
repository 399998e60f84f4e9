#include "app/settings.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

enum { MAX_FILE_BYTES = 1024 * 1024, MAX_NAME_BYTES = 64 };

static mgl_status add_argument(mgl_settings *s, char *argument, mgl_error *err) {
  void *items = s->argv;
  MGL_TRY(mgl_grow(&items, &s->argv_capacity, (size_t)s->argc + 1, sizeof *s->argv, err));
  s->argv = items;
  s->argv[s->argc++] = argument;
  return MGL_OK;
}

static const mgl_option *find_option(const mgl_command *command, const char *name) {
  const mgl_option *o = NULL;
  for (size_t i = 0; (o = mgl_command_option(command, i)) != NULL; i++) {
    if (strcmp(o->name, name) == 0 || (o->alias != NULL && strcmp(o->alias, name) == 0)) {
      break;
    }
  }
  return o;
}

static bool is_word(const char *value, const char *a, const char *b) {
  return strcmp(value, a) == 0 || strcmp(value, b) == 0;
}

// "--name=value", or "--name" of a flag. where: named in messages.
static mgl_status add_setting(mgl_settings *s, const mgl_option *option, const char *value,
                              const char *where, mgl_error *err) {
  bool is_flag = option->type == MGL_OPTION_FLAG;
  if (is_flag && !is_word(value, "1", "true")) {
    return is_word(value, "0", "false") || value[0] == 0
               ? MGL_OK
               : mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected true or false, found \"%.80s\"",
                               where, value);
  }
  void *items = s->texts;
  MGL_TRY(mgl_grow(&items, &s->text_capacity, s->text_count + 1, sizeof *s->texts, err));
  s->texts = items;
  mgl_text *text = &s->texts[s->text_count++];
  *text = (mgl_text){0};
  mgl_text_format(text, is_flag ? "--%s" : "--%s=%s", option->name, value);
  MGL_TRY(mgl_text_check(text, err));
  return add_argument(s, text->data, err);
}

static mgl_status add_named(mgl_settings *s, const mgl_command *command, const char *name,
                            const char *value, const char *path, mgl_error *err) {
  const mgl_option *option = find_option(command, name);
  if (option == NULL) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: \"%.80s\" is no option of megalith %s", path,
                         name, command->name);
  }
  return add_setting(s, option, value, path, err);
}

// --- the file ------------------------------------------------------------------------------------

static mgl_status add_json(mgl_settings *s, const mgl_command *command, const json_t *root,
                           const char *path, mgl_error *err) {
  const char *name = NULL;
  json_t *value = NULL;
  if (!json_is_object(root)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a JSON object", path);
  }
  json_object_foreach((json_t *)root, name, value) {
    char number[64];
    const char *text = json_string_value(value);
    if (json_is_boolean(value)) {
      text = json_is_true(value) ? "true" : "false";
    } else if (json_is_number(value)) {
      size_t bytes = json_dumpb(value, number, sizeof number - 1, JSON_ENCODE_ANY);
      number[bytes < sizeof number ? bytes : 0] = 0;
      text = number;
    } else if (text == NULL) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: \"%.80s\": expected a string, a number, true or false", path, name);
    }
    MGL_TRY(add_named(s, command, name, text, path, err));
  }
  return MGL_OK;
}

// The text between blanks and, if it has them, quotes. Cuts off a comment.
static char *trim(char *text) {
  text += strspn(text, " \t");
  char quote = *text;
  char *end = quote == '"' || quote == '\'' ? strchr(text + 1, quote) : NULL;
  if (end != NULL) {
    *end = 0;
    return text + 1;
  }
  end = text[0] == '#' ? text : strstr(text, " #");
  if (end != NULL) {
    *end = 0;
  }
  size_t bytes = strlen(text);
  while (bytes > 0 && isspace((unsigned char)text[bytes - 1])) {
    text[--bytes] = 0;
  }
  return text;
}

// What more of YAML would mean something else than the text that it is written with.
static mgl_status check_plain(const char *value, const char *path, mgl_error *err) {
  value += strspn(value, " \t");
  char quote = *value == '"' || *value == '\'' ? *value : 0;
  const char *end = quote == 0 ? NULL : strchr(value + 1, quote);
  const char *rest = end == NULL ? "" : end + 1 + strspn(end + 1, " \t\r");
  bool is_plain = quote == 0
                      ? *value == 0 || strchr("[{&*!|>%@`,", *value) == NULL
                      : end != NULL && (*rest == 0 || *rest == '#') &&
                            (quote == '\'' || memchr(value, '\\', (size_t)(end - value)) == NULL);
  return is_plain ? MGL_OK
                  : mgl_error_set(err, MGL_ERR_FORMAT,
                                  "%s: expected a plain or quoted value, found \"%.80s\": of YAML, "
                                  "only lines \"name: value\" are read; a JSON object can say more",
                                  path, value);
}

static mgl_status add_yaml(mgl_settings *s, const mgl_command *command, char *text,
                           const char *path, mgl_error *err) {
  for (char *next = NULL; text != NULL; text = next) {
    next = strchr(text, '\n');
    if (next != NULL) {
      *next++ = 0;
    }
    char *line = trim(text);
    char *colon = strchr(line, ':');
    if (line[0] == 0 || strcmp(line, "---") == 0) {
      continue;
    }
    if (colon == NULL || line != text || line[0] == '-') {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: expected lines \"name: value\", without indentation or lists, "
                           "found \"%.80s\"",
                           path, line);
    }
    *colon = 0;
    MGL_TRY(check_plain(colon + 1, path, err));
    MGL_TRY(add_named(s, command, trim(line), trim(colon + 1), path, err));
  }
  return MGL_OK;
}

static mgl_status add_file(mgl_settings *s, const mgl_command *command, const char *path,
                           mgl_error *err) {
  char *text = NULL;
  size_t bytes = 0;
  json_t *root = NULL;
  MGL_TRY(mgl_file_read_any(path, MAX_FILE_BYTES, &text, &bytes, err));
  bool is_json = text[strspn(text, " \t\r\n")] == '{';
  mgl_status status = is_json ? mgl_json_parse(text, bytes, path, &root, err) : MGL_OK;
  if (status == MGL_OK) {
    status =
        is_json ? add_json(s, command, root, path, err) : add_yaml(s, command, text, path, err);
  }
  json_decref(root);
  mgl_free(text);
  return status;
}

// The value of --config on the command line, else that of the environment.
static const char *config_path(int argc, char *const *argv) {
  static const char name[] = "--config";
  const char *path = getenv("MEGALITH_CONFIG");
  for (int i = 0; i < argc; i++) {
    if (strcmp(argv[i], name) == 0 && i + 1 < argc) {
      path = argv[i + 1];
    } else if (strncmp(argv[i], name, sizeof name - 1) == 0 && argv[i][sizeof name - 1] == '=') {
      path = argv[i] + sizeof name;
    }
  }
  return path;
}

// --- the environment -----------------------------------------------------------------------------

static mgl_status add_environment(mgl_settings *s, const mgl_command *command, mgl_error *err) {
  const mgl_option *option = NULL;
  for (size_t i = 0; (option = mgl_command_option(command, i)) != NULL; i++) {
    char name[MAX_NAME_BYTES] = "MEGALITH_";
    size_t used = strlen(name);
    const char *c = option->name;
    for (; *c != 0 && used + 1 < sizeof name; c++) {
      name[used++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
    name[used] = 0;
    const char *value = getenv(name);
    if (value != NULL && value[0] != 0) {
      MGL_TRY(add_setting(s, option, value, name, err));
    }
  }
  return MGL_OK;
}

// -------------------------------------------------------------------------------------------------

mgl_status mgl_settings_collect(const mgl_command *command, int argc, char *const *argv,
                                mgl_settings *out, mgl_error *err) {
  if (command->takes_settings) {
    const char *path = config_path(argc, argv);
    if (path != NULL && path[0] != 0) {
      MGL_TRY(add_file(out, command, path, err));
    }
    MGL_TRY(add_environment(out, command, err));
  }
  for (int i = 0; i < argc; i++) {
    MGL_TRY(add_argument(out, argv[i], err));
  }
  return MGL_OK;
}

void mgl_settings_free(mgl_settings *settings) {
  for (size_t i = 0; i < settings->text_count; i++) {
    mgl_text_free(&settings->texts[i]);
  }
  mgl_free(settings->texts);
  mgl_free(settings->argv);
  *settings = (mgl_settings){0};
}
