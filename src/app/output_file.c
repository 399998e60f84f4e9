#include "app/output_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/interrupt.h"
#include "base/alloc.h"

// A name in the same folder, so that the rename stays within one file system.
static mgl_status open_temporary(mgl_output_file *file, mgl_error *err) {
  static const char suffix[] = ".partial-XXXXXX";
  size_t bytes = strlen(file->path);
  file->temporary_path = mgl_alloc(bytes + sizeof suffix);
  if (file->temporary_path == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a path beside %s", file->path);
  }
  memcpy(file->temporary_path, file->path, bytes);
  memcpy(file->temporary_path + bytes, suffix, sizeof suffix);
  file->fd = mkstemp(file->temporary_path);
  if (file->fd < 0) {
    mgl_status status =
        mgl_error_set(err, MGL_ERR_IO, "cannot create %s: %s", file->path, strerror(errno));
    mgl_free(file->temporary_path);
    file->temporary_path = NULL;
    return status;
  }
  mgl_interrupt_unlink(file->temporary_path);
  // mkstemp makes the file private; a result has the usual rights.
  mode_t mask = umask(0);
  (void)umask(mask);
  (void)fchmod(file->fd, 0666 & ~mask);
  return MGL_OK;
}

mgl_status mgl_output_file_create(const char *path, mgl_output_file *out, mgl_error *err) {
  struct stat info;
  *out = (mgl_output_file){.path = path, .fd = -1};
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    return mgl_error_set(err, MGL_ERR_IO, "%s: expected a regular file or none, found %s", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "something else");
  }
  return open_temporary(out, err);
}

mgl_status mgl_output_file_write(mgl_output_file *file, const void *data, size_t bytes,
                                 mgl_error *err) {
  const char *from = data;
  while (bytes > 0) {
    ssize_t n = write(file->fd, from, bytes);
    if (n < 0 && errno != EINTR) {
      return mgl_error_set(err, MGL_ERR_IO, "cannot write %s: %s", file->path, strerror(errno));
    }
    from += n > 0 ? n : 0;
    bytes -= n > 0 ? (size_t)n : 0;
  }
  return MGL_OK;
}

mgl_status mgl_output_file_commit(mgl_output_file *file, mgl_error *err) {
  int closed = close(file->fd);
  file->fd = -1;
  if (closed != 0 || rename(file->temporary_path, file->path) != 0) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot write %s: %s", file->path, strerror(errno));
  }
  mgl_interrupt_unlink(NULL);
  mgl_free(file->temporary_path);
  file->temporary_path = NULL;
  return MGL_OK;
}

void mgl_output_file_close(mgl_output_file *file) {
  if (file->temporary_path != NULL) {
    if (file->fd >= 0) {
      (void)close(file->fd);
    }
    (void)unlink(file->temporary_path);
    mgl_interrupt_unlink(NULL);
    mgl_free(file->temporary_path);
  }
  *file = (mgl_output_file){.fd = -1};
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
