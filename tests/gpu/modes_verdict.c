#include "gpu/modes_verdict.h"

#include <math.h>

#include "gpu/gpu_bench.h"

mode_rounds mode_rounds_of(double *values, uint32_t count) {
  if (count == 0) {
    return (mode_rounds){0};
  }
  const double median = gpu_median(values, count);
  return (mode_rounds){
      .median = median, .least = values[0], .most = values[count - 1], .count = count};
}

mode_verdict mode_compare(const mode_rounds *a, const mode_rounds *b, bool larger) {
  if (a->count < MODE_LEAST_ROUNDS || b->count < MODE_LEAST_ROUNDS) {
    return MODE_UNKNOWN;
  }
  const bool apart = a->most < b->least || b->most < a->least;
  const double spread = fmax(a->most - a->least, b->most - b->least);
  if (!apart || fabs(a->median - b->median) <= spread) {
    return MODE_SAME;
  }
  return (a->median > b->median) == larger ? MODE_FASTER : MODE_SLOWER;
}

double mode_factor(const mode_rounds *a, const mode_rounds *b, bool larger) {
  return larger ? a->median / b->median : b->median / a->median;
}
