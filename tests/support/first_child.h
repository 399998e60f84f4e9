// The first child of this thread's, which has one.
#ifndef MGL_TEST_SUPPORT_FIRST_CHILD_H
#define MGL_TEST_SUPPORT_FIRST_CHILD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

static inline pid_t first_child(void) {
  char path[64];
  int pid = 0;
  (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%d", &pid), 1);
  (void)fclose(file);
  return (pid_t)pid;
}

#endif
