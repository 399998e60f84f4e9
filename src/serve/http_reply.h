// The client's half of HTTP/1.1: a reader of one answer after another, fed with bytes as they come.
//
// It takes what servers of the OpenAI API send: a status, headers, a body by Content-Length, in
// chunks or to the end of the connection. Of an event stream it hands out the data of each event.
// No I/O, no clock. One thread.
#ifndef MGL_SERVE_HTTP_REPLY_H
#define MGL_SERVE_HTTP_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum {
  MGL_REPLY_LINE_BYTES = 1024 * 1024,       // of a line of a head or of an event
  MGL_REPLY_BODY_BYTES = 64 * 1024 * 1024,  // of an answer that is no event stream
};

typedef enum mgl_reply_state {
  MGL_REPLY_HEAD,
  MGL_REPLY_BODY,
  MGL_REPLY_COMPLETE,
  MGL_REPLY_MALFORMED,  // there is no next answer
} mgl_reply_state;

// Zero-initialise; free with mgl_http_reply_free.
typedef struct mgl_http_reply {
  mgl_reply_state state;
  int status;       // from MGL_REPLY_BODY on
  bool is_events;   // Content-Type: text/event-stream
  bool keep_alive;  // the connection can be used again
  mgl_text body;    // of what is no event stream
  // Private:
  bool has_status, has_length, chunked, in_data, is_last;
  uint64_t left;  // of the body, or of the chunk
  mgl_text line, event_line;
} mgl_http_reply;

// One event's data, a line of it; terminated, without its end. Called while bytes are read.
typedef void mgl_event_callback(void *context, const char *data, size_t bytes);

// Takes in bytes, to the end of the answer at most; returns how many.
size_t mgl_http_reply_read(mgl_http_reply *reply, const char *data, size_t bytes,
                           mgl_event_callback *on_event, void *context);
// The connection has ended: complete, or malformed if something is missing.
void mgl_http_reply_end(mgl_http_reply *reply);
// Ready for the next answer.
void mgl_http_reply_next(mgl_http_reply *reply);
void mgl_http_reply_free(mgl_http_reply *reply);

#endif
