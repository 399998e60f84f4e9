// The CUDA driver API, opened at run time, and one device made ready.
//
// Megalith links nothing of CUDA: the driver's library is opened with dlopen, so that one binary
// starts on machines with and without a GPU. The table below is all that Megalith calls. Types are
// declared here as the driver's ABI has them (stable since CUDA 3.2), so that no toolkit is needed
// to build. Used by one thread at a time.
#ifndef MGL_DEVICE_CUDA_CUDA_DRIVER_H
#define MGL_DEVICE_CUDA_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/compilation.h"

typedef int mgl_cu_result;    // CUresult; 0 is success
typedef uint64_t mgl_cu_ptr;  // CUdeviceptr: an address on the device

enum {
  MGL_CU_STUB_LIBRARY = 34,  // the toolkit's stand-in for a driver
  MGL_CU_NO_DEVICE = 100,
  MGL_CU_NOT_READY = 600,
  MGL_CUDA_LEAST_DRIVER = 12000,  // CUDA 12.0
  MGL_CU_ATTRIBUTE_SM_COUNT = 16,
  MGL_CU_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
  MGL_CU_ATTRIBUTE_MEMORY_BUS_BITS = 37,
  MGL_CU_ATTRIBUTE_PCI_BUS = 33,
  MGL_CU_ATTRIBUTE_PCI_SLOT = 34,
  MGL_CU_ATTRIBUTE_PCI_DOMAIN = 50,
  MGL_CU_ATTRIBUTE_SMEM_PER_SM = 81,
  MGL_CU_ATTRIBUTE_SMEM_RESERVED = 111,  // of every block, by the driver
  MGL_CU_ATTRIBUTE_MAJOR = 75,
  MGL_CU_ATTRIBUTE_MINOR = 76,
  MGL_CU_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
  MGL_CU_ATTRIBUTE_SMEM_PER_BLOCK = 97,  // with opt-in
  MGL_CU_FUNC_MAX_DYNAMIC_SMEM = 8,
  MGL_CU_FUNC_SMEM_CARVEOUT = 9,  // percent of an SM's memory
  MGL_CU_STREAM_NON_BLOCKING = 1,
  MGL_CU_HOST_ALLOC_PORTABLE = 1,
  MGL_CU_HOST_ALLOC_MAPPED = 2,
};

// CUlaunchConfig and CUlaunchAttribute, as far as they are used.
enum { MGL_CU_LAUNCH_PROGRAMMATIC = 6 };  // the kernel may start before the one before it ends

typedef struct mgl_cu_launch_attribute {
  int id;
  int padding;
  _Alignas(8) int value;
  int rest[15];
} mgl_cu_launch_attribute;

typedef struct mgl_cu_launch_config {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned smem_bytes;
  void *stream;
  mgl_cu_launch_attribute *attributes;
  unsigned attribute_count;
} mgl_cu_launch_config;

_Static_assert(sizeof(mgl_cu_launch_attribute) == 72 && sizeof(mgl_cu_launch_config) == 56,
               "the driver's layout");

enum { MGL_CU_CAPTURE_RELAXED = 2 };  // other calls are allowed meanwhile

// MGL_CU(member, symbol, parameters)
// CUmemAllocationProp and CUmemAccessDesc: memory that other processes map.
enum {
  MGL_CU_MEMORY_PINNED = 1,
  MGL_CU_HANDLE_FD = 1,  // a POSIX file descriptor
  MGL_CU_LOCATION_DEVICE = 1,
  MGL_CU_ACCESS_READ_WRITE = 3,
  MGL_CU_GRANULARITY_RECOMMENDED = 1,
};

typedef struct mgl_cu_location {
  int type, id;
} mgl_cu_location;

typedef struct mgl_cu_allocation {
  int type, handle_types;
  mgl_cu_location location;
  void *unused;
  unsigned char flags[8];
} mgl_cu_allocation;

typedef struct mgl_cu_access {
  mgl_cu_location location;
  int flags;
} mgl_cu_access;

_Static_assert(sizeof(mgl_cu_allocation) == 32 && sizeof(mgl_cu_access) == 12,
               "the driver's layout");

#define MGL_CU_TABLE(MGL_CU)                                                                       \
  MGL_CU(init, "cuInit", (unsigned flags))                                                         \
  MGL_CU(driver_version, "cuDriverGetVersion", (int *version))                                     \
  MGL_CU(error_name, "cuGetErrorName", (mgl_cu_result code, const char **name))                    \
  MGL_CU(error_string, "cuGetErrorString", (mgl_cu_result code, const char **text))                \
  MGL_CU(device_count, "cuDeviceGetCount", (int *count))                                           \
  MGL_CU(device_get, "cuDeviceGet", (int *device, int ordinal))                                    \
  MGL_CU(device_name, "cuDeviceGetName", (char *name, int bytes, int device))                      \
  MGL_CU(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                       \
  MGL_CU(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))        \
  MGL_CU(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                 \
  MGL_CU(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                            \
  MGL_CU(context_set, "cuCtxSetCurrent", (void *context))                                          \
  MGL_CU(context_synchronize, "cuCtxSynchronize", (void))                                          \
  MGL_CU(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))              \
  MGL_CU(memory_alloc, "cuMemAlloc_v2", (mgl_cu_ptr * out, size_t bytes))                          \
  MGL_CU(memory_free, "cuMemFree_v2", (mgl_cu_ptr memory))                                         \
  MGL_CU(memory_set, "cuMemsetD8_v2", (mgl_cu_ptr memory, unsigned char value, size_t bytes))      \
  MGL_CU(memory_granularity, "cuMemGetAllocationGranularity",                                      \
         (size_t * out, const mgl_cu_allocation *how, int option))                                 \
  MGL_CU(                                                                                          \
      memory_create, "cuMemCreate",                                                                \
      (uint64_t * handle, size_t bytes, const mgl_cu_allocation *how, unsigned long long flags))   \
  MGL_CU(memory_release, "cuMemRelease", (uint64_t handle))                                        \
  MGL_CU(memory_export, "cuMemExportToShareableHandle",                                            \
         (void *out, uint64_t handle, int handle_type, unsigned long long flags))                  \
  MGL_CU(memory_import, "cuMemImportFromShareableHandle",                                          \
         (uint64_t * handle, void *from, int handle_type))                                         \
  MGL_CU(                                                                                          \
      address_reserve, "cuMemAddressReserve",                                                      \
      (mgl_cu_ptr * out, size_t bytes, size_t alignment, mgl_cu_ptr at, unsigned long long flags)) \
  MGL_CU(address_free, "cuMemAddressFree", (mgl_cu_ptr at, size_t bytes))                          \
  MGL_CU(memory_map, "cuMemMap",                                                                   \
         (mgl_cu_ptr at, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))  \
  MGL_CU(memory_unmap, "cuMemUnmap", (mgl_cu_ptr at, size_t bytes))                                \
  MGL_CU(memory_access, "cuMemSetAccess",                                                          \
         (mgl_cu_ptr at, size_t bytes, const mgl_cu_access *access, size_t count))                 \
  MGL_CU(copy_to_device, "cuMemcpyHtoD_v2", (mgl_cu_ptr to, const void *from, size_t bytes))       \
  MGL_CU(copy_to_host, "cuMemcpyDtoH_v2", (void *to, mgl_cu_ptr from, size_t bytes))               \
  MGL_CU(copy_to_device_async, "cuMemcpyHtoDAsync_v2",                                             \
         (mgl_cu_ptr to, const void *from, size_t bytes, void *stream))                            \
  MGL_CU(copy_to_host_async, "cuMemcpyDtoHAsync_v2",                                               \
         (void *to, mgl_cu_ptr from, size_t bytes, void *stream))                                  \
  MGL_CU(host_alloc, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags))                 \
  MGL_CU(host_free, "cuMemFreeHost", (void *memory))                                               \
  MGL_CU(host_address, "cuMemHostGetDevicePointer_v2",                                             \
         (mgl_cu_ptr * out, void *memory, unsigned flags))                                         \
  MGL_CU(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                         \
  MGL_CU(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                     \
  MGL_CU(stream_query, "cuStreamQuery", (void *stream))                                            \
  MGL_CU(stream_synchronize, "cuStreamSynchronize", (void *stream))                                \
  MGL_CU(event_create, "cuEventCreate", (void **event, unsigned flags))                            \
  MGL_CU(event_destroy, "cuEventDestroy_v2", (void *event))                                        \
  MGL_CU(event_record, "cuEventRecord", (void *event, void *stream))                               \
  MGL_CU(event_synchronize, "cuEventSynchronize", (void *event))                                   \
  MGL_CU(event_elapsed, "cuEventElapsedTime", (float *ms, void *begin, void *end))                 \
  MGL_CU(module_load, "cuModuleLoadData", (void **module, const void *image))                      \
  MGL_CU(module_unload, "cuModuleUnload", (void *module))                                          \
  MGL_CU(module_function, "cuModuleGetFunction",                                                   \
         (void **function, void *module, const char *name))                                        \
  MGL_CU(function_set, "cuFuncSetAttribute", (void *function, int attribute, int value))           \
  MGL_CU(blocks_per_sm, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                             \
         (int *blocks, void *function, int threads, size_t dynamic_smem_bytes))                    \
  MGL_CU(launch, "cuLaunchKernel",                                                                 \
         (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
          unsigned block_y, unsigned block_z, unsigned smem_bytes, void *stream,                   \
          void **parameters, void **extra))                                                        \
  MGL_CU(launch_config, "cuLaunchKernelEx",                                                        \
         (const mgl_cu_launch_config *how, void *function, void **parameters, void **extra))       \
  MGL_CU(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                       \
  MGL_CU(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                          \
  MGL_CU(graph_destroy, "cuGraphDestroy", (void *graph))                                           \
  MGL_CU(graph_print, "cuGraphDebugDotPrint", (void *graph, const char *path, unsigned flags))     \
  MGL_CU(graph_instantiate, "cuGraphInstantiateWithFlags",                                         \
         (void **executable, void *graph, unsigned long long flags))                               \
  MGL_CU(graph_launch, "cuGraphLaunch", (void *executable, void *stream))                          \
  MGL_CU(graph_release, "cuGraphExecDestroy", (void *executable))                                  \
  MGL_CU(                                                                                          \
      launch_cooperative, "cuLaunchCooperativeKernel",                                             \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned smem_bytes, void *stream, void **parameters))

typedef struct mgl_cuda_driver {
  void *library;
#define MGL_CU(member, symbol, parameters) mgl_cu_result(*member) parameters;
  MGL_CU_TABLE(MGL_CU)
#undef MGL_CU
} mgl_cuda_driver;

// Opens the library and fills the table. MGL_ERR_UNSUPPORTED where there is no driver (out->library
// is NULL) or an old one. The library
// stays loaded until the process ends: drivers do not survive dlclose everywhere.
mgl_status mgl_cuda_driver_open(mgl_cuda_driver *out, mgl_error *err);

// MGL_OK for code 0, else MGL_ERR_IO with the driver's words: "cuMemAlloc_v2: out of memory (2)".
mgl_status mgl_cuda_check(const mgl_cuda_driver *driver, mgl_cu_result code, const char *what,
                          mgl_error *err);

// Calls a function of the table, as a status; and forwards its failure, as MGL_TRY.
#define MGL_CUDA_CALL(driver, member, err, ...) \
  mgl_cuda_check((driver), (driver)->member(__VA_ARGS__), #member, (err))
#define MGL_CUDA_TRY(driver, member, err, ...) \
  MGL_TRY(MGL_CUDA_CALL(driver, member, err, __VA_ARGS__))

// Gives back what a function of the table has made, by another one; NULL or 0: nothing was made.
#define MGL_CUDA_RELEASE(driver, member, made) \
  ((made) != 0 ? (void)(driver)->member(made) : (void)0)

// Which kernels of those that device code has: kernels/cuda/common/target.h, which each includes
// those before it.
typedef enum mgl_cuda_kernels {
  MGL_CUDA_KERNELS_PORTABLE,  // cp.async and mma.sync, on every GPU
  MGL_CUDA_KERNELS_COPIES,    // bulk copies, on 10.0
  MGL_CUDA_KERNELS_WGMMA,     // and products of warpgroups, on 9.0
} mgl_cuda_kernels;

// The most that a GPU of that compute capability can run, or less where MEGALITH_KERNELS, "auto" or
// "portable", asks for it. MGL_ERR_ARGUMENT: it is neither.
mgl_status mgl_cuda_kernels_choose(uint32_t major, uint32_t minor, mgl_cuda_kernels *out,
                                   mgl_error *err);

typedef struct mgl_cuda_device {
  mgl_cuda_driver driver;
  int device;
  void *context;  // the primary one, current in the thread that opened it
  char name[128];
  int driver_version;  // 13000 is CUDA 13.0
  uint32_t sm_count;
  uint32_t memory_clock_khz, memory_bus_bits;  // 0: the driver does not say
  uint32_t major, minor;                       // compute capability
  uint32_t smem_per_block_bytes;               // with opt-in
  mgl_cuda_kernels kernels;
  // Of its code (cuda_code.h): where it is kept, "": base/cache_folder.h; and what compiles it.
  char cache_folder[MGL_COMPILATION_PATH_BYTES];
  // Where what the compiler was given is told (device/debug_dump.h); "": nowhere.
  char dump_folder[MGL_COMPILATION_PATH_BYTES];
  const struct mgl_cuda_compiler *compiler;  // cuda_compiler.h; NULL: NVRTC
} mgl_cuda_device;

// How many the driver finds; 0 also where there is no driver that works.
uint32_t mgl_cuda_device_count(void);
mgl_status mgl_cuda_device_open(int ordinal, mgl_cuda_device *out, mgl_error *err);
// By a compilation; NULL: the usual ones.
void mgl_cuda_device_choose_code(mgl_cuda_device *device, const mgl_compilation *c);
void mgl_cuda_device_close(mgl_cuda_device *device);  // closing a zeroed device is fine

// dlopen and dlsym for other tables of this kind: fills count function pointers at out[i] from
// symbols[i]; names the first that is missing.
mgl_status mgl_cuda_find_symbols(void *library, const char *where, const char *const *symbols,
                                 void *const *out, size_t count, mgl_error *err);

#endif
