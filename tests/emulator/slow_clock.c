// A clock that runs more slowly, for LD_PRELOAD: an emulated GPU takes a thousand times as long as a
// real one, and deadlines of its host shall not pass meanwhile. EMULATED_SLOWNESS: how many times as
// long a second lasts [100]. Sleeps last as long as they say.
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int read_clock(clockid_t clock, struct timespec *out);

static read_clock *real;
static uint64_t slowness = 100;
static uint64_t start_ns;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t ns_of(const struct timespec *time) {
  return (uint64_t)time->tv_sec * UINT64_C(1000000000) + (uint64_t)time->tv_nsec;
}

static void find_real(void) {
  void *symbol = dlsym(RTLD_NEXT, "clock_gettime");
  const char *text = getenv("EMULATED_SLOWNESS");
  struct timespec now = {0};
  memcpy(&real, &symbol, sizeof real);
  slowness = text != NULL && atoi(text) > 0 ? (uint64_t)atoi(text) : slowness;
  (void)real(CLOCK_MONOTONIC, &now);
  start_ns = ns_of(&now);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *out) {
  (void)pthread_once(&once, find_real);
  const int status = real(clock, out);
  if (clock == CLOCK_MONOTONIC && status == 0) {
    const uint64_t ns = start_ns + (ns_of(out) - start_ns) / slowness;
    out->tv_sec = (time_t)(ns / UINT64_C(1000000000));
    out->tv_nsec = (long)(ns % UINT64_C(1000000000));
  }
  return status;
}
