// What the two files of the fake GPU share: fake_cuda.c (driver, megakernel, the wide class) and
// fake_cuda_full.c (graphs of mode full).
#ifndef MGL_TESTS_SUPPORT_FAKE_CUDA_PARTS_H
#define MGL_TESTS_SUPPORT_FAKE_CUDA_PARTS_H

#include "support/fake_cuda.h"

// Of fake_cuda.c.

// Blocks that the driver handed out; releasing one that is not live fails the test.
void *fake_cuda_track(void *memory);
void fake_cuda_release(void *memory);

// The KV cache of an iteration's rows, read and written; the tokens that it samples.
void fake_cuda_compute_rows(const mgl_cuda_run *run, uint64_t iteration);
void fake_cuda_sample(mgl_cuda_run *run, uint64_t iteration);

// Of fake_cuda_full.c.

extern uint32_t fake_cuda_looks_left;  // of the host, until what mode full has queued has ended

void fake_cuda_run_plan_kernel(mgl_cuda_run *run, uint64_t *host_plan, mgl_op_first *firsts);

// Sets the driver's functions that only mode full calls.
void fake_cuda_full_driver(mgl_cuda_driver *driver);

#endif
