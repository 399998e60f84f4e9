// Open addressing with linear probing, at most half full. The hash multiplies eight bytes at a time
// by odd constants; it is not keyed, so a vocabulary made for the purpose can slow its own opening
// down, but prompts cannot: they only look up.
#include "text/token_table.h"

#include <string.h>

#include "base/alloc.h"

enum { MIN_SLOTS = 16 };

static uint32_t hash_string(const char *text, size_t bytes) {
  uint64_t hash = 0x2545f4914f6cdd1du ^ bytes;
  while (bytes > 0) {
    uint64_t chunk = 0;
    size_t taken = bytes < sizeof chunk ? bytes : sizeof chunk;
    memcpy(&chunk, text, taken);
    hash = mgl_pair_hash(hash ^ chunk);
    text += taken;
    bytes -= taken;
  }
  return (uint32_t)mgl_pair_hash(hash);
}

// The number of slots that keeps `count` entries below half of them; 0 when that overflows.
static size_t slots_for(size_t count) {
  size_t slots = MIN_SLOTS;
  while (slots / 2 < count) {
    if (slots > SIZE_MAX / 64) {
      return 0;
    }
    slots *= 2;
  }
  return slots;
}

static void place_token(mgl_token_slot *slots, size_t slot_count, mgl_token_slot slot) {
  size_t i = slot.hash & (slot_count - 1);
  while (slots[i].id >= 0) {
    i = (i + 1) & (slot_count - 1);
  }
  slots[i] = slot;
}

mgl_status mgl_token_table_reserve(mgl_token_table *table, size_t count, mgl_error *err) {
  size_t slot_count = slots_for(count);
  if (slot_count != 0 && slot_count <= table->slot_count) {
    return MGL_OK;
  }
  mgl_token_slot *slots = slot_count == 0 ? NULL : mgl_alloc(slot_count * sizeof *slots);
  if (slots == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: a table of %zu tokens", count);
  }
  memset(slots, 0xff, slot_count * sizeof *slots);  // every id -1
  for (size_t i = 0; i < table->slot_count; i++) {
    if (table->slots[i].id >= 0) {
      place_token(slots, slot_count, table->slots[i]);
    }
  }
  mgl_free(table->slots);
  table->slots = slots;
  table->slot_count = slot_count;
  return MGL_OK;
}

// Makes spans[id] exist; new ones are unused.
static mgl_status reserve_id(mgl_token_table *table, size_t id, mgl_error *err) {
  if (id >= table->id_limit) {
    void *spans = table->spans;
    MGL_TRY(mgl_grow(&spans, &table->id_capacity, id + 1, sizeof *table->spans, err));
    table->spans = spans;
    memset(table->spans + table->id_limit, 0, (id + 1 - table->id_limit) * sizeof *table->spans);
    table->id_limit = id + 1;
  }
  return MGL_OK;
}

mgl_status mgl_token_table_add(mgl_token_table *table, int32_t id, const char *text, size_t bytes,
                               mgl_error *err) {
  if (bytes > UINT32_MAX - table->text_bytes) {
    return mgl_error_set(err, MGL_ERR_LIMIT, "the strings of a vocabulary exceed 4 GiB");
  }
  MGL_TRY(mgl_token_table_reserve(table, table->count + 1, err));
  void *all = table->text;
  MGL_TRY(mgl_grow(&all, &table->text_capacity, table->text_bytes + bytes + 1, 1, err));
  table->text = all;
  MGL_TRY(reserve_id(table, (size_t)id, err));
  memcpy(table->text + table->text_bytes, text, bytes);
  table->spans[id] = (mgl_token_span){
      .start = (uint32_t)table->text_bytes, .bytes = (uint32_t)bytes, .used = true};
  table->text_bytes += bytes;
  table->count++;
  table->longest = bytes > table->longest ? bytes : table->longest;
  mgl_token_slot slot = {.hash = hash_string(text, bytes), .id = id};
  place_token(table->slots, table->slot_count, slot);
  return MGL_OK;
}

int32_t mgl_token_table_find(const mgl_token_table *table, const char *text, size_t bytes) {
  if (table->slot_count == 0) {
    return -1;
  }
  uint32_t hash = hash_string(text, bytes);
  size_t mask = table->slot_count - 1;
  for (size_t i = hash & mask; table->slots[i].id >= 0; i = (i + 1) & mask) {
    if (table->slots[i].hash == hash) {
      const mgl_token_span *span = &table->spans[table->slots[i].id];
      if (span->bytes == bytes && memcmp(table->text + span->start, text, bytes) == 0) {
        return table->slots[i].id;
      }
    }
  }
  return -1;
}

const char *mgl_token_table_text(const mgl_token_table *table, int32_t id, size_t *bytes) {
  if (id < 0 || (size_t)id >= table->id_limit || !table->spans[id].used) {
    *bytes = 0;
    return NULL;
  }
  *bytes = table->spans[id].bytes;
  return table->text + table->spans[id].start;
}

void mgl_token_table_free(mgl_token_table *table) {
  mgl_free(table->text);
  mgl_free(table->spans);
  mgl_free(table->slots);
  *table = (mgl_token_table){0};
}

// The slot of a key, or the empty one where it belongs.
static mgl_pair_slot *pair_slot(mgl_pair_slot *slots, size_t slot_count, uint64_t key) {
  size_t i = (size_t)mgl_pair_hash(key) & (slot_count - 1);
  while (slots[i].key != UINT64_MAX && slots[i].key != key) {
    i = (i + 1) & (slot_count - 1);
  }
  return &slots[i];
}

mgl_status mgl_pair_map_reserve(mgl_pair_map *map, size_t count, mgl_error *err) {
  size_t slot_count = slots_for(count);
  if (slot_count != 0 && slot_count <= map->slot_count) {
    return MGL_OK;
  }
  mgl_pair_slot *slots = slot_count == 0 ? NULL : mgl_alloc(slot_count * sizeof *slots);
  if (slots == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: a table of %zu pairs", count);
  }
  memset(slots, 0xff, slot_count * sizeof *slots);  // every key UINT64_MAX
  for (size_t i = 0; i < map->slot_count; i++) {
    if (map->slots[i].key != UINT64_MAX) {
      *pair_slot(slots, slot_count, map->slots[i].key) = map->slots[i];
    }
  }
  mgl_free(map->slots);
  map->slots = slots;
  map->slot_count = slot_count;
  return MGL_OK;
}

mgl_status mgl_pair_map_put(mgl_pair_map *map, uint64_t key, uint32_t first, uint32_t second,
                            mgl_error *err) {
  MGL_TRY(mgl_pair_map_reserve(map, map->count + 1, err));
  mgl_pair_slot *slot = pair_slot(map->slots, map->slot_count, key);
  map->count += slot->key == UINT64_MAX ? 1 : 0;
  *slot = (mgl_pair_slot){.key = key, .first = first, .second = second};
  return MGL_OK;
}

void mgl_pair_map_free(mgl_pair_map *map) {
  mgl_free(map->slots);
  *map = (mgl_pair_map){0};
}
