#include "gpu/wide_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda/cuda_code.h"

enum { SOME_MORE_PAGES = 3, COPY_BYTES = 16 << 20 };

uint32_t wide_world_random(wide_world *w, uint32_t below) {
  w->random = w->random * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)(w->random >> 4) * below >> 28);
}

float wide_from_bf16(uint16_t bits) {
  uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

static uint16_t to_bf16(float value) {
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  return (uint16_t)((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

// Between -most and most.
static float random_value(wide_world *w, float most) {
  return ((float)wide_world_random(w, 65536) / 32768.0f - 1.0f) * most;
}

void wide_world_must(const wide_world *w, mgl_cu_result code, const char *what) {
  mgl_error err = {0};
  gpu_must(mgl_cuda_check(&w->bench->device.driver, code, what, &err), &err);
}

void wide_world_add(wide_world *w, uint32_t position, uint32_t count) {
  w->entries[w->entry_count] =
      (mgl_plan_entry){.slot = w->entry_count * 7 % 1024, .position = position, .count = count};
  w->entry_count++;
  w->rows += count;
}

// --- memory --------------------------------------------------------------------------------------

static void *device_memory(wide_world *w, size_t bytes) {
  mgl_cu_ptr memory;
  wide_world_must(w, w->bench->device.driver.memory_alloc(&memory, bytes), "memory_alloc");
  w->memory[w->memory_count++] = memory;
  void *pointer;
  memcpy(&pointer, &memory, sizeof pointer);
  return pointer;
}

static mgl_cu_ptr address(const void *pointer) {
  return (mgl_cu_ptr)(uintptr_t)pointer;
}

static void *device_copy(wide_world *w, const void *from, size_t bytes) {
  void *memory = device_memory(w, bytes);
  wide_world_must(w, w->bench->device.driver.copy_to_device(address(memory), from, bytes),
                  "copy_to_device");
  return memory;
}

void wide_world_read(const wide_world *w, void *to, const void *from, size_t bytes) {
  const mgl_cuda_driver *driver = &w->bench->device.driver;
  wide_world_must(w, driver->context_synchronize(), "context_synchronize");
  wide_world_must(w, driver->copy_to_host(to, address(from), bytes), "copy_to_host");
}

void wide_world_fill(const wide_world *w, void *memory, uint8_t value, size_t bytes) {
  wide_world_must(w, w->bench->device.driver.memory_set(address(memory), value, bytes),
                  "memory_set");
}

// --- contents ------------------------------------------------------------------------------------

static uint32_t pages_of(const mgl_plan_entry *entry) {
  return (entry->position + entry->count + WIDE_P - 1) / WIDE_P;
}

// Block tables with the pages of all sequences in random order.
static void make_tables(wide_world *w) {
  uint32_t pages = 0;
  w->table_stride = 1;
  w->slots = 1024;
  for (uint32_t i = 0; i < w->entry_count; i++) {
    uint32_t own = pages_of(&w->entries[i]);
    pages += own;
    w->table_stride = own > w->table_stride ? own : w->table_stride;
  }
  w->page_count = pages + SOME_MORE_PAGES;
  uint32_t *order = gpu_must_alloc(w->page_count, sizeof *order);
  for (uint32_t i = 0; i < w->page_count; i++) {
    uint32_t at = wide_world_random(w, i + 1);
    order[i] = order[at];
    order[at] = i;
  }
  w->tables = gpu_must_alloc((size_t)w->slots * w->table_stride, sizeof *w->tables);
  memset(w->tables, -1, (size_t)w->slots * w->table_stride * sizeof *w->tables);
  for (uint32_t i = 0, next = 0; i < w->entry_count; i++) {
    int32_t *table = w->tables + (size_t)w->entries[i].slot * w->table_stride;
    for (uint32_t k = 0; k < pages_of(&w->entries[i]); k++) {
      table[k] = (int32_t)order[next++];
    }
  }
  mgl_free(order);
}

static void make_rows(wide_world *w) {
  w->tokens = (w->rows + 7) / 8 * 8;
  w->positions = gpu_must_alloc(w->tokens, sizeof *w->positions);
  w->row_slots = gpu_must_alloc(w->tokens, sizeof *w->row_slots);
  for (uint32_t i = 0, row = 0; i < w->entry_count; i++) {
    for (uint32_t k = 0; k < w->entries[i].count; k++, row++) {
      w->positions[row] = w->entries[i].position + k;
      w->row_slots[row] = w->entries[i].slot;
    }
  }
  w->angles = gpu_must_alloc((size_t)w->tokens * w->head_dim, sizeof *w->angles);
  for (uint32_t row = 0; row < w->tokens; row++) {
    for (uint32_t i = 0; i < w->head_dim / 2; i++) {
      double angle = w->positions[row] * pow(1e4, -2.0 * i / w->head_dim);
      w->angles[(size_t)row * w->head_dim + 2 * i] = (float)cos(angle);
      w->angles[(size_t)row * w->head_dim + 2 * i + 1] = (float)sin(angle);
    }
  }
  w->q_norm = gpu_must_alloc(w->head_dim, sizeof *w->q_norm);
  w->k_norm = gpu_must_alloc(w->head_dim, sizeof *w->k_norm);
  for (uint32_t i = 0; i < w->head_dim; i++) {
    w->q_norm[i] = 1.5f + random_value(w, 1.0f);
    w->k_norm[i] = 1.5f + random_value(w, 1.0f);
  }
}

// What earlier iterations have left in the cache; poison everywhere else.
static void fill_cache(wide_world *w) {
  const uint32_t hd = w->head_dim, heads = w->shape.kv_heads;
  w->k_cache = gpu_must_alloc(w->cache_count, sizeof *w->k_cache);
  w->v_cache = gpu_must_alloc(w->cache_count, sizeof *w->v_cache);
  for (size_t i = 0; i < w->cache_count; i++) {
    w->k_cache[i] = w->v_cache[i] = WIDE_NAN;
  }
  for (uint32_t i = 0; i < w->entry_count; i++) {
    const int32_t *table = w->tables + (size_t)w->entries[i].slot * w->table_stride;
    for (uint32_t p = 0; p < w->entries[i].position; p++) {
      for (uint32_t h = 0; h < heads; h++) {
        size_t page = ((size_t)table[p / WIDE_P] * heads + h) * WIDE_P * hd;
        for (uint32_t e = 0; e < hd; e++) {
          w->k_cache[page + p % WIDE_P * hd + e] = to_bf16(random_value(w, 2.0f));
          w->v_cache[page + e * WIDE_P + p % WIDE_P] = to_bf16(random_value(w, 2.0f));
        }
      }
    }
  }
}

static void fill_qkv(wide_world *w) {
  size_t row = w->qkv_count / w->tokens;
  size_t used = row * w->rows;
  size_t rotated = row / (w->shape.group + 2) * (w->shape.group + 1);  // Q and K
  w->qkv = gpu_must_alloc(w->qkv_count, sizeof *w->qkv);
  for (size_t i = 0; i < w->qkv_count; i++) {
    float value = random_value(w, 3.0f);
    uint16_t bits = i % row < rotated ? mgl_f32_to_f16(value) : to_bf16(value);
    w->qkv[i] = i < used ? bits : WIDE_NAN;
  }
}

// A large buffer of random small numbers, bf16.
static void *random_memory(wide_world *w, size_t bytes) {
  uint16_t *values = gpu_must_alloc(1, COPY_BYTES);
  uint8_t *memory = device_memory(w, bytes);
  for (size_t i = 0; i < COPY_BYTES / sizeof *values; i++) {
    values[i] = to_bf16(random_value(w, 1.0f));
  }
  for (size_t at = 0; at < bytes; at += COPY_BYTES) {
    size_t count = bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES;
    wide_world_must(w, w->bench->device.driver.copy_to_device(address(memory + at), values, count),
                    "copy");
  }
  mgl_free(values);
  return memory;
}

// --- open and close ------------------------------------------------------------------------------

static uint32_t attend_bytes(const wide_world *w) {
  return w->bench->device.kernels == MGL_CUDA_KERNELS_WGMMA
             ? (uint32_t)MGL_WIDE_ATTEND_BYTES
             : (uint32_t)MGL_WIDE_ATTEND_PORTABLE_BYTES;
}

static void load_code(wide_world *w) {
  const mgl_cuda_driver *driver = &w->bench->device.driver;
  const mgl_cuda_shape shape = {.head_dim = w->head_dim, .group = w->shape.group};
  mgl_cuda_code code;
  mgl_error err = {0};
  gpu_must(mgl_cuda_code_get(&w->bench->device, "kernels/cuda/wide_attention.cu", &shape,
                             "mgl_wide_attend_run", &code, &err),
           &err);
  wide_world_must(w, driver->module_load(&w->module, code.cubin), "module_load");
  wide_world_must(w, driver->module_function(&w->rope_kv, w->module, "mgl_wide_rope_kv_run"),
                  "module_function");
  wide_world_must(w, driver->module_function(&w->attend, w->module, "mgl_wide_attend_run"),
                  "module_function");
  wide_world_must(w, driver->module_function(&w->build, w->module, "mgl_wide_build_run"),
                  "module_function");
  wide_world_must(
      w, driver->function_set(w->attend, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, (int)attend_bytes(w)),
      "function_set");
  mgl_free(code.cubin);
}

static void make_buffers(wide_world *w, bool fill) {
  mgl_wide_attention *op = &w->op;
  const uint32_t heads = w->shape.kv_heads * w->shape.group, workers = w->shape.workers;
  const size_t cache = w->cache_count * sizeof(uint16_t);
  op->qkv = fill ? device_copy(w, w->qkv, w->qkv_count * sizeof *w->qkv)
                 : random_memory(w, w->qkv_count * sizeof *w->qkv);
  op->k_cache = fill ? device_copy(w, w->k_cache, cache) : random_memory(w, cache * w->layers);
  op->v_cache = fill ? device_copy(w, w->v_cache, cache) : random_memory(w, cache * w->layers);
  w->q_count = (size_t)w->tokens * heads * w->head_dim;
  w->out_bytes = mgl_wide_x_bytes(w->tokens, heads * w->head_dim);
  w->merge_count = (size_t)MGL_WIDE_MAX_ITEMS * w->shape.kv_heads;
  op->q = device_memory(w, w->q_count * sizeof(uint16_t));
  op->out = device_memory(w, w->out_bytes);
  op->merges = device_memory(w, w->merge_count * sizeof *op->merges);
  op->stream_partials = device_memory(w, mgl_wide_stream_partial_bytes(workers, w->head_dim));
  op->tile_partials = device_memory(w, mgl_wide_tile_partial_bytes(workers, w->head_dim));
  wide_world_fill(w, op->q, 0xff, w->q_count * sizeof(uint16_t));
  wide_world_fill(w, op->out, 0xff, w->out_bytes);
  wide_world_fill(w, op->merges, 0, w->merge_count * sizeof *op->merges);
  wide_world_fill(w, op->stream_partials, 0xff,
                  mgl_wide_stream_partial_bytes(workers, w->head_dim));
  wide_world_fill(w, op->tile_partials, 0xff, mgl_wide_tile_partial_bytes(workers, w->head_dim));
}

void wide_world_open(wide_world *w, bool fill) {
  mgl_wide_attention *op = &w->op;
  const uint32_t heads = w->shape.kv_heads * w->shape.group;
  load_code(w);
  make_tables(w);
  make_rows(w);
  w->qkv_count = (size_t)w->tokens * (heads + 2 * w->shape.kv_heads) * w->head_dim;
  w->cache_count = (size_t)w->page_count * w->shape.kv_heads * WIDE_P * w->head_dim;
  if (fill) {
    fill_cache(w);
    fill_qkv(w);
  }
  make_buffers(w, fill);
  op->angles = device_copy(w, w->angles, (size_t)w->tokens * w->head_dim * sizeof *w->angles);
  op->q_norm = w->norms ? device_copy(w, w->q_norm, w->head_dim * sizeof *w->q_norm) : NULL;
  op->k_norm = w->norms ? device_copy(w, w->k_norm, w->head_dim * sizeof *w->k_norm) : NULL;
  op->block_tables =
      device_copy(w, w->tables, (size_t)w->slots * w->table_stride * sizeof *w->tables);
  op->positions = device_copy(w, w->positions, w->tokens * sizeof *w->positions);
  op->slots = device_copy(w, w->row_slots, w->tokens * sizeof *w->row_slots);
  op->work = device_memory(w, sizeof(mgl_wide_work));
  w->device_entries = device_copy(w, w->entries, sizeof w->entries);
  op->block_table_stride = w->table_stride;
  op->kv_heads = w->shape.kv_heads;
  op->tokens = w->tokens;
  op->eps = 1e-6f;
  op->scale = 1.0f / sqrtf((float)w->head_dim);
}

void wide_world_close(wide_world *w) {
  const mgl_cuda_driver *driver = &w->bench->device.driver;
  wide_world_must(w, driver->context_synchronize(), "context_synchronize");
  for (uint32_t i = 0; i < w->memory_count; i++) {
    wide_world_must(w, driver->memory_free(w->memory[i]), "memory_free");
  }
  wide_world_must(w, driver->module_unload(w->module), "module_unload");
  void *const host[] = {w->positions, w->row_slots, w->tables, w->qkv,   w->k_cache,
                        w->v_cache,   w->angles,    w->q_norm, w->k_norm};
  for (size_t i = 0; i < sizeof host / sizeof host[0]; i++) {
    mgl_free(host[i]);
  }
}

// --- launches ------------------------------------------------------------------------------------

static void launch(const wide_world *w, void *function, uint32_t blocks, uint32_t threads,
                   uint32_t smem, void **parameters) {
  wide_world_must(w,
                  w->bench->device.driver.launch(function, blocks, 1, 1, threads, 1, 1, smem, NULL,
                                                 parameters, NULL),
                  "launch");
}

void wide_world_build(wide_world *w, uint32_t layer) {
  (void)layer;
  void *parameters[] = {&w->shape, &w->device_entries, &w->entry_count, &w->op.work};
  launch(w, w->build, 1, 32, 0, parameters);
}

static mgl_wide_attention op_of(const wide_world *w, uint32_t layer) {
  mgl_wide_attention op = w->op;
  op.k_cache += w->cache_count * layer;
  op.v_cache += w->cache_count * layer;
  return op;
}

void wide_world_rope_kv(wide_world *w, uint32_t layer) {
  mgl_wide_attention op = op_of(w, layer);
  void *parameters[] = {&op, &w->rows};
  launch(w, w->rope_kv, w->shape.workers, MGL_CUDA_CONSUMERS, 0, parameters);
}

void wide_world_attend(wide_world *w, uint32_t layer) {
  mgl_wide_attention op = op_of(w, layer);
  void *parameters[] = {&op};
  launch(w, w->attend, w->shape.workers, MGL_CUDA_CONSUMERS, attend_bytes(w), parameters);
}
