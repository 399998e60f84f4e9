// Connections of HTTP/1.1 on libevent's bufferevents: reads requests, writes answers, sees clients
// go away.
//
// Everything here runs on the one thread that runs the event base. A connection has one request at
// a time; what a client sends ahead waits. The owner of the server gets each complete request as an
// exchange, and answers it at once or later, whole or as a stream. Reading goes on meanwhile, so
// that an exchange whose client goes away is told at once (`gone`), also before its answer begins.
//
// Slow clients have deadlines: for a head, for a body, for each write, and between requests.
#ifndef MGL_SERVE_HTTP_SERVER_H
#define MGL_SERVE_HTTP_SERVER_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "serve/http_reader.h"

typedef struct mgl_http_server mgl_http_server;
// One request and its answer; the connection's, which reuses it for the next one. Not used any more
// once it has been answered whole, ended or said to be gone.
typedef struct mgl_exchange mgl_exchange;

enum { MGL_HTTP_MAX_LISTENERS = 16 };

typedef struct mgl_http_callbacks {
  void *context;
  // A head is complete, its body is not. False: the callback has answered already.
  bool (*accepts)(void *context, mgl_exchange *exchange);
  void (*request)(void *context, mgl_exchange *exchange);  // a complete one
  // A request that was refused before it was complete; answers it.
  void (*refused)(void *context, mgl_exchange *exchange, int status, const char *reason);
} mgl_http_callbacks;

typedef struct mgl_http_options {
  size_t max_body_bytes;
  uint32_t max_connections;  // beyond them nothing is accepted until one ends
  uint32_t idle_seconds;     // a connection without a request
  uint32_t head_seconds;     // from a head's first byte to its last
  uint32_t body_seconds;     // the same of a body
  uint32_t write_seconds;    // without the client taking a byte
  void *tls;                 // SSL_CTX, NULL: none; borrowed
} mgl_http_options;

typedef struct mgl_http_counters {
  uint64_t accepted;   // connections
  uint32_t open;       // now
  uint64_t gone;       // clients that went away before the end of their answer
  uint64_t refused;    // requests that are no HTTP
  uint64_t timed_out;  // connections that were closed at a deadline
} mgl_http_counters;

mgl_status mgl_http_server_create(struct event_base *base, const mgl_http_options *options,
                                  const mgl_http_callbacks *callbacks, mgl_http_server **out,
                                  mgl_error *err);
// Closes all connections; what they were answering is told as gone.
void mgl_http_server_destroy(mgl_http_server *server);
// Accepts connections from a listening socket, which becomes the server's.
mgl_status mgl_http_server_listen(mgl_http_server *server, int fd, mgl_error *err);
// Takes the listening sockets away, so that whoever gets them next serves what connects meanwhile:
// their descriptors, MGL_HTTP_MAX_LISTENERS at most, closed by exec. Returns how many.
uint32_t mgl_http_server_take_listeners(mgl_http_server *server, int *out);
// No new connections; those that wait for a request end if none comes within a second, others
// behind their answer.
void mgl_http_server_drain(mgl_http_server *server);
const mgl_http_counters *mgl_http_server_counters(const mgl_http_server *server);

// --- exchanges -----------------------------------------------------------------------------------

const mgl_http_reader *mgl_exchange_request(const mgl_exchange *exchange);
// Moves the body of a complete request out of its reader; free with mgl_text_free.
void mgl_exchange_take_body(mgl_exchange *exchange, mgl_text *out);
// Who is told when the client goes away, or when it has taken what waited; NULL: nobody.
typedef struct mgl_exchange_watch {
  void *context;
  void (*gone)(void *context);     // the exchange is no more
  void (*drained)(void *context);  // all that was written is on its way
} mgl_exchange_watch;
void mgl_exchange_set_watch(mgl_exchange *exchange, mgl_exchange_watch watch);

// A whole answer. headers: further ones, each with CR LF at its end; may be "".
void mgl_exchange_reply(mgl_exchange *exchange, int status, const char *type, const char *headers,
                        const char *body, size_t bytes);
// An answer that comes piece by piece.
void mgl_exchange_begin(mgl_exchange *exchange, int status, const char *type, const char *headers);
void mgl_exchange_write(mgl_exchange *exchange, const char *data, size_t bytes);
void mgl_exchange_end(mgl_exchange *exchange);
// Bytes that were written and that the client has not taken.
size_t mgl_exchange_pending(const mgl_exchange *exchange);

#endif
