#include "serve/server.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "serve/server_parts.h"
#include "serve/systemd.h"
#include "serve/tls.h"

enum { BACKLOG = 4096 };

// --- listening -----------------------------------------------------------------------------------

static mgl_status listen_unix(mgl_server *server, mgl_error *err) {
  const char *path = server->options.unix_path;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat found;
  if (strlen(path) >= sizeof address.sun_path) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%s: expected a path of at most %zu bytes", path,
                         sizeof address.sun_path - 1);
  }
  memcpy(address.sun_path, path, strlen(path) + 1);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // A socket that nobody listens at is what a killed server left behind.
  if (fd >= 0 && lstat(path, &found) == 0 && S_ISSOCK(found.st_mode) &&
      connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED) {
    (void)unlink(path);
  }
  if (fd >= 0) {
    (void)close(fd);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
      listen(fd, BACKLOG) != 0) {
    int code = errno;
    if (fd >= 0) {
      (void)close(fd);
    }
    return mgl_error_set(err, MGL_ERR_IO, "cannot listen at %s: %s", path, strerror(code));
  }
  server->unix_path = mgl_strdup(path);
  (void)snprintf(server->address, sizeof server->address, "unix:%.200s", path);
  return mgl_http_server_listen(server->http, fd, err);
}

// What a name or address means, bound and listening.
static int bind_address(const struct addrinfo *info) {
  const int on = 1;
  int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
  if (fd < 0) {
    return -1;
  }
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
    int code = errno;
    (void)close(fd);
    errno = code;
    return -1;
  }
  return fd;
}

static void describe_address(mgl_server *server, int fd) {
  struct sockaddr_storage bound;
  socklen_t bytes = sizeof bound;
  char host[80] = "";
  char port[16] = "";
  if (getsockname(fd, (struct sockaddr *)&bound, &bytes) == 0) {
    (void)getnameinfo((struct sockaddr *)&bound, bytes, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
  }
  bool is_v6 = strchr(host, ':') != NULL;
  (void)snprintf(server->address, sizeof server->address, "%s://%s%s%s:%s",
                 server->options.tls_certificate_path != NULL ? "https" : "http", is_v6 ? "[" : "",
                 host, is_v6 ? "]" : "", port);
}

static mgl_status listen_tcp(mgl_server *server, mgl_error *err) {
  const char *host = server->options.host;
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  struct addrinfo *found = NULL;
  char port[16];
  (void)snprintf(port, sizeof port, "%u", server->options.port);
  int code = getaddrinfo(host, port, &hints, &found);
  if (code != 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "host %s: %s", host, gai_strerror(code));
  }
  int fd = bind_address(found);
  code = errno;
  freeaddrinfo(found);
  if (fd < 0) {
    return mgl_error_set(err, MGL_ERR_IO, "cannot listen at %s port %s: %s", host, port,
                         strerror(code));
  }
  describe_address(server, fd);
  return mgl_http_server_listen(server->http, fd, err);
}

// Takes what systemd has opened for us.
static mgl_status listen_inherited(mgl_server *server, int first, uint32_t count, mgl_error *err) {
  const char *path = server->options.unix_path;
  if (server->options.is_again && path != NULL) {
    server->unix_path = mgl_strdup(path);
    (void)snprintf(server->address, sizeof server->address, "unix:%.200s", path);
  } else {
    describe_address(server, first);
  }
  for (uint32_t i = 0; i < count; i++) {
    MGL_TRY(mgl_http_server_listen(server->http, first + (int)i, err));
  }
  return MGL_OK;
}

static mgl_status start_listening(mgl_server *server, mgl_error *err) {
  int first = 0;
  uint32_t inherited = server->options.use_inherited ? mgl_systemd_sockets(&first) : 0;
  if (inherited > 0) {
    return listen_inherited(server, first, inherited, err);
  }
  return server->options.unix_path != NULL ? listen_unix(server, err) : listen_tcp(server, err);
}

// --- events --------------------------------------------------------------------------------------

static void begin_drain(mgl_server *server) {
  server->drain_end_ns = mgl_clock_ns() + (uint64_t)server->options.drain_seconds * 1000000000u;
  mgl_http_server_drain(server->http);
  mgl_systemd_notify("STOPPING=1");
}

static void on_stop(evutil_socket_t fd, short what, void *context) {
  mgl_server *server = context;
  uint64_t count = 0;
  (void)what;
  (void)!read(fd, &count, sizeof count);
  if (server->stops == 0) {
    begin_drain(server);
  } else {
    server->drain_end_ns = 0;
  }
  server->stops += (uint32_t)count;
  if (server->stops > 1) {
    server->drain_end_ns = 0;
  }
}

static void watch_engine(mgl_server *server) {
  megalith_statistics statistics = {.size = sizeof statistics};
  (void)megalith_engine_get_statistics(server->options.engine, &statistics, NULL);
  if (statistics.iterations != server->iterations ||
      !megalith_engine_has_work(server->options.engine)) {
    server->iterations = statistics.iterations;
    server->progress_ns = mgl_clock_ns();
  }
}

// A server that ends with its engine does so once the requests of both have their answers.
static void follow_engine(mgl_server *server) {
  if (server->options.ends_with_engine && server->stops == 0 && !server->gives_up &&
      megalith_engine_check(server->options.engine, NULL) != MEGALITH_OK) {
    server->gives_up = true;
    server->socket_count = mgl_http_server_take_listeners(server->http, server->sockets);
    server->drain_end_ns = mgl_clock_ns() + (uint64_t)server->options.drain_seconds * 1000000000u;
    mgl_http_server_drain(server->http);
  }
}

static void on_tick(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  watch_engine(context);
  follow_engine(context);
  mgl_server_keep_streams(context);
}

static void ignore_fatal(int code) {
  (void)code;  // libevent aborts behind it
}

// -------------------------------------------------------------------------------------------------

static void fill_defaults(mgl_server_options *o) {
  o->host = o->host == NULL ? "127.0.0.1" : o->host;
  o->max_body_bytes = o->max_body_bytes == 0 ? MGL_SERVER_BODY_BYTES : o->max_body_bytes;
  o->max_connections = o->max_connections == 0 ? MGL_SERVER_CONNECTIONS : o->max_connections;
  o->max_requests = o->max_requests == 0 ? MGL_SERVER_REQUESTS : o->max_requests;
  o->idle_seconds = o->idle_seconds == 0 ? MGL_SERVER_IDLE_SECONDS : o->idle_seconds;
  o->head_seconds = o->head_seconds == 0 ? MGL_SERVER_HEAD_SECONDS : o->head_seconds;
  o->body_seconds = o->body_seconds == 0 ? MGL_SERVER_BODY_SECONDS : o->body_seconds;
  o->write_seconds = o->write_seconds == 0 ? MGL_SERVER_WRITE_SECONDS : o->write_seconds;
  o->drain_seconds = o->drain_seconds == 0 ? MGL_SERVER_DRAIN_SECONDS : o->drain_seconds;
}

// As many descriptors as the system lets us have, and no more connections than these.
static void raise_descriptors(mgl_server_options *o) {
  enum { OWN_DESCRIPTORS = 64 };
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    rlim_t wanted = (rlim_t)o->max_connections + OWN_DESCRIPTORS;
    if (limit.rlim_cur < wanted) {
      limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
      (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
      o->max_connections = limit.rlim_cur > 2 * OWN_DESCRIPTORS
                               ? (uint32_t)limit.rlim_cur - OWN_DESCRIPTORS
                               : OWN_DESCRIPTORS;
    }
  }
}

static mgl_status start_parts(mgl_server *server, mgl_error *err) {
  const mgl_server_options *o = &server->options;
  if (o->api_keys_path != NULL) {
    MGL_TRY(mgl_api_keys_read(o->api_keys_path, &server->keys, err));
  }
  if (o->tls_certificate_path != NULL) {
    MGL_TRY(mgl_tls_create(o->tls_certificate_path, o->tls_key_path, &server->tls, err));
  }
  mgl_http_options http = {.tls = server->tls,
                           .max_body_bytes = o->max_body_bytes,
                           .max_connections = o->max_connections,
                           .idle_seconds = o->idle_seconds,
                           .head_seconds = o->head_seconds,
                           .body_seconds = o->body_seconds,
                           .write_seconds = o->write_seconds};
  mgl_http_callbacks callbacks = {.context = server,
                                  .accepts = mgl_server_accepts,
                                  .request = mgl_server_on_request,
                                  .refused = mgl_server_on_refused};
  mgl_jobs_options jobs = {.model = o->model,
                           .engine = o->engine,
                           .model_name = o->model_name,
                           .max_active = o->max_requests,
                           .syntax = o->syntax};
  mgl_job_callbacks told = mgl_server_job_callbacks;
  struct timeval second = {.tv_sec = 1};
  told.context = server;
  event_set_fatal_callback(ignore_fatal);
  event_set_mem_functions(mgl_alloc, mgl_realloc, mgl_free);
  server->base = event_base_new();
  server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (server->base == NULL || server->stop_fd < 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a server");
  }
  server->stop = event_new(server->base, server->stop_fd, EV_READ | EV_PERSIST, on_stop, server);
  server->tick = event_new(server->base, -1, EV_PERSIST, on_tick, server);
  if (server->stop == NULL || server->tick == NULL || event_add(server->stop, NULL) != 0 ||
      event_add(server->tick, &second) != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a server");
  }
  MGL_TRY(mgl_http_server_create(server->base, &http, &callbacks, &server->http, err));
  MGL_TRY(mgl_jobs_create(server->base, &jobs, &told, &server->jobs, err));
  return start_listening(server, err);
}

mgl_status mgl_server_create(const mgl_server_options *options, mgl_server **out, mgl_error *err) {
  mgl_server *server = mgl_alloc_zeroed(1, sizeof *server);
  *out = NULL;
  if (server == NULL) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a server");
  }
  server->options = *options;
  server->stop_fd = -1;
  server->start_time = time(NULL);
  server->progress_ns = mgl_clock_ns();
  fill_defaults(&server->options);
  raise_descriptors(&server->options);
  mgl_status status = start_parts(server, err);
  if (status != MGL_OK) {
    mgl_server_destroy(server);
    return status;
  }
  *out = server;
  return MGL_OK;
}

const char *mgl_server_address(const mgl_server *server) {
  return server->address;
}

void mgl_server_stop(mgl_server *server) {
  uint64_t one = 1;
  int code = errno;  // of what a signal may have interrupted
  (void)!write(server->stop_fd, &one, sizeof one);
  errno = code;
}

// Whether a drain has come to its end.
static bool is_drained(const mgl_server *server) {
  if (server->stops == 0 && !server->gives_up) {
    return false;
  }
  bool is_empty = server->first == NULL && mgl_http_server_counters(server->http)->open == 0;
  return is_empty || mgl_clock_ns() >= server->drain_end_ns;
}

mgl_status mgl_server_run(mgl_server *server, mgl_error *err) {
  mgl_systemd_notify("READY=1");
  while (!is_drained(server)) {
    if (event_base_loop(server->base, EVLOOP_ONCE) < 0) {
      return mgl_error_set(err, MGL_ERR_INTERNAL, "the event loop has failed");
    }
  }
  mgl_http_server_destroy(server->http);
  server->http = NULL;
  while (server->first != NULL) {  // their jobs end within an iteration
    if (event_base_loop(server->base, EVLOOP_ONCE) < 0) {
      break;
    }
  }
  return MGL_OK;
}

bool mgl_server_take_sockets(mgl_server *server, int out[MGL_SERVER_MAX_SOCKETS], uint32_t *count) {
  static_assert((int)MGL_SERVER_MAX_SOCKETS == (int)MGL_HTTP_MAX_LISTENERS, "all of them");
  if (!server->gives_up || server->stops > 0) {
    return false;
  }
  memcpy(out, server->sockets, sizeof server->sockets);
  *count = server->socket_count;
  server->socket_count = 0;
  mgl_free(server->unix_path);  // goes on to exist
  server->unix_path = NULL;
  return true;
}

void mgl_server_destroy(mgl_server *server) {
  if (server == NULL) {
    return;
  }
  mgl_http_server_destroy(server->http);
  mgl_jobs_destroy(server->jobs);
  if (server->stop != NULL) {
    event_free(server->stop);
  }
  if (server->tick != NULL) {
    event_free(server->tick);
  }
  if (server->base != NULL) {
    event_base_free(server->base);
  }
  if (server->stop_fd >= 0) {
    (void)close(server->stop_fd);
  }
  for (uint32_t i = 0; i < server->socket_count; i++) {
    (void)close(server->sockets[i]);
  }
  if (server->unix_path != NULL) {
    (void)unlink(server->unix_path);
  }
  mgl_free(server->unix_path);
  mgl_api_keys_free(&server->keys);
  mgl_tls_destroy(server->tls);
  mgl_text_free(&server->scratch);
  mgl_free(server);
}
