// Ctrl-C: the first one asks a command to end in order, the second one kills.
//
// Commands that have something to finish (statistics, a file half written) call
// mgl_interrupt_watch, look at mgl_interrupt_seen between iterations and return; main then exits
// with status 130. Everything else is killed by the signal, as usual, once the file is removed that
// mgl_interrupt_unlink named.
#ifndef MGL_APP_INTERRUPT_H
#define MGL_APP_INTERRUPT_H

#include <stdbool.h>

void mgl_interrupt_watch(void);
bool mgl_interrupt_seen(void);

// Has this file removed if SIGINT, SIGHUP or SIGTERM kills the command; NULL: none any more. One at
// a time; the path is copied. Call from one thread.
void mgl_interrupt_unlink(const char *path);

#endif
