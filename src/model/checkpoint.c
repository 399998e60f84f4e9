// Looking up tensors by name, whatever file they are in.
//
// A reader appends entries and sorts them by name at the end: lookup is a binary search, and two of
// one name stand side by side. Rejected: a hash table (a sorted array needs no load factor and
// finds duplicates for free).
#include "model/checkpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/checkpoint_parts.h"
#include "model/packed_weights.h"

mgl_status mgl_checkpoint_no_memory(const char *where, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory opening %s", where);
}

// --- filling -------------------------------------------------------------------------------------

mgl_status mgl_checkpoint_create(const char *where, mgl_checkpoint **out, mgl_error *err) {
  *out = mgl_alloc_zeroed(1, sizeof **out);
  if (*out == NULL) {
    return mgl_checkpoint_no_memory(where, err);
  }
  (*out)->where = mgl_strdup(where);
  if ((*out)->where == NULL) {
    mgl_free(*out);
    *out = NULL;
    return mgl_checkpoint_no_memory(where, err);
  }
  return MGL_OK;
}

mgl_status mgl_checkpoint_append_file(mgl_checkpoint *checkpoint, const char *path,
                                      mgl_error *err) {
  void *files = checkpoint->files;
  mgl_status status = mgl_grow(&files, &checkpoint->file_capacity, checkpoint->file_count + 1,
                               sizeof(mgl_tensor_file), err);
  checkpoint->files = files;
  if (status != MGL_OK) {
    return status;
  }
  char *copy = mgl_strdup(path);
  if (copy == NULL) {
    return mgl_checkpoint_no_memory(path, err);
  }
  checkpoint->files[checkpoint->file_count++] = (mgl_tensor_file){.path = copy};
  return MGL_OK;
}

static int compare_names(const void *left, const void *right) {
  const mgl_tensor_entry *a = left;
  const mgl_tensor_entry *b = right;
  return strcmp(a->tensor.name, b->tensor.name);
}

mgl_status mgl_checkpoint_sort(mgl_checkpoint *checkpoint, mgl_error *err) {
  mgl_tensor_entry *entries = checkpoint->entries;
  if (checkpoint->entry_count != 0) {
    qsort(entries, checkpoint->entry_count, sizeof *entries, compare_names);
  }
  for (size_t i = 1; i < checkpoint->entry_count; i++) {
    if (compare_names(&entries[i - 1], &entries[i]) == 0) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "tensor \"%.200s\" is in two files, %s and %s: expected it in one",
                           entries[i].tensor.name, checkpoint->files[entries[i - 1].file_idx].path,
                           checkpoint->files[entries[i].file_idx].path);
    }
  }
  return MGL_OK;
}

const mgl_tensor_entry *mgl_checkpoint_entry(const mgl_checkpoint *checkpoint, const char *name) {
  mgl_tensor_entry key = {.tensor = {.name = name}};
  if (checkpoint->entry_count == 0) {
    return NULL;
  }
  return bsearch(&key, checkpoint->entries, checkpoint->entry_count, sizeof key, compare_names);
}

// --- looking up ----------------------------------------------------------------------------------

void mgl_checkpoint_close(mgl_checkpoint *checkpoint) {
  if (checkpoint == NULL) {
    return;
  }
  for (size_t i = 0; i < checkpoint->file_count; i++) {
    mgl_file_map_close(&checkpoint->files[i].map);
    mgl_free(checkpoint->files[i].names);
    mgl_free(checkpoint->files[i].path);
  }
  mgl_free(checkpoint->files);
  mgl_free(checkpoint->entries);
  mgl_free(checkpoint->part_names);
  mgl_free(checkpoint->packed);
  mgl_free(checkpoint->where);
  mgl_free(checkpoint);
}

mgl_status mgl_checkpoint_find(const mgl_checkpoint *checkpoint, const char *name,
                               const mgl_stored_tensor **out, mgl_error *err) {
  const mgl_tensor_entry *entry = mgl_checkpoint_entry(checkpoint, name);
  *out = NULL;
  if (entry == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "tensor \"%.200s\" is missing from %s (%zu tensors)",
                         name, checkpoint->where, checkpoint->entry_count);
  }
  if (!entry->stored->supported) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s: tensor \"%.200s\": expected dtype F32, F16 or BF16, found %s, which "
                         "is not supported",
                         checkpoint->files[entry->file_idx].path, name, entry->stored->name);
  }
  *out = &entry->tensor;
  return MGL_OK;
}

const mgl_stored_tensor *mgl_checkpoint_at(const mgl_checkpoint *checkpoint, size_t i) {
  return &checkpoint->entries[i].tensor;
}

const mgl_stored_tensor *mgl_checkpoint_raw(const mgl_checkpoint *checkpoint, const char *name) {
  const mgl_tensor_entry *entry = mgl_checkpoint_entry(checkpoint, name);
  return entry != NULL ? &entry->tensor : NULL;
}

const char *mgl_checkpoint_path_of(const mgl_checkpoint *checkpoint, const char *name) {
  const mgl_tensor_entry *entry = mgl_checkpoint_entry(checkpoint, name);
  return entry != NULL ? checkpoint->files[entry->file_idx].path : checkpoint->where;
}

int mgl_checkpoint_has(const mgl_checkpoint *checkpoint, const char *name) {
  return mgl_checkpoint_entry(checkpoint, name) != NULL;
}

size_t mgl_checkpoint_tensor_count(const mgl_checkpoint *checkpoint) {
  return checkpoint->entry_count;
}

uint64_t mgl_checkpoint_bytes(const mgl_checkpoint *checkpoint) {
  return checkpoint->bytes;
}

// --- quantised matrices --------------------------------------------------------------------------

mgl_status mgl_checkpoint_add_packed(mgl_checkpoint *checkpoint, struct mgl_packed_matrix *matrices,
                                     size_t count, mgl_error *err) {
  static const mgl_stored_dtype packed_dtype = {.name = "packed", .bits = 8, .supported = true};
  assert(checkpoint->packed == NULL);
  checkpoint->packed = matrices;
  void *entries = checkpoint->entries;
  MGL_TRY(mgl_grow(&entries, &checkpoint->entry_capacity, checkpoint->entry_count + count,
                   sizeof(mgl_tensor_entry), err));
  checkpoint->entries = entries;
  size_t sorted = checkpoint->entry_count;  // what follows is in no order yet
  for (size_t i = 0; i < count; i++) {
    const mgl_packed_matrix *matrix = &matrices[i];
    mgl_tensor_entry key = {.tensor = {.name = matrix->codes.name}};
    const mgl_tensor_entry *lead =
        bsearch(&key, checkpoint->entries, sorted, sizeof key, compare_names);
    size_t file_idx = lead->file_idx;
    key.tensor.name = matrix->name;
    mgl_tensor_entry *entry = bsearch(&key, checkpoint->entries, sorted, sizeof key, compare_names);
    if (entry == NULL) {
      entry = &checkpoint->entries[checkpoint->entry_count++];
    }
    *entry = (mgl_tensor_entry){.tensor = {.name = matrix->name,
                                           .dtype = matrix->form.dtype,
                                           .stored_dtype = matrix->codes.stored_dtype,
                                           .packed = matrix,
                                           .rank = matrix->is_vector ? 1 : 2,
                                           .dims = {matrix->rows, matrix->k}},
                                .stored = &packed_dtype,
                                .file_idx = file_idx};
  }
  return mgl_checkpoint_sort(checkpoint, err);
}

// --- parts of matrices ---------------------------------------------------------------------------

// `whole`, a matrix or matrices behind each other, with only the rows of `part`.
static mgl_status cut_rows(const mgl_checkpoint *checkpoint, const mgl_tensor_entry *whole,
                           const mgl_tensor_part *part, mgl_tensor_entry *out, mgl_error *err) {
  const mgl_stored_tensor *tensor = &whole->tensor;
  const bool stacked = tensor->rank == 3;
  const uint64_t rows =
      stacked && tensor->dims[0] != 0 && tensor->dims[1] == part->total_rows / tensor->dims[0]
          ? tensor->dims[0] * tensor->dims[1]
          : tensor->dims[0];
  *out = *whole;
  if ((tensor->rank != 2 && !stacked) || rows != part->total_rows) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: weight \"%.200s\": config.json expects a matrix of %" PRIu64
                         " rows, the file has rank %u and %" PRIu64,
                         checkpoint->files[whole->file_idx].path, part->matrix, part->total_rows,
                         tensor->rank, tensor->rank == 0 ? 0 : tensor->dims[0]);
  }
  if (tensor->packed != NULL) {
    out->tensor.first_row = tensor->first_row + part->first;
  } else if (whole->stored->supported) {  // else mgl_checkpoint_find refuses it anyway
    uint64_t row_bytes = tensor->bytes / part->total_rows;
    out->tensor.data = (const unsigned char *)tensor->data + part->first * row_bytes;
    out->tensor.bytes = part->rows * row_bytes;
  }
  out->tensor.rank = 2;
  out->tensor.dims[0] = part->rows;
  out->tensor.dims[1] = tensor->dims[tensor->rank - 1];
  return MGL_OK;
}

mgl_status mgl_checkpoint_add_parts(mgl_checkpoint *checkpoint, const mgl_tensor_part *parts,
                                    size_t count, mgl_error *err) {
  size_t name_bytes = 0;
  for (size_t i = 0; i < count; i++) {
    assert(parts[i].rows <= parts[i].total_rows &&
           parts[i].first <= parts[i].total_rows - parts[i].rows);
    name_bytes += strlen(parts[i].name) + 1;
  }
  assert(checkpoint->part_names == NULL);
  checkpoint->part_names = mgl_alloc(name_bytes);
  void *entries = checkpoint->entries;
  if (checkpoint->part_names == NULL ||
      mgl_grow(&entries, &checkpoint->entry_capacity, checkpoint->entry_count + count,
               sizeof(mgl_tensor_entry), err) != MGL_OK) {
    return mgl_checkpoint_no_memory(checkpoint->where, err);
  }
  checkpoint->entries = entries;
  char *name = checkpoint->part_names;
  for (size_t i = 0; i < count; i++) {
    const mgl_tensor_entry *whole = mgl_checkpoint_entry(checkpoint, parts[i].matrix);
    mgl_tensor_entry *part = &checkpoint->entries[checkpoint->entry_count + i];
    if (whole == NULL) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "tensor \"%.200s\" is missing from %s (%zu tensors)", parts[i].matrix,
                           checkpoint->where, checkpoint->entry_count);
    }
    MGL_TRY(cut_rows(checkpoint, whole, &parts[i], part, err));
    size_t bytes = strlen(parts[i].name) + 1;
    memcpy(name, parts[i].name, bytes);
    part->tensor.name = name;
    name += bytes;
  }
  checkpoint->entry_count += count;
  return mgl_checkpoint_sort(checkpoint, err);
}
