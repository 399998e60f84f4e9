#include "app/model_path.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/words.h"

enum {
  MAX_PATH_BYTES = 4096,
  MAX_POINTER_BYTES = 1024,  // of git lfs
};

// --- the demo model ------------------------------------------------------------------------------

static bool has_config(const char *folder) {
  char path[MAX_PATH_BYTES + 16];
  (void)snprintf(path, sizeof path, "%s/config.json", folder);
  mgl_file_kind kind = MGL_FILE_ABSENT;
  return mgl_file_find(path, &kind, NULL) != MGL_OK || kind != MGL_FILE_ABSENT;
}

static mgl_status find_demo(char out[MAX_PATH_BYTES], mgl_error *err) {
  static const char *const places[] = {"../demo", "../share/megalith/demo"};
  const char *named = getenv("MEGALITH_DEMO");
  if (named != NULL && named[0] != 0) {
    (void)snprintf(out, MAX_PATH_BYTES, "%s", named);
    return MGL_OK;
  }
  char program[MAX_PATH_BYTES / 2];
  ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
  program[bytes < 0 ? 0 : bytes] = 0;
  char *last_slash = strrchr(program, '/');
  if (last_slash != NULL) {
    *last_slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
      (void)snprintf(out, MAX_PATH_BYTES, "%s/%s", program, places[i]);
      if (has_config(out)) {
        return MGL_OK;
      }
    }
  }
  (void)snprintf(out, MAX_PATH_BYTES, "%s", MGL_SOURCE_DEMO);
  if (has_config(out)) {
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_IO,
                       "no MODEL given and no demo model found: expected it in %s/../demo; name a "
                       "model folder or set MEGALITH_DEMO to one",
                       program);
}

// The last part of a path, with links and "." resolved where that is possible, fit to be shown.
static char *name_of(const char *path) {
  char *resolved = realpath(path, NULL);
  const char *from = resolved == NULL ? path : resolved;
  const char *last_slash = strrchr(from, '/');
  char *name = mgl_strdup(last_slash == NULL || last_slash[1] == 0 ? from : last_slash + 1);
  free(resolved);  // from the C library, not from base/alloc.h
  if (name != NULL) {
    mgl_string_make_printable(name);
  }
  return name;
}

mgl_status mgl_app_model_path(const mgl_arguments *arguments, char **path, char **name,
                              mgl_error *err) {
  char demo[MAX_PATH_BYTES];
  const char *found = arguments->positional;
  *path = NULL;
  *name = NULL;
  if (found == NULL) {
    MGL_TRY(find_demo(demo, err));
    found = demo;
  }
  *path = mgl_strdup(found);
  *name = name_of(found);
  if (*path == NULL || *name == NULL) {
    mgl_free(*path);
    mgl_free(*name);
    *path = *name = NULL;
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a path");
  }
  return MGL_OK;
}

// --- what was meant ------------------------------------------------------------------------------

static bool exists(const char *path) {
  mgl_file_kind kind = MGL_FILE_ABSENT;
  return mgl_file_find(path, &kind, NULL) != MGL_OK || kind != MGL_FILE_ABSENT;
}

static bool ends_with(const char *text, const char *end) {
  size_t bytes = strlen(end);
  return strlen(text) >= bytes && strcmp(text + strlen(text) - bytes, end) == 0;
}

// "owner/name" of letters, digits and "._-", as models are called on the Hugging Face hub; behind
// the hub's address too.
static const char *hub_name(const char *path) {
  static const char *const addresses[] = {"https://huggingface.co/", "huggingface.co/", "hf.co/"};
  for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
    size_t bytes = strlen(addresses[i]);
    path += strncmp(path, addresses[i], bytes) == 0 ? bytes : 0;
  }
  size_t slashes = 0;
  for (const char *c = path; *c != 0; c++) {
    slashes += *c == '/';
    if (!isalnum((unsigned char)*c) && strchr("/._-", *c) == NULL) {
      return NULL;
    }
  }
  bool is_name = slashes == 1 && isalnum((unsigned char)path[0]) && !ends_with(path, "/");
  return is_name ? path : NULL;
}

// It has several words, or ends as a sentence does, and begins as no path.
static bool is_text(const char *text) {
  return strpbrk(text, " \n\t?!") != NULL && strchr("/.~", text[0]) == NULL;
}

// The second word of a subcommand of this command that the path is likely to mean, NULL if none.
static const char *likely_subcommand(const mgl_command *command, const char *path) {
  size_t count = 0;
  const mgl_command *const *commands = mgl_commands(&count);
  size_t bytes = strlen(command->name);
  for (size_t i = 0; i < count; i++) {
    const char *name = commands[i]->name;
    const char *likely[MGL_MAX_LIKELY_WORDS];
    if (strncmp(name, command->name, bytes) == 0 && name[bytes] == ' ') {
      const char *second = name + bytes + 1;
      if (mgl_words_likely(path, &second, 1, likely) == 1) {
        return second;
      }
    }
  }
  return NULL;
}

static void explain_absent(const mgl_arguments *arguments, mgl_error *err) {
  const char *path = arguments->positional;
  const char *hint = arguments->command->text_hint;
  const char *name = hub_name(path);
  char text[MGL_ERROR_TEXT_BYTES];
  memcpy(text, err->text, sizeof text);
  const char *second = likely_subcommand(arguments->command, path);
  if (second != NULL) {
    (void)mgl_error_set(err, err->status, "%s (did you mean megalith %s %s?)", text,
                        arguments->command->name, second);
  } else if (strcmp(path, "help") == 0) {
    (void)mgl_error_set(err, err->status, "%s: see megalith %s --help", text,
                        arguments->command->name);
  } else if (is_text(path) && hint != NULL) {
    (void)mgl_error_set(err, err->status, "%s; %s", text, hint);
  } else if (name != NULL) {
    (void)mgl_error_set(err, err->status,
                        "%s; Megalith downloads nothing: get the model with \"huggingface-cli "
                        "download %.120s --local-dir %.120s\", or with git lfs installed \"git "
                        "clone https://huggingface.co/%.120s\", then name its folder",
                        text, name, strchr(name, '/') + 1, name);
  } else if (strchr(path, '/') == NULL) {
    (void)mgl_error_set(err, err->status, "%s; Megalith downloads nothing%s%s", text,
                        hint == NULL ? "" : ", and ", hint == NULL ? "" : hint);
  }
}

static bool has_inside(const char *folder, const char *name) {
  char *path = NULL;
  bool found = mgl_path_join(folder, name, &path, NULL) == MGL_OK && exists(path);
  mgl_free(path);
  return found;
}

// Whether a file of the folder is what git checks out without git lfs: a few lines that name it.
static bool is_lfs_pointer(const char *folder, const char *name) {
  static const char start[] = "version https://git-lfs";
  char *path = NULL;
  char *text = NULL;
  size_t bytes = 0;
  bool found = mgl_path_join(folder, name, &path, NULL) == MGL_OK &&
               mgl_file_read(path, MAX_POINTER_BYTES, &text, &bytes, NULL) == MGL_OK &&
               bytes >= sizeof start - 1 && memcmp(text, start, sizeof start - 1) == 0;
  mgl_free(text);
  mgl_free(path);
  return found;
}

void mgl_model_path_explain(const mgl_arguments *arguments, mgl_error *err) {
  const char *path = arguments->positional;
  char text[MGL_ERROR_TEXT_BYTES];
  memcpy(text, err->text, sizeof text);
  if (!exists(path)) {
    explain_absent(arguments, err);
  } else if (ends_with(path, ".safetensors") || ends_with(path, "/config.json") ||
             strcmp(path, "config.json") == 0) {
    (void)mgl_error_set(err, err->status, "%s; name the folder that it lies in", text);
  } else if (is_lfs_pointer(path, "model.safetensors") || is_lfs_pointer(path, "tokenizer.json")) {
    (void)mgl_error_set(err, err->status,
                        "%s; files of this folder are pointers of git lfs: run \"git lfs pull\" "
                        "in it",
                        text);
  } else if (has_inside(path, "snapshots") && !has_inside(path, "config.json")) {
    (void)mgl_error_set(err, err->status,
                        "%s; in a cache of the Hugging Face hub the model is the folder inside "
                        "%.300s/snapshots",
                        text, path);
  }
}
