// Commands as clients of megalith.h: the model that the arguments name, an engine of what else they
// say, ids and texts of any length, and what the library says of an error as the command's own.
#ifndef MGL_APP_CLIENT_H
#define MGL_APP_CLIENT_H

#include <megalith.h>

#include "app/options.h"
#include "app/progress.h"
#include "app/token_input.h"
#include "base/status.h"
#include "base/text.h"

// MGL_OK, or *err with what *error says.
mgl_status mgl_client_status(megalith_status status, const megalith_error *error, mgl_error *err);

// Opens MODEL, or else the demo model (mgl_app_model_path), and explains what is likely to be meant
// where there is none. Close it with megalith_model_close. *name (NULL: not wanted) becomes the
// caller's, also after a failure.
mgl_status mgl_client_open(const mgl_arguments *arguments, const megalith_model_options *options,
                           megalith_model **out, char **name, mgl_error *err);

// What the arguments say of an engine, as far as the command has such options.
typedef struct mgl_client_engine {
  megalith_engine_options options;  // for the command to add to
  bool is_mega;                     // mode mega was not ruled out
  const mgl_arguments *arguments;
  mgl_text partitions, compilation;
  const char **task_graphs;
  mgl_progress weights, captures;  // bars, while it is made
} mgl_client_engine;

// Free *out with mgl_client_engine_free, also after a failure; an engine needs it no more.
mgl_status mgl_client_engine_choose(const mgl_arguments *arguments, mgl_client_engine *out,
                                    mgl_error *err);
void mgl_client_engine_free(mgl_client_engine *chosen);
// Shows a bar for what takes time, and says on standard error what the user should know of it.
mgl_status mgl_client_engine_create(mgl_client_engine *chosen, megalith_model *model,
                                    megalith_engine **out, mgl_error *err);

// The weights that --load-format names, where the command has it.
megalith_weights mgl_client_weights(const mgl_arguments *arguments);

// The tokens of a request's prompt. Free out->ids also after a failure.
mgl_status mgl_client_encode(const megalith_model *model, const megalith_request_options *options,
                             mgl_ids *out, mgl_error *err);

// Appends the text of one token, in which no character need be whole.
mgl_status mgl_client_append_token(const megalith_model *model, int32_t token, mgl_text *out,
                                   mgl_error *err);

// A function of the library that hands out a text as megalith_model_detokenize does.
typedef megalith_status mgl_client_text(const void *context, char *text, size_t capacity,
                                        size_t *bytes, megalith_error *error);
// Appends all of such a text.
mgl_status mgl_client_append(mgl_client_text *get, const void *context, mgl_text *out,
                             mgl_error *err);

#endif
