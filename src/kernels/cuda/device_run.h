// What host and megakernel share besides descriptors and protocol: bound ops, and the state of one
// launch. Read by both compilers; the host builds the bytes, the device uses them as they are.
//
// The host passes the sizes and some offsets that its compiler gives these structs as
// MGL_HOST_BYTES_* macros, and a device compiler that lays them out otherwise refuses the source
// (megakernel.cu).
#ifndef MGL_KERNELS_CUDA_DEVICE_RUN_H
#define MGL_KERNELS_CUDA_DEVICE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/protocol.h"

#ifdef __CUDACC__
typedef enum mgl_op_kind {  // as in graph/graph.h
#define MGL_OP(enum_name, name, inputs, optional, outputs, in_place, attributes) MGL_OP_##enum_name,
#include "graph/op.def"
  MGL_OP_COUNT
} mgl_op_kind;
#endif

enum {
  MGL_CUDA_MAX_INPUTS = 8,
  MGL_CUDA_WARPS = 11,  // controller, scheduler, loader, consumers
  MGL_CUDA_CONSUMER_WARPS = 8,
  MGL_CUDA_CONSUMERS = MGL_CUDA_CONSUMER_WARPS * 32,
  MGL_CUDA_THREADS = MGL_CUDA_WARPS * 32,
  MGL_CUDA_STREAM_PAGE_BYTES = 16384,  // an smem page of the loader
  MGL_CUDA_MAX_STREAM_PAGES = 12,
  MGL_CUDA_MAX_WIDTH = 8192,  // elements of a row that is staged in shared memory as f32
};

// An op bound to device memory. Matrices are bf16, vectors f32, and rows of activations f32 or
// bf16.
typedef struct mgl_cuda_op {
  uint32_t kind;       // mgl_op_kind
  uint32_t width;      // elements that a dot product or a norm runs over
  uint32_t columns;    // elements of an output row
  uint32_t rows;       // of the output, in this launch
  uint32_t x_bf16;     // input 0 (silu_mul: never) is bf16, else f32
  uint32_t out_bf16;   // the output is bf16, else f32
  uint32_t is_argmax;  // its largest element is the next token
  float eps;
  const void *inputs[MGL_CUDA_MAX_INPUTS];
  void *output;
} mgl_cuda_op;

// How a task of the launch is made to fail, to test the fault path.
typedef enum mgl_cuda_injection {
  MGL_INJECT_NONE,
  MGL_INJECT_HANG,  // the task never ends
  MGL_INJECT_LOSE,  // the task ends and does not trigger its event
} mgl_cuda_injection;

// What the device found when it raised MGL_FAULT_STUCK; in mgl_cuda_run.stall with the worker in
// bits 32 to 47 and the task's index in its graph (mgl_id_index and graph of an id) below.
typedef enum mgl_cuda_stall {
  MGL_CUDA_STALL_NONE,     // the device raised nothing
  MGL_CUDA_STALL_RUNNING,  // that task runs and does not end
  MGL_CUDA_STALL_WAITING,  // that task waits for an event, and nothing runs
  MGL_CUDA_STALL_IDLE,     // nothing runs and the finder has nothing to wait for
} mgl_cuda_stall;

typedef struct mgl_cuda_run {
  mgl_protocol protocol;

  // Read-only while running.
  const mgl_cuda_op *ops[MGL_MAX_GRAPHS];  // of each graph
  uint32_t iterations;                     // the launch ends after so many
  uint32_t scheduler_warps;  // 1: scheduler s is a warp of block s; 0: it is block workers + s
  uint64_t stall_ns;         // no progress for so long is a fault
  uint32_t injection;        // mgl_cuda_injection
  uint32_t injection_task;
  uint64_t injection_iteration;
  const uint8_t *stream;  // what loader warps stream through shared memory; stream_pages 0: nothing
  uint64_t stream_bytes;
  uint32_t stream_pages;   // in flight per block
  int32_t *tokens_out;     // [iterations] written by whoever ends the iteration
  uint64_t *iteration_ns;  // [iterations + 1] the global timer at each start, and at the end

  // Written by whoever ends an iteration.
  int32_t token;       // input of the present one
  uint32_t logit_row;  // 0
  // Written by tasks with is_argmax: ordered f32 << 32 | ~index, the largest; 0 between iterations.
  mgl_word best;
  // Written at the end.
  mgl_word streamed_pages;
  mgl_word stall;  // mgl_cuda_stall << 48 | worker << 32 | graph << 28 | task; the first one stays
} mgl_cuda_run;

#endif
