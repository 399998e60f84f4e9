#include "serve/http_server.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

enum {
  SWEEP_MS = 250,                // between looks at all deadlines
  LINGER_SECONDS = 1,            // for a client to read a refusal before the socket closes
  READ_AHEAD_BYTES = 64 * 1024,  // of requests that a client sends before it has its answer
  DRAIN_IDLE_SECONDS = 1,        // for a request that is on its way when the server drains
};

typedef enum phase {
  PHASE_READING,    // a request, or waiting for one
  PHASE_ANSWERING,  // the owner has the exchange, nothing is written yet
  PHASE_STREAMING,
  PHASE_FLUSHING,  // the answer is complete, and leaves
  PHASE_LINGERING,
} phase;

struct mgl_exchange {
  mgl_http_server *server;
  mgl_exchange *previous, *next;
  struct bufferevent *bev;
  mgl_http_reader reader;
  phase phase;
  uint64_t deadline_ns;  // of the phase; 0: none
  uint64_t put, taken;   // bytes for the client in all, and those that have left at the last look
  uint64_t taken_ns;     // when that was more than before
  bool keep_alive;       // after the present answer
  bool chunked;          // the present answer
  bool is_busy;          // inside mgl_exchange's own loop: do not free
  bool is_dead;          // to be freed when it is not busy
  bool is_held;    // the client has sent enough ahead: nothing is read before its answer has left
  bool is_broken;  // memory was out for a part of the answer: it is closed instead
  mgl_exchange_watch watch;
};

struct mgl_http_server {
  struct event_base *base;
  mgl_http_options options;
  mgl_http_callbacks callbacks;
  mgl_http_counters counters;
  struct evconnlistener *listeners[MGL_HTTP_MAX_LISTENERS];
  uint32_t listener_count;
  struct event *sweep;
  bool is_paused;  // nothing is accepted until the next look: descriptors ran out
  bool is_draining;
  mgl_exchange *first;
};

static void advance(mgl_exchange *x);

// --- lives ---------------------------------------------------------------------------------------

static void set_accepting(mgl_http_server *server, bool accepting) {
  for (uint32_t i = 0; i < server->listener_count; i++) {
    (void)(accepting ? evconnlistener_enable : evconnlistener_disable)(server->listeners[i]);
  }
}

static void free_exchange(mgl_exchange *x) {
  mgl_http_server *server = x->server;
  if (x->bev != NULL) {
    bufferevent_free(x->bev);
  }
  mgl_http_reader_free(&x->reader);
  if (x->next != NULL) {
    x->next->previous = x->previous;
  }
  *(x->previous != NULL ? &x->previous->next : &server->first) = x->next;
  mgl_free(x);
  if (server->counters.open-- == server->options.max_connections && !server->is_draining) {
    set_accepting(server, true);
  }
}

// Ends the connection now, whatever it was doing.
static void kill_exchange(mgl_exchange *x) {
  mgl_exchange_watch watch = x->watch;
  bool was_answering = x->phase == PHASE_ANSWERING || x->phase == PHASE_STREAMING;
  if (x->is_dead) {
    return;
  }
  x->is_dead = true;
  x->watch = (mgl_exchange_watch){0};
  if (was_answering) {
    x->server->counters.gone++;
    if (watch.gone != NULL) {
      watch.gone(watch.context);
    }
  }
  if (!x->is_busy) {
    free_exchange(x);
  }
}

static void set_deadline(mgl_exchange *x, uint32_t seconds) {
  x->deadline_ns = mgl_clock_ns() + (uint64_t)seconds * 1000000000u;
}

// An answer with a gap would be taken for a whole one: where memory is out for a part of it,
// nothing more goes out, and the end of the connection, which the loop then sees, ends the
// exchange.
static void break_off(mgl_exchange *x) {
  x->is_broken = true;
  (void)shutdown(bufferevent_getfd(x->bev), SHUT_RDWR);
}

// Puts bytes behind what is on its way to the client.
static void put(mgl_exchange *x, const char *data, size_t bytes) {
  if (x->is_broken) {
    return;
  }
  if (evbuffer_get_length(bufferevent_get_output(x->bev)) == 0) {
    x->taken_ns = mgl_clock_ns();
  }
  x->put += bytes;
  if (bufferevent_write(x->bev, data, bytes) != 0) {
    break_off(x);
  }
}

// --- reading -------------------------------------------------------------------------------------

static void begin_reading(mgl_exchange *x) {
  mgl_http_reader_next(&x->reader);
  x->phase = PHASE_READING;
  set_deadline(x, x->server->options.idle_seconds);
  if (x->is_held) {
    x->is_held = false;
    (void)bufferevent_enable(x->bev, EV_READ);
  }
}

static void refuse(mgl_exchange *x) {
  mgl_http_server *server = x->server;
  server->counters.refused++;
  x->keep_alive = false;
  x->phase = PHASE_ANSWERING;
  server->callbacks.refused(server->callbacks.context, x, x->reader.refusal, x->reader.reason);
}

// The reader has come to the end of a part of the request.
static void step_reading(mgl_exchange *x, mgl_http_state before) {
  mgl_http_server *server = x->server;
  mgl_http_state state = x->reader.state;
  x->keep_alive = x->reader.keep_alive && !server->is_draining;
  if (state == MGL_HTTP_REFUSED) {
    refuse(x);
  } else if (state == MGL_HTTP_HEAD && before == MGL_HTTP_IDLE) {
    set_deadline(x, server->options.head_seconds);
  } else if (state == MGL_HTTP_BODY && before != MGL_HTTP_BODY) {
    set_deadline(x, server->options.body_seconds);
    x->phase = PHASE_ANSWERING;
    if (!server->callbacks.accepts(server->callbacks.context, x)) {
      return;
    }
    x->phase = PHASE_READING;
    if (x->reader.wants_continue) {
      static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
      put(x, go_on, sizeof go_on - 1);
    }
  } else if (state == MGL_HTTP_COMPLETE) {
    x->deadline_ns = 0;
    x->phase = PHASE_ANSWERING;
    server->callbacks.request(server->callbacks.context, x);
  }
}

// Reads and answers as far as what has come allows.
static void advance(mgl_exchange *x) {
  if (x->is_busy) {
    return;
  }
  x->is_busy = true;
  struct evbuffer *input = bufferevent_get_input(x->bev);
  while (!x->is_dead && x->phase == PHASE_READING && evbuffer_get_length(input) > 0) {
    struct evbuffer_iovec part;
    mgl_http_state before = x->reader.state;
    if (evbuffer_peek(input, -1, NULL, &part, 1) < 1) {
      break;
    }
    size_t used = mgl_http_read(&x->reader, part.iov_base, part.iov_len);
    (void)evbuffer_drain(input, used);
    step_reading(x, before);
  }
  x->is_busy = false;
  if (x->is_dead) {
    free_exchange(x);
  }
}

static void on_readable(struct bufferevent *bev, void *context) {
  mgl_exchange *x = context;
  struct evbuffer *input = bufferevent_get_input(bev);
  bool is_last = x->phase == PHASE_LINGERING || (x->phase == PHASE_FLUSHING && !x->keep_alive);
  if (is_last) {
    (void)evbuffer_drain(input, evbuffer_get_length(input));
  } else if (x->phase == PHASE_READING) {
    advance(x);
  } else if (evbuffer_get_length(input) >= READ_AHEAD_BYTES) {
    // libevent's own mark of how much to read ahead takes memory, and crashes where it is out.
    x->is_held = true;
    (void)bufferevent_disable(bev, EV_READ);
  }
}

// --- writing -------------------------------------------------------------------------------------

// The answer has left: on to the next request, or to the end.
static void after_answer(mgl_exchange *x) {
  if (x->keep_alive && !x->server->is_draining) {
    begin_reading(x);
    advance(x);
    return;
  }
  if (x->server->options.tls != NULL) {
    kill_exchange(x);
    return;
  }
  // A socket that closes with unread input resets the connection, and the client may lose the
  // answer: so its input is read, for a moment, to its end.
  x->phase = PHASE_LINGERING;
  (void)shutdown(bufferevent_getfd(x->bev), SHUT_WR);
  set_deadline(x, LINGER_SECONDS);
}

static void on_written(struct bufferevent *bev, void *context) {
  mgl_exchange *x = context;
  (void)bev;
  if (x->is_broken) {
    return;
  }
  if (x->phase == PHASE_FLUSHING) {
    after_answer(x);
  } else if (x->phase == PHASE_STREAMING && x->watch.drained != NULL) {
    x->watch.drained(x->watch.context);
  }
}

static void on_end(struct bufferevent *bev, short what, void *context) {
  mgl_exchange *x = context;
  (void)bev;
  if ((what & BEV_EVENT_CONNECTED) != 0) {
    return;
  }
  if ((what & BEV_EVENT_EOF) != 0 && x->phase == PHASE_FLUSHING && !x->is_broken) {
    x->keep_alive = false;  // it has said all, and may still read its answer
    return;
  }
  x->server->counters.timed_out += (what & BEV_EVENT_TIMEOUT) != 0 ? 1 : 0;
  kill_exchange(x);
}

static void end_phase(mgl_exchange *x) {
  bool is_slow = x->phase == PHASE_READING && x->reader.state != MGL_HTTP_IDLE;
  x->deadline_ns = 0;
  if (is_slow) {
    x->server->counters.timed_out++;
    x->reader.state = MGL_HTTP_REFUSED;
    x->reader.refusal = 408;
    x->reader.reason = "the request did not come to its end in time";
    refuse(x);
  } else if (x->phase != PHASE_ANSWERING && x->phase != PHASE_STREAMING) {
    kill_exchange(x);
  }
}

// Whether the client has taken nothing for too long. Where memory was out, libevent may not be
// waiting for it to take something: then it is told to once more.
static bool is_stalled(mgl_exchange *x, uint64_t now_ns) {
  size_t pending = evbuffer_get_length(bufferevent_get_output(x->bev));
  uint64_t taken = x->put - pending;
  if (pending == 0 || taken != x->taken) {
    x->taken = taken;
    x->taken_ns = now_ns;
  } else {
    (void)bufferevent_enable(x->bev, EV_WRITE);
  }
  return now_ns - x->taken_ns >= (uint64_t)x->server->options.write_seconds * 1000000000u;
}

// Looks at all deadlines: one timer for all connections, since one for each costs memory that may
// be out, and time with each write.
static void on_sweep(evutil_socket_t fd, short what, void *context) {
  mgl_http_server *server = context;
  uint64_t now_ns = mgl_clock_ns();
  (void)fd;
  (void)what;
  for (mgl_exchange *x = server->first, *next = NULL; x != NULL; x = next) {
    next = x->next;
    if (is_stalled(x, now_ns)) {
      server->counters.timed_out++;
      kill_exchange(x);
    } else if (x->deadline_ns != 0 && now_ns >= x->deadline_ns) {
      end_phase(x);
    }
  }
  if (server->is_paused && !server->is_draining &&
      server->counters.open < server->options.max_connections) {
    server->is_paused = false;
    set_accepting(server, true);
  }
}

static const char *phrase_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Answer";
  }
}

static void write_head(mgl_exchange *x, int status, const char *type, const char *headers,
                       const char *framing) {
  mgl_text head = {0};
  if (x->server->is_draining) {
    x->keep_alive = false;
  }
  mgl_text_format(&head, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%s%s\r\n", status,
                  phrase_of(status), type, headers, framing,
                  x->keep_alive && x->reader.is_1_0 ? "Connection: keep-alive\r\n"
                  : x->keep_alive                   ? ""
                                                    : "Connection: close\r\n");
  if (head.failed) {
    break_off(x);
  } else {
    put(x, head.data, head.bytes);
  }
  mgl_text_free(&head);
}

// The whole answer is in the output.
static void finish_answer(mgl_exchange *x) {
  x->phase = PHASE_FLUSHING;
  x->watch = (mgl_exchange_watch){0};
  x->deadline_ns = 0;  // writes have their own
  if (!x->is_broken && evbuffer_get_length(bufferevent_get_output(x->bev)) == 0) {
    bufferevent_trigger(x->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
  }
}

void mgl_exchange_reply(mgl_exchange *exchange, int status, const char *type, const char *headers,
                        const char *body, size_t bytes) {
  char framing[64];
  // What was not read of a request would be taken for the next one.
  exchange->keep_alive = exchange->keep_alive && exchange->reader.state == MGL_HTTP_COMPLETE;
  (void)snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", bytes);
  write_head(exchange, status, type, headers, framing);
  if (exchange->reader.method == NULL || strcmp(exchange->reader.method, "HEAD") != 0) {
    put(exchange, body, bytes);
  }
  finish_answer(exchange);
}

void mgl_exchange_begin(mgl_exchange *exchange, int status, const char *type, const char *headers) {
  exchange->chunked = !exchange->reader.is_1_0;
  exchange->keep_alive = exchange->keep_alive && exchange->chunked;
  exchange->phase = PHASE_STREAMING;
  write_head(exchange, status, type, headers,
             exchange->chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

void mgl_exchange_write(mgl_exchange *exchange, const char *data, size_t bytes) {
  char size[24];
  if (bytes == 0) {
    return;
  }
  if (exchange->chunked) {
    put(exchange, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", bytes));
  }
  put(exchange, data, bytes);
  if (exchange->chunked) {
    put(exchange, "\r\n", 2);
  }
}

void mgl_exchange_end(mgl_exchange *exchange) {
  if (exchange->chunked) {
    put(exchange, "0\r\n\r\n", 5);
  }
  finish_answer(exchange);
}

size_t mgl_exchange_pending(const mgl_exchange *exchange) {
  return evbuffer_get_length(bufferevent_get_output(exchange->bev));
}

const mgl_http_reader *mgl_exchange_request(const mgl_exchange *exchange) {
  return &exchange->reader;
}

void mgl_exchange_take_body(mgl_exchange *exchange, mgl_text *out) {
  *out = exchange->reader.body;
  exchange->reader.body = (mgl_text){0};
}

void mgl_exchange_set_watch(mgl_exchange *exchange, mgl_exchange_watch watch) {
  exchange->watch = watch;
}

// --- connections ---------------------------------------------------------------------------------

static struct bufferevent *create_bev(mgl_http_server *server, int fd) {
  const int flags = BEV_OPT_CLOSE_ON_FREE;
  if (server->options.tls == NULL) {
    return bufferevent_socket_new(server->base, fd, flags);
  }
  SSL *ssl = SSL_new(server->options.tls);
  struct bufferevent *bev =
      ssl == NULL
          ? NULL
          : bufferevent_openssl_socket_new(server->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, flags);
  if (bev != NULL) {  // many clients just close, which must count as their end
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
  }
  return bev;
}

static void on_accept(struct evconnlistener *listener, int fd, struct sockaddr *address, int bytes,
                      void *context) {
  mgl_http_server *server = context;
  const int on = 1;
  (void)listener;
  (void)bytes;
  mgl_exchange *x = mgl_alloc_zeroed(1, sizeof *x);
  if (x == NULL) {
    (void)close(fd);
    return;
  }
  if (address->sa_family != AF_UNIX) {
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  x->server = server;
  x->reader.max_body_bytes = server->options.max_body_bytes;
  x->next = server->first;
  if (x->next != NULL) {
    x->next->previous = x;
  }
  server->first = x;
  server->counters.accepted++;
  server->counters.open++;
  x->bev = create_bev(server, fd);
  if (x->bev == NULL) {
    (void)close(fd);
    free_exchange(x);
    return;
  }
  bufferevent_setcb(x->bev, on_readable, on_written, on_end, x);
  begin_reading(x);
  if (bufferevent_enable(x->bev, EV_READ | EV_WRITE) != 0) {
    kill_exchange(x);
    return;
  }
  if (server->counters.open >= server->options.max_connections) {
    set_accepting(server, false);
  }
}

// Out of descriptors, most likely: without a pause the loop would spin on it.
static void on_accept_error(struct evconnlistener *listener, void *context) {
  mgl_http_server *server = context;
  (void)listener;
  set_accepting(server, false);
  server->is_paused = true;
}

mgl_status mgl_http_server_listen(mgl_http_server *server, int fd, mgl_error *err) {
  struct evconnlistener *listener = NULL;
  if (server->listener_count < MGL_HTTP_MAX_LISTENERS) {
    (void)evutil_make_socket_nonblocking(fd);
    // 0: it listens already. With any other number libevent would listen anew, with -1 for a queue
    // of 128: of a thousand who connect at once, most would wait a second to try again.
    listener = evconnlistener_new(server->base, on_accept, server,
                                  LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
  }
  if (listener == NULL) {
    (void)close(fd);
    return mgl_error_set(err, MGL_ERR_IO, "cannot listen: %s", strerror(errno));
  }
  evconnlistener_set_error_cb(listener, on_accept_error);
  server->listeners[server->listener_count++] = listener;
  return MGL_OK;
}

mgl_status mgl_http_server_create(struct event_base *base, const mgl_http_options *options,
                                  const mgl_http_callbacks *callbacks, mgl_http_server **out,
                                  mgl_error *err) {
  const struct timeval period = {.tv_usec = SWEEP_MS * 1000};
  mgl_http_server *server = mgl_alloc_zeroed(1, sizeof *server);
  *out = NULL;
  if (server != NULL) {
    *server = (mgl_http_server){.base = base, .options = *options, .callbacks = *callbacks};
    server->sweep = event_new(base, -1, EV_PERSIST, on_sweep, server);
  }
  if (server == NULL || server->sweep == NULL || event_add(server->sweep, &period) != 0) {
    if (server != NULL && server->sweep != NULL) {
      event_free(server->sweep);
    }
    mgl_free(server);
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for a server");
  }
  *out = server;
  return MGL_OK;
}

// Connections that the system has accepted already would be reset with the listening socket.
static void accept_rest(mgl_http_server *server, struct evconnlistener *listener) {
  while (server->counters.open < server->options.max_connections) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    int fd = accept4(evconnlistener_get_fd(listener), (struct sockaddr *)&address, &bytes,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      return;
    }
    on_accept(listener, fd, (struct sockaddr *)&address, (int)bytes, server);
  }
}

uint32_t mgl_http_server_take_listeners(mgl_http_server *server, int *out) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < server->listener_count; i++) {
    // Behind those that a process is started with (serve/systemd.h).
    int fd = fcntl(evconnlistener_get_fd(server->listeners[i]), F_DUPFD_CLOEXEC,
                   3 + MGL_HTTP_MAX_LISTENERS);
    evconnlistener_free(server->listeners[i]);
    if (fd >= 0) {
      out[count++] = fd;
    }
  }
  server->listener_count = 0;
  return count;
}

void mgl_http_server_drain(mgl_http_server *server) {
  for (uint32_t i = 0; i < server->listener_count; i++) {
    accept_rest(server, server->listeners[i]);
    evconnlistener_free(server->listeners[i]);
  }
  server->is_draining = true;
  server->listener_count = 0;
  for (mgl_exchange *x = server->first; x != NULL; x = x->next) {
    x->keep_alive = false;
    if (x->phase == PHASE_READING && x->reader.state == MGL_HTTP_IDLE) {
      set_deadline(x, DRAIN_IDLE_SECONDS);
    }
  }
}

void mgl_http_server_destroy(mgl_http_server *server) {
  if (server == NULL) {
    return;
  }
  mgl_http_server_drain(server);
  while (server->first != NULL) {
    kill_exchange(server->first);
  }
  event_free(server->sweep);
  mgl_free(server);
}

const mgl_http_counters *mgl_http_server_counters(const mgl_http_server *server) {
  return &server->counters;
}
