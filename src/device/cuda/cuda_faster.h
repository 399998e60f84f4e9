// Which of two ways of launching an iteration is the faster one here: in pieces, or kernel by
// kernel. Both compute the same bits, so a job finds out while it runs.
//
// Graphs win where the host cannot keep up; kernels by themselves win where it can, since each may
// begin before the one in front of it has ended, and nothing may before the end of a graph
// (docs/log/218). That depends on the model, the machine and the iteration's size, and is measured:
// the first iterations of a size take both ways in turn, between two events of the stream. From
// then on those of that size take the way whose shortest one was shorter.
//   Rejected: to measure when graphs are captured. Kernels cannot run then without a plan, and one
// of nothing shows what launches cost the host, not what they cost where the GPU computes.
#ifndef MGL_DEVICE_CUDA_CUDA_FASTER_H
#define MGL_DEVICE_CUDA_CUDA_FASTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/cuda/cuda_driver.h"

enum { MGL_CUDA_FASTER_SIZES = 7, MGL_CUDA_FASTER_RUNS = 4 };  // runs: of each way

typedef enum mgl_cuda_way {
  MGL_CUDA_WAY_PIECES,
  MGL_CUDA_WAY_LOOSE,
  MGL_CUDA_WAYS,
} mgl_cuda_way;

// Of iterations of one size.
typedef struct mgl_cuda_faster_trial {
  uint32_t runs[MGL_CUDA_WAYS];  // that were measured
  float least_ms[MGL_CUDA_WAYS];
} mgl_cuda_faster_trial;

// All zero: nothing is known.
typedef struct mgl_cuda_faster {
  void *begin, *end;  // events
  mgl_cuda_faster_trial trials[MGL_CUDA_FASTER_SIZES];
  bool measures;  // an iteration was queued between both events, and is not accounted for
  uint32_t size;  // its size
  mgl_cuda_way way;
} mgl_cuda_faster;

// The way that the next iteration takes. *timed: it stands between mgl_cuda_faster_begin and
// mgl_cuda_faster_end.
mgl_status mgl_cuda_faster_take(mgl_cuda_faster *f, const mgl_cuda_driver *driver, uint32_t size,
                                mgl_cuda_way *out, bool *timed, mgl_error *err);
mgl_status mgl_cuda_faster_begin(mgl_cuda_faster *f, const mgl_cuda_driver *driver, void *stream,
                                 mgl_error *err);
mgl_status mgl_cuda_faster_end(mgl_cuda_faster *f, const mgl_cuda_driver *driver, void *stream,
                               mgl_error *err);

// Sizes that are decided, by the way that they take.
void mgl_cuda_faster_count(const mgl_cuda_faster *f, uint32_t out[MGL_CUDA_WAYS]);

void mgl_cuda_faster_release(mgl_cuda_faster *f, const mgl_cuda_driver *driver);

#endif
