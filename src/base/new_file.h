// A new file that is complete or absent: written under a temporary name beside its place, synced,
// and renamed over it at the end. The one seam for files that are written (base/file.h reads them).
//
// A temporary file is locked (flock) as long as its writer lives. One that is not is the rest of a
// process that was killed; the next writer of the same place removes it. Rejected: judging by age,
// which takes a slow writer's file away and leaves a dead one's for hours; and process ids in
// names, which are used again and mean nothing in another container.
#ifndef MGL_BASE_NEW_FILE_H
#define MGL_BASE_NEW_FILE_H

#include <stddef.h>

#include "base/status.h"

// This mark stands between the path and six letters or digits in a temporary name.
#define MGL_NEW_FILE_MARK ".partial-"

typedef struct mgl_new_file {
  char *path;            // owned
  char *temporary_path;  // owned; NULL when nothing is open
  int fd;                // of the temporary file, for its owner alone (mode 0600)
} mgl_new_file;

// Removes what killed writers of the same path left, and opens a temporary file. On failure *out
// holds nothing.
mgl_status mgl_new_file_create(const char *path, mgl_new_file *out, mgl_error *err);
mgl_status mgl_new_file_write(mgl_new_file *file, const void *data, size_t bytes, mgl_error *err);
// Syncs the file and renames it to its place.
mgl_status mgl_new_file_commit(mgl_new_file *file, mgl_error *err);
// Removes what was not committed, frees the rest. What is zero but for fd = -1 is fine.
void mgl_new_file_close(mgl_new_file *file);

// Removes what killed writers left of any file in a folder that belongs to Megalith alone. That it
// cannot be listed is no error: there is nothing to remove then.
void mgl_new_file_sweep(const char *folder);

#endif
