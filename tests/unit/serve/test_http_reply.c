#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/http_reply.h"

typedef struct found {
  mgl_text events;  // with | between them
} found;

static void on_event(void *context, const char *data, size_t bytes) {
  found *f = context;
  mgl_text_append(&f->events, data, bytes);
  mgl_text_append_string(&f->events, "|");
}

typedef struct reply_case {
  const char *text;
  mgl_reply_state state;  // when the connection has ended
  int status;
  bool keep_alive;
  const char *body;  // or events
} reply_case;

static const reply_case cases[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", MGL_REPLY_COMPLETE, 200, true, "hello"},
    {"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
     MGL_REPLY_COMPLETE, 429, false, "{}"},
    {"HTTP/1.0 200 OK\r\n\r\nto the end", MGL_REPLY_COMPLETE, 200, false, "to the end"},
    {"HTTP/1.1 204 No\r\n\r\n", MGL_REPLY_COMPLETE, 204, true, ""},
    {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", MGL_REPLY_COMPLETE, 200, true, ""},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
     MGL_REPLY_COMPLETE, 200, true, "x"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n"
     "Trailer: 1\r\n\r\n",
     MGL_REPLY_COMPLETE, 200, true, "abc0123456789"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
     "b\r\ndata: one\n\n\r\n6\r\n: hi\n\n\r\n9\r\ndata:two\n\r\n8\r\ndata: th\r\n5\r\nree\n\n\r\n"
     "0\r\n\r\n",
     MGL_REPLY_COMPLETE, 200, true, "one|two|three|"},
    {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\ndata: 1\n\ndata: 2",
     MGL_REPLY_COMPLETE, 200, false, "1|"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", MGL_REPLY_MALFORMED, 200, true, "hell"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", MGL_REPLY_MALFORMED, 200,
     true, "abc"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", MGL_REPLY_MALFORMED, 200,
     true, "abc"},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", MGL_REPLY_MALFORMED, 200, true,
     ""},
    {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", MGL_REPLY_MALFORMED, 200, true, ""},
    {"SMTP ready\r\n", MGL_REPLY_MALFORMED, 0, false, ""},
    {"", MGL_REPLY_MALFORMED, 0, false, ""},
};

// Each answer in parts of one, two, three and all bytes.
static void test_cases(void **state) {
  static const size_t parts[] = {1, 2, 3, 65536};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const reply_case *c = &cases[i];
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
      mgl_http_reply r = {0};
      found f = {0};
      size_t bytes = strlen(c->text);
      for (size_t at = 0; at < bytes; at += parts[p]) {
        size_t part = parts[p] < bytes - at ? parts[p] : bytes - at;
        size_t used = mgl_http_reply_read(&r, c->text + at, part, on_event, &f);
        assert_true(used == part || r.state == MGL_REPLY_MALFORMED);
      }
      mgl_http_reply_end(&r);
      if (r.state != c->state || r.status != c->status) {
        fail_msg("case %zu: expected state %d and status %d, found %d and %d", i, c->state,
                 c->status, r.state, r.status);
      }
      if (r.state == MGL_REPLY_COMPLETE) {
        assert_int_equal(c->keep_alive, r.keep_alive);
        const mgl_text *content = r.is_events ? &f.events : &r.body;
        assert_string_equal(c->body, content->data == NULL ? "" : content->data);
      }
      mgl_text_free(&f.events);
      mgl_http_reply_free(&r);
    }
  }
}

// Two answers on a connection: the first one's end is where the second begins.
static void test_next(void **state) {
  static const char text[] =
      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nAHTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nB";
  mgl_http_reply r = {0};
  (void)state;
  size_t used = mgl_http_reply_read(&r, text, sizeof text - 1, NULL, NULL);
  assert_int_equal(MGL_REPLY_COMPLETE, r.state);
  assert_string_equal("A", r.body.data);
  mgl_http_reply_next(&r);
  used += mgl_http_reply_read(&r, text + used, sizeof text - 1 - used, NULL, NULL);
  assert_int_equal(sizeof text - 1, used);
  assert_int_equal(404, r.status);
  assert_string_equal("B", r.body.data);
  mgl_http_reply_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_next)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
