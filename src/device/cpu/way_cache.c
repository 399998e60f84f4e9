#include "device/cpu/way_cache.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/new_file.h"

enum { PATH_BYTES = MGL_CACHE_FOLDER_BYTES + 128 };

static void path_of(const char *folder, const char *about, char out[PATH_BYTES]) {
  char hash[MGL_HASH_TEXT_BYTES];
  mgl_hash_text(mgl_hash_bytes(about, strlen(about)), hash);
  (void)snprintf(out, PATH_BYTES, "%.4095s/cpu-%s.json", folder, hash);
}

// --- reading -------------------------------------------------------------------------------------

// Required, and within what kernels take.
static mgl_status read_number(mgl_json_object o, const char *key, uint64_t most, uint32_t *out,
                              mgl_error *err) {
  uint64_t number = 0;
  MGL_TRY(mgl_json_u64(o, key, 0, most, &number, err));
  *out = (uint32_t)number;
  return MGL_OK;
}

static mgl_status read_flag(mgl_json_object o, const char *key, bool *out, mgl_error *err) {
  uint32_t number = 0;
  MGL_TRY(read_number(o, key, 1, &number, err));
  *out = number == 1;
  return MGL_OK;
}

static mgl_status read_way(mgl_json_object o, mgl_linear_way *out, mgl_error *err) {
  uint32_t fetch = 0;
  MGL_TRY(read_flag(o, "one_in_turn", &out->one_in_turn, err));
  MGL_TRY(read_number(o, "one_fetch", MGL_FETCH_COUNT - 1, &fetch, err));
  out->one_fetch = (mgl_fetch)fetch;
  MGL_TRY(read_number(o, "one_ahead", MGL_LINEAR_MOST_AHEAD, &out->one_ahead, err));
  MGL_TRY(read_number(o, "few_ahead", MGL_LINEAR_MOST_BLOCKS, &out->few_ahead, err));
  MGL_TRY(read_number(o, "pack_tokens", UINT32_MAX, &out->pack_tokens, err));
  MGL_TRY(read_flag(o, "split", &out->split, err));
  MGL_TRY(read_flag(o, "many_fetch", &out->many_fetch, err));
  MGL_TRY(read_number(o, "some_rows", UINT32_MAX, &out->some_rows, err));
  MGL_TRY(read_number(o, "many_rows", UINT32_MAX, &out->many_rows, err));
  return out->pack_tokens >= MGL_LINEAR_LEAST_PACKED
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_FORMAT, "pack_tokens: too few");
}

// The file's value, for json_decref, and its line of what it depends on; NULL: no whole file.
static json_t *read_file(const char *path, const char **about, mgl_linear_way *out) {
  json_t *value = NULL;
  mgl_error ignored = {0};
  *out = (mgl_linear_way){0};
  *about = NULL;
  if (mgl_json_read(path, MGL_WAY_FILE_BYTES, &value, &ignored) != MGL_OK) {
    return NULL;
  }
  mgl_json_object o = {value, path};
  if (!json_is_object(value) || mgl_json_opt_string(o, "about", about, &ignored) != MGL_OK ||
      *about == NULL || read_way(o, out, &ignored) != MGL_OK) {
    json_decref(value);
    return NULL;
  }
  return value;
}

bool mgl_way_cache_read(const char *folder, const char *about, mgl_linear_way *out) {
  char path[PATH_BYTES];
  const char *found = NULL;
  mgl_linear_way way;
  path_of(folder, about, path);
  json_t *value = read_file(path, &found, &way);
  bool same = value != NULL && strcmp(found, about) == 0;
  if (same) {
    *out = way;
  }
  json_decref(value);
  return same;
}

void mgl_way_cache_list(const char *folder, mgl_way_found *found, void *context) {
  DIR *entries = opendir(folder);
  for (struct dirent *entry = NULL; entries != NULL && (entry = readdir(entries)) != NULL;) {
    size_t bytes = strlen(entry->d_name);
    if (strncmp(entry->d_name, "cpu-", 4) != 0 || bytes < 5 || bytes > 100 ||
        strcmp(entry->d_name + bytes - 5, ".json") != 0) {
      continue;
    }
    char path[PATH_BYTES];
    const char *about = NULL;
    mgl_linear_way way;
    (void)snprintf(path, sizeof path, "%.4095s/%.100s", folder, entry->d_name);
    json_t *value = read_file(path, &about, &way);
    if (value != NULL) {
      found(context, about, &way);
    }
    json_decref(value);
  }
  if (entries != NULL) {
    (void)closedir(entries);
  }
}

// --- writing -------------------------------------------------------------------------------------

mgl_status mgl_way_cache_write(const char *folder, const char *about, const mgl_linear_way *way,
                               mgl_error *err) {
  mgl_new_file file = {.fd = -1};
  char path[PATH_BYTES];
  path_of(folder, about, path);
  json_t *value =
      json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:i, s:i, s:I, s:I}", "about", about, "one_in_turn",
                way->one_in_turn, "one_fetch", (int)way->one_fetch, "one_ahead",
                (json_int_t)way->one_ahead, "few_ahead", (json_int_t)way->few_ahead, "pack_tokens",
                (json_int_t)way->pack_tokens, "split", way->split, "many_fetch", way->many_fetch,
                "some_rows", (json_int_t)way->some_rows, "many_rows", (json_int_t)way->many_rows);
  char *text = value == NULL ? NULL : json_dumps(value, JSON_INDENT(1));
  json_decref(value);
  mgl_status status =
      text == NULL ? mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %s", path) : MGL_OK;
  if (status == MGL_OK) {
    status = mgl_cache_folder_make(folder, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_create(path, &file, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_write(&file, text, strlen(text), err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_commit(&file, err);
  }
  mgl_new_file_close(&file);
  mgl_free(text);
  return status;
}

// --- words ---------------------------------------------------------------------------------------

static void append_rows(uint32_t rows, mgl_text *out) {
  if (rows == 0) {
    mgl_text_append_string(out, "panels of 256 KiB");
  } else {
    mgl_text_format(out, "panels of %" PRIu32 " rows", rows);
  }
}

void mgl_way_append(const mgl_linear_way *way, mgl_text *out) {
  mgl_text_format(out, "1 token: rows %s", way->one_in_turn ? "in turn" : "side by side");
  if (way->one_fetch != MGL_FETCH_NONE) {
    mgl_text_format(out, ", %" PRIu32 " bytes ahead into L%d", way->one_ahead, (int)way->one_fetch);
  }
  mgl_text_format(out, "; few: %" PRIu32 " blocks ahead; packed from %" PRIu32 " on%s%s, ",
                  way->few_ahead, way->pack_tokens, way->split ? ", split" : "",
                  way->many_fetch ? ", fetched" : "");
  append_rows(way->some_rows, out);
  mgl_text_format(out, ", above %d ", MGL_LINEAR_SOME);
  append_rows(way->many_rows, out);
}
