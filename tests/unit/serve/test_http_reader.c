// The corpus of request smuggling and other requests that two readers could understand in two ways:
// each is fed whole, and byte by byte, with the same outcome.
#include "serve/http_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/must.h"

enum { BODY_LIMIT = 64 };

typedef struct request_case {
  const char *name;
  const char *text;
  size_t bytes;  // 0: to the NUL
  int refusal;   // 0: taken
  const char *body;
} request_case;

#define POST "POST /x HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static const request_case cases[] = {
    {"plain", POST "Content-Length: 3\r\n\r\nabc", 0, 0, "abc"},
    {"no body", "GET /x?y=1 HTTP/1.1\r\nHost: a\r\n\r\n", 0, 0, ""},
    {"1.0", "GET /x HTTP/1.0\r\n\r\n", 0, 0, ""},
    {"chunks", CHUNKED "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n", 0, 0, "abc0123456789"},
    {"coding without case", POST "transfer-encoding: Chunked\r\n\r\n0\r\n\r\n", 0, 0, ""},
    {"blanks around a value", POST "Content-Length: \t 3 \t\r\n\r\nabc", 0, 0, "abc"},
    {"expectation", POST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx", 0, 0, "x"},
    // Lengths and codings.
    {"same length twice", POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 0, 400, ""},
    {"two lengths", POST "Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", 0, 400, ""},
    {"list of lengths", POST "Content-Length: 3, 3\r\n\r\nabc", 0, 400, ""},
    {"length +3", POST "Content-Length: +3\r\n\r\nabc", 0, 400, ""},
    {"length -1", POST "Content-Length: -1\r\n\r\nabc", 0, 400, ""},
    {"length 3x", POST "Content-Length: 3x\r\n\r\nabc", 0, 400, ""},
    {"length 0x3", POST "Content-Length: 0x3\r\n\r\nabc", 0, 400, ""},
    {"empty length", POST "Content-Length:\r\n\r\nabc", 0, 400, ""},
    {"length wraps", POST "Content-Length: 18446744073709551619\r\n\r\nabc", 0, 400, ""},
    {"large length", POST "Content-Length: 65\r\n\r\n", 0, 413, ""},
    {"both", POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 400, ""},
    {"both, other order", POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
     0, 400, ""},
    {"gzip, chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, 501, ""},
    {"xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 0, 501, ""},
    {"identity", POST "Transfer-Encoding: identity\r\n\r\n", 0, 501, ""},
    {"chunked, chunked", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 0, 501, ""},
    {"two codings", POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 0,
     400, ""},
    {"vertical tab", POST "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", 0, 400, ""},
    {"coding in 1.0", "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 400,
     ""},
    // Lines and names.
    {"blank before colon", POST "Content-Length : 3\r\n\r\nabc", 0, 400, ""},
    {"folded line", POST "X-A: b\r\n c\r\n\r\n", 0, 400, ""},
    {"folded with a tab", POST "X-A: b\r\n\tc\r\n\r\n", 0, 400, ""},
    {"folded first header", "GET /x HTTP/1.1\r\n Host: a\r\n\r\n", 0, 400, ""},
    {"bare LF", "POST /x HTTP/1.1\nHost: a\n\n", 0, 400, ""},
    {"one bare LF", POST "X-A: b\nX-B: c\r\n\r\n", 0, 400, ""},
    {"bare CR", POST "X-A: b\rX-B: c\r\n\r\n", 0, 400, ""},
    {"NUL in a value", POST "X-A: b\0c\r\n\r\n", sizeof(POST "X-A: b\0c\r\n\r\n") - 1, 400, ""},
    {"NUL in the target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
     sizeof "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n" - 1, 400, ""},
    {"no colon", POST "X-A\r\n\r\n", 0, 400, ""},
    {"empty name", POST ": b\r\n\r\n", 0, 400, ""},
    {"name with a slash", POST "X/A: b\r\n\r\n", 0, 400, ""},
    {"DEL in a value", POST "X-A: \x7f\r\n\r\n", 0, 400, ""},
    {"no host", "GET /x HTTP/1.1\r\n\r\n", 0, 400, ""},
    {"two hosts", "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 0, 400, ""},
    {"two Connection headers", POST "Connection: close\r\nConnection: keep-alive\r\n\r\n", 0, 400,
     ""},
    {"unknown expectation", POST "Expect: tea\r\n\r\n", 0, 417, ""},
    // Request lines.
    {"blank in the target", "GET /x y HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"two blanks", "GET  /x HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"tab", "GET\t/x\tHTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"empty first line", "\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"absolute target", "GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"CONNECT", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"1.2", "GET /x HTTP/1.2\r\nHost: a\r\n\r\n", 0, 505, ""},
    {"2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 505, ""},
    {"0.9", "GET /x\r\n\r\n", 0, 400, ""},
    {"small http", "GET /x http/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"umlaut in the target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, ""},
    {"TLS", "\x16\x03\x01\x02\x00\x01\n", 7, 400, ""},
    // Chunks.
    {"size 0x3", CHUNKED "0x3\r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"size -1", CHUNKED "-1\r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"size +3", CHUNKED "+3\r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"size with a blank", CHUNKED "3 \r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"empty size", CHUNKED "\r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"size wraps", CHUNKED "FFFFFFFFFFFFFFFF3\r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"size beyond the limit", CHUNKED "41\r\n", 0, 413, ""},
    {"sizes beyond the limit", CHUNKED "3\r\nabc\r\n3e\r\n", 0, 413, ""},
    {"LF behind a size", CHUNKED "3\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"no CR LF behind data", CHUNKED "3\r\nabcX0\r\n\r\n", 0, 400, ""},
    {"LF behind data", CHUNKED "3\r\nabc\n0\r\n\r\n", 0, 400, ""},
    {"extension", CHUNKED "3;a=b\r\nabc\r\n0\r\n\r\n", 0, 400, ""},
    {"trailer", CHUNKED "3\r\nabc\r\n0\r\nContent-Length: 9\r\n\r\n", 0, 400, ""},
};

// Feeds `bytes` in parts of `part` bytes; returns how many were used.
static size_t feed(mgl_http_reader *r, const char *text, size_t bytes, size_t part) {
  size_t used = 0;
  *r = (mgl_http_reader){.max_body_bytes = BODY_LIMIT};
  while (used < bytes && r->state != MGL_HTTP_COMPLETE && r->state != MGL_HTTP_REFUSED) {
    size_t left = bytes - used;
    // In memory of its own size, so that ASan sees a read behind it.
    size_t count = left < part ? left : part;
    char *copy = malloc(count);
    memcpy(copy, text + used, count);
    used += mgl_http_read(r, copy, count);
    free(copy);
  }
  return used;
}

static void test_corpus(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const request_case *c = &cases[i];
    size_t bytes = c->bytes == 0 ? strlen(c->text) : c->bytes;
    static const size_t parts[] = {1, 2, 7, 65536};
    for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
      mgl_http_reader r;
      size_t used = feed(&r, c->text, bytes, parts[j]);
      int refusal = r.state == MGL_HTTP_REFUSED ? r.refusal : 0;
      if (refusal != c->refusal) {
        fail_msg("%s: expected %d, found %d (%s)", c->name, c->refusal, refusal,
                 refusal == 0 ? "" : r.reason);
      }
      if (c->refusal == 0) {
        assert_int_equal(MGL_HTTP_COMPLETE, r.state);
        assert_int_equal(bytes, used);
        assert_string_equal(c->body, r.body.data == NULL ? "" : r.body.data);
      } else {
        assert_non_null(r.reason);
      }
      mgl_http_reader_free(&r);
    }
  }
}

static void test_parts(void **state) {
  (void)state;
  static const char text[] =
      "POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer  k \r\nContent-Length: "
      "2\r\n\r\n{}"
      "GET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  mgl_http_reader r;
  size_t used = feed(&r, text, sizeof text - 1, sizeof text);
  assert_string_equal("POST", r.method);
  assert_string_equal("/v1/x", r.path);
  assert_string_equal("a=b", r.query);
  assert_string_equal("Bearer  k", mgl_http_header_of(&r, "authorization"));
  assert_null(mgl_http_header_of(&r, "x"));
  assert_true(r.keep_alive);
  assert_string_equal("{}", r.body.data);
  mgl_http_reader_next(&r);
  (void)mgl_http_read(&r, text + used, sizeof text - 1 - used);
  assert_int_equal(MGL_HTTP_COMPLETE, r.state);
  assert_string_equal("/next", r.path);
  assert_false(r.keep_alive);
  mgl_http_reader_free(&r);
}

static void test_limits(void **state) {
  (void)state;
  mgl_http_reader r = {.max_body_bytes = BODY_LIMIT};
  static const char begin[] = "GET /x HTTP/1.1\r\nHost: a\r\nX: ";
  (void)mgl_http_read(&r, begin, sizeof begin - 1);
  while (r.state == MGL_HTTP_HEAD) {
    (void)mgl_http_read(&r, "y", 1);
    assert_true(r.head.bytes <= MGL_HTTP_HEAD_BYTES);
  }
  assert_int_equal(431, r.refusal);
  mgl_http_reader_free(&r);
  r = (mgl_http_reader){.max_body_bytes = BODY_LIMIT};
  (void)mgl_http_read(&r, begin, sizeof "GET /x HTTP/1.1\r\nHost: a\r\n" - 1);
  for (int i = 0; i < MGL_HTTP_HEADERS; i++) {
    (void)mgl_http_read(&r, "a: b\r\n", 6);
  }
  (void)mgl_http_read(&r, "\r\n", 2);
  assert_int_equal(431, r.refusal);
  mgl_http_reader_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_corpus),
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_limits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
