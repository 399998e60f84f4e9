// What HTTP adds to the time to the first token: the same prompts straight to the engine and through
// the server, in turn, one at a time. Prints the figures; the bound counts with MGL_TEST_LONG, on a
// machine without other work. bench/serve_cost.sh has the tokens per second.
#include "serve_bed.h"

#ifdef MGL_TEST_SANITIZED
enum { ROUNDS = 21, BOUND_US = 1000 };
#else
enum { ROUNDS = 201, BOUND_US = 1000 };
#endif

static int compare(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double values[ROUNDS]) {
  qsort(values, ROUNDS, sizeof *values, compare);
  return values[ROUNDS / 2];
}

static double direct_us(const char *text) {
  megalith_request_options options = {.size = sizeof options, .text = text, .max_new_tokens = 2};
  megalith_request *request = NULL;
  uint64_t begin = mgl_clock_ns();
  assert_int_equal(MEGALITH_OK, megalith_engine_submit(engine, &options, &request, NULL));
  assert_non_null(megalith_request_next(request, -1));
  double us = (double)(mgl_clock_ns() - begin) * 1e-3;
  assert_true(megalith_request_wait(request, -1));
  megalith_request_release(request);
  return us;
}

// On a connection that is there, to the first event.
static double served_us(int fd, const char *body) {
  reply r;
  char line[1024];
  uint64_t begin = mgl_clock_ns();
  send_post(fd, "/v1/completions", body);
  assert_true(read_reply_head(fd, &r));
  assert_true(read_line(fd, line, sizeof line) && read_line(fd, line, sizeof line));
  double us = (double)(mgl_clock_ns() - begin) * 1e-3;
  assert_memory_equal("data: ", line, 6);
  while (strncmp(line, "0\r\n", 3) != 0) {
    assert_true(read_line(fd, line, sizeof line));
  }
  assert_true(read_line(fd, line, sizeof line));
  return us;
}

static void test_first_token(void **state) {
  bed b;
  double direct[ROUNDS];
  double served[ROUNDS];
  double added[ROUNDS];
  (void)state;
  start_server(&b, (mgl_server_options){0});
  int fd = connect_client(&b);
  for (int i = 0; i < ROUNDS; i++) {
    char text[64];
    char body[256];
    for (int half = 0; half < 2; half++) {  // each first in turn; no prompt twice
      (void)snprintf(text, sizeof text, "Question %d%d of many", half, i);
      (void)snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":2,\"stream\":true}",
                     text);
      if ((half + i) % 2 == 0) {
        direct[i] = direct_us(text);
      } else {
        served[i] = served_us(fd, body);
      }
    }
    added[i] = served[i] - direct[i];
  }
  (void)close(fd);
  double of_engine = median(direct);
  double of_server = median(served);
  double more = median(added);
  (void)printf(
      "first token: %.0f us from the engine, %.0f us through HTTP; %.0f us more, medians "
      "of %d\n",
      of_engine, of_server, more, ROUNDS);
  if (getenv("MGL_TEST_LONG") != NULL) {
    assert_true(more <= BOUND_US);
  }
  stop_server(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_token)};
  return cmocka_run_group_tests(tests, open_bed, close_bed);
}
