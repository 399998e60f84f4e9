// Options of how a model is compiled and launched (request/compile_settings.h), of commands that
// run one.
#ifndef MGL_APP_COMPILE_OPTIONS_H
#define MGL_APP_COMPILE_OPTIONS_H

#include "app/options.h"
#include "request/compile_settings.h"

extern const mgl_option_group mgl_compile_options_group;

// What the arguments say, --mode among them where the command has it; checked as far as it does not
// depend on the device. Free out->json, also after a failure.
mgl_status mgl_app_compile_settings(const mgl_arguments *arguments, mgl_compile_settings *out,
                                    mgl_error *err);

#endif
