#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

enum { ALIGNMENT = 16, FIRST_CHUNK_BYTES = 4096, LARGEST_CHUNK_BYTES = 1 << 20 };

struct mgl_arena_chunk {
  struct mgl_arena_chunk *next;
  _Alignas(ALIGNMENT) char data[];
};

// Starts a chunk with room for `bytes`. The chunks grow with what the arena holds, so that a small
// computation stays small and a large one asks the heap rarely.
static bool add_chunk(mgl_arena *arena, size_t bytes) {
  size_t wanted = arena->bytes < FIRST_CHUNK_BYTES ? FIRST_CHUNK_BYTES : arena->bytes;
  wanted = wanted > LARGEST_CHUNK_BYTES ? LARGEST_CHUNK_BYTES : wanted;
  wanted = wanted < bytes ? bytes : wanted;
  if (wanted > SIZE_MAX - sizeof(struct mgl_arena_chunk) - arena->bytes) {
    return false;
  }
  size_t total = sizeof(struct mgl_arena_chunk) + wanted;
  if (arena->limit != 0 && total > arena->limit - arena->bytes) {
    arena->over_limit = true;
    return false;
  }
  struct mgl_arena_chunk *chunk = mgl_alloc(total);
  if (chunk == NULL) {
    return false;
  }
  chunk->next = arena->chunks;
  arena->chunks = chunk;
  arena->cursor = chunk->data;
  arena->end = chunk->data + wanted;
  arena->bytes += total;
  return true;
}

void *mgl_arena_alloc(mgl_arena *arena, size_t bytes) {
  size_t padding = (ALIGNMENT - (uintptr_t)arena->cursor % ALIGNMENT) % ALIGNMENT;
  size_t left = (size_t)(arena->end - arena->cursor);
  if (arena->cursor == NULL || left < padding || left - padding < bytes) {
    if (!add_chunk(arena, bytes)) {
      return NULL;
    }
    padding = 0;
  }
  char *memory = arena->cursor + padding;
  arena->cursor = memory + bytes;
  return memory;
}

void *mgl_arena_alloc_zeroed(mgl_arena *arena, size_t count, size_t bytes_each) {
  if (bytes_each != 0 && count > SIZE_MAX / bytes_each) {
    return NULL;
  }
  void *memory = mgl_arena_alloc(arena, count * bytes_each);
  if (memory != NULL) {
    memset(memory, 0, count * bytes_each);
  }
  return memory;
}

char *mgl_arena_alloc_text(mgl_arena *arena, size_t bytes) {
  if (arena->cursor == NULL || (size_t)(arena->end - arena->cursor) < bytes) {
    if (!add_chunk(arena, bytes)) {
      return NULL;
    }
  }
  char *memory = arena->cursor;
  arena->cursor += bytes;
  return memory;
}

bool mgl_arena_extend(mgl_arena *arena, const char *data, size_t bytes, size_t extra) {
  if (bytes == 0 || arena->cursor == NULL || data + bytes != arena->cursor ||
      (size_t)(arena->end - arena->cursor) < extra) {
    return false;
  }
  arena->cursor += extra;
  return true;
}

void mgl_arena_free(mgl_arena *arena) {
  while (arena->chunks != NULL) {
    struct mgl_arena_chunk *next = arena->chunks->next;
    mgl_free(arena->chunks);
    arena->chunks = next;
  }
  *arena = (mgl_arena){.limit = arena->limit};
}
