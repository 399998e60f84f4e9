#include "app/gpu_list.h"

#include "app/human.h"
#include "device/cuda/cuda_driver.h"

static void append_device(const mgl_cuda_driver *driver, int ordinal, mgl_text *out) {
  int device = 0;
  int major = 0;
  int minor = 0;
  size_t bytes = 0;
  char name[128] = "";
  char memory[MGL_HUMAN_BYTES];
  if (driver->device_get(&device, ordinal) != 0 ||
      driver->device_name(name, (int)sizeof name, device) != 0 ||
      driver->device_memory(&bytes, device) != 0 ||
      driver->device_attribute(&major, MGL_CU_ATTRIBUTE_MAJOR, device) != 0 ||
      driver->device_attribute(&minor, MGL_CU_ATTRIBUTE_MINOR, device) != 0) {
    mgl_text_format(out, "GPU %d             the driver did not describe it\n", ordinal);
    return;
  }
  name[sizeof name - 1] = 0;
  mgl_human_size(bytes, memory);
  mgl_text_format(out, "GPU %-13d %s, %s, compute capability %d.%d\n", ordinal, name, memory, major,
                  minor);
}

static void append_devices(const mgl_cuda_driver *driver, mgl_text *out) {
  int count = 0;
  int version = 0;
  int code = driver->init(0);
  if (code == 0) {
    code = driver->device_count(&count);
  }
  if (code != 0 && code != MGL_CU_NO_DEVICE) {
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
  if (driver->driver_version(&version) == 0) {
    mgl_text_format(out, "CUDA driver       %d.%d\n", version / 1000, version % 1000 / 10);
  }
}

void mgl_gpu_list_append(mgl_text *out) {
  mgl_cuda_driver driver;
  mgl_error err = {0};
  if (mgl_cuda_driver_open(&driver, &err) == MGL_OK) {
    append_devices(&driver, out);
  } else {
    mgl_text_format(out, "GPUs              none: %s\n", err.text);
  }
}
