#include "device/cuda/cuda_capture.h"

#include <stdio.h>

#include "base/clock.h"

static size_t free_bytes(const mgl_cuda_driver *driver) {
  size_t bytes = 0, total = 0;
  (void)driver->memory_info(&bytes, &total);
  return bytes;
}

mgl_cuda_capture mgl_cuda_capture_begin(const mgl_cuda_driver *driver) {
  return (mgl_cuda_capture){.start_ns = mgl_clock_ns(), .free_bytes = free_bytes(driver)};
}

void mgl_cuda_capture_end(const mgl_cuda_driver *driver, mgl_cuda_capture since,
                          mgl_cuda_graph_counts *counts) {
  const size_t left = free_bytes(driver);
  counts->capture_bytes += since.free_bytes > left ? since.free_bytes - left : 0;
  counts->capture_ns += mgl_clock_ns() - since.start_ns;
}

void mgl_cuda_capture_note(const mgl_cuda_graph_counts *counts, char *out, size_t bytes) {
  out[0] = 0;
  if (counts->captured > 0) {
    (void)snprintf(out, bytes, "captured %llu graphs in %.2f s, which take %.1f MiB",
                   (unsigned long long)counts->captured, (double)counts->capture_ns / 1e9,
                   (double)counts->capture_bytes / (1 << 20));
  }
}
