#include "serve/http_reader.h"

#include <string.h>
#include <strings.h>

enum { SMALL_BODY_BYTES = 64 * 1024 };  // kept for the next request

// Parts of chunked coding, in their order.
enum { CHUNK_SIZE, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_CR, CHUNK_LF, LAST_CR, LAST_LF };

static void refuse(mgl_http_reader *r, int status, const char *reason) {
  r->state = MGL_HTTP_REFUSED;
  r->refusal = status;
  r->reason = reason;
}

// --- characters ----------------------------------------------------------------------------------

static bool is_token_char(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(const char *text) {
  const char *c = text;
  while (is_token_char((unsigned char)*c)) {
    c++;
  }
  return c != text && *c == 0;
}

static bool is_value(const char *text) {
  for (; *text != 0; text++) {
    unsigned char c = (unsigned char)*text;
    if ((c < 0x20 && c != '\t') || c == 0x7f) {
      return false;
    }
  }
  return true;
}

// Whether a list with commas has the word.
static bool list_has(const char *list, const char *word) {
  size_t bytes = strlen(word);
  while (*list != 0) {
    list += strspn(list, " \t,");
    size_t item = strcspn(list, " \t,");
    if (item == bytes && strncasecmp(list, word, bytes) == 0) {
      return true;
    }
    list += item;
  }
  return false;
}

// --- the head ------------------------------------------------------------------------------------

const char *mgl_http_header_of(const mgl_http_reader *reader, const char *name) {
  for (size_t i = 0; i < reader->header_count; i++) {
    if (strcasecmp(reader->headers[i].name, name) == 0) {
      return reader->headers[i].value;
    }
  }
  return NULL;
}

static size_t count_headers(const mgl_http_reader *r, const char *name) {
  size_t count = 0;
  for (size_t i = 0; i < r->header_count; i++) {
    count += strcasecmp(r->headers[i].name, name) == 0 ? 1 : 0;
  }
  return count;
}

static void parse_request_line(mgl_http_reader *r, char *line) {
  char *target = strchr(line, ' ');
  char *version = target == NULL ? NULL : strchr(target + 1, ' ');
  if (version == NULL) {
    refuse(r, 400, "expected a request line of method, target and version");
    return;
  }
  *target++ = 0;
  *version++ = 0;
  r->method = line;
  r->path = target;
  if (!is_token(line)) {
    refuse(r, 400, "the method is no token");
    return;
  }
  if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
    bool is_http = strncmp(version, "HTTP/", 5) == 0;
    refuse(r, is_http ? 505 : 400, "expected HTTP/1.1 or HTTP/1.0");
    return;
  }
  r->is_1_0 = version[7] == '0';
  for (const char *c = target; *c != 0; c++) {
    if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f) {
      refuse(r, 400, "the target has characters that must be percent-encoded");
      return;
    }
  }
  if (target[0] != '/') {
    refuse(r, 400, "expected a target that begins with /");
    return;
  }
  char *query = strchr(target, '?');
  r->query = query == NULL ? target + strlen(target) : query + 1;
  if (query != NULL) {
    *query = 0;
  }
}

static void parse_header(mgl_http_reader *r, char *line) {
  char *colon = strchr(line, ':');
  if (line[0] == ' ' || line[0] == '\t') {
    refuse(r, 400, "a header goes on in the next line (obs-fold)");
    return;
  }
  if (colon == NULL) {
    refuse(r, 400, "a header without a colon");
    return;
  }
  *colon = 0;
  if (!is_token(line)) {
    refuse(r, 400, "the name of a header is no token");
    return;
  }
  char *value = colon + 1 + strspn(colon + 1, " \t");
  size_t bytes = strlen(value);
  while (bytes > 0 && (value[bytes - 1] == ' ' || value[bytes - 1] == '\t')) {
    value[--bytes] = 0;
  }
  if (!is_value(value)) {
    refuse(r, 400, "the value of a header has control characters");
    return;
  }
  if (r->header_count == MGL_HTTP_HEADERS) {
    refuse(r, 431, "more than 100 headers");
    return;
  }
  r->headers[r->header_count++] = (mgl_http_header){line, value};
}

static void parse_length(mgl_http_reader *r, const char *value) {
  size_t digits = strspn(value, "0123456789");
  if (digits == 0 || digits > 18 || value[digits] != 0) {
    refuse(r, 400, "Content-Length: expected one number of at most 18 digits");
    return;
  }
  for (; *value != 0; value++) {
    r->left = r->left * 10 + (uint64_t)(*value - '0');
  }
}

// How the body is framed, and all that depends on headers.
static void understand(mgl_http_reader *r) {
  size_t lengths = count_headers(r, "Content-Length");
  size_t codings = count_headers(r, "Transfer-Encoding");
  size_t hosts = count_headers(r, "Host");
  const char *connection = mgl_http_header_of(r, "Connection");
  const char *expect = mgl_http_header_of(r, "Expect");
  if (hosts > 1 || (hosts == 0 && !r->is_1_0)) {
    refuse(r, 400, "expected one Host header");
  } else if (lengths > 1 || codings > 1 || lengths + codings > 1) {
    refuse(r, 400, "expected one of Content-Length and Transfer-Encoding, once");
  } else if (count_headers(r, "Connection") > 1) {
    refuse(r, 400, "expected one Connection header");
  } else if (codings == 1 && r->is_1_0) {
    refuse(r, 400, "HTTP/1.0 has no Transfer-Encoding");
  } else if (codings == 1 &&
             strcasecmp(mgl_http_header_of(r, "Transfer-Encoding"), "chunked") != 0) {
    refuse(r, 501, "Transfer-Encoding: expected chunked");
  } else if (expect != NULL && strcasecmp(expect, "100-continue") != 0) {
    refuse(r, 417, "Expect: expected 100-continue");
  } else if (lengths == 1) {
    parse_length(r, mgl_http_header_of(r, "Content-Length"));
  }
  if (r->state == MGL_HTTP_REFUSED) {
    return;
  }
  r->chunked = codings == 1;
  r->part = CHUNK_SIZE;
  r->wants_continue = expect != NULL && !r->is_1_0;
  r->keep_alive = connection == NULL ? !r->is_1_0 : !list_has(connection, "close");
  if (r->is_1_0 && connection != NULL) {
    r->keep_alive = list_has(connection, "keep-alive");
  }
  if (r->left > r->max_body_bytes) {
    refuse(r, 413, "the body is larger than this server takes");
    return;
  }
  r->state = r->chunked || r->left > 0 ? MGL_HTTP_BODY : MGL_HTTP_COMPLETE;
}

// The whole head is there and ends with an empty line; all its line ends are CR LF.
static void parse_head(mgl_http_reader *r) {
  char *line = r->head.data;
  bool is_first = true;
  if (memchr(r->head.data, 0, r->head.bytes) != NULL) {
    refuse(r, 400, "a NUL byte in the head");
    return;
  }
  while (r->state == MGL_HTTP_HEAD) {
    char *end = strchr(line, '\r');
    *end = 0;
    if (line == end && !is_first) {
      break;
    }
    (is_first ? parse_request_line : parse_header)(r, line);
    is_first = false;
    line = end + 2;
  }
  if (r->state == MGL_HTTP_HEAD) {
    understand(r);
  }
}

static size_t read_head(mgl_http_reader *r, const char *data, size_t bytes) {
  r->state = MGL_HTTP_HEAD;
  for (size_t i = 0; i < bytes; i++) {
    char c = data[i];
    size_t n = r->head.bytes;
    bool after_cr = n > 0 && r->head.data[n - 1] == '\r';
    if ((c == '\n') != after_cr) {
      refuse(r, 400, "lines of the head must end with CR LF, and have neither elsewhere");
      return i;
    }
    if (n == MGL_HTTP_HEAD_BYTES) {
      refuse(r, 431, "the head is larger than 32 KiB");
      return i;
    }
    mgl_text_append(&r->head, &c, 1);
    if (r->head.failed) {
      refuse(r, 503, "out of memory");
      return i;
    }
    if (c == '\n' && n >= 3 && r->head.data[n - 2] == '\n') {
      parse_head(r);
      return i + 1;
    }
  }
  return bytes;
}

// --- the body ------------------------------------------------------------------------------------

static size_t take_body(mgl_http_reader *r, const char *data, size_t bytes) {
  size_t taken = bytes < r->left ? bytes : (size_t)r->left;
  mgl_text_append(&r->body, data, taken);
  r->left -= taken;
  if (r->body.failed) {
    refuse(r, 503, "out of memory for the body");
  }
  return taken;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  c = (char)(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void read_size_char(mgl_http_reader *r, char c) {
  if (c == '\r' && r->line_bytes > 0) {
    r->part = CHUNK_SIZE_LF;
  } else if (hex_digit(c) < 0 || r->line_bytes == 8) {
    refuse(r, 400, "expected the size of a chunk, 1 to 8 hexadecimal digits and CR LF");
  } else {
    r->left = r->left * 16 + (uint64_t)hex_digit(c);
    r->line_bytes++;
  }
}

// One character of chunked coding that is not data.
static void read_chunk_char(mgl_http_reader *r, char c) {
  static const char expected[] = {[CHUNK_SIZE_LF] = '\n',
                                  [CHUNK_CR] = '\r',
                                  [CHUNK_LF] = '\n',
                                  [LAST_CR] = '\r',
                                  [LAST_LF] = '\n'};
  if (r->part == CHUNK_SIZE) {
    read_size_char(r, c);
    return;
  }
  if (c != expected[r->part]) {
    refuse(r, 400,
           r->part == LAST_CR ? "trailers behind the body are not taken"
                              : "expected CR LF behind a chunk and its size");
    return;
  }
  switch (r->part) {
    case CHUNK_SIZE_LF:
      r->line_bytes = 0;
      r->part = r->left == 0 ? LAST_CR : CHUNK_DATA;
      if (r->left > r->max_body_bytes - r->body.bytes) {
        refuse(r, 413, "the body is larger than this server takes");
      }
      break;
    case CHUNK_CR: r->part = CHUNK_LF; break;
    case CHUNK_LF: r->part = CHUNK_SIZE; break;
    case LAST_CR: r->part = LAST_LF; break;
    default: r->state = MGL_HTTP_COMPLETE;
  }
}

static size_t read_chunks(mgl_http_reader *r, const char *data, size_t bytes) {
  size_t used = 0;
  while (used < bytes && r->state == MGL_HTTP_BODY) {
    if (r->part == CHUNK_DATA) {
      used += take_body(r, data + used, bytes - used);
      r->part = r->left == 0 ? CHUNK_CR : CHUNK_DATA;
    } else {
      read_chunk_char(r, data[used++]);
    }
  }
  return used;
}

size_t mgl_http_read(mgl_http_reader *reader, const char *data, size_t bytes) {
  switch (reader->state) {
    case MGL_HTTP_IDLE:
    case MGL_HTTP_HEAD: return bytes == 0 ? 0 : read_head(reader, data, bytes);
    case MGL_HTTP_BODY: break;
    case MGL_HTTP_COMPLETE:
    case MGL_HTTP_REFUSED: return 0;
  }
  if (reader->chunked) {
    return read_chunks(reader, data, bytes);
  }
  size_t used = take_body(reader, data, bytes);
  if (reader->left == 0 && reader->state == MGL_HTTP_BODY) {
    reader->state = MGL_HTTP_COMPLETE;
  }
  return used;
}

void mgl_http_reader_next(mgl_http_reader *reader) {
  mgl_text head = reader->head;
  mgl_text body = reader->body;
  if (body.capacity > SMALL_BODY_BYTES) {
    mgl_text_free(&body);
  }
  mgl_text_clear(&head);
  mgl_text_clear(&body);
  *reader = (mgl_http_reader){.max_body_bytes = reader->max_body_bytes, .head = head, .body = body};
}

void mgl_http_reader_free(mgl_http_reader *reader) {
  mgl_text_free(&reader->head);
  mgl_text_free(&reader->body);
}
