// The few words of cmocka that the kernels' tests use, so that these run for an architecture whose
// libraries are not installed. The first failure ends the program.
#ifndef MGL_TESTS_AARCH64_CMOCKA_H
#define MGL_TESTS_AARCH64_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define print_message(...) ((void)printf(__VA_ARGS__))
#define fail_msg(...)                                     \
  do {                                                    \
    (void)fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
    (void)fprintf(stderr, __VA_ARGS__);                   \
    (void)fprintf(stderr, "\n");                          \
    exit(1);                                              \
  } while (0)
#define assert_true(what) \
  do {                    \
    if (!(what)) {        \
      fail_msg(#what);    \
    }                     \
  } while (0)
#define assert_false(what) assert_true(!(what))
#define assert_non_null(what) assert_true((what) != NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, bytes) assert_true(memcmp(a, b, bytes) == 0)

struct CMUnitTest {
  const char *name;
  void (*run)(void **state);
};

#define cmocka_unit_test(function) \
  { #function, function }
#define cmocka_run_group_tests(tests, set_up, tear_down) \
  mgl_run_tests(tests, sizeof(tests) / sizeof *(tests))

static inline int mgl_run_tests(const struct CMUnitTest *tests, size_t count) {
  for (size_t i = 0; i < count; i++) {
    void *state = NULL;
    tests[i].run(&state);
    (void)printf("ok %s\n", tests[i].name);
  }
  return 0;
}

#endif
