// A clock that runs faster and faster, for LD_PRELOAD: whatever is measured later takes longer, as on
// a machine whose memory is used more and more by others. It gains a second's speed every tenth.
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>

typedef int read_clock(clockid_t clock, struct timespec *out);

int clock_gettime(clockid_t clock, struct timespec *out) {
  static read_clock *real;
  static double start;  // written by the first call, in the thread that begins all others
  if (real == NULL) {
    *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
  }
  int status = real(clock, out);
  if (clock != CLOCK_MONOTONIC || status != 0) {
    return status;
  }
  double now = (double)out->tv_sec + (double)out->tv_nsec * 1e-9;
  start = start == 0 ? now : start;
  double passed = now - start;
  now = start + passed + passed * passed * 5;
  out->tv_sec = (time_t)now;
  out->tv_nsec = (long)((now - (double)out->tv_sec) * 1e9);
  return 0;
}
