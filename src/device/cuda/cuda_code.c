#include "device/cuda/cuda_code.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "device/cuda/cuda_cache.h"

static mgl_status compile(const mgl_nvrtc *nvrtc, const char *name, const char *architecture,
                          const mgl_cuda_shape *shape, const char *kernel, mgl_cuda_code *out,
                          mgl_error *err) {
  mgl_text log = {0};
  mgl_status status =
      mgl_cuda_compile(nvrtc, name, architecture, shape, &out->cubin, &out->bytes, &log, err);
  if (status == MGL_OK) {
    (void)mgl_cuda_usage_find(log.data != NULL ? log.data : "", kernel, &out->usage);
  }
  mgl_text_free(&log);
  return status;
}

// That it cannot be stored costs the next start time, and this one nothing.
static void store(const char *folder, const mgl_cuda_cache_key *key, mgl_cuda_code *code) {
  mgl_error err = {0};
  if (folder == NULL) {
    (void)snprintf(code->note, sizeof code->note,
                   "device code is not cached: neither MEGALITH_CACHE nor HOME names a folder");
  } else if (mgl_cuda_cache_write(folder, key, code->cubin, code->bytes, &code->usage, &err) !=
             MGL_OK) {
    (void)snprintf(code->note, sizeof code->note,
                   "device code is not cached: %.380s; MEGALITH_CACHE names another folder",
                   err.text);
  }
}

mgl_status mgl_cuda_code_get(const mgl_cuda_device *device, const char *name,
                             const mgl_cuda_shape *shape, const char *kernel, mgl_cuda_code *out,
                             mgl_error *err) {
  mgl_nvrtc nvrtc;
  mgl_cuda_cache_key key = {0};
  char architecture[MGL_ARCHITECTURE_BYTES];
  char folder_path[MGL_CACHE_FOLDER_BYTES];
  const char *folder = device->cache_folder[0] != 0    ? device->cache_folder
                       : mgl_cache_folder(folder_path) ? folder_path
                                                       : NULL;
  *out = (mgl_cuda_code){0};
  mgl_cuda_architecture(device, architecture);
  MGL_TRY(mgl_cuda_source_hash(name, architecture, shape, &key.source, err));
  mgl_status status = mgl_nvrtc_open(&nvrtc, err);
  if (status == MGL_OK && nvrtc.version(&key.nvrtc_major, &key.nvrtc_minor) != 0) {
    status = mgl_error_set(err, MGL_ERR_UNSUPPORTED, "libnvrtc does not tell its version");
  }
  if (folder != NULL && mgl_cuda_cache_read(folder, &key, &out->cubin, &out->bytes, &out->usage)) {
    out->cached = true;
    return MGL_OK;
  }
  MGL_TRY(status);
  MGL_TRY(compile(&nvrtc, name, architecture, shape, kernel, out, err));
  store(folder, &key, out);
  return MGL_OK;
}

// --- several -------------------------------------------------------------------------------------

typedef struct getting {
  const mgl_cuda_device *device;
  const mgl_cuda_shape *shape;
  mgl_cuda_code_function *get;
  mgl_cuda_code_wish *wish;
  pthread_t thread;
  bool started;
  mgl_status status;
  mgl_error err;
} getting;

static void *get_one(void *context) {
  getting *g = context;
  g->status = g->get(g->device, g->wish->name, g->shape, g->wish->kernel, &g->wish->code, &g->err);
  return NULL;
}

mgl_status mgl_cuda_code_get_all(const mgl_cuda_device *device, const mgl_cuda_shape *shape,
                                 mgl_cuda_code_function *get, mgl_cuda_code_wish *wishes,
                                 size_t count, mgl_error *err) {
  getting all[MGL_CUDA_MAX_CODES];
  mgl_status status = MGL_OK;
  assert(count <= MGL_CUDA_MAX_CODES);
  for (size_t i = 0; i < count; i++) {
    all[i] = (getting){.device = device, .shape = shape, .get = get, .wish = &wishes[i]};
    wishes[i].code = (mgl_cuda_code){0};
    all[i].started = i > 0 && pthread_create(&all[i].thread, NULL, get_one, &all[i]) == 0;
  }
  for (size_t i = 0; i < count; i++) {  // here those that have no thread
    if (!all[i].started) {
      (void)get_one(&all[i]);
    }
  }
  for (size_t i = 0; i < count; i++) {
    if (all[i].started) {
      (void)pthread_join(all[i].thread, NULL);
    }
    if (all[i].status != MGL_OK && status == MGL_OK) {
      status = all[i].status;
      *err = all[i].err;
    }
  }
  for (size_t i = 0; i < count && status != MGL_OK; i++) {
    mgl_free(wishes[i].code.cubin);
    wishes[i].code = (mgl_cuda_code){0};
  }
  return status;
}
