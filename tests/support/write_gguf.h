// Writes GGUF files for tests, well-formed or not: bytes in memory, piece by piece.
//
//   gguf_writer w = {0};
//   gguf_begin(&w, 3, tensors, keys);
//   gguf_text(&w, "general.architecture", "llama");
//   gguf_tensor(&w, "a", 0, 2, (uint64_t[]){4, 2}, 0);   // sizes as files have them: K first
//   gguf_align(&w, 32);
//   gguf_zeros(&w, 32);
//   ... w.data, w.bytes ...; mgl_text_free(&w)
#ifndef MGL_TESTS_SUPPORT_WRITE_GGUF_H
#define MGL_TESTS_SUPPORT_WRITE_GGUF_H

#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "model/gguf.h"

typedef mgl_text gguf_writer;

static inline void gguf_number(gguf_writer *w, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    char byte = (char)(value >> 8 * i & 255);
    mgl_text_append(w, &byte, 1);
  }
}

static inline void gguf_zeros(gguf_writer *w, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    mgl_text_append(w, "", 1);
  }
}

static inline void gguf_align(gguf_writer *w, size_t alignment) {
  gguf_zeros(w, (alignment - w->bytes % alignment) % alignment);
}

static inline void gguf_string(gguf_writer *w, const char *text) {
  gguf_number(w, strlen(text), 8);
  mgl_text_append_string(w, text);
}

static inline void gguf_begin(gguf_writer *w, uint32_t version, uint64_t tensors, uint64_t keys) {
  mgl_text_append_string(w, "GGUF");
  gguf_number(w, version, 4);
  gguf_number(w, tensors, 8);
  gguf_number(w, keys, 8);
}

static inline void gguf_key(gguf_writer *w, const char *key, uint32_t kind) {
  gguf_string(w, key);
  gguf_number(w, kind, 4);
}

static inline void gguf_text(gguf_writer *w, const char *key, const char *value) {
  gguf_key(w, key, MGL_GGUF_STRING);
  gguf_string(w, value);
}

static inline void gguf_u32(gguf_writer *w, const char *key, uint32_t value) {
  gguf_key(w, key, MGL_GGUF_U32);
  gguf_number(w, value, 4);
}

// The head of an array, whose elements follow.
static inline void gguf_array(gguf_writer *w, const char *key, uint32_t kind, uint64_t count) {
  gguf_key(w, key, MGL_GGUF_ARRAY);
  gguf_number(w, kind, 4);
  gguf_number(w, count, 8);
}

static inline void gguf_tensor(gguf_writer *w, const char *name, uint32_t type, uint32_t rank,
                               const uint64_t *dims, uint64_t offset) {
  gguf_string(w, name);
  gguf_number(w, rank, 4);
  for (uint32_t i = 0; i < rank && i < 8; i++) {
    gguf_number(w, dims[i], 8);
  }
  gguf_number(w, type, 4);
  gguf_number(w, offset, 8);
}

#endif
