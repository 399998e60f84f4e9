// Files that are complete or absent: what is written, what failures leave (nothing), and writers
// that are killed at random moments.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cache_folder.h"
#include "base/file.h"
#include "base/new_file.h"
#include "support/temp_folder.h"

enum { PART_BYTES = 5000, PARTS = 40 };

static size_t count_entries(const temp_folder *folder) {
  size_t count = 0;
  DIR *entries = opendir(folder->path);
  assert_non_null(entries);
  for (struct dirent *e = readdir(entries); e != NULL; e = readdir(entries)) {
    count += e->d_name[0] != '.';
  }
  (void)closedir(entries);
  return count;
}

// Writes PARTS parts, all of one letter.
static mgl_status write_file(const char *path, char letter, mgl_error *err) {
  char part[PART_BYTES];
  mgl_new_file file = {.fd = -1};
  memset(part, letter, sizeof part);
  mgl_status status = mgl_new_file_create(path, &file, err);
  for (int i = 0; i < PARTS && status == MGL_OK; i++) {
    status = mgl_new_file_write(&file, part, sizeof part, err);
  }
  if (status == MGL_OK) {
    status = mgl_new_file_commit(&file, err);
  }
  mgl_new_file_close(&file);
  return status;
}

// 0: no file; else its letter. A torn file fails the test.
static char read_letter(const char *path) {
  char *data = NULL;
  size_t bytes = 0;
  mgl_file_kind kind = MGL_FILE_ABSENT;
  assert_int_equal(mgl_file_find(path, &kind, NULL), MGL_OK);
  if (kind == MGL_FILE_ABSENT) {
    return 0;
  }
  assert_int_equal(mgl_file_read(path, 10 << 20, &data, &bytes, NULL), MGL_OK);
  assert_int_equal(bytes, PART_BYTES * PARTS);
  char letter = data[0];
  for (size_t i = 0; i < bytes; i++) {
    assert_int_equal(data[i], letter);
  }
  mgl_free(data);
  return letter;
}

// Opens a temporary file beside `path` in a process that dies without a word.
static void die_while_writing(const char *path) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    mgl_new_file file;
    (void)(mgl_new_file_create(path, &file, NULL) == MGL_OK &&
           mgl_new_file_write(&file, "half", 4, NULL) == MGL_OK);
    (void)raise(SIGKILL);
  }
  int result = 0;
  assert_int_equal(waitpid(child, &result, 0), child);
  assert_true(WIFSIGNALED(result));
}

static void files_are_written(void **state) {
  (void)state;
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  mgl_error err = {0};
  temp_folder_create(&folder);
  temp_folder_path(&folder, "a", path);
  assert_int_equal(write_file(path, 'x', &err), MGL_OK);
  assert_int_equal(read_letter(path), 'x');
  assert_int_equal(write_file(path, 'y', &err), MGL_OK);
  assert_int_equal(read_letter(path), 'y');
  assert_int_equal(count_entries(&folder), 1);
  temp_folder_path(&folder, "none/a", path);
  assert_int_equal(write_file(path, 'x', &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "cannot create "));
  assert_int_equal(chdir(folder.path), 0);  // a name without a folder
  die_while_writing("b");
  assert_int_equal(count_entries(&folder), 2);
  assert_int_equal(write_file("b", 'x', &err), MGL_OK);
  assert_int_equal(count_entries(&folder), 2);
  assert_int_equal(chdir("/"), 0);
  temp_folder_remove(&folder);
}

static void only_what_the_dead_left_goes(void **state) {
  (void)state;
  static const char *const foreign[] = {"a.partial-",        "a.partial-12345",  "a.partial-12-456",
                                        "a.partial-1234567", "b.partial-123456", ".partial-123456"};
  enum { FOREIGN = sizeof foreign / sizeof foreign[0] };
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  char other[TEMP_PATH_BYTES];
  mgl_new_file live = {.fd = -1};
  temp_folder_create(&folder);
  temp_folder_path(&folder, "a", path);
  for (size_t i = 0; i < FOREIGN; i++) {
    temp_folder_write_text(&folder, foreign[i], "mine");
  }
  temp_folder_path(&folder, "a.partial-folder", other);
  assert_int_equal(mkdir(other, 0700), 0);
  temp_folder_path(&folder, "a.partial-pipe00", other);
  assert_int_equal(mkfifo(other, 0600), 0);
  temp_folder_path(&folder, "a.partial-link00", other);
  assert_int_equal(symlink("b.partial-123456", other), 0);
  size_t mine = count_entries(&folder);
  assert_int_equal(mgl_new_file_create(path, &live, NULL), MGL_OK);
  for (int i = 0; i < 3; i++) {
    die_while_writing(path);  // each removes what the one before left
  }
  assert_int_equal(count_entries(&folder), mine + 2);
  assert_int_equal(write_file(path, 'x', NULL), MGL_OK);
  assert_int_equal(count_entries(&folder), mine + 2);  // the file, and that of the living
  assert_int_equal(mgl_new_file_write(&live, "hello", 5, NULL), MGL_OK);
  assert_int_equal(mgl_new_file_commit(&live, NULL), MGL_OK);
  assert_int_equal(count_entries(&folder), mine + 1);
  mgl_new_file_sweep(folder.path);  // takes b.partial-123456, which nobody holds
  assert_int_equal(count_entries(&folder), mine);
  mgl_new_file_sweep("/no/such/folder");
  temp_folder_remove(&folder);
}

static void failures_leave_nothing(void **state) {
  (void)state;
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  int64_t live = mgl_alloc_live();
  temp_folder_create(&folder);
  temp_folder_path(&folder, "a", path);
  uint64_t n = 1;
  for (bool reached = true; reached; n++) {
    mgl_error err = {0};
    mgl_file_fail_nth(n);
    mgl_status status = write_file(path, 'x', &err);
    reached = mgl_file_count() >= n;
    mgl_file_fail_nth(0);
    assert_int_equal(status, reached ? MGL_ERR_IO : MGL_OK);
    assert_int_equal(count_entries(&folder), reached ? 0 : 1);
    assert_int_equal(mgl_alloc_live(), live);
  }
  assert_int_equal(n, PARTS + 4);  // create, each write, commit
  for (n = 1; n <= 2; n++) {
    mgl_alloc_fail_nth(n);
    assert_int_equal(write_file(path, 'x', NULL), MGL_ERR_MEMORY);
    mgl_alloc_fail_nth(0);
    assert_int_equal(mgl_alloc_live(), live);
  }
  temp_folder_remove(&folder);
}

// A writer that is killed after a random time, again and again: the file is always one that was
// written whole, and the next writer removes what is left of the one before.
static void killed_writers_tear_nothing(void **state) {
  (void)state;
  enum { KILLS = 200 };
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  unsigned seed = 1;
  size_t left = 0;
  temp_folder_create(&folder);
  temp_folder_path(&folder, "a", path);
  for (int i = 0; i < KILLS; i++) {
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      (void)!write(ready[1], &byte, 1);
      for (char letter = 'a';; letter = letter == 'z' ? 'a' : (char)(letter + 1)) {
        if (write_file(path, letter, NULL) != MGL_OK) {
          _exit(1);
        }
      }
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);  // its time starts when it does
    (void)close(ready[0]);
    (void)close(ready[1]);
    struct timespec wait = {0, (long)(rand_r(&seed) % 3000) * 1000};
    (void)nanosleep(&wait, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    size_t found = count_entries(&folder) - (read_letter(path) != 0 ? 1 : 0);
    assert_true(found <= 1);  // more: a writer did not remove what was there
    left += found;
  }
  print_message("%d writers killed, %zu left a temporary file\n", KILLS, left);
  assert_true(left > 0);
  assert_int_equal(write_file(path, '!', NULL), MGL_OK);
  assert_int_equal(count_entries(&folder), 1);
  temp_folder_remove(&folder);
}

// The system refuses the first folder of a path that is missing; that the ones below it are missing,
// too, says nothing.
static void what_forbids_a_folder_is_told(void **state) {
  mgl_error err = {0};
  (void)state;
  if (access("/sys/kernel", X_OK) != 0) {
    (void)printf("skipped: there is no /sys, where nobody makes folders\n");
    skip();
  }
  assert_int_equal(mgl_cache_folder_make("/sys/no_folder/rank_0", &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "cannot write /sys/no_folder/rank_0: "));
  assert_null(strstr(err.text, strerror(ENOENT)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_are_written),
      cmocka_unit_test(only_what_the_dead_left_goes),
      cmocka_unit_test(failures_leave_nothing),
      cmocka_unit_test(killed_writers_tear_nothing),
      cmocka_unit_test(what_forbids_a_folder_is_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
