#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"

static atomic_uint_fast64_t file_count;
static atomic_uint_fast64_t file_fail_at;

// True when a test wants this operation to fail; errno then reads as an input error.
bool mgl_file_injected_failure(void) {
  uint64_t n = atomic_fetch_add_explicit(&file_count, 1, memory_order_relaxed) + 1;
  if (n == atomic_load_explicit(&file_fail_at, memory_order_relaxed)) {
    errno = EIO;
    return true;
  }
  return false;
}

void mgl_file_fail_nth(uint64_t n) {
  atomic_store_explicit(&file_count, 0, memory_order_relaxed);
  atomic_store_explicit(&file_fail_at, n, memory_order_relaxed);
}

uint64_t mgl_file_count(void) {
  return atomic_load_explicit(&file_count, memory_order_relaxed);
}

// Opens a regular file and tells its size.
static mgl_status open_regular(const char *path, int *out_fd, size_t *out_bytes, mgl_error *err) {
  struct stat info;
  // O_NONBLOCK: opening a FIFO must not hang before fstat can refuse it.
  int fd = mgl_file_injected_failure() ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot open %s: %s", path, strerror(errno));
  }
  if (mgl_file_injected_failure() || fstat(fd, &info) != 0) {
    mgl_status status =
        mgl_error_set(err, MGL_ERR_IO, "cannot examine %s: %s", path, strerror(errno));
    (void)close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    (void)close(fd);
    return mgl_error_set(err, MGL_ERR_IO, "%s: expected a regular file, found %s", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "something else");
  }
  *out_fd = fd;
  *out_bytes = (size_t)info.st_size;
  return MGL_OK;
}

mgl_status mgl_file_map_open(const char *path, mgl_file_map *out, mgl_error *err) {
  int fd = -1;
  size_t bytes = 0;
  *out = (mgl_file_map){0};
  MGL_TRY(open_regular(path, &fd, &bytes, err));
  if (bytes == 0) {
    (void)close(fd);
    return MGL_OK;
  }
  void *data =
      mgl_file_injected_failure() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  int mmap_errno = errno;
  (void)close(fd);
  if (data == MAP_FAILED) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot map %s (%zu bytes): %s", path, bytes,
                         strerror(mmap_errno));
  }
  out->data = data;
  out->bytes = bytes;
  return MGL_OK;
}

void mgl_file_map_close(mgl_file_map *map) {
  if (map->data != NULL) {
    (void)munmap((void *)(uintptr_t)map->data, map->bytes);
  }
  *map = (mgl_file_map){0};
}

void mgl_file_map_forget(const void *begin, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const uintptr_t first = ((uintptr_t)begin + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)begin + bytes) / page * page;
  if (first < end) {
    (void)madvise((void *)first, end - first, MADV_DONTNEED);  // a hint
  }
}

static mgl_status read_all(int fd, const char *path, char *text, size_t bytes, mgl_error *err) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = mgl_file_injected_failure() ? -1 : read(fd, text + done, bytes - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return mgl_error_set(err, MGL_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    if (n == 0) {
      return mgl_error_set(err, MGL_ERR_IO, "%s: expected %zu bytes, the file ended after %zu",
                           path, bytes, done);
    }
    done += (size_t)n;
  }
  return MGL_OK;
}

mgl_status mgl_file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes,
                         mgl_error *err) {
  int fd = -1;
  size_t bytes = 0;
  *out = NULL;
  *out_bytes = 0;
  MGL_TRY(open_regular(path, &fd, &bytes, err));
  mgl_status status = MGL_OK;
  char *text = NULL;
  if (bytes > max_bytes) {
    status = mgl_error_set(err, MGL_ERR_LIMIT, "%s: %zu bytes, at most %zu are read", path, bytes,
                           max_bytes);
    goto fail;
  }
  mgl_alloc_budget_earn(bytes);
  text = mgl_alloc(bytes + 1);
  if (text == NULL) {
    status =
        mgl_error_set(err, MGL_ERR_MEMORY, "out of memory reading %s (%zu bytes)", path, bytes);
    goto fail;
  }
  status = read_all(fd, path, text, bytes, err);
  if (status != MGL_OK) {
    goto fail;
  }
  text[bytes] = 0;
  (void)close(fd);
  *out = text;
  *out_bytes = bytes;
  return MGL_OK;
fail:
  mgl_free(text);
  (void)close(fd);
  return status;
}

// Reads what has no size that is known before.
static mgl_status read_stream(int fd, const char *path, size_t max_bytes, mgl_text *out,
                              mgl_error *err) {
  char chunk[16384];
  for (;;) {
    ssize_t n = mgl_file_injected_failure() ? -1 : read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return mgl_error_set(err, MGL_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    if (n == 0) {
      mgl_text_append(out, "", 0);  // an empty text has data too
      return mgl_text_check(out, err);
    }
    if ((size_t)n > max_bytes - out->bytes) {
      return mgl_error_set(err, MGL_ERR_LIMIT, "%s: more than %zu bytes, which is the most", path,
                           max_bytes);
    }
    mgl_text_append(out, chunk, (size_t)n);
    MGL_TRY(mgl_text_check(out, err));
  }
}

mgl_status mgl_file_read_any(const char *path, size_t max_bytes, char **out, size_t *out_bytes,
                             mgl_error *err) {
  struct stat info;
  mgl_text text = {0};
  *out = NULL;
  *out_bytes = 0;
  int fd = mgl_file_injected_failure() ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot open %s: %s", path, strerror(errno));
  }
  mgl_status status = MGL_OK;
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    status = mgl_error_set(err, MGL_ERR_IO, "%s: expected a file, found a folder", path);
  } else {
    status = read_stream(fd, path, max_bytes, &text, err);
  }
  (void)close(fd);
  if (status != MGL_OK) {
    mgl_text_free(&text);
    return status;
  }
  *out = text.data;
  *out_bytes = text.bytes;
  return MGL_OK;
}

mgl_status mgl_file_find(const char *path, mgl_file_kind *out, mgl_error *err) {
  struct stat info;
  *out = MGL_FILE_ABSENT;
  if (stat(path, &info) == 0) {
    *out = S_ISDIR(info.st_mode) ? MGL_FILE_FOLDER : MGL_FILE_OTHER;
    return MGL_OK;
  }
  if (errno != ENOENT) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot examine %s: %s", path, strerror(errno));
  }
  if (lstat(path, &info) == 0) {
    return mgl_error_set(err, MGL_ERR_IO, "%s is a link to nothing: expected its target to exist",
                         path);
  }
  return MGL_OK;
}

mgl_status mgl_path_join(const char *folder, const char *name, char **out, mgl_error *err) {
  size_t folder_bytes = strlen(folder);
  size_t name_bytes = strlen(name);
  char *joined = mgl_alloc(folder_bytes + name_bytes + 2);
  *out = joined;
  if (joined == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a path in %s", folder);
  }
  memcpy(joined, folder, folder_bytes);
  joined[folder_bytes] = '/';
  memcpy(joined + folder_bytes + 1, name, name_bytes + 1);
  return MGL_OK;
}
