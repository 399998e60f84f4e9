// Processes that find each other by a name: what rank 0 learns and hands out, and who is refused.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/cpu/cpu_crew.h"
#include "support/must.h"

enum { SHORT_MS = 100, LONG_MS = 20000 };

// Another one for each test: processes of one that fails cannot disturb the next.
static const char *meeting(void) {
  static char name[64];
  static int number;
  (void)snprintf(name, sizeof name, "test_cpu_crew %d %d", (int)getpid(), number++);
  return name;
}

static mgl_crew_options options_of(uint32_t rank, uint32_t count, const char *name, uint32_t ms) {
  return (mgl_crew_options){.rank = rank, .count = count, .meeting = name, .patience_ms = ms};
}

typedef int child_function(mgl_crew *crew);

// Runs `child` as that rank in a process of its own.
static pid_t start(uint32_t rank, uint32_t count, const char *name, child_function *child) {
  pid_t process = fork();
  if (process != 0) {
    return process;
  }
  mgl_crew *crew = NULL;
  mgl_error err = {0};
  const mgl_crew_options options = options_of(rank, count, name, LONG_MS);
  _exit(mgl_crew_open(&options, &crew, &err) == MGL_OK ? child(crew) : 100);
}

static int status_of(pid_t process) {
  int status = 0;
  assert_int_equal(waitpid(process, &status, 0), process);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

// --- what they get -------------------------------------------------------------------------------

// Ends with the byte of the memory that rank 0 hands out.
static int hear(mgl_crew *crew) {
  mgl_crew_place ignored;
  mgl_error err = {0};
  uint32_t word = 0;
  int fd = -1;
  unsigned char byte = 0;
  if (mgl_crew_gather(crew, 10 + mgl_crew_rank(crew), &ignored, &err) != MGL_OK ||
      mgl_crew_hear(crew, &word, sizeof word, &fd, &err) != MGL_OK || word != 77 || fd < 0 ||
      pread(fd, &byte, 1, mgl_crew_rank(crew)) != 1) {
    return 101;
  }
  return byte;
}

static void all_hear_the_first(void **state) {
  (void)state;
  enum { COUNT = 4 };
  const char *name = meeting();
  const mgl_crew_options options = options_of(0, COUNT, name, LONG_MS);
  pid_t others[COUNT] = {0};
  mgl_crew *crew = NULL;
  mgl_crew_place place;
  const uint32_t word = 77;
  for (uint32_t rank = 1; rank < COUNT; rank++) {
    others[rank] = start(rank, COUNT, name, hear);  // some come before rank 0 does
  }
  MUST(mgl_crew_open(&options, &crew, &err));
  MUST(mgl_crew_gather(crew, 12, &place, &err));
  assert_int_equal(place.least_cores, 11);
  assert_false(place.own_processors);  // all may use the same
  int fd = memfd_create("test", MFD_CLOEXEC);
  assert_int_equal(pwrite(fd, "\x05\x06\x07\x08", 4, 0), 4);
  MUST(mgl_crew_tell(crew, &word, sizeof word, fd, &err));
  (void)close(fd);
  for (uint32_t rank = 1; rank < COUNT; rank++) {
    pid_t process = 0;
    assert_int_equal(status_of(others[rank]), 5 + (int)rank);
    int socket = mgl_crew_take(crew, rank, &process);
    assert_int_equal(process, others[rank]);
    assert_true(mgl_crew_hung_up(socket));
    (void)close(socket);
  }
  mgl_crew_close(crew);
}

// --- who does not come, or should not ------------------------------------------------------------

static int leave(mgl_crew *crew) {
  (void)crew;
  return 0;
}

static int say(mgl_crew *crew) {
  mgl_crew_place ignored;
  mgl_error err = {0};
  int fd = -1;
  uint32_t word = 0;
  return mgl_crew_gather(crew, 1, &ignored, &err) == MGL_OK &&
                 mgl_crew_hear(crew, &word, sizeof word, &fd, &err) == MGL_OK
             ? 0
             : 102;
}

// Rank 0 of so many gathers and fails with this text.
static void expect_failure(uint32_t count, const char *name, uint32_t ms, const char *text) {
  const mgl_crew_options options = options_of(0, count, name, ms);
  mgl_crew *crew = NULL;
  mgl_crew_place place;
  mgl_error why = {0};
  MUST(mgl_crew_open(&options, &crew, &err));
  assert_int_not_equal(mgl_crew_gather(crew, 1, &place, &why), MGL_OK);
  if (strstr(why.text, text) == NULL) {
    fail_msg("expected an error with \"%s\", found \"%s\"", text, why.text);
  }
  mgl_crew_close(crew);
}

static void nobody_comes(void **state) {
  (void)state;
  expect_failure(3, meeting(), SHORT_MS,
                 "expected 3 ranks on this host within 0.1 s, found no rank 1");
}

static void one_ends_before(void **state) {
  (void)state;
  const char *name = meeting();
  pid_t other = start(1, 2, name, leave);
  expect_failure(2, name, LONG_MS, "one of 2 ranks");
  assert_int_equal(status_of(other), 0);
}

static void one_comes_twice(void **state) {
  (void)state;
  const char *name = meeting();
  pid_t first = start(1, 3, name, say);
  pid_t second = start(1, 3, name, say);
  expect_failure(3, name, LONG_MS, "found two processes of rank 1");
  assert_int_equal(status_of(first), 102);  // it is told by the end of rank 0
  assert_int_equal(status_of(second), 102);
}

static void one_is_of_another_number(void **state) {
  (void)state;
  const char *name = meeting();
  pid_t other = start(2, 4, name, say);
  expect_failure(3, name, LONG_MS, "expected ranks 1 to 2 of 3, found rank 2 of 4");
  assert_int_equal(status_of(other), 102);
}

static void there_is_one_first(void **state) {
  (void)state;
  const char *name = meeting();
  const mgl_crew_options first = options_of(0, 2, name, SHORT_MS);
  const mgl_crew_options second = options_of(1, 2, "nobody has this name", SHORT_MS);
  mgl_crew *crew = NULL, *other = NULL;
  mgl_error why = {0};
  MUST(mgl_crew_open(&first, &crew, &err));
  assert_int_equal(mgl_crew_open(&first, &other, &why), MGL_ERR_ARGUMENT);
  assert_non_null(strstr(why.text, "another process is rank 0 already"));
  assert_null(other);
  assert_int_equal(mgl_crew_open(&second, &other, &why), MGL_ERR_IO);
  assert_non_null(strstr(why.text, "rank 1 of 2: found no rank 0 on this host within 0.1 s"));
  mgl_crew_close(crew);
  MUST(mgl_crew_open(&first, &crew, &err));  // the name is free again
  mgl_crew_close(crew);
  const mgl_crew_options wrong = options_of(2, 2, name, SHORT_MS);
  assert_int_equal(mgl_crew_open(&wrong, &crew, &why), MGL_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_hear_the_first), cmocka_unit_test(nobody_comes),
      cmocka_unit_test(one_ends_before),    cmocka_unit_test(one_comes_twice),
      cmocka_unit_test(there_is_one_first), cmocka_unit_test(one_is_of_another_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
