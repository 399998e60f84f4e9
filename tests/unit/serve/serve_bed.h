// Shared by the server's tests: a server on a thread of its own with the demo model, and a client
// of blocking sockets. Every failure ends the test.
#ifndef MGL_TESTS_SERVE_BED_H
#define MGL_TESTS_SERVE_BED_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <jansson.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "serve/server.h"

enum { PATIENCE_SECONDS = 60 };

static megalith_model *model;
static megalith_engine *engine;

typedef struct bed {
  mgl_server *server;
  pthread_t thread;
  uint16_t port;
} bed;

static inline int open_bed(void **state) {
  (void)signal(SIGPIPE, SIG_IGN);  // as the command does
  megalith_error error = {0};
  megalith_engine_options options = {.size = sizeof options,
                                     .device = "cpu",
                                     .threads = 2,
                                     .kv_tokens = 16384,
                                     .background = true};
  (void)state;
  if (megalith_model_open(MGL_DEMO_FOLDER, NULL, &model, &error) != MEGALITH_OK ||
      megalith_engine_create(model, &options, &engine, &error) != MEGALITH_OK) {
    (void)fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  return 0;
}

static inline int close_bed(void **state) {
  (void)state;
  megalith_engine_destroy(engine);
  megalith_model_close(model);
  return 0;
}

static inline void *run_server(void *context) {
  mgl_error err = {0};
  bed *b = context;
  if (mgl_server_run(b->server, &err) != MGL_OK) {
    (void)fprintf(stderr, "%s\n", err.text);
    abort();
  }
  return NULL;
}

static inline void start_server(bed *b, mgl_server_options options) {
  mgl_error err = {0};
  options.model = model;
  options.engine = engine;
  options.model_name = "demo";
  if (mgl_server_create(&options, &b->server, &err) != MGL_OK) {
    fail_msg("%s", err.text);
  }
  const char *address = mgl_server_address(b->server);
  b->port = (uint16_t)atoi(strrchr(address, ':') + 1);
  assert_int_equal(0, pthread_create(&b->thread, NULL, run_server, b));
}

static inline void stop_server(bed *b) {
  mgl_server_stop(b->server);
  assert_int_equal(0, pthread_join(b->thread, NULL));
  mgl_server_destroy(b->server);
}

// --- a client ------------------------------------------------------------------------------------

static inline int connect_client(const bed *b) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(b->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  assert_int_equal(0, connect(fd, (struct sockaddr *)&address, sizeof address));
  return fd;
}

static inline void send_text(int fd, const char *text) {
  size_t bytes = strlen(text);
  assert_int_equal((long)bytes, send(fd, text, bytes, MSG_NOSIGNAL));
}

static inline void send_post(int fd, const char *path, const char *body) {
  mgl_text text = {0};
  mgl_text_format(&text, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", path,
                  strlen(body), body);
  send_text(fd, text.data);
  mgl_text_free(&text);
}

// One answer: its status, and its body without chunked coding. Leaves what follows in the socket,
// since it reads no byte too many.
typedef struct reply {
  int status;
  char head[4096];
  mgl_text body;
} reply;

static inline bool read_exactly(int fd, char *out, size_t bytes) {
  while (bytes > 0) {
    ssize_t n = recv(fd, out, bytes, 0);
    if (n <= 0) {
      return false;
    }
    out += n;
    bytes -= (size_t)n;
  }
  return true;
}

// A line with its end; false at the end of the connection.
static inline bool read_line(int fd, char *out, size_t capacity) {
  size_t n = 0;
  while (n + 1 < capacity && (n == 0 || out[n - 1] != '\n')) {
    if (!read_exactly(fd, out + n, 1)) {
      return false;
    }
    n++;
  }
  out[n] = 0;
  return true;
}

static inline bool read_part(int fd, size_t bytes, mgl_text *out) {
  char *part = malloc(bytes + 1);
  bool complete = read_exactly(fd, part, bytes);
  mgl_text_append(out, part, complete ? bytes : 0);
  free(part);
  return complete;
}

static inline bool read_reply_head(int fd, reply *out) {
  size_t n = 0;
  *out = (reply){0};
  do {
    if (!read_line(fd, out->head + n, sizeof out->head - n)) {
      return false;
    }
    n += strlen(out->head + n);
  } while (strcmp(out->head + n - 4, "\r\n\r\n") != 0);
  assert_int_equal(1, sscanf(out->head, "HTTP/1.1 %d", &out->status));
  return true;
}

// False: the connection ended before the answer did.
static inline bool read_reply(int fd, reply *out) {
  char line[64];
  if (!read_reply_head(fd, out)) {
    return false;
  }
  const char *length = strstr(out->head, "Content-Length: ");
  if (length != NULL) {
    return read_part(fd, (size_t)atol(length + 16), &out->body);
  }
  for (;;) {
    if (!read_line(fd, line, sizeof line)) {
      return false;
    }
    size_t bytes = strtoul(line, NULL, 16);
    if ((bytes > 0 && !read_part(fd, bytes, &out->body)) || !read_line(fd, line, sizeof line)) {
      return false;
    }
    if (bytes == 0) {
      return true;
    }
  }
}

// Asks on a connection of its own. Free reply.body.
static inline reply ask_server(const bed *b, const char *path, const char *body) {
  reply r;
  int fd = connect_client(b);
  if (body != NULL) {
    send_post(fd, path, body);
  } else {
    mgl_text text = {0};
    mgl_text_format(&text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    send_text(fd, text.data);
    mgl_text_free(&text);
  }
  assert_true(read_reply(fd, &r));
  (void)close(fd);
  return r;
}

static inline json_t *json_of(const reply *r) {
  json_error_t error;
  json_t *root = json_loads(r->body.data == NULL ? "" : r->body.data, 0, &error);
  if (root == NULL) {
    fail_msg("expected JSON, found %s", r->body.data);
  }
  return root;
}

// A figure of /metrics.
static inline double metric(const bed *b, const char *name) {
  reply r = ask_server(b, "/metrics", NULL);
  char wanted[128];
  (void)snprintf(wanted, sizeof wanted, "\n%s ", name);
  const char *found = strstr(r.body.data, wanted);
  if (found == NULL) {
    fail_msg("no %s in /metrics", name);
  }
  double value = atof(found + strlen(wanted));
  mgl_text_free(&r.body);
  return value;
}

// Waits until a figure has a value.
static inline void wait_for_metric(const bed *b, const char *name, double expected) {
  uint64_t end = mgl_clock_ns() + (uint64_t)PATIENCE_SECONDS * 1000000000u;
  double found = metric(b, name);
  while (found != expected && mgl_clock_ns() < end) {
    (void)usleep(1000);
    found = metric(b, name);
  }
  if (found != expected) {
    fail_msg("%s: expected %g, found %g", name, expected, found);
  }
}

#endif
