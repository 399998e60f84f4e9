#include "base/new_file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

enum { RANDOM_BYTES = 6, MARK_BYTES = sizeof MGL_NEW_FILE_MARK - 1, MAX_TRIES = 100 };

// --- what killed writers left --------------------------------------------------------------------

// Whether `name` is a temporary name of the file `target`, or of any file if that is NULL.
static bool is_temporary(const char *name, const char *target) {
  size_t bytes = strlen(name);
  if (bytes <= MARK_BYTES + RANDOM_BYTES) {
    return false;
  }
  const char *random = name + bytes - RANDOM_BYTES;
  for (size_t i = 0; i < RANDOM_BYTES; i++) {
    if (!isalnum((unsigned char)random[i])) {
      return false;
    }
  }
  size_t target_bytes = bytes - RANDOM_BYTES - MARK_BYTES;
  return strncmp(name + target_bytes, MGL_NEW_FILE_MARK, MARK_BYTES) == 0 &&
         (target == NULL ||
          (strlen(target) == target_bytes && strncmp(name, target, target_bytes) == 0));
}

// Removes a file whose writer is dead: nobody holds its lock.
static void remove_if_dead(int folder_fd, const char *name) {
  struct stat info;
  int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    return;
  }
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
    (void)unlinkat(folder_fd, name, 0);
  }
  (void)close(fd);
}

static void sweep(const char *folder, const char *target) {
  DIR *entries = opendir(folder);
  for (struct dirent *entry = NULL; entries != NULL && (entry = readdir(entries)) != NULL;) {
    if (is_temporary(entry->d_name, target)) {
      remove_if_dead(dirfd(entries), entry->d_name);
    }
  }
  if (entries != NULL) {
    (void)closedir(entries);
  }
}

void mgl_new_file_sweep(const char *folder) {
  sweep(folder, NULL);
}

// --- writing -------------------------------------------------------------------------------------

static mgl_status refused(const mgl_new_file *file, const char *what, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_IO, "cannot %s %s: %s", what, file->path, strerror(errno));
}

// Locks a new temporary file; false: a sweep got between making it and locking it.
static bool lock(int fd) {
  struct stat info;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return errno != EWOULDBLOCK;  // where there are no locks, nobody sweeps either
  }
  return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

static mgl_status open_temporary(mgl_new_file *file, mgl_error *err) {
  char *random = file->temporary_path + strlen(file->temporary_path) - RANDOM_BYTES;
  for (int i = 0; i < MAX_TRIES; i++) {
    memset(random, 'X', RANDOM_BYTES);
    file->fd = mgl_file_injected_failure() ? -1 : mkostemp(file->temporary_path, O_CLOEXEC);
    if (file->fd < 0) {
      return refused(file, "create", err);
    }
    if (lock(file->fd)) {
      return MGL_OK;
    }
    (void)unlink(file->temporary_path);
    (void)close(file->fd);
    file->fd = -1;
  }
  errno = EAGAIN;
  return refused(file, "create", err);
}

mgl_status mgl_new_file_create(const char *path, mgl_new_file *out, mgl_error *err) {
  static const char suffix[] = MGL_NEW_FILE_MARK "XXXXXX";
  size_t bytes = strlen(path);
  *out = (mgl_new_file){
      .path = mgl_strdup(path), .temporary_path = mgl_alloc(bytes + sizeof suffix), .fd = -1};
  mgl_status status = MGL_OK;
  if (out->path == NULL || out->temporary_path == NULL) {
    status = mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a path beside %s", path);
  } else {
    char *slash = strrchr(out->path, '/');
    if (slash == NULL || slash == out->path) {
      sweep(slash == NULL ? "." : "/", slash == NULL ? out->path : slash + 1);
    } else {
      *slash = 0;
      sweep(out->path, slash + 1);
      *slash = '/';
    }
    memcpy(out->temporary_path, path, bytes);
    memcpy(out->temporary_path + bytes, suffix, sizeof suffix);
    status = open_temporary(out, err);
  }
  if (status != MGL_OK) {
    mgl_free(out->path);
    mgl_free(out->temporary_path);
    *out = (mgl_new_file){.fd = -1};
  }
  return status;
}

mgl_status mgl_new_file_write(mgl_new_file *file, const void *data, size_t bytes, mgl_error *err) {
  const char *from = data;
  while (bytes > 0) {
    ssize_t n = mgl_file_injected_failure() ? -1 : write(file->fd, from, bytes);
    if (n < 0 && errno != EINTR) {
      return refused(file, "write", err);
    }
    from += n > 0 ? n : 0;
    bytes -= n > 0 ? (size_t)n : 0;
  }
  return MGL_OK;
}

// The lock must be held until the file has its name, so it is synced, which tells of what could not
// be written, instead of closed.
mgl_status mgl_new_file_commit(mgl_new_file *file, mgl_error *err) {
  if (mgl_file_injected_failure() || fsync(file->fd) != 0 ||
      rename(file->temporary_path, file->path) != 0) {
    return refused(file, "write", err);
  }
  mgl_free(file->temporary_path);
  file->temporary_path = NULL;
  mgl_new_file_close(file);
  return MGL_OK;
}

void mgl_new_file_close(mgl_new_file *file) {
  if (file->temporary_path != NULL) {
    (void)unlink(file->temporary_path);
  }
  if (file->fd >= 0) {
    (void)close(file->fd);
  }
  mgl_free(file->temporary_path);
  mgl_free(file->path);
  *file = (mgl_new_file){.fd = -1};
}
