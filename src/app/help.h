// Help texts, made from the tables of options.
#ifndef MGL_APP_HELP_H
#define MGL_APP_HELP_H

#include "app/options.h"
#include "base/text.h"

void mgl_help_append_command(const mgl_command *command, mgl_text *out);
void mgl_help_append_overview(const mgl_command *const *commands, size_t count, mgl_text *out);
// All commands as a page for man(1); `megalith help --man` prints it, the build installs it.
void mgl_help_append_man(const mgl_command *const *commands, size_t count, mgl_text *out);

#endif
