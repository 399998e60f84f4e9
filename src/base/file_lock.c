#include "base/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

// Whether the file that was locked still has its name: its holder removes it before it lets go.
static bool is_there(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

mgl_lock_result mgl_file_lock_try(const char *path, mgl_file_lock *out) {
  *out = (mgl_file_lock){.fd = -1};
  if (strlen(path) >= sizeof out->path) {
    return MGL_LOCK_NONE;
  }
  (void)snprintf(out->path, sizeof out->path, "%s", path);
  for (;;) {
    int fd = mgl_file_injected_failure()
                 ? -1
                 : open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
      return MGL_LOCK_NONE;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      bool busy = errno == EWOULDBLOCK;
      (void)close(fd);
      return busy ? MGL_LOCK_BUSY : MGL_LOCK_NONE;
    }
    if (is_there(fd)) {
      out->fd = fd;
      return MGL_LOCK_HELD;
    }
    (void)close(fd);  // its holder went between the two calls: another file has the name, or none
  }
}

void mgl_file_lock_release(mgl_file_lock *lock) {
  (void)unlink(lock->path);
  (void)close(lock->fd);
  lock->fd = -1;
}
