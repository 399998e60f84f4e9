// The fake GPU's memory: blocks of the host's, whose number is counted, copies, and memory that other
// processes map.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // memfd_create
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/fake_cuda_parts.h"

// --- blocks --------------------------------------------------------------------------------------

enum { MAX_LIVE = 256 };

static void *live[MAX_LIVE];  // blocks that were handed out

void *fake_cuda_track(void *memory) {
  for (size_t i = 0; i < MAX_LIVE; i++) {
    if (live[i] == NULL) {
      live[i] = memory;
      fake.live++;
      return memory;
    }
  }
  fail_msg("more than %d live blocks", MAX_LIVE);
  return NULL;
}

void fake_cuda_release(void *memory) {
  for (size_t i = 0; i < MAX_LIVE; i++) {
    if (live[i] == memory) {
      live[i] = NULL;
      fake.live--;
      free(memory);
      return;
    }
  }
  fail_msg("a block is freed that is not live");
}

void fake_cuda_reclaim(void) {
  for (size_t i = 0; i < MAX_LIVE; i++) {
    if (live[i] != NULL) {
      fake_cuda_release(live[i]);
    }
  }
}

static mgl_cu_result fake_memory_info(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = fake.free_bytes;
  *total_bytes = fake.free_bytes;
  return 0;
}

static mgl_cu_result fake_memory_alloc(mgl_cu_ptr *out, size_t bytes) {
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(memory, 0x5a, (bytes + 255) / 256 * 256);
  *out = (mgl_cu_ptr)(uintptr_t)fake_cuda_track(memory);
  return 0;
}

static mgl_cu_result fake_memory_free(mgl_cu_ptr memory) {
  fake_cuda_release((void *)(uintptr_t)memory);
  return 0;
}

// --- memory that other processes map: files in memory, whose descriptors are the handles ---------

static mgl_cu_result fake_memory_granularity(size_t *out, const mgl_cu_allocation *how,
                                             int option) {
  assert_true(how->type == MGL_CU_MEMORY_PINNED && how->handle_types == MGL_CU_HANDLE_FD);
  assert_int_equal(option, MGL_CU_GRANULARITY_RECOMMENDED);
  *out = 65536;
  return 0;
}

static mgl_cu_result fake_memory_create(uint64_t *handle, size_t bytes,
                                        const mgl_cu_allocation *how, unsigned long long flags) {
  int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
  (void)how, (void)flags;
  assert_true(bytes % 65536 == 0 && fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  *handle = (uint64_t)fd;
  fake.handles++;
  return 0;
}

static mgl_cu_result fake_memory_release(uint64_t handle) {
  fake.handles--;
  return close((int)handle);
}

static mgl_cu_result fake_memory_export(void *out, uint64_t handle, int type,
                                        unsigned long long flags) {
  int fd = dup((int)handle);
  (void)flags;
  assert_true(type == MGL_CU_HANDLE_FD && fd >= 0);
  memcpy(out, &fd, sizeof fd);
  return 0;
}

static mgl_cu_result fake_memory_import(uint64_t *handle, void *from, int type) {
  int fd = dup((int)(intptr_t)from);
  assert_true(type == MGL_CU_HANDLE_FD && fd >= 0);
  *handle = (uint64_t)fd;
  fake.handles++;
  return 0;
}

static mgl_cu_result fake_address_reserve(mgl_cu_ptr *out, size_t bytes, size_t alignment,
                                          mgl_cu_ptr at, unsigned long long flags) {
  void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)alignment, (void)at, (void)flags;
  assert_true(memory != MAP_FAILED);
  *out = (mgl_cu_ptr)(uintptr_t)memory;
  fake.maps++;
  return 0;
}

static mgl_cu_result fake_address_free(mgl_cu_ptr at, size_t bytes) {
  fake.maps--;
  return munmap((void *)(uintptr_t)at, bytes);
}

static mgl_cu_result fake_memory_map(mgl_cu_ptr at, size_t bytes, size_t offset, uint64_t handle,
                                     unsigned long long flags) {
  (void)flags;
  void *memory = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      (int)handle, (off_t)offset);
  return memory == MAP_FAILED ? 1 : 0;
}

static mgl_cu_result fake_memory_unmap(mgl_cu_ptr at, size_t bytes) {
  (void)at, (void)bytes;
  return 0;
}

static mgl_cu_result fake_memory_access(mgl_cu_ptr at, size_t bytes, const mgl_cu_access *access,
                                        size_t count) {
  (void)at, (void)bytes;
  return count == 1 && access->flags == MGL_CU_ACCESS_READ_WRITE ? fake.access_result : 1;
}

// --- copies, and the host's memory ---------------------------------------------------------------

static mgl_cu_result fake_memory_set(mgl_cu_ptr memory, unsigned char value, size_t bytes) {
  memset((void *)(uintptr_t)memory, value, bytes);
  return 0;
}

static mgl_cu_result fake_copy_to_device(mgl_cu_ptr to, const void *from, size_t bytes) {
  memcpy((void *)(uintptr_t)to, from, bytes);
  return 0;
}

static mgl_cu_result fake_copy_to_host(void *to, mgl_cu_ptr from, size_t bytes) {
  memcpy(to, (const void *)(uintptr_t)from, bytes);
  return 0;
}

static mgl_cu_result fake_copy_to_device_async(mgl_cu_ptr to, const void *from, size_t bytes,
                                               void *stream) {
  (void)stream;
  if (!fake.ignore_deadline) {
    uint64_t word;
    if (bytes == sizeof word) {  // a kernel that runs may poll it, and a copy stores words whole
      memcpy(&word, from, sizeof word);
      mgl_store_relaxed((mgl_word *)(uintptr_t)to, word);
    } else {
      memcpy((void *)(uintptr_t)to, from, bytes);
    }
    fake.hung = false;
  }
  return 0;
}

static mgl_cu_result fake_host_alloc(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  *out = fake_cuda_track(malloc(bytes));
  return 0;
}

static mgl_cu_result fake_host_free(void *memory) {
  fake_cuda_release(memory);
  return 0;
}

static mgl_cu_result fake_host_address(mgl_cu_ptr *out, void *memory, unsigned flags) {
  (void)flags;
  *out = (mgl_cu_ptr)(uintptr_t)memory;
  return 0;
}

void fake_cuda_memory_driver(mgl_cuda_driver *d) {
  d->memory_info = fake_memory_info;
  d->memory_alloc = fake_memory_alloc;
  d->memory_free = fake_memory_free;
  d->memory_set = fake_memory_set;
  d->memory_granularity = fake_memory_granularity;
  d->memory_create = fake_memory_create;
  d->memory_release = fake_memory_release;
  d->memory_export = fake_memory_export;
  d->memory_import = fake_memory_import;
  d->address_reserve = fake_address_reserve;
  d->address_free = fake_address_free;
  d->memory_map = fake_memory_map;
  d->memory_unmap = fake_memory_unmap;
  d->memory_access = fake_memory_access;
  d->copy_to_device = fake_copy_to_device;
  d->copy_to_host = fake_copy_to_host;
  d->copy_to_device_async = fake_copy_to_device_async;
  d->host_alloc = fake_host_alloc;
  d->host_free = fake_host_free;
  d->host_address = fake_host_address;
}
