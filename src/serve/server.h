// The server: one thread of I/O between HTTP clients and an engine that computes in the background.
#ifndef MGL_SERVE_SERVER_H
#define MGL_SERVE_SERVER_H

#include <megalith.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "serve/output_parser.h"

typedef struct mgl_server mgl_server;

// Zero or NULL always means the default. Strings are borrowed as long as the server lives.
typedef struct mgl_server_options {
  megalith_model *model;
  megalith_engine *engine;  // in the background
  const char *model_name;
  const char *host;       // an address or a name, default 127.0.0.1
  uint32_t port;          // 0: any free one
  const char *unix_path;  // a socket there instead of a port
  bool use_inherited;     // take sockets that systemd passed on, if it did (LISTEN_FDS)
  uint64_t max_body_bytes;
  uint32_t max_connections;
  uint32_t max_requests;  // choices that run or wait; more get status 429
  uint32_t idle_seconds, head_seconds, body_seconds, write_seconds;
  uint32_t drain_seconds;  // after SIGTERM, for requests to end
  const char *api_keys_path;
  const char *tls_certificate_path, *tls_key_path;
  bool logs_json, logs_requests;
  bool ends_with_engine;     // where the engine fails, mgl_server_run returns as if it was stopped
  bool is_again;             // the sockets that are inherited are those of such a server
  mgl_output_syntax syntax;  // of the model's chats
} mgl_server_options;

enum {
  MGL_SERVER_BODY_BYTES = 8 * 1024 * 1024,
  MGL_SERVER_CONNECTIONS = 16384,
  MGL_SERVER_REQUESTS = 512,
  MGL_SERVER_IDLE_SECONDS = 75,
  MGL_SERVER_HEAD_SECONDS = 10,
  MGL_SERVER_BODY_SECONDS = 60,
  MGL_SERVER_WRITE_SECONDS = 30,
  MGL_SERVER_DRAIN_SECONDS = 30,
  MGL_SERVER_MAX_SOCKETS = 16,
};

// Listens; nothing is accepted before mgl_server_run.
mgl_status mgl_server_create(const mgl_server_options *options, mgl_server **out, mgl_error *err);
// Where it listens: "http://127.0.0.1:8000", or the path of a socket.
const char *mgl_server_address(const mgl_server *server);
// Serves until mgl_server_stop, then lets requests end (mgl_server_options.drain_seconds at most).
// Blocks SIGTERM and SIGINT for nobody: whoever catches them calls mgl_server_stop.
mgl_status mgl_server_run(mgl_server *server, mgl_error *err);
// Whether it ended with its engine, and nobody has stopped it. Then the caller gets its listening
// sockets, at which connections wait; those of other endings are closed.
bool mgl_server_take_sockets(mgl_server *server, int out[MGL_SERVER_MAX_SOCKETS], uint32_t *count);
// From any thread, and from a signal handler. The second call cuts off what still runs.
void mgl_server_stop(mgl_server *server);
// Behind megalith_engine_destroy.
void mgl_server_destroy(mgl_server *server);

#endif
