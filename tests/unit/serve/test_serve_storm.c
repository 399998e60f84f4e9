// Many clients, of which a third go away at random points: nothing of them stays. Prints figures.
// With MGL_TEST_LONG, 10^5 requests.
#include "serve_bed.h"

#include <dirent.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { CLIENTS = 8, USUAL_REQUESTS = 600, LONG_REQUESTS = 100000 };

typedef struct storm {
  const bed *b;
  uint32_t requests;  // of each client
  unsigned seed;
  pthread_t thread;
  uint32_t whole, cut;
} storm;

static unsigned draw(unsigned *seed, unsigned below) {
  *seed = *seed * 1664525u + 1013904223u;
  return (*seed >> 8) % below;
}

static uint32_t count_descriptors(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder) != NULL) {
    count++;
  }
  (void)closedir(folder);
  return count;
}

// Sends a part of a request, or all of it and reads a part of its answer, and is gone.
static void cut_off(storm *s, const char *text, size_t bytes) {
  char part[512];
  int fd = connect_client(s->b);
  size_t sent = draw(&s->seed, 2) == 0 ? draw(&s->seed, (unsigned)bytes) : bytes;
  (void)send(fd, text, sent, MSG_NOSIGNAL);
  if (sent == bytes && draw(&s->seed, 2) == 0) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    (void)poll(&wait, 1, (int)draw(&s->seed, 20));
    (void)recv(fd, part, 1 + draw(&s->seed, sizeof part - 1), MSG_DONTWAIT);
  } else {
    (void)usleep(draw(&s->seed, 3000));
  }
  if (draw(&s->seed, 2) == 0) {  // with a reset
    struct linger now = {.l_onoff = 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  (void)close(fd);
  s->cut++;
}

static void *run_storm(void *context) {
  storm *s = context;
  for (uint32_t i = 0; i < s->requests; i++) {
    mgl_text text = {0};
    char body[256];
    unsigned tokens = 1 + draw(&s->seed, 12);
    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"Request %u of a storm\",\"max_tokens\":%u,\"n\":%u,"
                   "\"stream\":%s,\"ignore_eos\":true}",
                   draw(&s->seed, 50), tokens, 1 + draw(&s->seed, 2),
                   draw(&s->seed, 2) == 0 ? "true" : "false");
    mgl_text_format(&text,
                    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                    strlen(body), body);
    if (draw(&s->seed, 3) == 0) {
      cut_off(s, text.data, text.bytes);
    } else {
      reply r;
      int fd = connect_client(s->b);
      send_text(fd, text.data);
      if (!read_reply(fd, &r) || r.status != 200) {
        (void)fprintf(stderr, "expected an answer, found status %d: %s\n", r.status, r.body.data);
        abort();
      }
      mgl_text_free(&r.body);
      (void)close(fd);
      s->whole++;
    }
    mgl_text_free(&text);
  }
  return NULL;
}

static void test_storm(void **state) {
  bed b;
  storm storms[CLIENTS];
  uint32_t whole = 0;
  uint32_t cut = 0;
  (void)state;
#ifdef MGL_TEST_SANITIZED
  uint32_t requests = getenv("MGL_TEST_LONG") != NULL ? LONG_REQUESTS / 10 : USUAL_REQUESTS / 3;
#else
  uint32_t requests = getenv("MGL_TEST_LONG") != NULL ? LONG_REQUESTS : USUAL_REQUESTS;
#endif
  uint64_t begin = mgl_clock_ns();
  start_server(&b, (mgl_server_options){0});
  wait_for_metric(&b, "megalith_connections_open", 1);
  uint32_t descriptors = count_descriptors();
  for (unsigned i = 0; i < CLIENTS; i++) {
    storms[i] = (storm){.b = &b, .requests = requests / CLIENTS, .seed = 77 + i};
    assert_int_equal(0, pthread_create(&storms[i].thread, NULL, run_storm, &storms[i]));
  }
  for (unsigned i = 0; i < CLIENTS; i++) {
    (void)pthread_join(storms[i].thread, NULL);
    whole += storms[i].whole;
    cut += storms[i].cut;
  }
  wait_for_metric(&b, "megalith_requests_active", 0);
  wait_for_metric(&b, "megalith_connections_open", 1);  // the one that asks
  wait_for_metric(&b, "megalith_kv_pages_used", 0);
  wait_for_metric(&b, "megalith_requests_running", 0);
  assert_true(metric(&b, "megalith_http_responses_total{status=\"5xx\"}") == 0);
  // The connection of the last question goes when the server has seen its end.
  for (int i = 0; i < 1000 && count_descriptors() > descriptors; i++) {
    (void)usleep(1000);
  }
  assert_true(count_descriptors() <= descriptors);
  (void)printf("%u requests whole, %u cut off, %.1f s; nothing left\n", whole, cut,
               (double)(mgl_clock_ns() - begin) * 1e-9);
  stop_server(&b);
}

// --- pages come back -----------------------------------------------------------------------------

enum { MANY_PAGES = 20 };  // fewer than a long prompt takes, more than what runs beside it

// Both stand before the engine's (-Wl,--wrap). They count plans, and tell after which of them a
// cancelled request still has its pages.
void __real_megalith_request_cancel(megalith_request *request);
void __wrap_megalith_request_cancel(megalith_request *request);
void __real_mgl_api_before_plan(void *context);
void __wrap_mgl_api_before_plan(void *context);
static atomic_uint_fast64_t plans;         // begun
static atomic_uint_fast64_t cancelled_at;  // 1 + plans as the cancellation returned; 0: none did
static atomic_uint_fast64_t most_plans;    // begun since then, with the pages still in use

static megalith_statistics statistics_now(void) {
  megalith_statistics now = {.size = sizeof now};
  assert_int_equal(MEGALITH_OK, megalith_engine_get_statistics(engine, &now, NULL));
  return now;
}

void __wrap_megalith_request_cancel(megalith_request *request) {
  __real_megalith_request_cancel(request);
  atomic_store(&cancelled_at, atomic_load(&plans) + 1);
}

// What it notes of pages is from before its plan.
void __wrap_mgl_api_before_plan(void *context) {
  uint64_t plan = atomic_fetch_add(&plans, 1) + 1;
  uint64_t at = atomic_load(&cancelled_at);  // first: what is cancelled from now on is not meant
  __real_mgl_api_before_plan(context);
  uint64_t since = at == 0 ? 0 : plan + 1 - at;
  if (since > atomic_load(&most_plans) && statistics_now().pages_used > MANY_PAGES) {
    atomic_store(&most_plans, since);
  }
}

static atomic_bool stop_background;

// Keeps the engine in iterations, with few pages.
static void *run_background(void *context) {
  const bed *b = context;
  while (!atomic_load(&stop_background)) {
    reply r = ask_server(b, "/v1/completions",
                         "{\"prompt\":\"x\",\"max_tokens\":60,\"ignore_eos\":true}");
    mgl_text_free(&r.body);
  }
  return NULL;
}

// A client with a long prompt goes away, while others go on. The first plan that begins after the
// cancellation takes the pages back, so the second one does not find them in use.
static void test_pages_return(void **state) {
  enum { CUTS = 40, PROMPT = 400 };
  bed b;
  pthread_t background;
  mgl_text body = {0};
  (void)state;
  atomic_store(&cancelled_at, 0);  // other tests cancel, too
  atomic_store(&most_plans, 0);
  start_server(&b, (mgl_server_options){0});
  atomic_store(&stop_background, false);
  assert_int_equal(0, pthread_create(&background, NULL, run_background, &b));
  for (int cut = 0; cut < CUTS; cut++) {
    reply r;
    char line[512];
    mgl_text_clear(&body);
    for (int i = 0; i < PROMPT; i++) {
      mgl_text_format(&body, i == 0 ? "{\"prompt\":[%d" : ",%d", 20 + (i * 7 + cut) % 200);
    }
    mgl_text_append_string(&body, "],\"max_tokens\":90,\"ignore_eos\":true,\"stream\":true}");
    int fd = connect_client(&b);
    send_post(fd, "/v1/completions", body.data);
    assert_true(read_reply_head(fd, &r) && read_line(fd, line, sizeof line));
    assert_true(statistics_now().pages_used > MANY_PAGES);
    (void)close(fd);
    while (atomic_load(&cancelled_at) == 0 || statistics_now().pages_used > MANY_PAGES) {
      (void)usleep(100);
    }
    if (atomic_load(&most_plans) > 1) {
      fail_msg("cut %d: plan %llu after the cancellation found its pages in use", cut,
               (unsigned long long)atomic_load(&most_plans));
    }
    atomic_store(&cancelled_at, 0);
  }
  (void)printf("%d clients with %d tokens went away: the first plan after it took their pages%s\n",
               CUTS, PROMPT, atomic_load(&most_plans) == 1 ? "" : ", never seen");
  assert_int_equal(1, atomic_load(&most_plans));  // else nothing was looked at
  atomic_store(&stop_background, true);
  (void)pthread_join(background, NULL);
  mgl_text_free(&body);
  wait_for_metric(&b, "megalith_kv_pages_used", 0);
  stop_server(&b);
}

// Ten times what fits: the rest is told so at once.
enum { MOST = 4, ASKERS = 40 };

typedef struct asker {
  const bed *b;
  pthread_t thread;
  int status;
  double ms;
} asker;

static void *run_asker(void *context) {
  asker *a = context;
  uint64_t begin = mgl_clock_ns();
  reply r = ask_server(a->b, "/v1/completions",
                       "{\"prompt\":\"x\",\"max_tokens\":200,\"ignore_eos\":true}");
  a->ms = (double)(mgl_clock_ns() - begin) * 1e-6;
  a->status = r.status;
  mgl_text_free(&r.body);
  return NULL;
}

static void test_overload_figures(void **state) {
  bed b;
  asker askers[ASKERS];
  uint32_t accepted = 0;
  double slowest = 0;
  (void)state;
  start_server(&b, (mgl_server_options){.max_requests = MOST});
  for (unsigned i = 0; i < ASKERS; i++) {
    askers[i] = (asker){.b = &b};
    assert_int_equal(0, pthread_create(&askers[i].thread, NULL, run_asker, &askers[i]));
  }
  for (unsigned i = 0; i < ASKERS; i++) {
    (void)pthread_join(askers[i].thread, NULL);
    accepted += askers[i].status == 200 ? 1 : 0;
    assert_true(askers[i].status == 200 || askers[i].status == 429);
    slowest = askers[i].status == 429 && askers[i].ms > slowest ? askers[i].ms : slowest;
  }
  assert_true(accepted >= MOST && accepted < ASKERS);
  (void)printf("overload: %u of %u accepted, slowest 429 after %.1f ms\n", accepted, ASKERS,
               slowest);
  stop_server(&b);
}

// Median time of some requests, in ms.
static double measure_requests(const bed *b) {
  enum { ROUNDS = 31 };
  double ms[ROUNDS];
  for (size_t i = 0; i < ROUNDS; i++) {
    uint64_t begin = mgl_clock_ns();
    reply r = ask_server(b, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8}");
    double took = (double)(mgl_clock_ns() - begin) * 1e-6;
    assert_int_equal(200, r.status);
    mgl_text_free(&r.body);
    size_t j = i;
    for (; j > 0 && ms[j - 1] > took; j--) {
      ms[j] = ms[j - 1];
    }
    ms[j] = took;
  }
  return ms[ROUNDS / 2];
}

// Connections that say nothing, and some that say half a head: others are served all the same.
static void test_idle(void **state) {
  bed b;
  bool is_long = getenv("MGL_TEST_LONG") != NULL;
  uint32_t idle = is_long ? 8000 : 300;
  uint32_t slow = is_long ? 1000 : 100;
  struct rlimit limit;
  (void)state;
  assert_int_equal(0, getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2 * (idle + slow) + 200) {  // both ends are here
    (void)printf("skipped: %u connections need more than the %llu descriptors that are allowed\n",
                 idle + slow, (unsigned long long)limit.rlim_cur);
    return;
  }
  int *fds = malloc((idle + slow) * sizeof *fds);
  start_server(&b, (mgl_server_options){.head_seconds = 600, .idle_seconds = 600});
  double alone = measure_requests(&b);
  for (uint32_t i = 0; i < idle + slow; i++) {
    fds[i] = connect_client(&b);
    if (i < slow) {
      send_text(fds[i], "GET /health HTTP/1.1\r\nHost: x\r\nX-A: ");
    }
  }
  double among = measure_requests(&b);
  (void)printf("%u idle and %u slow connections: 8 tokens take %.2f ms, without them %.2f\n", idle,
               slow, among, alone);
  assert_true(metric(&b, "megalith_connections_open") == idle + slow + 1);
  for (uint32_t i = 0; i < idle + slow; i++) {
    (void)close(fds[i]);
  }
  free(fds);
  wait_for_metric(&b, "megalith_connections_open", 1);
  stop_server(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_storm), cmocka_unit_test(test_pages_return),
      cmocka_unit_test(test_overload_figures), cmocka_unit_test(test_idle)};
  return cmocka_run_group_tests(tests, open_bed, close_bed);
}
