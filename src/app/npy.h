// Writing a NumPy file: float32, C order, format version 1.0. (base/npy_read.h reads them.)
//
// Rows are written one by one through output_file.h, so the target is complete or untouched.
#ifndef MGL_APP_NPY_H
#define MGL_APP_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "app/output_file.h"
#include "base/status.h"

typedef struct mgl_npy {
  mgl_output_file file;
  size_t rows_left;
  size_t columns;  // elements of a row: of all dims but the first
} mgl_npy;

enum { MGL_NPY_MAX_RANK = 4 };

// Starts a file of that shape, of 1 to MGL_NPY_MAX_RANK dims; the first is that of rows. On failure
// *out is zeroed and nothing is left behind.
mgl_status mgl_npy_create(const char *path, uint32_t rank, const uint64_t *dims, mgl_npy *out,
                          mgl_error *err);
mgl_status mgl_npy_write_row(mgl_npy *npy, const float *row, mgl_error *err);
// Renames the file to its place; all rows must have been written (asserted).
mgl_status mgl_npy_commit(mgl_npy *npy, mgl_error *err);
// Closes; removes what was not committed. A zeroed *npy is fine.
void mgl_npy_close(mgl_npy *npy);

#endif
