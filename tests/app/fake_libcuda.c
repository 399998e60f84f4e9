// A libcuda.so.1 that finds what the environment says, for tests of the messages about GPUs that
// cannot be used. Calls that would use one fail.
//   FAKE_CUDA_DRIVER   the driver's CUDA version [13000]
//   FAKE_CUDA_DEVICES  how many devices [1]; 0: cuInit says that there is none
//   FAKE_CUDA_MAJOR    their compute capability [9]
//   FAKE_CUDA_INIT     what cuInit returns [0]
//   FAKE_CUDA_BUS      where the first one is on the host [0]; the others follow
//   FAKE_CUDA_FREE     their free memory, bytes [1000]
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { REFUSED = 999, NO_DEVICE = 100 };
enum { SM_COUNT = 16, PCI_BUS = 33, MAJOR = 75, MINOR = 76, COOPERATIVE = 95 };

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

int cuInit(unsigned flags) {
  (void)flags;
  return number("FAKE_CUDA_DEVICES", 1) == 0 ? NO_DEVICE : (int)number("FAKE_CUDA_INIT", 0);
}

int cuDriverGetVersion(int *version) {
  *version = (int)number("FAKE_CUDA_DRIVER", 13000);
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = (int)number("FAKE_CUDA_DEVICES", 1);
  return 0;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetName(char *name, int bytes, int device) {
  (void)device;
  (void)snprintf(name, (size_t)bytes, "Fake GPU");
  return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)16 << 30;
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case PCI_BUS: *value = (int)number("FAKE_CUDA_BUS", 0) + device; break;
    case SM_COUNT: *value = 6; break;
    case MAJOR: *value = (int)number("FAKE_CUDA_MAJOR", 9); break;
    case MINOR: *value = 0; break;
    case COOPERATIVE: *value = 1; break;
    default: *value = 232448; break;
  }
  return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  static int any;
  (void)device;
  *context = &any;
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return 0;
}

int cuCtxSetCurrent(void *context) {
  (void)context;
  return 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = (size_t)number("FAKE_CUDA_FREE", 1000);
  *total_bytes = (size_t)16 << 30;
  return 0;
}

int cuGetErrorString(int code, const char **text) {
  (void)code;
  *text = "a fake failure";
  return 0;
}

#define REFUSE(symbol) \
  int symbol(void);    \
  int symbol(void) {   \
    return REFUSED;    \
  }
REFUSE(cuGetErrorName)
REFUSE(cuCtxSynchronize)
REFUSE(cuMemAlloc_v2)
REFUSE(cuMemFree_v2)
REFUSE(cuMemsetD8_v2)
REFUSE(cuMemAddressFree)
REFUSE(cuMemAddressReserve)
REFUSE(cuMemCreate)
REFUSE(cuMemExportToShareableHandle)
REFUSE(cuMemGetAllocationGranularity)
REFUSE(cuMemImportFromShareableHandle)
REFUSE(cuMemMap)
REFUSE(cuMemRelease)
REFUSE(cuMemSetAccess)
REFUSE(cuMemUnmap)
REFUSE(cuMemcpyHtoD_v2)
REFUSE(cuMemcpyDtoH_v2)
REFUSE(cuMemcpyHtoDAsync_v2)
REFUSE(cuMemcpyDtoHAsync_v2)
REFUSE(cuMemHostAlloc)
REFUSE(cuMemFreeHost)
REFUSE(cuMemHostGetDevicePointer_v2)
REFUSE(cuStreamCreate)
REFUSE(cuStreamDestroy_v2)
REFUSE(cuStreamQuery)
REFUSE(cuStreamSynchronize)
REFUSE(cuEventCreate)
REFUSE(cuEventDestroy_v2)
REFUSE(cuEventRecord)
REFUSE(cuEventSynchronize)
REFUSE(cuEventElapsedTime)
REFUSE(cuModuleLoadData)
REFUSE(cuModuleUnload)
REFUSE(cuModuleGetFunction)
REFUSE(cuFuncSetAttribute)
REFUSE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSE(cuLaunchKernel)
REFUSE(cuLaunchKernelEx)
REFUSE(cuStreamBeginCapture_v2)
REFUSE(cuStreamEndCapture)
REFUSE(cuGraphDestroy)
REFUSE(cuGraphDebugDotPrint)
REFUSE(cuGraphInstantiateWithFlags)
REFUSE(cuGraphLaunch)
REFUSE(cuGraphExecDestroy)
REFUSE(cuLaunchCooperativeKernel)
