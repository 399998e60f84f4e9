// A strict reader of HTTP/1.1 requests, fed with bytes as they come.
//
// It refuses what two readers could understand in two ways, since a proxy in front may be the other
// one: lengths given twice or beside Transfer-Encoding, folded lines, bare CR or LF, blanks before
// a colon, control characters, chunk extensions and trailers, targets that are no path. A request
// that is refused ends its connection. Rejected: libevent's evhttp, which takes most of these
// (docs/serve.md has the table) and does not see that a client goes away before its answer begins.
//
// No I/O, no clock: the tests and the fuzzer feed it alone.
#ifndef MGL_SERVE_HTTP_READER_H
#define MGL_SERVE_HTTP_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum {
  MGL_HTTP_HEAD_BYTES = 32 * 1024,  // of the request line and all headers
  MGL_HTTP_HEADERS = 100,           // of a request
};

typedef struct mgl_http_header {
  const char *name;   // as it came; compare without case
  const char *value;  // without blanks around it
} mgl_http_header;

typedef enum mgl_http_state {
  MGL_HTTP_IDLE,  // not a byte of the next request has come
  MGL_HTTP_HEAD,
  MGL_HTTP_BODY,
  MGL_HTTP_COMPLETE,
  MGL_HTTP_REFUSED,  // `refusal` and `reason` say why; there is no next request
} mgl_http_state;

typedef struct mgl_http_reader {
  mgl_http_state state;
  size_t max_body_bytes;  // set once, by the owner
  // Of a refused request: the status to answer with, and one sentence.
  int refusal;
  const char *reason;
  // From MGL_HTTP_BODY on; pointers into `head`.
  const char *method;
  const char *path;   // begins with '/', without the query
  const char *query;  // behind '?'; "" if there is none
  mgl_http_header headers[MGL_HTTP_HEADERS];
  size_t header_count;
  bool is_1_0;
  bool keep_alive;      // the client wants to
  bool wants_continue;  // it waits for "100 Continue" before it sends the body
  mgl_text body;
  // Private:
  mgl_text head;
  bool chunked;
  uint64_t left;  // bytes of the body, or of the chunk
  int part;       // of chunked coding
  char line[20];  // a chunk's size
  size_t line_bytes;
} mgl_http_reader;

// Takes in bytes, up to the end of the request at most; returns how many. When the head has just
// come to its end (state MGL_HTTP_BODY), it returns early, so that the owner can answer without the
// body; call it again for the rest.
size_t mgl_http_read(mgl_http_reader *reader, const char *data, size_t bytes);
// Ready for the next request of the connection; memory of a large body is given back.
void mgl_http_reader_next(mgl_http_reader *reader);
void mgl_http_reader_free(mgl_http_reader *reader);

// The value of a header, NULL if it is absent; the first one if there are more.
const char *mgl_http_header_of(const mgl_http_reader *reader, const char *name);

#endif
