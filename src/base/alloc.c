#include "base/alloc.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

// Written by any thread; relaxed, because they only count.
static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t alloc_fail_at;
static atomic_int_fast64_t alloc_live;

// True when a test wants this allocation to fail.
static bool injected_failure(void) {
  uint64_t n = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
  return n == atomic_load_explicit(&alloc_fail_at, memory_order_relaxed);
}

static void *count_live(void *memory) {
  if (memory != NULL) {
    atomic_fetch_add_explicit(&alloc_live, 1, memory_order_relaxed);
  }
  return memory;
}

void *mgl_alloc(size_t bytes) {
  return injected_failure() ? NULL : count_live(malloc(bytes == 0 ? 1 : bytes));
}

void *mgl_alloc_zeroed(size_t count, size_t bytes_each) {
  if (injected_failure()) {
    return NULL;
  }
  bool empty = count == 0 || bytes_each == 0;
  return count_live(empty ? calloc(1, 1) : calloc(count, bytes_each));
}

void *mgl_realloc(void *old, size_t bytes) {
  if (old == NULL) {
    return mgl_alloc(bytes);
  }
  return injected_failure() ? NULL : realloc(old, bytes == 0 ? 1 : bytes);
}

char *mgl_strndup(const char *text, size_t bytes) {
  char *copy = bytes == SIZE_MAX ? NULL : mgl_alloc(bytes + 1);
  if (copy != NULL) {
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
  }
  return copy;
}

char *mgl_strdup(const char *text) {
  return mgl_strndup(text, strlen(text));
}

void mgl_free(void *memory) {
  if (memory != NULL) {
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
    free(memory);
  }
}

mgl_status mgl_grow(void **items, size_t *capacity, size_t needed, size_t bytes_each,
                    mgl_error *err) {
  if (needed <= *capacity) {
    return MGL_OK;
  }
  size_t grown = *capacity + *capacity / 2 + 8;
  if (grown < needed) {
    grown = needed;
  }
  if (grown > SIZE_MAX / bytes_each) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: %zu items of %zu bytes", grown,
                         bytes_each);
  }
  void *moved = mgl_realloc(*items, grown * bytes_each);
  if (moved == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory: %zu bytes for a list",
                         grown * bytes_each);
  }
  *items = moved;
  *capacity = grown;
  return MGL_OK;
}

// The value in bytes of a "Key:   123 kB" line of /proc/meminfo, UINT64_MAX if absent.
static uint64_t meminfo_bytes(const char *key) {
  FILE *file = fopen("/proc/meminfo", "re");
  if (file == NULL) {
    return UINT64_MAX;
  }
  char line[256];
  uint64_t bytes = UINT64_MAX;
  size_t key_bytes = strlen(key);
  while (fgets(line, sizeof line, file) != NULL) {
    uint64_t kib = 0;
    if (strncmp(line, key, key_bytes) == 0 && sscanf(line + key_bytes, ": %" SCNu64, &kib) == 1) {
      bytes = kib * 1024;
      break;
    }
  }
  (void)fclose(file);
  return bytes;
}

// One number from a cgroup file; UINT64_MAX for "max" or a missing file.
static uint64_t cgroup_bytes(const char *path) {
  FILE *file = fopen(path, "re");
  if (file == NULL) {
    return UINT64_MAX;
  }
  uint64_t bytes = UINT64_MAX;
  if (fscanf(file, "%" SCNu64, &bytes) != 1) {
    bytes = UINT64_MAX;
  }
  (void)fclose(file);
  return bytes;
}

uint64_t mgl_memory_available(void) {
  uint64_t available = meminfo_bytes("MemAvailable");
  uint64_t limit = cgroup_bytes("/sys/fs/cgroup/memory.max");
  uint64_t used = cgroup_bytes("/sys/fs/cgroup/memory.current");
  if (limit != UINT64_MAX && used != UINT64_MAX) {
    uint64_t left = limit > used ? limit - used : 0;
    available = left < available ? left : available;
  }
  return available;
}

mgl_status mgl_pages_map(size_t bytes, const char *what, void **out, mgl_error *err) {
  *out = NULL;
  uint64_t available = mgl_memory_available();
  if ((uint64_t)bytes > available) {
    return mgl_error_set(err, MGL_ERR_MEMORY,
                         "too little memory for the %s: needs %.2f GiB, %.2f GiB are available",
                         what, (double)bytes / 0x1p30, (double)available / 0x1p30);
  }
  size_t extra = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
  void *mapped = MAP_FAILED;
  if (!injected_failure() && bytes != 0 && bytes <= SIZE_MAX - extra) {
    mapped = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapped == MAP_FAILED) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "could not map %.2f GiB for the %s",
                         (double)bytes / 0x1p30, what);
  }
  char *start = mapped;
  if (extra != 0) {
    // Trim the mapping to a 2 MiB boundary, so that every part of it can be a huge page.
    size_t head = (HUGE_PAGE_BYTES - (uintptr_t)start % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head != 0) {
      (void)munmap(start, head);
    }
    start += head;
    size_t kept = (bytes + 4095) / 4096 * 4096;
    if (extra - head > kept - bytes) {
      (void)munmap(start + kept, extra - head - (kept - bytes));
    }
    (void)madvise(start, bytes, MADV_HUGEPAGE);  // a hint: small pages are slower, not wrong
  }
  *out = count_live(start);
  return MGL_OK;
}

void mgl_pages_unmap(void *memory, size_t bytes) {
  if (memory != NULL) {
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
    (void)munmap(memory, bytes);
  }
}

void mgl_alloc_fail_nth(uint64_t n) {
  atomic_store_explicit(&alloc_count, 0, memory_order_relaxed);
  atomic_store_explicit(&alloc_fail_at, n, memory_order_relaxed);
}

uint64_t mgl_alloc_count(void) {
  return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

int64_t mgl_alloc_live(void) {
  return atomic_load_explicit(&alloc_live, memory_order_relaxed);
}
