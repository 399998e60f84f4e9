// The driver's devices, memory and modules; streams and what runs on them are driver_streams.c's.
#include "emulator/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current;  // 1 + the device; 0: none

void emu_lock(void) {
  (void)pthread_mutex_lock(&mutex);
}

void emu_unlock(void) {
  (void)pthread_mutex_unlock(&mutex);
}

uint32_t emu_setting(const char *name, uint32_t otherwise) {
  const char *text = getenv(name);
  return text != NULL && *text != 0 ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

int emu_current_device(void) {
  return current > 0 ? current - 1 : 0;
}

// --- devices -------------------------------------------------------------------------------------

static uint32_t gpus(void) {
  uint32_t count = emu_setting("EMULATED_GPUS", 1);
  return count < EMU_MOST_GPUS ? count : EMU_MOST_GPUS;
}

static size_t total_bytes(void) {
  return (size_t)emu_setting("EMULATED_MEMORY", 2048) << 20;
}

EMU_CALL cuInit(unsigned flags) {
  (void)flags;
  return gpus() > 0 ? EMU_OK : MGL_CU_NO_DEVICE;
}

EMU_CALL cuDriverGetVersion(int *version) {
  *version = 13000;
  return EMU_OK;
}

EMU_CALL cuGetErrorString(mgl_cu_result code, const char **text) {
  static const struct {
    mgl_cu_result code;
    const char *text;
  } texts[] = {{EMU_OK, "no error"},
               {EMU_INVALID_VALUE, "invalid argument"},
               {EMU_OUT_OF_MEMORY, "out of memory"},
               {MGL_CU_NO_DEVICE, "no GPU is emulated (EMULATED_GPUS=0)"},
               {EMU_INVALID_IMAGE, "device code that is no PTX: the emulator's libnvrtc makes it"},
               {EMU_INVALID_CONTEXT, "no context"},
               {EMU_INVALID_PTX, "PTX that the emulator does not know (see stderr)"},
               {EMU_INVALID_HANDLE, "invalid handle"},
               {EMU_NOT_FOUND, "not found"},
               {MGL_CU_NOT_READY, "not ready"},
               {EMU_LAUNCH_FAILED, "the emulator found a fault (see stderr)"},
               {EMU_TOO_LARGE, "too many blocks in a cooperative launch"}};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    if (texts[i].code == code) {
      *text = texts[i].text;
      return EMU_OK;
    }
  }
  *text = NULL;
  return EMU_INVALID_VALUE;
}

EMU_CALL cuGetErrorName(mgl_cu_result code, const char **name) {
  return cuGetErrorString(code, name);
}

EMU_CALL cuDeviceGetCount(int *count) {
  *count = (int)gpus();
  return EMU_OK;
}

EMU_CALL cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && (uint32_t)ordinal < gpus() ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuDeviceGetName(char *name, int bytes, int device) {
  (void)snprintf(name, (size_t)bytes, "Emulated GPU %d", device);
  return EMU_OK;
}

EMU_CALL cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = total_bytes();
  return EMU_OK;
}

EMU_CALL cuDeviceGetAttribute(int *value, int attribute, int device) {
  const char *text = getenv("EMULATED_CAPABILITY");
  unsigned major = 9, minor = 0;
  if (text != NULL && sscanf(text, "%u.%u", &major, &minor) != 2) {
    return EMU_INVALID_VALUE;
  }
  switch (attribute) {
    case MGL_CU_ATTRIBUTE_SM_COUNT: *value = (int)emu_setting("EMULATED_SMS", 4); break;
    case MGL_CU_ATTRIBUTE_PCI_BUS: *value = 1 + device; break;
    case MGL_CU_ATTRIBUTE_PCI_SLOT: *value = 0; break;
    case MGL_CU_ATTRIBUTE_PCI_DOMAIN: *value = 0; break;
    case MGL_CU_ATTRIBUTE_MAJOR: *value = (int)major; break;
    case MGL_CU_ATTRIBUTE_MINOR: *value = (int)minor; break;
    case MGL_CU_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = 1; break;
    case MGL_CU_ATTRIBUTE_SMEM_PER_SM: *value = EMU_SMEM_PER_SM; break;
    case MGL_CU_ATTRIBUTE_SMEM_PER_BLOCK: *value = EMU_SMEM_PER_BLOCK; break;
    case MGL_CU_ATTRIBUTE_SMEM_RESERVED: *value = EMU_SMEM_RESERVED; break;
    // An emulator has no bandwidth that anything could be a share of.
    case MGL_CU_ATTRIBUTE_MEMORY_CLOCK_KHZ: *value = 1000; break;
    case MGL_CU_ATTRIBUTE_MEMORY_BUS_BITS: *value = 64; break;
    default: return EMU_INVALID_VALUE;
  }
  return EMU_OK;
}

// A context is its device's number, from 1 on, as a pointer.
EMU_CALL cuDevicePrimaryCtxRetain(void **context, int device) {
  const uintptr_t number = (uintptr_t)device + 1;
  memcpy(context, &number, sizeof number);
  return device >= 0 && (uint32_t)device < gpus() ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return EMU_OK;
}

EMU_CALL cuCtxSetCurrent(void *context) {
  current = (int)(uintptr_t)context;
  return EMU_OK;
}

EMU_CALL cuCtxSynchronize(void) {
  return emu_synchronize(emu_current_device());
}

// --- memory --------------------------------------------------------------------------------------

// Blocks of every kind that was handed out. A device's memory is mapped between pages that nothing
// may touch, and begins as NaNs: what is read before it is written shows in results.
enum { PAGE = 4096, ALIGNMENT = 256, POISON = 0xff, MOST_POISONED = 64 << 20 };

typedef enum block_kind { OF_DEVICE, PINNED, SHARED } block_kind;

typedef struct block {
  struct block *next;
  block_kind kind;
  int device;
  uint8_t *memory;
  size_t bytes;
  uint8_t *map;  // what is unmapped for it
  size_t map_bytes;
} block;

static block *blocks;
static size_t used_bytes[EMU_MOST_GPUS];

static size_t up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

static mgl_cu_result new_block(block_kind kind, size_t bytes, void **out) {
  const int device = emu_current_device();
  const bool counts = kind == OF_DEVICE;
  block *b = calloc(1, sizeof *b);
  mgl_cu_result result = EMU_OUT_OF_MEMORY;
  if (b == NULL || bytes == 0) {
    free(b);
    return bytes == 0 ? EMU_INVALID_VALUE : EMU_OUT_OF_MEMORY;
  }
  emu_lock();
  if (!counts || used_bytes[device] + bytes <= total_bytes()) {
    b->kind = kind;
    b->device = device;
    b->bytes = bytes;
    b->map_bytes = up(up(bytes, ALIGNMENT), PAGE) + (size_t)2 * PAGE;
    b->map =
        mmap(NULL, b->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->map != MAP_FAILED &&
        mprotect(b->map + PAGE, b->map_bytes - (size_t)2 * PAGE, PROT_READ | PROT_WRITE) == 0) {
      // The end of the block is the end of its pages, as far as alignment allows.
      b->memory = b->map + b->map_bytes - PAGE - up(bytes, ALIGNMENT);
      b->next = blocks;
      blocks = b;
      used_bytes[device] += counts ? bytes : 0;
      result = EMU_OK;
    }
  }
  emu_unlock();
  if (result != EMU_OK) {
    free(b);
    return result;
  }
  if (bytes <= MOST_POISONED) {
    memset(b->memory, POISON, bytes);
  }
  emu_memory_add(b->memory, bytes);
  *out = b->memory;
  return EMU_OK;
}

static mgl_cu_result free_block(const void *memory, bool pinned) {
  emu_lock();
  block **at = &blocks;
  while (*at != NULL && ((*at)->memory != memory || ((*at)->kind == PINNED) != pinned)) {
    at = &(*at)->next;
  }
  block *b = *at;
  if (b != NULL) {
    *at = b->next;
    used_bytes[b->device] -= b->kind == OF_DEVICE ? b->bytes : 0;
  }
  emu_unlock();
  if (b == NULL) {
    return EMU_INVALID_VALUE;
  }
  (void)emu_synchronize(b->device);
  emu_memory_remove(b->memory);
  (void)munmap(b->map, b->map_bytes);
  free(b);
  return EMU_OK;
}

bool emu_is_pinned(const void *memory) {
  const uint8_t *at = memory;
  const block *b = blocks;
  while (b != NULL && (b->kind != PINNED || at < b->memory || at >= b->memory + b->bytes)) {
    b = b->next;
  }
  return b != NULL;
}

EMU_CALL cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  emu_lock();
  *total = total_bytes();
  *free_bytes = *total - used_bytes[emu_current_device()];
  emu_unlock();
  return EMU_OK;
}

EMU_CALL cuMemAlloc_v2(mgl_cu_ptr *out, size_t bytes) {
  void *memory = NULL;
  mgl_cu_result result = new_block(OF_DEVICE, bytes, &memory);
  *out = (mgl_cu_ptr)(uintptr_t)memory;
  return result;
}

EMU_CALL cuMemFree_v2(mgl_cu_ptr memory) {
  return memory == 0 ? EMU_OK : free_block((const void *)(uintptr_t)memory, false);
}

EMU_CALL cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  return new_block(PINNED, bytes, out);
}

EMU_CALL cuMemFreeHost(void *memory) {
  return free_block(memory, true);
}

EMU_CALL cuMemHostGetDevicePointer_v2(mgl_cu_ptr *out, void *memory, unsigned flags) {
  (void)flags;
  *out = (mgl_cu_ptr)(uintptr_t)memory;
  emu_lock();
  const bool pinned = emu_is_pinned(memory);
  emu_unlock();
  return pinned ? EMU_OK : EMU_INVALID_VALUE;
}

// --- memory that other processes map: files in memory, whose descriptors are the handles ----------

enum { GRANULARITY = 65536 };

EMU_CALL cuMemGetAllocationGranularity(size_t *out, const mgl_cu_allocation *how, int option) {
  (void)option;
  *out = GRANULARITY;
  return how->type == MGL_CU_MEMORY_PINNED ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuMemCreate(uint64_t *handle, size_t bytes, const mgl_cu_allocation *how,
                     unsigned long long flags) {
  (void)how, (void)flags;
  const int fd = bytes % GRANULARITY == 0 ? memfd_create("emulated_gpu", MFD_CLOEXEC) : -1;
  if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
    return bytes % GRANULARITY == 0 ? EMU_OUT_OF_MEMORY : EMU_INVALID_VALUE;
  }
  *handle = (uint64_t)fd;
  return EMU_OK;
}

EMU_CALL cuMemRelease(uint64_t handle) {
  return close((int)handle) == 0 ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuMemExportToShareableHandle(void *out, uint64_t handle, int type,
                                      unsigned long long flags) {
  const int fd = type == MGL_CU_HANDLE_FD ? dup((int)handle) : -1;
  (void)flags;
  memcpy(out, &fd, sizeof fd);
  return fd >= 0 ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuMemImportFromShareableHandle(uint64_t *handle, void *from, int type) {
  const int fd = type == MGL_CU_HANDLE_FD ? dup((int)(intptr_t)from) : -1;
  *handle = (uint64_t)fd;
  return fd >= 0 ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuMemAddressReserve(mgl_cu_ptr *out, size_t bytes, size_t alignment, mgl_cu_ptr at,
                             unsigned long long flags) {
  (void)alignment, (void)at, (void)flags;
  void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = (mgl_cu_ptr)(uintptr_t)memory;
  return memory != MAP_FAILED ? EMU_OK : EMU_OUT_OF_MEMORY;
}

EMU_CALL cuMemAddressFree(mgl_cu_ptr at, size_t bytes) {
  return munmap((void *)(uintptr_t)at, bytes) == 0 ? EMU_OK : EMU_INVALID_VALUE;
}

// Mapped memory may be touched once access is granted.
EMU_CALL cuMemMap(mgl_cu_ptr at, size_t bytes, size_t offset, uint64_t handle,
                  unsigned long long flags) {
  (void)flags;
  void *memory = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      (int)handle, (off_t)offset);
  return memory != MAP_FAILED ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuMemUnmap(mgl_cu_ptr at, size_t bytes) {
  void *memory = (void *)(uintptr_t)at;
  (void)emu_synchronize(emu_current_device());
  emu_memory_remove(memory);
  memory = mmap(memory, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                -1, 0);
  return memory != MAP_FAILED ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_CALL cuMemSetAccess(mgl_cu_ptr at, size_t bytes, const mgl_cu_access *access, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (access[i].location.id == emu_current_device() &&
        access[i].flags == MGL_CU_ACCESS_READ_WRITE) {
      emu_memory_add((const void *)(uintptr_t)at, bytes);
      return EMU_OK;
    }
  }
  return EMU_INVALID_VALUE;
}

// --- modules -------------------------------------------------------------------------------------

typedef struct module {
  emu_module *code;
  emu_function *functions;
} module;

EMU_CALL cuModuleLoadData(void **out, const void *image) {
  char why[512] = "";
  // NVRTC's PTX begins with a comment, and no cubin does.
  if (strncmp(image, "//", 2) != 0) {
    return EMU_INVALID_IMAGE;
  }
  module *m = calloc(1, sizeof *m);
  if (m == NULL) {
    return EMU_OUT_OF_MEMORY;
  }
  m->code = emu_module_load(image, why, sizeof why);
  if (m->code == NULL) {
    (void)fprintf(stderr, "emulator: %s\n", why);
    free(m);
    return EMU_INVALID_PTX;
  }
  *out = m;
  return EMU_OK;
}

EMU_CALL cuModuleUnload(void *which) {
  module *m = which;
  (void)emu_synchronize(emu_current_device());
  while (m->functions != NULL) {
    emu_function *next = m->functions->next;
    free(m->functions);
    m->functions = next;
  }
  emu_module_destroy(m->code);
  free(m);
  return EMU_OK;
}

EMU_CALL cuModuleGetFunction(void **out, void *which, const char *name) {
  module *m = which;
  const emu_kernel *kernel = emu_module_kernel(m->code, name);
  emu_function *f = m->functions;
  while (kernel != NULL && f != NULL && f->kernel != kernel) {
    f = f->next;
  }
  if (kernel == NULL) {
    return EMU_NOT_FOUND;
  }
  if (f == NULL) {
    f = calloc(1, sizeof *f);
    if (f == NULL) {
      return EMU_OUT_OF_MEMORY;
    }
    *f = (emu_function){.next = m->functions, .kernel = kernel, .most_dynamic_bytes = 48 * 1024};
    m->functions = f;
  }
  *out = f;
  return EMU_OK;
}

EMU_CALL cuFuncSetAttribute(void *function, int attribute, int value) {
  emu_function *f = function;
  const uint32_t fixed = emu_kernel_describe(f->kernel).shared_bytes;
  if (attribute == MGL_CU_FUNC_MAX_DYNAMIC_SMEM) {
    if (value < 0 || (uint32_t)value + fixed > EMU_SMEM_PER_BLOCK) {
      return EMU_INVALID_VALUE;
    }
    f->most_dynamic_bytes = (uint32_t)value;
  }
  return attribute == MGL_CU_FUNC_MAX_DYNAMIC_SMEM || attribute == MGL_CU_FUNC_SMEM_CARVEOUT
             ? EMU_OK
             : EMU_INVALID_VALUE;
}

// Registers do not bind: how many a kernel takes, PTX does not say; where it says how many blocks
// have to fit, they would.
uint32_t emu_blocks_per_sm(const emu_function *f, uint32_t threads, size_t dynamic_bytes) {
  enum { THREADS_PER_SM = 2048, BLOCKS_PER_SM = 32 };
  const emu_kernel_facts facts = emu_kernel_describe(f->kernel);
  const size_t shared = facts.shared_bytes + dynamic_bytes + EMU_SMEM_RESERVED;
  const size_t by_shared = EMU_SMEM_PER_SM / shared;
  const size_t by_threads = THREADS_PER_SM / (threads > 0 ? threads : 1);
  size_t most = by_shared < by_threads ? by_shared : by_threads;
  most = most < BLOCKS_PER_SM ? most : BLOCKS_PER_SM;
  if (facts.threads != 0 && threads > facts.threads) {
    return 0;
  }
  return dynamic_bytes <= f->most_dynamic_bytes ? (uint32_t)most : 0;
}

EMU_CALL cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *function, int threads,
                                                     size_t dynamic_bytes) {
  *out = (int)emu_blocks_per_sm(function, (uint32_t)threads, dynamic_bytes);
  return EMU_OK;
}
