// Well-formed safetensors files for tests; see write_safetensors.h.
#include "support/write_safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void check(int fine, const char *path) {
  if (!fine) {
    (void)fprintf(stderr, "test support: cannot write %s\n", path);
    abort();
  }
}

void safetensors_begin(safetensors_writer *writer, const char *folder, const char *name) {
  *writer = (safetensors_writer){0};
  int bytes = snprintf(writer->path, sizeof writer->path, "%s/%s", folder, name);
  check(bytes > 0 && (size_t)bytes < sizeof writer->path, name);
  writer->header = open_memstream(&writer->header_text, &writer->header_count);
  writer->data = open_memstream(&writer->data_bytes, &writer->data_count);
  check(writer->header != NULL && writer->data != NULL, writer->path);
  (void)fputs("{\"__metadata__\":{\"format\":\"pt\"}", writer->header);
}

// `bytes` is those of an element.
static void add(safetensors_writer *writer, const char *name, const char *dtype, uint64_t bytes,
                uint32_t rank, const uint64_t *dims, const void *data) {
  (void)fprintf(writer->header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, dtype);
  for (uint32_t i = 0; i < rank; i++) {
    (void)fprintf(writer->header, "%s%" PRIu64, i == 0 ? "" : ",", dims[i]);
    bytes *= dims[i];
  }
  (void)fprintf(writer->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", writer->offset,
                writer->offset + bytes);
  writer->offset += bytes;
  if (data != NULL) {
    check(fwrite(data, 1, bytes, writer->data) == bytes, writer->path);
    return;
  }
  for (uint64_t i = 0; i < bytes; i++) {
    check(fputc(0, writer->data) == 0, writer->path);
  }
}

void safetensors_add(safetensors_writer *writer, const char *name, mgl_dtype dtype, uint32_t rank,
                     const uint64_t *dims, const void *data) {
  static const char *const names[MGL_DTYPE_COUNT] = {"F32", "F16", "BF16", "I32"};
  add(writer, name, names[dtype], mgl_dtype_bytes(dtype), rank, dims, data);
}

void safetensors_add_bytes(safetensors_writer *writer, const char *name, uint32_t rank,
                           const uint64_t *dims, const void *data) {
  add(writer, name, "U8", 1, rank, dims, data);
}

void safetensors_add_as(safetensors_writer *writer, const char *name, const char *dtype,
                        uint64_t element_bytes, uint32_t rank, const uint64_t *dims,
                        const void *data) {
  add(writer, name, dtype, element_bytes, rank, dims, data);
}

void safetensors_finish(safetensors_writer *writer) {
  unsigned char length[8];
  (void)fputc('}', writer->header);
  check(fclose(writer->header) == 0 && fclose(writer->data) == 0, writer->path);
  for (int i = 0; i < 8; i++) {
    length[i] = (unsigned char)((uint64_t)writer->header_count >> (8 * i));
  }
  FILE *file = fopen(writer->path, "wb");
  check(file != NULL, writer->path);
  check(fwrite(length, 1, sizeof length, file) == sizeof length, writer->path);
  check(fwrite(writer->header_text, 1, writer->header_count, file) == writer->header_count,
        writer->path);
  check(fwrite(writer->data_bytes, 1, writer->data_count, file) == writer->data_count,
        writer->path);
  check(fclose(file) == 0, writer->path);
  free(writer->header_text);
  free(writer->data_bytes);
  *writer = (safetensors_writer){0};
}
