// Monotonic time.
#ifndef MGL_BASE_CLOCK_H
#define MGL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

// Nanoseconds since some fixed moment.
static inline uint64_t mgl_clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
