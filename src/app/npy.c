#include "app/npy.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

enum { HEADER_BYTES = 128 };  // a multiple of 64, so that data is aligned when the file is mapped

static mgl_status write_header(mgl_npy *npy, uint32_t rank, const uint64_t *dims, mgl_error *err) {
  char header[HEADER_BYTES + 1];
  static const char magic[] = "\x93NUMPY\x01";  // and a zero: version 1.0
  memset(header, ' ', sizeof header);
  memcpy(header, magic, sizeof magic);
  header[8] = (char)(HEADER_BYTES - 10);
  header[9] = 0;
  int at = 10 + snprintf(header + 10, HEADER_BYTES - 10,
                         "{'descr': '<f4', 'fortran_order': False, 'shape': (");
  for (uint32_t i = 0; i < rank; i++) {
    const char *between = i > 0 && i + 1 == rank ? "" : rank == 1 ? "," : ", ";
    at += snprintf(header + at, (size_t)(HEADER_BYTES - at), "%" PRIu64 "%s", dims[i], between);
  }
  at += snprintf(header + at, (size_t)(HEADER_BYTES - at), "), }");
  header[at] = ' ';
  header[HEADER_BYTES - 1] = '\n';
  return mgl_output_file_write(&npy->file, header, HEADER_BYTES, err);
}

mgl_status mgl_npy_create(const char *path, uint32_t rank, const uint64_t *dims, mgl_npy *out,
                          mgl_error *err) {
  assert(rank >= 1 && rank <= MGL_NPY_MAX_RANK);
  *out = (mgl_npy){.rows_left = (size_t)dims[0], .columns = 1};
  for (uint32_t i = 1; i < rank; i++) {
    out->columns *= (size_t)dims[i];
  }
  mgl_status status = mgl_output_file_create(path, &out->file, err);
  if (status == MGL_OK) {
    status = write_header(out, rank, dims, err);
  }
  if (status != MGL_OK) {
    mgl_npy_close(out);
  }
  return status;
}

mgl_status mgl_npy_write_row(mgl_npy *npy, const float *row, mgl_error *err) {
  assert(npy->rows_left > 0);
  npy->rows_left--;
  return mgl_output_file_write(&npy->file, row, npy->columns * sizeof *row, err);
}

mgl_status mgl_npy_commit(mgl_npy *npy, mgl_error *err) {
  assert(npy->rows_left == 0);
  return mgl_output_file_commit(&npy->file, err);
}

void mgl_npy_close(mgl_npy *npy) {
  mgl_output_file_close(&npy->file);
  *npy = (mgl_npy){.file = {.fd = -1}};
}
