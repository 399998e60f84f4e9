#include "runtime/cuda_code.h"

#include <stdio.h>
#include <string.h>

#include "runtime/cuda_cache.h"

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
  char folder_path[MGL_CUDA_CACHE_PATH_BYTES];
  const char *folder = mgl_cuda_cache_folder(folder_path) ? folder_path : NULL;
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
