// Fuzzes the safetensors reader: the input is one file. Every byte of every tensor handed out is
// read, so that AddressSanitizer sees an extent outside the input.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile unsigned char sink;

// Looks up all names of the header, which JSON parses a second time here.
static void touch_tensors(const mgl_checkpoint *checkpoint, const uint8_t *data, size_t bytes) {
  size_t header_bytes = (size_t)data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16;
  json_t *header = NULL;
  const char *name;
  json_t *value;
  uint64_t found_bytes = 0;
  size_t found_count = 0;
  if (header_bytes > bytes - 8 ||
      mgl_json_parse((const char *)data + 8, header_bytes, "x", &header, NULL) != MGL_OK) {
    return;  // a header of 16 MiB and more
  }
  json_object_foreach(header, name, value) {
    const mgl_stored_tensor *tensor = NULL;
    mgl_error err;
    found_count += mgl_checkpoint_has(checkpoint, name) ? 1 : 0;
    if (mgl_checkpoint_find(checkpoint, name, &tensor, &err) == MGL_OK) {
      const unsigned char *tensor_bytes = tensor->data;
      for (uint64_t i = 0; i < tensor->bytes; i++) {
        sink = (unsigned char)(sink ^ tensor_bytes[i]);
      }
      found_bytes += tensor->bytes;
    }
  }
  if (found_count != mgl_checkpoint_tensor_count(checkpoint) ||
      found_bytes > mgl_checkpoint_bytes(checkpoint)) {
    __builtin_trap();
  }
  json_decref(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  if (mgl_checkpoint_parse(data, bytes, "fuzz", &checkpoint, &err) == MGL_OK) {
    touch_tensors(checkpoint, data, bytes);
    mgl_checkpoint_close(checkpoint);
  } else if (checkpoint != NULL || err.text[0] == 0) {
    __builtin_trap();
  }
  if (mgl_alloc_live() != live) {
    __builtin_trap();
  }
  return 0;
}
