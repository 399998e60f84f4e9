// Reading files: whole into memory, or mapped. The one seam for input (base/new_file.h is that for
// output), so that a test can make the Nth file operation fail.
#ifndef MGL_BASE_FILE_H
#define MGL_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// A read-only mapping of a whole file. data is NULL for an empty file.
typedef struct mgl_file_map {
  const unsigned char *data;
  size_t bytes;
} mgl_file_map;

// Maps a regular file. Errors name the path and the reason. *out is zeroed on failure.
mgl_status mgl_file_map_open(const char *path, mgl_file_map *out, mgl_error *err);
void mgl_file_map_close(mgl_file_map *map);
// Bytes of a mapping that will hardly be read again: their pages no longer count as the process's
// memory, until they are read all the same.
void mgl_file_map_forget(const void *begin, size_t bytes);

// Reads a whole regular file of at most max_bytes into fresh memory (mgl_free it), with a
// terminating NUL behind its last byte.
mgl_status mgl_file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes,
                         mgl_error *err);

// Reads as mgl_file_read does, anything that can be read to its end: a pipe or a device too. It
// waits for it.
mgl_status mgl_file_read_any(const char *path, size_t max_bytes, char **out, size_t *out_bytes,
                             mgl_error *err);

typedef enum mgl_file_kind {
  MGL_FILE_ABSENT,  // nothing has that name
  MGL_FILE_FOLDER,
  MGL_FILE_OTHER,  // a file, a pipe, a device
} mgl_file_kind;

// Finds what is at a path, behind links. That it cannot be told is an error: a folder that may not
// be searched, links in a circle, a link to nothing.
mgl_status mgl_file_find(const char *path, mgl_file_kind *out, mgl_error *err);

// "folder/name" in fresh memory (mgl_free it).
mgl_status mgl_path_join(const char *folder, const char *name, char **out, mgl_error *err);

// --- fault injection for tests: the Nth (1 = next) file operation fails once; 0 = off -----------
void mgl_file_fail_nth(uint64_t n);
uint64_t mgl_file_count(void);
// Counts an operation of base/; true (and errno is EIO) where it must fail.
bool mgl_file_injected_failure(void);

#endif
