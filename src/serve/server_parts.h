// What the files of the server share.
#ifndef MGL_SERVE_SERVER_PARTS_H
#define MGL_SERVE_SERVER_PARTS_H

#include <event2/event.h>

#include "serve/answer.h"
#include "serve/api_keys.h"
#include "serve/http_server.h"
#include "serve/jobs.h"
#include "serve/metrics.h"
#include "serve/server.h"

// A request that the engine works on.
typedef struct mgl_call {
  struct mgl_server *server;
  struct mgl_call *previous, *next;
  mgl_exchange *exchange;  // NULL: the client is gone, or has its answer
  mgl_job *job;
  mgl_answer answer;
  bool has_answer;  // answer is made
  bool is_paused;   // the client takes nothing
  uint64_t start_ns;
  uint64_t *last_ns;    // [choice_count] when the latest token came; 0: none yet
  uint64_t written_ns;  // when something went out
} mgl_call;

struct mgl_server {
  mgl_server_options options;
  struct event_base *base;
  mgl_http_server *http;
  mgl_jobs *jobs;
  mgl_metrics metrics;
  mgl_api_keys keys;
  void *tls;
  mgl_call *first;
  char address[256];
  char *unix_path;  // to be removed at the end
  int stop_fd;      // eventfd
  struct event *stop;
  struct event *tick;  // once a second
  uint32_t stops;      // asked for
  uint64_t drain_end_ns;
  uint64_t progress_ns;  // when the engine had done something, or had nothing to do
  uint64_t iterations;   // at that time
  bool engine_failed;
  bool gives_up;                        // the engine has failed, and the server ends with it
  int sockets[MGL_HTTP_MAX_LISTENERS];  // [socket_count] then, for who serves next
  uint32_t socket_count;
  time_t start_time;
  mgl_text scratch;  // of one event
};

// --- routes.c ------------------------------------------------------------------------------------

void mgl_server_on_request(void *context, mgl_exchange *exchange);
bool mgl_server_accepts(void *context, mgl_exchange *exchange);
void mgl_server_on_refused(void *context, mgl_exchange *exchange, int status, const char *reason);
// Whole answers; both count them.
void mgl_server_reply(mgl_server *server, mgl_exchange *exchange, int status, const char *type,
                      const char *headers, const mgl_text *body);
void mgl_server_reply_error(mgl_server *server, mgl_exchange *exchange, int status,
                            const char *message, const char *parameter, const char *code);

// --- calls.c -------------------------------------------------------------------------------------

void mgl_server_start_call(mgl_server *server, mgl_exchange *exchange, mgl_endpoint endpoint);
// Once a second: sends something on streams on which nothing goes out.
void mgl_server_keep_streams(mgl_server *server);
extern const mgl_job_callbacks mgl_server_job_callbacks;  // context: the server

#endif
