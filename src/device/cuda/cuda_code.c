#include "device/cuda/cuda_code.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/clock.h"
#include "base/file_lock.h"
#include "device/cuda/cuda_compiler.h"
#include "device/debug_dump.h"

enum { POLL_MS = 20 };

// Where code is kept; NULL: nowhere.
static const char *folder_of(const mgl_cuda_device *device, char path[MGL_CACHE_FOLDER_BYTES]) {
  return device->cache_folder[0] != 0 ? device->cache_folder : mgl_cache_folder(path) ? path : NULL;
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

// --- one compilation over several processes ------------------------------------------------------

static uint64_t now_ms(void) {
  return mgl_clock_ns() / 1000000;
}

// Waits until the lock is ours, true, or another process that had it has left the code in the
// cache. Held or not is in lock->fd: there may be no lock, or its holder takes too long.
static bool wait_for_turn(const mgl_cuda_compiler *compiler, const char *folder,
                          const mgl_cuda_cache_key *key, mgl_file_lock *lock, mgl_cuda_code *out) {
  char path[MGL_FILE_LOCK_PATH_BYTES];
  char hash[MGL_HASH_TEXT_BYTES];
  const uint64_t begin = now_ms();
  mgl_hash_text(key->source, hash);
  (void)snprintf(path, sizeof path, "%.4095s/%s-%.16s.lock", folder, hash, compiler->name);
  (void)mgl_cache_folder_make(folder, NULL);  // if it cannot be made, `store` says so
  for (;;) {
    mgl_lock_result result = mgl_file_lock_try(path, lock);
    // Also behind a lock that was taken: its last holder may have been done just then.
    if (result != MGL_LOCK_NONE && compiler->load(folder, key, out)) {
      return false;
    }
    if (result != MGL_LOCK_BUSY) {
      return true;
    }
    if (now_ms() - begin >= compiler->wait_ms) {
      (void)snprintf(out->note, sizeof out->note,
                     "device code is compiled here, too: another process holds %.300s for more "
                     "than %u s",
                     path, compiler->wait_ms / 1000);
      return true;
    }
    const struct timespec pause = {0, POLL_MS * 1000000};
    (void)nanosleep(&pause, NULL);
  }
}

static mgl_status compile_once(const mgl_cuda_compiler *compiler, const mgl_cuda_job *job,
                               const char *folder, const mgl_cuda_cache_key *key,
                               mgl_cuda_code *out, mgl_error *err) {
  mgl_file_lock lock = {.fd = -1};
  mgl_status status = MGL_OK;
  if (folder != NULL && !wait_for_turn(compiler, folder, key, &lock, out)) {
    out->cached = true;
  } else {
    status = compiler->compile(job, out, err);
    if (status == MGL_OK) {
      store(folder, key, out);
    }
  }
  if (lock.fd >= 0) {
    mgl_file_lock_release(&lock);
  }
  return status;
}

// What the compiler is given, the name of the cubin, and what came of it, as "SOURCE.options.txt":
// written before the compiler may fail, and again behind it.
static mgl_status dump(const mgl_cuda_device *device, const mgl_cuda_job *job,
                       const mgl_cuda_cache_key *key, const char *code, mgl_error *err) {
  char options[MGL_CUDA_MAX_OPTIONS][MGL_CUDA_OPTION_BYTES];
  char name[192], cubin[MGL_CUDA_CACHE_NAME_BYTES];
  const char *slash = strrchr(job->name, '/');
  const mgl_cuda_source *custom = job->shape->custom;
  mgl_text text = {0};
  if (device->dump_folder[0] == 0) {
    return MGL_OK;
  }
  mgl_cuda_cache_name(key, cubin);
  mgl_text_format(&text, "source %s\ncompiler %s %d.%d\ncode %s\ncubin %s\n", job->name,
                  key->compiler, key->major, key->minor, code, cubin);
  int count = mgl_cuda_options_make(job->architecture, job->shape, options);
  for (int i = 0; i < count; i++) {
    mgl_text_format(&text, "%s\n", options[i]);
  }
  (void)snprintf(name, sizeof name, "%.80s%s%.64s.options.txt",
                 slash != NULL ? slash + 1 : job->name, custom != NULL ? "." : "",
                 custom != NULL ? custom->name : "");
  mgl_status status = mgl_debug_dump_file(device->dump_folder, name, &text, err);
  mgl_text_free(&text);
  return status;
}

mgl_status mgl_cuda_code_get(const mgl_cuda_device *device, const char *name,
                             const mgl_cuda_shape *shape, const char *kernel, mgl_cuda_code *out,
                             mgl_error *err) {
  const mgl_cuda_compiler *compiler =
      device->compiler != NULL ? device->compiler : &mgl_cuda_compiler_nvrtc;
  mgl_cuda_cache_key key = {.compiler = compiler->name};
  char architecture[MGL_ARCHITECTURE_BYTES];
  char path[MGL_CACHE_FOLDER_BYTES];
  const char *folder = folder_of(device, path);
  const mgl_cuda_job job = {
      .name = name, .architecture = architecture, .shape = shape, .kernel = kernel};
  *out = (mgl_cuda_code){0};
  mgl_cuda_architecture(device, architecture);
  MGL_TRY(compiler->compute_hash(&job, &key.source, err));
  mgl_status status = compiler->initialise_cache(folder, &key, err);
  MGL_TRY(dump(device, &job, &key, "missing", err));
  if (folder != NULL && compiler->load(folder, &key, out)) {
    out->cached = true;
  } else {
    MGL_TRY(status);
    MGL_TRY(compile_once(compiler, &job, folder, &key, out, err));
  }
  status = dump(device, &job, &key, out->cached ? "cached" : "compiled", err);
  if (status != MGL_OK) {
    mgl_free(out->cubin);
    *out = (mgl_cuda_code){0};
  }
  return status;
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
