// Which of two ways is faster, by what their rounds gave. Ranges of rounds that overlap say
// nothing, and of three rounds each ranges lie apart by chance once in ten times; so medians must
// also be further apart than what either way's own rounds differ by.
#ifndef MGL_TESTS_GPU_MODES_VERDICT_H
#define MGL_TESTS_GPU_MODES_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mode_rounds {
  double median, least, most;
  uint32_t count;  // 0: it did not run
} mode_rounds;

// Sorts them. A way of no rounds has zeros.
mode_rounds mode_rounds_of(double *values, uint32_t count);

typedef enum mode_verdict { MODE_SAME, MODE_FASTER, MODE_SLOWER, MODE_UNKNOWN } mode_verdict;

enum { MODE_LEAST_ROUNDS = 3 };  // of both; fewer say nothing of how far rounds differ

// What `a` is beside `b`. larger: the larger figure is the better one.
mode_verdict mode_compare(const mode_rounds *a, const mode_rounds *b, bool larger);

// How many times as fast `a` is, by medians.
double mode_factor(const mode_rounds *a, const mode_rounds *b, bool larger);

#endif
