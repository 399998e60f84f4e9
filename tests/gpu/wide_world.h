// An iteration's attention in the wide class on the device, without a model: entries, a paged cache
// with scattered pages, random values. For the parts wide_attend and wide_speed.
#ifndef MGL_TESTS_GPU_WIDE_WORLD_H
#define MGL_TESTS_GPU_WIDE_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu_bench.h"
#include "twin/wide_attention.h"
#include "twin/wide_layout.h"

enum {
  WIDE_MAX_ENTRIES = MGL_MAX_SEQUENCES,
  WIDE_P = MGL_WIDE_STREAM_STEP,
  WIDE_NAN = 0x7fc0,  // bf16; what lies in everything that nobody has written
};

typedef struct wide_world {
  gpu_bench *bench;
  void *module, *rope_kv, *attend, *build;
  uint32_t head_dim;
  mgl_wide_shape shape;
  bool norms;
  uint32_t random;

  mgl_plan_entry entries[WIDE_MAX_ENTRIES];
  uint32_t entry_count;
  uint32_t rows;    // of the iteration
  uint32_t tokens;  // rows of the graph
  uint32_t slots, table_stride, page_count;
  uint32_t layers;  // copies of the cache, used in turn

  // On the host; NULL but for the tables where contents do not matter (wide_world_open).
  uint32_t *positions, *row_slots;  // [tokens]
  int32_t *tables;                  // [slots, table_stride]
  uint16_t *qkv;                    // [tokens, (H + 2 HKV) HD]
  uint16_t *k_cache, *v_cache;      // as before the iteration
  float *angles, *q_norm, *k_norm;
  size_t qkv_count, cache_count, q_count, out_bytes, merge_count;

  mgl_cu_ptr memory[16];
  uint32_t memory_count;
  void *device_entries;
  mgl_wide_attention op;  // device addresses; of layer 0
} wide_world;

// Sets shape and entries before: entries, entry_count, head_dim, shape, layers. fill: random values
// and poison; else all is small numbers.
void wide_world_open(wide_world *w, bool fill);
void wide_world_close(wide_world *w);
void wide_world_add(wide_world *w, uint32_t position, uint32_t count);

uint32_t wide_world_random(wide_world *w, uint32_t below);
float wide_from_bf16(uint16_t bits);

// Launches, without waiting.
void wide_world_build(wide_world *w, uint32_t layer);  // the work list
void wide_world_rope_kv(wide_world *w, uint32_t layer);
void wide_world_attend(wide_world *w, uint32_t layer);

void wide_world_read(const wide_world *w, void *to, const void *from, size_t bytes);
void wide_world_fill(const wide_world *w, void *memory, uint8_t value, size_t bytes);
void wide_world_must(const wide_world *w, mgl_cu_result code, const char *what);

#endif
