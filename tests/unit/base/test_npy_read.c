// Files of every type that is read, and damaged ones.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/npy_read.h"
#include "support/must.h"
#include "support/temp_folder.h"

enum { HEADER = 128, MOST = 512 };

// A file of version 1.0 with that header's text; returns its bytes.
static size_t make_file(char out[MOST], const char *header, const void *data, size_t bytes) {
  memset(out, ' ', HEADER);
  memcpy(out, "\x93NUMPY\x01\x00", 8);
  out[8] = HEADER - 10;
  out[9] = 0;
  memcpy(out + 10, header, strlen(header));
  out[HEADER - 1] = '\n';
  memcpy(out + HEADER, data, bytes);
  return HEADER + bytes;
}

static mgl_status read_bytes(const char *data, size_t bytes, float **out, size_t *count,
                             mgl_error *err) {
  char path[TEMP_PATH_BYTES];
  temp_folder folder;
  temp_folder_create(&folder);
  temp_folder_write(&folder, "x.npy", data, bytes);
  temp_folder_path(&folder, "x.npy", path);
  mgl_status status = mgl_npy_read(path, out, count, err);
  temp_folder_remove(&folder);
  return status;
}

static void check_values(const char *header, const void *data, size_t bytes, size_t expected) {
  char file[MOST];
  float *values = NULL;
  size_t count = 0;
  MUST(read_bytes(file, make_file(file, header, data, bytes), &values, &count, &err));
  assert_int_equal(count, expected);
  for (size_t i = 0; i < count; i++) {
    assert_true(values[i] == (float)i - 1);
  }
  mgl_free(values);
}

static void test_every_type_and_shape(void **state) {
  static const float f4[] = {-1, 0, 1, 2, 3, 4};
  static const double f8[] = {-1, 0, 1};
  static const uint16_t f2[] = {0xbc00, 0, 0x3c00};
  static const int32_t i4[] = {-1, 0, 1};
  static const int64_t i8[] = {-1, 0, 1};
  (void)state;
  check_values("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", f4, sizeof f4, 6);
  check_values("{'descr': '<f4', 'fortran_order': False, 'shape': (3,2,1)}", f4, sizeof f4, 6);
  check_values("{'descr':'<f4','fortran_order':False,'shape':()}", f4, 4, 1);
  check_values("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 5), }", f4, 0, 0);
  check_values("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", f8, sizeof f8, 3);
  check_values("{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", f2, sizeof f2, 3);
  check_values("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", i4, sizeof i4, 3);
  check_values("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", i8, sizeof i8, 3);
}

static void refuse(const char *data, size_t bytes, const char *message) {
  float *values = NULL;
  size_t count = 1;
  mgl_error err = {0};
  assert_int_not_equal(read_bytes(data, bytes, &values, &count, &err), MGL_OK);
  assert_null(values);
  assert_int_equal(count, 0);
  if (strstr(err.text, "x.npy: ") == NULL || strstr(err.text, message) == NULL) {
    fail_msg("expected \"x.npy: ...%s\", found \"%s\"", message, err.text);
  }
}

static void refuse_header(const char *header, const char *message) {
  static const float data[6] = {0};
  char file[MOST];
  refuse(file, make_file(file, header, data, sizeof data), message);
}

static void test_damaged_files_are_refused(void **state) {
  static const char good[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  static const float data[6] = {0};
  char file[MOST];
  (void)state;
  size_t bytes = make_file(file, good, data, sizeof data);
  for (size_t cut = 0; cut < bytes; cut++) {
    refuse(file, cut, "expected");
  }
  file[8] = 0;
  refuse(file, bytes, "expected a header of 0 bytes");
  file[9] = 1;
  refuse(file, bytes, "expected a header of 256 bytes");
  refuse_header("{'descr': '>f4', 'fortran_order': False, 'shape': (6,)}", "numpy.ascontiguous");
  refuse_header("{'descr': '<f4', 'fortran_order': True, 'shape': (6,)}", "fortran_order True");
  refuse_header("{'descr': '<c8', 'fortran_order': False, 'shape': (6,)}", "'<c8'");
  refuse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (7,)}", "at most 6 elements");
  refuse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", "expected 20 bytes");
  refuse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "at most 6 elements");
  refuse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (6", "a shape");
  refuse_header("{'descr': '<f4', 'fortran_order': False}", "expected a shape");
  refuse_header("{'fortran_order': False, 'shape': (6,)}", "expected descr");
  refuse_header(
      "{'descr': '<f4', 'fortran_order': False, 'shape': "
      "(4294967296, 4294967296, 4294967296)}",
      "a shape");
  refuse_header("{'descr'", "expected descr");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_type_and_shape),
      cmocka_unit_test(test_damaged_files_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
