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

enum { PATH_BYTES = MGL_CACHE_FOLDER_BYTES + 128, KEY_BYTES = 32 };

static void path_of(const char *folder, const char *about, char out[PATH_BYTES]) {
  char hash[MGL_HASH_TEXT_BYTES];
  mgl_hash_text(mgl_hash_bytes(about, strlen(about)), hash);
  (void)snprintf(out, PATH_BYTES, "%.4095s/cpu-%s.json", folder, hash);
}

// --- reading -------------------------------------------------------------------------------------

static const char *key_of(const char *prefix, const char *name, char out[KEY_BYTES]) {
  (void)snprintf(out, KEY_BYTES, "%s_%s", prefix, name);
  return out;
}

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

static mgl_status read_fetch(mgl_json_object o, const char *key, mgl_fetch *out, mgl_error *err) {
  uint32_t number = 0;
  MGL_TRY(read_number(o, key, MGL_FETCH_COUNT - 1, &number, err));
  *out = (mgl_fetch)number;
  return MGL_OK;
}

// Of keys that begin so.
static mgl_status read_single(mgl_json_object o, const char *prefix, mgl_single_way *out,
                              mgl_error *err) {
  char key[KEY_BYTES];
  MGL_TRY(read_flag(o, key_of(prefix, "in_turn", key), &out->in_turn, err));
  MGL_TRY(read_fetch(o, key_of(prefix, "fetch", key), &out->fetch, err));
  return read_number(o, key_of(prefix, "ahead", key), MGL_LINEAR_MOST_AHEAD, &out->ahead, err);
}

static mgl_status read_way(mgl_json_object o, mgl_linear_way *out, mgl_error *err) {
  MGL_TRY(read_single(o, "one", &out->one, err));
  MGL_TRY(read_single(o, "long", &out->one_long, err));
  MGL_TRY(read_number(o, "long_k", UINT32_MAX, &out->long_k, err));
  MGL_TRY(read_number(o, "few_ahead", MGL_LINEAR_MOST_BLOCKS, &out->few_ahead, err));
  MGL_TRY(read_number(o, "pack_tokens", UINT32_MAX, &out->pack_tokens, err));
  MGL_TRY(read_flag(o, "split", &out->split, err));
  MGL_TRY(read_flag(o, "many_fetch", &out->many_fetch, err));
  MGL_TRY(read_number(o, "some_rows", UINT32_MAX, &out->some_rows, err));
  MGL_TRY(read_number(o, "many_rows", UINT32_MAX, &out->many_rows, err));
  MGL_TRY(read_number(o, "short_tokens", MGL_LINEAR_MOST_SHORT, &out->short_tokens, err));
  MGL_TRY(read_number(o, "short_ahead", MGL_LINEAR_MOST_AHEAD, &out->short_ahead, err));
  MGL_TRY(read_fetch(o, "codes_fetch", &out->codes_fetch, err));
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
  const mgl_single_way *one = &way->one, *longs = &way->one_long;
  json_t *value = json_pack(
      "{s:s, s:i, s:i, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:i}",
      "about", about, "one_in_turn", one->in_turn, "one_fetch", (int)one->fetch, "one_ahead",
      (json_int_t)one->ahead, "long_in_turn", longs->in_turn, "long_fetch", (int)longs->fetch,
      "long_ahead", (json_int_t)longs->ahead, "long_k", (json_int_t)way->long_k, "few_ahead",
      (json_int_t)way->few_ahead, "pack_tokens", (json_int_t)way->pack_tokens, "split", way->split,
      "many_fetch", way->many_fetch, "some_rows", (json_int_t)way->some_rows, "many_rows",
      (json_int_t)way->many_rows, "short_tokens", (json_int_t)way->short_tokens, "short_ahead",
      (json_int_t)way->short_ahead, "codes_fetch", (int)way->codes_fetch);
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

static void append_single(const mgl_single_way *way, mgl_text *out) {
  mgl_text_format(out, "rows %s", way->in_turn ? "in turn" : "side by side");
  if (way->fetch != MGL_FETCH_NONE) {
    mgl_text_format(out, ", %" PRIu32 " bytes ahead into L%d", way->ahead, (int)way->fetch);
  }
}

void mgl_way_append(const mgl_linear_way *way, mgl_text *out) {
  if (way->short_tokens > 0) {
    mgl_text_format(out, "up to %" PRIu32 " tokens: short rows", way->short_tokens);
    if (way->short_ahead > 0) {
      mgl_text_format(out, ", of 1 %" PRIu32 " bytes ahead into L1", way->short_ahead);
    }
    mgl_text_append_string(out, "; else ");
  }
  mgl_text_append_string(out, "1 token: ");
  append_single(&way->one, out);
  if (way->long_k > 0) {
    mgl_text_format(out, "; from %" PRIu32 " elements on ", way->long_k);
    append_single(&way->one_long, out);
  }
  mgl_text_format(out, "; few: %" PRIu32 " blocks ahead; packed from %" PRIu32 " on%s%s, ",
                  way->few_ahead, way->pack_tokens, way->split ? ", split" : "",
                  way->many_fetch ? ", fetched" : "");
  append_rows(way->some_rows, out);
  mgl_text_format(out, ", above %d ", MGL_LINEAR_SOME);
  append_rows(way->many_rows, out);
  mgl_text_format(out, "; codes into L%d", (int)way->codes_fetch);
}
