// The read ceiling: how fast a team can read memory, the yardstick of every speed that Megalith
// prints.
//
// Decoding reads every weight once per token, so no schedule is faster than plain loads of the same
// bytes by the same threads. The result is the best of several passes, since noise only slows down.
#ifndef MGL_DEVICE_CPU_READ_CEILING_H
#define MGL_DEVICE_CPU_READ_CEILING_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/status.h"
#include "device/cpu/team.h"

enum {
  MGL_READ_CEILING_BYTES = 256 << 20,    // of a buffer of our own; more than any cache holds
  MGL_READ_CEILING_MAX_BYTES = 1 << 30,  // of one pass; more takes longer and shows the same
};

// Highest rate, in bytes per second, of `passes` (at least 1) passes over memory[0 .. bytes). With
// memory NULL, over a buffer of at most MGL_READ_CEILING_BYTES, filled by the workers that read it:
// a model whose weights fit into a cache is compared with that cache. Called by the thread that
// created the team.
mgl_status mgl_read_ceiling_measure(mgl_team *team, mgl_simd simd, const void *memory, size_t bytes,
                                    uint32_t passes, double *out_bytes_per_s, mgl_error *err);

#endif
