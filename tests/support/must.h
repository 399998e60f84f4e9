// MUST(f(..., &err)): ends the test with the message if f fails.
#ifndef MGL_TESTS_SUPPORT_MUST_H
#define MGL_TESTS_SUPPORT_MUST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

#define MUST(expr)              \
  do {                          \
    mgl_error err = {0};        \
    if ((expr) != MGL_OK) {     \
      fail_msg("%s", err.text); \
    }                           \
  } while (0)

#endif
