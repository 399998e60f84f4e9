// Waiting of CPU threads: spin, then yield, then sleep in the kernel until mgl_notify.
//
// There is one place to sleep for the whole process; with several ranks, which are processes that
// run one model together, one a rank, in memory that all of them have. A thread that wakes for
// another's sake polls again and goes back; so spurious wakeups cost a little and are never wrong.
//
//   mgl_backoff backoff = mgl_backoff_start(crowded);
//   while (!poll()) {
//     if (mgl_backoff_turn(&backoff)) {
//       continue;
//     }
//     mgl_sleep_ticket ticket = mgl_sleep_prepare();
//     if (poll()) { mgl_sleep_cancel(); break; }
//     mgl_sleep(ticket);
//     backoff = mgl_backoff_start(crowded);
//   }
#ifndef MGL_DEVICE_CPU_CPU_WAIT_H
#define MGL_DEVICE_CPU_CPU_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "twin/atomics.h"

// One wait. `turns` are left before sleeping; crowded: more threads than processors, where a spin
// takes the processor from the thread that is waited for.
typedef struct mgl_backoff {
  uint32_t turns;
  bool crowded;
} mgl_backoff;

// A place to sleep, each word on a cache line of its own: every notification reads `sleepers`, and
// finds it in its cache as long as nobody starts or stops sleeping.
typedef struct mgl_wait_place {
  _Alignas(64) mgl_count sleepers;
  _Alignas(64) mgl_count generation;
} mgl_wait_place;

// From now on this process sleeps at places[rank], and mgl_notify_rank wakes the others'. NULL: at
// its own again. While nobody waits.
void mgl_wait_share(mgl_wait_place *const *places, uint32_t rank);

mgl_backoff mgl_backoff_start(bool crowded);

// Pauses or yields for one turn. False once it is time to sleep.
bool mgl_backoff_turn(mgl_backoff *backoff);

typedef uint32_t mgl_sleep_ticket;

// Announces that this thread is about to sleep. What it waits for must be checked once more between
// this call and the next, which is exactly one of the two below.
mgl_sleep_ticket mgl_sleep_prepare(void);
void mgl_sleep_cancel(void);
// Sleeps unless mgl_notify was called since mgl_sleep_prepare.
void mgl_sleep(mgl_sleep_ticket ticket);

#endif
