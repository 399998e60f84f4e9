// Fuzzes the reader of HTTP: the first byte is the size of the pieces, the rest what a client sends.
// A reader that gets the same in pieces finds the same requests, and stops at the same refusal.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "serve/http_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) {
    abort();
  }
}

static void describe(const mgl_http_reader *r, mgl_text *out) {
  mgl_text_format(out, "%s %s?%s %d %d\n", r->method, r->path, r->query, r->is_1_0, r->keep_alive);
  require(r->path[0] == '/' && r->header_count <= MGL_HTTP_HEADERS);
  for (size_t i = 0; i < r->header_count; i++) {
    require(strpbrk(r->headers[i].name, "\r\n: ") == NULL);
    require(strpbrk(r->headers[i].value, "\r\n") == NULL);
    mgl_text_format(out, "%s=%s\n", r->headers[i].name, r->headers[i].value);
  }
  mgl_text_append(out, r->body.data == NULL ? "" : r->body.data, r->body.bytes);
}

static void read_all(const char *data, size_t size, size_t part, mgl_text *out) {
  mgl_http_reader r = {.max_body_bytes = 512};
  for (size_t at = 0; at < size && r.state != MGL_HTTP_REFUSED;) {
    size_t given = size - at < part ? size - at : part;
    size_t taken = mgl_http_read(&r, data + at, given);
    bool is_between = r.state == MGL_HTTP_COMPLETE || r.state == MGL_HTTP_BODY;
    require(taken <= given && (taken > 0 || is_between || r.state == MGL_HTTP_REFUSED));
    at += taken;
    require(r.body.bytes <= 512);
    if (r.state == MGL_HTTP_COMPLETE) {
      describe(&r, out);
      mgl_http_reader_next(&r);
    }
  }
  if (r.state == MGL_HTTP_REFUSED) {
    require(r.refusal >= 400 && r.refusal < 600 && r.reason != NULL);
    mgl_text_format(out, "refused %d %s", r.refusal, r.reason);
  }
  mgl_http_reader_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mgl_text whole = {0};
  mgl_text pieces = {0};
  if (size == 0) {
    return 0;
  }
  read_all((const char *)data + 1, size - 1, size, &whole);
  read_all((const char *)data + 1, size - 1, 1 + data[0] % 16, &pieces);
  require(whole.bytes == pieces.bytes &&
          (whole.bytes == 0 || memcmp(whole.data, pieces.data, whole.bytes) == 0));
  mgl_text_free(&whole);
  mgl_text_free(&pieces);
  return 0;
}
