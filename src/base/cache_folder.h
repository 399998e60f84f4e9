// Where Megalith keeps what it found out or made on this machine, so that later starts need not:
// compiled device code (device/cuda/cuda_cache.h), how linears walk (device/cpu/way_cache.h).
#ifndef MGL_BASE_CACHE_FOLDER_H
#define MGL_BASE_CACHE_FOLDER_H

#include <stdbool.h>

#include "base/status.h"

enum { MGL_CACHE_FOLDER_BYTES = 4096 };

// $MEGALITH_CACHE, else $XDG_CACHE_HOME/megalith, else $HOME/.cache/megalith. False: none of them
// is set, or the path is too long.
bool mgl_cache_folder(char out[MGL_CACHE_FOLDER_BYTES]);

// Makes the folder, and those above it, if they are missing.
mgl_status mgl_cache_folder_make(const char *folder, mgl_error *err);

#endif
