#include "app/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PATH_BYTES = 4096 + 32 };

static volatile sig_atomic_t watched;  // the next SIGINT only sets `seen`
static volatile sig_atomic_t seen;

static char doomed[MAX_PATH_BYTES];  // complete while has_doomed is set
static volatile sig_atomic_t has_doomed;

static void handle(int number) {
  if (number == SIGINT && watched && !seen) {
    seen = 1;
    return;
  }
  if (has_doomed) {
    (void)unlink(doomed);
  }
  // The signal is blocked while it is handled, so this kills at the return.
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

// No SA_RESTART: a blocked write must return. A shell starts background jobs with SIGINT ignored,
// nohup a command with SIGHUP ignored; that stays so.
static void catch_signal(int number) {
  struct sigaction action = {.sa_handler = handle};
  struct sigaction old;
  if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
  }
}

void mgl_interrupt_watch(void) {
  watched = 1;
  catch_signal(SIGINT);
}

bool mgl_interrupt_seen(void) {
  return seen != 0;
}

void mgl_interrupt_unlink(const char *path) {
  has_doomed = 0;
  if (path != NULL && strlen(path) < sizeof doomed) {
    memcpy(doomed, path, strlen(path) + 1);
    has_doomed = 1;
    catch_signal(SIGINT);
    catch_signal(SIGHUP);
    catch_signal(SIGTERM);
  }
}
