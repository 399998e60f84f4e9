// Options from elsewhere than the command line: a file, and the environment.
//
// --port is MEGALITH_PORT in the environment, and "port" in the file that --config or
// MEGALITH_CONFIG names: a JSON object, or lines of YAML, "name: value". The command line counts
// before the environment, and that before the file. Everything becomes arguments in front of the
// command line's, so that one parser checks all of them.
#ifndef MGL_APP_SETTINGS_H
#define MGL_APP_SETTINGS_H

#include "app/options.h"
#include "base/text.h"

typedef struct mgl_settings {
  char **argv;  // [argc] borrowed from `texts` and from the command line
  int argc;
  mgl_text *texts;  // [text_count]
  size_t text_count, text_capacity, argv_capacity;
} mgl_settings;

// Zero-initialise *out; free it with mgl_settings_free, also after a failure, once the arguments
// that are parsed from it are not used any more.
mgl_status mgl_settings_collect(const mgl_command *command, int argc, char *const *argv,
                                mgl_settings *out, mgl_error *err);
void mgl_settings_free(mgl_settings *settings);

#endif
