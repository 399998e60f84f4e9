// Reading safetensors files: header checks, shards, lookup by name.
//
// Opening goes file by file: map it, parse its JSON header, check each tensor's own numbers, then
// check that the tensors together cover the data section exactly (sorted by offset, each must start
// where the one before ended, as the reference library demands). At the end all tensors are sorted
// by name. The JSON tree is dropped after its file; names live in one block per file. Rejected:
// reading tensors into memory (mapped pages can be dropped again by the kernel after packing).
#include "model/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "model/checkpoint_parts.h"

enum {
  LENGTH_BYTES = 8,                    // the header length in front of the header
  MAX_INDEX_BYTES = 32 * 1024 * 1024,  // 400 000 tensors of 80 bytes
  MAX_FILE_NAME_BYTES = 255,
};

// All types of the format. Sizes of unsupported ones are needed to check the offsets around them.
static const mgl_stored_dtype stored_dtypes[] = {
    {"F32", 32, true, MGL_DTYPE_F32},  // the three that can be looked up
    {"F16", 16, true, MGL_DTYPE_F16},           {"BF16", 16, true, MGL_DTYPE_BF16},
    {"BOOL", 8, false, MGL_DTYPE_COUNT},        {"U8", 8, false, MGL_DTYPE_COUNT},
    {"I8", 8, false, MGL_DTYPE_COUNT},          {"U16", 16, false, MGL_DTYPE_COUNT},
    {"I16", 16, false, MGL_DTYPE_COUNT},        {"U32", 32, false, MGL_DTYPE_COUNT},
    {"I32", 32, false, MGL_DTYPE_COUNT},        {"U64", 64, false, MGL_DTYPE_COUNT},
    {"I64", 64, false, MGL_DTYPE_COUNT},        {"F64", 64, false, MGL_DTYPE_COUNT},
    {"C64", 64, false, MGL_DTYPE_COUNT},        {"F8_E4M3", 8, false, MGL_DTYPE_COUNT},
    {"F8_E5M2", 8, false, MGL_DTYPE_COUNT},     {"F8_E8M0", 8, false, MGL_DTYPE_COUNT},
    {"F8_E4M3FNUZ", 8, false, MGL_DTYPE_COUNT}, {"F8_E5M2FNUZ", 8, false, MGL_DTYPE_COUNT},
    {"F6_E2M3", 6, false, MGL_DTYPE_COUNT},     {"F6_E3M2", 6, false, MGL_DTYPE_COUNT},
    {"F4", 4, false, MGL_DTYPE_COUNT},
};

struct mgl_shard_index {
  json_t *root;
  const json_t *weight_map;  // in root
  const char **shards;       // [shard_count] in root
  size_t shard_count;
};

// --- one header ----------------------------------------------------------------------------------

static mgl_status check_header_extent(const unsigned char *data, size_t bytes, const char *where,
                                      size_t *out_header_bytes, mgl_error *err) {
  uint64_t header_bytes = 0;
  if (bytes < LENGTH_BYTES) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: expected a safetensors file of at least %d bytes, found %zu; is the "
                         "download complete?",
                         where, LENGTH_BYTES, bytes);
  }
  for (int i = 0; i < LENGTH_BYTES; i++) {
    header_bytes |= (uint64_t)data[i] << (8 * i);
  }
  if (header_bytes > MGL_SAFETENSORS_MAX_HEADER_BYTES) {
    return mgl_error_set(err, MGL_ERR_LIMIT,
                         "%s: expected a header of at most %d bytes, its length field says %" PRIu64
                         "; is this a safetensors file?",
                         where, MGL_SAFETENSORS_MAX_HEADER_BYTES, header_bytes);
  }
  if (header_bytes > bytes - LENGTH_BYTES) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: expected a header of %" PRIu64
                         " bytes, the file has only %zu behind the length; is the download "
                         "complete?",
                         where, header_bytes, bytes - LENGTH_BYTES);
  }
  if (header_bytes == 0 || data[LENGTH_BYTES] != '{') {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: expected a header that starts with '{'", where);
  }
  *out_header_bytes = (size_t)header_bytes;
  return MGL_OK;
}

static mgl_status check_metadata(const json_t *metadata, const char *where, mgl_error *err) {
  bool fine = json_is_object(metadata);
  for (void *i = json_object_iter((json_t *)(uintptr_t)metadata); fine && i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)metadata, i)) {
    fine = json_is_string(json_object_iter_value(i));
  }
  if (!fine) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: \"__metadata__\": expected an object of strings",
                         where);
  }
  return MGL_OK;
}

// "[2, 3]" into dims and rank; *out_elements is their product.
static mgl_status parse_shape(const json_t *shape, mgl_stored_tensor *tensor,
                              uint64_t *out_elements, mgl_error *err) {
  if (!json_is_array(shape)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "\"shape\": expected a list of sizes");
  }
  size_t rank = json_array_size(shape);
  if (rank > MGL_TENSOR_MAX_RANK) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "\"shape\": expected at most %d dimensions, found %zu",
                         MGL_TENSOR_MAX_RANK, rank);
  }
  uint64_t elements = 1;
  for (size_t i = 0; i < rank; i++) {
    const json_t *dim = json_array_get(shape, i);
    if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "\"shape\": dimension %zu: expected an integer of at least 0", i);
    }
    tensor->dims[i] = (uint64_t)json_integer_value(dim);
    if (__builtin_mul_overflow(elements, tensor->dims[i], &elements)) {
      return mgl_error_set(err, MGL_ERR_FORMAT, "\"shape\": the product of the sizes overflows");
    }
  }
  tensor->rank = (uint32_t)rank;
  *out_elements = elements;
  return MGL_OK;
}

// "[begin, end]" within the data section.
static mgl_status parse_offsets(const json_t *offsets, uint64_t data_bytes, uint64_t *out_begin,
                                uint64_t *out_end, mgl_error *err) {
  const json_t *begin = json_array_get(offsets, 0);
  const json_t *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "\"data_offsets\": expected [begin, end]");
  }
  json_int_t first = json_integer_value(begin);
  json_int_t last = json_integer_value(end);
  if (first < 0 || last < first || (uint64_t)last > data_bytes) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "\"data_offsets\": expected 0 <= begin <= end <= %" PRIu64
                         " (the bytes of the file's data), found [%" JSON_INTEGER_FORMAT
                         ", %" JSON_INTEGER_FORMAT "]%s",
                         data_bytes, first, last,
                         first >= 0 && last >= first ? "; is the download complete?" : "");
  }
  *out_begin = (uint64_t)first;
  *out_end = (uint64_t)last;
  return MGL_OK;
}

static mgl_status parse_stored_dtype(const json_t *value, const mgl_stored_dtype **out,
                                     mgl_error *err) {
  const char *name = mgl_json_plain_string(value);
  if (name == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "\"dtype\": expected a string%s",
                         json_is_string(value) ? " without NUL bytes" : "");
  }
  for (size_t i = 0; i < sizeof stored_dtypes / sizeof stored_dtypes[0]; i++) {
    if (strcmp(name, stored_dtypes[i].name) == 0) {
      *out = &stored_dtypes[i];
      return MGL_OK;
    }
  }
  return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                       "\"dtype\": \"%.40s\" is not a safetensors type that is known", name);
}

// Fills all of *entry but its name and file. Messages lack the tensor's name.
static mgl_status parse_tensor(const json_t *value, const unsigned char *data, uint64_t data_bytes,
                               mgl_tensor_entry *entry, mgl_error *err) {
  uint64_t elements = 0;
  uint64_t bits = 0;
  uint64_t end = 0;
  if (!json_is_object(value)) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "expected an object with \"dtype\", \"shape\" and \"data_offsets\"");
  }
  MGL_TRY(parse_stored_dtype(json_object_get(value, "dtype"), &entry->stored, err));
  MGL_TRY(parse_shape(json_object_get(value, "shape"), &entry->tensor, &elements, err));
  MGL_TRY(
      parse_offsets(json_object_get(value, "data_offsets"), data_bytes, &entry->begin, &end, err));
  bool overflow = __builtin_mul_overflow(elements, (uint64_t)entry->stored->bits, &bits);
  if (overflow || bits % 8 != 0 || bits / 8 != end - entry->begin) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "expected %" PRIu64 " elements of %s, found %" PRIu64
                         " bytes between its \"data_offsets\"",
                         elements, entry->stored->name, end - entry->begin);
  }
  entry->tensor.dtype = entry->stored->dtype;
  entry->tensor.stored_dtype = entry->stored->name;
  entry->tensor.data = data + entry->begin;
  entry->tensor.bytes = end - entry->begin;
  return MGL_OK;
}

// --- one file ------------------------------------------------------------------------------------

// Makes room for the tensors of a header and for their names.
static mgl_status reserve_tensors(mgl_checkpoint *checkpoint, mgl_tensor_file *file,
                                  const json_t *header, mgl_error *err) {
  size_t name_bytes = 0;
  size_t total = checkpoint->entry_count + json_object_size(header);
  if (total > MGL_CHECKPOINT_MAX_TENSORS) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected at most %d tensors, found %zu",
                         file->path, MGL_CHECKPOINT_MAX_TENSORS, total);
  }
  for (void *i = json_object_iter((json_t *)(uintptr_t)header); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)header, i)) {
    const char *name = json_object_iter_key(i);
    size_t bytes = strlen(name);
    if (bytes == 0 || bytes > MGL_TENSOR_MAX_NAME_BYTES) {
      return mgl_error_set(
          err, MGL_ERR_LIMIT, "%s: tensor \"%.64s%s\": expected a name of 1 to %d bytes, found %zu",
          file->path, name, bytes > 64 ? "..." : "", MGL_TENSOR_MAX_NAME_BYTES, bytes);
    }
    name_bytes += bytes + 1;
  }
  file->names = mgl_alloc(name_bytes);
  if (file->names == NULL) {
    return mgl_checkpoint_no_memory(file->path, err);
  }
  void *entries = checkpoint->entries;
  mgl_status status =
      mgl_grow(&entries, &checkpoint->entry_capacity, total, sizeof(mgl_tensor_entry), err);
  checkpoint->entries = entries;
  return status;
}

static int compare_offsets(const void *left, const void *right) {
  const mgl_tensor_entry *a = left;
  const mgl_tensor_entry *b = right;
  if (a->begin != b->begin) {
    return a->begin < b->begin ? -1 : 1;
  }
  return (a->tensor.bytes > b->tensor.bytes) - (a->tensor.bytes < b->tensor.bytes);
}

// The tensors of one file must follow each other without a gap or an overlap, up to its last byte.
static mgl_status check_coverage(mgl_checkpoint *checkpoint, size_t first, uint64_t data_bytes,
                                 const char *where, mgl_error *err) {
  uint64_t covered = 0;
  size_t count = checkpoint->entry_count - first;
  mgl_tensor_entry *entries = count != 0 ? checkpoint->entries + first : NULL;
  if (count != 0) {
    qsort(entries, count, sizeof *entries, compare_offsets);
  }
  for (size_t i = 0; i < count; i++) {
    if (entries[i].begin != covered) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: tensor \"%s\": expected to begin at byte %" PRIu64
                           " of the data, found %" PRIu64 " (%s)",
                           where, entries[i].tensor.name, covered, entries[i].begin,
                           entries[i].begin < covered ? "tensors overlap" : "there is a hole");
    }
    covered += entries[i].tensor.bytes;
  }
  if (covered != data_bytes) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: the header describes %" PRIu64 " bytes of data, found %" PRIu64,
                         where, covered, data_bytes);
  }
  return MGL_OK;
}

// Adds the tensors of a parsed header. `data` is the data section.
static mgl_status add_tensors(mgl_checkpoint *checkpoint, size_t file_idx, const json_t *header,
                              const unsigned char *data, uint64_t data_bytes, mgl_error *err) {
  mgl_tensor_file *file = &checkpoint->files[file_idx];
  size_t first = checkpoint->entry_count;
  MGL_TRY(reserve_tensors(checkpoint, file, header, err));
  char *name = file->names;
  for (void *i = json_object_iter((json_t *)(uintptr_t)header); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)header, i)) {
    const char *key = json_object_iter_key(i);
    if (strcmp(key, "__metadata__") == 0) {
      MGL_TRY(check_metadata(json_object_iter_value(i), file->path, err));
      continue;
    }
    mgl_tensor_entry *entry = &checkpoint->entries[checkpoint->entry_count];
    *entry = (mgl_tensor_entry){.tensor = {.name = name}, .file_idx = file_idx};
    mgl_status status = parse_tensor(json_object_iter_value(i), data, data_bytes, entry, err);
    if (status != MGL_OK) {
      mgl_error_prefix(err, "%s: tensor \"%.200s\"", file->path, key);
      return status;
    }
    size_t name_bytes = strlen(key) + 1;
    memcpy(name, key, name_bytes);
    name += name_bytes;
    checkpoint->entry_count++;
  }
  checkpoint->bytes += data_bytes;
  return check_coverage(checkpoint, first, data_bytes, file->path, err);
}

// Adds one file's bytes, which stay where they are.
static mgl_status add_file_bytes(mgl_checkpoint *checkpoint, size_t file_idx,
                                 const unsigned char *bytes, size_t count, mgl_error *err) {
  const char *path = checkpoint->files[file_idx].path;
  size_t header_bytes = 0;
  json_t *header = NULL;
  MGL_TRY(check_header_extent(bytes, count, path, &header_bytes, err));
  mgl_alloc_budget_earn(header_bytes);
  MGL_TRY(mgl_json_parse((const char *)bytes + LENGTH_BYTES, header_bytes, path, &header, err));
  size_t data_start = LENGTH_BYTES + header_bytes;
  mgl_status status =
      add_tensors(checkpoint, file_idx, header, bytes + data_start, count - data_start, err);
  json_decref(header);
  return status;
}

// Appends and maps folder/name and adds its tensors.
static mgl_status add_file(mgl_checkpoint *checkpoint, const char *folder, const char *name,
                           mgl_error *err) {
  char *path = NULL;
  MGL_TRY(mgl_path_join(folder, name, &path, err));
  mgl_status status = mgl_checkpoint_append_file(checkpoint, path, err);
  mgl_free(path);
  if (status != MGL_OK) {
    return status;
  }
  size_t file_idx = checkpoint->file_count - 1;
  mgl_tensor_file *file = &checkpoint->files[file_idx];
  MGL_TRY(mgl_file_map_open(file->path, &file->map, err));
  return add_file_bytes(checkpoint, file_idx, file->map.data, file->map.bytes, err);
}

// --- all files together --------------------------------------------------------------------------

static int compare_strings(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

// A shard's name must be that of a file in the folder itself.
static mgl_status check_shard_name(const char *tensor, const json_t *value, const char *where,
                                   mgl_error *err) {
  const char *name = mgl_json_plain_string(value);
  if (name == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "%s: tensor \"%.200s\": expected the name of a file",
                         where, tensor);
  }
  if (name[0] == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
      strpbrk(name, "/\\") != NULL || strlen(name) > MAX_FILE_NAME_BYTES) {
    return mgl_error_set(err, MGL_ERR_FORMAT,
                         "%s: tensor \"%.200s\": expected the name of a file in the same folder, "
                         "found \"%.100s\"",
                         where, tensor, name);
  }
  return MGL_OK;
}

// The distinct names of its values, sorted, into index->shards.
static mgl_status list_shards(mgl_shard_index *index, const char *where, mgl_error *err) {
  const json_t *weight_map = index->weight_map;
  size_t count = 0;
  size_t distinct = 0;
  const char **shards = mgl_alloc(json_object_size(weight_map) * sizeof *shards);
  if (shards == NULL) {
    return mgl_checkpoint_no_memory(where, err);
  }
  index->shards = shards;
  for (void *i = json_object_iter((json_t *)(uintptr_t)weight_map); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)weight_map, i)) {
    MGL_TRY(check_shard_name(json_object_iter_key(i), json_object_iter_value(i), where, err));
    shards[count++] = json_string_value(json_object_iter_value(i));
  }
  qsort(shards, count, sizeof *shards, compare_strings);
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || strcmp(shards[distinct - 1], shards[i]) != 0) {
      shards[distinct++] = shards[i];
    }
  }
  if (distinct > MGL_SAFETENSORS_MAX_FILES) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "%s: expected at most %d files, found %zu", where,
                         MGL_SAFETENSORS_MAX_FILES, distinct);
  }
  index->shard_count = distinct;
  return MGL_OK;
}

mgl_status mgl_shard_index_parse(const char *json, size_t bytes, const char *where,
                                 mgl_shard_index **out, mgl_error *err) {
  *out = NULL;
  mgl_shard_index *index = mgl_alloc_zeroed(1, sizeof *index);
  if (index == NULL) {
    return mgl_checkpoint_no_memory(where, err);
  }
  mgl_status status = mgl_json_parse(json, bytes, where, &index->root, err);
  if (status == MGL_OK) {
    index->weight_map = json_object_get(index->root, "weight_map");
    if (json_object_size(index->weight_map) == 0) {
      status =
          mgl_error_set(err, MGL_ERR_FORMAT,
                        "%s: \"weight_map\": expected an object from tensor names to files", where);
    } else {
      status = list_shards(index, where, err);
    }
  }
  if (status != MGL_OK) {
    mgl_shard_index_close(index);
    return status;
  }
  *out = index;
  return MGL_OK;
}

void mgl_shard_index_close(mgl_shard_index *index) {
  if (index != NULL) {
    json_decref(index->root);
    mgl_free((void *)index->shards);
    mgl_free(index);
  }
}

size_t mgl_shard_index_count(const mgl_shard_index *index) {
  return index->shard_count;
}

const char *mgl_shard_index_name(const mgl_shard_index *index, size_t shard) {
  return index->shards[shard];
}

// Each tensor of the weight_map must be in the file that the map says.
static mgl_status check_weight_map(const mgl_checkpoint *checkpoint, const json_t *weight_map,
                                   const char *where, mgl_error *err) {
  for (void *i = json_object_iter((json_t *)(uintptr_t)weight_map); i != NULL;
       i = json_object_iter_next((json_t *)(uintptr_t)weight_map, i)) {
    const char *name = json_object_iter_key(i);
    const char *shard = json_string_value(json_object_iter_value(i));
    const mgl_tensor_entry *entry = mgl_checkpoint_entry(checkpoint, name);
    const char *path = entry != NULL ? checkpoint->files[entry->file_idx].path : NULL;
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (slash == NULL || strcmp(slash + 1, shard) != 0) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "%s: tensor \"%.200s\": expected it in %.200s, found it in %s", where,
                           name, shard, slash != NULL ? slash + 1 : "no file");
    }
  }
  return MGL_OK;
}

static mgl_status open_shards(mgl_checkpoint *checkpoint, const char *folder,
                              const char *index_path, mgl_error *err) {
  mgl_shard_index *index = NULL;
  char *json = NULL;
  size_t bytes = 0;
  MGL_TRY(mgl_file_read(index_path, MAX_INDEX_BYTES, &json, &bytes, err));
  mgl_status status = mgl_shard_index_parse(json, bytes, index_path, &index, err);
  mgl_free(json);
  for (size_t i = 0; status == MGL_OK && i < index->shard_count; i++) {
    status = add_file(checkpoint, folder, index->shards[i], err);
  }
  if (status == MGL_OK) {
    status = mgl_checkpoint_sort(checkpoint, err);
  }
  if (status == MGL_OK) {
    status = check_weight_map(checkpoint, index->weight_map, index_path, err);
  }
  mgl_shard_index_close(index);
  return status;
}

// The name of the only *.safetensors file of a folder, in fresh memory.
static mgl_status find_only_file(const char *folder, char **out, mgl_error *err) {
  static const char suffix[] = ".safetensors";
  mgl_status status = MGL_OK;
  *out = NULL;
  DIR *listing = opendir(folder);
  if (listing == NULL) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot list %s: %s", folder, strerror(errno));
  }
  for (const struct dirent *item = readdir(listing); item != NULL; item = readdir(listing)) {
    size_t bytes = strlen(item->d_name);
    size_t suffix_bytes = sizeof suffix - 1;
    if (bytes <= suffix_bytes || strcmp(item->d_name + bytes - suffix_bytes, suffix) != 0) {
      continue;
    }
    if (*out != NULL) {
      status = mgl_error_set(err, MGL_ERR_FORMAT,
                             "%s: expected one safetensors file or model.safetensors.index.json, "
                             "found %.255s and %.255s",
                             folder, *out, item->d_name);
      goto fail;
    }
    *out = mgl_strdup(item->d_name);
    if (*out == NULL) {
      status = mgl_checkpoint_no_memory(folder, err);
      goto fail;
    }
  }
  if (*out == NULL) {
    status = mgl_error_set(err, MGL_ERR_IO,
                           "%s: found no weights: expected model.safetensors, or "
                           "model.safetensors.index.json with its files",
                           folder);
    goto fail;
  }
  (void)closedir(listing);
  return MGL_OK;
fail:
  (void)closedir(listing);
  mgl_free(*out);
  *out = NULL;
  return status;
}

static mgl_status path_in(const char *folder, const char *name, char **out, bool *out_exists,
                          mgl_error *err) {
  MGL_TRY(mgl_path_join(folder, name, out, err));
  mgl_file_kind kind = MGL_FILE_ABSENT;
  mgl_status status = mgl_file_find(*out, &kind, err);
  *out_exists = kind != MGL_FILE_ABSENT;
  return status;
}

static mgl_status open_folder(mgl_checkpoint *checkpoint, const char *folder, mgl_error *err) {
  char *single_path = NULL;
  char *index_path = NULL;
  char *only_name = NULL;
  bool has_single = false;
  bool has_index = false;
  mgl_status status = path_in(folder, "model.safetensors", &single_path, &has_single, err);
  if (status == MGL_OK) {
    status = path_in(folder, "model.safetensors.index.json", &index_path, &has_index, err);
  }
  if (status != MGL_OK) {
    goto fail;
  }
  if (has_single) {
    status = add_file(checkpoint, folder, "model.safetensors", err);
  } else if (has_index) {
    status = open_shards(checkpoint, folder, index_path, err);
    goto fail;
  } else {
    status = find_only_file(folder, &only_name, err);
    if (status == MGL_OK) {
      status = add_file(checkpoint, folder, only_name, err);
    }
  }
  if (status == MGL_OK) {
    status = mgl_checkpoint_sort(checkpoint, err);
  }
fail:  // also the way out of success: all of this is scratch
  mgl_free(only_name);
  mgl_free(index_path);
  mgl_free(single_path);
  return status;
}

// --- public functions ----------------------------------------------------------------------------

mgl_status mgl_checkpoint_open(const char *folder, mgl_checkpoint **out, mgl_error *err) {
  mgl_checkpoint *checkpoint = NULL;
  *out = NULL;
  MGL_TRY(mgl_checkpoint_create(folder, &checkpoint, err));
  mgl_status status = open_folder(checkpoint, folder, err);
  if (status != MGL_OK) {
    mgl_checkpoint_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return MGL_OK;
}

mgl_status mgl_checkpoint_parse(const void *data, size_t bytes, const char *where,
                                mgl_checkpoint **out, mgl_error *err) {
  mgl_checkpoint *checkpoint = NULL;
  *out = NULL;
  MGL_TRY(mgl_checkpoint_create(where, &checkpoint, err));
  mgl_status status = mgl_checkpoint_append_file(checkpoint, where, err);
  if (status == MGL_OK) {
    status = add_file_bytes(checkpoint, 0, data, bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_checkpoint_sort(checkpoint, err);
  }
  if (status != MGL_OK) {
    mgl_checkpoint_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return MGL_OK;
}
