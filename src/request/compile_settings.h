// How a model shall be compiled and launched (docs/modes.md), said in options one by one, as the
// JSON object that megalith_engine_options.compilation takes.
#ifndef MGL_REQUEST_COMPILE_SETTINGS_H
#define MGL_REQUEST_COMPILE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { MGL_MOST_COMPILE_LEVEL = 3 };

const char *mgl_preset_choice(uint32_t index);   // NULL behind the last one
const char *mgl_balance_choice(uint32_t index);  // the same
const char *mgl_mode_choice(uint32_t index);     // the same

// An option's name, with - for _, and its value. "compilation-config" has all settings as JSON, or
// a file of it; what is said beside it counts.
typedef struct mgl_compile_option {
  const char *name, *text;
} mgl_compile_option;

typedef struct mgl_compile_settings {
  mgl_text json;  // empty: nothing was said. Free it, also after a failure
  bool is_mega;   // they come to mode mega, or nothing was said
} mgl_compile_settings;

// mode: of an option that says level and graph mode in one word, or the first of several with
// commas between them; NULL: none. It is no part of *out, but checked with the rest. What depends
// on a device is not checked.
mgl_status mgl_compile_settings_read(const mgl_compile_option *options, size_t count,
                                     const char *mode, mgl_compile_settings *out, mgl_error *err);

#endif
