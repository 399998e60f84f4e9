#include "app/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t seen;

static void handle(int number) {
  (void)number;
  seen = 1;
}

void mgl_interrupt_watch(void) {
  // SA_RESETHAND: a second Ctrl-C kills. No SA_RESTART: a blocked write must return.
  struct sigaction action = {.sa_handler = handle, .sa_flags = (int)SA_RESETHAND};
  struct sigaction old;
  // A shell starts background jobs with SIGINT ignored; that stays so.
  if (sigaction(SIGINT, NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
  }
}

bool mgl_interrupt_seen(void) {
  return seen != 0;
}
