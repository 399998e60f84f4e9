// A lock between processes that is a file: whoever holds it works alone.
//
// It is the kernel's (flock): a holder that is killed holds it no longer, and nothing must be found
// out about ages or process ids. The file is empty and goes with its holder; what a killed one left
// is taken over by the next. Threads of one process exclude each other too.
#ifndef MGL_BASE_FILE_LOCK_H
#define MGL_BASE_FILE_LOCK_H

enum { MGL_FILE_LOCK_PATH_BYTES = 4352 };

typedef enum mgl_lock_result {
  MGL_LOCK_HELD,
  MGL_LOCK_BUSY,  // another one holds it
  MGL_LOCK_NONE,  // there can be no lock here: the folder is missing, or may not be written
} mgl_lock_result;

typedef struct mgl_file_lock {
  int fd;
  char path[MGL_FILE_LOCK_PATH_BYTES];
} mgl_file_lock;

// Does not wait.
mgl_lock_result mgl_file_lock_try(const char *path, mgl_file_lock *out);
void mgl_file_lock_release(mgl_file_lock *lock);  // of one that is held

#endif
