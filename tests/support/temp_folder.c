// Temporary folders for tests; see temp_folder.h.
#include "support/temp_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int fine, const char *what, const char *path) {
  if (!fine) {
    (void)fprintf(stderr, "test support: cannot %s %s\n", what, path);
    abort();
  }
}

void temp_folder_create(temp_folder *folder) {
  const char *base = getenv("TMPDIR");
  int bytes = snprintf(folder->path, sizeof folder->path, "%s/megalith-test-XXXXXX",
                       base != NULL ? base : "/tmp");
  check(bytes > 0 && (size_t)bytes < sizeof folder->path, "name", "a temporary folder");
  check(mkdtemp(folder->path) != NULL, "create", folder->path);
}

void temp_folder_path(const temp_folder *folder, const char *name, char path[TEMP_PATH_BYTES]) {
  int bytes = snprintf(path, TEMP_PATH_BYTES, "%s/%s", folder->path, name);
  check(bytes > 0 && bytes < TEMP_PATH_BYTES, "name", name);
}

void temp_folder_remove(temp_folder *folder) {
  char path[TEMP_PATH_BYTES];
  DIR *listing = opendir(folder->path);
  check(listing != NULL, "list", folder->path);
  for (const struct dirent *item = readdir(listing); item != NULL; item = readdir(listing)) {
    if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) {
      temp_folder_path(folder, item->d_name, path);
      check(remove(path) == 0, "remove", path);
    }
  }
  (void)closedir(listing);
  check(remove(folder->path) == 0, "remove", folder->path);
}

void temp_folder_write(const temp_folder *folder, const char *name, const void *data,
                       size_t bytes) {
  char path[TEMP_PATH_BYTES];
  temp_folder_path(folder, name, path);
  FILE *file = fopen(path, "wb");
  check(file != NULL, "create", path);
  check(bytes == 0 || fwrite(data, 1, bytes, file) == bytes, "write", path);
  check(fclose(file) == 0, "write", path);
}

void temp_folder_write_text(const temp_folder *folder, const char *name, const char *text) {
  temp_folder_write(folder, name, text, strlen(text));
}
