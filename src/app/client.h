// Commands as clients of megalith.h: the model that the arguments name, texts of any length, and
// what the library says of an error as the command's own.
#ifndef MGL_APP_CLIENT_H
#define MGL_APP_CLIENT_H

#include <megalith.h>

#include "app/options.h"
#include "base/status.h"
#include "base/text.h"

// MGL_OK, or *err with what *error says.
mgl_status mgl_client_status(megalith_status status, const megalith_error *error, mgl_error *err);

// Opens MODEL, or else the demo model (mgl_app_model_path), and explains what is likely to be meant
// where there is none. Close it with megalith_model_close.
mgl_status mgl_client_open(const mgl_arguments *arguments, const megalith_model_options *options,
                           megalith_model **out, mgl_error *err);

// A function of the library that hands out a text as megalith_model_detokenize does.
typedef megalith_status mgl_client_text(const void *context, char *text, size_t capacity,
                                        size_t *bytes, megalith_error *error);
// Appends all of such a text.
mgl_status mgl_client_append(mgl_client_text *get, const void *context, mgl_text *out,
                             mgl_error *err);

#endif
