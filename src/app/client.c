#include "app/client.h"

#include "app/model_path.h"
#include "base/alloc.h"

enum { USUAL_TEXT_BYTES = 1 << 16 };

mgl_status mgl_client_status(megalith_status status, const megalith_error *error, mgl_error *err) {
  return status == MEGALITH_OK ? MGL_OK : mgl_error_set(err, (mgl_status)status, "%s", error->text);
}

mgl_status mgl_client_open(const mgl_arguments *arguments, const megalith_model_options *options,
                           megalith_model **out, mgl_error *err) {
  char *path = NULL;
  char *name = NULL;
  megalith_error error = {0};
  *out = NULL;
  MGL_TRY(mgl_app_model_path(arguments, &path, &name, err));
  mgl_status status =
      mgl_client_status(megalith_model_open(path, options, out, &error), &error, err);
  if (status != MGL_OK && arguments->positional != NULL) {
    mgl_model_path_explain(arguments, err);
  }
  mgl_free(path);
  mgl_free(name);
  return status;
}

mgl_status mgl_client_append(mgl_client_text *get, const void *context, mgl_text *out,
                             mgl_error *err) {
  megalith_error error = {0};
  mgl_status status = MGL_OK;
  size_t bytes = USUAL_TEXT_BYTES;  // of what is there to be written to, then of the text
  size_t capacity = 0;
  char *text = NULL;
  while (status == MGL_OK && bytes >= capacity) {  // twice where it is longer than usual
    capacity = bytes + 1;
    mgl_free(text);
    text = mgl_alloc(capacity);
    status =
        text == NULL
            ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a text of %zu bytes", bytes)
            : mgl_client_status(get(context, text, capacity, &bytes, &error), &error, err);
  }
  if (status == MGL_OK) {
    mgl_text_append(out, text, bytes);
    status = mgl_text_check(out, err);
  }
  mgl_free(text);
  return status;
}
