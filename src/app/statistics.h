// Speed of a generation: what `run` tells at its end, from the iterations of an engine.
//
// Iterations that compute only prompts' continuations (decode iterations) give the time per token
// and the rate of reading; iterations with prompt tokens give the prompt's rate.
#ifndef MGL_APP_STATISTICS_H
#define MGL_APP_STATISTICS_H

#include <megalith.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rates.h"
#include "base/status.h"

// Zero-initialise; free with mgl_statistics_free.
typedef struct mgl_statistics {
  uint64_t prompt_tokens;
  uint64_t prompt_ns;
  uint64_t decode_tokens;  // of decode iterations
  uint64_t decode_ns;
  uint64_t kv_tokens;  // tokens of context that the decode iterations read
  double *step_ms;     // [step_count] time of each decode iteration
  size_t step_count;
  size_t step_capacity;
} mgl_statistics;

mgl_status mgl_statistics_add(mgl_statistics *statistics, const megalith_iteration *iteration,
                              mgl_error *err);

// One line on standard error. engine: what was measured ran on it. ceiling: used when there were
// decode iterations; without measurements no_ceiling says why.
void mgl_statistics_print(const mgl_statistics *statistics, uint64_t generated_tokens,
                          const megalith_engine_info *engine, const mgl_read_ceiling *ceiling,
                          const char *no_ceiling);

void mgl_statistics_free(mgl_statistics *statistics);

// Median of values[0 .. count), which it reorders; 0 of none.
double mgl_median(double *values, size_t count);

// The value that percent of the others do not exceed, by the nearest rank; 0 of none. Reorders
// values[0 .. count). percent: 1 to 100.
double mgl_percentile(double *values, size_t count, unsigned percent);

#endif
