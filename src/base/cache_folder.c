#include "base/cache_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool mgl_cache_folder(char out[MGL_CACHE_FOLDER_BYTES]) {
  static const struct {
    const char *variable, *below;
  } places[] = {
      {"MEGALITH_CACHE", ""}, {"XDG_CACHE_HOME", "/megalith"}, {"HOME", "/.cache/megalith"}};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    const char *value = getenv(places[i].variable);
    bool absolute = value != NULL && value[0] == '/';
    if (absolute || (i == 0 && value != NULL && value[0] != 0)) {  // XDG: relative paths are void
      int bytes = snprintf(out, MGL_CACHE_FOLDER_BYTES, "%s%s", value, places[i].below);
      return bytes > 0 && bytes < MGL_CACHE_FOLDER_BYTES;
    }
  }
  return false;
}

mgl_status mgl_cache_folder_make(const char *folder, mgl_error *err) {
  char path[MGL_CACHE_FOLDER_BYTES];
  (void)snprintf(path, sizeof path, "%.4095s", folder);
  for (char *at = path + 1;; at++) {
    if (*at != '/' && *at != 0) {
      continue;
    }
    char end = *at;
    *at = 0;
    const int code = mkdir(path, 0700) == 0 ? 0 : errno;  // before access has another one
    if (code != 0 && code != EEXIST && (end == 0 || access(path, X_OK) != 0)) {
      return mgl_error_set(err, MGL_ERR_IO, "cannot write %s: %s", folder, strerror(code));
    }
    if (end == 0) {
      return MGL_OK;
    }
    *at = end;
  }
}
