#include "app/npy.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

enum { HEADER_BYTES = 128 };  // a multiple of 64, so that data is aligned when the file is mapped

static mgl_status write_all(mgl_npy *npy, const void *data, size_t bytes, mgl_error *err) {
  const char *from = data;
  while (bytes > 0) {
    ssize_t n = write(npy->fd, from, bytes);
    if (n < 0 && errno != EINTR) {
      return mgl_error_set(err, MGL_ERR_IO, "cannot write %s: %s", npy->path, strerror(errno));
    }
    from += n > 0 ? n : 0;
    bytes -= n > 0 ? (size_t)n : 0;
  }
  return MGL_OK;
}

static mgl_status write_header(mgl_npy *npy, mgl_error *err) {
  char header[HEADER_BYTES + 1];
  static const char magic[] = "\x93NUMPY\x01";  // and a zero: version 1.0
  memset(header, ' ', sizeof header);
  memcpy(header, magic, sizeof magic);
  header[8] = (char)(HEADER_BYTES - 10);
  header[9] = 0;
  int bytes = snprintf(header + 10, HEADER_BYTES - 10,
                       "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                       npy->rows_left, npy->columns);
  header[10 + bytes] = ' ';
  header[HEADER_BYTES - 1] = '\n';
  return write_all(npy, header, HEADER_BYTES, err);
}

// A name in the same folder, so that the rename stays within one file system.
static mgl_status open_temporary(mgl_npy *npy, mgl_error *err) {
  static const char suffix[] = ".partial-XXXXXX";
  size_t bytes = strlen(npy->path);
  npy->temporary_path = mgl_alloc(bytes + sizeof suffix);
  if (npy->temporary_path == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a path beside %s", npy->path);
  }
  memcpy(npy->temporary_path, npy->path, bytes);
  memcpy(npy->temporary_path + bytes, suffix, sizeof suffix);
  npy->fd = mkstemp(npy->temporary_path);
  if (npy->fd < 0) {
    mgl_status status =
        mgl_error_set(err, MGL_ERR_IO, "cannot create %s: %s", npy->path, strerror(errno));
    mgl_free(npy->temporary_path);
    npy->temporary_path = NULL;
    return status;
  }
  // mkstemp makes the file private; a result has the usual rights.
  mode_t mask = umask(0);
  (void)umask(mask);
  (void)fchmod(npy->fd, 0666 & ~mask);
  return MGL_OK;
}

mgl_status mgl_npy_create(const char *path, size_t rows, size_t columns, mgl_npy *out,
                          mgl_error *err) {
  struct stat info;
  *out = (mgl_npy){.path = path, .fd = -1, .rows_left = rows, .columns = columns};
  mgl_status status = MGL_OK;
  // A rename over a device or a pipe would replace it.
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    status = mgl_error_set(err, MGL_ERR_IO, "%s: expected a regular file or none, found %s", path,
                           S_ISDIR(info.st_mode) ? "a folder" : "something else");
  } else {
    status = open_temporary(out, err);
  }
  if (status == MGL_OK) {
    status = write_header(out, err);
  }
  if (status != MGL_OK) {
    mgl_npy_close(out);
  }
  return status;
}

mgl_status mgl_npy_write_row(mgl_npy *npy, const float *row, mgl_error *err) {
  assert(npy->rows_left > 0);
  npy->rows_left--;
  return write_all(npy, row, npy->columns * sizeof *row, err);
}

mgl_status mgl_npy_commit(mgl_npy *npy, mgl_error *err) {
  assert(npy->rows_left == 0);
  int closed = close(npy->fd);
  npy->fd = -1;
  if (closed != 0 || rename(npy->temporary_path, npy->path) != 0) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot write %s: %s", npy->path, strerror(errno));
  }
  mgl_free(npy->temporary_path);
  npy->temporary_path = NULL;
  return MGL_OK;
}

void mgl_npy_close(mgl_npy *npy) {
  if (npy->temporary_path != NULL) {
    if (npy->fd >= 0) {
      (void)close(npy->fd);
    }
    (void)unlink(npy->temporary_path);
    mgl_free(npy->temporary_path);
  }
  *npy = (mgl_npy){.fd = -1};
}
