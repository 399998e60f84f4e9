// Writes well-formed safetensors files for tests: begin, add tensors, finish. Every failure aborts.
//
//   safetensors_writer writer;
//   safetensors_begin(&writer, folder, "model.safetensors");
//   safetensors_add(&writer, "w", MGL_DTYPE_F32, 2, (uint64_t[]){2, 3}, values);
//   safetensors_finish(&writer);
#ifndef MGL_TESTS_SUPPORT_WRITE_SAFETENSORS_H
#define MGL_TESTS_SUPPORT_WRITE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/dtype.h"
#include "support/temp_folder.h"

typedef struct safetensors_writer {
  char path[TEMP_PATH_BYTES];
  FILE *header;  // memory streams
  FILE *data;
  char *header_text;
  char *data_bytes;
  size_t header_count;
  size_t data_count;
  uint64_t offset;  // bytes of data so far
} safetensors_writer;

void safetensors_begin(safetensors_writer *writer, const char *folder, const char *name);
// `name` must need no JSON escapes. `data` is in the machine's (little-endian) order; NULL: zeros.
void safetensors_add(safetensors_writer *writer, const char *name, mgl_dtype dtype, uint32_t rank,
                     const uint64_t *dims, const void *data);
// The same of a tensor of dtype U8.
void safetensors_add_bytes(safetensors_writer *writer, const char *name, uint32_t rank,
                           const uint64_t *dims, const void *data);
// The same of any dtype of the format, whose elements have so many bytes.
void safetensors_add_as(safetensors_writer *writer, const char *name, const char *dtype,
                        uint64_t element_bytes, uint32_t rank, const uint64_t *dims,
                        const void *data);
// Writes the file and frees the writer's memory.
void safetensors_finish(safetensors_writer *writer);

#endif
