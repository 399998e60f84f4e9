// The lanes that run the planner together, for one target.
//
// All lanes execute the same calls in the same order. Between two calls of this header each lane
// touches its own elements only, or lane 0 alone does something; every call is a barrier: what any
// lane wrote before it, all see after it. A target is this one file:
//   host     one lane, so that loops and scans become plain ones
//   device   the 32 lanes of a warp
//   model    many lanes in turns, in any order between two barriers (tests, with
//            MGL_PLANNER_LANES_MODEL)
// Another number of lanes on a device (a block) is another such file: MGL_PLANNER_LANES_CUDA names
// it.
#ifndef MGL_TWIN_PLANNER_LANES_H
#define MGL_TWIN_PLANNER_LANES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mgl_lanes {
  uint32_t lane;
  uint32_t count;
} mgl_lanes;

#if defined(MGL_PLANNER_LANES_MODEL)
#include "support/lanes_model.h"
#elif defined(MGL_PLANNER_LANES_CUDA)
#include MGL_PLANNER_LANES_CUDA
#elif defined(__CUDACC__)

#define MGL_PLANNER_FN static __device__ inline

MGL_PLANNER_FN void mgl_lanes_sync(mgl_lanes lanes) {
  (void)lanes;
  __syncwarp();
}

// The sum of the values of all lanes before this one; *total: of all lanes.
MGL_PLANNER_FN uint32_t mgl_lanes_prefix(mgl_lanes lanes, uint32_t value, uint32_t *total) {
  uint32_t sum = value;
  for (uint32_t step = 1; step < 32; step *= 2) {
    uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    sum += lanes.lane >= step ? other : 0;
  }
  *total = __shfl_sync(0xffffffffu, sum, 31);
  __syncwarp();
  return sum - value;
}

// The least of the values of all lanes.
MGL_PLANNER_FN uint32_t mgl_lanes_min(mgl_lanes lanes, uint32_t value) {
  (void)lanes;
  uint32_t least = __reduce_min_sync(0xffffffffu, value);
  __syncwarp();
  return least;
}

#else

#define MGL_PLANNER_FN static inline

MGL_PLANNER_FN void mgl_lanes_sync(mgl_lanes lanes) {
  (void)lanes;
}

MGL_PLANNER_FN uint32_t mgl_lanes_prefix(mgl_lanes lanes, uint32_t value, uint32_t *total) {
  (void)lanes;
  *total = value;
  return 0;
}

MGL_PLANNER_FN uint32_t mgl_lanes_min(mgl_lanes lanes, uint32_t value) {
  (void)lanes;
  return value;
}

#endif

MGL_PLANNER_FN uint32_t mgl_lanes_sum(mgl_lanes lanes, uint32_t value) {
  uint32_t total;
  (void)mgl_lanes_prefix(lanes, value, &total);
  return total;
}

#endif
