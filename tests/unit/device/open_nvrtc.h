// The GPU's compiler, for tests that need it.
#ifndef MGL_TESTS_OPEN_NVRTC_H
#define MGL_TESTS_OPEN_NVRTC_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda/cuda_jit.h"

// Opens NVRTC, or says why the test is skipped.
static inline bool open_nvrtc(mgl_nvrtc *nvrtc) {
#if defined(MGL_TEST_SANITIZED)
  (void)nvrtc;
  print_message("skipped: the compiler's library is not sanitized; the release build runs this\n");
  return false;
#else
  mgl_error err = {0};
  if (mgl_nvrtc_open(nvrtc, &err) != MGL_OK) {
    print_message("skipped: %s\n", err.text);
    return false;
  }
  return true;
#endif
}

#endif
