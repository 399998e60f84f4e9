// safetensors: well-formed files, malformed headers, shards behind an index.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/text.h"
#include "model/safetensors.h"
#include "support/temp_folder.h"
#include "support/write_safetensors.h"

// The bytes of a file with this header and data_bytes bytes of data (0, 1, 2, ...), of which
// header_bytes is what the length field says. Free with mgl_text_free.
static mgl_text build(const char *header, uint64_t header_bytes, size_t data_bytes) {
  mgl_text file = {0};
  for (int i = 0; i < 8; i++) {
    char byte = (char)(header_bytes >> (8 * i));
    mgl_text_append(&file, &byte, 1);
  }
  mgl_text_append_string(&file, header);
  for (size_t i = 0; i < data_bytes; i++) {
    char byte = (char)i;
    mgl_text_append(&file, &byte, 1);
  }
  assert_int_equal(mgl_text_check(&file, NULL), MGL_OK);
  return file;
}

// --- malformed files -----------------------------------------------------------------------------

#define T(dtype, shape, begin, end) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define NAME_64 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
#define NAME_512 NAME_64 NAME_64 NAME_64 NAME_64 NAME_64 NAME_64 NAME_64 NAME_64
#define NEST_16 "[[[[[[[[[[[[[[[["

typedef struct malformed {
  const char *header;
  size_t data_bytes;
  const char *in_message;
} malformed;

static const malformed malformed_cases[] = {
    // JSON
    {"", 0, "starts with '{'"},
    {"[]", 0, "starts with '{'"},
    {" {}", 0, "starts with '{'"},
    {"{", 0, "expected JSON"},
    {"{} x", 0, "expected JSON"},
    {"{\"a\":\"\xff\"}", 0, "expected JSON"},
    {"{\"a\\u0000b\":1}", 0, "expected JSON"},
    {"{\"a\":" NEST_16 NEST_16 NEST_16 NEST_16 NEST_16 "}", 0, "nested deeper"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"a\":" T("F32", "[1]", "0", "4") "}", 4, "duplicate"},
    // metadata
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
    {"{\"__metadata__\":null}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"format\":{\"a\":\"b\"}}}", 0, "__metadata__"},
    // names
    {"{\"\":" T("F32", "[1]", "0", "4") "}", 4, "name of 1 to 512 bytes, found 0"},
    {"{\"" NAME_512 "n\":" T("F32", "[1]", "0", "4") "}", 4, "found 513"},
    // members
    {"{\"a\":1}", 0, "expected an object"},
    {"{\"a\":[]}", 0, "expected an object"},
    {"{\"a\":{}}", 0, "\"dtype\": expected a string"},
    {"{\"a\":{\"dtype\":5,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "\"dtype\""},
    {"{\"a\":" T("F32\\u0000", "[1]", "0", "4") "}", 4, "\"dtype\": expected a string without NUL"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "\"shape\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", 4, "\"data_offsets\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, "\"data_offsets\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "\"data_offsets\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "\"data_offsets\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[\"0\",\"4\"]}}", 4,
     "\"data_offsets\""},
    // dtypes
    {"{\"a\":" T("F128", "[1]", "0", "16") "}", 16, "\"F128\""},
    {"{\"a\":" T("f32", "[1]", "0", "4") "}", 4, "\"f32\""},
    {"{\"a\":" T("", "[1]", "0", "4") "}", 4, "dtype"},
    {"{\"a\":" T("F4", "[3]", "0", "1") "}", 1, "3 elements of F4"},
    // shapes
    {"{\"a\":" T("F32", "[-1]", "0", "4") "}", 4, "dimension 0"},
    {"{\"a\":" T("F32", "[1,1.5]", "0", "4") "}", 4, "dimension 1"},
    {"{\"a\":" T("F32", "[\"1\"]", "0", "4") "}", 4, "dimension 0"},
    {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "at most 8 dimensions, found 9"},
    {"{\"a\":" T("F32", "[2]", "0", "4") "}", 4, "expected 2 elements of F32, found 4 bytes"},
    {"{\"a\":" T("BF16", "[2]", "0", "8") "}", 8, "expected 2 elements of BF16, found 8 bytes"},
    {"{\"a\":" T("F32", "[]", "0", "0") "}", 0, "expected 1 elements of F32, found 0 bytes"},
    {"{\"a\":" T("F32", "[0]", "0", "4") "}", 4, "expected 0 elements"},
    {"{\"a\":" T("F32", "[4294967296,4294967296]", "0", "0") "}", 0, "overflows"},
    {"{\"a\":" T("F32", "[4611686018427387904]", "0", "0") "}", 0, "4611686018427387904 elements"},
    {"{\"a\":" T("F16", "[4294967296,2147483648]", "0", "0") "}", 0, "elements of F16"},
    {"{\"a\":" T("F32", "[99999999999999999999]", "0", "4") "}", 4, "expected JSON"},
    // extents
    {"{\"a\":" T("F32", "[1]", "-4", "0") "}", 4, "found [-4, 0]"},
    {"{\"a\":" T("F32", "[1]", "4", "0") "}", 4, "found [4, 0]"},
    {"{\"a\":" T("F32", "[2]", "0", "8") "}", 4, "is the download complete?"},
    {"{\"a\":" T("F32", "[1]", "9223372036854775803", "9223372036854775807") "}", 4,
     "data_offsets"},
    {"{\"a\":" T("F32", "[1]", "0", "4") "}", 5, "describes 4 bytes of data, found 5"},
    {"{}", 1, "describes 0 bytes of data, found 1"},
    {"{\"a\":" T("F32", "[1]", "4", "8") "}", 8, "there is a hole"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "8", "12") "}", 12, "hole"},
    {"{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[1]", "4", "8") "}", 8, "overlap"},
    {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "0", "4") "}", 4, "overlap"},
    {"{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("F32", "[0]", "4", "4") "}", 8, "overlap"},
};

static void test_malformed(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof malformed_cases / sizeof malformed_cases[0]; i++) {
    const malformed *c = &malformed_cases[i];
    mgl_checkpoint *checkpoint = NULL;
    mgl_error err = {0};
    int64_t live = mgl_alloc_live();
    mgl_text file = build(c->header, strlen(c->header), c->data_bytes);
    mgl_status status = mgl_checkpoint_parse(file.data, file.bytes, "x.st", &checkpoint, &err);
    if (status == MGL_OK || checkpoint != NULL || strstr(err.text, c->in_message) == NULL ||
        strstr(err.text, "x.st: ") != err.text) {
      fail_msg("%s: status %d \"%s\", expected \"%s\"", c->header, status, err.text, c->in_message);
    }
    mgl_text_free(&file);
    assert_int_equal(mgl_alloc_live(), live);
  }
}

static void test_lying_length(void **state) {
  (void)state;
  static const struct {
    uint64_t header_bytes;
    const char *in_message;
  } cases[] = {
      {0, "starts with '{'"},
      {1, "expected JSON"},
      {3, "the file has only 2"},
      {100000000, "the file has only 2"},
      {100000001, "at most 100000000"},
      {INT64_MAX, "at most 100000000"},
      {UINT64_MAX, "at most 100000000"},
      {UINT64_MAX - 7, "at most 100000000"},  // length + 8 wraps to 0
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mgl_checkpoint *checkpoint = NULL;
    mgl_error err = {0};
    mgl_text file = build("{}", cases[i].header_bytes, 0);
    assert_int_not_equal(mgl_checkpoint_parse(file.data, file.bytes, "x", &checkpoint, &err),
                         MGL_OK);
    if (strstr(err.text, cases[i].in_message) == NULL) {
      fail_msg("length %llu: %s", (unsigned long long)cases[i].header_bytes, err.text);
    }
    mgl_text_free(&file);
  }
}

// Every prefix of a good file is refused, whatever it is cut in.
static void test_truncated(void **state) {
  (void)state;
  static const char header[] = "{\"a\":" T("F32", "[2]", "0", "8") "}";
  mgl_text file = build(header, sizeof header - 1, 8);
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  for (size_t bytes = 0; bytes < file.bytes; bytes++) {
    char *copy = malloc(bytes + 1);  // exactly as long as the prefix (+1), for ASan
    assert_non_null(copy);
    memcpy(copy, file.data, bytes);
    assert_int_not_equal(mgl_checkpoint_parse(copy, bytes, "x", &checkpoint, &err), MGL_OK);
    free(copy);
  }
  assert_int_equal(mgl_checkpoint_parse(file.data, file.bytes, "x", &checkpoint, &err), MGL_OK);
  mgl_checkpoint_close(checkpoint);
  mgl_text_free(&file);
}

// --- well-formed files ---------------------------------------------------------------------------

static void test_found(void **state) {
  (void)state;
  // Out of order by offset and by name, unaligned, empty, scalar, with an unsupported neighbour.
  static const char header[] =
      "{\"z\":" T("BF16", "[2,1]", "9", "13") ",\"__metadata__\":{\"format\":\"pt\"}"
      ",\"b\":" T("I64", "[1]", "0", "8") ",\"m\":" T("BOOL", "[1]", "8", "9")
      ",\"empty\":" T("F16", "[3,0]", "9", "9") ",\"a\":" T("F32", "[]", "13", "17")
      ",\"" NAME_512 "\":" T("F4", "[2]", "17", "18") "}      ";
  mgl_text file = build(header, sizeof header - 1, 18);
  const unsigned char *data = (const unsigned char *)file.data + 8 + sizeof header - 1;
  mgl_checkpoint *checkpoint = NULL;
  const mgl_stored_tensor *tensor = NULL;
  mgl_error err = {0};
  if (mgl_checkpoint_parse(file.data, file.bytes, "x.st", &checkpoint, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(mgl_checkpoint_tensor_count(checkpoint), 6);
  assert_int_equal(mgl_checkpoint_bytes(checkpoint), 18);
  assert_int_equal(mgl_checkpoint_find(checkpoint, "z", &tensor, &err), MGL_OK);
  assert_string_equal(tensor->name, "z");
  assert_int_equal(tensor->dtype, MGL_DTYPE_BF16);
  assert_int_equal(tensor->rank, 2);
  assert_int_equal(tensor->dims[0], 2);
  assert_int_equal(tensor->dims[1], 1);
  assert_ptr_equal(tensor->data, data + 9);
  assert_int_equal(tensor->bytes, 4);
  assert_int_equal(mgl_checkpoint_find(checkpoint, "a", &tensor, &err), MGL_OK);
  assert_int_equal(tensor->rank, 0);
  assert_ptr_equal(tensor->data, data + 13);
  assert_int_equal(mgl_checkpoint_find(checkpoint, "empty", &tensor, &err), MGL_OK);
  assert_int_equal(tensor->dtype, MGL_DTYPE_F16);
  assert_int_equal(tensor->bytes, 0);
  // Of an unsupported type: there, but not to be had.
  assert_true(mgl_checkpoint_has(checkpoint, "b"));
  assert_int_equal(mgl_checkpoint_find(checkpoint, "b", &tensor, &err), MGL_ERR_UNSUPPORTED);
  assert_null(tensor);
  assert_string_equal(err.text,
                      "x.st: tensor \"b\": expected dtype F32, F16 or BF16, found I64, which is "
                      "not supported");
  assert_true(mgl_checkpoint_has(checkpoint, NAME_512));
  // Missing; "__metadata__" is no tensor.
  assert_false(mgl_checkpoint_has(checkpoint, "c"));
  assert_false(mgl_checkpoint_has(checkpoint, "__metadata__"));
  assert_int_equal(mgl_checkpoint_find(checkpoint, "c", &tensor, &err), MGL_ERR_FORMAT);
  assert_string_equal(err.text, "tensor \"c\" is missing from x.st (6 tensors)");
  mgl_checkpoint_close(checkpoint);
  mgl_text_free(&file);
}

static void test_empty_file_of_tensors(void **state) {
  (void)state;
  mgl_text file = build("{}", 2, 0);
  mgl_checkpoint *checkpoint = NULL;
  const mgl_stored_tensor *tensor = NULL;
  mgl_error err = {0};
  assert_int_equal(mgl_checkpoint_parse(file.data, file.bytes, "x", &checkpoint, &err), MGL_OK);
  assert_int_equal(mgl_checkpoint_tensor_count(checkpoint), 0);
  assert_int_not_equal(mgl_checkpoint_find(checkpoint, "a", &tensor, &err), MGL_OK);
  mgl_checkpoint_close(checkpoint);
  mgl_checkpoint_close(NULL);
  mgl_text_free(&file);
}

// Opening must not be quadratic: 10^5 tensors in well under a second (2 s on a loaded machine or
// under a sanitizer would still be linear).
static void test_many_tensors(void **state) {
  (void)state;
  enum { COUNT = 100 * 1000 };
  mgl_text header = {0};
  mgl_text_append_string(&header, "{");
  for (int i = 0; i < COUNT; i++) {
    mgl_text_format(&header,
                    "%s\"model.layers.%d.w\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":"
                    "[%d,%d]}",
                    i == 0 ? "" : ",", i, 2 * i, 2 * i + 2);
  }
  mgl_text_append_string(&header, "}");
  mgl_text file = build(header.data, header.bytes, 2 * COUNT);
  mgl_checkpoint *checkpoint = NULL;
  const mgl_stored_tensor *tensor = NULL;
  mgl_error err = {0};
  clock_t start = clock();
  assert_int_equal(mgl_checkpoint_parse(file.data, file.bytes, "x", &checkpoint, &err), MGL_OK);
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  print_message("             %d tensors opened in %.3f s of processor time\n", COUNT, seconds);
  assert_true(seconds < 5);
  assert_int_equal(mgl_checkpoint_tensor_count(checkpoint), COUNT);
  for (int i = 0; i < COUNT; i += 997) {
    char name[64];
    (void)snprintf(name, sizeof name, "model.layers.%d.w", i);
    assert_int_equal(mgl_checkpoint_find(checkpoint, name, &tensor, &err), MGL_OK);
    assert_ptr_equal(tensor->data, file.data + 8 + header.bytes + 2 * i);
  }
  mgl_checkpoint_close(checkpoint);
  mgl_text_free(&file);
  mgl_text_free(&header);
}

// --- folders -------------------------------------------------------------------------------------

static const uint64_t two[] = {2};

static void write_file(const temp_folder *folder, const char *file, const char *tensor,
                       const float values[2]) {
  safetensors_writer writer;
  safetensors_begin(&writer, folder->path, file);
  if (tensor != NULL) {
    safetensors_add(&writer, tensor, MGL_DTYPE_F32, 1, two, values);
  }
  safetensors_finish(&writer);
}

static void assert_values(const mgl_checkpoint *checkpoint, const char *name, float first,
                          float second) {
  const mgl_stored_tensor *tensor = NULL;
  mgl_error err = {0};
  float values[2];
  if (mgl_checkpoint_find(checkpoint, name, &tensor, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(tensor->bytes, sizeof values);
  memcpy(values, tensor->data, sizeof values);
  assert_true(values[0] == first && values[1] == second);
}

static void assert_open_fails(const temp_folder *folder, const char *in_message) {
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  mgl_status status = mgl_checkpoint_open(folder->path, &checkpoint, &err);
  if (status == MGL_OK || checkpoint != NULL || strstr(err.text, in_message) == NULL) {
    fail_msg("status %d \"%s\", expected \"%s\"", status, err.text, in_message);
  }
  assert_int_equal(mgl_alloc_live(), live);
}

static void test_single_file_folder(void **state) {
  (void)state;
  temp_folder folder;
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  temp_folder_create(&folder);
  assert_open_fails(&folder, "found no weights");
  temp_folder_write_text(&folder, ".safetensors", "no name before the suffix");
  assert_open_fails(&folder, "found no weights");
  write_file(&folder, "consolidated.safetensors", "w", (float[]){1, 2});
  assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
  assert_values(checkpoint, "w", 1, 2);
  mgl_checkpoint_close(checkpoint);
  write_file(&folder, "other.safetensors", "w", (float[]){3, 4});
  assert_open_fails(&folder, "expected one safetensors file");
  // model.safetensors beats both, and a stale index.
  write_file(&folder, "model.safetensors", "w", (float[]){5, 6});
  temp_folder_write_text(&folder, "model.safetensors.index.json", "stale");
  assert_int_equal(mgl_checkpoint_open(folder.path, &checkpoint, &err), MGL_OK);
  assert_values(checkpoint, "w", 5, 6);
  mgl_checkpoint_close(checkpoint);
  temp_folder_write_text(&folder, "model.safetensors", "");
  assert_open_fails(&folder, "model.safetensors: expected a safetensors file of at least 8 bytes");
  temp_folder_remove(&folder);
}

static void test_model_file_is_a_folder(void **state) {
  (void)state;
  temp_folder folder;
  char path[TEMP_PATH_BYTES];
  temp_folder_create(&folder);
  temp_folder_path(&folder, "model.safetensors", path);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_open_fails(&folder, "found a folder");
  temp_folder_remove(&folder);
}

static void test_shards(void **state) {
  (void)state;
  temp_folder folder;
  mgl_checkpoint *checkpoint = NULL;
  mgl_error err = {0};
  temp_folder_create(&folder);
  write_file(&folder, "m-1.safetensors", "b", (float[]){1, 2});
  write_file(&folder, "m-2.safetensors", "a", (float[]){3, 4});
  temp_folder_write_text(&folder, "model.safetensors.index.json",
                         "{\"metadata\":{\"total_size\":16},\"weight_map\":{"
                         "\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}");
  if (mgl_checkpoint_open(folder.path, &checkpoint, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(mgl_checkpoint_tensor_count(checkpoint), 2);
  assert_int_equal(mgl_checkpoint_bytes(checkpoint), 16);
  assert_values(checkpoint, "b", 1, 2);
  assert_values(checkpoint, "a", 3, 4);
  mgl_checkpoint_close(checkpoint);
  temp_folder_remove(&folder);
}

static void test_bad_index(void **state) {
  (void)state;
  static const struct {
    const char *index;
    const char *in_message;
  } cases[] = {
      {"", "expected JSON"},
      {"[]", "\"weight_map\": expected an object"},
      {"{}", "\"weight_map\": expected an object"},
      {"{\"weight_map\":{}}", "\"weight_map\": expected an object"},
      {"{\"weight_map\":[\"m-1\"]}", "\"weight_map\": expected an object"},
      {"{\"weight_map\":{\"b\":1}}", "expected the name of a file"},
      {"{\"weight_map\":{\"b\":\"\"}}", "same folder"},
      {"{\"weight_map\":{\"b\":\"..\"}}", "same folder"},
      {"{\"weight_map\":{\"b\":\".\"}}", "same folder"},
      {"{\"weight_map\":{\"b\":\"../m-1\"}}", "found \"../m-1\""},
      {"{\"weight_map\":{\"b\":\"/etc/passwd\"}}", "same folder"},
      {"{\"weight_map\":{\"b\":\"c\\\\m-1\"}}", "same folder"},
      {"{\"weight_map\":{\"b\":\"m-1\\u0000x\"}}", "expected the name of a file"},
      {"{\"weight_map\":{\"b\":\"" NAME_512 "\"}}", "same folder"},
      {"{\"weight_map\":{\"b\":\"m-9\"}}", "m-9: No such file"},
      {"{\"weight_map\":{\"b\":\"m-1\",\"c\":\"m-1\"}}", "\"c\": expected it in m-1"},
      {"{\"weight_map\":{\"b\":\"m-2\",\"a\":\"m-1\"}}", "expected it in m-"},
      {"{\"weight_map\":{\"b\":\"m-1\",\"a\":\"m-2\",\"d\":\"m-3\"}}", "is in two files"},
      {"{\"weight_map\":{\"b\":\"m-1\",\"b\":\"m-2\"}}", "duplicate"},
      {"{\"weight_map\":{\"b\":\"text\"}}", "is this a safetensors file?"},
      {"{\"weight_map\":{\"b\":\"empty\"}}", "at least 8 bytes, found 0"},
  };
  temp_folder folder;
  temp_folder_create(&folder);
  write_file(&folder, "m-1", "b", (float[]){1, 2});
  write_file(&folder, "m-2", "a", (float[]){3, 4});
  write_file(&folder, "m-3", "a", (float[]){5, 6});
  temp_folder_write_text(&folder, "text", "this is no tensor file");
  temp_folder_write_text(&folder, "empty", "");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    temp_folder_write_text(&folder, "model.safetensors.index.json", cases[i].index);
    assert_open_fails(&folder, cases[i].in_message);
  }
  temp_folder_remove(&folder);
}

// Any single byte of a header may change into anything: an error or a checkpoint whose tensors all
// lie inside the file, never more.
static void test_flipped_bytes(void **state) {
  (void)state;
  static const char header[] =
      "{\"a\":" T("F32", "[2]", "0", "8") ",\"b\":" T("BF16", "[2,2]", "8", "16") "}";
  static const char *const names[] = {"a", "b"};
  mgl_text file = build(header, sizeof header - 1, 16);
  for (size_t i = 0; i < 8 + sizeof header - 1; i++) {
    char original = file.data[i];
    for (int change = 1; change < 256; change++) {
      mgl_checkpoint *checkpoint = NULL;
      const mgl_stored_tensor *tensor = NULL;
      mgl_error err = {0};
      file.data[i] = (char)(original ^ change);
      if (mgl_checkpoint_parse(file.data, file.bytes, "x", &checkpoint, &err) != MGL_OK) {
        assert_true(err.text[0] != 0);
        continue;
      }
      for (size_t n = 0; n < 2; n++) {
        if (mgl_checkpoint_find(checkpoint, names[n], &tensor, &err) == MGL_OK) {
          const char *start = tensor->data;
          assert_true(start >= file.data + 8 && tensor->bytes <= 16);
          assert_true(start + tensor->bytes <= file.data + file.bytes);
        }
      }
      mgl_checkpoint_close(checkpoint);
    }
    file.data[i] = original;
  }
  mgl_text_free(&file);
}

// The index alone, without its files.
static void test_shard_index(void **state) {
  (void)state;
  static const char good[] = "{\"weight_map\":{\"x\":\"b\",\"y\":\"a\",\"z\":\"b\"}}";
  static const char *const bad[][2] = {
      {"{", "expected JSON"},
      {"[]", "\"weight_map\": expected an object"},
      {"{\"weight_map\":{}}", "\"weight_map\": expected an object"},
      {"{\"weight_map\":{\"x\":\"../a\"}}", "a file in the same folder, found \"../a\""},
      {"{\"weight_map\":{\"x\":3}}", "expected the name of a file"},
  };
  mgl_shard_index *index = NULL;
  mgl_error err = {0};
  int64_t live = mgl_alloc_live();
  assert_int_equal(mgl_shard_index_parse(good, sizeof good - 1, "i", &index, &err), MGL_OK);
  assert_int_equal(mgl_shard_index_count(index), 2);
  assert_string_equal(mgl_shard_index_name(index, 0), "a");
  assert_string_equal(mgl_shard_index_name(index, 1), "b");
  mgl_shard_index_close(index);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_true(mgl_shard_index_parse(bad[i][0], strlen(bad[i][0]), "i", &index, &err) != MGL_OK);
    assert_null(index);
    if (strstr(err.text, bad[i][1]) == NULL) {
      fail_msg("expected \"...%s...\", found \"%s\"", bad[i][1], err.text);
    }
  }
  mgl_shard_index_close(NULL);
  assert_int_equal(mgl_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_malformed),
      cmocka_unit_test(test_lying_length),
      cmocka_unit_test(test_truncated),
      cmocka_unit_test(test_found),
      cmocka_unit_test(test_empty_file_of_tensors),
      cmocka_unit_test(test_many_tensors),
      cmocka_unit_test(test_single_file_folder),
      cmocka_unit_test(test_model_file_is_a_folder),
      cmocka_unit_test(test_shards),
      cmocka_unit_test(test_bad_index),
      cmocka_unit_test(test_flipped_bytes),
      cmocka_unit_test(test_shard_index),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
