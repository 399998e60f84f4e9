#include "app/output_file.h"

#include <sys/stat.h>

#include "app/interrupt.h"

mgl_status mgl_output_file_create(const char *path, mgl_output_file *out, mgl_error *err) {
  struct stat info;
  *out = (mgl_output_file){.fd = -1};
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    return mgl_error_set(err, MGL_ERR_IO, "%s: expected a regular file or none, found %s", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "something else");
  }
  MGL_TRY(mgl_new_file_create(path, out, err));
  mgl_interrupt_unlink(out->temporary_path);
  // A temporary file is private; a result has the usual rights.
  mode_t mask = umask(0);
  (void)umask(mask);
  (void)fchmod(out->fd, 0666 & ~mask);
  return MGL_OK;
}

mgl_status mgl_output_file_write(mgl_output_file *file, const void *data, size_t bytes,
                                 mgl_error *err) {
  return mgl_new_file_write(file, data, bytes, err);
}

mgl_status mgl_output_file_commit(mgl_output_file *file, mgl_error *err) {
  MGL_TRY(mgl_new_file_commit(file, err));
  mgl_interrupt_unlink(NULL);
  return MGL_OK;
}

void mgl_output_file_close(mgl_output_file *file) {
  bool open = file->temporary_path != NULL;
  mgl_new_file_close(file);
  if (open) {
    mgl_interrupt_unlink(NULL);
  }
}

mgl_status mgl_output_file_save(const char *path, const mgl_text *text, mgl_error *err) {
  mgl_output_file file = {.fd = -1};
  MGL_TRY(mgl_text_check(text, err));
  mgl_status status = mgl_output_file_create(path, &file, err);
  if (status == MGL_OK) {
    status = mgl_output_file_write(&file, text->data, text->bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_output_file_commit(&file, err);
  }
  mgl_output_file_close(&file);
  return status;
}
