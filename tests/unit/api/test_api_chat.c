// Chats through the public API: messages as JSON, tools, variables, and the rendered prompt.
#include "api_bed.h"

static const char question[] = "[{\"role\": \"user\", \"content\": \"What is 12 + 7?\"}]";

static megalith_status render(megalith_request_options options, char *text, size_t capacity,
                              size_t *bytes, megalith_error *error) {
  options.size = sizeof options;
  return megalith_model_render(model, &options, text, capacity, bytes, error);
}

static void expect_refused(megalith_request_options options, megalith_status status,
                           const char *expected) {
  megalith_error error = {0};
  size_t bytes = 1;
  assert_int_equal(render(options, NULL, 0, &bytes, &error), status);
  assert_int_equal(bytes, 0);
  if (strstr(error.text, expected) == NULL) {
    fail_msg("expected \"%s\", found \"%s\"", expected, error.text);
  }
}

static void json_messages_are_a_prompt(void **state) {
  (void)state;
  megalith_engine *engine = create((megalith_engine_options){0});
  const megalith_message message = {.role = "user", .content = "What is 12 + 7?"};
  megalith_request *requests[] = {
      submit(engine, (megalith_request_options){.messages = &message, .message_count = 1}),
      submit(engine, (megalith_request_options){.messages_json = question}),
      submit(engine, (megalith_request_options){.messages_json = question,
                                                .tools_json = "[]",
                                                .chat_variables_json = "{\"unused\": 1}"}),
      submit(engine,
             (megalith_request_options){.messages_json =
                                            "[{\"role\": \"user\", \"content\": [{\"type\": "
                                            "\"text\", \"text\": \"What is 12 + 7?\"}]}]"}),
  };
  // The answer goes on where the message ends.
  megalith_request *continued =
      submit(engine, (megalith_request_options){
                         .messages_json = "[{\"role\": \"user\", \"content\": \"What is 12 + 7?\"},"
                                          "{\"role\": \"assistant\", \"content\": \"12 + 7 =\"}]",
                         .continue_final_message = true});
  run(engine);
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
    assert_string_equal(megalith_request_result(requests[i])->text, "12 + 7 = 19.");
    megalith_request_release(requests[i]);
  }
  assert_string_equal(megalith_request_result(continued)->text, " 19.");
  megalith_request_release(continued);
  megalith_engine_destroy(engine);
}

static void rendered_prompts_can_be_seen(void **state) {
  (void)state;
  megalith_error error = {0};
  const megalith_message message = {.role = "user", .content = "What is 12 + 7?"};
  char plain[512];
  char text[512];
  size_t bytes = 0;
  assert_int_equal(render((megalith_request_options){.messages = &message, .message_count = 1},
                          plain, sizeof plain, &bytes, &error),
                   MEGALITH_OK);
  assert_int_equal(bytes, strlen(plain));
  assert_non_null(strstr(plain, "What is 12 + 7?"));
  size_t size = bytes;
  assert_int_equal(render((megalith_request_options){.messages_json = question}, text, sizeof text,
                          &bytes, &error),
                   MEGALITH_OK);
  assert_string_equal(text, plain);
  // The size is told whatever fits.
  memset(text, 'x', sizeof text);
  assert_int_equal(
      render((megalith_request_options){.messages_json = question}, NULL, 0, &bytes, &error),
      MEGALITH_OK);
  assert_int_equal(bytes, size);
  assert_int_equal(
      render((megalith_request_options){.messages_json = question}, text, 5, &bytes, &error),
      MEGALITH_OK);
  assert_int_equal(bytes, size);
  assert_memory_equal(text, plain, 4);
  assert_int_equal(text[4], 0);
  assert_int_equal(text[5], 'x');
}

static void what_is_wrong_is_named(void **state) {
  (void)state;
  const megalith_message message = {.role = "user", .content = "x"};
  expect_refused((megalith_request_options){.text = "x"}, MEGALITH_ERROR_ARGUMENT,
                 "expected one of messages and messages_json, found 0");
  expect_refused(
      (megalith_request_options){
          .messages = &message, .message_count = 1, .messages_json = question},
      MEGALITH_ERROR_ARGUMENT, "found 2");
  expect_refused((megalith_request_options){.messages_json = "[{"}, MEGALITH_ERROR_FORMAT,
                 "messages_json: expected JSON");
  expect_refused((megalith_request_options){.messages_json = "{}"}, MEGALITH_ERROR_LIMIT,
                 "messages: expected an array of 1 to 65536 objects, found no array");
  expect_refused((megalith_request_options){.messages_json = question, .tools_json = "7"},
                 MEGALITH_ERROR_ARGUMENT, "tools: expected an array");
  expect_refused((megalith_request_options){.messages_json = question, .tools_json = "["},
                 MEGALITH_ERROR_FORMAT, "tools_json: expected JSON");
  expect_refused((megalith_request_options){.messages_json = question,
                                            .chat_variables_json = "{\"messages\": []}"},
                 MEGALITH_ERROR_ARGUMENT, "\"messages\" is set by Megalith");
  expect_refused(
      (megalith_request_options){
          .messages_json = "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]"},
      MEGALITH_ERROR_ARGUMENT, "found \"image_url\"");
  char *large = calloc(1, MEGALITH_MAX_CHAT_JSON_BYTES + 2);
  assert_non_null(large);
  memset(large, ' ', MEGALITH_MAX_CHAT_JSON_BYTES + 1);
  expect_refused((megalith_request_options){.messages_json = large}, MEGALITH_ERROR_LIMIT,
                 "messages_json: expected at most");
  free(large);
  // Of a prompt that is no chat.
  megalith_engine *engine = create((megalith_engine_options){0});
  megalith_error error = {0};
  megalith_request *request = NULL;
  megalith_request_options options = {
      .size = sizeof options, .text = "x", .chat_variables_json = "{}"};
  assert_int_equal(megalith_engine_submit(engine, &options, &request, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "need messages, found a text"));
  options =
      (megalith_request_options){.size = sizeof options, .text = "x", .messages_json = question};
  assert_int_equal(megalith_engine_submit(engine, &options, &request, &error),
                   MEGALITH_ERROR_ARGUMENT);
  assert_non_null(strstr(error.text, "one of text, tokens, messages and messages_json, found 2"));
  megalith_engine_destroy(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(json_messages_are_a_prompt),
      cmocka_unit_test(rendered_prompts_can_be_seen),
      cmocka_unit_test(what_is_wrong_is_named),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
