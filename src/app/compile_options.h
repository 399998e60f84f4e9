// Options of how a model is compiled and launched (device/compilation.h), for commands that run one.
#ifndef MGL_APP_COMPILE_OPTIONS_H
#define MGL_APP_COMPILE_OPTIONS_H

#include "app/options.h"
#include "device/compilation.h"

extern const mgl_option_group mgl_compile_options_group;

// What the arguments say, --mode among them where the command has it; checked as far as it does not
// depend on the device. *given: they say something.
mgl_status mgl_app_compilation(const mgl_arguments *arguments, mgl_compilation *out, bool *given,
                               mgl_error *err);

#endif
