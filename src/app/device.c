#include "app/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cache_folder.h"
#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_jit.h"

mgl_status mgl_device_wanted(const mgl_arguments *arguments, mgl_device_choice *out,
                             mgl_error *err) {
  const char *named = mgl_arguments_text(arguments, "device", NULL);
  return named != NULL ? mgl_device_parse("--device", named, out, err) : mgl_device_usual(out, err);
}

// --- options of one kind of device ---------------------------------------------------------------

static bool is_one_of(const char *name, const char *const *names) {
  while (*names != NULL && strcmp(name, *names) != 0) {
    names++;
  }
  return *names != NULL;
}

mgl_status mgl_device_check_cpu(const mgl_arguments *arguments, mgl_error *err) {
  static const char *const of_gpu[] = {
      "in-flight", "in-flight-ahead", "no-prefetch",     "step-batch",
      "coarse",    "events",          "scheduler-warps", NULL};
  for (size_t i = 0; i < arguments->count; i++) {
    const char *name = arguments->items[i].option->name;
    if (is_one_of(name, of_gpu)) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT,
                           "--%s is for a GPU, and the model runs on the CPU", name);
    }
  }
  return MGL_OK;
}

mgl_status mgl_device_check_gpu(const mgl_arguments *arguments, mgl_error *err) {
  for (size_t i = 0; i < arguments->count; i++) {
    const mgl_argument *argument = &arguments->items[i];
    if (strcmp(argument->option->name, "threads") == 0) {
      return mgl_error_set(err, MGL_ERR_ARGUMENT, "--threads is for the CPU; try --device cpu");
    }
  }
  return MGL_OK;
}

// --- words ---------------------------------------------------------------------------------------

void mgl_device_note_cpu(const char *reason) {
  (void)fprintf(stderr, "megalith: note: running on the CPU, not on the GPU: %.*s\n",
                (int)mgl_device_reason_bytes(reason), reason);
}

// What compiles code for a GPU, and where it is kept.
static void describe_code(mgl_text *out) {
  char folder[MGL_CACHE_FOLDER_BYTES];
  mgl_nvrtc nvrtc;
  mgl_error err = {0};
  if (mgl_nvrtc_open(&nvrtc, &err) == MGL_OK) {
    int major = 0;
    int minor = 0;
    (void)nvrtc.version(&major, &minor);
    mgl_text_format(out, "device compiler   NVRTC %d.%d\n", major, minor);
  } else {
    mgl_text_format(out, "device compiler   none, cached code only: %s\n", err.text);
  }
  mgl_text_format(out, "device code       cached in %s\n",
                  mgl_cache_folder(folder) ? folder : "no folder: HOME is not set");
}

mgl_status mgl_device_describe(const mgl_arguments *arguments, mgl_text *out, mgl_error *err) {
  mgl_device_choice choice;
  mgl_cuda_device device = {0};
  mgl_error reason = {0};
  MGL_TRY(mgl_device_wanted(arguments, &choice, err));
  if (choice.kind == MGL_DEVICE_CPU) {
    mgl_text_append_string(out, "--device cpu      models run on the CPU\n");
    return MGL_OK;
  }
  bool is_auto = choice.kind == MGL_DEVICE_AUTO;
  char label[32];
  (void)snprintf(label, sizeof label, is_auto ? "--device auto" : "--device cuda:%" PRIu32,
                 choice.ordinal);
  if (is_auto && !mgl_device_exists()) {
    mgl_text_format(out, "%-17s cpu: there is no GPU\n", label);
    return MGL_OK;
  }
  mgl_status status = mgl_cuda_device_open(is_auto ? 0 : (int)choice.ordinal, &device, &reason);
  if (status != MGL_OK && mgl_arguments_has(arguments, "device") && !is_auto) {
    return mgl_error_set(err, status, "%s", reason.text);
  }
  if (status != MGL_OK) {
    mgl_text_format(out, "%-17s %s: %s\n", label, is_auto ? "cpu" : "cannot be used", reason.text);
    return MGL_OK;
  }
  mgl_text_format(out, "%-17s %s, for models that fit and that it can run\n", label,
                  is_auto ? "cuda:0" : device.name);
  describe_code(out);
  mgl_cuda_device_close(&device);
  return MGL_OK;
}
