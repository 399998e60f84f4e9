// Waiting of CPU threads: spin, then yield, then sleep in the kernel until mgl_notify.
//
// There is one place to sleep for the whole process. A thread that wakes for another's sake polls
// again and goes back; so spurious wakeups cost a little and are never wrong.
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

// One wait. `turns` are left before sleeping; crowded: more threads than processors, where a spin
// takes the processor from the thread that is waited for.
typedef struct mgl_backoff {
  uint32_t turns;
  bool crowded;
} mgl_backoff;

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
