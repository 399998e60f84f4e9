#include "device/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_compiler.h"

mgl_status mgl_cuda_find_symbols(void *library, const char *where, const char *const *symbols,
                                 void *const *out, size_t count, mgl_error *err) {
  for (size_t i = 0; i < count; i++) {
    void *symbol = dlsym(library, symbols[i]);
    if (symbol == NULL) {
      return mgl_error_set(err, MGL_ERR_UNSUPPORTED, "%s lacks %s: a newer one is needed", where,
                           symbols[i]);
    }
    memcpy(out[i], &symbol, sizeof symbol);  // POSIX allows it, ISO C has no cast for it
  }
  return MGL_OK;
}

mgl_status mgl_cuda_driver_open(mgl_cuda_driver *out, mgl_error *err) {
  *out = (mgl_cuda_driver){0};
  out->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (out->library == NULL) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "there is no NVIDIA driver: libcuda.so.1 cannot be opened; install the "
                         "driver, or run on the CPU");
  }
  static const char *const symbols[] = {
#define MGL_CU(member, symbol, parameters) symbol,
      MGL_CU_TABLE(MGL_CU)
#undef MGL_CU
  };
  void *const members[] = {
#define MGL_CU(member, symbol, parameters) &out->member,
      MGL_CU_TABLE(MGL_CU)
#undef MGL_CU
  };
  return mgl_cuda_find_symbols(out->library, "libcuda.so.1", symbols, members,
                               sizeof symbols / sizeof symbols[0], err);
}

mgl_status mgl_cuda_check(const mgl_cuda_driver *driver, mgl_cu_result code, const char *what,
                          mgl_error *err) {
  if (code == 0) {
    return MGL_OK;
  }
  const char *text = NULL;
  if (driver->error_string(code, &text) != 0 || text == NULL) {
    text = "unknown error";
  }
  return mgl_error_set(err, MGL_ERR_IO, "CUDA %s: %s (%d)", what, text, code);
}

mgl_status mgl_cuda_kernels_choose(uint32_t major, uint32_t minor, mgl_cuda_kernels *out,
                                   mgl_error *err) {
  const char *wanted = getenv("MEGALITH_KERNELS");
  bool portable = wanted != NULL && strcmp(wanted, "portable") == 0;
  *out = portable || minor != 0 ? MGL_CUDA_KERNELS_PORTABLE
         : major == 9           ? MGL_CUDA_KERNELS_WGMMA
         : major == 10          ? MGL_CUDA_KERNELS_COPIES
                                : MGL_CUDA_KERNELS_PORTABLE;
  return wanted == NULL || *wanted == 0 || portable || strcmp(wanted, "auto") == 0
             ? MGL_OK
             : mgl_error_set(err, MGL_ERR_ARGUMENT,
                             "MEGALITH_KERNELS: expected auto or portable, found \"%.80s\"",
                             wanted);
}

static mgl_status read_attributes(mgl_cuda_device *out, mgl_error *err) {
  const mgl_cuda_driver *driver = &out->driver;
  const struct {
    int attribute;
    uint32_t *value;
  } attributes[] = {{MGL_CU_ATTRIBUTE_SM_COUNT, &out->sm_count},
                    {MGL_CU_ATTRIBUTE_MEMORY_CLOCK_KHZ, &out->memory_clock_khz},
                    {MGL_CU_ATTRIBUTE_MEMORY_BUS_BITS, &out->memory_bus_bits},
                    {MGL_CU_ATTRIBUTE_MAJOR, &out->major},
                    {MGL_CU_ATTRIBUTE_MINOR, &out->minor},
                    {MGL_CU_ATTRIBUTE_SMEM_PER_BLOCK, &out->smem_per_block_bytes}};
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
    int value = 0;
    MGL_CUDA_TRY(driver, device_attribute, err, &value, attributes[i].attribute, out->device);
    *attributes[i].value = (uint32_t)value;
  }
  int cooperative = 0;
  MGL_CUDA_TRY(driver, device_attribute, err, &cooperative, MGL_CU_ATTRIBUTE_COOPERATIVE_LAUNCH,
               out->device);
  if (cooperative == 0 || out->major < 8) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%s has compute capability %u.%u; a GPU of 8.0 or later with cooperative "
                         "launch is needed",
                         out->name, out->major, out->minor);
  }
  return mgl_cuda_kernels_choose(out->major, out->minor, &out->kernels, err);
}

static mgl_status open_device(int ordinal, mgl_cuda_device *out, mgl_error *err) {
  MGL_TRY(mgl_cuda_driver_open(&out->driver, err));
  const mgl_cuda_driver *driver = &out->driver;
  int count = 0;
  MGL_CUDA_TRY(driver, driver_version, err, &out->driver_version);
  if (out->driver_version < MGL_CUDA_LEAST_DRIVER) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "the NVIDIA driver is for CUDA %d.%d, expected %d.%d or later: update the "
                         "driver, or run on the CPU",
                         out->driver_version / 1000, out->driver_version % 1000 / 10,
                         MGL_CUDA_LEAST_DRIVER / 1000, MGL_CUDA_LEAST_DRIVER % 1000 / 10);
  }
  int code = driver->init(0);
  if (code == MGL_CU_NO_DEVICE || code == MGL_CU_STUB_LIBRARY) {
    return mgl_error_set(
        err, MGL_ERR_UNSUPPORTED,
        "the NVIDIA driver finds no GPU; is it visible here (CUDA_VISIBLE_DEVICES, "
        "container)?");
  }
  MGL_TRY(mgl_cuda_check(driver, code, "init", err));
  MGL_CUDA_TRY(driver, device_count, err, &count);
  if (ordinal < 0 || ordinal >= count) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT,
                         "GPU %d was asked for, the driver finds %d, counted from 0", ordinal,
                         count);
  }
  MGL_CUDA_TRY(driver, device_get, err, &out->device, ordinal);
  MGL_CUDA_TRY(driver, device_name, err, out->name, (int)sizeof out->name - 1, out->device);
  MGL_TRY(read_attributes(out, err));
  MGL_CUDA_TRY(driver, context_retain, err, &out->context, out->device);
  return MGL_CUDA_CALL(driver, context_set, err, out->context);
}

uint32_t mgl_cuda_device_count(void) {
  mgl_cuda_driver driver;
  mgl_error ignored = {0};
  int count = 0;
  return mgl_cuda_driver_open(&driver, &ignored) == MGL_OK && driver.init(0) == 0 &&
                 driver.device_count(&count) == 0 && count > 0
             ? (uint32_t)count
             : 0;
}

mgl_status mgl_cuda_device_open(int ordinal, mgl_cuda_device *out, mgl_error *err) {
  *out = (mgl_cuda_device){0};
  mgl_status status = open_device(ordinal, out, err);
  if (status != MGL_OK) {
    mgl_cuda_device_close(out);
  }
  return status;
}

void mgl_cuda_device_choose_code(mgl_cuda_device *device, const mgl_compilation *c) {
  if (c != NULL) {
    memcpy(device->cache_folder, c->cache_dir, sizeof device->cache_folder);
    memcpy(device->dump_folder, c->debug_dump_path, sizeof device->dump_folder);
    device->compiler = mgl_cuda_compiler_of(c->compiler);
  }
}

void mgl_cuda_device_close(mgl_cuda_device *device) {
  if (device->context != NULL) {
    (void)device->driver.context_release(device->device);
    device->context = NULL;
  }
}
