// What the server does where memory is out, and while somebody's body takes long.
#include "serve_bed.h"

#include <stdatomic.h>

#include "base/alloc.h"

// The client of this test allocates nothing, so that every allocation is the server's.
static const char *const bodies[] = {
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 12 + 7?\"}],\"logprobs\":true}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 12 + 7?\"}],\"stream\":true}"};

static const char *ask_plainly(const bed *b, bool streams) {
  static char answer[65536];
  char request[512];
  size_t bytes = 0;
  ssize_t n = 0;
  int fd = connect_client(b);
  (void)snprintf(request, sizeof request,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 strlen(bodies[streams]), bodies[streams]);
  (void)send(fd, request, strlen(request), MSG_NOSIGNAL);
  while (bytes < sizeof answer - 1 &&
         (n = recv(fd, answer + bytes, sizeof answer - 1 - bytes, 0)) > 0) {
    bytes += (size_t)n;
  }
  answer[bytes] = 0;
  (void)close(fd);
  return answer;
}

// Whether the framing says that this is all.
static bool is_complete(const char *answer) {
  const char *length = strstr(answer, "Content-Length: ");
  const char *body = strstr(answer, "\r\n\r\n");
  if (length != NULL && body != NULL) {
    return strlen(body + 4) == (size_t)atol(length + 16);
  }
  size_t bytes = strlen(answer);
  return bytes > 5 && strcmp(answer + bytes - 5, "0\r\n\r\n") == 0;
}

// An allocation fails, each in its turn: the request is answered, with 200 or an error, or its
// connection ends; never is an answer with a gap taken for a whole one. The server goes on.
static void test_memory(void **state) {
  enum { MOST = 600 };
  bed b;
  uint32_t whole = 0;
  uint32_t refused = 0;
  uint32_t closed = 0;
  char expected[2][64];
  (void)state;
  start_server(&b, (mgl_server_options){0});
  for (int streams = 0; streams < 2; streams++) {  // the end of an answer that lacks nothing
    const char *answer = ask_plainly(&b, streams);
    assert_true(is_complete(answer));
    (void)snprintf(expected[streams], sizeof expected[streams], "%s",
                   streams ? "data: [DONE]" : "\"completion_tokens\":11");
    assert_non_null(strstr(answer, expected[streams]));
  }
  for (uint64_t n = 0; n < MOST; n++) {
    int streams = n % 2 == 0;
    mgl_alloc_fail_nth(n / 2 + 1);
    const char *answer = ask_plainly(&b, streams);
    mgl_alloc_fail_nth(0);
    if (!is_complete(answer)) {
      closed++;
    } else if (strstr(answer, "\"error\":{") != NULL || strstr(answer, " 200 ") == NULL) {
      refused++;
    } else if (strstr(answer, expected[streams]) == NULL) {
      fail_msg("allocation %u: an answer with a gap: %s", (unsigned)(n / 2 + 1), answer);
    } else {
      whole++;
    }
    wait_for_metric(&b, "megalith_requests_active", 0);
  }
  (void)printf("memory out: %u whole answers, %u errors, %u closed connections\n", whole, refused,
               closed);
  assert_true(whole > 0 && refused > 0 && closed > 0);
  wait_for_metric(&b, "megalith_connections_open", 1);
  wait_for_metric(&b, "megalith_kv_pages_used", 0);
  stop_server(&b);
}

// --- large bodies --------------------------------------------------------------------------------

#ifdef MGL_TEST_SANITIZED  // where a byte of text takes many times as long
enum { LARGE_BYTES = 1 << 20, LARGE_CLIENTS = 3 };
#else
enum { LARGE_BYTES = 7 * 1024 * 1024, LARGE_CLIENTS = 3 };
#endif

static atomic_int large_open;

typedef struct large_client {
  const bed *b;
  const char *path, *body;
  pthread_t thread;
  int status;
  double seconds;
} large_client;

static void *run_large(void *context) {
  large_client *c = context;
  uint64_t begin = mgl_clock_ns();
  reply r = ask_server(c->b, c->path, c->body);
  c->seconds = (double)(mgl_clock_ns() - begin) * 1e-9;
  c->status = r.status;
  mgl_text_free(&r.body);
  (void)atomic_fetch_sub(&large_open, 1);
  return NULL;
}

// Several bodies of 7 MiB at once, to be tokenized: a stream goes on, and small requests are
// answered, meanwhile. Prints the longest gap of the stream.
static void test_large_bodies(void **state) {
  bed b;
  large_client clients[LARGE_CLIENTS];
  reply r;
  char line[4096];
  mgl_text body = {0};
  (void)state;
  mgl_text_append_string(&body, "{\"prompt\":\"");
  while (body.bytes < LARGE_BYTES) {
    mgl_text_append_string(&body, "What is 137 + 245? Count to 9.  ");
  }
  mgl_text_append_string(&body, "\"}");
  start_server(&b, (mgl_server_options){0});
  atomic_store(&large_open, LARGE_CLIENTS);
  for (int i = 0; i < LARGE_CLIENTS; i++) {
    clients[i] = (large_client){.b = &b, .body = body.data};
    clients[i].path = i == 0 ? "/v1/completions" : "/tokenize";
    assert_int_equal(0, pthread_create(&clients[i].thread, NULL, run_large, &clients[i]));
  }
  double small_ms = 0;
  double longest_ms = 0;
  do {
    int fd = connect_client(&b);
    send_post(fd, "/v1/completions",
              "{\"prompt\":\"x\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true}");
    assert_true(read_reply_head(fd, &r));
    uint64_t begin = mgl_clock_ns();
    reply small = ask_server(&b, "/v1/completions", "{\"prompt\":\"y\",\"max_tokens\":1}");
    double took = (double)(mgl_clock_ns() - begin) * 1e-6;
    assert_int_equal(200, small.status);
    mgl_text_free(&small.body);
    small_ms = took > small_ms ? took : small_ms;
    uint64_t last = 0;
    while (read_line(fd, line, sizeof line) && strncmp(line, "data: [DONE]", 12) != 0) {
      uint64_t now = mgl_clock_ns();
      double gap = last == 0 ? 0 : (double)(now - last) * 1e-6;
      longest_ms = gap > longest_ms ? gap : longest_ms;
      last = now;
    }
    (void)close(fd);
  } while (atomic_load(&large_open) > 0);
  double large_s = 0;
  for (int i = 0; i < LARGE_CLIENTS; i++) {
    (void)pthread_join(clients[i].thread, NULL);
    assert_int_equal(i == 0 ? 400 : 200, clients[i].status);  // beyond the context; tokenized
    large_s = clients[i].seconds > large_s ? clients[i].seconds : large_s;
  }
  (void)printf(
      "%d bodies of %d MiB at once take %.2f s; meanwhile small requests %.1f ms at most, "
      "and a stream's longest gap is %.1f ms\n",
      LARGE_CLIENTS, LARGE_BYTES >> 20, large_s, small_ms, longest_ms);
  mgl_text_free(&body);
  stop_server(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory),
                                     cmocka_unit_test(test_large_bodies)};
  return cmocka_run_group_tests(tests, open_bed, close_bed);
}
