// A GGUF file, opened as a model folder.
#ifndef MGL_MODEL_GGUF_FOLDER_H
#define MGL_MODEL_GGUF_FOLDER_H

#include <stdbool.h>

#include "model/model_folder.h"

// Opens a file for mgl_model_folder_open. *is_gguf tells whether it is one, by its first bytes or
// its name; where it is not, *out stays as it was.
mgl_status mgl_gguf_folder_open(const char *path, unsigned needs, bool *is_gguf,
                                mgl_model_folder *out, mgl_error *err);

// The same over bytes in memory. For tests and fuzzing; checkpoints need the bytes.
mgl_status mgl_gguf_folder_parse(const void *data, size_t bytes, const char *where, unsigned needs,
                                 mgl_model_folder *out, mgl_error *err);

// What parsing the chat template gave, for a caller that needs it or only wants it: keeps *reason
// in folder->no_chat_template, or forwards it.
mgl_status mgl_model_folder_lack_template(mgl_model_folder *folder, unsigned needs,
                                          mgl_status status, const mgl_error *reason,
                                          mgl_error *err);

#endif
