// The inside of a checkpoint: what its readers (safetensors.c, gguf_weights.c) fill, and
// checkpoint.c looks up.
#ifndef MGL_MODEL_CHECKPOINT_PARTS_H
#define MGL_MODEL_CHECKPOINT_PARTS_H

#include <stdbool.h>

#include "base/file.h"
#include "model/checkpoint.h"

typedef struct mgl_stored_dtype {
  const char *name;
  uint32_t bits;
  bool supported;
  mgl_dtype dtype;  // where supported
} mgl_stored_dtype;

typedef struct mgl_tensor_entry {
  mgl_stored_tensor tensor;
  uint64_t begin;  // offset in the data section of its file
  const mgl_stored_dtype *stored;
  size_t file_idx;
} mgl_tensor_entry;

typedef struct mgl_tensor_file {
  char *path;        // as shown in messages
  mgl_file_map map;  // empty for a file that the caller holds in memory
  char *names;       // NUL-terminated names of its tensors, one after another
} mgl_tensor_file;

struct mgl_checkpoint {
  char *where;
  mgl_tensor_file *files;
  size_t file_count;
  size_t file_capacity;
  mgl_tensor_entry *entries;  // sorted by name once open
  size_t entry_count;
  size_t entry_capacity;
  uint64_t bytes;
  char *part_names;  // of mgl_checkpoint_add_parts, one after another
  struct mgl_packed_matrix *packed;
};

// Makes an empty checkpoint, takes a copy of `where`.
mgl_status mgl_checkpoint_create(const char *where, mgl_checkpoint **out, mgl_error *err);
// Appends a file without content; takes a copy of its path.
mgl_status mgl_checkpoint_append_file(mgl_checkpoint *checkpoint, const char *path, mgl_error *err);
// Sorts for lookup and refuses a name that two files define (within one, its reader did).
mgl_status mgl_checkpoint_sort(mgl_checkpoint *checkpoint, mgl_error *err);
// The entry of a name, NULL if there is none; once sorted.
const mgl_tensor_entry *mgl_checkpoint_entry(const mgl_checkpoint *checkpoint, const char *name);
mgl_status mgl_checkpoint_no_memory(const char *where, mgl_error *err);

#endif
