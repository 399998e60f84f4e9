// Grammars through the server: each form at each endpoint, streams, and the texts of refusals.
#include "serve_bed.h"

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Say something.\"}]"
#define SCHEMA                                                                                  \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"\\u00e4 \\\"q\\\"\"},\"n\":{"     \
  "\"type\":\"integer\",\"minimum\":7,\"maximum\":7},\"flags\":{\"type\":\"array\",\"items\":{" \
  "\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":4}},\"required\":[\"name\",\"n\","         \
  "\"flags\"],\"additionalProperties\":false}"

// The text of an answer, whole or of events, of any endpoint.
static void append_text_of(const json_t *answer, mgl_text *out) {
  const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
  const json_t *item = json_array_get(json_object_get(answer, "output"), 0);
  const json_t *places[] = {
      json_object_get(choice, "text"),
      json_object_get(json_object_get(choice, "message"), "content"),
      json_object_get(json_object_get(choice, "delta"), "content"),
      json_object_get(json_array_get(json_object_get(item, "content"), 0), "text"),
      json_object_get(answer, "delta")};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    if (json_is_string(places[i])) {
      mgl_text_append_string(out, json_string_value(places[i]));
    }
  }
}

// Asks and gives the whole text, which the caller frees.
static char *text_of(const bed *b, const char *path, const char *body, int expected_status) {
  mgl_text text = {0};
  reply r = ask_server(b, path, body);
  if (r.status != expected_status) {
    fail_msg("%s: %s", body, r.body.data);
  }
  if (strstr(body, "\"stream\":true") != NULL) {
    for (const char *at = r.body.data; (at = strstr(at, "data: {")) != NULL; at++) {
      json_error_t error;
      json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, &error);
      assert_non_null(event);
      append_text_of(event, &text);
      json_decref(event);
    }
  } else {
    json_t *root = json_of(&r);
    append_text_of(root, &text);
    json_decref(root);
  }
  mgl_text_free(&r.body);
  char *copy = strdup(text.data == NULL ? "" : text.data);
  mgl_text_free(&text);
  return copy;
}

static void check_schema_text(const char *text) {
  json_error_t error;
  json_t *root = json_loads(text, 0, &error);
  if (root == NULL) {
    fail_msg("expected JSON, found %s", text);
  }
  const json_t *flags = json_object_get(root, "flags");
  assert_int_equal(3, json_object_size(root));
  assert_string_equal("\xc3\xa4 \"q\"", json_string_value(json_object_get(root, "name")));
  assert_int_equal(7, json_integer_value(json_object_get(root, "n")));
  assert_true(json_array_size(flags) >= 1 && json_array_size(flags) <= 4);
  assert_true(json_is_boolean(json_array_get(flags, 0)));
  json_decref(root);
}

static void test_schemas(void **state) {
  static const struct {
    const char *path, *body;
  } asks[] = {
      {"/v1/chat/completions", USER ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\""
                                    ":{\"name\":\"x\",\"strict\":true,\"schema\":" SCHEMA "}}"},
      {"/v1/chat/completions", USER ",\"structured_outputs\":{\"json\":" SCHEMA "}"},
      {"/v1/completions",
       "\"prompt\":\"x\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\""
       ":{\"name\":\"x\",\"schema\":" SCHEMA "}}"},
      {"/v1/completions", "\"prompt\":\"x\",\"structured_outputs\":{\"json\":" SCHEMA "}"},
      {"/v1/responses",
       "\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":"
       "\"x\",\"strict\":true,\"schema\":" SCHEMA "}}"},
  };
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  for (size_t i = 0; i < 2 * sizeof asks / sizeof *asks; i++) {
    char body[2048];
    const char *path = asks[i / 2].path;
    bool responses = strcmp(path, "/v1/responses") == 0;
    (void)snprintf(body, sizeof body, "{%s,\"temperature\":1,\"%s\":300%s}", asks[i / 2].body,
                   responses ? "max_output_tokens" : "max_tokens",
                   i % 2 == 0 ? "" : ",\"stream\":true");
    char *text = text_of(&b, path, body, 200);
    check_schema_text(text);
    free(text);
  }
  stop_server(&b);
}

static void test_other_forms(void **state) {
  static const struct {
    const char *path, *body, *expected;
  } asks[] = {
      {"/v1/chat/completions", "{" USER ",\"structured_outputs\":{\"regex\":\"a{3}b\"}}", "aaab"},
      {"/v1/chat/completions", "{" USER ",\"structured_outputs\":{\"choice\":[\"maybe\"]}}",
       "maybe"},
      {"/v1/chat/completions",
       "{" USER ",\"stream\":true,\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\" "
       "[b]\"}}",
       "ab"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"a{3}b\"}}",
       "aaab"},
      {"/v1/completions",
       "{\"prompt\":\"x\",\"stream\":true,\"structured_outputs\":{\"choice\":[\"\xf0\x9f\x98\x80\"]"
       "}}",
       "\xf0\x9f\x98\x80"},
      {"/v1/completions",
       "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":\"{\\\"const\\\":5}\"}}", "5"},
      {"/v1/chat/completions",
       "{" USER ",\"response_format\":{\"type\":\"text\"},\"stop\":\"e\","
       "\"structured_outputs\":{\"choice\":[\"maybe\"]}}",
       "mayb"},
  };
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
    char *text = text_of(&b, asks[i].path, asks[i].body, 200);
    assert_string_equal(asks[i].expected, text);
    free(text);
  }
  // A response says what was asked of it.
  reply r = ask_server(&b, "/v1/responses",
                       "{\"input\":\"x\",\"max_output_tokens\":1,\"text\":{\"format\":{\"type\":"
                       "\"json_object\"}}}");
  assert_non_null(strstr(r.body.data, "\"text\":{\"format\":{\"type\":\"json_object\"}}"));
  mgl_text_free(&r.body);
  // Any object; cut off, it is the beginning of one.
  char *text =
      text_of(&b, "/v1/chat/completions",
              "{" USER ",\"max_tokens\":5,\"response_format\":{\"type\":\"json_object\"}}", 200);
  assert_int_equal('{', text[0]);
  free(text);
  stop_server(&b);
}

static void test_refusals(void **state) {
  static const struct {
    const char *path, *body, *parameter, *message;
  } cases[] = {
      {"/v1/chat/completions",
       "{" USER ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\","
       "\"schema\":{\"properties\":{\"a\":{\"items\":{\"not\":{}}}}}}}}",
       "response_format", "schema at /properties/a/items: \\\"not\\\" is not supported"},
      {"/v1/chat/completions", "{" USER ",\"response_format\":{\"type\":\"json_schema\"}}",
       "response_format", "expected {\\\"type\\\": \\\"text\\\"}"},
      {"/v1/chat/completions",
       "{" USER ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}}",
       "response_format", "expected a name"},
      {"/v1/chat/completions",
       "{" USER ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\","
       "\"shema\":{}}}}",
       "response_format", "found shema"},
      {"/v1/chat/completions", "{" USER ",\"response_format\":{\"type\":\"xml\"}}",
       "response_format", "found {\\\"type\\\":\\\"xml\\\"}"},
      {"/v1/responses", "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}",
       "text", "expected a name"},
      {"/v1/responses", "{\"input\":\"x\",\"text\":{\"verbosity\":\"low\"}}", "text", "expected {"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"(a\"}}",
       "structured_outputs", "regex, byte 0: a ( without its )"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"a\",\"json\":{}}}",
       "structured_outputs", "an answer has one grammar"},
      {"/v1/completions",
       "{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"},\"structured_outputs\":{"
       "\"regex\":\"a\"}}",
       "structured_outputs", "expected no \\\"response_format\\\" beside it"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{}}", "structured_outputs",
       "an object with one of json, regex"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{\"structural_tag\":\"x\"}}",
       "structured_outputs", "found structural_tag"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{\"grammar\":\"start: x\"}}",
       "structured_outputs", "grammar, line 1: expected a rule"},
      {"/v1/completions", "{\"prompt\":\"x\",\"structured_outputs\":{\"choice\":\"a\"}}",
       "structured_outputs", "expected a list of texts"},
      {"/v1/completions", "{\"prompt\":\"x\",\"guided_regex\":\"a\"}", "guided_regex",
       "{\\\"regex\\\": ...} instead"},
  };
  bed b;
  (void)state;
  start_server(&b, (mgl_server_options){0});
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char parameter[64];
    reply r = ask_server(&b, cases[i].path, cases[i].body);
    (void)snprintf(parameter, sizeof parameter, "\"param\":\"%s\"", cases[i].parameter);
    if (r.status != 400 || strstr(r.body.data, cases[i].message) == NULL ||
        strstr(r.body.data, parameter) == NULL) {
      fail_msg("%s: expected \"%s\" of %s, found %d %s", cases[i].body, cases[i].message, parameter,
               r.status, r.body.data);
    }
    mgl_text_free(&r.body);
  }
  stop_server(&b);
}

// --- many at once --------------------------------------------------------------------------------

typedef struct client {
  const bed *b;
  pthread_t thread;
  unsigned number;
} client;

// A third have a schema, a third EBNF, and a third ask what they always ask.
static void *run_client(void *context) {
  const client *c = context;
  for (unsigned i = 0; i < 6; i++) {
    if ((c->number + i) % 3 == 0) {
      char *text = text_of(c->b, "/v1/completions",
                           "{\"prompt\":\"x\",\"temperature\":1,\"max_tokens\":300,\"stream\":true,"
                           "\"structured_outputs\":{\"json\":" SCHEMA "}}",
                           200);
      check_schema_text(text);
      free(text);
    } else if ((c->number + i) % 3 == 1) {
      char body[256];
      char expected[32];
      (void)snprintf(expected, sizeof expected, "<%u-%u>", c->number, i);
      (void)snprintf(body, sizeof body,
                     "{\"prompt\":\"x\",\"structured_outputs\":{\"grammar\":\"root ::= "
                     "\\\"%s\\\"\"}}",
                     expected);
      char *text = text_of(c->b, "/v1/completions", body, 200);
      assert_string_equal(expected, text);
      free(text);
    } else {
      char *text =
          text_of(c->b, "/v1/chat/completions",
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 12 + 7?\"}]}", 200);
      assert_string_equal("12 + 7 = 19.", text);
      free(text);
    }
  }
  return NULL;
}

static void test_many(void **state) {
  enum { CLIENTS = 12 };
  bed b;
  client clients[CLIENTS];
  (void)state;
  start_server(&b, (mgl_server_options){0});
  for (unsigned i = 0; i < CLIENTS; i++) {
    clients[i] = (client){.b = &b, .number = i};
    assert_int_equal(0, pthread_create(&clients[i].thread, NULL, run_client, &clients[i]));
  }
  for (unsigned i = 0; i < CLIENTS; i++) {
    assert_int_equal(0, pthread_join(clients[i].thread, NULL));
  }
  wait_for_metric(&b, "megalith_requests_running", 0);
  stop_server(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_schemas),
      cmocka_unit_test(test_other_forms),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_many),
  };
  return cmocka_run_group_tests(tests, open_bed, close_bed);
}
