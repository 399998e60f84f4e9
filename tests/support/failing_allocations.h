// A function with each of its allocations failing in turn.
#ifndef MGL_TESTS_SUPPORT_FAILING_ALLOCATIONS_H
#define MGL_TESTS_SUPPORT_FAILING_ALLOCATIONS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/status.h"

// Makes something and gives back all that it took, also when that fails.
typedef mgl_status make_once(void *context, mgl_error *err);

// Calls it with the 1st, 2nd ... allocation failing, until it makes no more of them. Every time it
// must say that memory was out and leave nothing behind, and succeed in the end. Returns the number
// of allocations that failed.
static inline uint64_t fail_each_allocation(make_once *once, void *context) {
  const int64_t live = mgl_alloc_live();
  for (uint64_t n = 1;; n++) {
    mgl_error err = {0};
    mgl_alloc_fail_nth(n);
    mgl_status status = once(context, &err);
    bool reached = mgl_alloc_count() >= n;
    mgl_alloc_fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
    if (!reached) {
      assert_int_equal(status, MGL_OK);
      return n - 1;
    }
    if (status != MGL_ERR_MEMORY || err.text[0] == 0) {
      fail_msg("allocation %llu failed, and the status was %s, the message \"%s\"",
               (unsigned long long)n, mgl_status_name(status), err.text);
    }
  }
}

#endif
