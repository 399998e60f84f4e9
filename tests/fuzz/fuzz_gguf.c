// Fuzzes the reader of GGUF files: the input is one file, opened with all its parts. Every row of
// every matrix is made and every tensor that is used in place is read, so that AddressSanitizer
// sees an extent outside the input.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gguf_folder.h"
#include "model/packed_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile unsigned char sink;

static void touch(const void *data, uint64_t bytes) {
  const unsigned char *at = data;
  for (uint64_t i = 0; i < bytes; i++) {
    sink = (unsigned char)(sink ^ at[i]);
  }
}

static void make_rows(const mgl_stored_tensor *tensor) {
  const mgl_packed_matrix *m = tensor->packed;
  size_t row_bytes = mgl_row_layout_of(m->form, m->k).bytes;
  void *row = malloc(row_bytes);
  for (uint64_t i = 0; i < m->rows; i++) {
    mgl_error err = {0};
    if (mgl_packed_rows(tensor, i, 1, row, &err) == MGL_OK) {
      touch(row, row_bytes);
    } else if (err.text[0] == 0) {
      __builtin_trap();
    }
  }
  free(row);
}

static void touch_tensors(const mgl_checkpoint *checkpoint) {
  for (size_t i = 0; i < mgl_checkpoint_tensor_count(checkpoint); i++) {
    const mgl_stored_tensor *tensor = mgl_checkpoint_at(checkpoint, i);
    if (tensor->packed != NULL) {
      make_rows(tensor);
    } else {
      touch(tensor->data, tensor->bytes);
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static const unsigned needs[] = {MGL_NEED_WEIGHTS, MGL_WANT_TEXT,
                                   MGL_WANT_TEXT | MGL_WANT_WEIGHTS};
  int64_t live = mgl_alloc_live();
  for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
    mgl_model_folder folder;
    mgl_error err = {0};
    if (mgl_gguf_folder_parse(data, bytes, "fuzz", needs[i], &folder, &err) == MGL_OK) {
      if (folder.checkpoint != NULL) {
        touch_tensors(folder.checkpoint);
      }
      mgl_model_folder_close(&folder);
    } else if (err.text[0] == 0) {
      __builtin_trap();
    }
    if (mgl_alloc_live() != live) {
      __builtin_trap();
    }
  }
  return 0;
}
