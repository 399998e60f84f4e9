#include "device/cuda/cuda_compiler.h"

enum { WAIT_MS = 300 * 1000 };  // the largest source takes half a minute, several at once minutes

const mgl_cuda_compiler *mgl_cuda_compiler_of(mgl_device_compiler compiler) {
  static const mgl_cuda_compiler *const all[MGL_COMPILER_COUNT] = {
      [MGL_COMPILER_NVRTC] = &mgl_cuda_compiler_nvrtc,
      [MGL_COMPILER_NVCC] = &mgl_cuda_compiler_nvcc};
  return all[compiler];
}

bool mgl_cuda_compiler_load(const char *folder, const mgl_cuda_cache_key *key, mgl_cuda_code *out) {
  return mgl_cuda_cache_read(folder, key, &out->cubin, &out->bytes, &out->usage);
}

// --- NVRTC ---------------------------------------------------------------------------------------

static mgl_status nvrtc_initialise_cache(const char *folder, mgl_cuda_cache_key *key,
                                         mgl_error *err) {
  mgl_nvrtc nvrtc;
  (void)folder;
  MGL_TRY(mgl_nvrtc_open(&nvrtc, err));
  if (nvrtc.version(&key->major, &key->minor) != 0) {
    key->major = key->minor = 0;
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "libnvrtc does not tell its version");
  }
  return MGL_OK;
}

static mgl_status nvrtc_compute_hash(const mgl_cuda_job *job, mgl_hash *out, mgl_error *err) {
  return mgl_cuda_source_hash(job->name, job->architecture, job->shape, out, err);
}

static mgl_status nvrtc_compile(const mgl_cuda_job *job, mgl_cuda_code *out, mgl_error *err) {
  mgl_nvrtc nvrtc;
  mgl_text log = {0};
  MGL_TRY(mgl_nvrtc_open(&nvrtc, err));
  mgl_status status = mgl_cuda_compile(&nvrtc, job->name, job->architecture, job->shape,
                                       &out->cubin, &out->bytes, &log, err);
  if (status == MGL_OK) {
    (void)mgl_cuda_usage_find(log.data != NULL ? log.data : "", job->kernel, &out->usage);
  }
  mgl_text_free(&log);
  return status;
}

const mgl_cuda_compiler mgl_cuda_compiler_nvrtc = {.name = "nvrtc",
                                                   .wait_ms = WAIT_MS,
                                                   .initialise_cache = nvrtc_initialise_cache,
                                                   .compute_hash = nvrtc_compute_hash,
                                                   .compile = nvrtc_compile,
                                                   .load = mgl_cuda_compiler_load};
