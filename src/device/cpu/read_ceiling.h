// The read ceiling: how fast a team can read memory, the yardstick of every speed that Megalith
// prints.
//
// Decoding reads every weight once per token, so no schedule is faster than plain loads of the same
// bytes by the same threads. A measurement is the best of several passes, since noise only slows
// down; base/rates.h says what several measurements are worth.
#ifndef MGL_DEVICE_CPU_READ_CEILING_H
#define MGL_DEVICE_CPU_READ_CEILING_H

#include <stddef.h>
#include <stdint.h>

#include "base/rates.h"
#include "base/simd.h"
#include "base/status.h"
#include "device/cpu/team.h"

enum {
  MGL_READ_CEILING_BYTES = 256 << 20,    // of a buffer of our own; more than any cache holds
  MGL_READ_CEILING_MAX_BYTES = 1 << 30,  // of one pass; more takes longer and shows the same
  // A measurement takes some time slices of the system's scheduler, since a pass over a small model
  // is shorter than one.
  MGL_READ_CEILING_LEAST_NS = 20000000,
};

// One measurement: highest rate, in bytes per second, of passes over memory[0 .. bytes), `passes`
// of them (at least 1) and at least MGL_READ_CEILING_LEAST_NS long together. With memory NULL, over
// a buffer of at most MGL_READ_CEILING_BYTES, filled by the workers that read it: a model whose
// weights fit into a cache is compared with that cache. Called by the thread that created the team.
mgl_status mgl_read_ceiling_measure(mgl_team *team, mgl_simd simd, const void *memory, size_t bytes,
                                    uint32_t passes, double *out_bytes_per_s, mgl_error *err);

#endif
