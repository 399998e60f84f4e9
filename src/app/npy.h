// Writing a NumPy file: float32, C order, two dimensions, format version 1.0.
//
// Rows are written one by one through output_file.h, so the target is complete or untouched.
#ifndef MGL_APP_NPY_H
#define MGL_APP_NPY_H

#include <stddef.h>

#include "app/output_file.h"
#include "base/status.h"

typedef struct mgl_npy {
  mgl_output_file file;
  size_t rows_left;
  size_t columns;
} mgl_npy;

// Starts a file of shape [rows, columns]. On failure *out is zeroed and nothing is left behind.
mgl_status mgl_npy_create(const char *path, size_t rows, size_t columns, mgl_npy *out,
                          mgl_error *err);
mgl_status mgl_npy_write_row(mgl_npy *npy, const float *row, mgl_error *err);
// Renames the file to its place; all rows must have been written (asserted).
mgl_status mgl_npy_commit(mgl_npy *npy, mgl_error *err);
// Closes; removes what was not committed. A zeroed *npy is fine.
void mgl_npy_close(mgl_npy *npy);

#endif
