// Two hash tables for tokenisers: token strings and their ids, and 64-bit keys to pairs of numbers.
//
// Both only grow, are filled while a tokenizer is opened and read from then on (by any thread).
// Zero-initialise; free with ..._free.
#ifndef MGL_TEXT_TOKEN_TABLE_H
#define MGL_TEXT_TOKEN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mgl_token_slot {
  uint32_t hash;
  int32_t id;  // -1: empty
} mgl_token_slot;

typedef struct mgl_token_span {
  uint32_t start;
  uint32_t bytes;
  bool used;
} mgl_token_span;

// Strings with ids from 0; not every id need be in use.
typedef struct mgl_token_table {
  char *text;  // all strings, one behind the other
  size_t text_bytes;
  size_t text_capacity;
  mgl_token_span *spans;  // [id_limit]
  size_t id_limit;        // one more than the largest id
  size_t id_capacity;
  mgl_token_slot *slots;  // open addressing; slot_count is a power of two or 0
  size_t slot_count;
  size_t count;
  size_t longest;  // bytes of the longest string
} mgl_token_table;

// Makes room in the hash for `count` strings, so that adding them does not rehash.
mgl_status mgl_token_table_reserve(mgl_token_table *table, size_t count, mgl_error *err);
// Adds a string. The caller has checked that neither the string nor the id is there already.
mgl_status mgl_token_table_add(mgl_token_table *table, int32_t id, const char *text, size_t bytes,
                               mgl_error *err);
int32_t mgl_token_table_find(const mgl_token_table *table, const char *text,
                             size_t bytes);  // or -1
// The string of an id, borrowed until the next add, without a terminating NUL; NULL if the id is
// not in use (negative and huge ids included).
const char *mgl_token_table_text(const mgl_token_table *table, int32_t id, size_t *bytes);
void mgl_token_table_free(mgl_token_table *table);

typedef struct mgl_pair_slot {
  uint64_t key;
  uint32_t first;
  uint32_t second;
} mgl_pair_slot;

typedef struct mgl_pair_map {
  mgl_pair_slot *slots;  // open addressing; slot_count is a power of two or 0
  size_t slot_count;
  size_t count;
} mgl_pair_map;

// UINT64_MAX is no key: it marks an empty slot.
mgl_status mgl_pair_map_reserve(mgl_pair_map *map, size_t count, mgl_error *err);
mgl_status mgl_pair_map_put(mgl_pair_map *map, uint64_t key, uint32_t first, uint32_t second,
                            mgl_error *err);  // replaces
void mgl_pair_map_free(mgl_pair_map *map);

static inline uint64_t mgl_pair_hash(uint64_t key) {
  key ^= key >> 32;
  key *= 0x9e3779b97f4a7c15u;
  key ^= key >> 29;
  key *= 0xd6e8feb86659fd93u;
  return key ^ key >> 32;
}

// The slot of a key, NULL if absent.
static inline const mgl_pair_slot *mgl_pair_map_find(const mgl_pair_map *map, uint64_t key) {
  if (map->slot_count == 0) {
    return NULL;
  }
  size_t mask = map->slot_count - 1;
  for (size_t i = (size_t)mgl_pair_hash(key) & mask;; i = (i + 1) & mask) {
    if (map->slots[i].key == key) {
      return &map->slots[i];
    }
    if (map->slots[i].key == UINT64_MAX) {
      return NULL;
    }
  }
}

#endif
