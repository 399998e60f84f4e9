// Calls of tools that are required or of a named function: whatever the model would rather say, the
// answer is a call of the format, with arguments that keep to the function's schema; whole and as a
// stream. The demo model knows nothing of tools, so that it is the grammar alone that makes them.
#include "serve_bed.h"

#include "support/chat_model.h"

#define TOOLS                                                                                  \
  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":" \
  "\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":10,\"maximum\":19},"     \
  "\"kind\":{\"enum\":[\"x\",\"y\"]}},\"required\":[\"a\",\"kind\"],"                          \
  "\"additionalProperties\":false}}},"                                                         \
  "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]"
#define ASK(more) \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 12 + 7?\"}]," TOOLS "," more "}"

static bed b;
static mgl_output_syntax syntax;

static int open_calls(void **state) {
  megalith_engine_options options = {
      .size = sizeof options, .device = "cpu", .threads = 1, .kv_tokens = 4096, .background = true};
  (void)state;
  model = open_chat_model(MGL_DEMO_FOLDER, CHAT_MODEL_TEMPLATE);
  return megalith_engine_create(model, &options, &engine, NULL) == MEGALITH_OK ? 0 : -1;
}

// The arguments of `add` are what its schema says.
static void check_arguments(const char *name, const char *arguments) {
  json_t *root = json_loads(arguments, 0, NULL);
  if (strcmp(name, "now") == 0) {
    assert_string_equal("{}", arguments);
  } else {
    const char *kind = json_string_value(json_object_get(root, "kind"));
    assert_string_equal("add", name);
    assert_int_equal(2, json_object_size(root));
    assert_in_range(json_integer_value(json_object_get(root, "a")), 10, 19);
    assert_true(strcmp(kind, "x") == 0 || strcmp(kind, "y") == 0);
  }
  json_decref(root);
}

// Returns how many calls a whole answer has.
static size_t check_whole(const char *body) {
  reply r = ask_server(&b, "/v1/chat/completions", body);
  json_t *root = json_of(&r);
  const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
  const json_t *message = json_object_get(choice, "message");
  const json_t *calls = json_object_get(message, "tool_calls");
  size_t count = json_array_size(calls);
  if (count == 0) {
    fail_msg("%s: expected calls, found %s", body, r.body.data);
  }
  for (size_t i = 0; i < count; i++) {
    const json_t *function = json_object_get(json_array_get(calls, i), "function");
    check_arguments(json_string_value(json_object_get(function, "name")),
                    json_string_value(json_object_get(function, "arguments")));
  }
  json_decref(root);
  mgl_text_free(&r.body);
  return count;
}

// The same as a stream: the first call, put together again.
static void check_stream(const char *body) {
  reply r = ask_server(&b, "/v1/chat/completions", body);
  char name[32] = "";
  char arguments[256] = "";
  const char *at = r.body.data;
  assert_int_equal(200, r.status);
  for (; strncmp(at, "data: [DONE]", 12) != 0; at = strstr(at, "\n\n") + 2) {
    json_t *event = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
    const json_t *delta =
        json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta");
    const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
    const json_t *function = json_object_get(call, "function");
    const char *begun = json_string_value(json_object_get(function, "name"));
    const char *piece = json_string_value(json_object_get(function, "arguments"));
    if (call != NULL && json_integer_value(json_object_get(call, "index")) == 0) {
      strncat(name, begun == NULL ? "" : begun, sizeof name - strlen(name) - 1);
      strncat(arguments, piece, sizeof arguments - strlen(arguments) - 1);
    }
    json_decref(event);
  }
  check_arguments(name, arguments);
  mgl_text_free(&r.body);
}

static void check_format(void) {
  start_server(&b, (mgl_server_options){.syntax = syntax});
  for (int seed = 0; seed < 3; seed++) {
    char body[2048];
    (void)snprintf(body, sizeof body,
                   ASK("\"tool_choice\":\"required\",\"parallel_tool_calls\":false,"
                       "\"temperature\":5,\"seed\":%d"),
                   seed);
    assert_int_equal(1, check_whole(body));
    (void)snprintf(body, sizeof body,
                   ASK("\"tool_choice\":\"required\",\"temperature\":5,\"seed\":%d,"
                       "\"stream\":true"),
                   seed);
    check_stream(body);
    (void)snprintf(body, sizeof body,
                   ASK("\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
                       "\"temperature\":5,\"seed\":%d"),
                   seed);
    assert_int_equal(1, check_whole(body));
  }
  stop_server(&b);
}

static void test_hermes(void **state) {
  (void)state;
  syntax = (mgl_output_syntax){.tools = MGL_TOOLS_HERMES};
  check_format();
}

static void test_llama3(void **state) {
  (void)state;
  syntax = (mgl_output_syntax){.tools = MGL_TOOLS_LLAMA3};
  check_format();
}

// A thought may come first, and goes on where the prompt has opened it: this model never ends one.
static void test_thoughts(void **state) {
  (void)state;
  start_server(&b,
               (mgl_server_options){.syntax = {.tools = MGL_TOOLS_HERMES, .finds_thoughts = true}});
  for (int opened = 0; opened < 2; opened++) {
    char body[2048];
    (void)snprintf(body, sizeof body, ASK("\"tool_choice\":\"required\"%s"),
                   opened ? ",\"chat_template_kwargs\":{\"enable_thinking\":true}" : "");
    reply r = ask_server(&b, "/v1/chat/completions", body);
    assert_int_equal(200, r.status);
    bool is_call = strstr(r.body.data, "\"tool_calls\":[{\"id\"") != NULL;
    bool is_thought = strstr(r.body.data, "\"reasoning_content\":") != NULL;
    assert_true(opened ? is_thought : is_thought || is_call);
    mgl_text_free(&r.body);
  }
  stop_server(&b);
}

static void expect_refusal(const char *body, const char *part) {
  reply r = ask_server(&b, "/v1/chat/completions", body);
  if (r.status != 400 || strstr(r.body.data, part) == NULL) {
    fail_msg("%s: expected 400 and \"%s\", found %d and %s", body, part, r.status, r.body.data);
  }
  mgl_text_free(&r.body);
}

static void test_refusals(void **state) {
  static const char required[] = ASK("\"tool_choice\":\"required\"");
  (void)state;
  start_server(&b, (mgl_server_options){0});
  expect_refusal(required, "how this model writes calls is not known");
  stop_server(&b);
  // Mistral's mark is a special token, which the demo's vocabulary does not have.
  start_server(&b, (mgl_server_options){.syntax.tools = MGL_TOOLS_MISTRAL});
  expect_refusal(required, "[TOOL_CALLS]");
  expect_refusal(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"required\","
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
      "{\"type\":\"array\"}}}]}",
      "\\\"tools\\\"");
  stop_server(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hermes),
      cmocka_unit_test(test_llama3),
      cmocka_unit_test(test_thoughts),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, open_calls, close_bed);
}
