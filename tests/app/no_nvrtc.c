// Preloaded, hides libnvrtc wherever it is installed, for a test of the message that it is missing.
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

void *dlopen(const char *file, int mode) {
  void *(*next)(const char *, int) = NULL;
  if (file != NULL && strstr(file, "libnvrtc") != NULL) {
    return NULL;
  }
  *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
  return next != NULL ? next(file, mode) : NULL;
}
