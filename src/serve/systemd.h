// The two small protocols of systemd that a service may speak, as their manual pages document them:
// sockets that were opened for it (sd_listen_fds) and what it tells (sd_notify).
//
// Written out, since libsystemd would be a large dependency for a variable and a datagram.
#ifndef MGL_SERVE_SYSTEMD_H
#define MGL_SERVE_SYSTEMD_H

#include <stdbool.h>
#include <stdint.h>

// How many sockets were passed to this process: descriptors 3 and up. 0 where nothing was.
uint32_t mgl_systemd_sockets(int *first);

// Processes that this one forks from now on, such as ranks, do not have them: with such a copy a
// socket that the server closes would still take connections. Once, before anything is forked.
void mgl_systemd_keep_sockets(void);

// The other side of it: makes these sockets, whose descriptors are above all that are passed, those
// of the program that this process executes next. False, with errno, if the system refuses.
bool mgl_systemd_pass(const int *sockets, uint32_t count);

// "READY=1", "STOPPING=1". Does nothing where nobody listens.
void mgl_systemd_notify(const char *state);

#endif
