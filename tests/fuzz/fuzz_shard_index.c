// Fuzzes the reader of model.safetensors.index.json: whatever the text says, the files that it
// names lie in the folder itself.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void expect(int fine) {
  if (!fine) {
    __builtin_trap();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  mgl_shard_index *index = NULL;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  if (mgl_shard_index_parse((const char *)data, bytes, "fuzz", &index, &err) == MGL_OK) {
    size_t count = mgl_shard_index_count(index);
    expect(count >= 1 && count <= MGL_SAFETENSORS_MAX_FILES);
    for (size_t i = 0; i < count; i++) {
      const char *name = mgl_shard_index_name(index, i);
      expect(name[0] != 0 && strlen(name) <= 255);
      expect(strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
      expect(i == 0 || strcmp(mgl_shard_index_name(index, i - 1), name) < 0);
    }
    mgl_shard_index_close(index);
  } else {
    expect(index == NULL && err.text[0] != 0);
  }
  expect(mgl_alloc_live() == live);
  return 0;
}
