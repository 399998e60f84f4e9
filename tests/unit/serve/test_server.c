// The server from outside: its routes, answers whole and as streams, the same tokens as without a
// server, clients that go away, what is refused, and the end.
#include "serve_bed.h"

#include <stddef.h>
#include <sys/un.h>

#include "serve/openapi.h"

#define QUESTION(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"

static void expect_status(const bed *b, const char *path, const char *body, int status,
                          const char *part) {
  reply r = ask_server(b, path, body);
  if (r.status != status || strstr(r.body.data == NULL ? "" : r.body.data, part) == NULL) {
    fail_msg("%s: expected %d and \"%s\", found %d and %s", path, status, part, r.status,
             r.body.data);
  }
  mgl_text_free(&r.body);
}

static void test_routes(void **state) {
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  expect_status(&b, "/health", NULL, 200, "ok");
  expect_status(&b, "/ready", NULL, 200, "ready");
  expect_status(&b, "/version", NULL, 200, megalith_version());
  expect_status(&b, "/v1/models", NULL, 200, "\"id\":\"demo\"");
  expect_status(&b, "/server_info", NULL, 200, "\"family\":\"qwen3\"");
  expect_status(&b, "/metrics", NULL, 200, "vllm:num_requests_running{model_name=\"demo\"} 0");
  expect_status(&b, "/nothing", NULL, 404, "nothing at this path");
  expect_status(&b, "/v1/models", "{}", 405, "expected method GET");
  expect_status(&b, "/v1/completions", NULL, 405, "expected method POST");
  expect_status(&b, "/v1/completions", "{\"prompt\":5}", 400, "\"param\":\"prompt\"");
  expect_status(&b, "/v1/completions", "{\"prompt\":\"x\",\"model\":\"gpt\"}", 404,
                "model_not_found");
  expect_status(&b, "/v1/completions", "{\"prompt\":[5000]}", 400, "5000");
  expect_status(&b, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":600}", 400, "512");
  expect_status(&b, "/tokenize", "{\"prompt\":\"Once\"}", 200, "\"tokens\":[");
  expect_status(&b, "/tokenize", "{" QUESTION("hi") "}", 200, "[1022,");
  expect_status(&b, "/detokenize", "{\"tokens\":[46,77,649,556,290]}", 200, "\"Once upon\"");
  expect_status(&b, "/v1/chat/completions", "{" QUESTION("What is 137 + 245?") "}", 200,
                "\"content\":\"137 + 245 = 382.\"");
  expect_status(&b, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2,\"echo\":true}", 200,
                "\"text\":\"Once");
  stop_server(&b);
}

// The document has every route, and of each that takes a body all of its parameters.
static void test_openapi(void **state) {
  bed b;
  mgl_server_route route;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  reply r = ask_server(&b, "/openapi.json", NULL);
  json_t *root = json_of(&r);
  const json_t *paths = json_object_get(root, "paths");
  for (size_t i = 0; mgl_server_route_at(i, &route); i++) {
    const json_t *operation = json_object_get(json_object_get(paths, route.path),
                                              strcmp(route.method, "GET") == 0 ? "get" : "post");
    if (json_object_get(json_object_get(operation, "responses"), "200") == NULL) {
      fail_msg("%s %s is not in the document", route.method, route.path);
    }
    assert_int_equal(route.endpoint != 0, json_object_get(operation, "requestBody") != NULL);
  }
  json_decref(root);
  mgl_text_free(&r.body);
  r = ask_server(&b, "/v1/completions", NULL);
  assert_non_null(strstr(r.head, "Allow: POST"));
  mgl_text_free(&r.body);
  stop_server(&b);
}

// --- the same tokens as without a server ---------------------------------------------------------

enum { CLIENTS = 64, TOKENS = 24 };

typedef struct client {
  const bed *b;
  unsigned index;
  bool streams;
  char *expected;  // token ids, with commas
  char *found;
  pthread_t thread;
} client;

static void make_body(const client *c, char *out, size_t capacity) {
  (void)snprintf(out, capacity,
                 "{\"prompt\":\"Question %u: what is %u + %u?\",\"max_tokens\":%u,\"seed\":%u,"
                 "\"temperature\":%s,\"ignore_eos\":true,\"return_token_ids\":true,\"stream\":%s}",
                 c->index, c->index * 7, c->index * 3, TOKENS, c->index,
                 c->index % 2 == 0 ? "0" : "1.3", c->streams ? "true" : "false");
}

// The ids of all "token_ids" in a text, with commas.
static char *ids_in(const char *text) {
  static const char key[] = "\"token_ids\":[";
  mgl_text ids = {0};
  while ((text = strstr(text, key)) != NULL) {
    text += sizeof key - 1;
    size_t bytes = strcspn(text, "]");
    if (bytes > 0) {
      mgl_text_append(&ids, ",", ids.bytes > 0 ? 1 : 0);
      mgl_text_append(&ids, text, bytes);
    }
  }
  char *copy = strdup(ids.data == NULL ? "" : ids.data);
  mgl_text_free(&ids);
  return copy;
}

static char *ids_without_server(megalith_engine *own, const client *c) {
  char prompt[128];
  megalith_sampling sampling = *megalith_model_describe(model)->sampling;
  (void)snprintf(prompt, sizeof prompt, "Question %u: what is %u + %u?", c->index, c->index * 7,
                 c->index * 3);
  sampling.temperature = c->index % 2 == 0 ? 0 : 1.3;
  sampling.seed = c->index;
  megalith_request_options options = {.size = sizeof options,
                                      .text = prompt,
                                      .max_new_tokens = TOKENS,
                                      .sampling = &sampling,
                                      .ignore_model_stops = true};
  megalith_request *request = NULL;
  assert_int_equal(MEGALITH_OK, megalith_engine_submit(own, &options, &request, NULL));
  assert_int_equal(MEGALITH_OK, megalith_engine_run(own, NULL));
  const megalith_result *result = megalith_request_result(request);
  mgl_text ids = {0};
  for (size_t i = 0; i < result->token_count; i++) {
    mgl_text_format(&ids, i == 0 ? "%d" : ",%d", result->tokens[i]);
  }
  char *copy = strdup(ids.data);
  mgl_text_free(&ids);
  megalith_request_release(request);
  return copy;
}

static void *run_client(void *context) {
  client *c = context;
  char body[512];
  make_body(c, body, sizeof body);
  reply r = ask_server(c->b, "/v1/completions", body);
  c->found = ids_in(r.body.data);
  mgl_text_free(&r.body);
  return NULL;
}

static void compare_clients(client *clients, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    if (strcmp(clients[i].expected, clients[i].found) != 0) {
      fail_msg("client %u: expected %s, found %s", i, clients[i].expected, clients[i].found);
    }
    free(clients[i].found);
  }
}

static void test_same_tokens(void **state) {
  bed b;
  client clients[CLIENTS];
  megalith_engine_options alone = {
      .size = sizeof alone, .device = "cpu", .threads = 1, .kv_tokens = 512};
  megalith_engine *own = NULL;
  (void)state;
  assert_int_equal(MEGALITH_OK, megalith_engine_create(model, &alone, &own, NULL));
  for (unsigned i = 0; i < CLIENTS; i++) {
    clients[i] = (client){.b = &b, .index = i};
    clients[i].expected = ids_without_server(own, &clients[i]);
  }
  megalith_engine_destroy(own);
  start_server(&b, (mgl_server_options){0});
  for (int streams = 0; streams < 2; streams++) {
    for (unsigned i = 0; i < 4; i++) {  // one client
      clients[i].streams = streams != 0;
      (void)run_client(&clients[i]);
    }
    compare_clients(clients, 4);
    for (unsigned i = 0; i < CLIENTS; i++) {  // all at once
      clients[i].streams = streams != 0;
      assert_int_equal(0, pthread_create(&clients[i].thread, NULL, run_client, &clients[i]));
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
      (void)pthread_join(clients[i].thread, NULL);
    }
    compare_clients(clients, CLIENTS);
  }
  stop_server(&b);
  for (unsigned i = 0; i < CLIENTS; i++) {
    free(clients[i].expected);
  }
}

// --- streams -------------------------------------------------------------------------------------

// The text of all deltas; checks the form of each event on the way.
static char *read_events(const char *events, size_t *event_count) {
  mgl_text text = {0};
  *event_count = 0;
  for (const char *at = events; *at != 0; at = strstr(at, "\n\n") + 2) {
    assert_memory_equal("data: ", at, 6);
    at += 6;
    if (strncmp(at, "[DONE]", 6) == 0) {
      assert_string_equal("[DONE]\n\n", at);
      break;
    }
    json_error_t error;
    json_t *event = json_loads(at, JSON_DISABLE_EOF_CHECK, &error);
    assert_non_null(event);
    (*event_count)++;
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *delta =
        json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    const char *piece = json_string_value(json_object_get(choice, "text"));
    mgl_text_append_string(&text, delta != NULL ? delta : piece != NULL ? piece : "");
    json_decref(event);
  }
  char *copy = strdup(text.data == NULL ? "" : text.data);
  mgl_text_free(&text);
  return copy;
}

static void test_stream(void **state) {
  bed b;
  size_t count = 0;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  reply r = ask_server(&b, "/v1/chat/completions",
                       "{\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                       "\"logprobs\":true,\"top_logprobs\":2," QUESTION("What is 12 + 7?") "}");
  assert_int_equal(200, r.status);
  assert_non_null(strstr(r.head, "Content-Type: text/event-stream"));
  char *text = read_events(r.body.data, &count);
  assert_string_equal("12 + 7 = 19.", text);
  assert_non_null(strstr(r.body.data, "\"delta\":{\"role\":\"assistant\",\"content\":\""));
  assert_non_null(strstr(r.body.data, "\"finish_reason\":\"stop\""));
  assert_non_null(strstr(r.body.data, "\"choices\":[],\"usage\":{\"prompt_tokens\":17,"));
  assert_non_null(strstr(r.body.data, "data: [DONE]\n\n"));
  assert_non_null(strstr(r.body.data, "\"top_logprobs\":[{\"token\":"));
  free(text);
  mgl_text_free(&r.body);
  // Stop texts never appear, not even in part.
  r = ask_server(&b, "/v1/chat/completions",
                 "{\"stream\":true,\"stop\":[\"= 1\"]," QUESTION("What is 12 + 7?") "}");
  text = read_events(r.body.data, &count);
  assert_string_equal("12 + 7 ", text);
  free(text);
  mgl_text_free(&r.body);
  stop_server(&b);
}

static void test_responses(void **state) {
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  reply r = ask_server(&b, "/v1/responses", "{\"input\":\"What is 12 + 7?\"}");
  json_t *root = json_of(&r);
  const json_t *item = json_array_get(json_object_get(root, "output"), 0);
  const json_t *part = json_array_get(json_object_get(item, "content"), 0);
  assert_string_equal("12 + 7 = 19.", json_string_value(json_object_get(part, "text")));
  assert_string_equal("completed", json_string_value(json_object_get(root, "status")));
  json_decref(root);
  mgl_text_free(&r.body);
  r = ask_server(&b, "/v1/responses",
                 "{\"input\":\"What is 12 + 7?\",\"stream\":true,\"max_output_tokens\":3}");
  static const char *const events[] = {"event: response.created\n",
                                       "event: response.output_item.added\n",
                                       "event: response.content_part.added\n",
                                       "event: response.output_text.delta\n",
                                       "\"sequence_number\":4,",
                                       "event: response.output_text.done\n",
                                       "event: response.output_item.done\n",
                                       "event: response.incomplete\n",
                                       "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"};
  const char *at = r.body.data;
  for (size_t i = 0; i < sizeof events / sizeof *events; i++) {  // in this order
    at = strstr(at, events[i]);
    if (at == NULL) {
      fail_msg("expected %s in %s", events[i], r.body.data);
    }
  }
  mgl_text_free(&r.body);
  expect_status(&b, "/v1/responses", "{\"input\":\"x\",\"tools\":[{}]}", 400,
                "nothing else is supported");
  stop_server(&b);
}

static void test_many_choices(void **state) {
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  reply r = ask_server(&b, "/v1/completions",
                       "{\"prompt\":[\"Once\",[46,77]],\"n\":2,\"max_tokens\":3,\"seed\":5,"
                       "\"temperature\":1,\"logprobs\":1,\"ignore_eos\":true}");
  json_t *root = json_of(&r);
  const json_t *choices = json_object_get(root, "choices");
  assert_int_equal(4, json_array_size(choices));
  for (size_t i = 0; i < 4; i++) {
    const json_t *choice = json_array_get(choices, i);
    const json_t *logprobs = json_object_get(choice, "logprobs");
    assert_int_equal((int)i, json_integer_value(json_object_get(choice, "index")));
    assert_string_equal("length", json_string_value(json_object_get(choice, "finish_reason")));
    assert_int_equal(3, json_array_size(json_object_get(logprobs, "token_logprobs")));
    assert_int_equal(3, json_array_size(json_object_get(logprobs, "tokens")));
  }
  const json_t *usage = json_object_get(root, "usage");
  assert_int_equal(12, json_integer_value(json_object_get(usage, "completion_tokens")));
  json_decref(root);
  mgl_text_free(&r.body);
  stop_server(&b);
}

// --- connections ---------------------------------------------------------------------------------

static void test_keep_alive(void **state) {
  bed b;
  reply r;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  int fd = connect_client(&b);
  for (int i = 0; i < 3; i++) {
    send_post(fd, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2}");
    assert_true(read_reply(fd, &r));
    assert_int_equal(200, r.status);
    mgl_text_free(&r.body);
  }
  // Two at once: the second one waits for the first.
  send_text(fd,
            "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
            "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  assert_true(read_reply(fd, &r));
  assert_non_null(strstr(r.body.data, "version"));
  mgl_text_free(&r.body);
  assert_true(read_reply(fd, &r));
  assert_non_null(strstr(r.head, "Connection: close"));
  mgl_text_free(&r.body);
  char byte = 0;
  assert_int_equal(0, recv(fd, &byte, 1, 0));
  (void)close(fd);
  // The server asks for the body that a careful client holds back.
  fd = connect_client(&b);
  send_text(fd,
            "POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n"
            "\r\n");
  assert_true(read_reply_head(fd, &r));
  assert_int_equal(100, r.status);
  send_text(fd, "{\"prompt\":\"x\"}");
  assert_true(read_reply(fd, &r));
  assert_int_equal(200, r.status);
  mgl_text_free(&r.body);
  (void)close(fd);
  stop_server(&b);
}

static void test_refused_http(void **state) {
  bed b;
  reply r;
  (void)state;
  start_server(&b, (mgl_server_options){.max_body_bytes = 1024});
  static const struct {
    const char *text;
    int status;
  } cases[] = {
      {"GET /health HTTP/1.1\n\n", 400},
      {"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n"
       "\r\n0\r\n\r\n",
       400},
      {"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n", 413},
      {"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", 404},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char byte = 0;
    int fd = connect_client(&b);
    send_text(fd, cases[i].text);
    assert_true(read_reply(fd, &r));
    assert_int_equal(cases[i].status, r.status);
    assert_non_null(strstr(r.head, "Connection: close"));
    assert_non_null(strstr(r.body.data, "\"error\""));
    assert_int_equal(0, recv(fd, &byte, 1, 0));
    mgl_text_free(&r.body);
    (void)close(fd);
  }
  stop_server(&b);
}

// A client that goes away during its prompt, and one during its stream: nothing of them stays.
static void test_gone(void **state) {
  bed b;
  reply r;
  char line[512];
  (void)state;
  start_server(&b, (mgl_server_options){0});
  double cut = metric(&b, "megalith_requests_finished_total{reason=\"abort\"}");
  for (int streams = 0; streams < 2; streams++) {
    int fd = connect_client(&b);
    send_post(fd, "/v1/completions",
              streams ? "{\"prompt\":\"x\",\"max_tokens\":500,\"ignore_eos\":true,\"stream\":true}"
                      : "{\"prompt\":\"x\",\"max_tokens\":500,\"ignore_eos\":true,\"n\":4}");
    wait_for_metric(&b, "megalith_requests_active", streams ? 1 : 4);
    if (streams) {
      assert_true(read_reply_head(fd, &r));
      assert_true(read_line(fd, line, sizeof line));
    }
    (void)close(fd);
    wait_for_metric(&b, "megalith_requests_active", 0);
  }
  wait_for_metric(&b, "megalith_kv_pages_used", 0);
  assert_true(metric(&b, "megalith_clients_gone_total") == 2);
  assert_true(metric(&b, "megalith_requests_finished_total{reason=\"abort\"}") == cut + 5);
  stop_server(&b);
}

static void test_overload(void **state) {
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){.max_requests = 2});
  int fd = connect_client(&b);
  send_post(fd, "/v1/completions",
            "{\"prompt\":\"x\",\"max_tokens\":500,\"ignore_eos\":true,\"n\":2}");
  wait_for_metric(&b, "megalith_requests_active", 2);
  reply r = ask_server(&b, "/v1/completions", "{\"prompt\":\"x\"}");
  assert_int_equal(429, r.status);
  assert_non_null(strstr(r.head, "Retry-After: "));
  mgl_text_free(&r.body);
  (void)close(fd);
  wait_for_metric(&b, "megalith_requests_active", 0);
  expect_status(&b, "/v1/completions", "{\"prompt\":\"x\",\"n\":3}", 429, "overloaded");
  expect_status(&b, "/v1/completions", "{\"prompt\":\"x\",\"n\":2,\"max_tokens\":1}", 200, "");
  stop_server(&b);
}

static void test_slow_head(void **state) {
  bed b;
  reply r;
  (void)state;
  start_server(&b, (mgl_server_options){.head_seconds = 1, .idle_seconds = 1});
  int slow = connect_client(&b);
  int idle = connect_client(&b);
  char byte = 0;
  send_text(slow, "GET /health HT");
  assert_true(read_reply(slow, &r));
  assert_int_equal(408, r.status);
  mgl_text_free(&r.body);
  assert_int_equal(0, recv(idle, &byte, 1, 0));
  (void)close(slow);
  (void)close(idle);
  stop_server(&b);
}

// What runs at SIGTERM goes on to its end. A request that was on its way on an open connection is
// answered, and new connections are not accepted.
static void test_drain(void **state) {
  bed b;
  reply r;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  int fd = connect_client(&b);
  int idle = connect_client(&b);
  int late = connect_client(&b);
  char byte = 0;
  send_post(fd, "/v1/completions",
            "{\"prompt\":\"x\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true}");
  assert_true(read_reply_head(fd, &r));
  int last = connect_client(&b);
  mgl_server_stop(b.server);
  for (int i = 0; i < 2; i++) {
    reply answer;
    int on = i == 0 ? late : last;
    send_post(on, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2}");
    assert_true(read_reply(on, &answer));
    assert_int_equal(200, answer.status);
    assert_non_null(strstr(answer.head, "Connection: close"));
    mgl_text_free(&answer.body);
    (void)close(on);
  }
  assert_int_equal(0, recv(idle, &byte, 1, 0));
  char line[1024] = "";
  bool done = false;
  while (read_line(fd, line, sizeof line)) {
    done = done || strncmp(line, "data: [DONE]", 12) == 0;
  }
  assert_true(done);
  (void)close(fd);
  (void)close(idle);
  assert_int_equal(0, pthread_join(b.thread, NULL));
  mgl_server_destroy(b.server);
}

// As systemd starts a service: a socket at descriptor 3, and somebody who waits for READY=1.
static void test_systemd(void **state) {
  bed b;
  char pid[32];
  char name[96];
  char told[64] = "";
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_un listener = {.sun_family = AF_UNIX};
  (void)state;
  int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(0, bind(socket_fd, (struct sockaddr *)&address, sizeof address));
  assert_int_equal(0, listen(socket_fd, 8));
  int kept = dup(3);  // what the test itself may have there
  assert_int_equal(3, dup2(socket_fd, 3));
  int told_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  (void)snprintf(name, sizeof name, "@megalith-test-%d", (int)getpid());
  memcpy(listener.sun_path, name, strlen(name));
  listener.sun_path[0] = 0;
  assert_int_equal(0, bind(told_fd, (struct sockaddr *)&listener,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))));
  (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
  (void)setenv("LISTEN_PID", pid, 1);
  (void)setenv("LISTEN_FDS", "1", 1);
  (void)setenv("NOTIFY_SOCKET", name, 1);
  start_server(&b, (mgl_server_options){.use_inherited = true});
  (void)unsetenv("LISTEN_PID");
  expect_status(&b, "/health", NULL, 200, "ok");
  assert_true(recv(told_fd, told, sizeof told - 1, 0) > 0);
  assert_string_equal("READY=1", told);
  stop_server(&b);
  memset(told, 0, sizeof told);
  assert_true(recv(told_fd, told, sizeof told - 1, 0) > 0);
  assert_string_equal("STOPPING=1", told);
  (void)unsetenv("NOTIFY_SOCKET");
  if (kept >= 0) {
    (void)dup2(kept, 3);
    (void)close(kept);
  }
  (void)close(socket_fd);
  (void)close(told_fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_routes),      cmocka_unit_test(test_openapi),
      cmocka_unit_test(test_same_tokens), cmocka_unit_test(test_stream),
      cmocka_unit_test(test_responses),   cmocka_unit_test(test_many_choices),
      cmocka_unit_test(test_keep_alive),  cmocka_unit_test(test_refused_http),
      cmocka_unit_test(test_gone),        cmocka_unit_test(test_overload),
      cmocka_unit_test(test_slow_head),   cmocka_unit_test(test_drain),
      cmocka_unit_test(test_systemd),
  };
  return cmocka_run_group_tests(tests, open_bed, close_bed);
}
