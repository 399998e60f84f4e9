#include "device/cuda/cuda_ceiling.h"

#include "twin/device_run.h"
#include "twin/packing.h"

// One reading, timed by events.
static mgl_status read_once(const mgl_cuda_ceiling *c, void *kernel, void *begin, void *end,
                            float *ms, mgl_error *err) {
  const mgl_cuda_driver *driver = &c->device->driver;
  bool copies = c->device->kernels != MGL_CUDA_KERNELS_PORTABLE;
  uint32_t room = c->device->smem_per_block_bytes - 1024;  // beside the kernel's own
  uint32_t pages = room / MGL_CUDA_PAGE_BYTES;
  pages = !copies ? 0 : pages < MGL_READ_PAGES ? pages : MGL_READ_PAGES;
  uint32_t smem = pages * MGL_CUDA_PAGE_BYTES;
  mgl_cu_ptr memory = c->memory;
  uint64_t bytes = c->bytes;
  mgl_cu_ptr out = c->out;
  void *parameters[] = {&memory, &bytes, &out};
  MGL_CUDA_TRY(driver, function_set, err, kernel, MGL_CU_FUNC_MAX_DYNAMIC_SMEM, (int)smem);
  MGL_CUDA_TRY(driver, event_record, err, begin, c->stream);
  MGL_CUDA_TRY(driver, launch, err, kernel, c->device->sm_count * (copies ? 1 : 4), 1, 1,
               MGL_READ_THREADS, 1, 1, smem, c->stream, parameters, NULL);
  MGL_CUDA_TRY(driver, event_record, err, end, c->stream);
  MGL_CUDA_TRY(driver, event_synchronize, err, end);
  return MGL_CUDA_CALL(driver, event_elapsed, err, ms, begin, end);
}

mgl_status mgl_cuda_ceiling_measure(const mgl_cuda_ceiling *c, uint32_t passes,
                                    double *out_bytes_per_s, mgl_error *err) {
  const mgl_cuda_driver *driver = &c->device->driver;
  void *kernel = NULL;
  void *events[2] = {NULL, NULL};
  *out_bytes_per_s = 0;
  MGL_CUDA_TRY(driver, module_function, err, &kernel, c->module, "mgl_read_ceiling");
  MGL_CUDA_TRY(driver, event_create, err, &events[0], 0);
  mgl_status status = MGL_CUDA_CALL(driver, event_create, err, &events[1], 0);
  for (uint32_t i = 0; i < passes && status == MGL_OK; i++) {
    float ms = 0;
    status = read_once(c, kernel, events[0], events[1], &ms, err);
    double rate = (double)c->bytes / ((double)ms / 1e3);
    *out_bytes_per_s = status == MGL_OK && rate > *out_bytes_per_s ? rate : *out_bytes_per_s;
  }
  (void)driver->event_destroy(events[0]);
  MGL_CUDA_RELEASE(driver, event_destroy, events[1]);
  return status;
}
