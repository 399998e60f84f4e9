// Reading and mapping files, with their failures.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "support/temp_folder.h"

static int make_folder(void **state) {
  static temp_folder folder;
  temp_folder_create(&folder);
  temp_folder_write(&folder, "data", "ab\0cd\xff", 6);
  temp_folder_write(&folder, "empty", "", 0);
  *state = &folder;
  return 0;
}

static int remove_folder(void **state) {
  temp_folder_remove(*state);
  return 0;
}

static void test_read(void **state) {
  char path[TEMP_PATH_BYTES];
  char *text = NULL;
  size_t bytes = 0;
  mgl_error err = {0};
  temp_folder_path(*state, "data", path);
  assert_int_equal(mgl_file_read(path, 6, &text, &bytes, &err), MGL_OK);
  assert_int_equal(bytes, 6);
  assert_memory_equal(text, "ab\0cd\xff", 7);  // with the terminator
  mgl_free(text);
  assert_int_equal(mgl_file_read(path, 5, &text, &bytes, &err), MGL_ERR_LIMIT);
  assert_null(text);
  assert_non_null(strstr(err.text, path));
  assert_non_null(strstr(err.text, "6 bytes, at most 5"));
  temp_folder_path(*state, "empty", path);
  assert_int_equal(mgl_file_read(path, 0, &text, &bytes, &err), MGL_OK);
  assert_int_equal(bytes, 0);
  assert_string_equal(text, "");
  mgl_free(text);
}

static void test_map(void **state) {
  char path[TEMP_PATH_BYTES];
  mgl_file_map map;
  mgl_error err = {0};
  temp_folder_path(*state, "data", path);
  assert_int_equal(mgl_file_map_open(path, &map, &err), MGL_OK);
  assert_int_equal(map.bytes, 6);
  assert_memory_equal(map.data, "ab\0cd\xff", 6);
  mgl_file_map_close(&map);
  assert_null(map.data);
  mgl_file_map_close(&map);  // closing twice is fine
  temp_folder_path(*state, "empty", path);
  assert_int_equal(mgl_file_map_open(path, &map, &err), MGL_OK);
  assert_null(map.data);
  assert_int_equal(map.bytes, 0);
  mgl_file_map_close(&map);
}

// What is no regular file is refused at once; a FIFO would otherwise hang the reader.
static void test_refused(void **state) {
  char path[TEMP_PATH_BYTES];
  char *text = NULL;
  size_t bytes = 0;
  mgl_file_map map;
  mgl_error err = {0};
  temp_folder_path(*state, "missing", path);
  assert_int_equal(mgl_file_map_open(path, &map, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "No such file"));
  assert_non_null(strstr(err.text, path));
  assert_int_equal(mgl_file_read(path, 10, &text, &bytes, &err), MGL_ERR_IO);
  temp_folder_path(*state, "fifo", path);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(mgl_file_read(path, 10, &text, &bytes, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "expected a regular file"));
  assert_int_equal(mgl_file_map_open(path, &map, &err), MGL_ERR_IO);
  assert_int_equal(unlink(path), 0);
  const temp_folder *folder = *state;
  assert_int_equal(mgl_file_read(folder->path, 10, &text, &bytes, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "found a folder"));
  assert_null(text);
}

// What has no size that is known before is read too, where that is asked for.
static void test_read_any(void **state) {
  char path[TEMP_PATH_BYTES];
  char *text = NULL;
  size_t bytes = 0;
  mgl_error err = {0};
  const temp_folder *folder = *state;
  temp_folder_path(folder, "data", path);
  assert_int_equal(mgl_file_read_any(path, 6, &text, &bytes, &err), MGL_OK);
  assert_int_equal(bytes, 6);
  assert_memory_equal(text, "ab\0cd\xff", 7);
  mgl_free(text);
  assert_int_equal(mgl_file_read_any(path, 5, &text, &bytes, &err), MGL_ERR_LIMIT);
  assert_null(text);
  assert_non_null(strstr(err.text, "more than 5 bytes"));
  assert_int_equal(mgl_file_read_any("/dev/null", 0, &text, &bytes, &err), MGL_OK);
  assert_int_equal(bytes, 0);
  assert_string_equal(text, "");
  mgl_free(text);
  assert_int_equal(mgl_file_read_any("/dev/zero", 100000, &text, &bytes, &err), MGL_ERR_LIMIT);
  assert_int_equal(mgl_file_read_any(folder->path, 9, &text, &bytes, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "expected a file, found a folder"));
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(write(ends[1], "piped", 5), 5);
  assert_int_equal(close(ends[1]), 0);
  (void)snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
  assert_int_equal(mgl_file_read_any(path, 100, &text, &bytes, &err), MGL_OK);
  assert_string_equal(text, "piped");
  mgl_free(text);
  assert_int_equal(close(ends[0]), 0);
}

// "No" only where there is nothing; what cannot be told is an error that says why.
static void test_find_refused(void **state) {
  char path[TEMP_PATH_BYTES];
  char inside[TEMP_PATH_BYTES];
  mgl_file_kind kind;
  mgl_error err = {0};
  temp_folder_path(*state, "link", path);
  assert_int_equal(symlink("/nowhere/at/all", path), 0);
  assert_int_equal(mgl_file_find(path, &kind, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "is a link to nothing"));
  assert_int_equal(unlink(path), 0);
  assert_int_equal(symlink("link", path), 0);
  assert_int_equal(mgl_file_find(path, &kind, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "Too many levels of symbolic links"));
  assert_int_equal(unlink(path), 0);
  temp_folder_path(*state, "data/x", path);
  assert_int_equal(mgl_file_find(path, &kind, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "Not a directory"));
  if (geteuid() == 0) {
    print_message("             skipped: root may search every folder\n");
    return;
  }
  temp_folder_path(*state, "closed", path);
  temp_folder_path(*state, "closed/x", inside);
  assert_int_equal(mkdir(path, 0), 0);
  assert_int_equal(mgl_file_find(inside, &kind, &err), MGL_ERR_IO);
  assert_non_null(strstr(err.text, "Permission denied"));
  assert_int_equal(rmdir(path), 0);
}

static mgl_file_kind kind_of(const char *path) {
  mgl_file_kind kind = MGL_FILE_OTHER;
  mgl_error err = {0};
  if (mgl_file_find(path, &kind, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  return kind;
}

static void test_exists(void **state) {
  const temp_folder *folder = *state;
  char path[TEMP_PATH_BYTES];
  char *joined = NULL;
  temp_folder_path(folder, "data", path);
  assert_int_equal(mgl_path_join(folder->path, "data", &joined, NULL), MGL_OK);
  assert_string_equal(joined, path);
  assert_int_equal(kind_of(joined), MGL_FILE_OTHER);
  assert_int_equal(kind_of(folder->path), MGL_FILE_FOLDER);
  mgl_free(joined);
  assert_int_equal(mgl_path_join(folder->path, "missing", &joined, NULL), MGL_OK);
  assert_int_equal(kind_of(joined), MGL_FILE_ABSENT);
  mgl_free(joined);
}

// How many file descriptors this process has open.
static int open_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) {
    struct stat info;
    count += fstat(fd, &info) == 0;
  }
  return count;
}

// Each operation fails once: an error each time, nothing kept, and success when none fails.
static void test_injected_failures(void **state) {
  char path[TEMP_PATH_BYTES];
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  int descriptors = open_descriptors();
  temp_folder_path(*state, "data", path);
  for (int mapped = 0; mapped < 2; mapped++) {
    uint64_t failures = 0;
    for (;;) {
      char *text = NULL;
      size_t bytes = 0;
      mgl_file_map map = {0};
      mgl_file_fail_nth(failures + 1);
      mgl_status status = mapped ? mgl_file_map_open(path, &map, &err)
                                 : mgl_file_read(path, 100, &text, &bytes, &err);
      if (status == MGL_OK) {
        mgl_free(text);
        mgl_file_map_close(&map);
        break;
      }
      assert_int_equal(status, MGL_ERR_IO);
      assert_non_null(strstr(err.text, path));
      assert_null(text);
      assert_null(map.data);
      failures++;
    }
    assert_int_equal(failures, 3);  // open, fstat, and read or mmap
    assert_int_equal(mgl_file_count(), 3);
  }
  mgl_file_fail_nth(0);
  assert_int_equal(mgl_alloc_live(), live);
  assert_int_equal(open_descriptors(), descriptors);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_read),
      cmocka_unit_test(test_map),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_exists),
      cmocka_unit_test(test_find_refused),
      cmocka_unit_test(test_read_any),
      cmocka_unit_test(test_injected_failures),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
