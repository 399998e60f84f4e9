#include "serve/load.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "serve/http_reply.h"

enum { OWN_DESCRIPTORS = 64, HOST_BYTES = 256 };

typedef struct load load;

// A connection that asks one request after another.
typedef struct client {
  load *load;
  struct client *next_free;
  struct bufferevent *bev;  // NULL: not connected
  mgl_http_reply reply;
  mgl_load_request *request;  // NULL: none
  bool is_connected;
  bool is_used;             // has had an answer before
  bool is_done, is_broken;  // [DONE], or an error event, has come
  uint32_t events;          // with text
  uint64_t last_ns;
} client;

// A connection beside the requests.
typedef struct bystander {
  load *load;
  struct bufferevent *bev;  // NULL: closed
  bool is_slow;
} bystander;

struct load {
  const mgl_load_options *options;
  struct event_base *base;
  struct sockaddr_storage address;
  int address_bytes;
  char host[HOST_BYTES];    // of the Host header
  char prefix[HOST_BYTES];  // of the path
  client *clients;          // [client_count]
  uint32_t client_count;
  client *first_free;
  bystander *bystanders;  // [bystander_count]
  uint32_t bystander_count;
  uint32_t connecting;  // bystanders
  mgl_load_counters counters;
  struct event *tick;  // the next arrival
  struct event *second;
  mgl_load_request *requests;  // [count]
  uint32_t count, asked, answered;
  uint64_t start_ns;
  mgl_text text;
  mgl_status status;
  mgl_error *err;
  bool has_begun;
};

const char *mgl_load_outcome_name(mgl_load_outcome outcome) {
  static const char *const names[] = {"none",   "ok",     "refused", "connect",
                                      "closed", "broken", "timeout", "malformed"};
  return names[outcome];
}

static uint64_t now_ns(const load *l) {
  return mgl_clock_ns() - l->start_ns;
}

// --- addresses -----------------------------------------------------------------------------------

static mgl_status bad_url(const char *url, mgl_error *err) {
  return mgl_error_set(err, MGL_ERR_ARGUMENT,
                       "expected a URL http://HOST[:PORT][/PATH] or unix:PATH, found \"%.200s\"",
                       url);
}

static mgl_status find_unix(load *l, const char *path, mgl_error *err) {
  struct sockaddr_un *address = (struct sockaddr_un *)&l->address;
  if (path[0] == 0 || strlen(path) >= sizeof address->sun_path) {
    return bad_url(l->options->url, err);
  }
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path, path, strlen(path) + 1);
  l->address_bytes = (int)sizeof *address;
  (void)snprintf(l->host, sizeof l->host, "localhost");
  (void)snprintf(l->prefix, sizeof l->prefix, "/v1");
  return MGL_OK;
}

// Splits "HOST:PORT/PATH" and asks the system for the address.
static mgl_status find_host(load *l, const char *rest, mgl_error *err) {
  char name[HOST_BYTES];
  size_t host_bytes = strcspn(rest, "/");
  const char *path = rest + host_bytes;
  while (host_bytes > 0 && path[0] == '/' && path[1] == 0) {
    path++;  // "http://host/" is "http://host"
  }
  if (host_bytes == 0 || host_bytes >= sizeof l->host || strlen(path) >= sizeof l->prefix - 4) {
    return bad_url(l->options->url, err);
  }
  memcpy(l->host, rest, host_bytes);
  l->host[host_bytes] = 0;
  (void)snprintf(l->prefix, sizeof l->prefix, "%s", path[0] == 0 ? "/v1" : path);
  size_t end = strlen(l->prefix);
  if (l->prefix[end - 1] == '/') {
    l->prefix[end - 1] = 0;
  }
  memcpy(name, l->host, host_bytes + 1);
  char *bracket = name[0] == '[' ? strchr(name, ']') : NULL;  // of an IPv6 address
  char *colon = strrchr(bracket == NULL ? name : bracket, ':');
  const char *port = colon == NULL ? "80" : colon + 1;
  if (colon != NULL) {
    *colon = 0;
  }
  if (bracket != NULL) {
    *bracket = 0;
  }
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  int code = getaddrinfo(bracket == NULL ? name : name + 1, port, &hints, &found);
  if (code != 0) {
    return mgl_error_set(err, MGL_ERR_ARGUMENT, "%.200s: %s", l->options->url, gai_strerror(code));
  }
  memcpy(&l->address, found->ai_addr, found->ai_addrlen);
  l->address_bytes = (int)found->ai_addrlen;
  freeaddrinfo(found);
  return MGL_OK;
}

static mgl_status find_address(load *l, mgl_error *err) {
  const char *url = l->options->url;
  if (strncmp(url, "unix:", 5) == 0) {
    return find_unix(l, url + 5, err);
  }
  if (strncmp(url, "https://", 8) == 0) {
    return mgl_error_set(err, MGL_ERR_UNSUPPORTED,
                         "%.200s: TLS is not measured here: expected http:// or unix:", url);
  }
  return strncmp(url, "http://", 7) == 0 ? find_host(l, url + 7, err) : bad_url(url, err);
}

static struct bufferevent *open_connection(load *l) {
  const int on = 1;
  struct bufferevent *bev = bufferevent_socket_new(l->base, -1, BEV_OPT_CLOSE_ON_FREE);
  if (bev != NULL &&
      bufferevent_socket_connect(bev, (struct sockaddr *)&l->address, l->address_bytes) != 0) {
    bufferevent_free(bev);
    return NULL;
  }
  if (bev != NULL && l->address.ss_family != AF_UNIX) {
    (void)setsockopt(bufferevent_getfd(bev), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return bev;
}

// --- requests ------------------------------------------------------------------------------------

static void ask_next(load *l);

static void stop(load *l) {
  (void)event_base_loopbreak(l->base);
}

static void disconnect(client *c) {
  if (c->bev != NULL) {
    bufferevent_free(c->bev);
    c->bev = NULL;
  }
  c->is_used = c->is_connected = false;
}

static void finish(client *c, mgl_load_outcome outcome) {
  load *l = c->load;
  mgl_load_request *r = c->request;
  r->outcome = outcome;
  r->end_ns = now_ns(l);
  r->status = c->reply.status;
  r->tokens = r->tokens == 0 ? c->events : r->tokens;
  if (outcome == MGL_LOAD_OK && l->options->told != NULL) {
    l->options->told(l->options->context, (uint32_t)(r - l->requests), &c->reply.body);
  }
  if (c->reply.state != MGL_REPLY_COMPLETE || !c->reply.keep_alive || l->options->no_keep_alive) {
    disconnect(c);
  } else {
    c->is_used = true;
  }
  c->request = NULL;
  c->next_free = l->first_free;
  l->first_free = c;
  l->answered++;
  if (l->answered == l->count) {
    stop(l);
  }
}

// The number of tokens that an answer or an event tells, if it does.
static void read_usage(client *c, const json_t *root) {
  const json_t *usage = json_object_get(root, "usage");
  const json_t *tokens = json_object_get(usage, "completion_tokens");
  if (json_is_integer(tokens) && json_integer_value(tokens) > 0) {
    c->request->tokens = (uint32_t)json_integer_value(tokens);
  }
}

static bool is_text(const json_t *object, const char *name) {
  const char *text = json_string_value(json_object_get(object, name));
  return text != NULL && text[0] != 0;
}

// Whether an event brings something of the answer.
static bool brings(const json_t *root) {
  const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
  const json_t *delta = json_object_get(choice, "delta");
  return is_text(choice, "text") || is_text(delta, "content") ||
         is_text(delta, "reasoning_content") || json_object_get(delta, "tool_calls") != NULL ||
         json_array_size(json_object_get(choice, "token_ids")) > 0;
}

static void on_event(void *context, const char *data, size_t bytes) {
  client *c = context;
  load *l = c->load;
  json_t *root = NULL;
  if (strcmp(data, "[DONE]") == 0) {
    c->is_done = true;
    return;
  }
  if (mgl_json_parse(data, bytes, "event", &root, NULL) != MGL_OK ||
      json_object_get(root, "error") != NULL) {
    c->is_broken = true;
    json_decref(root);
    return;
  }
  read_usage(c, root);
  if (brings(root)) {
    uint64_t now = now_ns(l);
    c->events++;
    if (c->request->first_ns == 0) {
      c->request->first_ns = now;
    } else if (l->options->gap != NULL) {
      l->options->gap(l->options->context, (double)(now - c->last_ns) * 1e-6);
    }
    c->last_ns = now;
  }
  json_decref(root);
}

static void end_reply(client *c) {
  json_t *root = NULL;
  mgl_load_outcome outcome = MGL_LOAD_OK;
  if (c->reply.state == MGL_REPLY_MALFORMED) {
    outcome = c->reply.status == 0 ? MGL_LOAD_CLOSED : MGL_LOAD_MALFORMED;
  } else if (c->reply.status != 200) {
    outcome = MGL_LOAD_REFUSED;
  } else if (c->reply.is_events) {
    outcome = c->is_done && !c->is_broken ? MGL_LOAD_OK : MGL_LOAD_BROKEN;
  } else if (mgl_json_parse(c->reply.body.data == NULL ? "" : c->reply.body.data,
                            c->reply.body.bytes, "answer", &root, NULL) != MGL_OK) {
    outcome = MGL_LOAD_MALFORMED;
  } else {
    read_usage(c, root);
  }
  json_decref(root);
  finish(c, outcome);
  ask_next(c->load);
}

static void on_readable(struct bufferevent *bev, void *context) {
  client *c = context;
  struct evbuffer *input = bufferevent_get_input(bev);
  struct evbuffer_iovec part;
  while (c->request != NULL && evbuffer_peek(input, -1, NULL, &part, 1) > 0 && part.iov_len > 0) {
    size_t used = mgl_http_reply_read(&c->reply, part.iov_base, part.iov_len, on_event, c);
    (void)evbuffer_drain(input, used);
    if (c->reply.state == MGL_REPLY_COMPLETE || c->reply.state == MGL_REPLY_MALFORMED) {
      end_reply(c);
      return;
    }
  }
  if (c->request == NULL) {  // a server that talks unasked
    disconnect(c);
  }
}

static void send_request(client *c);

static void on_change(struct bufferevent *bev, short what, void *context) {
  client *c = context;
  (void)bev;
  if ((what & BEV_EVENT_CONNECTED) != 0) {
    c->is_connected = true;
    return;
  }
  if (c->request == NULL) {  // the server has closed an idle connection
    disconnect(c);
    return;
  }
  bool was_used = c->is_used;
  bool is_silent = c->reply.state == MGL_REPLY_HEAD && !c->reply.has_status;
  if ((what & BEV_EVENT_TIMEOUT) != 0) {
    disconnect(c);
    finish(c, MGL_LOAD_TIMEOUT);
  } else if (was_used && is_silent) {
    // It was closed while the request was on its way: every client of HTTP asks again then.
    disconnect(c);
    send_request(c);
    return;
  } else if (c->reply.state == MGL_REPLY_BODY) {
    mgl_http_reply_end(&c->reply);
    if (c->reply.state == MGL_REPLY_COMPLETE) {
      end_reply(c);
      return;
    }
    disconnect(c);
    finish(c, MGL_LOAD_CLOSED);
  } else {
    bool never = !c->is_connected;
    disconnect(c);
    finish(c, never ? MGL_LOAD_CONNECT : MGL_LOAD_CLOSED);
  }
  ask_next(c->load);
}

// Writes c->load->text, on the connection that is there or on a new one.
static void send_request(client *c) {
  load *l = c->load;
  struct timeval patience = {.tv_sec = (time_t)l->options->timeout_seconds};
  uint32_t index = (uint32_t)(c->request - l->requests);
  mgl_text body = {0};
  mgl_http_reply_next(&c->reply);
  c->is_done = c->is_broken = false;
  c->events = 0;
  l->status = l->options->body(l->options->context, index, &body, l->err);
  if (l->status == MGL_OK && c->bev == NULL) {
    c->bev = open_connection(l);
    if (c->bev != NULL) {
      bufferevent_setcb(c->bev, on_readable, NULL, on_change, c);
      (void)bufferevent_set_timeouts(c->bev, &patience, &patience);
      (void)bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    }
  }
  mgl_text_clear(&l->text);
  mgl_text_format(&l->text,
                  "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\n%s%s\r\n",
                  l->prefix, l->options->path, l->host, body.bytes,
                  l->options->no_keep_alive ? "Connection: close\r\n" : "",
                  l->options->headers == NULL ? "" : l->options->headers);
  mgl_text_append(&l->text, body.data == NULL ? "" : body.data, body.bytes);
  l->status = l->status == MGL_OK ? mgl_text_check(&l->text, l->err) : l->status;
  if (l->status != MGL_OK) {
    stop(l);
  } else if (c->bev == NULL || bufferevent_write(c->bev, l->text.data, l->text.bytes) != 0) {
    finish(c, MGL_LOAD_CONNECT);
  }
  mgl_text_free(&body);
}

// Asks what has arrived, as far as there are clients; else sets the timer.
static void ask_next(load *l) {
  while (l->has_begun && l->status == MGL_OK && l->asked < l->count && l->first_free != NULL) {
    mgl_load_request *r = &l->requests[l->asked];
    uint64_t now = now_ns(l);
    if (r->arrival_ns > now) {
      uint64_t wait_us = (r->arrival_ns - now + 999) / 1000;
      struct timeval after = {.tv_sec = (time_t)(wait_us / 1000000),
                              .tv_usec = (suseconds_t)(wait_us % 1000000)};
      (void)event_add(l->tick, &after);
      return;
    }
    client *c = l->first_free;
    l->first_free = c->next_free;
    l->asked++;
    c->request = r;
    r->begin_ns = now;
    send_request(c);
  }
}

static void on_tick(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  ask_next(context);
}

// --- bystanders ----------------------------------------------------------------------------------

static void begin(load *l) {
  l->has_begun = true;
  l->start_ns = mgl_clock_ns();
  if (l->count == 0) {
    stop(l);
  }
  ask_next(l);
}

static void open_bystander(bystander *b);

static void on_bystander_readable(struct bufferevent *bev, void *context) {
  struct evbuffer *input = bufferevent_get_input(bev);
  (void)context;
  (void)evbuffer_drain(input, evbuffer_get_length(input));
}

static void on_bystander_change(struct bufferevent *bev, short what, void *context) {
  bystander *b = context;
  load *l = b->load;
  if ((what & BEV_EVENT_CONNECTED) != 0) {
    if (b->is_slow) {
      static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ";
      (void)bufferevent_write(bev, head, sizeof head - 1);
    }
    l->counters.idle_open += b->is_slow ? 0 : 1;
    l->counters.slow_open += b->is_slow ? 1 : 0;
    if (l->connecting > 0 && --l->connecting == 0) {
      begin(l);
    }
    return;
  }
  if (!l->has_begun) {
    l->status = mgl_error_set(
        l->err, MGL_ERR_IO, "%.200s: the server does not take %u idle and %u slow connections",
        l->options->url, l->options->idle_connections, l->options->slow_connections);
    stop(l);
    return;
  }
  bufferevent_free(bev);
  b->bev = NULL;
  l->counters.idle_open -= b->is_slow ? 0 : 1;
  l->counters.slow_open -= b->is_slow ? 1 : 0;
  if (b->is_slow) {
    l->counters.slow_closed++;
    open_bystander(b);
  }
}

static void open_bystander(bystander *b) {
  b->bev = open_connection(b->load);
  if (b->bev != NULL) {
    bufferevent_setcb(b->bev, on_bystander_readable, NULL, on_bystander_change, b);
    (void)bufferevent_enable(b->bev, EV_READ | EV_WRITE);
  }
}

static void on_second(evutil_socket_t fd, short what, void *context) {
  load *l = context;
  (void)fd;
  (void)what;
  for (uint32_t i = 0; l->has_begun && i < l->bystander_count; i++) {
    if (l->bystanders[i].is_slow && l->bystanders[i].bev != NULL) {
      (void)bufferevent_write(l->bystanders[i].bev, "x", 1);
    }
  }
  if (l->options->should_stop != NULL && l->options->should_stop(l->options->context)) {
    stop(l);
  }
}

// -------------------------------------------------------------------------------------------------

static mgl_status raise_descriptors(const load *l, mgl_error *err) {
  struct rlimit limit;
  rlim_t wanted = (rlim_t)l->client_count + l->bystander_count + OWN_DESCRIPTORS;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted) {
      return mgl_error_set(err, MGL_ERR_LIMIT,
                           "%u connections need %llu descriptors, and the system allows %llu "
                           "(ulimit -Hn): raise it, or ask for fewer",
                           l->client_count + l->bystander_count, (unsigned long long)wanted,
                           (unsigned long long)limit.rlim_max);
    }
  }
  return MGL_OK;
}

static mgl_status prepare(load *l, mgl_error *err) {
  const mgl_load_options *o = l->options;
  struct event_config *config = event_config_new();
  l->client_count = o->concurrency == 0 || o->concurrency > l->count ? l->count : o->concurrency;
  l->bystander_count = o->idle_connections + o->slow_connections;
  MGL_TRY(raise_descriptors(l, err));
  if (config != NULL) {
    (void)event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    l->base = event_base_new_with_config(config);
    event_config_free(config);
  }
  l->clients = mgl_alloc_zeroed(l->client_count + 1, sizeof *l->clients);
  l->bystanders = mgl_alloc_zeroed(l->bystander_count + 1, sizeof *l->bystanders);
  if (l->base != NULL) {
    l->tick = evtimer_new(l->base, on_tick, l);
    l->second = event_new(l->base, -1, EV_PERSIST, on_second, l);
  }
  const struct timeval second = {.tv_sec = 1};
  if (l->clients == NULL || l->bystanders == NULL || l->tick == NULL || l->second == NULL ||
      event_add(l->second, &second) != 0) {
    return mgl_error_set(err, MGL_ERR_MEMORY, "out of memory for %u clients", l->client_count);
  }
  for (uint32_t i = l->client_count; i-- > 0;) {
    l->clients[i] = (client){.load = l, .next_free = l->first_free};
    l->first_free = &l->clients[i];
  }
  return find_address(l, err);
}

static mgl_status run(load *l, mgl_error *err) {
  l->connecting = l->bystander_count;
  for (uint32_t i = 0; i < l->bystander_count; i++) {
    l->bystanders[i] = (bystander){.load = l, .is_slow = i >= l->options->idle_connections};
    open_bystander(&l->bystanders[i]);
  }
  if (l->bystander_count == 0) {
    begin(l);
  }
  if (l->status == MGL_OK && l->answered < l->count && event_base_loop(l->base, 0) < 0) {
    return mgl_error_set(err, MGL_ERR_INTERNAL, "the event loop has failed");
  }
  return l->status;
}

mgl_status mgl_load_run(const mgl_load_options *options, mgl_load_request *requests, uint32_t count,
                        mgl_load_counters *counters, mgl_error *err) {
  load l = {.options = options, .requests = requests, .count = count, .err = err};
  mgl_status status = prepare(&l, err);
  if (status == MGL_OK) {
    status = run(&l, err);
  }
  for (uint32_t i = 0; l.bystanders != NULL && i < l.bystander_count; i++) {
    if (l.bystanders[i].bev != NULL) {
      bufferevent_free(l.bystanders[i].bev);
    }
  }
  for (uint32_t i = 0; l.clients != NULL && i < l.client_count; i++) {
    disconnect(&l.clients[i]);
    mgl_http_reply_free(&l.clients[i].reply);
  }
  if (l.tick != NULL) {
    event_free(l.tick);
  }
  if (l.second != NULL) {
    event_free(l.second);
  }
  if (l.base != NULL) {
    event_base_free(l.base);
  }
  mgl_free(l.clients);
  mgl_free(l.bystanders);
  mgl_text_free(&l.text);
  *counters = l.counters;
  return status;
}
