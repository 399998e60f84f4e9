#include "serve/systemd.h"

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_SOCKET = 3, MOST_SOCKETS = 16 };

uint32_t mgl_systemd_sockets(int *first) {
  const char *pid = getenv("LISTEN_PID");
  const char *count = getenv("LISTEN_FDS");
  *first = FIRST_SOCKET;
  if (pid == NULL || count == NULL || strtol(pid, NULL, 10) != (long)getpid()) {
    return 0;
  }
  long n = strtol(count, NULL, 10);
  n = n < 0 ? 0 : n > MOST_SOCKETS ? MOST_SOCKETS : n;
  for (long i = 0; i < n; i++) {
    (void)fcntl(FIRST_SOCKET + (int)i, F_SETFD, FD_CLOEXEC);
  }
  return (uint32_t)n;
}

static uint32_t kept_count;  // written once, before any child

// In a child. What has another socket's number by now is not one that listens, or is ours too.
static void close_kept(void) {
  for (uint32_t i = 0; i < kept_count; i++) {
    int listens = 0;
    socklen_t bytes = sizeof listens;
    const int fd = FIRST_SOCKET + (int)i;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0) {
      (void)close(fd);
    }
  }
}

void mgl_systemd_keep_sockets(void) {
  int first = 0;
  kept_count = mgl_systemd_sockets(&first);
  if (kept_count > 0) {
    (void)pthread_atfork(NULL, NULL, close_kept);
  }
}

bool mgl_systemd_pass(const int *sockets, uint32_t count) {
  char pid[24];
  char number[24];
  (void)snprintf(pid, sizeof pid, "%ld", (long)getpid());
  (void)snprintf(number, sizeof number, "%u", count);
  for (uint32_t i = 0; i < count; i++) {
    if (dup2(sockets[i], FIRST_SOCKET + (int)i) < 0) {  // which exec leaves open
      return false;
    }
  }
  return setenv("LISTEN_PID", pid, 1) == 0 && setenv("LISTEN_FDS", number, 1) == 0;
}

void mgl_systemd_notify(const char *state) {
  const char *path = getenv("NOTIFY_SOCKET");
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (path == NULL || (path[0] != '/' && path[0] != '@') ||
      strlen(path) >= sizeof address.sun_path) {
    return;
  }
  memcpy(address.sun_path, path, strlen(path));
  address.sun_path[0] = path[0] == '@' ? 0 : path[0];  // @: a name that is no file
  socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, bytes);
    (void)close(fd);
  }
}
