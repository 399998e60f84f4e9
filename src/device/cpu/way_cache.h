// How linears walk on this machine, as measured, kept in the cache folder (base/cache_folder.h).
//
// A file has the name "cpu-KEY.json"; KEY is a hash of `about`, a line of text that names what the
// choice depends on: processor, instruction set, threads, where weights lie, their shapes, and the
// build. The file holds that line again. Files are written by base/new_file.h, so that any number
// of processes may read and write at once. Any way gives the same bits (kernels/cpu/cpu_kernels.h),
// so the worst that a file can do, damaged or brought from elsewhere, is to cost time; one that
// does not say what it must counts as absent, and the next measurement replaces it.
#ifndef MGL_DEVICE_CPU_WAY_CACHE_H
#define MGL_DEVICE_CPU_WAY_CACHE_H

#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"
#include "kernels/cpu/cpu_kernels.h"

enum { MGL_WAY_FILE_BYTES = 16 << 10 };  // at most

bool mgl_way_cache_read(const char *folder, const char *about, mgl_linear_way *out);

// Makes the folder if it is missing.
mgl_status mgl_way_cache_write(const char *folder, const char *about, const mgl_linear_way *way,
                               mgl_error *err);

// Appends a line of words: "one token: four rows side by side, 8 KiB ahead into L1; ...".
void mgl_way_append(const mgl_linear_way *way, mgl_text *out);

// Calls `found` for each whole file of the folder, in no order.
typedef void mgl_way_found(void *context, const char *about, const mgl_linear_way *way);
void mgl_way_cache_list(const char *folder, mgl_way_found *found, void *context);

#endif
