#include "engine/device_choice.h"

#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_driver.h"

enum { MAX_ORDINAL_DIGITS = 4 };

mgl_status mgl_device_parse(const char *where, const char *text, mgl_device_choice *out,
                            mgl_error *err) {
  *out = (mgl_device_choice){.kind = MGL_DEVICE_AUTO, .named = true};
  if (strcmp(text, "auto") == 0) {
    return MGL_OK;
  }
  if (strcmp(text, "cpu") == 0) {
    out->kind = MGL_DEVICE_CPU;
    return MGL_OK;
  }
  size_t digits = strncmp(text, "cuda:", 5) == 0 ? strspn(text + 5, "0123456789") : 0;
  if (strcmp(text, "cuda") == 0 ||
      (digits > 0 && digits <= MAX_ORDINAL_DIGITS && text[5 + digits] == 0)) {
    out->kind = MGL_DEVICE_CUDA;
    out->ordinal = digits > 0 ? (uint32_t)strtoul(text + 5, NULL, 10) : 0;
    return MGL_OK;
  }
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "%s: expected auto, cpu, cuda or cuda:N, found \"%.80s\"", where, text);
}

mgl_status mgl_device_usual(mgl_device_choice *out, mgl_error *err) {
  const char *usual = getenv("MEGALITH_DEVICE");
  *out = (mgl_device_choice){.kind = MGL_DEVICE_AUTO};
  return usual != NULL && usual[0] != 0 ? mgl_device_parse("MEGALITH_DEVICE", usual, out, err)
                                        : MGL_OK;
}

bool mgl_device_exists(void) {
  mgl_cuda_driver driver;
  mgl_error err = {0};
  int count = 0;
  if (mgl_cuda_driver_open(&driver, &err) != MGL_OK) {
    return driver.library != NULL;  // a driver that is too old
  }
  int code = driver.init(0);
  if (code != 0) {
    return code != MGL_CU_NO_DEVICE && code != MGL_CU_STUB_LIBRARY;
  }
  return driver.device_count(&count) != 0 || count > 0;
}

bool mgl_device_auto_tries(const mgl_device_choice *choice) {
  return choice->kind == MGL_DEVICE_AUTO && (choice->named || mgl_device_exists());
}

bool mgl_device_may_fall_back(mgl_status status) {
  return status == MGL_ERR_UNSUPPORTED || status == MGL_ERR_MEMORY || status == MGL_ERR_IO ||
         status == MGL_ERR_INTERNAL || status == MGL_ERR_LIMIT;
}

size_t mgl_device_reason_bytes(const char *reason) {
  static const char hint[] = "; try --device cpu";
  size_t bytes = strlen(reason);
  size_t before = bytes < sizeof hint - 1 ? 0 : bytes - (sizeof hint - 1);
  return bytes > 0 && strcmp(reason + before, hint) == 0 ? before : bytes;
}
