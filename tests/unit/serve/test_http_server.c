// A queue for those who connect while the server does something else: as long as its socket was told.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <event2/event.h>

#include "serve/http_server.h"

enum { CLIENTS = 300, QUEUE = 1024, WAIT_MS = 500 };

static int listen_somewhere(struct sockaddr_in *address) {
  socklen_t bytes = sizeof *address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_true(fd >= 0);
  assert_int_equal(0, bind(fd, (struct sockaddr *)address, sizeof *address));
  assert_int_equal(0, listen(fd, QUEUE));
  assert_int_equal(0, getsockname(fd, (struct sockaddr *)address, &bytes));
  return fd;
}

static int system_queue(void) {
  int most = 0;
  FILE *file = fopen("/proc/sys/net/core/somaxconn", "r");
  assert_non_null(file);
  assert_int_equal(1, fscanf(file, "%d", &most));
  (void)fclose(file);
  return most;
}

// Nobody accepts: the event loop does not run.
static void test_queue(void **state) {
  struct sockaddr_in address;
  struct pollfd clients[CLIENTS];
  mgl_http_server *server = NULL;
  mgl_error err = {0};
  int connected = 0;
  (void)state;
  if (system_queue() <= CLIENTS) {
    (void)printf("skipped: net.core.somaxconn is %d, expected more than %d\n", system_queue(),
                 CLIENTS);
    skip();
  }
  struct event_base *base = event_base_new();
  const mgl_http_options options = {.max_connections = QUEUE};
  assert_int_equal(MGL_OK,
                   mgl_http_server_create(base, &options, &(mgl_http_callbacks){0}, &server, &err));
  int fd = listen_somewhere(&address);
  assert_int_equal(MGL_OK, mgl_http_server_listen(server, fd, &err));
  for (int i = 0; i < CLIENTS; i++) {
    clients[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    clients[i].events = POLLOUT;
    assert_true(clients[i].fd >= 0);
    (void)connect(clients[i].fd, (struct sockaddr *)&address, sizeof address);
  }
  (void)poll(NULL, 0, WAIT_MS);
  (void)poll(clients, CLIENTS, 0);
  for (int i = 0; i < CLIENTS; i++) {
    connected += (clients[i].revents & POLLOUT) != 0 ? 1 : 0;
    (void)close(clients[i].fd);
  }
  assert_int_equal(CLIENTS, connected);
  mgl_http_server_destroy(server);
  event_base_free(base);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_queue)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
