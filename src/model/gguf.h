// The container of GGUF: a file's metadata and its table of tensors, checked.
//
// A file is a header, keys with typed values, a table of tensors, and their data behind a border of
// the file's alignment; all little-endian, versions 2 and 3. The file is hostile until proven
// otherwise: every length is compared with what is left before it is used, every offset with where
// the tensor before it ended. What the keys mean is gguf_model.h's. Nothing is copied but the two
// tables: all points into the caller's bytes, and strings have no NUL at their end.
#ifndef MGL_MODEL_GGUF_H
#define MGL_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
  MGL_GGUF_MAX_VALUES = 1 << 16,
  MGL_GGUF_MAX_KEY_BYTES = 256,
  MGL_GGUF_MAX_NAME_BYTES = 128,  // of a tensor
  MGL_GGUF_MAX_RANK = 4,
  MGL_GGUF_MAX_ALIGNMENT = 1 << 20,
};

typedef enum mgl_gguf_kind {
  MGL_GGUF_U8,
  MGL_GGUF_I8,
  MGL_GGUF_U16,
  MGL_GGUF_I16,
  MGL_GGUF_U32,
  MGL_GGUF_I32,
  MGL_GGUF_F32,
  MGL_GGUF_BOOL,
  MGL_GGUF_STRING,
  MGL_GGUF_ARRAY,
  MGL_GGUF_U64,
  MGL_GGUF_I64,
  MGL_GGUF_F64,
  MGL_GGUF_KIND_COUNT,
} mgl_gguf_kind;

typedef struct mgl_gguf_string {
  const char *text;
  size_t bytes;
} mgl_gguf_string;

typedef struct mgl_gguf_value {
  mgl_gguf_string key;
  mgl_gguf_kind kind;  // of an array: its elements'
  bool is_array;
  uint64_t count;             // 1 unless an array
  const unsigned char *data;  // the elements, as the file has them
} mgl_gguf_value;

// How a type of tensor data lies in a file: blocks of elements of a row.
typedef struct mgl_gguf_type {
  uint32_t number;  // as the file says it
  const char *name;
  uint32_t block;  // elements
  uint32_t block_bytes;
} mgl_gguf_type;

typedef struct mgl_gguf_tensor {
  mgl_gguf_string name;
  const mgl_gguf_type *type;
  uint32_t rank;
  uint64_t dims[MGL_GGUF_MAX_RANK];  // outermost first, as everywhere here; files have it reversed
  uint64_t begin;                    // offset in the data section
  uint64_t bytes;
  const unsigned char *data;
} mgl_gguf_tensor;

typedef struct mgl_gguf {
  const char *where;       // borrowed; for messages
  mgl_gguf_value *values;  // [value_count], sorted by key
  size_t value_count;
  mgl_gguf_tensor *tensors;  // [tensor_count], in the order of their data
  size_t tensor_count;
  uint64_t data_bytes;
} mgl_gguf;

// Whether bytes begin as a GGUF file does.
bool mgl_gguf_is(const void *data, size_t bytes);

// Reads the tables. `data` and `where` must outlive *out, which mgl_gguf_free releases; on failure
// nothing is held.
mgl_status mgl_gguf_parse(const void *data, size_t bytes, const char *where, mgl_gguf *out,
                          mgl_error *err);
void mgl_gguf_free(mgl_gguf *gguf);

// The value of a key, NULL if there is none.
const mgl_gguf_value *mgl_gguf_find(const mgl_gguf *gguf, const char *key);
// The tensor of a name, NULL if there is none. Walks the table.
const mgl_gguf_tensor *mgl_gguf_find_tensor(const mgl_gguf *gguf, const char *name);

// Readers of a key's value: absent leaves *out as it was, another type is an error that names the
// key. Integers of any width will do.
mgl_status mgl_gguf_u64(const mgl_gguf *gguf, const char *key, uint64_t *out, mgl_error *err);
mgl_status mgl_gguf_bool(const mgl_gguf *gguf, const char *key, bool *out, mgl_error *err);
mgl_status mgl_gguf_text(const mgl_gguf *gguf, const char *key, mgl_gguf_string *out,
                         mgl_error *err);
// An array of that kind; *out is NULL where the key is absent.
mgl_status mgl_gguf_array(const mgl_gguf *gguf, const char *key, mgl_gguf_kind kind,
                          const mgl_gguf_value **out, mgl_error *err);

// The string at *at of an array of strings, moving *at behind it; from `array->data` on, at most
// `array->count` times.
mgl_gguf_string mgl_gguf_next_string(const unsigned char **at);
// Element i of a value of integers (those above 2^63 - 1 as that), or of any numbers.
int64_t mgl_gguf_integer(const mgl_gguf_value *value, uint64_t i);
double mgl_gguf_number(const mgl_gguf_value *value, uint64_t i);
bool mgl_gguf_is_integer(const mgl_gguf_value *value);  // or an array of integers

bool mgl_gguf_string_is(mgl_gguf_string string, const char *text);

#endif
