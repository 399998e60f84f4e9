// Memory that device code may touch, faults, and the emulator's chance.
//
// The table has a mutex, since a host's threads allocate while the driver's thread runs launches;
// a launch works on a copy of it, taken anew where it changed.
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator/machine.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static emu_range *table;  // in order of addresses
static size_t count, capacity;
static _Atomic uint64_t generation = 1;

uint64_t emu_steps;

uint64_t emu_random(emu_launch *l) {
  l->random ^= l->random << 13;
  l->random ^= l->random >> 7;
  l->random ^= l->random << 17;
  return l->random >> 11;
}

// The first range that ends behind `at`.
static size_t find(const emu_range *ranges, size_t range_count, uintptr_t at) {
  size_t low = 0, high = range_count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges[middle].end <= at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void emu_memory_add(const void *memory, size_t bytes) {
  const uintptr_t at = (uintptr_t)memory;
  (void)pthread_mutex_lock(&mutex);
  if (count == capacity) {
    capacity = capacity == 0 ? 256 : capacity * 2;
    table = realloc(table, capacity * sizeof *table);
    if (table == NULL) {
      abort();
    }
  }
  const size_t i = find(table, count, at);
  memmove(&table[i + 1], &table[i], (count - i) * sizeof *table);
  table[i] = (emu_range){at, at + bytes};
  count++;
  atomic_fetch_add(&generation, 1);
  (void)pthread_mutex_unlock(&mutex);
}

void emu_memory_remove(const void *memory) {
  const uintptr_t at = (uintptr_t)memory;
  (void)pthread_mutex_lock(&mutex);
  const size_t i = find(table, count, at);
  if (i < count && table[i].begin == at) {
    count--;
    memmove(&table[i], &table[i + 1], (count - i) * sizeof *table);
    atomic_fetch_add(&generation, 1);
  }
  (void)pthread_mutex_unlock(&mutex);
}

void emu_memory_refresh(emu_launch *l) {
  if (l->generation == atomic_load(&generation)) {
    return;
  }
  (void)pthread_mutex_lock(&mutex);
  emu_range *copy = realloc(l->ranges, (count + 1) * sizeof *copy);
  if (copy == NULL) {
    abort();
  }
  if (count > 0) {
    memcpy(copy, table, count * sizeof *copy);
  }
  l->ranges = copy;
  l->range_count = count;
  l->generation = atomic_load(&generation);
  (void)pthread_mutex_unlock(&mutex);
  for (uint32_t i = 0; i < l->warp_count; i++) {
    l->warps[i]->near = (emu_range){0, 0};
  }
}

bool emu_memory_find(emu_launch *l, uintptr_t at, size_t bytes, emu_range *out) {
  for (int tries = 0; tries < 2; tries++) {
    const size_t i = find(l->ranges, l->range_count, at);
    if (i < l->range_count && l->ranges[i].begin <= at && bytes <= l->ranges[i].end - at) {
      *out = l->ranges[i];
      return true;
    }
    emu_memory_refresh(l);  // it may be of just now
  }
  return false;
}

// --- faults --------------------------------------------------------------------------------------

static const char *line_of(const char *text, uint32_t line, int *length) {
  for (uint32_t i = 1; i < line && text != NULL; i++) {
    text = strchr(text, '\n');
    text = text != NULL ? text + 1 : NULL;
  }
  text = text != NULL ? text + strspn(text, " \t") : "";
  *length = (int)strcspn(text, "\n");
  *length = *length < 160 ? *length : 160;
  return text;
}

void emu_fault(emu_launch *l, const emu_warp *w, uint32_t pc, const char *format, ...) {
  char what[512];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  const emu_module *m = l->kernel->module;
  if (w != NULL && pc < m->op_count) {
    int length = 0;
    const char *text = line_of(m->text, m->ops[pc].line, &length);
    (void)snprintf(l->fault, sizeof l->fault,
                   "%s, block (%u, %u, %u), warp %u, PTX line %u \"%.*s\": %s",
                   l->kernel->code.name, w->block->id[0], w->block->id[1], w->block->id[2],
                   w->index, m->ops[pc].line, length, text, what);
  } else {
    (void)snprintf(l->fault, sizeof l->fault, "%s: %s", l->kernel->code.name, what);
  }
  longjmp(l->at_fault, 1);
}
