// A clock that runs more slowly, for LD_PRELOAD: an emulated GPU takes a thousand times as long as a
// real one, and deadlines of its host shall not pass meanwhile. EMULATED_SLOWNESS: how many times as
// long a second lasts [100].
//
// A sleep between two looks at the GPU lasts a millisecond at least, since 20 microseconds are nothing
// to it and take a third of the processor.
//
// Whoever waits until a moment of that clock waits as long as it is off by it, not slowed down: what
// is looked at every second is not looked at every two minutes.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int read_clock(clockid_t clock, struct timespec *out);
typedef int wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
typedef int sleep_until(clockid_t clock, int flags, const struct timespec *until,
                        struct timespec *left);

#define CALL __attribute__((visibility("default")))

enum { NS = 1000000000, EPOCHS = 1000000000, LEAST_SLEEP_NS = 1000000 };

static read_clock *real_clock;
static wait_until *real_wait;
static sleep_until *real_sleep;
static uint64_t slowness = 100;
static uint64_t start_ns;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t ns_of(const struct timespec *time) {
  return (uint64_t)time->tv_sec * NS + (uint64_t)time->tv_nsec;
}

static struct timespec time_of(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / NS), .tv_nsec = (long)(ns % NS)};
}

static void find(const char *name, void *out) {
  void *symbol = dlsym(RTLD_NEXT, name);
  memcpy(out, &symbol, sizeof symbol);
}

static void find_all(void) {
  const char *text = getenv("EMULATED_SLOWNESS");
  struct timespec now = {0};
  find("clock_gettime", &real_clock);
  find("pthread_cond_timedwait", &real_wait);
  find("clock_nanosleep", &real_sleep);
  slowness = text != NULL && atoi(text) > 0 ? (uint64_t)atoi(text) : slowness;
  (void)real_clock(CLOCK_MONOTONIC, &now);
  start_ns = ns_of(&now);
}

static uint64_t real_now(void) {
  struct timespec now = {0};
  (void)pthread_once(&once, find_all);
  (void)real_clock(CLOCK_MONOTONIC, &now);
  return ns_of(&now);
}

static uint64_t slowed(uint64_t ns) {
  return start_ns + (ns - start_ns) / slowness;
}

CALL int clock_gettime(clockid_t clock, struct timespec *out) {
  (void)pthread_once(&once, find_all);
  const int status = real_clock(clock, out);
  if (clock == CLOCK_MONOTONIC && status == 0) {
    *out = time_of(slowed(ns_of(out)));
  }
  return status;
}

// The moment of the real clock that is as far away as `until` is of the slow one.
static struct timespec real_moment(const struct timespec *until) {
  const uint64_t now = real_now(), wanted = ns_of(until), slow = slowed(now);
  return time_of(now + (wanted > slow ? wanted - slow : 0));
}

// A condition does not tell which clock it is for; since 1970 more seconds have passed than machines
// run.
CALL int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                                const struct timespec *restrict until) {
  (void)pthread_once(&once, find_all);
  struct timespec moment = *until;
  if (until->tv_sec < EPOCHS) {
    moment = real_moment(until);
  }
  return real_wait(cond, mutex, &moment);
}

CALL int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                         struct timespec *left) {
  (void)pthread_once(&once, find_all);
  struct timespec moment = *until;
  if (clock == CLOCK_MONOTONIC && flags == TIMER_ABSTIME) {
    moment = real_moment(until);
  }
  return real_sleep(clock, flags, &moment, left);
}

CALL int nanosleep(const struct timespec *wanted, struct timespec *left) {
  (void)pthread_once(&once, find_all);
  const uint64_t ns = ns_of(wanted);
  const struct timespec time = time_of(ns < LEAST_SLEEP_NS ? LEAST_SLEEP_NS : ns);
  const int code = real_sleep(CLOCK_MONOTONIC, 0, &time, left);
  errno = code != 0 ? code : errno;
  return code == 0 ? 0 : -1;
}
