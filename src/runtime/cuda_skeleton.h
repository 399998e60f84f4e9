// The walking skeleton: a compiled program run by the megakernel on one GPU, many greedy tokens in
// one launch.
//
// It proves formats, protocol, memory order, roles of warps, the fault path and the end of a run on
// the device; it is not made to be fast. It knows the dense ops (embed, rmsnorm, linear,
// linear_add, gate_up, logits, silu_mul, add), one sequence without KV cache, bf16 matrices.
// Between two tokens the host does nothing: whoever ends an iteration takes the argmax of its
// logits as the next input. One launch at a time, by one thread.
#ifndef MGL_RUNTIME_CUDA_SKELETON_H
#define MGL_RUNTIME_CUDA_SKELETON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "graph/graph.h"
#include "kernels/cuda/device_run.h"
#include "runtime/cuda_driver.h"
#include "task/task.h"

enum { MGL_SKELETON_MAX_ITERATIONS = 1 << 20 };

typedef struct mgl_cuda_skeleton mgl_cuda_skeleton;

typedef struct mgl_cuda_skeleton_options {
  const mgl_graph *program;
  const mgl_task_graph *const
      *graphs;  // all for the same workers; iteration i runs i % graph_count
  uint32_t graph_count;
  const void *const *weights;  // [tensor_count] host memory: matrices as bf16, vectors as f32
  uint32_t schedulers;         // 0: whoever activates an event schedules its tasks
  bool scheduler_warps;        // schedulers are warps of worker blocks, else blocks of their own
  uint32_t max_iterations;     // of a launch
  uint64_t stream_bytes;       // buffer for launches with stream_pages; 0: none
} mgl_cuda_skeleton_options;

// Loads the kernel and copies program, task graphs and weights to the device. Program, graphs and
// device must outlive *out.
mgl_status mgl_cuda_skeleton_create(const mgl_cuda_device *device, const void *cubin,
                                    const mgl_cuda_skeleton_options *options,
                                    mgl_cuda_skeleton **out, mgl_error *err);
void mgl_cuda_skeleton_destroy(mgl_cuda_skeleton *skeleton);  // NULL is fine

typedef struct mgl_cuda_launch {
  int32_t first_token;
  uint32_t iterations;    // 1 to max_iterations
  uint64_t stall_ns;      // no progress for so long ends the launch with a fault
  uint64_t deadline_ns;   // the host ends the launch after so long
  uint32_t stream_pages;  // 16 KB pages that every worker's loader keeps in flight; 0: none
  mgl_cuda_injection injection;
  uint32_t injection_task;  // of the graph that runs in that iteration
  uint64_t injection_iteration;
} mgl_cuda_launch;

typedef struct mgl_cuda_outcome {
  int32_t *tokens;         // [iterations] chosen; the caller's
  uint64_t *iteration_ns;  // [iterations + 1] device clock at each start, and at the end; caller's
  uint64_t streamed_bytes;
  uint64_t host_ns;  // of the whole launch
} mgl_cuda_outcome;

// Runs one launch to its end. A fault is MGL_ERR_INTERNAL and names the task, the worker and the
// event; another launch may follow it.
mgl_status mgl_cuda_skeleton_run(mgl_cuda_skeleton *skeleton, const mgl_cuda_launch *launch,
                                 mgl_cuda_outcome *outcome, mgl_error *err);

// Copies row 0 of an f32 activation of graph `graph` to out, after a launch.
mgl_status mgl_cuda_skeleton_read(mgl_cuda_skeleton *skeleton, uint32_t graph, const char *name,
                                  float *out, size_t count, mgl_error *err);

#endif
