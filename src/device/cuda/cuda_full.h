// Mode full: an iteration as a chain of kernels, one for every op (kernels/cuda/op_kernels.cu), in
// CUDA graphs. The baseline of the megakernel: the same tasks in the same order of summation, so
// the same bits.
//
// There is a graph of one iteration for each task graph (1, 2, 4 ... tokens) and each of the two
// plans, and one of MGL_CUDA_FULL_LONG iterations. The device plans and samples, and takes in
// requests as in mode mega; the host queues graphs ahead of it. It learns of each plan through a
// word in pinned memory as soon as the plan is made, which is early in the iteration before: so
// iterations are queued one by one, each with the graph that its plan needs; and once there are
// only sequences that decode, all with pages to their ends, and none can come, so that their number
// can but shrink, long graphs are queued, which may plan late, where it costs least. Where there
// was nothing to plan, a kernel that only plans is queued when requests have come.
// The same launches also run without graphs, and in pieces: attention by itself, and a graph for
// what lies between (mgl_cuda_full_how). Iterations that only decode may run otherwise than all
// others: the word says which the plan is. Where pieces are not what was asked for by itself, but
// the others' half of FULL_AND_PIECEWISE, iterations take the faster way (cuda_faster.h).
//   Rejected: to foresee plans on the host. A stop token makes room for another prompt, and then
// the plan may need a larger graph than foreseen.
#ifndef MGL_DEVICE_CUDA_CUDA_FULL_H
#define MGL_DEVICE_CUDA_CUDA_FULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/build.h"
#include "device/cuda/cuda_capture.h"
#include "device/cuda/cuda_faster.h"

enum { MGL_CUDA_FULL_LONG = 16 };  // even: the first iteration of a long graph reads plan 0

struct mgl_cuda_program;
struct mgl_cuda_launch_options;

typedef struct mgl_cuda_full mgl_cuda_full;

typedef enum mgl_cuda_full_how {
  MGL_CUDA_FULL_WHOLE,   // a graph for each iteration, or for MGL_CUDA_FULL_LONG of them
  MGL_CUDA_FULL_PIECES,  // L + 1 graphs and L launches of attention
  MGL_CUDA_FULL_LOOSE,   // kernels one by one
  MGL_CUDA_FULL_HOWS,
  MGL_CUDA_FULL_FASTER = MGL_CUDA_FULL_HOWS,  // PIECES or LOOSE, by the iteration's size
} mgl_cuda_full_how;

mgl_cuda_graph_counts mgl_cuda_full_count(const struct mgl_cuda_program *p);
// Hash of the schedule of the latest iteration of mode full in this launch; 0: there was none.
uint64_t mgl_cuda_full_ran(const struct mgl_cuda_program *p);

// How many sizes of iterations have been found faster either way.
void mgl_cuda_full_faster(const struct mgl_cuda_program *p, uint32_t out[MGL_CUDA_WAYS]);

// Before a launch, when the program's image of its state is complete. The first time it compiles
// (or finds) the kernels. single: one iteration, whatever its plan says.
mgl_status mgl_cuda_full_begin(struct mgl_cuda_program *p,
                               const struct mgl_cuda_launch_options *options,
                               uint32_t most_iterations, bool single, mgl_error *err);

// Captures the graphs of all sizes that the build's compilation names, the largest first, before
// anything runs. (There is no warm-up: finding the kernels has loaded them.)
mgl_status mgl_cuda_full_capture(struct mgl_cuda_program *p,
                                 const struct mgl_cuda_launch_options *options,
                                 const mgl_weights_progress *progress, mgl_error *err);

typedef enum mgl_cuda_full_state {
  MGL_CUDA_FULL_RUNS,
  MGL_CUDA_FULL_SOON,   // there is little to do for the device: this should be asked again at once
  MGL_CUDA_FULL_ENDED,  // nothing runs, and nothing will
} mgl_cuda_full_state;

// Queues what can be queued. idle: nothing that was queued before runs any more.
mgl_status mgl_cuda_full_queue(struct mgl_cuda_program *p, bool idle, mgl_cuda_full_state *out,
                               mgl_error *err);

// NULL is fine. Nothing of it may be running.
void mgl_cuda_full_destroy(struct mgl_cuda_program *p);
// Of a program that was lost: the host's memory only.
void mgl_cuda_full_forget(struct mgl_cuda_program *p);

#endif
