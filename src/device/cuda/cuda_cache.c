#include "device/cuda/cuda_cache.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/file.h"
#include "base/new_file.h"

enum { PATH_BYTES = MGL_CACHE_FOLDER_BYTES + 128, NAME_BYTES = MGL_CUDA_CACHE_NAME_BYTES };

// A file begins with this header; the cubin follows, and nothing else.
typedef struct header {
  char magic[8];
  uint32_t version;
  int32_t major, minor;
  mgl_cuda_usage usage;
  uint32_t padding;
  mgl_hash source;
  uint64_t bytes;     // of the cubin
  mgl_hash checksum;  // of the header with zeros here, and the cubin's hash behind it
} header;

static const char magic[8] = {'M', 'G', 'L', 'C', 'U', 'B', 'I', 'N'};
enum { VERSION = 1 };

_Static_assert(sizeof(header) == 80, "no padding that a checksum would read");

void mgl_cuda_cache_name(const mgl_cuda_cache_key *key, char out[MGL_CUDA_CACHE_NAME_BYTES]) {
  char hash[MGL_HASH_TEXT_BYTES];
  mgl_hash_text(key->source, hash);
  (void)snprintf(out, NAME_BYTES, "%s-%.16s%d.%d.cubin", hash, key->compiler, key->major,
                 key->minor);
}

static mgl_hash checksum_of(const header *h, const void *cubin) {
  struct {
    header head;
    mgl_hash cubin;
  } both = {*h, mgl_hash_bytes(cubin, (size_t)h->bytes)};
  both.head.checksum = (mgl_hash){0, 0};
  return mgl_hash_bytes(&both, sizeof both);
}

static bool same(mgl_hash a, mgl_hash b) {
  return a.low == b.low && a.high == b.high;
}

// --- reading -------------------------------------------------------------------------------------

static bool is_whole(const header *h, const mgl_cuda_cache_key *key, const char *data,
                     size_t bytes) {
  bool any_version = key->major == 0;
  return memcmp(h->magic, magic, sizeof magic) == 0 && h->version == VERSION &&
         same(h->source, key->source) &&
         (any_version || (h->major == key->major && h->minor == key->minor)) &&
         h->bytes == bytes - sizeof *h && h->bytes > 0 &&
         same(h->checksum, checksum_of(h, data + sizeof *h));
}

// True: a whole file. One that is not is removed; one that cannot be read is left alone.
static bool read_file(const char *path, const mgl_cuda_cache_key *key, void **out_cubin,
                      size_t *out_bytes, mgl_cuda_usage *usage) {
  char *data = NULL;
  size_t bytes = 0;
  header h;
  if (mgl_file_read(path, MGL_CUDA_CACHE_MAX_BYTES, &data, &bytes, NULL) != MGL_OK) {
    return false;
  }
  if (bytes >= sizeof h) {
    memcpy(&h, data, sizeof h);
  }
  if (bytes < sizeof h || !is_whole(&h, key, data, bytes)) {
    (void)unlink(path);
    mgl_free(data);
    return false;
  }
  memmove(data, data + sizeof h, (size_t)h.bytes);
  *out_cubin = data;
  *out_bytes = (size_t)h.bytes;
  *usage = h.usage;
  return true;
}

// Any version's code for these sources.
static bool read_any(const char *folder, const mgl_cuda_cache_key *key, void **out_cubin,
                     size_t *out_bytes, mgl_cuda_usage *usage) {
  char path[PATH_BYTES];
  char hash[MGL_HASH_TEXT_BYTES];
  char prefix[NAME_BYTES];
  bool found = false;
  DIR *entries = opendir(folder);
  mgl_hash_text(key->source, hash);
  (void)snprintf(prefix, sizeof prefix, "%s-%.16s", hash, key->compiler);
  for (struct dirent *entry = NULL;
       !found && entries != NULL && (entry = readdir(entries)) != NULL;) {
    size_t bytes = strlen(entry->d_name);
    if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && bytes < NAME_BYTES && bytes > 6 &&
        strcmp(entry->d_name + bytes - 6, ".cubin") == 0) {
      (void)snprintf(path, sizeof path, "%.4095s/%.95s", folder, entry->d_name);
      found = read_file(path, key, out_cubin, out_bytes, usage);
    }
  }
  if (entries != NULL) {
    (void)closedir(entries);
  }
  return found;
}

bool mgl_cuda_cache_read(const char *folder, const mgl_cuda_cache_key *key, void **out_cubin,
                         size_t *out_bytes, mgl_cuda_usage *usage) {
  char path[PATH_BYTES];
  char name[NAME_BYTES];
  mgl_new_file_sweep(folder);
  if (key->major == 0) {
    return read_any(folder, key, out_cubin, out_bytes, usage);
  }
  mgl_cuda_cache_name(key, name);
  (void)snprintf(path, sizeof path, "%.4095s/%s", folder, name);
  return read_file(path, key, out_cubin, out_bytes, usage);
}

// --- writing -------------------------------------------------------------------------------------

mgl_status mgl_cuda_cache_write(const char *folder, const mgl_cuda_cache_key *key,
                                const void *cubin, size_t bytes, const mgl_cuda_usage *usage,
                                mgl_error *err) {
  char name[NAME_BYTES];
  char path[PATH_BYTES];
  mgl_new_file file = {.fd = -1};
  header h = {.version = VERSION,
              .major = key->major,
              .minor = key->minor,
              .usage = *usage,
              .source = key->source,
              .bytes = bytes};
  memcpy(h.magic, magic, sizeof magic);
  h.checksum = checksum_of(&h, cubin);
  mgl_cuda_cache_name(key, name);
  (void)snprintf(path, sizeof path, "%.4095s/%s", folder, name);
  MGL_TRY(mgl_cache_folder_make(folder, err));
  mgl_status status = mgl_new_file_create(path, &file, err);
  if (status == MGL_OK) {
    status = mgl_new_file_write(&file, &h, sizeof h, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_write(&file, cubin, bytes, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_commit(&file, err);
  }
  mgl_new_file_close(&file);
  return status;
}
