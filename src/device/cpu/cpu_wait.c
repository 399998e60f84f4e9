// One generation counter, advanced by notifications while someone sleeps, and a futex on it.
//
// No wakeup is lost. The waiter stores `sleepers`, fences, and then loads what it waits for; the
// notifier has stored that, fences, and then loads `sleepers`. Of two sequentially consistent
// fences one is first: either the notifier's load sees the sleeper, or the waiter's last poll sees
// what was stored. In the first case the generation moves: if the waiter took its ticket before,
// futex_wait returns at once or is woken; if after, its acquire of the generation pairs with the
// notifier's release and the last poll sees what was stored.
#include "device/cpu/cpu_wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "twin/atomics.h"

enum {
  // A turn of spinning is a pause instruction, some 15 to 60 ns. The total is that of the team's
  // barrier: above the imbalance of tasks, far below a time slice.
  SPIN_TURNS = 4000,
  // Crowded: enough for a store that is under way on another processor, then let others run.
  CROWDED_SPINS = 20,
  CROWDED_YIELDS = 4,
};

static mgl_wait_place own;
static mgl_wait_place *place = &own;   // of this process
static mgl_wait_place *const *places;  // of all ranks; NULL: there are no others
static int private_flag = FUTEX_PRIVATE_FLAG;

void mgl_wait_share(mgl_wait_place *const *all, uint32_t rank) {
  places = all;
  place = all == NULL ? &own : all[rank];
  private_flag = all == NULL ? FUTEX_PRIVATE_FLAG : 0;
}

static void wake(mgl_wait_place *at) {
  mgl_fence_seq_cst();  // pairs with the one in mgl_sleep_prepare
  if (atomic_load_explicit(&at->sleepers, memory_order_relaxed) == 0) {
    return;
  }
  // Release, paired with the acquire in mgl_sleep_prepare.
  (void)mgl_count_add_release(&at->generation, 1);
  (void)syscall(SYS_futex, &at->generation, FUTEX_WAKE | private_flag, INT_MAX, NULL, NULL, 0);
}

void mgl_notify(void) {
  wake(place);
}

void mgl_notify_rank(uint32_t rank) {
  wake(places[rank]);
}

mgl_sleep_ticket mgl_sleep_prepare(void) {
  atomic_fetch_add_explicit(&place->sleepers, 1, memory_order_relaxed);
  mgl_fence_seq_cst();  // pairs with the one in wake
  // Acquire, paired with the release in wake.
  return mgl_count_load_acquire(&place->generation);
}

void mgl_sleep_cancel(void) {
  atomic_fetch_sub_explicit(&place->sleepers, 1, memory_order_relaxed);
}

void mgl_sleep(mgl_sleep_ticket ticket) {
  // Returns at once if the generation moved on; an interruption by a signal is a spurious wakeup.
  (void)syscall(SYS_futex, &place->generation, FUTEX_WAIT | private_flag, ticket, NULL, NULL, 0);
  mgl_sleep_cancel();
}

mgl_backoff mgl_backoff_start(bool crowded) {
  mgl_backoff backoff = {.crowded = crowded,
                         .turns = crowded ? CROWDED_SPINS + CROWDED_YIELDS : SPIN_TURNS};
  return backoff;
}

bool mgl_backoff_turn(mgl_backoff *backoff) {
  if (backoff->turns == 0) {
    return false;
  }
  backoff->turns--;
  if (backoff->crowded && backoff->turns < CROWDED_YIELDS) {
    (void)sched_yield();
  } else {
    mgl_relax();
  }
  return true;
}
