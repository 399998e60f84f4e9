// Reading safetensors: one file, or many behind model.safetensors.index.json, mapped read-only.
//
// A file is 8 bytes of little-endian header length, a JSON header, and the tensor bytes. The file
// is hostile until proven otherwise: header length, offsets, overlaps, holes, shapes, sizes,
// dtypes, names and counts are all checked with overflow-safe arithmetic before a tensor is handed
// out.
#ifndef MGL_MODEL_SAFETENSORS_H
#define MGL_MODEL_SAFETENSORS_H

#include <stddef.h>

#include "base/status.h"
#include "model/checkpoint.h"

enum {
  MGL_SAFETENSORS_MAX_HEADER_BYTES = 100 * 1000 * 1000,
  MGL_SAFETENSORS_MAX_FILES = 4096,
};

// Opens model.safetensors if the folder has it, else model.safetensors.index.json with its shards,
// else the only *.safetensors file (the order of transformers, which leaves a stale index behind
// when a model is saved again as one file). A shard named by the index must lie in the folder
// itself (no separators).
mgl_status mgl_checkpoint_open(const char *folder, mgl_checkpoint **out, mgl_error *err);

// The same over one file's bytes in memory, which must outlive the checkpoint. For tests and
// fuzzing.
mgl_status mgl_checkpoint_parse(const void *data, size_t bytes, const char *where,
                                mgl_checkpoint **out, mgl_error *err);

// The content of a model.safetensors.index.json: which files the tensors are in. What
// mgl_checkpoint_open reads first; public for tests and fuzzing.
typedef struct mgl_shard_index mgl_shard_index;
mgl_status mgl_shard_index_parse(const char *json, size_t bytes, const char *where,
                                 mgl_shard_index **out, mgl_error *err);
void mgl_shard_index_close(mgl_shard_index *index);  // NULL is fine
// At least one, distinct, sorted; names of files, without separators.
size_t mgl_shard_index_count(const mgl_shard_index *index);
const char *mgl_shard_index_name(const mgl_shard_index *index, size_t shard);

#endif
