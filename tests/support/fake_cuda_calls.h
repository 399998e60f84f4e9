// The fake GPU's call table: what was launched, in order, and the launches of custom ops with all
// that they got. A custom op's kernel is a function of the test's, run by the tiles of the device's
// own source (kernels/cuda/custom/custom_tiles.cuh) in blocks of one thread.
#ifndef MGL_TESTS_SUPPORT_FAKE_CUDA_CALLS_H
#define MGL_TESTS_SUPPORT_FAKE_CUDA_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "twin/custom_call.h"

enum { FAKE_CUDA_CALLS = 4096, FAKE_CUDA_CUSTOMS = 16, FAKE_CUDA_CUSTOM_LAUNCHES = 256 };

#define FAKE_CUDA_GRAPH "graph"

typedef struct fake_cuda_call {
  const char *name;          // of the kernel: "mgl_plain_kernel_add", "custom NAME", or a graph's
  unsigned blocks, threads;  // 0 of a graph
  bool in_graph;             // by the graph before it
} fake_cuda_call;

typedef struct fake_cuda_custom_launch {
  const char *name;  // of the op
  unsigned blocks, threads;
  bool in_graph;
  mgl_custom_launch launch;
} fake_cuda_custom_launch;

// The latest launches since fake_cuda_calls_clear; no more than there is room for.
extern fake_cuda_call fake_cuda_calls[FAKE_CUDA_CALLS];
extern uint32_t fake_cuda_call_count;
extern fake_cuda_custom_launch fake_cuda_custom_launches[FAKE_CUDA_CUSTOM_LAUNCHES];
extern uint32_t fake_cuda_custom_launch_count;

void fake_cuda_calls_clear(void);

typedef void fake_cuda_custom_body(const megalith_custom_call *call);

// What computes the custom op of that name from now on, for whatever source is given for it.
void fake_cuda_custom_set(const char *name, fake_cuda_custom_body *body);
// The source that was compiled last for that op; NULL: none was.
const char *fake_cuda_custom_source(const char *name);
uint32_t fake_cuda_custom_compilations(const char *name);

#endif
