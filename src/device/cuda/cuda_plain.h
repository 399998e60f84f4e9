// A model on a GPU without a fused task: every op of its program is a launch of a plain kernel
// (kernels/cuda/plain.cu), in the order of a verified schedule, for a plan that the host made.
//
// This is how a model runs on the day that the CPU can run it: any head dim, group, vocabulary,
// dtype and form. It is slow: a launch an op, products without tensor cores, logits on the host.
// Nothing here knows what an op is, but for twin/plain.def and what graph/op.def says: a launch
// gets the addresses of the op's tensors in the order of op.def.
//
// One plain program, one thread, which has the device's context.
#ifndef MGL_DEVICE_CUDA_CUDA_PLAIN_H
#define MGL_DEVICE_CUDA_CUDA_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "batch/plan.h"
#include "device/build.h"
#include "device/cuda/cuda_code.h"
#include "device/cuda/cuda_driver.h"
#include "graph/graph.h"
#include "model/safetensors.h"

typedef struct mgl_cuda_plain mgl_cuda_plain;

typedef struct mgl_cuda_plain_options {
  const mgl_graph *program;          // canonical; outlives what is made
  const mgl_checkpoint *checkpoint;  // NULL: dummy weights; used only while creating
  const mgl_build *build;            // used only while creating
  mgl_sizes sizes;                   // measured figures are not read
  bool fused_order;                  // fused tasks cover the program: the bits are to be theirs
  mgl_cuda_code_function *get_code;  // NULL: mgl_cuda_code_get
} mgl_cuda_plain_options;

// MGL_ERR_UNSUPPORTED names an op that has no plain kernel, or what else a kernel has no room for.
mgl_status mgl_cuda_plain_check(const mgl_graph *program, mgl_error *err);

// Fills in the figures of *sizes, and workers. Nothing is taken of the device.
mgl_status mgl_cuda_plain_measure(const mgl_cuda_device *device,
                                  const mgl_cuda_plain_options *options, mgl_sizes *sizes,
                                  mgl_error *err);

// The device must outlive *out. MGL_ERR_MEMORY: the GPU has too little, said before anything is
// taken.
mgl_status mgl_cuda_plain_create(const mgl_cuda_device *device,
                                 const mgl_cuda_plain_options *options, mgl_cuda_plain **out,
                                 mgl_error *err);
void mgl_cuda_plain_destroy(mgl_cuda_plain *plain);  // NULL is fine

// Runs one iteration, op by op. logits: [logit_row_count, V], the caller's. check_numbers: after
// each op, what it computed comes back and is looked at (device/cpu/cpu_check.h).
mgl_status mgl_cuda_plain_run(mgl_cuda_plain *plain, const mgl_plan *plan, bool check_numbers,
                              float *logits, mgl_error *err);

// Its parts, for cuda_plain_graphs.h: the plan goes to the device, padded to `padded` tokens and
// rows of logits, which compute into a KV page that no sequence has (a NULL plan: only these); ops
// are launched for all of them; the plan's own logits come back (of a NULL plan none). A NULL
// stream is the default one. Behind that the iteration is over: to launch an op fails an assertion,
// and in debug builds the device's copy of the plan is poisoned.
mgl_status mgl_cuda_plain_stage(mgl_cuda_plain *plain, const mgl_plan *plan,
                                const mgl_dim_values *padded, mgl_error *err);
mgl_status mgl_cuda_plain_launch(const mgl_cuda_plain *plain, uint32_t op,
                                 const mgl_dim_values *padded, void *stream, mgl_error *err);
mgl_status mgl_cuda_plain_fetch(mgl_cuda_plain *plain, const mgl_plan *plan, float *logits,
                                mgl_error *err);
// And for cuda_plain_look.h: where a tensor lies, and V of a KV tensor.
mgl_cu_ptr mgl_cuda_plain_address(const mgl_cuda_plain *plain, uint32_t tensor);
mgl_cu_ptr mgl_cuda_plain_v_address(const mgl_cuda_plain *plain, uint32_t tensor);
const mgl_cuda_device *mgl_cuda_plain_device(const mgl_cuda_plain *plain);
const mgl_graph *mgl_cuda_plain_program(const mgl_cuda_plain *plain);
const mgl_sizes *mgl_cuda_plain_sizes(const mgl_cuda_plain *plain);

uint64_t mgl_cuda_plain_step_bytes(const mgl_cuda_plain *plain);  // of weights that a step reads
// What the user should know of device code that could not be cached; "": nothing. Borrowed.
const char *mgl_cuda_plain_note(const mgl_cuda_plain *plain);

// Best of `passes` readings of the weights by all multiprocessors, in bytes per second.
mgl_status mgl_cuda_plain_read_ceiling(mgl_cuda_plain *plain, uint32_t passes,
                                       double *out_bytes_per_s, mgl_error *err);

#endif
