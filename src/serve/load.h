// Load: many requests to one HTTP server at once, by one thread, and when their answers came.
//
// `megalith bench serve` and the tests of the server under load use it. Requests are POSTs of JSON
// whose answers are event streams, or JSON, of the OpenAI API; any server that has that can be
// asked. Besides there can be connections that say nothing, and some that send a header without
// end, as slow or hostile clients do.
#ifndef MGL_SERVE_LOAD_H
#define MGL_SERVE_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef enum mgl_load_outcome {
  MGL_LOAD_NONE,       // not asked yet
  MGL_LOAD_OK,         // a whole answer
  MGL_LOAD_REFUSED,    // another status than 200: `status`
  MGL_LOAD_CONNECT,    // no connection
  MGL_LOAD_CLOSED,     // the connection ended before the answer did
  MGL_LOAD_BROKEN,     // the stream has an error event, or no [DONE]
  MGL_LOAD_TIMEOUT,    // no end within timeout_seconds
  MGL_LOAD_MALFORMED,  // no HTTP, or no JSON
  MGL_LOAD_OUTCOMES,
} mgl_load_outcome;

// "ok", "refused", ...
const char *mgl_load_outcome_name(mgl_load_outcome outcome);

// One request. Times are since the start of the load.
typedef struct mgl_load_request {
  uint64_t arrival_ns;  // not asked before
  // Results:
  mgl_load_outcome outcome;
  int status;         // 0: none came
  uint64_t begin_ns;  // when it was asked, connecting included
  uint64_t first_ns;  // the first token; 0: none
  uint64_t end_ns;    // the last byte
  uint32_t tokens;    // by the answer's usage, else events with text
} mgl_load_request;

typedef struct mgl_load_options {
  const char *url;       // http://HOST[:PORT][/v1], or unix:PATH
  const char *path;      // behind it: "/chat/completions"
  const char *headers;   // further ones, each with CR LF at its end; NULL: none
  uint32_t concurrency;  // requests at once at most; 0: no limit
  uint32_t timeout_seconds;
  bool no_keep_alive;  // a connection for each request
  // Connections beside the requests, opened first:
  uint32_t idle_connections;  // say nothing
  uint32_t slow_connections;  // send a byte of a header each second; opened again when closed
  void *context;
  // Appends the body of a request.
  mgl_status (*body)(void *context, uint32_t index, mgl_text *out, mgl_error *err);
  void (*gap)(void *context, double ms);  // between two events of a stream with text; NULL
  void (*told)(void *context, uint32_t index, const mgl_text *body);  // of a whole answer; NULL
  bool (*should_stop)(void *context);                                 // NULL: never
} mgl_load_options;

// What became of the connections beside the requests.
typedef struct mgl_load_counters {
  uint32_t idle_open, slow_open;  // at the end
  uint32_t slow_closed;           // by the server
} mgl_load_counters;

// Asks requests[0 .. count), in the order of their arrival, and waits for all answers. Raises the
// limit of descriptors as far as the system allows; an error says so where that is too little.
mgl_status mgl_load_run(const mgl_load_options *options, mgl_load_request *requests, uint32_t count,
                        mgl_load_counters *counters, mgl_error *err);

#endif
