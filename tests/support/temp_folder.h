// A temporary folder for one test, and files in it. Every failure aborts the test.
//
// Uses the C library directly, so that it disturbs neither the counters of base/alloc.h nor those
// of base/file.h.
#ifndef MGL_TESTS_SUPPORT_TEMP_FOLDER_H
#define MGL_TESTS_SUPPORT_TEMP_FOLDER_H

#include <stddef.h>

enum { TEMP_PATH_BYTES = 512 };

typedef struct temp_folder {
  char path[TEMP_PATH_BYTES];
} temp_folder;

void temp_folder_create(temp_folder *folder);
// Removes the folder with all its files (it must hold no folders that are not empty).
void temp_folder_remove(temp_folder *folder);

// Creates or replaces a file.
void temp_folder_write(const temp_folder *folder, const char *name, const void *data, size_t bytes);
void temp_folder_write_text(const temp_folder *folder, const char *name, const char *text);
// "folder/name" into path.
void temp_folder_path(const temp_folder *folder, const char *name, char path[TEMP_PATH_BYTES]);

#endif
