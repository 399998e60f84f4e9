// Custom ops on a GPU: each is compiled with its own CUDA source into a module of its own, and
// launched as a kernel of its own (kernels/cuda/custom.cu). In the megakernel it is a task, and the
// sources of all of a program are compiled with it (kernels/cuda/custom/tasks_custom.cuh).
//
// Its tile rule is a number of rows: a block computes so many at once, and blocks take tiles in
// turn where there are more than can run. In the megakernel that is the most that a worker computes
// at once, since there tasks are as many rows as the compiler gives them.
//
// One thread, which has the device's context.
#ifndef MGL_DEVICE_CUDA_CUDA_CUSTOM_H
#define MGL_DEVICE_CUDA_CUDA_CUSTOM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "device/cuda/cuda_code.h"
#include "device/cuda/cuda_driver.h"
#include "graph/graph.h"
#include "twin/custom_call.h"

// The first custom op of a program; NULL: it has none.
const mgl_op *mgl_cuda_custom_find(const mgl_graph *program);
// MGL_ERR_UNSUPPORTED where a custom op has no CUDA source.
mgl_status mgl_cuda_custom_check(const mgl_op *op, const char *output, mgl_error *err);

typedef struct mgl_cuda_customs mgl_cuda_customs;  // of one program

// Device and program outlive *out. get_code: as mgl_cuda_plain_options has it. note: what the
// user should know of code that could not be cached, left alone where there is nothing to say.
mgl_status mgl_cuda_customs_create(const mgl_cuda_device *device, const mgl_graph *program,
                                   mgl_cuda_code_function *get_code, char note[MGL_CUDA_NOTE_BYTES],
                                   mgl_cuda_customs **out, mgl_error *err);
void mgl_cuda_customs_destroy(mgl_cuda_customs *customs);  // NULL is fine

// What a launch of an op gets under a plan, but for inputs and output.
mgl_custom_launch mgl_cuda_custom_bind(const mgl_graph *program, const mgl_op *op,
                                       const mgl_dim_values *values);
// What the op's tasks get in the megakernel, but for addresses: sizes are the graph's, until a plan
// is there (mgl_custom_set_plan).
mgl_custom_launch mgl_cuda_custom_bind_task(const mgl_graph *program, const mgl_op *op,
                                            uint32_t tokens);
// Which of the sources below an op's is.
uint32_t mgl_cuda_custom_number(const mgl_graph *program, uint32_t op);
// The sources of a program's custom ops, each in a namespace of its own, and behind them the
// function MGL_CUDA_CUSTOM_DISPATCH(number, call), which calls one of them. What out has is freed
// by the caller. Nothing where there are none.
#define MGL_CUDA_CUSTOM_DISPATCH "mgl_custom_dispatch"
void mgl_cuda_custom_text(const mgl_graph *program, mgl_text *out);

// Nothing is launched where there are no rows.
mgl_status mgl_cuda_custom_launch(const mgl_cuda_customs *customs, uint32_t op,
                                  mgl_custom_launch *launch, unsigned most_blocks, void *stream,
                                  mgl_error *err);

#endif
