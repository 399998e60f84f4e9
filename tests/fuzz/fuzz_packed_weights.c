// Fuzzes the readers of quantised weights: the input is a "quantization_config", a byte 0, and a
// safetensors file. Whatever is named as a matrix has rows that can be read or are refused, and all
// of what is read are numbers.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/form.h"
#include "base/json.h"
#include "model/packed_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MOST_BYTES = 1 << 16 };  // of what a matrix becomes

static void expect(int fine) {
  if (!fine) {
    __builtin_trap();
  }
}

static void read_rows(const mgl_stored_tensor *tensor) {
  static unsigned char made[MOST_BYTES];
  static float row[MOST_BYTES];
  const mgl_packed_matrix *m = tensor->packed;
  const size_t row_bytes = mgl_row_layout_of(m->form, m->k).bytes;
  mgl_error err = {0};
  if (row_bytes == 0 || tensor->dims[0] > MOST_BYTES / row_bytes || m->k > MOST_BYTES) {
    return;
  }
  if (mgl_packed_rows(tensor, 0, (uint32_t)tensor->dims[0], made, &err) != MGL_OK) {
    expect(err.text[0] != 0);
    return;
  }
  for (uint64_t r = 0; r < tensor->dims[0]; r++) {
    mgl_row_widen(m->form, m->k, made + r * row_bytes, row);
    for (uint32_t i = 0; i < m->k; i++) {
      expect(isfinite(row[i]));
    }
  }
}

static void read_file(const mgl_quantization *quantization, const uint8_t *data, size_t bytes) {
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  if (mgl_checkpoint_parse(data, bytes, "fuzz", &checkpoint, &err) != MGL_OK) {
    return;
  }
  if (mgl_packed_weights_name(quantization, checkpoint, &err) != MGL_OK) {
    expect(err.text[0] != 0);
  } else {
    for (size_t i = 0; i < mgl_checkpoint_tensor_count(checkpoint); i++) {
      const mgl_stored_tensor *tensor = mgl_checkpoint_at(checkpoint, i);
      if (tensor->packed != NULL) {
        read_rows(tensor);
      }
    }
  }
  mgl_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  const uint8_t *end = bytes == 0 ? NULL : memchr(data, 0, bytes);
  const int64_t live = mgl_alloc_live();
  json_t *config = NULL;
  if (end == NULL ||
      mgl_json_parse((const char *)data, (size_t)(end - data), "fuzz", &config, NULL) != MGL_OK) {
    return 0;
  }
  json_t *root = json_pack("{s:O}", "quantization_config", config);
  mgl_quantization quantization;
  mgl_error err = {0};
  if (root != NULL) {
    const mgl_json_object object = {.object = root, .where = "fuzz"};
    if (mgl_quantization_read(object, &quantization, &err) == MGL_OK) {
      read_file(&quantization, end + 1, bytes - (size_t)(end + 1 - data));
    } else {
      expect(err.text[0] != 0);
    }
  }
  json_decref(root);
  json_decref(config);
  expect(mgl_alloc_live() == live);
  return 0;
}
