// What a program has launched as graphs and beside them, and what capturing the graphs took: one
// count for fused kernels (cuda_full.h) and for plain ones (cuda_plain_graphs.h).
#ifndef MGL_DEVICE_CUDA_CUDA_CAPTURE_H
#define MGL_DEVICE_CUDA_CUDA_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#include "device/cuda/cuda_driver.h"

// Since the program was made.
typedef struct mgl_cuda_graph_counts {
  uint64_t iterations;   // that were queued
  uint64_t graphs, ops;  // launches of graphs, and of kernels outside of them
  uint64_t captured;     // graphs that were made
  uint64_t capture_ns;
  uint64_t capture_bytes;  // of the GPU's memory, as far as the driver tells
} mgl_cuda_graph_counts;

// The time and the GPU's free memory before graphs are made.
typedef struct mgl_cuda_capture {
  uint64_t start_ns;
  size_t free_bytes;
} mgl_cuda_capture;

mgl_cuda_capture mgl_cuda_capture_begin(const mgl_cuda_driver *driver);
// Adds what it took since then; who makes the graphs counts them.
void mgl_cuda_capture_end(const mgl_cuda_driver *driver, mgl_cuda_capture since,
                          mgl_cuda_graph_counts *counts);

// "captured 3 graphs in 0.02 s, which take 4.5 MiB"; empty where none was.
void mgl_cuda_capture_note(const mgl_cuda_graph_counts *counts, char *out, size_t bytes);

#endif
