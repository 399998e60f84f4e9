#include "app/gpu_list.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "app/human.h"

// Of the CUDA driver API (cuda.h); these have not changed since CUDA 3.2.
enum {
  CUDA_OK = 0,
  CUDA_NO_DEVICE = 100,
  CUDA_COMPUTE_MAJOR = 75,  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  CUDA_COMPUTE_MINOR = 76,
};

typedef struct cuda_driver {
  void *library;
  int (*init)(unsigned flags);
  int (*driver_version)(int *version);
  int (*device_count)(int *count);
  int (*device_get)(int *device, int ordinal);
  int (*device_name)(char *name, int bytes, int device);
  int (*device_memory)(size_t *bytes, int device);
  int (*device_attribute)(int *value, int attribute, int device);
} cuda_driver;

// Stores a symbol's address into a function pointer; POSIX allows it, ISO C has no cast for it.
static int find(void *library, const char *name, void *out) {
  void *symbol = dlsym(library, name);
  memcpy(out, &symbol, sizeof symbol);
  return symbol != NULL;
}

static int open_driver(cuda_driver *driver) {
  driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver->library != NULL && find(driver->library, "cuInit", &driver->init) &&
         find(driver->library, "cuDriverGetVersion", &driver->driver_version) &&
         find(driver->library, "cuDeviceGetCount", &driver->device_count) &&
         find(driver->library, "cuDeviceGet", &driver->device_get) &&
         find(driver->library, "cuDeviceGetName", &driver->device_name) &&
         find(driver->library, "cuDeviceTotalMem_v2", &driver->device_memory) &&
         find(driver->library, "cuDeviceGetAttribute", &driver->device_attribute);
}

static void append_device(const cuda_driver *driver, int ordinal, mgl_text *out) {
  int device = 0;
  int major = 0;
  int minor = 0;
  size_t bytes = 0;
  char name[128] = "";
  char memory[MGL_HUMAN_BYTES];
  if (driver->device_get(&device, ordinal) != CUDA_OK ||
      driver->device_name(name, (int)sizeof name, device) != CUDA_OK ||
      driver->device_memory(&bytes, device) != CUDA_OK ||
      driver->device_attribute(&major, CUDA_COMPUTE_MAJOR, device) != CUDA_OK ||
      driver->device_attribute(&minor, CUDA_COMPUTE_MINOR, device) != CUDA_OK) {
    mgl_text_format(out, "GPU %d             the driver did not describe it\n", ordinal);
    return;
  }
  name[sizeof name - 1] = 0;
  mgl_human_size(bytes, memory);
  mgl_text_format(out, "GPU %-13d %s, %s, compute capability %d.%d\n", ordinal, name, memory, major,
                  minor);
}

static void append_devices(const cuda_driver *driver, mgl_text *out) {
  int count = 0;
  int version = 0;
  int code = driver->init(0);
  if (code == CUDA_OK) {
    code = driver->device_count(&count);
  }
  if (code != CUDA_OK && code != CUDA_NO_DEVICE) {
    mgl_text_format(out, "GPUs              none: the CUDA driver reports error %d\n", code);
    return;
  }
  if (count == 0) {
    mgl_text_append_string(out, "GPUs              none: the CUDA driver finds no device\n");
    return;
  }
  for (int i = 0; i < count; i++) {
    append_device(driver, i, out);
  }
  if (driver->driver_version(&version) == CUDA_OK) {
    mgl_text_format(out, "CUDA driver       %d.%d\n", version / 1000, version % 1000 / 10);
  }
}

void mgl_gpu_list_append(mgl_text *out) {
  cuda_driver driver = {0};
  if (open_driver(&driver)) {
    append_devices(&driver, out);
  } else if (driver.library == NULL) {
    mgl_text_append_string(out,
                           "GPUs              none: there is no NVIDIA driver (libcuda.so.1)\n");
  } else {
    mgl_text_append_string(out,
                           "GPUs              none: libcuda.so.1 lacks functions of CUDA 3.2\n");
  }
  // The library stays loaded: drivers do not survive dlclose everywhere, and the command ends soon.
}
