// Measurements of a read ceiling (device/cpu/read_ceiling.h), and what they are worth together.
//
// Where others use the machine a whole measurement may be slow, and a share of it is then absurd:
// so a ceiling is measured before, between and after what is compared with it, and a share is told
// only where the measurements agree. Rejected: one measurement, which gave the same speed shares of
// 0.38 and 0.63, and once of 929.
#ifndef MGL_BASE_RATES_H
#define MGL_BASE_RATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

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

#endif
