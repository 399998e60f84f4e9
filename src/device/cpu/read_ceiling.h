// The read ceiling: how fast a team can read memory, the yardstick of every speed that Megalith
// prints.
//
// Decoding reads every weight once per token, so no schedule is faster than plain loads of the same
// bytes by the same threads. A measurement is the best of several passes, since noise only slows
// down. Where others use the machine a whole measurement may be slow, and a share of it is then
// absurd: so a ceiling is measured before, between and after what is compared with it, and a share
// is told only where the measurements agree. Rejected: one measurement, which gave the same speed
// shares of 0.38 and 0.63, and once of 929.
#ifndef MGL_DEVICE_CPU_READ_CEILING_H
#define MGL_DEVICE_CPU_READ_CEILING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/simd.h"
#include "base/status.h"
#include "base/text.h"
#include "device/cpu/team.h"

enum {
  MGL_READ_CEILING_BYTES = 256 << 20,    // of a buffer of our own; more than any cache holds
  MGL_READ_CEILING_MAX_BYTES = 1 << 30,  // of one pass; more takes longer and shows the same
  // A measurement takes some time slices of the system's scheduler, since a pass over a small model
  // is shorter than one.
  MGL_READ_CEILING_LEAST_NS = 20000000,
};

#define MGL_READ_CEILING_MAX_SPREAD 0.15  // above it no share is told

// The measurements of one run, of the CPU or of a GPU. Zero-initialise.
typedef struct mgl_read_ceiling {
  double least, most;  // bytes per second; the ceiling is the highest
  uint32_t count;
} mgl_read_ceiling;

void mgl_read_ceiling_add(mgl_read_ceiling *ceiling, double bytes_per_s);

// (most - least) / most; 0 of fewer than two.
double mgl_read_ceiling_spread(const mgl_read_ceiling *ceiling);

// Whether a share may be told: two measurements or more, and MGL_READ_CEILING_MAX_SPREAD at most.
bool mgl_read_ceiling_is_steady(const mgl_read_ceiling *ceiling);

// Appends "136 GB/s in 4 measurements, 3% apart"; "22.1 to 45.3 GB/s in 4 measurements, 51% apart"
// where they are not steady.
void mgl_read_ceiling_append(const mgl_read_ceiling *ceiling, mgl_text *out);

// Behind that, where they are not steady: why there is no share.
void mgl_read_ceiling_append_refusal(const mgl_read_ceiling *ceiling, mgl_text *out);

// One measurement: highest rate, in bytes per second, of passes over memory[0 .. bytes), `passes`
// of them (at least 1) and at least MGL_READ_CEILING_LEAST_NS long together. With memory NULL, over
// a buffer of at most MGL_READ_CEILING_BYTES, filled by the workers that read it: a model whose
// weights fit into a cache is compared with that cache. Called by the thread that created the team.
mgl_status mgl_read_ceiling_measure(mgl_team *team, mgl_simd simd, const void *memory, size_t bytes,
                                    uint32_t passes, double *out_bytes_per_s, mgl_error *err);

#endif
