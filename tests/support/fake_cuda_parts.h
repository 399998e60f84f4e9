// What the files of the fake GPU share: fake_cuda.c (driver and megakernel), fake_cuda_memory.c,
// fake_cuda_wide.c (large iterations), fake_cuda_full.c (graphs of mode full), fake_cuda_plain.c
// (plain kernels) and fake_cuda_calls.c (the call table, and custom ops).
#ifndef MGL_TESTS_SUPPORT_FAKE_CUDA_PARTS_H
#define MGL_TESTS_SUPPORT_FAKE_CUDA_PARTS_H

#include <stdbool.h>

#include "support/fake_cuda.h"
#include "twin/custom_call.h"
#include "twin/op_launch.h"

// Of fake_cuda_memory.c.

// Blocks that the driver handed out; releasing one that is not live fails the test.
void *fake_cuda_track(void *memory);
void fake_cuda_release(void *memory);

// Sets the driver's functions of memory.
void fake_cuda_memory_driver(mgl_cuda_driver *driver);

// Of fake_cuda.c.

// The KV cache of an iteration's rows, read and written; the tokens that it samples.
void fake_cuda_compute_rows(const mgl_cuda_run *run, uint64_t iteration);
void fake_cuda_sample(mgl_cuda_run *run, uint64_t iteration);

// The same of one row, and of one sequence.
void fake_cuda_compute_row(const mgl_cuda_run *run, uint32_t slot, uint32_t position,
                           int32_t token);
void fake_cuda_append_token(mgl_cuda_run *run, uint64_t iteration, uint32_t slot);

// Of fake_cuda_wide.c.

// Tokens of the tiles that a kernel of the wide class has; 0: it is none.
uint32_t fake_cuda_wide_tile(const char *function);
unsigned fake_cuda_wide_threads(void);  // of a block
size_t fake_cuda_wide_smem(void);       // bytes

// Launches, with the kernels' parameters.
void fake_cuda_wide_plan(void **p);
void fake_cuda_wide_run(void **p, uint32_t tile_tokens);
void fake_cuda_wide_sample(void **p);
bool fake_cuda_wide_is_busy(void);  // several ranks have iterations in the queue

// Of fake_cuda_plain.c: runs a plain kernel; false: it is none.
bool fake_cuda_plain_launch(const char *name, unsigned blocks, unsigned threads, void **p);

// Of fake_cuda_calls.c. A custom op's kernel is "custom NAME": the cubin that its source compiles
// to, its module and its function.
void fake_cuda_note_call(const char *name, unsigned blocks, unsigned threads, bool in_graph);
const char *fake_cuda_custom_compile(const char *name, const char *source);
const char *fake_cuda_custom_kernel(const void *image);  // of a cubin; NULL: it is of none
bool fake_cuda_is_custom(const char *kernel);
void fake_cuda_custom_run(const char *kernel, unsigned blocks, unsigned threads,
                          const mgl_custom_launch *launch, bool in_graph);
// A task of the megakernel, rows [begin, end) of op's output.
void fake_cuda_custom_task(const mgl_cuda_op *op, const mgl_cuda_plan *plan, uint32_t begin,
                           uint32_t end);

// Of fake_cuda_full.c: takes the launch of a plain kernel or a custom op into the graph that is
// being captured; false: none is.
bool fake_cuda_plain_captured(const char *name, unsigned blocks, unsigned threads, void **p);

extern uint32_t fake_cuda_looks_left;  // of the host, until what mode full has queued has ended

void fake_cuda_run_plan_kernel(mgl_cuda_run *run, uint64_t *host_plan, mgl_op_first *firsts);

// Sets the driver's functions that only mode full calls.
void fake_cuda_full_driver(mgl_cuda_driver *driver);

#endif
