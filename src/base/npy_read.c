#include "base/npy_read.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/file.h"

static const struct {
  const char *name;
  size_t bytes;
} types[] = {{"<f4", 4}, {"<f8", 8}, {"<f2", 2}, {"<i4", 4}, {"<i8", 8}};

enum { F4, F8, F2, I4, I8, TYPES };

static float convert(int type, const char *from) {
  float f4 = 0;
  double f8 = 0;
  mgl_f16 f2 = 0;
  int32_t i4 = 0;
  int64_t i8 = 0;
  switch (type) {
    case F4: memcpy(&f4, from, sizeof f4); return f4;
    case F8: memcpy(&f8, from, sizeof f8); return (float)f8;
    case F2: memcpy(&f2, from, sizeof f2); return mgl_f16_to_f32(f2);
    case I4: memcpy(&i4, from, sizeof i4); return (float)i4;
    default: memcpy(&i8, from, sizeof i8); return (float)i8;
  }
}

// What stands behind 'key': in the header's text; NULL if nothing does.
static const char *find_value(const char *header, const char *key) {
  const char *at = strstr(header, key);
  if (at == NULL) {
    return NULL;
  }
  at += strlen(key);
  return at + strspn(at, " :");
}

static mgl_status read_type(const char *header, int *out, mgl_error *err) {
  const char *type = find_value(header, "'descr'");
  const char *order = find_value(header, "'fortran_order'");
  if (type == NULL || order == NULL) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected descr and fortran_order in the header");
  }
  for (*out = 0; *out < TYPES && strncmp(type + 1, types[*out].name, 3) != 0; (*out)++) {
  }
  if (type[0] != '\'' || *out == TYPES || strncmp(order, "False", 5) != 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "expected '<f2', '<f4', '<f8', '<i4' or '<i8' in C order, found %.8s, "
                         "fortran_order %.5s: write it with numpy.ascontiguousarray(x, '<f4')",
                         type, order);
  }
  return MGL_OK;
}

// Elements of the shape; at most `most`.
static mgl_status read_shape(const char *header, size_t most, size_t *out, mgl_error *err) {
  const char *at = find_value(header, "'shape'");
  *out = 1;
  if (at == NULL || *at++ != '(') {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected a shape in the header");
  }
  while (*at != ')') {
    char *end = NULL;
    unsigned long long dim = strtoull(at, &end, 10);
    if (!isdigit((unsigned char)*at) || (dim != 0 && *out > most / dim)) {
      return mgl_error_set(err, MGL_ERR_FORMAT,
                           "expected a shape of at most %zu elements, which the file has, found "
                           "\"%.20s\"",
                           most, at);
    }
    *out *= (size_t)dim;
    at = end + strspn(end, " ,");
  }
  return MGL_OK;
}

static mgl_status parse(char *data, size_t bytes, float **out, size_t *out_count, mgl_error *err) {
  static const char magic[] = "\x93NUMPY";
  const unsigned char *head = (const unsigned char *)data;
  size_t prefix = bytes > 6 && head[6] == 1 ? 10 : 12;
  if (bytes < 12 || memcmp(data, magic, 6) != 0 || head[6] < 1 || head[6] > 3) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected a NumPy file, of version 1 to 3");
  }
  size_t header = head[8] | (size_t)head[9] << 8;
  header |= prefix == 12 ? (size_t)head[10] << 16 | (size_t)head[11] << 24 : 0;
  if (header < 1 || header > bytes - prefix) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected a header of %zu bytes, found %zu", header,
                         bytes - prefix);
  }
  char *values = data + prefix + header;
  size_t left = bytes - prefix - header;
  int type = 0;
  data[prefix + header - 1] = 0;  // its newline: the header becomes a string
  MGL_TRY(read_type(data + prefix, &type, err));
  MGL_TRY(read_shape(data + prefix, left / types[type].bytes, out_count, err));
  if (*out_count * types[type].bytes != left) {
    return mgl_error_set(err, MGL_ERR_FORMAT, "expected %zu bytes of data, found %zu",
                         *out_count * types[type].bytes, left);
  }
  *out = mgl_alloc_zeroed(*out_count + 1, sizeof **out);
  if (*out == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %zu numbers", *out_count);
  }
  for (size_t i = 0; i < *out_count; i++) {
    (*out)[i] = convert(type, values + i * types[type].bytes);
  }
  return MGL_OK;
}

mgl_status mgl_npy_read(const char *path, float **out, size_t *out_count, mgl_error *err) {
  char *data = NULL;
  size_t bytes = 0;
  *out = NULL;
  *out_count = 0;
  MGL_TRY(mgl_file_read(path, MGL_NPY_MAX_BYTES, &data, &bytes, err));
  mgl_status status = parse(data, bytes, out, out_count, err);
  mgl_free(data);
  if (status != MGL_OK) {
    mgl_error_prefix(err, "%s", path);
    *out_count = 0;
  }
  return status;
}
